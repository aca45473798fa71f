package peer

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/loopback"
)

// everything returns one envelope of each shape, with every field set that can be.
func everything() []Envelope {
	var envs []Envelope
	for typ := range raftpb.MessageType_name {
		if !Carried(raftpb.MessageType(typ)) {
			continue
		}
		m := &raftpb.Message{
			Type: raftpb.MessageType(typ).Enum(), From: proto.Uint64(1), To: proto.Uint64(2), Term: proto.Uint64(3<<32 | 9), LogTerm: proto.Uint64(3<<32 | 8),
			Index: proto.Uint64(1 << 50), Commit: proto.Uint64(77), Vote: proto.Uint64(1), Reject: proto.Bool(true), RejectHint: proto.Uint64(5), Context: []byte("CampaignTransfer"),
		}
		envs = append(envs, Envelope{Group: testGroup, From: 1, To: 2, Epoch: 3, Msg: m})
	}
	one := appendOf(1, 2, 41, 3000)
	one.Record = []byte("an encoded epoch record")
	two := appendOf(1, 2, 42, 0)
	two.Frames = append(two.Frames, testFrame(44, 1), testFrame(45, 70_000))
	two.Msg.Entries = append(two.Msg.Entries,
		&raftpb.Entry{Term: proto.Uint64(1), Index: proto.Uint64(44), Type: raftpb.EntryConfChangeV2.Enum()},
		&raftpb.Entry{Term: proto.Uint64(1), Index: proto.Uint64(45), Data: bytes.Repeat([]byte{7}, 500)})
	two.Msg.Context = bytes.Repeat([]byte{9}, 100)
	bare := Envelope{Group: ids.GroupID{1}, From: 1, To: 2, Epoch: 4, Record: bytes.Repeat([]byte{5}, MaxRecordBytes)}
	empty := appendOf(1, 2, 43, 0)
	empty.Frames, empty.Msg.Entries = nil, nil
	asked := part(1, 2, 0)
	asked.Record = []byte("an encoded epoch record")
	return append(envs, one, two, bare, empty, asked, snapshotOf(1, 2), part(1, 2, 0), part(1, 2, 1), logPart(1, 2, 3), newest(1, 2), part(1, 2, MaxPartBytes))
}

func TestEveryFieldArrives(t *testing.T) {
	t.Parallel()
	a, b := newNode(t, "n1", nil), newNode(t, "n2", nil)
	connect(t, a, b)
	want := everything()
	a.Send("n2", want)
	waitFor(t, "all envelopes", func() bool { return b.count("n1") == len(want) })
	var gotControl, gotBulk []Envelope
	for _, e := range b.received("n1") {
		if e.channel() == bulk {
			gotBulk = append(gotBulk, e)
		} else {
			gotControl = append(gotControl, e)
		}
	}
	for _, w := range want {
		list := &gotControl
		if w.channel() == bulk {
			list = &gotBulk
		}
		sameEnvelope(t, (*list)[0], w)
		*list = (*list)[1:]
	}
	if s := a.Stats().Peers["n2"]; s.Dropped != 0 || !s.Connected {
		t.Fatalf("%+v", s)
	}
}

