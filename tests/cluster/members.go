package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ledgermq/ledgermq/jepsen"
)

// Member is one process of the cluster, as cluster.json describes it.
type Member struct {
	ID      string         `json:"id"`
	Role    string         `json:"role"` // broker, controller or namesrv
	PID     int            `json:"pid"`
	Running bool           `json:"running"`
	Ports   map[string]int `json:"ports"`
	Data    string         `json:"data"`
}

type file struct {
	Version   int      `json:"version"`
	ClusterID string   `json:"clusterID"`
	Namesrv   []string `json:"namesrv"`
	Members   []Member `json:"members"`
}

// served tells whether the file is of a cluster that serves, not one that an earlier run left with everybody stopped.
func (f file) served() bool {
	for _, m := range f.Members {
		if m.Running {
			return true
		}
	}
	return false
}

func (c *Cluster) file() (file, error) {
	var f file
	data, err := os.ReadFile(filepath.Join(c.Dir, "cluster.json"))
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return f, fmt.Errorf("cluster.json is not whole: %w", err)
	}
	return f, nil
}

// Members returns what cluster.json says at this moment.
func (c *Cluster) Members() ([]Member, error) {
	f, err := c.file()
	return f.Members, err
}

// Member returns one member. It is an error when there is none of that id.
func (c *Cluster) Member(id string) (Member, error) {
	f, err := c.file()
	if err != nil {
		return Member{}, err
	}
	for _, m := range f.Members {
		if m.ID == id {
			return m, nil
		}
	}
	return Member{}, fmt.Errorf("no member %s in cluster.json", id)
}

// owns tells whether m's process runs and is one of this cluster: a process id alone could by now be somebody else's.
func (c *Cluster) owns(m Member) bool {
	if m.PID <= 0 {
		return false
	}
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(m.PID), "cmdline"))
	return err == nil && strings.Contains(string(line), c.Dir) // an ended one that nobody waited for has no line
}

func (c *Cluster) signal(id string, sig syscall.Signal) (Member, error) {
	m, err := c.Member(id)
	if err != nil {
		return m, err
	}
	if !c.owns(m) {
		return m, fmt.Errorf("%s (pid %d) does not run", id, m.PID)
	}
	return m, syscall.Kill(m.PID, sig)
}

// Kill ends a member with SIGKILL and waits until it is gone and cluster.json says so.
func (c *Cluster) Kill(ctx context.Context, id string) error {
	return c.end(ctx, id, syscall.SIGKILL)
}

// Interrupt ends a member with SIGINT, the clean stop without a hand-over, and waits like Kill.
func (c *Cluster) Interrupt(ctx context.Context, id string) error {
	return c.end(ctx, id, syscall.SIGINT)
}

// Terminate sends SIGTERM to a member, which then hands over and forwards for a while. It does not wait; Ended does.
func (c *Cluster) Terminate(id string) error {
	_, err := c.signal(id, syscall.SIGTERM)
	return err
}

// Ended waits until the member is gone and cluster.json says so.
func (c *Cluster) Ended(ctx context.Context, id string) error {
	return jepsen.Await(ctx, "the end of "+id, func() (bool, error) {
		m, err := c.Member(id)
		return err == nil && !m.Running && !c.owns(m), err
	})
}

func (c *Cluster) end(ctx context.Context, id string, sig syscall.Signal) error {
	m, err := c.signal(id, sig)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return jepsen.Await(ctx, "the end of "+id, func() (bool, error) {
		if c.owns(m) {
			return false, nil
		}
		now, err := c.Member(id)
		return !now.Running, err
	})
}

// Pause stops a member with SIGSTOP: its connections stay open and nothing answers.
func (c *Cluster) Pause(id string) error {
	_, err := c.signal(id, syscall.SIGSTOP)
	return err
}

// Resume lets a paused member go on.
func (c *Cluster) Resume(id string) error {
	_, err := c.signal(id, syscall.SIGCONT)
	return err
}

// RestartWith is Restart with another binary, of which the member is a process then.
func (c *Cluster) RestartWith(ctx context.Context, bin, id string) error {
	_, err := RunBinary(ctx, bin, c.env, "dev", "start", id, "--data", c.Dir)
	return err
}

// Restart starts a member that has ended, with `ledgermq dev start`, which returns when it serves.
func (c *Cluster) Restart(ctx context.Context, id string) error {
	_, err := c.Run(ctx, "dev", "start", id, "--data", c.Dir)
	return err
}
