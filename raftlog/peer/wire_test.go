package peer

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// goldenEnvelopes are what docs/format/peer.md shows: a vote with the epoch record attached, and an append with one frame.
func goldenEnvelopes() []Envelope {
	vote := Envelope{Group: testGroup, From: 101, To: 102, Epoch: 7, Record: []byte("the record"), Msg: &raftpb.Message{
		Type: raftpb.MsgVote.Enum(), From: proto.Uint64(101), To: proto.Uint64(102), Term: proto.Uint64(7<<32 | 2),
		LogTerm: proto.Uint64(7<<32 | 1), Index: proto.Uint64(1000), Context: []byte("CampaignTransfer"),
	}}
	app := appendOf(101, 103, 1000, 8)
	app.Epoch = 7
	app.Msg.Term, app.Msg.LogTerm = proto.Uint64(7<<32|2), proto.Uint64(7<<32|2)
	app.Msg.Commit = proto.Uint64(999)
	return []Envelope{vote, app}
}

// goldenFile returns the lines of a golden file, hexadecimal bytes, and the bytes; and checks that the page shows each line.
func goldenFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/format/peer.md")
	if err != nil {
		t.Fatal(err)
	}
	var data []byte
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		b, err := hex.DecodeString(strings.ReplaceAll(line, " ", ""))
		if err != nil {
			t.Fatalf("%s: line %q: %v", name, line, err)
		}
		data = append(data, b...)
		if !strings.Contains(string(page), line) {
			t.Errorf("docs/format/peer.md does not show the line %q of testdata/%s: copy it there", line, name)
		}
	}
	return data
}

func TestGoldenPacket(t *testing.T) {
	t.Parallel()
	want := goldenFile(t, "packet.hex")
	envs := goldenEnvelopes()
	if got := packetOf(envs...); !bytes.Equal(got, want) {
		t.Fatalf("the bytes of a packet changed.\ngot  %x\nwant %x\nA new layout needs a new handshake version.", got, want)
	}
	got, err := decodeAll(want)
	if err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
	for i := range got {
		sameEnvelope(t, got[i], envs[i])
	}
	if got := append(appendControl(nil, kindPing), appendControl(nil, kindPong)...); !bytes.Equal(got, goldenFile(t, "ping.hex")) {
		t.Fatalf("the bytes of ping and pong changed: %x", got)
	}
}

func TestGoldenHandshake(t *testing.T) {
	t.Parallel()
	want := goldenFile(t, "handshake.hex")
	h := hello{channel: bulk, cluster: testCluster, process: [16]byte(bytes.Repeat([]byte{0xaa}, 16)), from: "n1", to: "n2"}
	first := h.encode()
	copy(first[40:72], bytes.Repeat([]byte{0xd1}, nonceSize)) // in place of randomness
	challenge := encodeReply(statusOK, featureSnapshots, bytes.Repeat([]byte{0xd2}, nonceSize))
	dialer := proof([]byte("golden secret"), labelDialer, &first, &challenge)
	acceptor := proof([]byte("golden secret"), labelAcceptor, &first, &challenge)
	accept := encodeReply(statusOK, 0, acceptor[:])
	got := bytes.Join([][]byte{first[:], challenge[:], dialer[:], accept[:]}, nil)
	if !bytes.Equal(got, want) {
		t.Fatalf("the bytes of the handshake changed.\ngot  %x\nwant %x\nA new layout needs a new version.", got, want)
	}
	parsed, s, err := parseHello(&first)
	if err != nil || s != statusOK || parsed != h {
		t.Fatal(parsed, s, err)
	}
}

func TestNoncesAreFresh(t *testing.T) {
	t.Parallel()
	h := hello{channel: bulk, from: "n1", to: "n2"}
	if first, second := h.encode(), h.encode(); first == second {
		t.Fatal("two handshakes begin alike")
	}
}

