package tests

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// loseControllers kills c1, the only controller, and removes its folder.
func loseControllers(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	m, err := c.Member("c1")
	if err != nil {
		t.Fatal(err)
	}
	kill(t, c, "c1")
	if err := os.RemoveAll(m.Data); err != nil {
		t.Fatal(err)
	}
}

// awaitsRecovery starts a controller with an empty folder at the port that c1 had, and returns its address and its folder.
func awaitsRecovery(t *testing.T, c *cluster.Cluster, id string) (addr, dir string) {
	t.Helper()
	m, err := c.Member("c1")
	if err != nil {
		t.Fatal(err)
	}
	w := &walker{t: t, c: c, dir: t.TempDir()}
	w.env = w.shellEnv()
	addr, dir = c.At(m.Ports["grpc"]), filepath.Join(w.dir, "data")
	health := c.Addr(160)
	serve(w, fmt.Sprintf("ledgermq controller --id %s --listen %s --recover --data %s --http %s", id, addr, dir, health), health)
	return addr, dir
}

// recovers runs the command until it says what is wanted, or succeeds when that is "".
func recovers(t *testing.T, c *cluster.Cluster, want string, args ...string) (out string) {
	t.Helper()
	eventually(t, time.Minute, "a recovery that says "+want, func() (bool, error) {
		var err error
		out, err = c.Admin(within(t, 40*time.Second), append([]string{"controller", "recover"}, args...)...)
		switch {
		case want == "":
			return err == nil, err
		case err == nil:
			return false, fmt.Errorf("recover %v was done:\n%s", args, out)
		}
		return strings.Contains(err.Error(), want), nil
	})
	return out
}

// The disks of all controllers are lost. The groups go on; what the nodes have makes a new controller, which keeps them as the old one did.
func TestRecoverControllers(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 2})
	if _, err := c.Admin(within(t, 20*time.Second), "group", "prefer", "g1", "n2"); err != nil {
		t.Fatal(err)
	}
	l := startOwnLoad(t, c, "Recover", senders)
	l.awaitMore(t, 200, time.Minute)
	loseControllers(t, c)
	l.awaitMore(t, 200, time.Minute)
	addr, dir := awaitsRecovery(t, c, "c2")
	plan := recovers(t, c, "say --yes", addr)
	for _, want := range []string{"from the nodes n1 n2 n3", "g1     1      1000001  n1 n2 n3  n1 n2 n3  yes", "g2     1      1000001"} {
		if !strings.Contains(plan, want) {
			t.Errorf("the plan does not say %q:\n%s", want, plan)
		}
	}
	recovers(t, c, "it is not stopped", addr, "--stopped", "n3", "--yes")
	recovers(t, c, "no answering node knows", addr, "--stopped", "n9", "--yes")
	recovers(t, c, "", addr, "--yes")
	recovers(t, c, "waits for no recovery", addr, "--yes")
	voters(t, c, "n1", "n2", "n3")
	for _, g := range groups(t, c) {
		if g.Epoch != 1000001 || g.State != "ready" || len(g.Changing) > 0 {
			t.Errorf("after the recovery: %+v", g)
		}
	}
	l.awaitMore(t, 200, time.Minute)
	old := masterOf(t, c, "g1")
	kill(t, c, old)
	awaitOtherMaster(t, c, old, time.Minute)
	l.awaitMore(t, 200, time.Minute)
	voters(t, c, slices.DeleteFunc([]string{"n1", "n2", "n3"}, func(n string) bool { return n == old })...)
	restart(t, c, old)
	voters(t, c, "n1", "n2", "n3")
	if shown, err := c.Admin(within(t, 20*time.Second), "group", "show", "g1"); err != nil || !strings.Contains(shown, "the controllers were recovered; epoch 1 was the newest") {
		t.Errorf("group show says %v\n%s", err, shown)
	}
	_, err := c.Run(within(t, 20*time.Second), "controller", "--id", "c2", "--recover", "--bootstrap", "--data", dir+"2", "--listen", "127.0.0.1:0", "--http", "")
	refused(t, err, 1, "--recover goes with neither")
	l.check(t, c)
}

