package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/ledgermq/ledgermq/internal/ids"
)

func TestWrongSecret(t *testing.T) {
	t.Parallel()
	a := newNode(t, "n1", nil)
	b := newNode(t, "n2", func(o *Options) { o.Secret = []byte("another") })
	c := newNode(t, "n3", nil)
	connect(t, a, c)
	a.SetPeer("n2", b.addr)
	b.SetPeer("n1", a.addr)
	for _, n := range []*node{a, b} {
		waitFor(t, "a refusal at "+string(n.id), func() bool { return n.Stats().Refused > 0 })
		waitFor(t, "a line of the acceptor", func() bool {
			return n.log.count(`"level":"error"`, "was refused", "the cluster secrets differ", `"addr":"127.0.0.1:`) > 0
		})
		waitFor(t, "a line of the dialer", func() bool {
			return n.log.count(`"level":"error"`, "a peer cannot be used", "the cluster secrets differ") > 0
		})
	}
	a.Send("n2", []Envelope{heartbeat(1, 2, 1)})
	a.Send("n3", []Envelope{heartbeat(1, 3, 1)})
	waitFor(t, "n3 hears n1", func() bool { return c.count("n1") == 1 })
	if a.Connected("n2") || b.Connected("n1") || a.count("n2")+b.count("n1") > 0 {
		t.Fatal("nodes with different secrets talk to each other")
	}
}

