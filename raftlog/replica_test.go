package raftlog_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/raftlog/peer"
	"github.com/ledgermq/ledgermq/sim"
)

// trio is a world of three replicas in epoch 1 whose messages wait in net.
type trio struct {
	*script
	log bytes.Buffer
}

func newTrio(t *testing.T, config func(*raftlog.Config)) *trio {
	t.Helper()
	w := &trio{script: &script{w: sim.NewWorld(), records: make(map[int]raftlog.EpochRecord)}}
	w.w.Sent = func(_ *sim.Node, o raftlog.Outgoing) { w.net = append(w.net, o) }
	w.w.Config = config
	w.w.Logger = zerolog.New(&w.log).Level(zerolog.InfoLevel)
	for id := ids.ReplicaID(1); id <= 3; id++ {
		if _, err := w.w.AddNode(id); err != nil {
			t.Fatal(err)
		}
	}
	w.records[10] = w.w.Record(1, 2, 1, []ids.ReplicaID{1, 2, 3}, nil)
	for _, n := range w.w.Nodes {
		rec := w.records[10]
		if err := n.Open(&rec); err != nil {
			t.Fatal(err)
		}
	}
	w.settle(w.w.Nodes)
	return w
}

// elect makes replica 1 master.
func (w *trio) elect(t *testing.T) {
	t.Helper()
	w.w.Node(1).Campaign()
	w.settle(w.w.Nodes)
	if w.w.Node(1).Status().Role != raftlog.RoleMaster {
		t.Fatal("replica 1 is not master")
	}
}

func (w *trio) propose(t *testing.T, payloads ...string) {
	t.Helper()
	for _, p := range payloads {
		op := &sim.Op{ID: len(w.ops) + 1, Payload: p}
		w.ops = append(w.ops, op)
		if !w.w.Node(1).Propose(op) {
			t.Fatalf("%.20s is refused", p)
		}
	}
}

// TestRefusedFromTheWire sends what no peer may send to a follower and to a master. None of it changes anything, and each is
// told in the log.
func TestRefusedFromTheWire(t *testing.T) {
	t.Parallel()
	w := newTrio(t, nil)
	w.elect(t)
	w.propose(t, "a")
	w.settle(w.w.Nodes)
	before := w.w.Node(1).Status()
	term := new(uint64(before.Term))
	message := func(kind pb.MessageType) *pb.Message {
		return &pb.Message{Type: kind.Enum(), From: new(uint64(2)), To: new(uint64(1)), Term: term}
	}
	envelope := func(m *pb.Message) peer.Envelope {
		return peer.Envelope{Group: w.w.Group, From: 2, To: 1, Epoch: 1, Msg: m}
	}
	cases := make(map[string]peer.Envelope)
	for _, kind := range []pb.MessageType{pb.MsgHup, pb.MsgBeat, pb.MsgProp, pb.MsgSnap, pb.MsgReadIndex, pb.MsgReadIndexResp, pb.MsgTransferLeader,
		pb.MsgUnreachable, pb.MsgSnapStatus, pb.MsgCheckQuorum, pb.MsgStorageAppend, pb.MsgStorageAppendResp, pb.MsgStorageApply, pb.MsgStorageApplyResp,
		pb.MsgForgetLeader} {
		m := message(kind)
		m.Entries = []*pb.Entry{{Data: []byte("x")}}
		cases[kind.String()] = envelope(m)
	}
	noTerm := message(pb.MsgHeartbeat)
	noTerm.Term = nil
	cases["no term"] = envelope(noTerm)
	cases["empty"] = peer.Envelope{Group: w.w.Group, From: 2, To: 1, Epoch: 1}
	other := envelope(message(pb.MsgHeartbeat))
	other.Group = ids.GroupID{9}
	cases["another group"] = other
	forged := message(pb.MsgAppResp)
	forged.From = new(uint64(3))
	cases["another sender"] = envelope(forged)
	ack := message(pb.MsgAppResp)
	ack.Index = new(uint64(1 << 62))
	cases["an acknowledgement above the end"] = envelope(ack)
	high := message(pb.MsgHeartbeat)
	high.Term = new(uint64(ids.MakeTerm(2, 1)))
	cases["a term of a higher epoch than its sender's"] = envelope(high)
	for name, env := range cases {
		w.w.Node(1).Tick() // the log gets one line a tick
		w.settle(w.w.Nodes)
		w.log.Reset()
		w.w.Node(1).Deliver(env)
		if after := w.w.Node(1).Status(); after.Role != before.Role || after.Term != before.Term || after.Commit != before.Commit || after.Last != before.Last {
			t.Errorf("%s: the master is now %s in term %s, committed %d of %d", name, after.Role, after.Term, after.Commit, after.Last)
		}
		if !strings.Contains(w.log.String(), "message refused") {
			t.Errorf("%s: the log says nothing: %s", name, w.log.String())
		}
	}
	if w.w.Check.Err != nil {
		t.Error(w.w.Check.Err)
	}
}

