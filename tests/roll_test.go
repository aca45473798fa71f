package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// TestRoll runs the program of an earlier commit beside this one. A cluster of the old one is rolled to the new one, one process at
// a time, and back, and forward again, while the official Go client and ours send and consume; then the feature level is raised, and
// an old program that does not understand it is refused. Nothing that was answered OK is lost, and all replicas are equal.
//
// The earlier commit is the newest one whose program differs from this one. LEDGERMQ_ROLL_BASE names another one.
func TestRoll(t *testing.T) {
	t.Parallel()
	needProcesses(t)
	commit := rollBase(t)
	before := buildCommit(t, commit)
	now, err := cluster.Binary()
	if err != nil {
		t.Fatal(err)
	}
	c := start(t, cluster.Options{Groups: 1, Binary: before, Args: []string{"--controller-count", "3"}})
	r := &roll{t: t, c: c, stock: startPacedLoad(t, c, "RollStock", 2, 5*time.Millisecond), own: startOwnLoad(t, c, "RollOwn", 2)}
	got := &bodies{}
	consume(t, c, "RollStock", "readers", func(m *primitive.MessageExt) consumer.ConsumeResult {
		got.add(m)
		return consumer.ConsumeSuccess
	})
	least, newest := levelsOf(t, before)
	t.Logf("commit %s understands the feature levels %d..%d", commit, least, newest)
	r.level(newest)

	r.all(now)
	r.level(newest) // nobody raises it but an operator
	r.all(before)
	r.all(now)
	var raised struct{ Before, Level int }
	if err := c.AdminJSON(within(t, time.Minute), &raised, "cluster", "upgrade"); err != nil {
		t.Fatal(err)
	}
	r.level(raised.Level)
	if raised.Level > newest {
		r.refused(before, raised.Level)
	} else { // the way back is open
		for _, id := range []string{"c1", "n1"} {
			r.to(before, id)
		}
	}

	acked := r.stock.end()
	// A stock client reads its routes every 30 s, and rebalances every 20 s.
	eventually(t, 2*time.Minute, "every message of the stock producer at the stock consumer", func() (bool, error) { return got.has(acked), nil })
	r.stock.check(t, c)
	r.own.check(t, c)
}

// rollBase returns the commit to begin with.
func rollBase(t *testing.T) string {
	t.Helper()
	if base := os.Getenv("LEDGERMQ_ROLL_BASE"); base != "" {
		return base
	}
	git := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = cluster.Root()
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	list, err := git("rev-list", "--first-parent", "HEAD")
	if err != nil {
		t.Skipf("there is no earlier program without a git repository around the sources: %v", err)
	}
	for _, commit := range strings.Fields(list) {
		// Tests and pages are no part of the program.
		if _, err := git("diff", "--quiet", commit, "--", "*.go", "go.mod", ":!*_test.go", ":!tests", ":!sim"); err != nil {
			return commit
		}
	}
	t.Skipf("no earlier program: none of the %d commits that git knows here differs in it", len(strings.Fields(list)))
	return ""
}

// buildCommit builds the program of a commit and returns its path.
func buildCommit(t *testing.T, commit string) string {
	t.Helper()
	dir := t.TempDir()
	archive := exec.CommandContext(t.Context(), "git", "archive", commit)
	archive.Dir = cluster.Root()
	unpack := exec.CommandContext(t.Context(), "tar", "-x", "-C", dir)
	var said bytes.Buffer
	archive.Stderr, unpack.Stderr = &said, &said
	var err error
	if unpack.Stdin, err = archive.StdoutPipe(); err == nil {
		if err = unpack.Start(); err == nil {
			if err = archive.Run(); err == nil {
				err = unpack.Wait()
			}
		}
	}
	if err != nil {
		t.Fatalf("the sources of commit %s: %v\n%s", commit, err, said.String())
	}
	path := filepath.Join(dir, "bin", "ledgermq")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", path, "./cmd/ledgermq")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building commit %s: %v\n%s", commit, err, out)
	}
	return path
}

