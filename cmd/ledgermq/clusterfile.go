package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ledgermq/ledgermq/internal/vfs"
)

// clusterFile is DIR/cluster.json: who runs, where. Tools and tests find the members of `dev --processes` in it. It is first
// written when the cluster serves, and replaced atomically after that. `dev` and `dev start` both change it, one at a time.
type clusterFile struct {
	Version   int             `json:"version"`
	ClusterID string          `json:"clusterID"`
	Namesrv   []string        `json:"namesrv"`
	Members   []clusterMember `json:"members"`
}

// clusterMember is one process. Ports: remoting or grpc, http, peer, and client:GROUP for each replica of a broker.
type clusterMember struct {
	ID      string         `json:"id"`
	Role    string         `json:"role"`
	PID     int            `json:"pid"`
	Running bool           `json:"running"`
	Ports   map[string]int `json:"ports"`
	Data    string         `json:"data"`
}

const (
	clusterFileName = "cluster.json"
	clusterLockName = "cluster.lock" // held while the file is changed
)

func readClusterFile(dir string) (clusterFile, error) {
	var f clusterFile
	name := filepath.Join(dir, clusterFileName)
	data, err := os.ReadFile(name)
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return f, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

func (f clusterFile) write(dir string) error {
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return vfs.WriteFileAtomic(vfs.OS, filepath.Join(dir, clusterFileName), append(data, '\n'))
}

// changeClusterFile reads, changes and replaces the file while no other process does. change returns whether it changed
// anything. The lock is held for as long as a small file takes to write, so waiting for it is bounded by 5 s.
func changeClusterFile(dir string, change func(f *clusterFile) (bool, error)) error {
	deadline := time.Now().Add(5 * time.Second)
	lock, err := vfs.OS.Lock(filepath.Join(dir, clusterLockName))
	for errors.Is(err, vfs.ErrLocked) && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
		lock, err = vfs.OS.Lock(filepath.Join(dir, clusterLockName))
	}
	if err != nil {
		return fmt.Errorf("cluster.json: %w", err)
	}
	defer lock.Close()
	f, err := readClusterFile(dir)
	if err != nil {
		return err
	}
	changed, err := change(&f)
	if err != nil || !changed {
		return err
	}
	return f.write(dir)
}

func (f *clusterFile) member(id string) *clusterMember {
	for i := range f.Members {
		if f.Members[i].ID == id {
			return &f.Members[i]
		}
	}
	return nil
}

// isAlive tells whether the process pid runs and is a member of the cluster in dir. A pid alone may by now be somebody else's,
// and a process that ended but was not waited for yet still has one.
func isAlive(pid int, dir string) bool {
	if pid <= 0 || syscall.Kill(pid, 0) != nil {
		return false
	}
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat("/proc/self"); err != nil {
			return true // no /proc on this system: the signal must do
		}
		return false
	}
	return err == nil && strings.Contains(string(line), filepath.Join(dir, devLockName))
}

// readClientPorts returns the ports that a broker has given to its replicas, named as in cluster.json.
func readClientPorts(data string) map[string]int {
	var ports map[string]int
	raw, err := os.ReadFile(filepath.Join(data, "ports.json"))
	if err != nil || json.Unmarshal(raw, &ports) != nil {
		return nil // not there yet; the next look finds it
	}
	out := make(map[string]int, len(ports))
	for group, port := range ports {
		out["client:"+group] = port
	}
	return out
}
