package index

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// golden returns the bytes of testdata/run.hex and checks that the page of the format shows it as it is.
func golden(tb testing.TB) []byte {
	tb.Helper()
	text, err := os.ReadFile("testdata/run.hex")
	if err != nil {
		tb.Fatal(err)
	}
	shown, err := os.ReadFile("../docs/format/index.md")
	if err != nil {
		tb.Fatal(err)
	}
	if !bytes.Contains(shown, text) {
		tb.Error("docs/format/index.md does not show testdata/run.hex as it is")
	}
	return dump(tb, text)
}

// dump reads a dump: a line has up to 16 bytes, or *n for n zero bytes, and from column 50 on what they mean.
func dump(tb testing.TB, text []byte) []byte {
	tb.Helper()
	var all []byte
	for line := range strings.Lines(string(text)) {
		cell := strings.TrimSpace(line[:min(len(line), 48)])
		if zeros, ok := strings.CutPrefix(cell, "*"); ok {
			n, err := strconv.Atoi(zeros)
			if err != nil {
				tb.Fatal(err)
			}
			all = append(all, make([]byte, n)...)
			continue
		}
		b, err := hex.DecodeString(strings.ReplaceAll(cell, " ", ""))
		if err != nil {
			tb.Fatalf("%q: %v", line, err)
		}
		all = append(all, b...)
	}
	return all
}

func goldenOptions(fs vfs.FS) Options {
	o := Options{FS: fs, Dir: "index", SegmentSize: 64 << 10, FirstOffset: 131072}
	for i := range o.Group {
		o.Group[i] = 0x91
	}
	return o
}

var goldenEntries = []logged{
	{Key{3, 0}, 41, Entry{135168 + 88, 300, -5}, []uint64{Hash(3, WordKey, "order-1"), Hash(3, WordTag, "paid")}},
	{Key{3, 0}, 42, Entry{135168 + 400, 250, 0}, []uint64{Hash(3, WordKey, "order-1"), Hash(3, WordKey, "order-1")}},
	{Key{3, 1}, 7, Entry{138000, 100, 77}, nil},
}

