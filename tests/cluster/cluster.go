package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ledgermq/ledgermq/jepsen"
)

// Options says what cluster to start. The zero value is that of `ledgermq dev`: three nodes, three groups, mode 2-3.
type Options struct {
	Dir    string // data folder; must be given
	Nodes  int    // default 3
	Groups int    // default 3
	Mode   string // default 2-3
	MinISR int    // default: by mode
	Args   []string
	Env    []string // more environment, name=value
	Binary string   // default: the one that Binary builds
	// Ready bounds the wait until the cluster serves. Default 60 s, which is long because many tests may share two cores.
	Ready time.Duration
}

// Cluster is a running `ledgermq dev --processes`.
type Cluster struct {
	Dir     string
	Namesrv []string
	ID      string
	Place

	binary string
	env    []string
	cmd    *exec.Cmd
	output *lockedBuffer
	exited chan struct{}
	exit   error // valid after exited is closed
	stop   sync.Once
}

// Start builds the binary if need be, starts a cluster and waits until it serves. On an error nothing is left running.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if o.Nodes == 0 {
		o.Nodes = 3
	}
	if o.Groups == 0 {
		o.Groups = 3
	}
	if o.Mode == "" {
		o.Mode = "2-3"
	}
	if o.Ready == 0 {
		o.Ready = 60 * time.Second
	}
	bin := o.Binary
	if bin == "" {
		var err error
		if bin, err = Binary(); err != nil {
			return nil, err
		}
	}
	at, err := NewPlace()
	if err != nil {
		return nil, err
	}
	if o.Binary != "" && !knowsHost(ctx, bin) {
		at.Release()
		if at, err = NewPlaceOnLocalhost(); err != nil {
			return nil, err
		}
	}
	args := []string{
		"dev", "--processes", "--data", o.Dir, "--port-base", strconv.Itoa(at.Base),
		"--nodes", strconv.Itoa(o.Nodes), "--groups", strconv.Itoa(o.Groups), "--mode", o.Mode,
	}
	if at.Host != "127.0.0.1" {
		args = append(args, "--host", at.Host)
	}
	if o.MinISR != 0 {
		args = append(args, "--min-isr", strconv.Itoa(o.MinISR))
	}
	return run(ctx, bin, at, o.Dir, append(args, o.Args...), o.Env, o.Ready)
}

// Resume starts the cluster that a folder holds again, with nothing but the folder.
func Resume(ctx context.Context, dir string) (*Cluster, error) {
	bin, err := Binary()
	if err != nil {
		return nil, err
	}
	return run(ctx, bin, Place{}, dir, []string{"dev", "--processes", "--data", dir}, nil, time.Minute)
}

