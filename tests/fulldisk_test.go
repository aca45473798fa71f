package tests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/tests/cluster"
)

// onSmallDisks gives all nodes small disks; diskMarks are what happens to them.
func onSmallDisks(w *walker) {
	for _, n := range []string{"n1", "n2", "n3"} {
		smallDisk(w.t, w.c, n)
	}
	voters(w.t, w.c, "n1", "n2", "n3")
	if _, err := w.c.Admin(within(w.t, 30*time.Second), "rebalance"); err != nil {
		w.t.Fatal(err)
	}
	w.load.awaitMore(w.t, 100, time.Minute)
}

var diskMarks = map[string]func(w *walker, args []string){
	`the disk of (\S+) is nearly full`: func(w *walker, a []string) { fillDisk(w.t, w.c, a[0], nearlyFull) },
	`the disk of (\S+) is full`: func(w *walker, a []string) {
		fillDisk(w.t, w.c, a[0], 0)
		bulk := sendBulk(w.t, w.c)
		poisoned(w.t, w.c, a[0])
		bulk()
	},
	`the disk of (\S+) has room`: func(w *walker, a []string) { makeRoom(w.t, w.c, a[0]) },
}

// poisoned waits until a node's replica has met the end of its disk, and group show says so.
func poisoned(t *testing.T, c *cluster.Cluster, node string) {
	t.Helper()
	eventually(t, 60*time.Second, node+" meets the end of its disk", func() (bool, error) {
		for _, g := range groups(t, c) {
			for _, n := range g.Notes {
				if strings.Contains(n, "replica on "+node+" is poisoned") && strings.Contains(n, "no space left on device") {
					return true, nil
				}
			}
		}
		return false, nil
	})
}

// nearlyFull is less than the two segments of 16 MiB below which sends are refused, and room for everything else.
const nearlyFull = 24 << 20

// smallDisks are the options of a cluster whose nodes get small disks.
var smallDisks = cluster.Options{Groups: 1, Args: []string{"--segment-size", "16777216"}}

// While the disks of all nodes are nearly full the official client's sends are refused at once, by name, and reads, acknowledgements,
// hand-overs, heartbeats and failovers go on. With room again sends are answered OK by themselves. A follower that meets the end of its
// disk all the same is poisoned, the others go on, and it comes back with a restart. Nothing that was answered OK is lost.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	c := start(t, smallDisks)
	all := []string{"n1", "n2", "n3"}
	for _, n := range all {
		smallDisk(t, c, n)
	}
	voters(t, c, all...)
	l := startOwnLoad(t, c, "Full", 2)
	l.awaitMore(t, 200, 60*time.Second)
	for _, n := range all {
		fillDisk(t, c, n, nearlyFull)
	}
	l.awaitStop(t, 30*time.Second)
	p := newGoProducer(t, c)
	defer p.Shutdown()
	eventually(t, 30*time.Second, "the official client's send is refused by name", func() (bool, error) {
		began := time.Now()
		_, err := p.SendSync(context.Background(), primitive.NewMessage("Full", []byte("official:0")))
		return err != nil && strings.Contains(err.Error(), "[NOT_STORED]") && strings.Contains(err.Error(), "nearly full") && time.Since(began) < 2*time.Second, nil
	})
	acked := l.ok.Load()
	goesOn := func(group string) {
		t.Helper()
		received := startConsumer(t, c, "Full", group)
		eventually(t, 60*time.Second, "a new consumer gets everything", func() (bool, error) { return received.Load() >= acked, nil })
		// Its offsets are commands in the log of the group.
		eventually(t, 30*time.Second, "its offsets are acknowledged", func() (bool, error) { return lag(t, c, group, "Full") == 0, nil })
	}
	goesOn("before")
	old := masterOf(t, c, "g1")
	to := all[0]
	if to == old {
		to = all[1]
	}
	if _, err := c.Admin(within(t, 30*time.Second), "elect", "g1", "--node", to); err != nil {
		t.Errorf("a hand-over while the disks are nearly full: %v", err)
	}
	kill(t, c, masterOf(t, c, "g1"))
	awaitOtherMaster(t, c, to, 30*time.Second)
	goesOn("after")
	restart(t, c, to)
	voters(t, c, all...)
	for _, n := range all {
		makeRoom(t, c, n)
	}
	l.awaitMore(t, 200, 30*time.Second)

	// A follower meets the end of its disk.
	node := all[0]
	if node == masterOf(t, c, "g1") {
		node = all[1]
	}
	fillDisk(t, c, node, 0)
	bulk := sendBulk(t, c)
	poisoned(t, c, node)
	bulk()
	l.awaitMore(t, 100, 60*time.Second) // the others go on
	makeRoom(t, c, node)
	kill(t, c, node)
	restart(t, c, node)
	voters(t, c, all...)
	l.awaitMore(t, 100, 60*time.Second)
	l.check(t, c)
}