// TestGolden writes the run that the page shows, and reads it from bytes that were put together by other means.
func TestGolden(t *testing.T) {
	t.Parallel()
	want := golden(t)
	fs := vfs.NewMem()
	x, err := Open(goldenOptions(fs))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range goldenEntries {
		if err := m.add(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.Checkpoint(140000); err != nil {
		t.Fatal(err)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	const name = "index/00000000000000131072-00000000000000140000.run"
	got, err := vfs.ReadFile(fs, name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		for i := range want {
			if i >= len(got) || got[i] != want[i] {
				t.Fatalf("%d bytes, want %d; they differ at %d", len(got), len(want), i)
			}
		}
	}

	fs = vfs.NewMem()
	if err := fs.MkdirAll("index"); err != nil {
		t.Fatal(err)
	}
	if err := vfs.WriteFileAtomic(fs, name, want); err != nil {
		t.Fatal(err)
	}
	if x, err = Open(goldenOptions(fs)); err != nil || len(x.Problems()) > 0 || x.Covered() != 140000 {
		t.Fatalf("%v, %v, covered %d", err, x.Problems(), x.Covered())
	}
	for _, m := range goldenEntries {
		if got, err := x.Get(m.k, m.qo, 1, nil); err != nil || len(got) != 1 || got[0] != m.e {
			t.Fatalf("entry %d of %v: %v, %v", m.qo, m.k, got, err)
		}
	}
}

// TestForeignFiles opens folders with files of another group, segment size, life of the log, name and version: all are
// named, none is used, none stops the start.
func TestForeignFiles(t *testing.T) {
	t.Parallel()
	good := golden(t)
	const name = "00000000000000131072-00000000000000140000.run"
	changed := func(at int, b byte) []byte {
		c := bytes.Clone(good)
		c[at] = b
		seal(c[:pageSize], 0, 0)
		return c
	}
	for want, c := range map[string]struct {
		name   string
		data   []byte
		change func(*Options)
	}{
		"is of group":           {name, good, func(o *Options) { o.Group = ids.GroupID{1} }},
		"segments of":           {name, good, func(o *Options) { o.SegmentSize = 128 << 10 }},
		"the log only to":       {name, good, func(o *Options) { o.EndOffset = 139000 }},
		"covers 131072":         {"00000000000000131072-00000000000000139000.run", good, nil},
		"only 0 bytes":          {name, nil, nil},
		"only 4095 bytes":       {name, good[:4095], nil},
		"instead of":            {name, good[:3*pageSize], nil},
		"version 3":             {name, changed(5, 3), nil},
		"no queue index":        {name, make([]byte, len(good)), nil},
		"makes no sense":        {name, changed(55, 200), nil},
		"header makes no":       {name, changed(5, 1), nil},                                                                        // words in a version that has none
		"checksum does not fit": {name, append(bytes.Clone(good[:4*pageSize-1]), append([]byte{0}, good[4*pageSize:]...)...), nil}, // of the fence
	} {
		fs := vfs.NewMem()
		if err := fs.MkdirAll("index"); err != nil {
			t.Fatal(err)
		}
		if err := vfs.WriteFileAtomic(fs, "index/"+c.name, c.data); err != nil {
			t.Fatal(err)
		}
		o := goldenOptions(fs)
		if c.change != nil {
			c.change(&o)
		}
		x, err := Open(o)
		if err != nil {
			t.Fatalf("%s: %v", want, err)
		}
		p := x.Problems()
		if len(p) != 1 || !strings.Contains(p[0].Error(), want) || !strings.Contains(p[0].Error(), c.name) {
			t.Errorf("want a problem with %q, got %v", want, p)
		}
		if names, _ := fs.List("index"); len(names) != 0 || x.Covered() != 131072 {
			t.Errorf("%s: files %v, covered %d", want, names, x.Covered())
		}
	}
}

// TestOlderFile opens the run that a program wrote that knew of no words: its queues are served, its words are a hole, which Rebuild fills, also
// when it was merged with newer runs meanwhile.
func TestOlderFile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/version1.hex")
	if err != nil {
		t.Fatal(err)
	}
	for _, merged := range []bool{false, true} {
		fs := vfs.NewMem()
		if err := fs.MkdirAll("index"); err != nil {
			t.Fatal(err)
		}
		if err := vfs.WriteFileAtomic(fs, "index/00000000000000131072-00000000000000140000.run", dump(t, text)); err != nil {
			t.Fatal(err)
		}
		x, err := Open(goldenOptions(fs))
		if err != nil || len(x.Problems()) > 0 || x.Covered() != 140000 {
			t.Fatalf("%v, %v, covered %d", err, x.Problems(), x.Covered())
		}
		hole, hash := Span{131072, 140000}, Hash(3, WordKey, "order-1")
		later := logged{Key{3, 1}, 8, Entry{140000, 100, 1}, []uint64{hash}}
		if err := later.add(x); err != nil {
			t.Fatal(err)
		}
		all := append(slices.Clone(goldenEntries), later)
		if merged {
			hole.To = 196608
			if err := x.Checkpoint(196608); err != nil {
				t.Fatal(err)
			}
		}
		for _, m := range all {
			if got, err := x.Get(m.k, m.qo, 1, nil); err != nil || len(got) != 1 || got[0] != m.e {
				t.Fatalf("entry %d of %v: %v, %v", m.qo, m.k, got, err)
			}
		}
		find := func() (all []ids.PhysicalOffset, err error) {
			err = x.Find(hash, 0, 200000, func(o ids.PhysicalOffset) bool { all = append(all, o); return true })
			return all, err
		}
		var bad *HoleError
		if _, err := find(); !errors.As(err, &bad) || bad.Hole != hole || !slices.Equal(x.Missing(), []Span{hole}) {
			t.Fatalf("merged %v: %v, holes %v", merged, err, x.Missing())
		}
		if err := x.Rebuild(hole, func(add func(Key, ids.QueueOffset, Entry, ...uint64) error) error {
			for _, m := range all {
				if err := add(m.k, m.qo, m.e, m.w...); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		got, err := find()
		if err != nil || !slices.Equal(got, []ids.PhysicalOffset{140000, 135568, 135256}) || len(x.Missing()) > 0 {
			t.Fatalf("merged %v: found %v, %v, holes %v", merged, got, err, x.Missing())
		}
		if err := errors.Join(x.Verify(), x.Close()); err != nil {
			t.Fatal(err)
		}
		if x, err = Open(goldenOptions(fs)); err != nil || len(x.Problems())+len(x.Missing()) > 0 {
			t.Fatal(err, x.Problems(), x.Missing())
		}
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	_, err := Open(Options{SegmentSize: 100, FirstOffset: -1, MaxRuns: 1})
	for _, want := range []string{"Dir is empty", "segment size 100", "FirstOffset is -1", "MaxRuns is 1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %q", err, want)
		}
	}
}

// FuzzFile opens any bytes as a file and asks it everything. It may refuse, it may not panic, hang, or answer beyond its
// own directory.
func FuzzFile(f *testing.F) {
	good := golden(f)
	f.Add(good, false)
	f.Add(good[:pageSize], true)
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= pageSize { // let the fuzzer get beyond the checksums
			seed := uint32(0)
			for n := int64(0); (n+1)*pageSize <= int64(len(b)); n++ {
				p := b[n*pageSize : (n+1)*pageSize]
				seal(p, seed, n)
				if n == 0 {
					if h, err := decodeHeader(p); err == nil {
						seed = h.seed()
					}
				}
			}
		}
		fs := vfs.NewMem()
		if err := vfs.WriteFileAtomic(fs, "f", b); err != nil {
			t.Fatal(err)
		}
		x, err := openFile(fs, "f")
		if err != nil {
			return
		}
		x.ref()
		defer x.unref()
		c, count := slot{file: x}.cursor(), uint32(0)
		for {
			r, ok, err := c.next()
			if err != nil || !ok {
				break
			}
			list, err := x.entriesAt(r, 0, r.count, nil)
			if err == nil && uint32(len(list)) != r.count {
				t.Fatalf("%d entries for %+v", len(list), r)
			}
			count++
		}
		if count > x.header.rows {
			t.Fatalf("%d rows, the header tells %d", count, x.header.rows)
		}
		for _, k := range []Key{{}, {3, 0}, {3, 1}, {1 << 31, 7}} {
			if r, ok, err := x.lookup(k); err == nil && ok {
				if r.key != k {
					t.Fatalf("asked for %v, got %v", k, r.key)
				}
				if _, err := x.entriesAt(r, 0, min(r.count, 1000), nil); err != nil {
					continue
				}
			}
		}
		for _, h := range []uint64{0, 1 << 63, Hash(3, WordKey, "order-1"), Hash(3, WordTag, "paid")} {
			n := uint32(0)
			if _, err := x.walkWords(h, 0, 1<<32, func(uint32) bool { n++; return true }); err == nil && n > x.header.words {
				t.Fatalf("%d messages of one word, the header tells %d words", n, x.header.words)
			}
		}
		_ = x.verify()
	})
}
