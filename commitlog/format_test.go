package commitlog

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/internal/vfs"
)

var update = flag.Bool("update", false, "write the golden files")

// golden holds one example of each format; docs/format/commitlog.md shows the same bytes.
type golden struct {
	frame, empty, pad, ref []byte
	header                 segmentHeader
	meta                   metaRecord
	side                   sidecar
}

func makeGolden(t testing.TB) golden {
	t.Helper()
	l := mustCreate(t, small(vfs.NewMem()))
	defer l.Close(false)
	var g golden
	b := l.NewBuilder(l.Tail(), 1<<32|2, 1_800_000_000_000)
	for _, s := range []string{"hello", "commit log"} {
		body, _, ok := b.Reserve(1, 1, 0, len(s))
		if !ok {
			t.Fatal("does not fit")
		}
		copy(body, s)
	}
	f := b.Finish()
	check(t, l.Append([]Frame{f}))
	g.frame, g.ref = f, EncodeRef(f.Ref())
	e := l.EmptyFrame(l.Tail(), 1<<32|3, 2)
	check(t, l.Append([]Frame{e}))
	g.empty = e
	g.pad = make([]byte, padSize)
	putPad(g.pad, l.Tail().Offset, l.Tail().Chain)
	g.header = segmentHeader{cluster: testCluster, group: testGroup, segmentSize: 64 << 10, base: 64 << 10, generation: 1<<32 | 1, seed: e.Chain()}
	g.meta = metaRecord{
		Meta: Meta{Starts: 3, BoundIndex: 2, BoundOffset: l.Tail().Offset, CleanStop: true, BootID: "boot", Owner: []byte("owner")},
		seq:  7, batchEnd: l.Tail().Offset + 4096, cluster: testCluster, group: testGroup, segmentSize: 64 << 10,
	}
	g.meta.front.prev.Chain = startChain(testCluster, testGroup)
	g.side = sidecar{first: 1, tail: Tail{Term: e.Term(), Index: 2, Offset: l.Tail().Offset, Chain: e.Chain(), Time: f.Time()},
		last: int64(e.Offset()), terms: l.Epochs(), sparse: l.segs[0].sparse}
	return g
}

func (g golden) files() map[string][]byte {
	return map[string][]byte{
		"frame": g.frame, "empty-frame": g.empty, "pad": g.pad, "ref": g.ref,
		"segment-header": g.header.encode()[:segmentUsed], "meta-head": g.meta.encode()[:metaOwnerAt+5], "meta-crc": g.meta.encode()[metaSlot-4:],
		"sidecar": g.side.encode(),
	}
}

// dump formats bytes as the documentation shows them.
func dump(b []byte) string {
	var s strings.Builder
	for at := 0; at < len(b); at += 16 {
		line := hex.EncodeToString(b[at:min(at+16, len(b))])
		for i := 0; i < len(line); i += 8 {
			if i > 0 {
				s.WriteByte(' ')
			}
			s.WriteString(line[i:min(i+8, len(line))])
		}
		s.WriteByte('\n')
	}
	return s.String()
}

func TestGolden(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(filepath.Join("..", "docs", "format", "commitlog.md"))
	check(t, err)
	for name, b := range makeGolden(t).files() {
		path := filepath.Join("testdata", name+".hex")
		if *update {
			check(t, os.MkdirAll("testdata", 0o755))
			check(t, os.WriteFile(path, []byte(dump(b)), 0o644))
		}
		want, err := os.ReadFile(path)
		check(t, err)
		if got := dump(b); got != string(want) {
			t.Errorf("%s is\n%swant\n%s", name, got, want)
		}
		if !bytes.Contains(doc, want) {
			t.Errorf("docs/format/commitlog.md does not show %s:\n%s", name, want)
		}
	}
}

// TestDecodeGolden reads back what TestGolden fixes.
func TestDecodeGolden(t *testing.T) {
	t.Parallel()
	g := makeGolden(t)
	f, err := ParseFrame(g.frame, startChain(testCluster, testGroup))
	check(t, err)
	var bodies []string
	for r := range f.Records() {
		bodies = append(bodies, string(r.Body))
		if r.Type != 1 || r.Version != 1 || string(f[r.Offset-f.Offset():][:len(r.Body)]) != string(r.Body) {
			t.Fatalf("record %+v", r)
		}
	}
	if strings.Join(bodies, ",") != "hello,commit log" || f.Term() != 1<<32|2 || f.Index() != 1 || f.Offset() != 4096 || f.Time() != 1_800_000_000_000 || f.Empty() {
		t.Fatalf("frame %v %v %v %v %v", bodies, f.Term(), f.Index(), f.Offset(), f.Time())
	}
	if e, err := ParseFrame(g.empty, f.Chain()); err != nil || !e.Empty() || e.Time() != 0 || e.RecordCount() != 0 {
		t.Fatalf("empty frame: %v", err)
	}
	if _, err := ParseFrame(g.empty, f.Chain()+1); err == nil {
		t.Fatal("a frame was taken that does not chain on")
	}
	if h, err := decodeSegmentHeader(g.header.encode()); err != nil || h != g.header {
		t.Fatalf("segment header %+v, %v", h, err)
	}
	if m, err := decodeMeta(g.meta.encode()); err != nil || !reflect.DeepEqual(*m, g.meta) {
		t.Fatalf("meta %+v, %v", m, err)
	}
	if s, err := decodeSidecar(g.side.encode()); err != nil || !reflect.DeepEqual(*s, g.side) {
		t.Fatalf("sidecar %+v, %v", s, err)
	}
	if r, err := DecodeRef(g.ref); err != nil || r != f.Ref() {
		t.Fatalf("ref %+v, %v", r, err)
	}
}