// sendBulk sends large messages until stop is called.
func sendBulk(t *testing.T, c *cluster.Cluster) (stop func()) {
	t.Helper()
	createTopic(t, c, "Bulk")
	cl, err := client.New(c.Namesrv)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		p, body := cl.Producer(), make([]byte, 256<<10)
		for ctx.Err() == nil {
			_, _ = p.Send(ctx, client.Message{Topic: "Bulk", Body: body}) // what becomes of it is nobody's concern
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		cl.Close()
	})
	t.Cleanup(stop)
	return stop
}

// lag is how many messages of a topic a consumer group has not acknowledged, -1 when that is not known.
func lag(t *testing.T, c *cluster.Cluster, group, topic string) int64 {
	t.Helper()
	var v struct {
		Lag int64 `json:"lag"`
	}
	if err := c.AdminJSON(within(t, 20*time.Second), &v, "consumer", "show", group, "--topic", topic); err != nil {
		return -1
	}
	return v.Lag
}

// noMount skips the test, or fails it where LEDGERMQ_TEST_MOUNTS says that file systems can be mounted.
func noMount(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("LEDGERMQ_TEST_MOUNTS") == "1" {
		t.Fatalf("LEDGERMQ_TEST_MOUNTS=1, but %s", why)
	}
	t.Skip(why)
}

// smallDisk puts a node's data folder on a file system of 256 MiB, in memory. The node is stopped for that moment. It skips the test
// where nothing can be mounted.
func smallDisk(t *testing.T, c *cluster.Cluster, node string) {
	t.Helper()
	if os.Getuid() != 0 {
		noMount(t, "it mounts a small file system: run it as root")
	}
	m, err := c.Member(node)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Interrupt(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	aside := m.Data + ".aside"
	if err := errors.Join(os.Rename(m.Data, aside), os.Mkdir(m.Data, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := mountSmall(m.Data); err != nil {
		noMount(t, fmt.Sprintf("no file system can be mounted here: %v", errors.Join(err, os.Remove(m.Data), os.Rename(aside, m.Data))))
	}
	name := ballast(t, c, node)
	t.Cleanup(func() { // gives up nowhere before unmount
		room := os.Remove(name)
		if errors.Is(room, os.ErrNotExist) {
			room = nil
		}
		// The logs are compared after this.
		if err := errors.Join(room, c.Stop(), os.CopyFS(aside, os.DirFS(m.Data)), unmount(m.Data),
			os.Remove(m.Data), os.Rename(aside, m.Data)); err != nil {
			t.Errorf("the small disk of %s: %v", node, err)
		}
	})
	if err := errors.Join(os.CopyFS(m.Data, os.DirFS(aside)), os.RemoveAll(aside)); err != nil {
		t.Fatal(err)
	}
	restart(t, c, node)
}

func ballast(t *testing.T, c *cluster.Cluster, node string) string {
	t.Helper()
	m, err := c.Member(node)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(m.Data, "ballast")
}

// fillDisk leaves no more than left bytes of a node's small disk.
func fillDisk(t *testing.T, c *cluster.Cluster, node string, left uint64) {
	t.Helper()
	name := ballast(t, c, node)
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		free, _, err := vfs.OS.Space(filepath.Dir(name))
		if err != nil {
			t.Fatal(err)
		}
		if free <= left {
			return
		}
		if _, err := f.Write(make([]byte, min(free-left, 1<<20))); errors.Is(err, syscall.ENOSPC) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// makeRoom takes back what fillDisk did.
func makeRoom(t *testing.T, c *cluster.Cluster, node string) {
	t.Helper()
	if err := os.Remove(ballast(t, c, node)); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}
