package tests

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/rlog"

	"github.com/ledgermq/ledgermq/jepsen"
	"github.com/ledgermq/ledgermq/tests/cluster"
)

func TestMain(m *testing.M) {
	rlog.SetLogLevel("fatal") // the official client tells its whole life otherwise
	flag.Parse()
	// These tests wait for most of their time, for members that are silent and for clients that look again now and then.
	together := strconv.Itoa(runtime.GOMAXPROCS(0) + 1)
	flag.Visit(func(f *flag.Flag) {
		if f.Name == "test.parallel" {
			together = f.Value.String()
		}
	})
	if err := flag.Set("test.parallel", together); err != nil {
		panic(err)
	}
	code := m.Run()
	cluster.RemoveBinary()
	os.Exit(code)
}

// needProcesses skips a test that starts the built binary when the tests are told to be short.
func needProcesses(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes of the built binary, which takes up to minutes: run it without -short")
	}
}

// start runs a cluster for one test. At the end of the test it must stop cleanly, and `log verify` must find every replica
// equal: no test may break a log without noticing.
func start(t *testing.T, o cluster.Options) *cluster.Cluster {
	t.Helper()
	needProcesses(t)
	o.Dir = t.TempDir()
	c, err := cluster.Start(t.Context(), o)
	if err != nil {
		t.Fatalf("starting a cluster: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("output:\n%s\nlogs:\n%s", c.Output(), c.Logs())
		}
		if err := c.Stop(); err != nil {
			t.Errorf("stopping the cluster: %v", err)
		}
		if trouble := c.Trouble(); trouble != "" {
			t.Errorf("a member wrote of what must never happen:\n%s", trouble)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if out, err := c.Run(ctx, "log", "verify", c.Dir); err != nil {
			t.Errorf("log verify: %v\n%s", err, out)
		}
	})
	// cluster.json is there before the first message is: dev must not be broken while it sends that one.
	eventually(t, time.Minute, "dev's first message", func() (bool, error) { return strings.Contains(c.Output(), "Ctrl-C ends it"), nil })
	return c
}

// within is a context that ends after d, or with the test.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), d, fmt.Errorf("not within %v", d))
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until holds returns true; an error ends the test at once.
func eventually(t *testing.T, d time.Duration, what string, holds func() (bool, error)) {
	t.Helper()
	if err := jepsen.Await(within(t, d), what, holds); err != nil {
		t.Fatal(err)
	}
}

// refused demands that a command of the binary failed with an exit code, and said on its standard error what is wanted.
func refused(t *testing.T, err error, code int, want string) {
	t.Helper()
	var exit *cluster.ExitError
	if !errors.As(err, &exit) || exit.Code != code || !strings.Contains(exit.Stderr, want) {
		t.Errorf("got %v, want exit code %d and %q", err, code, want)
	}
}

func kill(t *testing.T, c *cluster.Cluster, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := c.Kill(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
}

func restart(t *testing.T, c *cluster.Cluster, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := c.Restart(within(t, time.Minute), id); err != nil {
			t.Fatal(err)
		}
	}
}

// groupInfo is what the tests read of `admin group list --json`.
type groupInfo struct {
	Name        string   `json:"name"`
	State       string   `json:"state"`
	Epoch       uint32   `json:"epoch"`
	ActiveEpoch uint32   `json:"activeEpoch"`
	Stuck       string   `json:"stuck"`
	Changing    []string `json:"changing"`
	Notes       []string `json:"notes"`
	Master      *struct {
		Node string `json:"node"`
		Term string `json:"term"`
		Live bool   `json:"live"`
	} `json:"master"`
	Replicas []struct {
		Node   string `json:"node"`
		ID     uint64 `json:"replica"`
		Client string `json:"client"`
		Voter  bool   `json:"voter"`
		Live   bool   `json:"live"`
		Role   string `json:"role"`
		Parked string `json:"parked"`
	} `json:"replicas"`
}

func groups(t *testing.T, c *cluster.Cluster) []groupInfo {
	t.Helper()
	var list []groupInfo
	if err := c.AdminJSON(within(t, 20*time.Second), &list, "group", "list"); err != nil {
		t.Fatal(err)
	}
	return list
}

// masterOf returns the node of a group's living master, waiting for one.
func masterOf(t *testing.T, c *cluster.Cluster, group string) string {
	t.Helper()
	node := ""
	eventually(t, 30*time.Second, "a master of "+group, func() (bool, error) {
		for _, g := range groups(t, c) {
			if g.Name == group && g.Master != nil && g.Master.Live {
				node = g.Master.Node
			}
		}
		return node != "", nil
	})
	return node
}

// firstLeads makes the node the master with which a test begins, where a busy machine has already elected another one.
func firstLeads(t *testing.T, c *cluster.Cluster, group, node string) {
	t.Helper()
	eventually(t, time.Minute, "the first master", func() (bool, error) {
		if masterOf(t, c, group) == node {
			return true, nil
		}
		_, err := c.Admin(within(t, 20*time.Second), "elect", group, "--node", node)
		t.Logf("another node than %s led %s: %v", node, group, err)
		return false, nil
	})
}

// awaitOtherMaster waits until the master of g1 is on another node. The controller believes a node that is gone for a second.
func awaitOtherMaster(t *testing.T, c *cluster.Cluster, old string, d time.Duration) {
	t.Helper()
	eventually(t, d, "another master of g1 than "+old, func() (bool, error) { return masterOf(t, c, "g1") != old, nil })
}
