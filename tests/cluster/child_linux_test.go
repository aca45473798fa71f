package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// TestSpawnedEndsWithItsParent: a program that panics leaves no process behind.
func TestSpawnedEndsWithItsParent(t *testing.T) {
	const name = "CLUSTER_TEST_PANICS"
	if os.Getenv(name) != "" {
		cmd := exec.Command("sleep", "600")
		if _, err := cluster.Spawn(cmd); err != nil {
			t.Fatal(err)
		}
		fmt.Println("PID", cmd.Process.Pid)
		panic("as a failing test does")
	}
	parent := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	parent.Env = append(os.Environ(), name+"=1")
	out, err := parent.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("the parent ended with %v, want the exit code of a panic\n%s", err, out)
	}
	_, rest, _ := strings.Cut(string(out), "PID ")
	line, _, _ := strings.Cut(rest, "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	gone := func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), "(sleep) Z") // whoever inherits it may not have looked yet
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); !gone(); <-tick.C {
		if time.Now().After(deadline) {
			syscall.Kill(pid, syscall.SIGKILL)
			t.Fatal("the process outlives its parent")
		}
	}
}
