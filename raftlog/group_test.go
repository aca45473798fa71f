package raftlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/raftlog/peer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is three groups with their goroutines in one process. Envelopes go from hand to hand.
type cluster struct {
	t      testing.TB
	record raftlog.EpochRecord
	config func(*raftlog.Config)
	rule   func(n *instance, op vfs.Op, size int) error // of all disks, asked before each operation

	mu    sync.Mutex
	nodes map[ids.NodeID]*instance
	cut   map[[2]ids.NodeID]bool
}

type instance struct {
	c    *cluster
	self raftlog.Member
	disk *vfs.Mem
	log  *commitlog.Log
	g    *raftlog.Group
	m    *recorder
}

func newCluster(t testing.TB, config func(*raftlog.Config)) *cluster {
	c := &cluster{t: t, config: config, nodes: make(map[ids.NodeID]*instance), cut: make(map[[2]ids.NodeID]bool)}
	c.record = raftlog.EpochRecord{Cluster: ids.ClusterID{1}, Group: ids.GroupID{2}, Epoch: 1, A: 2, MinISR: 2, SegmentSize: 64 << 10}
	for i := 1; i <= 3; i++ {
		c.record.Voters = append(c.record.Voters, raftlog.Member{ID: ids.ReplicaID(i), Slot: ids.Slot(i),
			Node: ids.NodeID(fmt.Sprintf("n%d", i)), Incarnation: ids.Incarnation{byte(i)}})
	}
	for _, m := range c.record.Voters {
		n := &instance{c: c, self: m, disk: vfs.NewMem()}
		owner := raftlog.Owner{Replica: m.ID, Incarnation: m.Incarnation}
		if err := commitlog.Create(c.options(n.disk), owner.Encode()); err != nil {
			t.Fatal(err)
		}
		c.nodes[m.Node] = n
	}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			n.close()
		}
	})
	return c
}

func (c *cluster) options(fs vfs.FS) commitlog.Options {
	return commitlog.Options{FS: fs, Dir: "log", Cluster: c.record.Cluster, Group: c.record.Group, SegmentSize: 64 << 10, SmallSegments: true, FillAhead: 32 << 10}
}

func (c *cluster) node(i int) *instance { return c.nodes[ids.NodeID(fmt.Sprintf("n%d", i))] }

func (c *cluster) startAll() {
	for i := 1; i <= 3; i++ {
		c.node(i).start(&c.record)
	}
}

func (n *instance) start(rec *raftlog.EpochRecord) {
	n.c.t.Helper()
	disk := vfs.FS(n.disk)
	if n.c.rule != nil {
		disk = vfs.Inject(disk, func(op vfs.Op, _ string, _ int64, size int) error { return n.c.rule(n, op, size) })
	}
	log, err := commitlog.Open(n.c.options(disk))
	if err != nil {
		n.c.t.Fatal(err)
	}
	m := newRecorder()
	cfg := raftlog.Config{Cluster: n.c.record.Cluster, Group: n.c.record.Group, Record: rec, Replica: n.self.ID, Incarnation: n.self.Incarnation,
		Log: log, SM: m, Send: n.sender(),
		Tick: 10 * time.Millisecond}
	if n.c.config != nil {
		n.c.config(&cfg)
	}
	g, err := raftlog.Start(cfg)
	if err != nil {
		n.c.t.Fatal(err)
	}
	m.wake = g.Wake
	n.c.mu.Lock()
	n.log, n.m, n.g = log, m, g
	n.c.mu.Unlock()
}

func (n *instance) sender() func(ids.NodeID, []peer.Envelope) {
	return func(to ids.NodeID, envs []peer.Envelope) { n.c.send(n.self.Node, to, envs) }
}

// send passes envelopes on, as the transport would.
func (c *cluster) send(from, to ids.NodeID, envs []peer.Envelope) {
	c.mu.Lock()
	var g *raftlog.Group
	if n := c.nodes[to]; n != nil && !c.cut[[2]ids.NodeID{from, to}] && !c.cut[[2]ids.NodeID{to, from}] {
		g = n.g
	}
	c.mu.Unlock()
	if g == nil {
		return
	}
	for _, env := range envs {
		g.Receive(env)
	}
}