// TestDecodedSharesNothing: nothing but frames may point into the buffer, which is used again.
func TestDecodedSharesNothing(t *testing.T) {
	t.Parallel()
	want := everything()
	p := packetOf(want...)
	rd := newReader(bytes.NewReader(p))
	h, err := rd.next()
	if err != nil {
		t.Fatal(err)
	}
	got, err := rd.batch(nil, h)
	if err != nil {
		t.Fatal(err)
	}
	for i := range rd.b {
		rd.b[i] = 0xee
	}
	for i := range want {
		sameEnvelope(t, got[i], want[i])
	}
	// Growing one slice must not write into its neighbour.
	for _, e := range got {
		if e.Msg != nil {
			e.Msg.Context = append(e.Msg.Context, 0xee)
			for _, x := range e.Msg.Entries {
				x.Data = append(x.Data, 0xee)
			}
			e.Msg.Entries = append(e.Msg.Entries, nil)
		}
		e.Record = append(e.Record, 0xee)
		for _, f := range e.Frames {
			_ = append(f, 0xee)
		}
		_ = append(e.Frames, nil)
	}
	for i, w := range want {
		g := got[i]
		if w.Msg != nil {
			g.Msg.Context = g.Msg.Context[:len(w.Msg.Context)]
			g.Msg.Entries = g.Msg.Entries[:len(w.Msg.Entries)]
			for j := range g.Msg.Entries {
				g.Msg.Entries[j].Data = g.Msg.Entries[j].Data[:len(w.Msg.Entries[j].Data)]
			}
		}
		sameEnvelope(t, g, w)
	}
}

// decodeAll decodes the one packet that b holds.
func decodeAll(b []byte) ([]Envelope, error) {
	rd := newReader(bytes.NewReader(b))
	h, err := rd.next()
	if err != nil {
		return nil, err
	}
	return rd.batch(nil, h)
}

// FuzzDecodeBatch: no bytes make the decoder panic, and what it accepts is canonical. Header fields that only have to agree with
// the rest are made to fit, so that the fuzzer gets past them.
func FuzzDecodeBatch(f *testing.F) {
	for _, envs := range [][]Envelope{goldenEnvelopes(), everything()[:3], {heartbeat(1, 2, 3)}} {
		p := packetOf(envs...)
		h, err := parseHeader(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint16(h.envelopes), p[headerSize:headerSize+h.head], p[headerSize+h.head:])
	}
	f.Fuzz(func(t *testing.T, envelopes uint16, head, frames []byte) {
		p := appendHeader(nil, kindBatch, int(envelopes))
		p[8], p[9], p[10], p[11] = byte(len(head)>>24), byte(len(head)>>16), byte(len(head)>>8), byte(len(head))
		p[12], p[13], p[14], p[15] = byte(len(frames)>>24), byte(len(frames)>>16), byte(len(frames)>>8), byte(len(frames))
		p = append(p, head...)
		sealPacket(p)
		p = append(p, frames...)
		envs, err := decodeAll(p)
		if err == nil {
			if again := packetOf(envs...); !bytes.Equal(again, p) {
				t.Fatalf("accepted %x, which encodes as %x", p, again)
			}
			for i := range envs {
				if envs[i].Msg != nil && !Carried(envs[i].Msg.GetType()) {
					t.Fatalf("a %v came in", envs[i].Msg.GetType())
				}
			}
			return
		}
		if len(envs) != 0 {
			t.Fatalf("%d envelopes of a refused packet", len(envs))
		}
		if !errors.Is(err, ErrWire) {
			t.Fatalf("another kind of error: %v", err)
		}
	})
}

// FuzzStream feeds arbitrary bytes to the reader of a connection, in pieces.
func FuzzStream(f *testing.F) {
	f.Add(append(packetOf(goldenEnvelopes()...), appendControl(nil, kindPing)...), uint64(1))
	f.Add([]byte(packetMagic), uint64(2))
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		rd := newReader(&pieces{b: stream, r: rand.New(rand.NewPCG(seed, 0))})
		for {
			h, err := rd.next()
			var again []byte
			if err == nil && h.kind == kindBatch {
				var envs []Envelope
				envs, err = rd.batch(nil, h)
				again = packetOf(envs...)
			} else if err == nil {
				again = appendControl(nil, h.kind)
			}
			if err != nil {
				if !errors.Is(err, ErrWire) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatal(err)
				}
				return
			}
			if !bytes.HasPrefix(stream, again) {
				t.Fatal("a packet is not what was sent")
			}
			stream = stream[len(again):]
		}
	})
}

