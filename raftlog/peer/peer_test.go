package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	testCluster = ids.ClusterID(bytes.Repeat([]byte{0xc1}, 16))
	testSecret  = []byte("a secret of the tests")
	testGroup   = ids.GroupID(bytes.Repeat([]byte{0x91}, 16))
)

// patience is how long a test waits for what must happen. It is only used up by a failure.
const patience = 20 * time.Second

// waitFor polls until ok, or fails the test.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("gave up after %v waiting for: %s", patience, what)
		}
	}
}

// lines collects a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// count returns how many lines contain all of parts.
func (l *lines) count(parts ...string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
next:
	for line := range strings.Lines(l.text.String()) {
		for _, p := range parts {
			if !strings.Contains(line, p) {
				continue next
			}
		}
		n++
	}
	return n
}

// node is a transport with what it received.
type node struct {
	*Transport
	id   ids.NodeID
	addr string
	log  lines

	mu     sync.Mutex
	got    map[ids.NodeID][]Envelope
	calls  int // of receive: each packet is one
	closed map[ids.NodeID]int
}

// newNode starts a transport on an address of its own. change may adjust its options.
func newNode(t testing.TB, id ids.NodeID, change func(*Options)) *node {
	t.Helper()
	l := listen(t)
	n := &node{id: id, addr: l.Addr().String(), got: make(map[ids.NodeID][]Envelope), closed: make(map[ids.NodeID]int)}
	o := Options{
		Cluster: testCluster, Node: id, Secret: testSecret, Listener: l, Log: zerolog.New(&n.log),
		Receive: n.receive,
		Closed: func(node ids.NodeID) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.closed[node]++
		},
	}
	if change != nil {
		change(&o)
	}
	var err error
	if n.Transport, err = New(o); err != nil {
		t.Fatal(err)
	}
	n.Start()
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func (n *node) receive(from ids.NodeID, envs []Envelope) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.got[from] = append(n.got[from], envs...)
	n.calls++
}

func (n *node) received(from ids.NodeID) []Envelope {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.got[from][:len(n.got[from]):len(n.got[from])]
}

func (n *node) count(from ids.NodeID) int { return len(n.received(from)) }

// packets counts the packets with envelopes that came, from whomever.
func (n *node) packets() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls
}

// Connected tells whether both connections to a peer are up.
func (n *node) Connected(peer ids.NodeID) bool { return n.Stats().Peers[peer].Connected }

// queuedBytes is what waits to be sent to a peer.
func (n *node) queuedBytes(peer ids.NodeID) (sum int) {
	for _, p := range (*n.peers.Load())[peer].pipes() {
		p.mu.Lock()
		sum += p.queued
		p.mu.Unlock()
	}
	return sum
}

// silentSince is when the incoming connection that has been silent for longest was last heard; it is zero without both of a peer's.
func (n *node) silentSince() time.Time {
	n.Transport.mu.Lock()
	defer n.Transport.mu.Unlock()
	var first time.Time
	for _, in := range n.inbound {
		if at := time.Unix(0, in.heard.Load()); first.IsZero() || at.Before(first) {
			first = at
		}
	}
	if len(n.inbound) < 2 {
		return time.Time{}
	}
	return first
}

func (n *node) closedCount(from ids.NodeID) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.closed[from]
}

// connect makes all nodes know each other and waits until they are connected.
func connect(t testing.TB, nodes ...*node) {
	t.Helper()
	for _, a := range nodes {
		for _, b := range nodes {
			if a != b {
				a.SetPeer(b.id, b.addr)
			}
		}
	}
	for _, a := range nodes {
		for _, b := range nodes {
			if a != b {
				waitFor(t, fmt.Sprintf("%s connected to %s", a.id, b.id), func() bool { return a.Connected(b.id) })
			}
		}
	}
}

var pattern = bytes.Repeat([]byte("what a frame carries in these tests "), 100)