func (n *instance) stop() (*raftlog.Group, *commitlog.Log) {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	g, log := n.g, n.log
	n.g, n.log = nil, nil
	return g, log
}

// close is a clean stop.
func (n *instance) close() {
	if g, log := n.stop(); g != nil {
		if err := g.Close(); err == nil {
			if err := log.Close(true); err != nil {
				n.c.t.Error(err)
			}
		} else {
			log.Close(false)
		}
	}
}

// kill is kill -9: the page cache stays.
func (n *instance) kill() {
	if g, log := n.stop(); g != nil {
		g.Kill()
		log.Close(false)
		n.disk = n.disk.KillProcess()
	}
}

func (c *cluster) isolate(i int, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	self := c.node(i).self.Node
	for other := range c.nodes {
		if other != self {
			c.cut[[2]ids.NodeID{self, other}] = on
		}
	}
}

// eventually waits for a condition, with a deadline.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("waited in vain: %s", what)
		case <-poll.C:
		}
	}
}

func (c *cluster) master(t testing.TB, but ...int) *instance {
	t.Helper()
	var found *instance
	eventually(t, "a master", func() bool {
		for i := 1; i <= 3; i++ {
			n := c.node(i)
			skip := false
			for _, b := range but {
				skip = skip || b == i
			}
			if !skip && n.g != nil && n.g.Status().Role == raftlog.RoleMaster {
				found = n
				return true
			}
		}
		return false
	})
	return found
}

// recorder is a state machine that remembers what is applied, and answers its clients.
type recorder struct {
	wake func()

	mu      sync.Mutex
	master  bool
	queue   []*request
	open    []*request
	applied []string
	roles   []raftlog.Role
	fail    error // of the next Apply
}

type request struct {
	body  string
	index ids.Index
	done  chan string
}

func newRecorder() *recorder { return &recorder{} }

// send asks for one operation to be stored; the channel gets its outcome.
func (m *recorder) send(body string) chan string {
	r := &request{body: body, done: make(chan string, 1)}
	m.mu.Lock()
	if !m.master {
		r.done <- "refused"
	} else {
		m.queue = append(m.queue, r)
	}
	m.mu.Unlock()
	m.wake()
	return r.done
}

func (m *recorder) Form(b *commitlog.Builder) any {
	m.mu.Lock()
	defer m.mu.Unlock()
	var token []*request
	for len(m.queue) > 0 {
		r := m.queue[0]
		body, _, ok := b.Reserve(1, 1, 0, len(r.body))
		if !ok {
			break
		}
		copy(body, r.body)
		r.index = b.Index()
		m.queue = m.queue[1:]
		token = append(token, r)
	}
	if token == nil {
		return nil
	}
	m.open = append(m.open, token...)
	return token
}

func (m *recorder) Apply(c raftlog.Committed) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	for r := range c.Frame.Records() {
		m.applied = append(m.applied, string(r.Body))
	}
	return nil
}

func (m *recorder) Acked(upTo ids.Index) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kept := m.open[:0]
	for _, r := range m.open {
		if r.index <= upTo {
			r.done <- "ok"
		} else {
			kept = append(kept, r)
		}
	}
	m.open = kept
}

func (m *recorder) Abandon(token any, o raftlog.Outcome) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range token.([]*request) {
		r.done <- o.String()
		kept := m.open[:0]
		for _, x := range m.open {
			if x != r {
				kept = append(kept, x)
			}
		}
		m.open = kept
	}
}

func (m *recorder) Role(r raftlog.Role) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.roles = append(m.roles, r)
	if m.master = r.Kind == raftlog.RoleMaster; !m.master {
		for _, r := range m.queue {
			r.done <- "refused"
		}
		m.queue = nil
	}
}