// FuzzParseHello: the first bytes that anybody may send.
func FuzzParseHello(f *testing.F) {
	b := hello{channel: bulk, cluster: testCluster, from: "n1", to: "n2"}.encode()
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, data []byte) {
		var b [helloSize]byte
		copy(b[:], data)
		h, s, err := parseHello(&b)
		if err != nil {
			return
		}
		if s != statusOK || h.from == "" || h.to == "" || (h.channel != control && h.channel != bulk) {
			t.Fatalf("accepted %+v", h)
		}
	})
}

// pieces gives a stream in pieces of random size.
type pieces struct {
	b []byte
	r *rand.Rand
}

func (s *pieces) Read(p []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.b[:1+s.r.IntN(len(s.b))])
	s.b = s.b[n:]
	return n, nil
}

// TestReader: packets come out as they went in however the stream is cut, and frames that were kept never change.
func TestReader(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		var stream []byte
		var want [][]Envelope
		for i := range uint64(60) {
			var envs []Envelope
			switch r.IntN(5) {
			case 0:
				stream = append(stream, appendControl(nil, kindPing)...)
			case 1:
				envs = append(envs, heartbeat(1, 2, i))
			case 2:
				envs = append(envs, appendOf(1, 2, i, r.IntN(3000)), heartbeat(1, 2, i), appendOf(1, 2, i, r.IntN(3000)))
			case 3:
				e := appendOf(1, 2, i, 10)
				for range r.IntN(500) {
					e.Msg.Entries = append(e.Msg.Entries, e.Msg.Entries[0])
				}
				envs = append(envs, e)
			default:
				envs = append(envs, appendOf(1, 2, i, r.IntN(100_000)))
			}
			want = append(want, envs)
			if envs != nil {
				stream = append(stream, packetOf(envs...)...)
			}
		}
		rd := newReader(&pieces{b: stream, r: r})
		var got [][]Envelope
		for i := range want {
			h, err := rd.next()
			var envs []Envelope
			if err == nil && h.kind == kindBatch {
				envs, err = rd.batch(nil, h)
			}
			if err != nil {
				t.Fatalf("seed %d: packet %d: %v", seed, i, err)
			}
			got = append(got, envs)
		}
		if _, err := rd.next(); !errors.Is(err, io.EOF) {
			t.Fatalf("seed %d: %v at the end", seed, err)
		}
		if len(rd.b) != readBuffer {
			t.Fatalf("seed %d: the buffer of an idle connection has %d bytes", seed, len(rd.b))
		}
		for i := range want {
			if len(got[i]) != len(want[i]) {
				t.Fatalf("seed %d: packet %d has %d envelopes, want %d", seed, i, len(got[i]), len(want[i]))
			}
			for j := range want[i] {
				sameEnvelope(t, got[i][j], want[i][j])
			}
		}
	}
}