func run(ctx context.Context, bin string, at Place, dir string, args, env []string, limit time.Duration) (*Cluster, error) {
	c := &Cluster{
		Dir: dir, Place: at, binary: bin, env: append(os.Environ(), env...),
		output: &lockedBuffer{}, exited: make(chan struct{}),
	}
	c.cmd = exec.Command(bin, args...)
	c.cmd.Env = c.env
	c.cmd.Stdout, c.cmd.Stderr = c.output, c.output
	// A group of its own: a signal to the test run does not reach it, Stop does. The members end with it.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	wait, err := Spawn(c.cmd)
	if err != nil {
		at.Release()
		return nil, err
	}
	go func() { // ends with the process
		c.exit = wait()
		close(c.exited)
	}()
	ready, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = jepsen.Await(ready, "cluster.json", func() (bool, error) {
		select {
		case <-c.exited:
			return false, fmt.Errorf("dev ended while starting: %v", c.exit)
		default:
		}
		f, err := c.file()
		if errors.Is(err, os.ErrNotExist) || err == nil && !f.served() {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		c.Namesrv, c.ID = f.Namesrv, f.ClusterID
		c.Host, _, _ = net.SplitHostPort(f.Namesrv[0])
		return true, nil
	})
	if err != nil {
		text := c.Output() + c.Logs()
		return nil, errors.Join(err, c.Stop(), errors.New(text))
	}
	return c, nil
}

// knowsHost tells whether a program's dev listens where it is told: TestRoll may start one of before it could.
func knowsHost(ctx context.Context, bin string) bool {
	help, err := RunBinary(ctx, bin, os.Environ(), "dev", "--help")
	return err == nil && strings.Contains(help, "--host")
}

// At is the address of one of the ports that a member has.
func (c *Cluster) At(port int) string { return net.JoinHostPort(c.Host, strconv.Itoa(port)) }

// KillForeground ends the foreground process with SIGKILL.
func (c *Cluster) KillForeground() {
	c.cmd.Process.Kill()
	<-c.exited
}

// Alive returns the members whose processes run.
func (c *Cluster) Alive() ([]string, error) {
	f, err := c.file()
	var alive []string
	for _, m := range f.Members {
		if c.owns(m) {
			alive = append(alive, m.ID)
		}
	}
	return alive, err
}

// Stop ends the cluster as Ctrl-C does and waits until no process of it is left. It kills what has not ended after 20 s, which
// is an error. It may be called more than once.
func (c *Cluster) Stop() error {
	var failed error
	c.stop.Do(func() {
		defer c.Release()
		f, _ := c.file()
		for _, m := range f.Members {
			if c.owns(m) {
				syscall.Kill(m.PID, syscall.SIGCONT) // a paused process cannot end
			}
		}
		c.cmd.Process.Signal(syscall.SIGINT)
		select {
		case <-c.exited:
			if c.exit != nil {
				failed = fmt.Errorf("dev ended with %w\n%s", c.exit, c.Output())
			}
		case <-time.After(20 * time.Second):
			failed = fmt.Errorf("dev did not end within 20 s of SIGINT\n%s", c.Output())
			c.cmd.Process.Kill()
			<-c.exited
		}
		f, _ = c.file()
		for _, m := range f.Members {
			if c.owns(m) {
				failed = errors.Join(failed, fmt.Errorf("%s (pid %d) was left running", m.ID, m.PID))
				syscall.Kill(m.PID, syscall.SIGKILL)
			}
		}
	})
	return failed
}

// Exited is closed when the foreground process has ended.
func (c *Cluster) Exited() <-chan struct{} { return c.exited }

// Output returns what the foreground process has printed.
func (c *Cluster) Output() string { return c.output.String() }

// Logs returns the end of each member's log, for the report of a failed test.
func (c *Cluster) Logs() string { return jepsen.LogEnds(filepath.Join(c.Dir, "log")) }

// Trouble returns what the members' logs say of panics and, when the binary was built with the race detector, of data races.
func (c *Cluster) Trouble() string { return jepsen.LogTrouble(filepath.Join(c.Dir, "log")) }

// Run runs one command of the binary, for instance Run(ctx, "admin", "cluster"), and returns its standard output. An *ExitError
// carries the exit code and the standard error.
func (c *Cluster) Run(ctx context.Context, args ...string) (string, error) {
	return Run(ctx, c.env, args...)
}

// Admin is Run with "admin" before and this cluster's name server behind.
func (c *Cluster) Admin(ctx context.Context, args ...string) (string, error) {
	return c.Run(ctx, append(append([]string{"admin"}, args...), "--namesrv", strings.Join(c.Namesrv, ","))...)
}

// AdminJSON decodes the --json output of an admin command.
func (c *Cluster) AdminJSON(ctx context.Context, into any, args ...string) error {
	out, err := c.Admin(ctx, append(args, "--json")...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(out), into); err != nil {
		return fmt.Errorf("output of admin %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// ExitError is returned when a command ended with another exit code than 0.
type ExitError struct {
	Args   []string
	Code   int
	Stdout string
	Stderr string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("ledgermq %s: exit code %d: %s", strings.Join(e.Args, " "), e.Code, strings.TrimSpace(e.Stderr))
}

// Run runs one command of the binary without a cluster.
func Run(ctx context.Context, env []string, args ...string) (string, error) {
	bin, err := Binary()
	if err != nil {
		return "", err
	}
	return RunBinary(ctx, bin, env, args...)
}

// RunBinary is Run with another binary.
func RunBinary(ctx context.Context, bin string, env []string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, &stdout, &stderr
	// dev start leaves a process behind that may hold the pipes: do not wait for it.
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return stdout.String(), &ExitError{Args: args, Code: exit.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
	}
	return stdout.String(), err
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