// testFrame makes a valid frame with one record of n bytes, as docs/format/commitlog.md draws it.
func testFrame(index ids.Index, n int) commitlog.Frame {
	be := binary.BigEndian
	size := 64 + 8 + (n+7)/8*8
	f := make([]byte, size)
	copy(f, "LMQF")
	f[4] = 1
	be.PutUint16(f[6:], 64)
	be.PutUint32(f[8:], uint32(size))
	be.PutUint32(f[12:], 1)
	be.PutUint64(f[16:], uint64(ids.MakeTerm(1, 1)))
	be.PutUint64(f[24:], uint64(index))
	be.PutUint64(f[32:], 4096)
	be.PutUint64(f[40:], 1_700_000_000_000)
	be.PutUint32(f[48:], 0xfeedbeef)
	f[64], f[65] = 1, 1
	be.PutUint32(f[68:], uint32(n))
	for i := 0; i < n; {
		i += copy(f[72+i:72+n], pattern)
	}
	if n > 0 {
		f[72] = byte(index)
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	be.PutUint32(f[60:], crc32.Update(crc32.Update(0xfeedbeef, table, f[:60]), table, f[64:]))
	return f
}

// appendOf is a MsgApp with one entry and one frame of n payload bytes. Its commit field carries number.
func appendOf(from, to ids.ReplicaID, number uint64, n int) Envelope {
	f := testFrame(ids.Index(number+1), n)
	return Envelope{
		Group: testGroup, From: from, To: to, Epoch: 1, Frames: []commitlog.Frame{f},
		Msg: &raftpb.Message{
			Type: raftpb.MsgApp.Enum(), From: proto.Uint64(uint64(from)), To: proto.Uint64(uint64(to)), Term: proto.Uint64(1<<32 | 1),
			LogTerm: proto.Uint64(1<<32 | 1), Index: proto.Uint64(number), Commit: proto.Uint64(number),
			Entries: []*raftpb.Entry{{Term: proto.Uint64(1<<32 | 1), Index: proto.Uint64(number + 1), Data: commitlog.EncodeRef(f.Ref())}},
		},
	}
}

// part is the answer with n bytes at 500 of a snapshot that ends behind them; without bytes it is a request.
func part(from, to ids.ReplicaID, n int) Envelope {
	e := Envelope{Group: testGroup, From: from, To: to, Epoch: 2, Part: &Part{Index: 77, Size: 500 + int64(n), At: 500, Hash: [32]byte{1, 2, 3, 31: 9}}}
	if n > 0 {
		e.Frames = []commitlog.Frame{bytes.Repeat([]byte{0x5a}, n)}
	}
	return e
}

// logPart is a piece of the log; newest asks for a snapshot.
func logPart(from, to ids.ReplicaID, n int) Envelope {
	e := part(from, to, n)
	e.Part.Kind, e.Part.Hash = PartOfLog, [32]byte{}
	return e
}

func newest(from, to ids.ReplicaID) Envelope {
	return Envelope{Group: testGroup, From: from, To: to, Epoch: 2, Part: &Part{Kind: PartOfNewest, Index: 77}}
}

// snapshotOf is an offer of a snapshot.
func snapshotOf(from, to ids.ReplicaID) Envelope {
	return Envelope{Group: testGroup, From: from, To: to, Epoch: 2, Record: []byte("a record"), Msg: &raftpb.Message{Type: raftpb.MsgSnap.Enum(),
		From: proto.Uint64(uint64(from)), To: proto.Uint64(uint64(to)), Term: proto.Uint64(2<<32 | 1), LogTerm: proto.Uint64(1 << 32),
		Index: proto.Uint64(7), Context: bytes.Repeat([]byte{7}, 96)}}
}

// heartbeat carries number in its commit field.
func heartbeat(from, to ids.ReplicaID, number uint64) Envelope {
	return Envelope{Group: testGroup, From: from, To: to, Epoch: 1, Msg: &raftpb.Message{
		Type: raftpb.MsgHeartbeat.Enum(), From: proto.Uint64(uint64(from)), To: proto.Uint64(uint64(to)),
		Term: proto.Uint64(1<<32 | 1), Commit: proto.Uint64(number), Context: []byte{1, 2, 3, 4, 5, 6, 7, 8},
	}}
}

// sameEnvelope compares what the wire carries.
func sameEnvelope(t testing.TB, got, want Envelope) {
	t.Helper()
	if got.Group != want.Group || got.From != want.From || got.To != want.To || got.Epoch != want.Epoch ||
		!bytes.Equal(got.Record, want.Record) || len(got.Frames) != len(want.Frames) || (got.Msg == nil) != (want.Msg == nil) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
	if (got.Part == nil) != (want.Part == nil) || got.Part != nil && *got.Part != *want.Part {
		t.Fatalf("got  %+v\nwant %+v", got.Part, want.Part)
	}
	for i, f := range want.Frames {
		if !bytes.Equal(got.Frames[i], f) {
			t.Fatalf("frame %d differs", i)
		}
	}
	g, w := got.Msg, want.Msg
	if w == nil {
		return
	}
	if g.GetType() != w.GetType() || g.GetFrom() != w.GetFrom() || g.GetTo() != w.GetTo() || g.GetTerm() != w.GetTerm() ||
		g.GetLogTerm() != w.GetLogTerm() || g.GetIndex() != w.GetIndex() || g.GetCommit() != w.GetCommit() || g.GetVote() != w.GetVote() ||
		g.GetReject() != w.GetReject() || g.GetRejectHint() != w.GetRejectHint() || !bytes.Equal(g.Context, w.Context) ||
		g.Snapshot != nil || len(g.Responses) != 0 || len(g.Entries) != len(w.Entries) {
		t.Fatalf("got  %v\nwant %v", g, w)
	}
	for i, x := range w.Entries {
		y := g.Entries[i]
		if x.GetTerm() != y.GetTerm() || x.GetIndex() != y.GetIndex() || x.GetType() != y.GetType() || !bytes.Equal(x.Data, y.Data) {
			t.Fatalf("entry %d: got %v, want %v", i, y, x)
		}
	}
}

// rawPeer is a connection that has shaken hands as node from: the test then writes what it likes.
func rawPeer(t testing.TB, to *node, from ids.NodeID, c channel) net.Conn {
	t.Helper()
	conn := dialRaw(t, to.addr)
	h := hello{channel: c, cluster: testCluster, from: from, to: to.id, process: [16]byte{1, 2, 3}}
	if _, err := shakeDialer(conn, testSecret, h); err != nil {
		t.Fatal(err)
	}
	return conn
}

func dialRaw(t testing.TB, addr string) net.Conn {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(context.Background(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// packetOf is the whole packet with envs, frames included.
func packetOf(envs ...Envelope) []byte {
	b := appendBatch(nil, envs)
	for _, e := range envs {
		for _, f := range e.Frames {
			b = append(b, f...)
		}
	}
	return b
}

// cutOff waits until the other side has closed conn.
func cutOff(t testing.TB, conn net.Conn) {
	t.Helper()
	var b [1024]byte
	for {
		if _, err := conn.Read(b[:]); err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				t.Fatal("the connection is still open")
			}
			return
		}
	}
}