func TestThreeNodesKeepOrder(t *testing.T) {
	t.Parallel()
	nodes := []*node{newNode(t, "n1", nil), newNode(t, "n2", nil), newNode(t, "n3", nil)}
	connect(t, nodes...)
	// Four goroutines on each node send to both others, in batches, small and large, on both channels.
	const senders, each = 4, 150
	var wg sync.WaitGroup
	for _, n := range nodes {
		for s := range senders {
			wg.Go(func() {
				for i := range uint64(each) {
					for _, to := range nodes {
						if to == n {
							continue
						}
						// From names the sender, so that each one's order can be checked.
						n.Send(to.id, []Envelope{heartbeat(ids.ReplicaID(s), 1, i), appendOf(ids.ReplicaID(s), 1, i, int(i)*40), heartbeat(ids.ReplicaID(s), 1, i)})
					}
				}
			})
		}
	}
	wg.Wait()
	for _, n := range nodes {
		for _, from := range nodes {
			if from == n {
				continue
			}
			waitFor(t, "everything from "+string(from.id), func() bool { return n.count(from.id) == senders*each*3 })
			next := make(map[[2]uint64]uint64)
			for _, e := range n.received(from.id) {
				k := [2]uint64{uint64(e.From), uint64(e.channel())}
				want := next[k]
				if e.channel() == control {
					want /= 2
				}
				if e.Msg.GetCommit() != want {
					t.Fatalf("from %s, sender %d, %v: got number %d, want %d", from.id, e.From, e.channel(), e.Msg.GetCommit(), want)
				}
				next[k]++
				if e.channel() == bulk {
					sameEnvelope(t, e, appendOf(e.From, 1, want, int(want)*40))
				}
			}
		}
	}
}

// TestHeartbeatsShareWrites: the plain heartbeats of many groups leave together, soon, and with whatever is urgent.
func TestHeartbeatsShareWrites(t *testing.T) {
	t.Parallel()
	a, b := newNode(t, "n1", nil), newNode(t, "n2", nil)
	connect(t, a, b)
	plain := func(i uint64) Envelope { e := heartbeat(1, 2, i); e.Msg.Context = nil; return e }
	const groups = 300
	for i := range uint64(groups) {
		a.Send("n2", []Envelope{plain(i)})
	}
	waitFor(t, "all heartbeats", func() bool { return b.count("n1") == groups })
	// On a busy machine the loop above may take many delays.
	if packets := b.packets(); packets > groups/2 {
		t.Errorf("%d heartbeats left in %d packets", groups, packets)
	}
	for i, e := range b.received("n1") {
		if e.Msg.GetCommit() != uint64(i) {
			t.Fatalf("heartbeat %d at place %d", e.Msg.GetCommit(), i)
		}
	}
	// One alone is not forgotten either, and neither is one that was queued while the link was new.
	for i := range 20 {
		a.Send("n2", []Envelope{plain(uint64(i))})
		waitFor(t, "a lone heartbeat", func() bool { return b.count("n1") == groups+i+1 })
	}
	a.SetPeer("n2", "")
	a.SetPeer("n2", b.addr)
	a.Send("n2", []Envelope{plain(1)})
	waitFor(t, "a heartbeat from before the connection", func() bool { return b.count("n1") == groups+21 })
}

// TestUrgentTakesHeartbeatsAlong: order holds between the two kinds.
func TestUrgentTakesHeartbeatsAlong(t *testing.T) {
	t.Parallel()
	p := newPipe(newQuietTransport(t), "n2", "", control, 1<<20)
	l := &link{busy: false, features: allFeatures}
	p.link = l
	lazy := heartbeat(1, 2, 1)
	lazy.Msg.Context = nil
	p.send([]Envelope{lazy})
	if l.busy || !p.armed || len(p.lazy) != 1 {
		t.Fatal("a heartbeat alone must wait for the pipe's goroutine")
	}
	p.send([]Envelope{lazy})
	if len(p.lazy) != 1 {
		t.Fatal("one signal is enough")
	}
	l.busy = true
	p.send([]Envelope{heartbeat(1, 2, 2)})
	if !p.fill(l) || len(l.batch) != 3 || l.batch[2].Msg.GetCommit() != 2 {
		t.Fatalf("a packet of %d", len(l.batch))
	}
	l.busy = false
	if err := p.writeLazy(l); err != nil || p.armed {
		t.Fatal("nothing waits any more", err)
	}
}

func TestSendToNobody(t *testing.T) {
	t.Parallel()
	a := newNode(t, "n1", nil)
	a.Send("n9", []Envelope{heartbeat(1, 2, 0)})
	a.SetPeer("n2", "127.0.0.1:1")
	a.Send("n2", nil)
	a.SetPeer("n2", "")
	a.Send("n2", []Envelope{heartbeat(1, 2, 0)})
	if a.Connected("n2") || len(a.Stats().Peers) != 0 {
		t.Fatal("a removed peer is still there")
	}
}