// TestEveryBit flips each bit of a frame, header, slot and sidecar: no flip may go unseen.
func TestEveryBit(t *testing.T) {
	t.Parallel()
	g := makeGolden(t)
	for name, c := range map[string]struct {
		b      []byte
		decode func([]byte) error
	}{
		"frame":   {g.frame, func(b []byte) error { _, err := CheckFrame(b); return err }},
		"header":  {g.header.encode(), func(b []byte) error { _, err := decodeSegmentHeader(b); return err }},
		"meta":    {g.meta.encode(), func(b []byte) error { _, err := decodeMeta(b); return err }},
		"sidecar": {g.side.encode(), func(b []byte) error { _, err := decodeSidecar(b); return err }},
	} {
		check(t, c.decode(c.b))
		step := 1
		if len(c.b) > 1000 {
			step = 11 // prime to 8: each byte is met, not each bit of it
		}
		for bit := 0; bit < 8*len(c.b); bit += step {
			b := bytes.Clone(c.b)
			b[bit/8] ^= 1 << (bit % 8)
			if c.decode(b) == nil {
				t.Fatalf("%s: a flip of bit %d in byte %d is not seen", name, bit%8, bit/8)
			}
		}
		for n := 0; n < len(c.b); n += step {
			if c.decode(c.b[:n]) == nil {
				t.Fatalf("%s: cut to %d bytes is not seen", name, n)
			}
		}
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	o := small(fs)
	check(t, mustCreate(t, o).Close(true))
	// A meta file of a later version.
	b, err := readMetaFile(o)
	check(t, err)
	for slot := range 2 {
		s := b[slot*metaSlot:][:metaSlot]
		s[4] = 9
		be.PutUint32(s[metaSlot-4:], crcOf(s[:metaSlot-4]))
	}
	check(t, writeMetaFile(o, b))
	var id *IdentityError
	if _, err := Open(o); !errors.As(err, &id) || id.Field != "version" || id.Have != "9" {
		t.Fatalf("meta of version 9: %v", err)
	}
	// A segment and a frame of a later version.
	g := makeGolden(t)
	h := g.header.encode()
	h[4] = 9
	be.PutUint32(h[68:], crcOf(h[:68]))
	if _, err := decodeSegmentHeader(h); !errors.As(err, &id) || id.Field != "version" || id.Have != "9" {
		t.Errorf("segment of version 9: %v", err)
	}
	f := bytes.Clone(g.frame)
	f[4] = 9
	be.PutUint32(f[60:], checksum(f))
	var damage *CorruptionError
	if _, err := ParseFrame(f, startChain(testCluster, testGroup)); !errors.As(err, &damage) || !strings.Contains(err.Error(), "version 9") {
		t.Errorf("frame of version 9: %v", err)
	}
}

func FuzzFrame(f *testing.F) {
	g := makeGolden(f)
	f.Add(g.frame)
	f.Add(g.empty)
	f.Add(g.frame[:70])
	f.Fuzz(func(t *testing.T, b []byte) {
		// The checksum would hide everything behind it from the fuzzer: put it right.
		if len(b) >= headerSize {
			b = bytes.Clone(b)
			be.PutUint32(b[60:], checksum(b))
		}
		fr, err := CheckFrame(b)
		if err != nil {
			var c *CorruptionError
			if !errors.As(err, &c) {
				t.Fatalf("%T", err)
			}
			return
		}
		n := 0
		at := headerSize
		for r := range fr.Records() {
			n++
			if int(r.Offset-fr.Offset()) != at+recordHeaderSize {
				t.Fatalf("record %d at %d", n, r.Offset)
			}
			at += recordHeaderSize + int(aligned(int64(len(r.Body))))
		}
		if n != fr.RecordCount() || at != len(fr) {
			t.Fatalf("%d records, %d bytes of %d", n, at, len(fr))
		}
		if _, err := ParseFrame(b, fr.PrevChain()); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzMeta(f *testing.F) {
	g := makeGolden(f)
	f.Add(g.meta.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == metaSlot {
			b = bytes.Clone(b)
			be.PutUint32(b[metaSlot-4:], crcOf(b[:metaSlot-4]))
		}
		m, err := decodeMeta(b)
		if err != nil {
			return
		}
		again, err := decodeMeta(m.encode())
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%+v encodes to %+v, %v", m, again, err)
		}
	})
}

func FuzzSidecar(f *testing.F) {
	g := makeGolden(f)
	f.Add(g.side.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= 4 {
			b = bytes.Clone(b)
			be.PutUint32(b[len(b)-4:], crcOf(b[:len(b)-4]))
		}
		s, err := decodeSidecar(b)
		if err != nil {
			return
		}
		if !bytes.Equal(s.encode(), b) {
			t.Fatalf("%+v does not encode to its bytes", s)
		}
		if d, pos := s.sparse.find(uint32(s.tail.Index - s.first)); pos < segmentHeaderSize || pos > s.last || uint64(d) > uint64(s.tail.Index-s.first) {
			t.Fatalf("find: %d, %d", d, pos)
		}
	})
}

func FuzzSegmentHeader(f *testing.F) {
	f.Add(makeGolden(f).header.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= segmentUsed {
			b = bytes.Clone(b)
			be.PutUint32(b[68:], crcOf(b[:68]))
		}
		h, err := decodeSegmentHeader(b)
		if err == nil && !bytes.Equal(h.encode(), b[:segmentHeaderSize]) {
			t.Fatalf("%+v does not encode to its bytes", h)
		}
	})
}

func FuzzRef(f *testing.F) {
	f.Add(makeGolden(f).ref)
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := DecodeRef(b); err == nil && !bytes.Equal(EncodeRef(r), b) {
			t.Fatalf("%+v does not encode to its bytes", r)
		}
	})
}