// TestReaderAllocatesForGoodHeadsOnly: a length that lies costs no memory.
func TestReaderAllocatesForGoodHeadsOnly(t *testing.T) {
	p := packetOf(appendOf(1, 2, 3, 100))
	p[12], p[13] = 0, 0xff // 16 MiB of frames, the head names less
	sealPacket(p[:headerSize+int(p[10])<<8+int(p[11])])
	rd := newReader(nil)
	src := bytes.NewReader(p)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10 {
		src.Reset(p)
		rd.conn, rd.r, rd.w = src, 0, 0
		h, err := rd.next()
		if err != nil || h.frames < 15<<20 {
			t.Fatal(h, err)
		}
		if _, err := rd.batch(nil, h); !errors.Is(err, ErrWire) {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Fatalf("%d bytes were allocated", n)
	}
}

// TestPipeQueue is a model test of the queue in front of a connection: bounded, first in first out, oldest kept.
func TestPipeQueue(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 2))
		a := newQuietTransport(t)
		p := newPipe(a, "n2", "", control, 64<<10)
		l := &link{features: allFeatures}
		p.link = l
		l.busy = true
		var model []uint64
		var next, bytes uint64
		for range 400 {
			if r.IntN(3) > 0 {
				n := 1 + r.IntN(20)
				var envs []Envelope
				for range n {
					envs = append(envs, heartbeat(1, 2, next))
					if bytes == 0 || bytes+envelopeOverhead <= 64<<10 {
						model = append(model, next)
						bytes += envelopeOverhead
					}
					next++
				}
				p.send(envs)
			} else {
				l.busy = true
				p.fill(l)
				if len(l.batch) != min(len(model), maxPacketEnvelopes) {
					t.Fatalf("seed %d: a packet of %d, want %d", seed, len(l.batch), len(model))
				}
				for i, e := range l.batch {
					if e.Msg.GetCommit() != model[i] {
						t.Fatalf("seed %d: number %d, want %d", seed, e.Msg.GetCommit(), model[i])
					}
				}
				model, bytes = model[len(l.batch):], bytes-uint64(len(l.batch))*envelopeOverhead
				l.busy = true
			}
			if p.queued != int(bytes) || len(p.queue)-p.first != len(model) {
				t.Fatalf("seed %d: %d bytes in %d envelopes, want %d in %d", seed, p.queued, len(p.queue)-p.first, bytes, len(model))
			}
		}
	}
}

func newQuietTransport(t testing.TB) *Transport {
	t.Helper()
	a, err := New(Options{Cluster: testCluster, Node: "n1", Listener: listen(t), Receive: func(ids.NodeID, []Envelope) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// TestPacketsStayInBounds: a queue of everything leaves in packets that the other side accepts.
func TestPacketsStayInBounds(t *testing.T) {
	t.Parallel()
	p := newPipe(newQuietTransport(t), "n2", "", bulk, 1<<30)
	l := &link{features: allFeatures}
	p.link, l.busy = l, true
	var want []Envelope
	for i := range uint64(3) {
		want = append(want, appendOf(1, 2, i, 5<<20-4096), appendOf(1, 2, i, 1<<20), appendOf(1, 2, i, 10))
	}
	for i := range uint64(2 * maxPacketEnvelopes) {
		want = append(want, appendOf(1, 2, i, 0))
	}
	big := appendOf(1, 2, 1, 0)
	for len(big.Msg.Entries) < MaxEntries {
		big.Msg.Entries = append(big.Msg.Entries, big.Msg.Entries[0])
	}
	want = append(want, big, big, big)
	p.send(want)
	var got []Envelope
	for p.fill(l) {
		b := bytes.Join(l.rest, nil)
		if len(b) != l.size {
			t.Fatalf("%d bytes, want %d", len(b), l.size)
		}
		h, err := parseHeader(b)
		if err != nil || headerSize+h.head+h.frames != len(b) {
			t.Fatal(h, err)
		}
		if h.frames > packetTarget && h.envelopes > 1 {
			t.Fatalf("%d bytes of frames in %d envelopes", h.frames, h.envelopes)
		}
		envs, err := decodeAll(b)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, envs...)
	}
	if len(got) != len(want) {
		t.Fatalf("%d of %d", len(got), len(want))
	}
	for i := range want {
		sameEnvelope(t, got[i], want[i])
	}
}

// TestAdvance cuts a packet's buffers at every byte.
func TestAdvance(t *testing.T) {
	t.Parallel()
	for n := range 11 {
		l := &link{rest: [][]byte{[]byte("head"), []byte("f1"), []byte("frame2")[:4]}, size: 10}
		l.advance(n)
		if got := string(bytes.Join(l.rest, nil)); got != "headf1fram"[n:] || l.size != 10-n {
			t.Fatalf("after %d: %q, %d", n, got, l.size)
		}
	}
}