// TestFramesAreCompared changes a MsgApp on its way: the follower takes none of them.
func TestFramesAreCompared(t *testing.T) {
	t.Parallel()
	w := newTrio(t, nil)
	w.elect(t)
	w.propose(t, "first")
	w.settle(w.w.Nodes)
	w.propose(t, "second")
	var env peer.Envelope
	for _, o := range w.net {
		if o.Envelope.To == 2 && len(o.Envelope.Frames) == 1 {
			env = o.Envelope
		}
	}
	if env.Msg == nil {
		t.Fatal("no MsgApp is on its way")
	}
	end := w.w.Node(2).Status().Last
	earlier, err := w.w.Node(1).Log.ReadFrame(end, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(m *pb.Message, e *pb.Entry) []commitlog.Frame{
		"no frame":      func(*pb.Message, *pb.Entry) []commitlog.Frame { return nil },
		"another frame": func(*pb.Message, *pb.Entry) []commitlog.Frame { return []commitlog.Frame{earlier} },
		"another reference": func(_ *pb.Message, e *pb.Entry) []commitlog.Frame {
			e.Data = bytes.Clone(e.Data)
			e.Data[len(e.Data)-1]++
			return env.Frames
		},
		"no data": func(_ *pb.Message, e *pb.Entry) []commitlog.Frame { e.Data = nil; return env.Frames },
		"another term": func(_ *pb.Message, e *pb.Entry) []commitlog.Frame {
			e.Term = new(e.GetTerm() - 1)
			return env.Frames
		},
		"a change of configuration": func(_ *pb.Message, e *pb.Entry) []commitlog.Frame {
			e.Type = pb.EntryConfChangeV2.Enum()
			return env.Frames
		},
	} {
		m, e := env.Msg, env.Msg.Entries[0]
		entry := &pb.Entry{Type: e.Type, Term: e.Term, Index: e.Index, Data: e.Data}
		bad := env
		bad.Msg = &pb.Message{Type: m.Type, From: m.From, To: m.To, Term: m.Term, LogTerm: m.LogTerm, Index: m.Index, Commit: m.Commit, Entries: []*pb.Entry{entry}}
		bad.Frames = change(bad.Msg, entry)
		w.w.Node(2).Deliver(bad)
		if s := w.w.Node(2).Status(); s.Last != end || s.Parked != "" {
			t.Errorf("%s: the follower goes to %d, parked %q", name, s.Last, s.Parked)
		}
	}
	w.w.Node(2).Deliver(env)
	if s := w.w.Node(2).Status(); s.Last != end+1 {
		t.Errorf("the message as it was sent is not taken: %+v", s)
	}
}

// TestSecondMessageOfATurn gives a follower two MsgApps before it takes a turn. The second one is compared with the frames of
// the first: what does not follow them is refused, the follower goes on, and takes the right frame when it comes.
func TestSecondMessageOfATurn(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(right func(commitlog.Tail, string) commitlog.Frame, start, after commitlog.Tail) commitlog.Frame{
		"another chain": func(right func(commitlog.Tail, string) commitlog.Frame, _, after commitlog.Tail) commitlog.Frame {
			after.Chain ^= 1
			return right(after, "second")
		},
		"another place": func(right func(commitlog.Tail, string) commitlog.Frame, _, after commitlog.Tail) commitlog.Frame {
			after.Offset += 8
			return right(after, "second")
		},
		"another first frame": func(right func(commitlog.Tail, string) commitlog.Frame, start, _ commitlog.Tail) commitlog.Frame {
			return right(start, "another")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTrio(t, nil)
			w.elect(t)
			master, n := w.w.Node(1), w.w.Node(2)
			start := n.Log.Tail()
			frame := func(after commitlog.Tail, body string) commitlog.Frame {
				b := master.Log.NewBuilder(after, start.Term, 1)
				place, _, ok := b.Reserve(1, 1, 0, len(body))
				if !ok {
					t.Fatal("the frame has no room")
				}
				copy(place, body)
				return b.Finish()
			}
			message := func(f commitlog.Frame) peer.Envelope {
				e := &pb.Entry{Type: pb.EntryNormal.Enum(), Term: new(uint64(f.Term())), Index: new(uint64(f.Index())), Data: commitlog.EncodeRef(f.Ref())}
				return peer.Envelope{Group: w.w.Group, From: 1, To: 2, Epoch: 1, Frames: []commitlog.Frame{f},
					Msg: &pb.Message{Type: pb.MsgApp.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: e.Term, LogTerm: e.Term,
						Index: new(e.GetIndex() - 1), Entries: []*pb.Entry{e}}}
			}
			first := frame(start, "first")
			after := start.After(first)
			n.Replica.Receive(message(first))
			n.Replica.Receive(message(change(frame, start, after)))
			n.Turn()
			settle := func() {
				t.Helper()
				if err := n.Write(); err != nil {
					t.Fatal(err)
				}
				for n.Complete() {
				}
			}
			settle()
			if s := n.Status(); s.Last != after.Index || s.Parked != "" || n.Log.Tail().Chain != first.Chain() {
				t.Fatalf("the follower goes to %d of %d, parked %q", s.Last, after.Index, s.Parked)
			}
			if !strings.Contains(w.log.String(), "message refused") {
				t.Errorf("the log says nothing: %s", w.log.String())
			}
			n.Deliver(message(frame(after, "second")))
			settle()
			if s := n.Status(); s.Last != after.Index+1 || s.Synced != after.Index+1 || s.Parked != "" {
				t.Fatalf("the right frame is not taken: %+v", s)
			}
		})
	}
}