// TestRefusalsAreRateLimited: a node with a wrong secret that tries for ever does not fill the disk with lines.
func TestRefusalsAreRateLimited(t *testing.T) {
	t.Parallel()
	a := newNode(t, "n1", nil)
	begin := time.Now()
	for range 200 {
		conn := dialRaw(t, a.addr)
		_, err := shakeDialer(conn, []byte("wrong"), hello{channel: control, cluster: testCluster, from: "n2", to: "n1"})
		var refused *RefusedError
		if !errors.As(err, &refused) {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
	waitFor(t, "all are counted", func() bool { return a.Stats().Refused == 200 })
	if n, most := a.log.count("was refused"), int(time.Since(begin)/logEvery)+1; n < 1 || n > most {
		t.Fatalf("%d lines, want 1 to %d", n, most)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	good := hello{channel: control, cluster: testCluster, from: "n2", to: "n1"}
	with := func(change func(*hello)) hello { h := good; change(&h); return h }
	for name, c := range map[string]struct {
		h     hello
		allow func(ids.NodeID) bool
		want  status
	}{
		"another cluster": {h: with(func(h *hello) { h.cluster[0]++ }), want: statusCluster},
		"another node":    {h: with(func(h *hello) { h.to = "n7" }), want: statusNode},
		"my own id":       {h: with(func(h *hello) { h.from = "n1" }), want: statusTwice},
		"an unknown node": {h: good, allow: func(n ids.NodeID) bool { return n == "n3" }, want: statusAllowed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newNode(t, "n1", func(o *Options) { o.Allow = c.allow })
			conn := dialRaw(t, a.addr)
			_, err := shakeDialer(conn, testSecret, c.h)
			var refused *RefusedError
			if !errors.As(err, &refused) || refused.Reason != c.want.reason() {
				t.Fatalf("%v, want the reason %q", err, c.want.reason())
			}
			cutOff(t, conn)
			waitFor(t, "a line about it", func() bool { return a.log.count(`"level":"error"`, strings.Split(c.want.reason(), ":")[0]) == 1 })
		})
	}
}

func TestOtherVersion(t *testing.T) {
	t.Parallel()
	a := newNode(t, "n1", nil)
	conn := dialRaw(t, a.addr)
	b := hello{channel: control, cluster: testCluster, from: "n2", to: "n1"}.encode()
	b[4] = handshakeVersion + 1
	if _, err := conn.Write(b[:]); err != nil {
		t.Fatal(err)
	}
	var reply [replySize]byte
	var refused *RefusedError
	if err := readReply(conn, "n1", &reply); !errors.As(err, &refused) || refused.Reason != statusVersion.reason() {
		t.Fatal(err)
	}
	cutOff(t, conn)
}

// TestImpostorAcceptor: who does not know the secret cannot play the acceptor either; the dialer sends it nothing.
func TestImpostorAcceptor(t *testing.T) {
	t.Parallel()
	l := listen(t)
	a := newNode(t, "n1", nil)
	got := make(chan error, 1)
	go func() {
		got <- func() error {
			conn, err := l.Accept()
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			challenge := encodeReply(statusOK, allFeatures, bytes.Repeat([]byte{1}, nonceSize))
			var h [helloSize]byte
			var p [proofSize]byte
			if _, err := io.ReadFull(conn, h[:]); err != nil {
				return err
			}
			if _, err := conn.Write(challenge[:]); err != nil {
				return err
			}
			if _, err := io.ReadFull(conn, p[:]); err != nil {
				return err
			}
			accept := encodeReply(statusOK, 0, p[:]) // the dialer's own proof, sent back
			if _, err := conn.Write(accept[:]); err != nil {
				return err
			}
			if b, err := io.ReadAll(conn); err != nil || len(b) > 0 {
				return errors.New("the dialer went on")
			}
			return nil
		}()
	}()
	a.SetPeer("n2", l.Addr().String())
	a.Send("n2", []Envelope{heartbeat(1, 2, 1)})
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	waitFor(t, "a line about it", func() bool { return a.log.count(`"level":"error"`, "the cluster secrets differ") > 0 })
	if a.Stats().Peers["n2"].Connects != 0 {
		t.Fatal("the impostor was taken for a peer")
	}
}

// TestReplay records a whole good connection, handshake and messages, and plays it again.
func TestReplay(t *testing.T) {
	t.Parallel()
	victim := newNode(t, "n2", nil)
	var mu sync.Mutex
	var recorded []*recorder
	a := newNode(t, "n1", func(o *Options) {
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			conn, err := d.DialContext(ctx, "tcp", addr)
			if err != nil {
				return nil, err
			}
			r := &recorder{Conn: conn}
			mu.Lock()
			recorded = append(recorded, r)
			mu.Unlock()
			return r, nil
		}
	})
	a.SetPeer("n2", victim.addr)
	waitFor(t, "connected", func() bool { return a.Connected("n2") })
	a.Send("n2", []Envelope{heartbeat(1, 2, 1), appendOf(1, 2, 2, 100)})
	waitFor(t, "the messages", func() bool { return victim.count("n1") == 2 })
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the victim noticed the end", func() bool { return victim.closedCount("n1") == 2 })
	for _, r := range recorded {
		r.mu.Lock()
		tape := bytes.Clone(r.tape.Bytes())
		r.mu.Unlock()
		before := victim.Stats().Refused
		conn := dialRaw(t, victim.addr)
		if _, err := conn.Write(tape); err != nil {
			t.Fatal(err)
		}
		cutOff(t, conn)
		waitFor(t, "it is refused", func() bool { return victim.Stats().Refused == before+1 })
	}
	if len(recorded) != 2 || victim.count("n1") != 2 {
		t.Fatalf("%d recordings, %d messages received", len(recorded), victim.count("n1"))
	}
}

// recorder keeps what is written. It hides the socket, so that the portable way of writing is used and tested.
type recorder struct {
	net.Conn
	mu   sync.Mutex
	tape bytes.Buffer
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	r.tape.Write(p)
	r.mu.Unlock()
	return r.Conn.Write(p)
}

// TestSameNodeTwice: of two processes with one node id the first is heard, the second is told why not, until the first is gone.
func TestSameNodeTwice(t *testing.T) {
	t.Parallel()
	a := newNode(t, "n1", nil)
	first, second := newNode(t, "n2", nil), newNode(t, "n2", nil)
	first.SetPeer("n1", a.addr)
	waitFor(t, "the first is connected", func() bool { return first.Connected("n1") })
	second.SetPeer("n1", a.addr)
	waitFor(t, "both sides say why the second is refused", func() bool {
		return second.log.count(`"level":"error"`, "another process with this node id") > 0 && a.log.count(`"level":"error"`, "another process with this node id") > 0
	})
	second.Send("n1", []Envelope{heartbeat(2, 1, 666)})
	first.Send("n1", []Envelope{heartbeat(2, 1, 1)})
	waitFor(t, "the first is heard", func() bool { return a.count("n2") == 1 })
	if !first.Connected("n1") || second.Connected("n1") || a.received("n2")[0].Msg.GetCommit() != 1 {
		t.Fatal("the second process took over")
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the second gets in when the first is gone", func() bool { return second.Connected("n1") })
}

// TestSilentFirstProcess: after a power cut nobody closes the old connection. The node that is back waits for a while only.
func TestSilentFirstProcess(t *testing.T) {
	t.Parallel()
	a := newNode(t, "n1", func(o *Options) { o.PingEvery, o.DeadAfter = 25*time.Millisecond, time.Minute })
	old := rawPeer(t, a, "n2", control) // never pings
	back := newNode(t, "n2", func(o *Options) { o.PingEvery = 25 * time.Millisecond })
	back.SetPeer("n1", a.addr)
	waitFor(t, "the node is in again", func() bool { return back.Connected("n1") })
	cutOff(t, old)
}

// TestReconnectReplaces: the same process that connects again takes the place of its own older connection at once.
func TestReconnectReplaces(t *testing.T) {
	t.Parallel()
	a := newNode(t, "n1", nil)
	old := rawPeer(t, a, "n2", bulk)
	next := rawPeer(t, a, "n2", bulk)
	cutOff(t, old)
	if _, err := next.Write(packetOf(appendOf(2, 1, 1, 10))); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the new one is heard", func() bool { return a.count("n2") == 1 })
	if a.closedCount("n2") != 0 {
		t.Fatal("Closed was called for a replaced connection")
	}
}

// TestBadBytes: everything that is no valid handshake or packet closes that connection, says so once, delivers nothing of it, and
// a good connection beside it does not notice.
func TestBadBytes(t *testing.T) {
	t.Parallel()
	a, good := newNode(t, "n1", nil), newNode(t, "n3", nil)
	connect(t, a, good)
	packet := packetOf(heartbeat(2, 1, 5), appendOf(2, 1, 6, 200))
	be := binary.BigEndian
	patched := func(fix bool, change func(b []byte) []byte) []byte {
		b := change(bytes.Clone(packet))
		if head := headerSize + int(be.Uint32(b[8:])); fix && len(b) >= headerSize {
			be.PutUint32(b[headerCRC:], packetCRC(b[:min(head, len(b))]))
		}
		return b
	}
	firstEnvelope, firstFrame := headerSize, len(packet)-(64+8+200)
	secondEnvelope := firstEnvelope + envelopeFixed + 8
	partOf := func(change func(b []byte)) []byte {
		b := packetOf(part(2, 1, 300))
		change(b)
		return b
	}
	broken := map[string][]byte{
		"noise":                 bytes.Repeat([]byte{0xa5, 0x17}, 400),
		"zeros":                 make([]byte, 400),
		"an HTTP request":       []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n" + strings.Repeat(" ", 400)),
		"wrong checksum":        patched(false, func(b []byte) []byte { b[headerSize+50] ^= 1; return b }),
		"a bit in a frame":      patched(false, func(b []byte) []byte { b[firstFrame+100] ^= 1; return b }),
		"a frame with no magic": patched(false, func(b []byte) []byte { b[firstFrame] = 'X'; return b }),
		"kind":                  patched(true, func(b []byte) []byte { b[4] = 9; return b }),
		"reserved":              patched(true, func(b []byte) []byte { b[5] = 1; return b }),
		"a pong":                appendControl(nil, kindPong),
		"a ping with content":   patched(true, func(b []byte) []byte { b[4] = kindPing; return b }),
		"a ping with a wrong checksum": func() []byte {
			b := appendControl(nil, kindPing)
			b[23]++
			return b
		}(),
		"no envelopes":          patched(true, func(b []byte) []byte { be.PutUint16(b[6:], 0); return b }),
		"too many envelopes":    patched(true, func(b []byte) []byte { be.PutUint16(b[6:], 65535); return b }),
		"one envelope too few":  patched(true, func(b []byte) []byte { be.PutUint16(b[6:], 1); return b }),
		"one envelope too many": patched(true, func(b []byte) []byte { be.PutUint16(b[6:], 3); return b }),
		"a huge head":           patched(true, func(b []byte) []byte { be.PutUint32(b[8:], 1<<31); return b }),
		"huge frames":           patched(true, func(b []byte) []byte { be.PutUint32(b[12:], 1<<32-1); return b }),
		"fewer frame bytes":     patched(true, func(b []byte) []byte { be.PutUint32(b[12:], 8); return b }),
		"a local message":       patched(true, func(b []byte) []byte { b[firstEnvelope+36] = byte(raftpb.MsgHup); return b }),
		"a proposal":            patched(true, func(b []byte) []byte { b[firstEnvelope+36] = byte(raftpb.MsgProp); return b }),
		"a leader transfer":     patched(true, func(b []byte) []byte { b[firstEnvelope+36] = byte(raftpb.MsgTransferLeader); return b }),
		"entries in a snapshot": patched(true, func(b []byte) []byte { b[secondEnvelope+36] = byte(raftpb.MsgSnap); return b }),
		"a part and a message":  patched(true, func(b []byte) []byte { b[firstEnvelope+37] |= flagPart; return b }),
		"a part without a hash": patched(true, func(b []byte) []byte { b[firstEnvelope+36], b[firstEnvelope+37] = 0, flagPart; return b }),
		"a bit in a part":       partOf(func(b []byte) { b[len(b)-1] ^= 1 }),
		"a part of nothing":     partOf(func(b []byte) { be.PutUint64(b[firstEnvelope+48:], 0); sealPacket(b[:len(b)-300]) }),
		"a part behind the end": partOf(func(b []byte) { be.PutUint64(b[firstEnvelope+64:], 800); sealPacket(b[:len(b)-300]) }),
		"a part of a message":   partOf(func(b []byte) { b[firstEnvelope+90] = 1; sealPacket(b[:len(b)-300]) }),
		"a part of what is not": partOf(func(b []byte) { b[firstEnvelope+76] = byte(partKinds); sealPacket(b[:len(b)-300]) }),
		"bytes in a question":   partOf(func(b []byte) { b[firstEnvelope+76] = byte(PartOfNewest); sealPacket(b[:len(b)-300]) }),
		"a large part": func() []byte {
			e := part(1, 2, MaxPartBytes)
			e.Part.Size, e.Frames[0] = 1<<30, append(e.Frames[0], 1)
			return packetOf(e)
		}(),
		"an unknown type":       patched(true, func(b []byte) []byte { b[firstEnvelope+36] = 200; return b }),
		"unknown flags":         patched(true, func(b []byte) []byte { b[firstEnvelope+37] |= 0x80; return b }),
		"no message but fields": patched(true, func(b []byte) []byte { b[firstEnvelope+37] = 0; return b }),
		"frames that are not":   patched(true, func(b []byte) []byte { be.PutUint16(b[firstEnvelope+38:], 9); return b }),
		"entries that are not":  patched(true, func(b []byte) []byte { be.PutUint16(b[firstEnvelope+40:], 1000); return b }),
		"a record that is not":  patched(true, func(b []byte) []byte { be.PutUint16(b[firstEnvelope+42:], 2000); return b }),
		"a context that is not": patched(true, func(b []byte) []byte { be.PutUint16(b[firstEnvelope+44:], 1000); return b }),
	}
	for name, bad := range broken {
		t.Run(name, func(t *testing.T) {
			from := ids.NodeID("bad-" + strings.ReplaceAll(name, " ", "-"))
			// First instead of a handshake, then after a good one.
			conn := dialRaw(t, a.addr)
			refused := a.Stats().Refused
			if _, err := conn.Write(append(bytes.Clone(bad), make([]byte, helloSize)...)); err != nil {
				t.Fatal(err)
			}
			cutOff(t, conn)
			waitFor(t, "it is counted", func() bool { return a.Stats().Refused == refused+1 })
			conn = rawPeer(t, a, from, bulk)
			if _, err := conn.Write(bad); err != nil {
				t.Fatal(err)
			}
			cutOff(t, conn)
			waitFor(t, "Closed is called", func() bool { return a.closedCount(from) == 1 })
			if a.count(from) != 0 {
				t.Fatalf("received %+v", a.received(from))
			}
			good.Send("n1", []Envelope{heartbeat(3, 1, 1)})
		})
	}
	waitFor(t, "the good connection went on", func() bool { return a.count("n3") == len(broken) })
	if a.closedCount("n3") != 0 {
		t.Fatal("a good connection was closed")
	}
	if a.log.count(`"level":"error"`, "broke the protocol") == 0 {
		t.Fatal("no line about it")
	}
}

// TestCutOffAnywhere ends a good stream after each of its bytes: what was whole is received, the rest is not.
func TestCutOffAnywhere(t *testing.T) {
	t.Parallel()
	a := newNode(t, "n1", nil)
	first, second := packetOf(heartbeat(2, 1, 1)), packetOf(appendOf(2, 1, 2, 64))
	stream := append(bytes.Clone(first), second...)
	for n := 0; n < len(stream); n += 7 {
		from := ids.NodeID("half" + strings.Repeat("x", n/7))
		if len(from) > ids.MaxNodeID {
			from = ids.NodeID("h" + string(from[len(from)-ids.MaxNodeID+1:]))
		}
		before, closed := a.count(from), a.closedCount(from)
		conn := rawPeer(t, a, from, bulk)
		if _, err := conn.Write(stream[:n]); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		waitFor(t, "its end", func() bool { return a.closedCount(from) == closed+1 })
		want := 0
		if n >= len(first) {
			want = 1
		}
		if got := a.count(from) - before; got != want {
			t.Fatalf("cut after %d bytes: received %d envelopes, want %d", n, got, want)
		}
	}
}

// TestHalfHandshake: who says nothing, or half of something, is thrown out after HandshakeTimeout, and such guests are bounded.
func TestHalfHandshake(t *testing.T) {
	t.Parallel()
	a := newNode(t, "n1", func(o *Options) { o.HandshakeTimeout = 500 * time.Millisecond })
	b := newNode(t, "n2", nil)
	var conns []net.Conn
	for range maxShaking + 10 {
		conn := dialRaw(t, a.addr)
		if _, err := conn.Write([]byte(handshakeMagic)); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		cutOff(t, conn)
	}
	waitFor(t, "all are counted", func() bool { return a.Stats().Refused == maxShaking+10 })
	connect(t, a, b)
}

// TestPortScan: a connection that says nothing and goes is not worth a line.
func TestPortScan(t *testing.T) {
	t.Parallel()
	a := newNode(t, "n1", nil)
	for range 20 {
		_ = dialRaw(t, a.addr).Close()
	}
	waitFor(t, "all are through", func() bool {
		a.Transport.mu.Lock()
		defer a.Transport.mu.Unlock()
		return len(a.shaking) == 0
	})
	if n := a.log.count("refused"); n != 0 {
		t.Fatalf("%d lines", n)
	}
}