// A node that does not answer is in the way until an operator says that it is stopped for ever. When it comes back in spite of that, its
// old replica takes no part any more.
func TestRecoverWithoutANode(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 1})
	l := startOwnLoad(t, c, "RecoverTwo", senders)
	l.awaitMore(t, 200, time.Minute)
	loseControllers(t, c)
	kill(t, c, "n3")
	l.awaitMore(t, 200, time.Minute)
	addr, _ := awaitsRecovery(t, c, "c1")
	says := "node n3 does not answer, and has replica 3 of group g1: start it, or make sure that it is stopped for ever and say --stopped n3"
	recovers(t, c, "cannot be recovered: "+says, addr)
	recovers(t, c, "cannot be recovered: "+says, addr, "--yes")
	recovers(t, c, "", addr, "--stopped", "n3", "--yes")
	voters(t, c, "n1", "n2")
	l.awaitMore(t, 200, time.Minute)
	restart(t, c, "n3")
	voters(t, c, "n1", "n2", "n3")
	if id := replicaOn(t, c, "n3"); id <= 100000 {
		t.Errorf("n3 has replica %d again", id)
	}
	eventually(t, time.Minute, "the old folder out of the way", func() (bool, error) {
		m, err := c.Member("n3")
		if err != nil {
			return false, err
		}
		lost, err := os.ReadDir(filepath.Join(m.Data, "lost"))
		return len(lost) == 1 && strings.HasSuffix(lost[0].Name(), "-3"), err
	})
	l.check(t, c)
}

// Of two voters one is lost together with the controllers. The other one may have been left behind before, of which nobody knows any more: so it
// goes on alone only by an operator's word.
func TestRecoverOneOfTwo(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 2, Groups: 1, Mode: "2-2"})
	l := startOwnLoad(t, c, "RecoverOne", senders)
	l.awaitMore(t, 200, time.Minute)
	loseControllers(t, c)
	kill(t, c, "n1")
	l.awaitStop(t, time.Minute)
	addr, _ := awaitsRecovery(t, c, "c1")
	recovers(t, c, "--stopped n1", addr)
	if out := recovers(t, c, "", addr, "--stopped", "n1", "--yes"); !strings.Contains(out, "1 of its 2 voters are whole, a majority is 2: it gets no master by itself") {
		t.Errorf("the recovery says\n%s", out)
	}
	var said string
	eventually(t, time.Minute, "what an unclean election costs", func() (bool, error) {
		var err error
		if said, err = c.Admin(within(t, 20*time.Second), "group", "elect-unclean", "g1", "--replica", "2"); err == nil {
			return false, errors.New("it was done without --yes")
		}
		return strings.Contains(err.Error(), "nothing was changed"), nil
	})
	if !strings.Contains(said, "May be lost:") {
		t.Errorf("the plan says\n%s", said)
	}
	if g := groups(t, c)[0]; g.Epoch != 1000001 || g.Master != nil && g.Master.Live {
		t.Errorf("without a word of an operator: %+v", g)
	}
	if _, err := c.Admin(within(t, 40*time.Second), "group", "elect-unclean", "g1", "--replica", "2", "--yes"); err != nil {
		t.Fatal(err)
	}
	l.awaitMore(t, 200, time.Minute)
	restart(t, c, "n1")
	voters(t, c, "n1", "n2")
	l.check(t, c)
}

// lostControllers is the walk-through in which the only controller is lost, and a node with it.
func lostControllers(t *testing.T, steps []step) {
	c := start(t, cluster.Options{Groups: 1})
	first, err := c.Member("c1")
	if err != nil {
		t.Fatal(err)
	}
	addr := c.At(first.Ports["grpc"])
	w := &walker{t: t, c: c, dir: t.TempDir(), load: startOwnLoad(t, c, "Lost", 2)}
	w.env = append(w.shellEnv(), "LEDGERMQ_NAMESRV="+strings.Join(c.Namesrv, ","))
	w.walk.marks = map[string]func(*walker, []string){
		`the disk of c1 is new`: func(*walker, []string) { w.must(os.RemoveAll(first.Data)) },
		`c1 waits for a recovery: (ledgermq controller .*)`: func(_ *walker, args []string) {
			health := c.Addr(160)
			serve(w, fmt.Sprintf("%s --data %s --http %s", strings.ReplaceAll(args[0], "10.0.0.1:9878", addr), filepath.Join(w.dir, "data"), health), health)
			eventually(t, time.Minute, "the nodes that live", func() (bool, error) {
				out, _ := c.Admin(within(t, 20*time.Second), "controller", "recover", addr)
				return strings.Contains(out, "from the nodes n1 n2."), nil
			})
		},
	}
	w.load.awaitMore(t, 100, time.Minute)
	translate(steps, func(text string) string { return strings.ReplaceAll(text, "10.0.0.1:9878", addr) })
	w.steps(steps)
	w.load.check(t, c)
}