func (m *recorder) Flush() {}

func (m *recorder) list() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.applied...)
}

// TestGroupThroughKills sends from one client while each replica in turn is killed and comes back. What was answered OK is on
// every replica, and their logs are equal.
func TestGroupThroughKills(t *testing.T) {
	t.Parallel()
	c := newCluster(t, func(cfg *raftlog.Config) { cfg.MaxInflightFrames = 2 })
	c.startAll()
	c.node(1).g.Campaign()
	var acked []string
	sent := 0
	send := func(n int) {
		for range n {
			m := c.master(t)
			sent++
			body := fmt.Sprintf("message %d %s", sent, bytes.Repeat([]byte{'x'}, sent*37%3000))
			select {
			case out := <-m.m.send(body):
				if out == "ok" {
					acked = append(acked, body)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("no answer")
			}
		}
	}
	send(30)
	for i := 1; i <= 3; i++ {
		c.node(i).kill()
		send(30)
		c.node(i).start(nil)
	}
	send(30)
	for i := 1; i <= 3; i++ {
		c.node(i).close()
		c.node(i).start(&c.record)
	}
	send(10)
	m := c.master(t)
	eventually(t, "all replicas to have all", func() bool {
		for i := 1; i <= 3; i++ {
			if c.node(i).g.Status().Applied < m.g.Status().Commit {
				return false
			}
		}
		return true
	})
	if len(acked) < 100 {
		t.Errorf("only %d of %d were answered OK", len(acked), sent)
	}
	for i := 1; i <= 3; i++ {
		have := make(map[string]int)
		for _, b := range c.node(i).m.list() {
			have[b]++
		}
		for _, b := range acked {
			if have[b] != 1 {
				t.Errorf("replica %d has %.20q %d times", i, b, have[b])
			}
		}
	}
	for i := ids.Index(1); i <= m.g.Status().Commit; i++ {
		a, err := c.node(1).log.ReadFrame(i, nil)
		if err != nil {
			t.Fatal(err)
		}
		for k := 2; k <= 3; k++ {
			if b, err := c.node(k).log.ReadFrame(i, nil); err != nil || !bytes.Equal(a, b) {
				t.Fatalf("entry %d differs on replica %d: %v", i, k, err)
			}
		}
	}
}

// TestGroupReadIndex asks masters, followers and a master that was cut off.
func TestGroupReadIndex(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.startAll()
	c.node(1).g.Campaign()
	m := c.master(t)
	if out := <-m.m.send("a"); out != "ok" {
		t.Fatal(out)
	}
	at := m.g.Status().Applied
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if i, err := m.g.ReadIndex(ctx); err != nil || i < at {
				t.Errorf("read index %d, %v; %d was applied", i, err, at)
			}
		})
	}
	wg.Wait()
	for i := 1; i <= 3; i++ {
		if n := c.node(i); n != m {
			var not *raftlog.NotMasterError
			if _, err := n.g.ReadIndex(context.Background()); !errors.As(err, &not) {
				t.Errorf("a follower answers %v", err)
			}
		}
	}
	c.isolate(int(m.self.ID), true)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if i, err := m.g.ReadIndex(ctx); err == nil {
		t.Errorf("a master that is cut off confirms %d", i)
	}
	c.isolate(int(m.self.ID), false)
}