// TestUnfitEnvelopes: what must not travel is dropped with a line in the log, the rest of the batch arrives.
func TestUnfitEnvelopes(t *testing.T) {
	t.Parallel()
	a, b := newNode(t, "n1", nil), newNode(t, "n2", nil)
	connect(t, a, b)
	change := func(f func(*Envelope)) Envelope { e := appendOf(1, 2, 1, 10); f(&e); return e }
	bad := []Envelope{
		change(func(e *Envelope) { e.Msg.Type = raftpb.MsgProp.Enum() }),
		change(func(e *Envelope) { e.Msg.Type = raftpb.MsgSnap.Enum() }),
		change(func(e *Envelope) { e.Part = part(1, 2, 10).Part }),
		change(func(e *Envelope) { *e = part(1, 2, MaxPartBytes+1) }),
		change(func(e *Envelope) { *e = part(1, 2, 10); e.Part.Size-- }),
		change(func(e *Envelope) { *e = part(1, 2, 10); e.Part.Index = 0 }),
		change(func(e *Envelope) { *e = part(1, 2, 10); e.Part.Kind = PartOfNewest }),
		change(func(e *Envelope) { *e = part(1, 2, 10); e.Part.Kind = partKinds }),
		change(func(e *Envelope) { e.Msg.Snapshot = &raftpb.Snapshot{} }),
		change(func(e *Envelope) { e.Msg.Responses = []*raftpb.Message{{}} }),
		change(func(e *Envelope) { e.Msg.From = proto.Uint64(9) }),
		change(func(e *Envelope) { e.To = 9 }),
		change(func(e *Envelope) { e.Msg = nil }),
		change(func(e *Envelope) { e.Record = make([]byte, MaxRecordBytes+1) }),
		change(func(e *Envelope) { e.Msg.Context = make([]byte, MaxContextBytes+1) }),
		change(func(e *Envelope) { e.Msg.Entries[0].Data = make([]byte, MaxEntryData+1) }),
		change(func(e *Envelope) { e.Msg.Entries = make([]*raftpb.Entry, MaxEntries+1) }),
		change(func(e *Envelope) { e.Frames = make([]commitlog.Frame, MaxFrames+1) }),
		change(func(e *Envelope) { f := testFrame(1, 5<<20); e.Frames = []commitlog.Frame{f, f} }),
		change(func(e *Envelope) {
			x := &raftpb.Entry{Data: make([]byte, MaxEntryData)}
			e.Msg.Entries = make([]*raftpb.Entry, 2000)
			for i := range e.Msg.Entries {
				e.Msg.Entries[i] = x
			}
		}),
	}
	a.Send("n2", append(bad, appendOf(1, 2, 1, 10), heartbeat(1, 2, 5)))
	waitFor(t, "the two good ones", func() bool { return b.count("n1") == 2 })
	if s := a.Stats().Peers["n2"]; s.Dropped != uint64(len(bad)) {
		t.Fatalf("%+v, want %d dropped", s, len(bad))
	}
	if a.log.count(`"level":"error"`, "cannot travel") == 0 {
		t.Fatal("no line about it")
	}
}