// TestMessagesAreBounded lets a follower miss many frames. Each message to it has at most Limits.Message bytes of frames, or one
// frame, and no more than Limits.Inflight are on their way.
func TestMessagesAreBounded(t *testing.T) {
	t.Parallel()
	const perMessage, inflight = 5_000, 12_000
	w := newTrio(t, func(c *raftlog.Config) {
		c.Limits.Message, c.Limits.Inflight, c.Limits.Window = perMessage, inflight, 1
	})
	w.elect(t)
	w.w.Node(3).Kill()
	w.settle(w.w.Nodes)
	for i := range 60 {
		w.propose(t, strings.Repeat("x", 100+i*40))
		w.settle(w.w.Nodes)
	}
	w.propose(t, strings.Repeat("y", 9_000)) // more than one message may have
	w.settle(w.w.Nodes)
	if err := w.w.Node(3).Open(nil); err != nil {
		t.Fatal(err)
	}
	open, messages, large := 0, 0, 0
	w.w.Sent = func(from *sim.Node, o raftlog.Outgoing) {
		size := 0
		for _, f := range o.Envelope.Frames {
			size += len(f)
		}
		if o.Envelope.To == 3 && size > 0 {
			messages++
			if size > perMessage && len(o.Envelope.Frames) > 1 {
				t.Errorf("a message has %d frames of %d bytes", len(o.Envelope.Frames), size)
			}
			if len(o.Envelope.Frames) > 1 {
				large++
			}
			if open += size; open > inflight && open != size {
				t.Errorf("%d bytes are on their way", open)
			}
		}
		w.net = append(w.net, o)
	}
	for range 500 {
		w.w.Node(1).Tick()
		for len(w.net) > 0 {
			o := w.net[0]
			w.net = w.net[1:]
			for _, f := range o.Envelope.Frames {
				if o.Envelope.To == 3 {
					open -= len(f)
				}
			}
			n := w.w.Node(o.Envelope.To)
			n.Deliver(o.Envelope)
			n.Write()
			for n.Complete() {
			}
		}
		if w.w.Node(3).Status().Applied == w.w.Node(1).Status().Applied {
			break
		}
	}
	if a, b := w.w.Node(3).Status().Applied, w.w.Node(1).Status().Applied; a != b {
		t.Errorf("the follower has applied %d of %d", a, b)
	}
	if messages < 5 || large == 0 {
		t.Errorf("%d messages, %d of them with several frames", messages, large)
	}
}

