package tests

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// admin runs a command that must succeed.
func (s *scene) admin(args ...string) {
	s.t.Helper()
	if out, err := s.c.Admin(within(s.t, 2*time.Minute), args...); err != nil {
		s.t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

// refuses runs a command that must be refused with a reason.
func (s *scene) refuses(reason string, args ...string) {
	s.t.Helper()
	_, err := s.c.Admin(within(s.t, 20*time.Second), args...)
	refused(s.t, err, 1, reason)
}

// replicas holds the nodes of g1's replicas.
func (s *scene) replicas(want ...string) {
	s.t.Helper()
	for _, g := range groups(s.t, s.c) {
		var have []string
		for _, r := range g.Replicas {
			have = append(have, r.Node)
		}
		slices.Sort(have)
		if g.Name == "g1" && !slices.Equal(have, want) {
			s.t.Errorf("g1 is on %v, want %v", have, want)
		}
	}
}

// failoverBound is how long sends may stop at a live change. A failover on an idle machine takes less than a second; the tests share
// two cores with others.
const failoverBound = 4 * time.Second

// keptUp demands that no change so far stopped sends for longer than a failover does.
func (s *scene) keptUp() {
	s.t.Helper()
	if gap := time.Duration(s.l.gap.Load()) * time.Millisecond; gap > failoverBound {
		s.t.Errorf("sends stopped for %v", gap)
	}
}

// leftQuietly demands that the nodes of replicas which an operator took out of the group say so, and not as of a fault. A node learns
// of it with its next heartbeat, a moment after the controller shows the group without the replica.
func (s *scene) leftQuietly(nodes ...string) {
	s.t.Helper()
	for _, node := range nodes {
		eventually(s.t, 30*time.Second, node+" says that its replica was taken out", func() (bool, error) {
			log, err := os.ReadFile(filepath.Join(s.c.Dir, "log", node+".log"))
			if err != nil {
				return false, err
			}
			text := string(log)
			if strings.Contains(text, "replica is parked") {
				s.t.Fatalf("what %s says of a replica that was taken out:\n%s", node, text)
			}
			return strings.Contains(text, "replica leaves its group"), nil
		})
	}
}

// An operator changes mode and replicas of a group under load, there and back, and what cannot be is refused.
func TestSetMode(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 5, Groups: 1})
	s := &scene{t: t, c: c, l: startOwnLoad(t, c, "SetMode", senders)}
	s.goesOn()
	s.refuses("2 replicas more than the 3", "group", "set-mode", "g1", "2-5")
	s.refuses("node n9 is not known", "group", "set-mode", "g1", "2-4", "--on", "n9")
	s.refuses("needs 1 replica more", "group", "set-mode", "g1", "2-4", "--on", "n3")
	s.refuses("node n3 has replica 3 of it", "group", "add-replica", "g1", "--on", "n3")
	s.refuses("min ISR 4: mode 2-3 takes 1 to 3", "group", "set-mode", "g1", "2-3", "--min-isr", "4")
	s.refuses("does not exist", "group", "set-mode", "g9", "2-3")
	s.refuses("has no replica 9", "group", "remove-replica", "g1", "9")
	for _, step := range []struct {
		args     []string
		replicas []string
		voters   int
	}{
		{[]string{"set-mode", "g1", "3-3"}, []string{"n1", "n2", "n3"}, 3},
		{[]string{"set-mode", "g1", "3-5", "--on", "n4,n5"}, []string{"n1", "n2", "n3", "n4", "n5"}, 5},
		{[]string{"set-mode", "g1", "2-2", "--remove", "2,3,5"}, []string{"n1", "n4"}, 2},
		{[]string{"add-replica", "g1", "--on", "n3", "--learner"}, []string{"n1", "n3", "n4"}, 2},
		{[]string{"add-replica", "g1", "--on", "n2"}, []string{"n1", "n2", "n3", "n4"}, 3},
		{[]string{"remove-replica", "g1", "1"}, []string{"n2", "n3", "n4"}, 2}, // the master
		{[]string{"set-mode", "g1", "1-1"}, nil, 1},                            // whichever is the most useful
		{[]string{"set-mode", "g1", "2-3", "--on", "n1,n5"}, nil, 3},
	} {
		s.admin(append([]string{"group"}, step.args...)...)
		if step.replicas != nil {
			s.replicas(step.replicas...)
		}
		if step.voters == 5 {
			s.refuses("has 5 replicas, the most there can be", "group", "add-replica", "g1", "--on", "n6")
		}
		if last := groups(t, c)[0].Replicas; len(last) == 1 {
			s.refuses("is the last one", "group", "remove-replica", "g1", fmt.Sprint(last[0].ID))
		}
		for _, g := range groups(t, c) {
			n := 0
			for _, r := range g.Replicas {
				if r.Voter {
					n++
				}
			}
			if n != step.voters || g.State != "ready" {
				t.Errorf("%v: %d voters, %s; want %d", step.args, n, g.State, step.voters)
			}
		}
		s.goesOn()
	}
	s.keptUp()
	s.leftQuietly("n1", "n2", "n3", "n5")
	s.l.check(t, c)
}