// TestGroupStatus looks at what a broker reads from a group.
func TestGroupStatus(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.startAll()
	c.node(2).g.Campaign()
	m := c.master(t)
	if m != c.node(2) {
		t.Errorf("replica %d is master, 2 was told to campaign", m.self.ID)
	}
	<-m.m.send("a")
	lowest := func(m *instance) ids.Index {
		voters, all := m.g.MinMatch()
		if voters != all {
			t.Errorf("the voters match %d, all members %d: there are no others", voters, all)
		}
		return all
	}
	eventually(t, "all to be heard and to match", func() bool { return m.g.Status().Heard == 3 && lowest(m) == m.g.Status().Last })
	s := m.g.Status()
	if s.K != 2 || s.MinISR != 2 || s.Epoch != 1 || s.Hash != c.record.Hash() || s.MasterNode != "n2" || !s.Activated || len(s.Voters) != 3 || s.Parked != "" {
		t.Errorf("%+v", s)
	}
	if voters, all := c.node(1).g.MinMatch(); voters != 0 || all != 0 {
		t.Errorf("a follower knows lowest matches of %d and %d", voters, all)
	}
	c.node(1).kill()
	eventually(t, "the lost one to be missed", func() bool { return m.g.Status().Heard == 2 })
	if err := m.g.Adopt(c.record); err != nil {
		t.Errorf("the record in force: %v", err)
	}
	other := c.record
	other.A = 1
	if err := m.g.Adopt(other); !errors.Is(err, raftlog.ErrEpochConflict) {
		t.Errorf("another record of the epoch in force: %v", err)
	}
	next := c.record
	next.Epoch, next.Voters = 2, c.record.Voters[1:]
	if err := m.g.Adopt(next); err != nil {
		t.Fatal(err)
	}
	m.g.Campaign()
	eventually(t, "epoch 2 to be active", func() bool { s := m.g.Status(); return s.Epoch == 2 && s.Activated })
	if err := m.g.Adopt(c.record); !errors.Is(err, raftlog.ErrStaleEpoch) {
		t.Errorf("an older record: %v", err)
	}
	if out := <-m.m.send("b"); out != "ok" {
		t.Errorf("in epoch 2 the answer is %s", out)
	}
}

// TestGroupStatusOfNewMaster: who has heard a new master tells of no loss, also before its next tick. A controller that read of one would name
// another replica, and depose the one that had just won. A tick is so long here that the test is over before the second one.
func TestGroupStatusOfNewMaster(t *testing.T) {
	t.Parallel()
	c := newCluster(t, func(cfg *raftlog.Config) { cfg.Tick = time.Minute })
	c.startAll()
	c.node(2).g.Campaign()
	follower := c.node(1).g
	heard := func(node ids.NodeID) func() bool {
		return func() bool { s := follower.Status(); return s.MasterNode == node && s.Last > 0 }
	}
	eventually(t, "the first master to be heard", heard("n2"))
	c.node(2).kill()
	follower.PeerDown("n2")
	eventually(t, "the new master to be heard", func() bool {
		c.node(3).g.Campaign()
		return heard("n3")()
	})
	if s := follower.Status(); s.MasterClosed {
		t.Errorf("a follower of n3 misses its master: %+v", s)
	}
}

// TestGroupParks gives one state machine an entry that it does not know, and another one a disk that fails.
func TestGroupParks(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.startAll()
	c.node(1).g.Campaign()
	m := c.master(t)
	n := c.node(3)
	if m == n {
		n = c.node(1)
	}
	n.m.mu.Lock()
	n.m.fail = errors.New("unknown command")
	n.m.mu.Unlock()
	if out := <-m.m.send("a"); out != "ok" {
		t.Fatal(out)
	}
	eventually(t, "the replica to park", func() bool { return n.g.Status().Parked != "" })
	if s := n.g.Status(); s.Role != raftlog.RoleParked {
		t.Errorf("%+v", s)
	}
	var parked *raftlog.ParkedError
	if _, err := n.g.ReadIndex(context.Background()); !errors.As(err, &parked) {
		t.Errorf("a parked replica answers %v", err)
	}
	if out := <-m.m.send("b"); out != "ok" {
		t.Errorf("with one replica parked the answer is %s", out)
	}
}