// TestOlderPeer: a peer that does not name a feature is not sent what belongs to it, keeps its connection, and gets all the rest.
func TestOlderPeer(t *testing.T) {
	t.Parallel()
	b := &node{id: "n2", got: make(map[ids.NodeID][]Envelope)}
	l := listen(t)
	var err error
	if b.Transport, err = New(Options{Cluster: testCluster, Node: "n2", Secret: testSecret, Listener: l, Receive: b.receive}); err != nil {
		t.Fatal(err)
	}
	b.features, b.addr = 0, l.Addr().String()
	b.Start()
	t.Cleanup(func() { _ = b.Close() })
	a := newNode(t, "n1", nil)
	a.SetPeer("n2", b.addr)
	waitFor(t, "connected", func() bool { return a.Connected("n2") })
	strange := []Envelope{snapshotOf(1, 2), part(1, 2, 0), part(1, 2, 1), logPart(1, 2, 0), newest(1, 2)}
	a.Send("n2", strange) // alone: then nothing is left to write
	waitFor(t, "they are dropped", func() bool { return a.Stats().Peers["n2"].Dropped == uint64(len(strange)) })
	a.Send("n2", slices.Concat(strange, []Envelope{heartbeat(1, 2, 5)}, strange, []Envelope{appendOf(1, 2, 1, 10)}))
	waitFor(t, "what it understands", func() bool { return b.count("n1") == 2 })
	if s := a.Stats().Peers["n2"]; s.Dropped != 3*uint64(len(strange)) || s.Connects != 2 || a.queuedBytes("n2") != 0 || !s.Connected {
		t.Fatalf("%+v", s)
	}
	if a.log.count(`"level":"warn"`, "older version") == 0 {
		t.Fatal("no line about it")
	}
}

func TestPeerRestartsElsewhere(t *testing.T) {
	t.Parallel()
	a, b := newNode(t, "n1", nil), newNode(t, "n2", nil)
	connect(t, a, b)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "n1 notices", func() bool { return !a.Connected("n2") && a.closedCount("n2") >= 4 })
	again := newNode(t, "n2", nil)
	a.SetPeer("n2", again.addr)
	again.SetPeer("n1", a.addr)
	waitFor(t, "connected again", func() bool { return a.Connected("n2") && again.Connected("n1") })
	a.Send("n2", []Envelope{heartbeat(1, 2, 7), appendOf(1, 2, 7, 100)})
	again.Send("n1", []Envelope{heartbeat(2, 1, 8)})
	waitFor(t, "messages both ways", func() bool { return again.count("n1") == 2 && a.count("n2") == 1 })
}

// TestPeerRestartsInPlace: nobody calls SetPeer, and the peer is found again where it was.
func TestPeerRestartsInPlace(t *testing.T) {
	t.Parallel()
	a, b := newNode(t, "n1", nil), newNode(t, "n2", nil)
	connect(t, a, b)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "n1 has tried in vain", func() bool {
		a.Send("n2", []Envelope{heartbeat(1, 2, 0)})
		return a.Stats().Peers["n2"].Dropped > 0 && a.log.count("cannot be reached") > 0
	})
	l, err := net.Listen("tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	again := newNode(t, "n2", func(o *Options) { _ = o.Listener.Close(); o.Listener = l })
	again.SetPeer("n1", a.addr)
	waitFor(t, "n1 is connected again", func() bool { return a.Connected("n2") })
}

// TestBackoffEndsWithASign: a back-off, however long, does not delay a peer that is back and has dialed this node.
func TestBackoffEndsWithASign(t *testing.T) {
	t.Parallel()
	a, b := newNode(t, "n1", nil), newNode(t, "n2", nil)
	// Nobody runs these pipes, so that nothing but the peer's call ends their back-off.
	r := &remote{addr: b.addr, control: newPipe(a.Transport, "n2", b.addr, control, 1<<20), bulk: newPipe(a.Transport, "n2", b.addr, bulk, 1<<20)}
	a.peers.Store(&map[ids.NodeID]*remote{"n2": r})
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		for _, p := range r.pipes() {
			p.pause(ctx, 10*time.Minute)
		}
	}()
	defer func() { cancel(); <-over }()
	b.SetPeer("n1", a.addr)
	select {
	case <-over:
	case <-time.After(patience):
		t.Fatal("the back-off goes on, though the peer is back")
	}
}

