package rocketmq

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// Process is one JVM. It can be started again after it has ended.
type Process struct {
	Name string

	args   []string
	log    string
	cmd    *exec.Cmd
	exited chan struct{} // of the run that was started last; nil before the first
}

// Jars returns the folder of RocketMQ's jars. It is an error when they are not there.
func Jars() (string, error) {
	dir := filepath.Join(cluster.Root(), "tests", "java", "server", "target", "lib")
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("RocketMQ's jars are not there: run `tests/ci/java build`, which fetches them with Maven: %w", err)
	}
	return dir, nil
}

func newProcess(name, dir, class, heap, properties string) (*Process, error) {
	jars, err := Jars()
	if err != nil {
		return nil, err
	}
	return &Process{Name: name, log: filepath.Join(dir, "output.log"), args: []string{
		"-Xms" + heap, "-Xmx" + heap, "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=1g", "-XX:-UseLargePages",
		"--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
		"--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED", "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
		"-Duser.home=" + dir, "-Drocketmq.home.dir=" + dir, "-cp", filepath.Join(jars, "*"), class, "-c", properties,
	}}, nil
}

// Start starts the process. It does not wait until it serves.
func (p *Process) Start() error {
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command("java", p.args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a signal to the terminal does not reach it
	wait, err := cluster.Spawn(cmd)
	if err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() { // ends with the process
		wait()
		close(exited)
	}()
	p.cmd, p.exited = cmd, exited
	return nil
}

// ended is an error when the process has ended.
func (p *Process) ended() error {
	select {
	case <-p.exited:
		return fmt.Errorf("%s of RocketMQ has ended: %v", p.Name, p.cmd.ProcessState)
	default:
		return nil
	}
}

// Kill ends the process with SIGKILL and waits until it is gone.
func (p *Process) Kill() {
	p.cmd.Process.Kill()
	<-p.exited
}

// Stop ends the process as an operator does and waits until it is gone. One that has not ended after 30 s is killed, which is an error.
func (p *Process) Stop() error {
	if p.exited == nil || p.ended() != nil {
		return nil
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
		return nil
	case <-time.After(30 * time.Second):
		p.Kill()
		return fmt.Errorf("%s of RocketMQ did not end within 30 s of SIGTERM", p.Name)
	}
}

// CPU returns the processor time that the process has taken, in user and in system mode.
func (p *Process) CPU() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	// The name in brackets may have spaces; the times are the 12th and 13th field after it, in hundredths of a second.
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, errors.New("/proc/PID/stat has too few fields")
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(err1, err2)
}

// Output returns the end of what the process has printed.
func (p *Process) Output() string {
	const most = 4000
	text, _ := os.ReadFile(p.log)
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return string(text)
}