// levelsOf returns the feature levels that a program understands: 1 only when it tells none.
func levelsOf(t *testing.T, bin string) (least, newest int) {
	t.Helper()
	out, err := cluster.RunBinary(within(t, 20*time.Second), bin, os.Environ(), "version", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct{ Levels string }
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatal(err)
	}
	if n, _ := fmt.Sscanf(v.Levels, "%d..%d", &least, &newest); n != 2 {
		return 1, 1
	}
	return least, newest
}

// roll is a cluster whose members change their program.
type roll struct {
	t          *testing.T
	c          *cluster.Cluster
	stock, own *load
}

// all rolls every member to a program, one after the other, the controllers first.
func (r *roll) all(bin string) {
	r.t.Helper()
	for _, id := range []string{"c1", "c2", "c3", "n1", "n2", "n3", "ns1"} {
		r.to(bin, id)
	}
}

// to rolls one member, and waits until all is well again.
func (r *roll) to(bin, id string) {
	r.t.Helper()
	r.end(id)
	if err := r.c.RestartWith(within(r.t, time.Minute), bin, id); err != nil {
		r.t.Fatal(err)
	}
	r.well(id)
}

// end ends a member as an upgrade does. A node hands over, and does not forward for as long as stock clients would like.
func (r *roll) end(id string) {
	r.t.Helper()
	led := strings.HasPrefix(id, "n") && id != "ns1" && masterOf(r.t, r.c, "g1") == id
	if err := r.c.Terminate(id); err != nil {
		r.t.Fatal(err)
	}
	if led {
		awaitOtherMaster(r.t, r.c, id, 30*time.Second)
	}
	if m, err := r.c.Member(id); err == nil && m.Role == "broker" && m.Running {
		_ = r.c.Terminate(id) // it may have ended just now
	}
	if err := r.c.Ended(within(r.t, time.Minute), id); err != nil {
		r.t.Fatal(err)
	}
}

// well waits until every controller takes part, every node votes, and both loads go on.
func (r *roll) well(after string) {
	r.t.Helper()
	eventually(r.t, time.Minute, "all controllers after "+after, func() (bool, error) {
		v := r.view()
		for _, c := range v.Controllers {
			if c.Error != "" {
				return false, nil
			}
		}
		return len(v.Controllers) == 3, nil
	})
	voters(r.t, r.c, "n1", "n2", "n3")
	r.own.awaitMore(r.t, 50, time.Minute)
	r.stock.awaitMore(r.t, 20, 90*time.Second)
}

// clusterInfo is what the test reads of `admin cluster --json`.
type clusterInfo struct {
	Level       int
	Controllers []struct{ ID, Error string }
}

func (r *roll) view() (v clusterInfo) {
	// Without a leader there is no answer; that one is asked for again.
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	if err := r.c.AdminJSON(ctx, &v, "cluster"); err != nil {
		return clusterInfo{}
	}
	return v
}

// level demands that the cluster has a feature level. A controller of level 1 may not know of any.
func (r *roll) level(want int) {
	r.t.Helper()
	eventually(r.t, 30*time.Second, fmt.Sprintf("the feature level %d", want), func() (bool, error) { return max(r.view().Level, 1) == want, nil })
}

// refused demands that a program that does not understand the cluster's level cannot come back, as a node and as a controller, and that
// the new one can.
func (r *roll) refused(bin string, level int) {
	r.t.Helper()
	now, err := cluster.Binary()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, id := range []string{"n2", "c2"} {
		r.end(id)
		err := r.c.RestartWith(within(r.t, time.Minute), bin, id)
		r.t.Logf("the old program as %s in a cluster of level %d: %v", id, level, err)
		if err == nil || !strings.Contains(err.Error(), "version") && !strings.Contains(err.Error(), "feature level") {
			r.t.Errorf("the old program as %s in a cluster of level %d: %v", id, level, err)
		}
		if err := r.c.Ended(within(r.t, 20*time.Second), id); err != nil {
			r.t.Errorf("the old program runs as %s: %v", id, err)
		}
		if err := r.c.RestartWith(within(r.t, time.Minute), now, id); err != nil {
			r.t.Fatal(err)
		}
		r.well(id)
	}
}
