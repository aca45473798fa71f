package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// devProcesses runs every member as a process of its own. It restarts nobody. One goroutine per child waits for its end, one
// keeps cluster.json true, also for members that `dev start` started; all end with stop.
type devProcesses struct {
	plan     devPlan
	dir      string
	logLevel string
	profiles bool

	mu       sync.Mutex
	children map[string]*exec.Cmd
	serving  bool // from then on the end of a member is noted, not an error
	once     sync.Once
	broken   chan struct{}
	why      error
	stopped  chan struct{}
	tasks    sync.WaitGroup
}

func (d *devProcesses) start() error {
	d.children = make(map[string]*exec.Cmd)
	d.broken, d.stopped = make(chan struct{}), make(chan struct{})
	for _, role := range []string{"controller", "namesrv", "broker"} {
		for _, m := range d.plan.Members {
			if m.Role != role {
				continue
			}
			cmd, err := startMember(d.plan, m, d.dir, d.memberFlags(), false)
			if err != nil {
				return err
			}
			d.mu.Lock()
			d.children[m.ID] = cmd
			d.mu.Unlock()
			d.tasks.Go(func() {
				err := cmd.Wait()
				d.mu.Lock()
				defer d.mu.Unlock()
				if !d.serving {
					d.fail(fmt.Errorf("%s ended while starting: %v: %s", m.ID, err, lastLine(memberLog(d.dir, m.ID))))
				}
			})
		}
	}
	return nil
}

func (d *devProcesses) memberFlags() []string {
	flags := []string{"--log-level", d.logLevel}
	if d.profiles {
		flags = append(flags, "--pprof")
	}
	return flags
}

func memberLog(dir, id string) string { return filepath.Join(dir, devLogName, id+".log") }

// startMember starts one member. A detached one is a session of its own, so that it outlives the command that started it.
func startMember(plan devPlan, m devMember, dir string, more []string, detached bool) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	out, err := os.OpenFile(memberLog(dir, m.ID), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the child has its own
	cmd := exec.Command(self, append(plan.args(m, dir), more...)...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = memberEnvironment(os.Environ())
	// A process group of its own: Ctrl-C reaches only this process, which then ends the members in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !detached, Setsid: detached}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", m.ID, err)
	}
	return cmd, nil
}

// memberEnvironment leaves out our own variables: a member's settings are all on its command line.
func memberEnvironment(env []string) []string {
	var out []string
	for _, e := range env {
		if !strings.HasPrefix(e, "LEDGERMQ_") {
			out = append(out, e)
		}
	}
	return out
}

// fail keeps the first reason. The caller holds mu.
func (d *devProcesses) fail(err error) {
	d.once.Do(func() {
		d.why = err
		close(d.broken)
	})
}

func (d *devProcesses) failed() <-chan struct{} { return d.broken }
func (d *devProcesses) err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.why
}

func (d *devProcesses) ready() error {
	for _, m := range d.plan.Members {
		if err := d.plan.askReady(m); err != nil {
			return err
		}
	}
	return nil
}

var readyClient = &http.Client{Timeout: 2 * time.Second}