// TestLostTailParks gives a follower a new disk under its old identity: the master counts on entries that it does not have.
func TestLostTailParks(t *testing.T) {
	t.Parallel()
	w := newTrio(t, nil)
	w.elect(t)
	w.propose(t, "a")
	w.settle(w.w.Nodes)
	fresh := sim.NewWorld()
	empty, err := fresh.AddNode(3)
	if err != nil {
		t.Fatal(err)
	}
	n := w.w.Node(3)
	n.Kill()
	n.Disk = empty.Disk
	n.PowerAfter(0) // marks that it may park
	rec := w.records[10]
	if err := n.Open(&rec); err != nil {
		t.Fatal(err)
	}
	w.settle(w.w.Nodes)
	w.w.Node(1).Tick()
	w.settle(w.w.Nodes)
	if s := n.Status(); s.Role != raftlog.RoleParked || !strings.Contains(s.Parked, "a lost tail") {
		t.Errorf("%+v", s)
	}
	if w.w.Check.Err != nil {
		t.Error(w.w.Check.Err)
	}
}

// TestLostIdentity opens logs that are not what the caller, or the epoch record, says.
func TestLostIdentity(t *testing.T) {
	t.Parallel()
	w := newTrio(t, nil)
	n := w.w.Node(3)
	n.Kill()
	rec := w.records[10]
	var identity *raftlog.IdentityError
	w.w.Config = func(c *raftlog.Config) { c.Replica = 7 }
	if err := n.Open(&rec); !errors.As(err, &identity) {
		t.Errorf("another replica id: %v", err)
	}
	n.Kill()
	w.w.Config = func(c *raftlog.Config) { c.Incarnation[15] = 1 }
	if err := n.Open(&rec); !errors.As(err, &identity) {
		t.Errorf("another incarnation: %v", err)
	}
	n.Kill()
	w.w.Config = func(c *raftlog.Config) { c.Group = ids.GroupID{9}; c.Record = nil }
	if err := n.Open(nil); !errors.As(err, &identity) {
		t.Errorf("another group: %v", err)
	}
	n.Kill()
	w.w.Config = nil
	next := w.w.Record(2, 2, 1, []ids.ReplicaID{1, 2, 3}, nil)
	next.Voters[2].Incarnation[15] = 9
	if err := n.Open(&next); err != nil {
		t.Fatal(err)
	}
	w.settle(w.w.Nodes)
	if s := n.Status(); s.Role != raftlog.RoleParked || !strings.Contains(s.Parked, "a lost identity") {
		t.Errorf("a record with another incarnation: %+v", s)
	}
	n.Kill()
	w.w.Config = func(c *raftlog.Config) { c.Applied = 50 }
	n.PowerAfter(0)
	if err := n.Open(nil); err != nil {
		t.Fatal(err)
	}
	if s := n.Status(); s.Role != raftlog.RoleParked || !strings.Contains(s.Parked, "a lost tail") {
		t.Errorf("a log below what is applied: %+v", s)
	}
}

func TestConfigReportsAllFaults(t *testing.T) {
	t.Parallel()
	_, err := raftlog.OpenReplica(raftlog.Config{HeartbeatTick: 5, ElectionTick: 5, MaxInflightFrames: 100, Limits: raftlog.Limits{Window: -1}})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"Group", "Replica", "Log", "SM", "Send", "ElectionTick", "MaxInflightFrames", "Limits.Window"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named: %v", want, err)
		}
	}
}