// TestSlowResolver: a peer whose name never resolves, or that swallows connections, costs the others nothing.
func TestSlowResolver(t *testing.T) {
	t.Parallel()
	a := newNode(t, "n1", func(o *Options) {
		dial := (&net.Dialer{}).DialContext
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			if strings.HasPrefix(addr, "nowhere") {
				<-ctx.Done() // as a resolver that never answers
				return nil, ctx.Err()
			}
			return dial(ctx, "tcp", addr)
		}
	})
	b := newNode(t, "n2", nil)
	for _, id := range []ids.NodeID{"n3", "n4", "n5"} {
		a.SetPeer(id, "nowhere:1")
	}
	connect(t, a, b)
	for i := range uint64(100) {
		for _, id := range []ids.NodeID{"n3", "n2", "n4", "n5"} {
			a.Send(id, []Envelope{heartbeat(1, 2, i)})
		}
	}
	waitFor(t, "all to n2", func() bool { return b.count("n1") == 100 })
}

// TestStalledPeer: a peer that takes nothing costs a bounded queue and delays nobody; when it goes on, so do new messages.
func TestStalledPeer(t *testing.T) {
	t.Parallel()
	for name, dead := range map[string]time.Duration{"shorter than DeadAfter": time.Minute, "longer than DeadAfter": 300 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const limit = 1 << 20
			a := newNode(t, "n1", func(o *Options) {
				o.MaxQueueBytes, o.DeadAfter, o.PingEvery = limit, dead, 50*time.Millisecond
			})
			gate := make(chan struct{})
			var stalled *node
			stalled = newNode(t, "n2", func(o *Options) {
				o.Receive = func(from ids.NodeID, envs []Envelope) {
					<-gate // this is what Receive must not do: its connection is not read any more
					stalled.receive(from, envs)
				}
			})
			other := newNode(t, "n3", nil)
			connect(t, a, other)
			a.SetPeer("n2", stalled.addr)
			waitFor(t, "connected", func() bool { return a.Connected("n2") })
			// More than the socket's buffers and the queue hold.
			sent := 0
			for a.Stats().Peers["n2"].Dropped == 0 {
				a.Send("n2", []Envelope{appendOf(1, 2, uint64(sent), 64<<10)})
				sent++
				if q := a.queuedBytes("n2"); q > limit {
					t.Fatalf("%d bytes wait, the limit is %d", q, limit)
				}
				if sent > 4000 {
					t.Fatal("256 MiB were taken")
				}
			}
			a.Send("n3", []Envelope{heartbeat(1, 3, 1)})
			waitFor(t, "n3 hears n1", func() bool { return other.count("n1") == 1 })
			if dead < time.Second {
				waitFor(t, "the connection is given up", func() bool { return a.closedCount("n2") > 0 })
			}
			close(gate)
			waitFor(t, "new messages arrive", func() bool {
				a.Send("n2", []Envelope{appendOf(1, 2, 1_000_000, 10)})
				got := stalled.received("n1")
				return len(got) > 0 && got[len(got)-1].Msg.GetCommit() == 1_000_000
			})
			// Order holds within a connection. The packet that was being received when a new one took over may end up behind its
			// first ones.
			last, backwards := -1, 0
			for _, e := range stalled.received("n1") {
				if n := int(e.Msg.GetCommit()); n < last || (n == last && n != 1_000_000) {
					backwards++
				} else {
					last = n
				}
			}
			if allowed := int(a.Stats().Peers["n2"].Connects - 2); backwards > allowed {
				t.Fatalf("%d messages came late, with %d connections made again", backwards, allowed)
			}
			if a.log.count("the queue to a peer is full") == 0 {
				t.Fatal("no line about dropped messages")
			}
		})
	}
}