// The replica that leads is taken out under load, and no send fails: it hands over first, and then forwards what clients with old routes
// send, until they have new ones.
func TestRemoveMaster(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 4, Groups: 1})
	s := &scene{t: t, c: c, l: startOwnLoad(t, c, "RemoveOwn", senders)}
	stock := startLoad(t, c, "RemoveStock", senders)
	s.goesOn()
	stock.awaitMore(t, 100, 30*time.Second)
	s.admin("group", "add-replica", "g1", "--on", "n4")
	master := masterOf(t, c, "g1")
	s.admin("group", "remove-replica", "g1", fmt.Sprint(replicaOn(t, c, master)))
	eventually(t, 90*time.Second, "the replica is gone", func() (bool, error) {
		old, err := filepath.Glob(filepath.Join(c.Dir, master, "lost", "*"))
		return len(old) == 1, err
	})
	s.goesOn()
	stock.awaitMore(t, 100, 30*time.Second)
	s.l.end()
	stock.end()
	s.l.noneFailed(t)
	stock.noneFailed(t)
	s.keptUp()
	s.l.check(t, c)
	stock.check(t, c)
}

// What an OK means changes with the mode: in 3-3 nothing is answered while a replica and the controller are away, in 2-3 everything
// is.
func TestSetModeChangesWhatOKMeans(t *testing.T) {
	t.Parallel()
	for _, from := range []string{"2-3", "3-3"} {
		t.Run("from "+from, func(t *testing.T) {
			t.Parallel()
			c := start(t, cluster.Options{Groups: 1, Mode: from})
			s := &scene{t: t, c: c, l: startOwnLoad(t, c, "Meaning", senders)}
			s.goesOn()
			if from == "2-3" {
				s.admin("group", "set-mode", "g1", "3-3")
				s.kill("c1", "n3")
				s.stops()
			} else {
				s.admin("group", "set-mode", "g1", "2-3")
				s.kill("c1", "n3")
				s.goesOn()
			}
			s.start("c1", "n3")
			s.voters("n1", "n2", "n3")
			s.goesOn()
			s.l.check(t, c)
		})
	}
}

// All three nodes of a group are replaced by others, one after the other, the master too.
func TestReplaceAllNodes(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 6, Groups: 1})
	s := &scene{t: t, c: c, l: startOwnLoad(t, c, "AllNodes", senders)}
	s.goesOn()
	for k := 1; k <= 3; k++ {
		s.admin("group", "replace", "g1", "--replica", fmt.Sprint(k), "--on", fmt.Sprintf("n%d", k+3))
		var want []string
		for n := k + 1; n <= k+3; n++ {
			want = append(want, fmt.Sprintf("n%d", n))
		}
		eventually(t, time.Minute, "the replica has moved", func() (bool, error) {
			var have []string
			for _, g := range groups(t, c) {
				if g.State != "ready" {
					return false, nil
				}
				for _, r := range g.Replicas {
					have = append(have, r.Node)
				}
			}
			slices.Sort(have)
			return slices.Equal(have, want), nil
		})
		s.goesOn()
	}
	s.keptUp()
	s.leftQuietly("n1", "n2", "n3")
	s.l.check(t, c)
}

// `group watch` tells of a replica that dies and comes back, one object a line.
func TestGroupWatch(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 1})
	bin, err := cluster.Binary()
	if err != nil {
		t.Fatal(err)
	}
	watch := exec.CommandContext(within(t, 3*time.Minute), bin, "admin", "group", "watch", "g1", "--json", "--namesrv", strings.Join(c.Namesrv, ","))
	out, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	wait, err := cluster.Spawn(watch)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	tells := func(voters ...string) {
		t.Helper()
		for lines.Scan() {
			var v struct {
				Group  string   `json:"group"`
				Epoch  uint32   `json:"epoch"`
				Active uint32   `json:"activeEpoch"`
				Voters []string `json:"voters"`
			}
			if err := json.Unmarshal(lines.Bytes(), &v); err != nil || v.Group != "g1" {
				t.Fatalf("a line of watch: %v: %s", err, lines.Text())
			}
			if v.Active == v.Epoch && slices.Equal(v.Voters, voters) {
				return
			}
		}
		t.Fatalf("watch ended and has not told of the voters %v", voters)
	}
	tells("n1", "n2", "n3")
	kill(t, c, "n3")
	tells("n1", "n2")
	restart(t, c, "n3")
	tells("n1", "n2", "n3")
	if err := watch.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := wait(); err != nil {
		t.Errorf("Ctrl-C ends watch with %v", err)
	}
}