// TestRefusedOffers changes an offer on its way to a follower that is behind the front: none is taken, and the log tells why; one of an
// earlier term, or a later one that the follower has not heard of, is left without a word.
func TestRefusedOffers(t *testing.T) {
	t.Parallel()
	w := newTrio(t, nil)
	w.elect(t)
	w.w.Node(3).Kill()
	for i := range 30 {
		w.propose(t, fmt.Sprint(i, strings.Repeat("x", 9000)))
		w.settle(w.w.Nodes[:2])
	}
	w.w.Node(1).Machine.TakeSnapshot()
	if did, err := w.w.Node(1).CutFront(); !did || err != nil {
		t.Fatal(did, err)
	}
	n := w.w.Node(3)
	if err := n.Open(nil); err != nil {
		t.Fatal(err)
	}
	var offer peer.Envelope
	w.w.Sent = func(_ *sim.Node, o raftlog.Outgoing) {
		if o.Envelope.Msg.GetType() == pb.MsgSnap {
			offer = o.Envelope
			return
		}
		w.net = append(w.net, o)
	}
	for round := 0; offer.Msg == nil; round++ {
		if round == 20 {
			t.Fatal("nothing is offered")
		}
		w.w.Node(1).Tick()
		w.settle(w.w.Nodes)
	}
	good := offer.Msg
	for name, change := range map[string]func(e *peer.Envelope, m *pb.Message){
		"no configuration":     func(e *peer.Envelope, _ *pb.Message) { e.Record = nil },
		"an unknown version":   func(_ *peer.Envelope, m *pb.Message) { m.Context[0]++ },
		"cut off":              func(_ *peer.Envelope, m *pb.Message) { m.Context = m.Context[:len(m.Context)-1] },
		"no front":             func(_ *peer.Envelope, m *pb.Message) { clear(m.Context[8:16]) },
		"a front in a segment": func(_ *peer.Envelope, m *pb.Message) { m.Context[15] |= 8 },
		"a state before it":    func(_ *peer.Envelope, m *pb.Message) { clear(m.Context[40:48]) },
		"a later term":         func(_ *peer.Envelope, m *pb.Message) { m.LogTerm = new(m.GetTerm() + 1) },
		"of an old master":     func(_ *peer.Envelope, m *pb.Message) { m.Term = new(m.GetTerm() - 1) },
		"of a coming master":   func(_ *peer.Envelope, m *pb.Message) { m.Term = new(m.GetTerm() + 1) },
	} {
		env := offer
		env.Msg = &pb.Message{Type: good.Type, From: good.From, To: good.To, Term: good.Term, LogTerm: good.LogTerm, Index: good.Index, Context: bytes.Clone(good.Context)}
		change(&env, env.Msg)
		w.w.Node(1).Tick() // or the follower misses its master
		n.Tick()
		w.settle(w.w.Nodes)
		w.log.Reset()
		n.Deliver(env)
		if n.Offer != nil {
			t.Fatalf("%s: taken as %+v", name, *n.Offer)
		}
		if s := n.Status(); s.Parked != "" || s.Master != 1 {
			t.Fatalf("%s: %+v", name, s)
		}
		if told := strings.Contains(w.log.String(), "message refused"); told == strings.HasPrefix(name, "of ") {
			t.Errorf("%s: the log says %q", name, w.log.String())
		}
	}
	n.Deliver(offer)
	if n.Offer == nil || n.Offer.From != 1 || n.Offer.Node != "n1" || n.Offer.Front != w.w.Node(1).Log.Front() {
		t.Fatalf("the offer as it was sent is not taken: %+v", n.Offer)
	}
	o := *n.Offer
	n.Offer = nil
	offer.Record = append(bytes.Clone(offer.Record), 1)
	if n.Deliver(offer); n.Offer != nil {
		t.Error("taken under another configuration")
	}
	if err := o.Stands(n.Log); err != nil {
		t.Error(err)
	}
	if err := o.Stands(w.w.Node(2).Log); err == nil {
		t.Error("it stands against a log that has what is before its front")
	}
	if err := o.Stands(w.w.Node(1).Log); err == nil {
		t.Error("it stands against the log that it came from")
	}
	o.Term++
	if err := o.Stands(n.Log); err == nil {
		t.Error("it stands against a log that may take what an older master says")
	}
}