// TestGroupClosed uses a group after its end.
func TestGroupClosed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.startAll()
	c.node(1).g.Campaign()
	m := c.master(t)
	g := m.g
	c.isolate(int(m.self.ID), true)
	out := m.m.send("never answered")
	m.close()
	if got := <-out; got == "ok" {
		t.Errorf("the answer at the end is %s", got)
	}
	if err := g.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if _, err := g.ReadIndex(context.Background()); !errors.Is(err, raftlog.ErrClosed) {
		t.Errorf("ReadIndex: %v", err)
	}
	next := c.record
	next.Epoch = 2
	if err := g.Adopt(next); !errors.Is(err, raftlog.ErrClosed) {
		t.Errorf("Adopt: %v", err)
	}
	g.Receive(peer.Envelope{})
	g.Wake()
	g.Campaign()
}

// TestGroupFirstRecord starts replicas that know no record, hands it out, and names the first master at once.
func TestGroupFirstRecord(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	for i := 1; i <= 3; i++ {
		c.node(i).start(nil)
	}
	if s := c.node(1).g.Status(); s.Epoch != 0 || s.Role != raftlog.RoleFollower || s.Parked == "" {
		t.Errorf("without a record: %+v", s)
	}
	foreign := c.record
	foreign.Group[5]++
	if err := c.node(1).g.Adopt(foreign); !errors.Is(err, raftlog.ErrForeignRecord) {
		t.Errorf("a record of another group: %v", err)
	}
	if err := c.node(1).g.Adopt(raftlog.EpochRecord{}); !errors.Is(err, raftlog.ErrEpochRecord) {
		t.Errorf("an empty record: %v", err)
	}
	// Only replica 1 gets the record from its controller; the others get it with its vote request.
	if err := c.node(1).g.Adopt(c.record); err != nil {
		t.Fatal(err)
	}
	c.node(1).g.Campaign()
	m := c.master(t)
	if out := <-m.m.send("a"); out != "ok" {
		t.Error(out)
	}
	eventually(t, "all to have it", func() bool {
		return len(c.node(1).m.list()) == 1 && len(c.node(2).m.list()) == 1 && len(c.node(3).m.list()) == 1
	})
}

// TestGroupCatchesUp lets a follower miss more than a turn applies and a message carries, and come back.
func TestGroupCatchesUp(t *testing.T) {
	t.Parallel()
	c := newCluster(t, func(cfg *raftlog.Config) { cfg.Limits.Window = 1 })
	c.startAll()
	c.node(1).g.Campaign()
	m := c.master(t)
	away := c.node(3)
	if m == away {
		away = c.node(2)
	}
	away.kill()
	body := string(bytes.Repeat([]byte{'z'}, 12_000))
	const n = 600 // 7 MB
	for range n {
		if out := <-m.m.send(body); out != "ok" {
			t.Fatal(out)
		}
	}
	away.start(nil)
	eventually(t, "the follower to catch up", func() bool { return len(away.m.list()) == n })
	// Its own restart replays all of it.
	away.kill()
	away.start(nil)
	eventually(t, "the follower to replay", func() bool { return len(away.m.list()) == n })
}

// TestFollowersUncache: a follower gives up the memory of what lies far behind its end, and the master, whom consumers ask, does not.
func TestFollowersUncache(t *testing.T) {
	t.Parallel()
	var given [4]atomic.Int64
	c := newCluster(t, func(cfg *raftlog.Config) { cfg.Limits.Cached = 100 << 10 })
	c.rule = func(n *instance, op vfs.Op, size int) error {
		if op == vfs.OpUncache {
			given[n.self.ID].Add(int64(size))
		}
		return nil
	}
	c.startAll()
	master := c.master(t)
	term := master.g.Status().Term
	body := strings.Repeat("x", 12<<10)
	followers := func() (least int64) {
		least = math.MaxInt64
		for id := range given {
			if id > 0 && ids.ReplicaID(id) != master.self.ID {
				least = min(least, given[id].Load())
			}
		}
		return least
	}
	eventually(t, "followers that give memory up", func() bool {
		for range 16 {
			<-master.m.send(body)
		}
		return followers() > 1<<18
	})
	if n := given[master.self.ID].Load(); n > 0 && master.g.Status().Term == term {
		t.Errorf("the master gave up %d bytes", n)
	}
}