// askReady asks a member's /readyz.
func (p *devPlan) askReady(m devMember) error {
	resp, err := readyClient.Get("http://" + p.addr(m.Ports["http"]) + "/readyz")
	if err != nil {
		return fmt.Errorf("%s does not answer yet: %w", m.ID, err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: not ready: %w", m.ID, readyAnswer(string(body)))
	}
	return nil
}

func (d *devProcesses) served(clusterID string) error {
	f := clusterFile{Version: 1, ClusterID: clusterID, Namesrv: d.plan.namesrvs()}
	d.mu.Lock()
	for _, m := range d.plan.Members {
		f.Members = append(f.Members, clusterMember{
			ID: m.ID, Role: m.Role, PID: d.children[m.ID].Process.Pid, Running: true, Ports: allPorts(m), Data: m.Data,
		})
	}
	d.serving = true
	d.mu.Unlock()
	if err := f.write(d.dir); err != nil {
		return err
	}
	d.tasks.Go(d.keepFile)
	return nil
}

// allPorts are a member's ports with those that a broker gave to its replicas.
func allPorts(m devMember) map[string]int {
	ports := make(map[string]int)
	for name, port := range m.Ports {
		ports[name] = port
	}
	for name, port := range readClientPorts(m.Data) {
		ports[name] = port
	}
	return ports
}

// keepFile notes in cluster.json every 100 ms who has ended, and new client ports.
func (d *devProcesses) keepFile() {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-d.stopped:
			return
		case <-ticker.C:
		}
		f, err := readClusterFile(d.dir)
		if err == nil && d.isTrue(f) {
			continue
		}
		err = changeClusterFile(d.dir, func(f *clusterFile) (bool, error) {
			changed := false
			for i := range f.Members {
				m := &f.Members[i]
				if m.Running && !isAlive(m.PID, d.dir) {
					m.Running, changed = false, true
					fmt.Fprintf(os.Stderr, "%s has ended (pid %d); `ledgermq dev start %s --data %s` starts it again\n", m.ID, m.PID, m.ID, d.dir)
				}
				for name, port := range readClientPorts(m.Data) {
					if m.Ports[name] != port {
						m.Ports[name], changed = port, true
					}
				}
			}
			return changed, nil
		})
		if err != nil {
			d.mu.Lock()
			d.fail(fmt.Errorf("cluster.json: %w", err))
			d.mu.Unlock()
			return
		}
	}
}

func (d *devProcesses) isTrue(f clusterFile) bool {
	for _, m := range f.Members {
		if m.Running && !isAlive(m.PID, d.dir) {
			return false
		}
		for name, port := range readClientPorts(m.Data) {
			if m.Ports[name] != port {
				return false
			}
		}
	}
	return true
}

// stop ends the brokers first, then the name servers, then the controllers. Who has not ended after 10 s is killed.
func (d *devProcesses) stop() error {
	close(d.stopped)
	pids := make(map[string]int)
	d.mu.Lock()
	d.serving = true // an end is wanted now
	for id, cmd := range d.children {
		pids[id] = cmd.Process.Pid
	}
	d.mu.Unlock()
	if f, err := readClusterFile(d.dir); err == nil {
		for _, m := range f.Members {
			pids[m.ID] = m.PID // a member that was started again has another
		}
	}
	var failed []error
	for _, role := range []string{"broker", "namesrv", "controller"} {
		var members []devMember
		for _, m := range d.plan.Members {
			if m.Role == role {
				members = append(members, m)
			}
		}
		failed = append(failed, d.end(members, pids))
	}
	d.tasks.Wait()
	if _, err := readClusterFile(d.dir); err == nil {
		failed = append(failed, changeClusterFile(d.dir, func(f *clusterFile) (bool, error) {
			for i := range f.Members {
				f.Members[i].Running = false
			}
			return true, nil
		}))
	}
	return errors.Join(failed...)
}

func (d *devProcesses) end(members []devMember, pids map[string]int) error {
	running := func() (left []devMember) {
		for _, m := range members {
			if isAlive(pids[m.ID], d.dir) {
				left = append(left, m)
			}
		}
		return left
	}
	signal := func(s syscall.Signal) {
		for _, m := range running() {
			syscall.Kill(pids[m.ID], s)
		}
	}
	gone := func(limit time.Duration) bool {
		for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if len(running()) == 0 {
				return true
			}
		}
		return false
	}
	signal(syscall.SIGINT)  // SIGTERM would let each one hand over to the next one to end
	signal(syscall.SIGCONT) // a paused one cannot end
	if gone(10 * time.Second) {
		return nil
	}
	var names []string
	for _, m := range running() {
		names = append(names, m.ID)
	}
	signal(syscall.SIGKILL)
	gone(5 * time.Second)
	return fmt.Errorf("%s did not end within 10 s of SIGINT and had to be killed", strings.Join(names, ", "))
}

// lastLine returns the last line of a file, for the report of a member that did not start.
func lastLine(name string) string {
	data, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.TrimPrefix(lines[len(lines)-1], "ledgermq: ")
}