// TestSilentPeer: a peer behind a black hole is noticed on both sides, and used again when it is back.
func TestSilentPeer(t *testing.T) {
	t.Parallel()
	quick := func(o *Options) { o.PingEvery, o.DeadAfter = 20*time.Millisecond, 200*time.Millisecond }
	a, b := newNode(t, "n1", quick), newNode(t, "n2", quick)
	hole := newBlackHole(t, b.addr)
	a.SetPeer("n2", hole.addr)
	waitFor(t, "connected", func() bool { return a.Connected("n2") })
	hole.swallow(true)
	waitFor(t, "both ends notice", func() bool { return a.closedCount("n2") >= 2 && b.closedCount("n1") >= 2 })
	hole.swallow(false)
	waitFor(t, "connected again", func() bool { return a.Connected("n2") })
	waitFor(t, "a message arrives", func() bool {
		a.Send("n2", []Envelope{heartbeat(1, 2, 3)})
		return b.count("n1") > 0
	})
}

func TestIdleConnectionsLive(t *testing.T) {
	t.Parallel()
	quick := func(o *Options) { o.PingEvery, o.DeadAfter = 100*time.Millisecond, time.Second }
	a, b := newNode(t, "n1", quick), newNode(t, "n2", quick)
	connect(t, a, b)
	start := time.Now()
	waitFor(t, "pings for longer than silence is borne", func() bool { return a.silentSince().Sub(start) > 2*time.Second })
	if c := a.closedCount("n2") + b.closedCount("n1"); c != 0 {
		t.Fatalf("%d idle connections were closed", c)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	t.Parallel()
	a, b := newNode(t, "n1", nil), newNode(t, "n2", nil)
	connect(t, a, b)
	a.SetPeer("n3", "127.0.0.1:1")
	dialRaw(t, a.addr) // somebody in the middle of a handshake
	for range 2 {
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	a.SetPeer("n4", "127.0.0.1:1")
	a.Send("n2", []Envelope{heartbeat(1, 2, 0)})
	a.Start()
	if a.closedCount("n2") != 0 {
		t.Fatal("Closed was called for what Close ended")
	}
	never, err := New(Options{Cluster: testCluster, Node: "n5", Listener: listen(t), Receive: func(ids.NodeID, []Envelope) {}})
	if err != nil {
		t.Fatal(err)
	}
	if err := never.Close(); err != nil {
		t.Fatal(err)
	}
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", loopback.Host()+":0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestOptionsReportAllFaults(t *testing.T) {
	t.Parallel()
	_, err := New(Options{MaxQueueBytes: 1, PingEvery: time.Second, DeadAfter: time.Second, MinBackoff: time.Hour, Node: ids.NodeID(strings.Repeat("x", 65))})
	for _, field := range []string{"Cluster", "Node", "Listener", "Receive", "MaxQueueBytes", "DeadAfter", "MinBackoff"} {
		if err == nil || !strings.Contains(err.Error(), "Options."+field) {
			t.Errorf("%s is missing in: %v", field, err)
		}
	}
}

// blackHole forwards TCP connections to addr until it is told to swallow everything.
type blackHole struct {
	addr string
	mu   sync.Mutex
	on   bool
	hold *sync.Cond
}

func newBlackHole(t *testing.T, addr string) *blackHole {
	l := listen(t)
	h := &blackHole{addr: l.Addr().String()}
	h.hold = sync.NewCond(&h.mu)
	var wg sync.WaitGroup
	var conns []net.Conn
	pump := func(dst, src net.Conn) {
		b := make([]byte, 32<<10)
		for {
			n, err := src.Read(b)
			h.mu.Lock()
			for h.on {
				h.hold.Wait()
			}
			h.mu.Unlock()
			if n > 0 {
				_, _ = dst.Write(b[:n])
			}
			if err != nil {
				_ = dst.Close()
				return
			}
		}
	}
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			out, err := net.Dial("tcp", addr)
			if err != nil {
				_ = in.Close()
				continue
			}
			h.mu.Lock()
			conns = append(conns, in, out)
			h.mu.Unlock()
			wg.Go(func() { pump(out, in) })
			wg.Go(func() { pump(in, out) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		h.swallow(false)
		h.mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		h.mu.Unlock()
		wg.Wait()
	})
	return h
}

func (h *blackHole) swallow(on bool) {
	h.mu.Lock()
	h.on = on
	h.mu.Unlock()
	h.hold.Broadcast()
}
