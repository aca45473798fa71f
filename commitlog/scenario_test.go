package commitlog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func rnd(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 3)) }

// tamper changes the bytes of a file in place and makes that durable.
func tamper(t *testing.T, fs vfs.FS, path string, change func(b []byte) []byte) {
	t.Helper()
	b, err := vfs.ReadFile(fs, path)
	check(t, err)
	f, err := fs.OpenReadWrite(path)
	check(t, err)
	b = change(b)
	check(t, f.Truncate(int64(len(b))))
	check(t, f.WritevAt([][]byte{b}, 0))
	check(t, f.SyncData())
	check(t, f.Close())
}

func flip(at int64) func([]byte) []byte {
	return func(b []byte) []byte { b[at] ^= 4; return b }
}

// image returns all files of the log, by name.
func image(t *testing.T, o Options) map[string]string {
	t.Helper()
	names, err := o.FS.List(o.Dir)
	check(t, err)
	m := map[string]string{}
	for _, n := range names {
		b, err := vfs.ReadFile(o.FS, o.Dir+"/"+n)
		check(t, err)
		m[n] = string(b)
	}
	return m
}

func TestOneOpener(t *testing.T) {
	t.Parallel()
	o := disk(t, 16<<20)
	l := mustCreate(t, o)
	defer l.Close(true)
	if _, err := Open(o); !errors.Is(err, vfs.ErrLocked) {
		t.Fatalf("second opener: %v", err)
	}
	if err := Create(o, nil); !errors.Is(err, vfs.ErrLocked) {
		t.Fatalf("Create over an open log: %v", err)
	}
	grow(t, l, 1, 3, 100)
	n := 0
	check(t, Verify(o, 2, func(Frame) error { n++; return nil })) // beside the writer
	if n != 2 {
		t.Fatalf("verified %d", n)
	}
	if err := Verify(o, 4, nil); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("Verify beyond the tail: %v", err)
	}
}

func TestCreate(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	o := small(fs)
	if _, err := Open(o); !errors.Is(err, ErrNotCreated) {
		t.Fatalf("Open of nothing: %v", err)
	}
	check(t, mustCreate(t, o).Close(true))
	if err := Create(o, nil); !errors.Is(err, ErrExists) {
		t.Fatalf("second Create: %v", err)
	}
	if err := Create(o, make([]byte, MaxOwner+1)); err == nil {
		t.Fatal("too much owner data")
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	o := Options{SegmentSize: 3 << 20, FillAhead: 1, BootID: strings.Repeat("x", 65)}
	o.EnsureDefaults()
	err := o.Validate()
	for _, want := range []string{"Dir", "Cluster", "Group", "segment size 3145728", "FillAhead 1 ", "BootID"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not mention %s", err, want)
		}
	}
	if _, err := Open(o); err == nil {
		t.Fatal("opened with bad options")
	}
	good := Options{Dir: "x", Cluster: testCluster, Group: testGroup}
	good.EnsureDefaults()
	check(t, good.Validate())
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	o := small(fs)
	check(t, mustCreate(t, o).Close(true))
	for field, change := range map[string]func(*Options){
		"cluster":      func(o *Options) { o.Cluster[0]++ },
		"group":        func(o *Options) { o.Group[0]++ },
		"segment size": func(o *Options) { o.SegmentSize *= 2 },
	} {
		other := o
		change(&other)
		var id *IdentityError
		if _, err := Open(other); !errors.As(err, &id) || id.Field != field || !strings.Contains(err.Error(), "meta") {
			t.Errorf("%s: %v", field, err)
		}
		// A segment that was copied in from there.
		tamper(t, fs, o.Dir+"/"+segmentName(0, logSuffix), func([]byte) []byte {
			return segmentHeader{cluster: other.Cluster, group: other.Group, segmentSize: other.SegmentSize, seed: startChain(testCluster, testGroup)}.encode()
		})
		if _, err := Open(o); !errors.As(err, &id) || id.Field != field || !strings.Contains(err.Error(), ".log") {
			t.Errorf("segment of another %s: %v", field, err)
		}
		tamper(t, fs, o.Dir+"/"+segmentName(0, logSuffix), func([]byte) []byte {
			return segmentHeader{cluster: o.Cluster, group: o.Group, segmentSize: o.SegmentSize, seed: startChain(testCluster, testGroup)}.encode()
		})
	}
	check(t, mustOpen(t, o).Close(true))
}

// TestDamage damages a log of some segments in each way that has a name, and checks that Open changes nothing then.
func TestDamage(t *testing.T) {
	t.Parallel()
	seg := func(n int64) string { return segmentName(ids.PhysicalOffset(n*64<<10), logSuffix) }
	type found int
	const (
		asDamage   found = iota // Open names it
		asMetaLost              // Open names it
		onRead                  // Open is fine, reading names it and poisons
		asTornTail              // the frames behind the bound are gone, as after a torn write
		notAtAll                // derived or empty: everything is there
	)
	for _, c := range []struct {
		name   string
		file   string
		change func([]byte) []byte
		want   found
	}{
		{"frame below a checkpoint", seg(0), flip(9000), onRead},
		{"frame header below a checkpoint", seg(0), flip(4096 + 8), onRead},
		{"frame between checkpoint and bound", seg(2), flip(50000), asDamage},
		{"frame above the bound, others behind", seg(3), flip(4096 + 100), asDamage},
		{"last frame", seg(3), func(b []byte) []byte { return flip(int64(len(bytes.TrimRight(b, "\x00")) - 10))(b) }, asTornTail},
		{"segment header", seg(1), flip(10), asDamage},
		{"segment header above the checkpoint", seg(3), flip(50), asDamage},
		{"zero-length segment", seg(1), func(b []byte) []byte { return nil }, asDamage},
		{"zero-length segment above the checkpoint", seg(3), func(b []byte) []byte { return nil }, asDamage},
		{"half a segment", seg(1), func(b []byte) []byte { return b[:30000] }, asDamage},
		{"zeros in the middle", seg(2), func(b []byte) []byte { clear(b[40000:]); return b }, asDamage},
		{"zero-length meta", metaName, func(b []byte) []byte { return nil }, asMetaLost},
		{"both slots", metaName, func(b []byte) []byte { return flip(metaSlot)(flip(1)(b)) }, asMetaLost},
		{"first slot", metaName, flip(300), notAtAll},
		{"second slot", metaName, flip(metaSlot + 300), notAtAll},
		{"zero-length sidecar", segmentName(0, sidecarSuffix), func(b []byte) []byte { return nil }, notAtAll},
		{"sidecar", segmentName(64<<10, sidecarSuffix), flip(90), notAtAll},
		{"sidecar of another life of the segment", segmentName(64<<10, sidecarSuffix), func(b []byte) []byte {
			s, err := decodeSidecar(b)
			if err != nil || len(s.sparse) != 1 {
				panic("the sidecar is not as this test needs it")
			}
			s.generation++
			s.sparse = append(s.sparse, sparseEntry{2, s.sparse[0].pos + 1})
			return s.encode()
		}, notAtAll},
		{"zero-length lock", lockName, func(b []byte) []byte { return nil }, notAtAll},
		{"zero-length spare", segmentName(9<<20, spareSuffix), nil, notAtAll},
		{"half-made next", segmentName(9<<20, nextSuffix), nil, notAtAll},
		{"unfinished temporary file", metaName + vfs.TempSuffix, nil, notAtAll},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			fs := vfs.NewMem()
			o := small(fs)
			l := mustCreate(t, o)
			var frames []Frame
			for l.Tail().Offset < 2*64<<10+20000 {
				frames = append(frames, grow(t, l, 1, 1, 3000)...)
			}
			check(t, l.Checkpoint(nil))
			for l.Tail().Offset < 2*64<<10+60000 {
				frames = append(frames, grow(t, l, 1, 1, 3000)...)
			}
			check(t, l.Sync())
			check(t, l.SaveMeta(nil, true))
			for l.Tail().Offset < 3*64<<10+10000 { // the first frame of the segment renews the bound
				frames = append(frames, grow(t, l, 1, 1, 3000)...)
				check(t, l.Sync())
			}
			bound := l.Meta().BoundIndex
			check(t, l.Close(false))
			if c.change == nil {
				f, err := fs.Create(o.Dir + "/" + c.file)
				check(t, err)
				check(t, f.Close())
			} else {
				tamper(t, fs, o.Dir+"/"+c.file, c.change)
			}
			before := image(t, o)
			verify := Verify(o, 0, nil)
			l, err := Open(o)
			var d *DamageError
			var cor *CorruptionError
			switch c.want {
			case asDamage, asMetaLost:
				if c.want == asDamage && (!errors.As(err, &d) || !strings.Contains(err.Error(), ".log")) || c.want == asMetaLost && !errors.Is(err, ErrMetaLost) {
					t.Fatalf("Open: %v", err)
				}
				for name, b := range image(t, o) {
					if before[name] != b {
						t.Fatalf("Open changed %s", name)
					}
				}
				if verify == nil {
					t.Fatal("Verify is silent")
				}
			case onRead:
				check(t, err)
				var got error
				for _, got = range l.Frames(1) {
				}
				if !errors.As(got, &cor) || cor.File == "" || l.Poisoned() == nil {
					t.Fatalf("reading: %v, poisoned: %v", got, l.Poisoned())
				}
				if !errors.As(verify, &d) {
					t.Fatalf("Verify: %v", verify)
				}
				if l.Close(true) == nil {
					t.Fatal("a clean stop of a poisoned log")
				}
			case asTornTail:
				check(t, err)
				if last := l.Tail().Index; last < bound || last >= ids.Index(len(frames)) {
					t.Fatalf("tail %d, bound %d", last, bound)
				}
				frames = frames[:l.Tail().Index]
				holds(t, l, frames)
				frames = append(frames, grow(t, l, 2, 10, 3000)...)
				holds(t, l, frames)
				check(t, l.Close(true))
			default:
				check(t, err)
				holds(t, l, frames)
				check(t, l.Close(true))
				check(t, verify)
			}
		})
	}
}

func TestLostTail(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	o := small(fs)
	l := mustCreate(t, o)
	frames := grow(t, l, 1, 5, 500)
	check(t, l.Close(true))
	tamper(t, fs, o.Dir+"/"+segmentName(0, logSuffix), func(b []byte) []byte { return b[:frames[4].Offset()] })
	var d *DamageError
	if _, err := Open(o); !errors.As(err, &d) || !strings.Contains(d.Reason, "lost tail") || d.Offset != frames[4].Offset() {
		t.Fatalf("Open: %v", err)
	}
	check(t, fs.Remove(o.Dir+"/"+segmentName(0, logSuffix)))
	if _, err := Open(o); !errors.As(err, &d) {
		t.Fatalf("Open without the segment: %v", err)
	}
	check(t, fs.Remove(o.Dir+"/meta"))
	if _, err := Open(o); !errors.Is(err, ErrNotCreated) {
		t.Fatalf("Open of a wiped folder: %v", err)
	}
}

// TestLostSyncIsWrittenAgain: a sync fails and the kernel drops the pages' dirty marks. The process is restarted, finds the frames
// in the page cache, and makes them its log: then they must be on the disk.
func TestLostSyncIsWrittenAgain(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		fs := vfs.NewMem()
		o := small(fs)
		var fail atomic.Bool
		o.FS = vfs.Inject(fs, func(op vfs.Op, name string, off int64, n int) error {
			if op == vfs.OpSync && fail.Load() && strings.HasSuffix(name, logSuffix) {
				return &vfs.LostSync{Err: syscall.EIO}
			}
			return nil
		})
		l := mustCreate(t, o)
		frames := grow(t, l, 1, 10, 2000)
		check(t, l.Sync())
		frames = append(frames, grow(t, l, 1, int(30*(seed%2)+10), 2000)...)
		fail.Store(true)
		if err := l.Sync(); err == nil {
			t.Fatal("the failed sync went well")
		}
		fail.Store(false)
		// Nothing is retried, though the disk is fine again.
		var p *PoisonedError
		if err := l.Sync(); !errors.As(err, &p) || !errors.Is(err, syscall.EIO) {
			t.Fatalf("second sync: %v", err)
		}
		if err := l.Append(nil); !errors.As(err, &p) {
			t.Fatalf("append: %v", err)
		}
		if i, _ := l.Synced(); i != 10 {
			t.Fatalf("synced %d", i)
		}
		holds(t, l, frames) // reads go on
		fs = fs.KillProcess()
		o.FS = fs
		l = mustOpen(t, o)
		last := l.Tail().Index
		if last != frames[len(frames)-1].Index() {
			t.Fatalf("tail %d", last)
		}
		o.FS = fs.Crash(rnd(seed))
		l = mustOpen(t, o)
		holds(t, l, frames)
	}
}

// TestPoison: each kind of failed write poisons, and what was not synced is not claimed.
func TestPoison(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		op   vfs.Op
		file string
		do   func(l *Log, f []Frame) error
	}{
		{vfs.OpWrite, ".log", func(l *Log, f []Frame) error { return l.Append(f) }},
		{vfs.OpSync, ".log", func(l *Log, f []Frame) error { return errors.Join(l.Append(f), l.Sync()) }},
		{vfs.OpWrite, "meta", func(l *Log, f []Frame) error { return l.SaveMeta(nil, false) }},
		{vfs.OpSync, "meta", func(l *Log, f []Frame) error { return l.SaveMeta(nil, true) }},
		{vfs.OpWrite, "meta", func(l *Log, f []Frame) error { return l.TruncateAfter(1) }},
		{vfs.OpWrite, ".log", func(l *Log, f []Frame) error { return l.TruncateAfter(1) }},
		{vfs.OpRead, ".log", func(l *Log, f []Frame) error { _, err := l.ReadFrame(1, nil); return err }},
		{vfs.OpRead, ".log", func(l *Log, f []Frame) error { return l.ReadAt(make([]byte, 8), 4096) }},
		{vfs.OpSync, ".log", func(l *Log, f []Frame) error { _, err := l.FillAhead(); return err }},
		{vfs.OpSyncDir, "/log", func(l *Log, _ []Frame) error { // a new segment
			return errors.Join(l.Append(chain(t, l, l.Tail(), 15, 5000)), l.Sync())
		}},
		{vfs.OpRemove, ".log", func(l *Log, _ []Frame) error {
			return errors.Join(l.Append(chain(t, l, l.Tail(), 15, 5000)), l.Sync(), l.TruncateAfter(1))
		}},
		{vfs.OpSyncDir, "/log", func(l *Log, _ []Frame) error { return l.TruncateAfter(1) }},
	} {
		t.Run(fmt.Sprintf("%v %s", c.op, c.file), func(t *testing.T) {
			t.Parallel()
			fs := vfs.NewMem()
			o := small(fs)
			var on atomic.Bool
			o.FS = vfs.Inject(fs, func(op vfs.Op, name string, off int64, n int) error {
				if on.Load() && op == c.op && strings.HasSuffix(name, c.file) {
					on.Store(false) // once
					return syscall.EIO
				}
				return nil
			})
			l := mustCreate(t, o)
			grow(t, l, 1, 3, 100)
			check(t, l.Sync())
			f := form(t, l, l.Tail(), 1, 10)
			on.Store(true)
			if err := c.do(l, []Frame{f}); !errors.Is(err, syscall.EIO) {
				t.Fatalf("the operation: %v", err)
			}
			var p *PoisonedError
			if !errors.As(l.Poisoned(), &p) {
				t.Fatal("not poisoned")
			}
			for name, err := range map[string]error{"Append": l.Append([]Frame{f}), "Sync": l.Sync(), "SaveMeta": l.SaveMeta(nil, false),
				"TruncateAfter": l.TruncateAfter(1), "Checkpoint": l.Checkpoint(nil), "CutFront": l.CutFront(64 << 10), "Close": l.Close(true)} {
				if !errors.As(err, &p) && name != "CutFront" {
					t.Errorf("%s: %v", name, err)
				}
			}
			l = mustOpen(t, o) // the lock was given up
			if m := l.Meta(); m.CleanStop {
				t.Fatal("marked clean")
			}
			check(t, l.Close(true))
		})
	}
}

func TestAppendRefusesWhatDoesNotChainOn(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	l := mustCreate(t, small(fs))
	frames := grow(t, l, 5, 2, 100)
	tail := l.Tail()
	bad := map[string]Frame{
		"again":          frames[1],
		"gap":            form(t, l, Tail{Term: 5, Index: 7, Offset: tail.Offset, Chain: tail.Chain}, 5, 10),
		"older term":     form(t, l, tail, 4, 10),
		"other chain":    form(t, l, Tail{Term: 5, Index: 2, Offset: tail.Offset, Chain: 1}, 5, 10),
		"other offset":   form(t, l, Tail{Term: 5, Index: 2, Offset: tail.Offset + 8, Chain: tail.Chain}, 5, 10),
		"next segment":   l.EmptyFrame(Tail{Term: 5, Index: 2, Offset: 64<<10 - 16, Chain: tail.Chain}, 5, 3),
		"segment behind": form(t, l, Tail{Term: 5, Index: 2, Offset: 128<<10 - 16, Chain: tail.Chain}, 5, 10),
		"no frame":       Frame("xyz"),
		"behind another": form(t, l, tail.After(form(t, l, tail, 5, 1)), 5, 10),
	}
	for name, f := range bad {
		if err := l.Append([]Frame{f}); !errors.Is(err, ErrChain) {
			t.Errorf("%s: %v", name, err)
		}
	}
	early := form(t, l, Tail{Term: 5, Index: 2, Offset: 64<<10 - 16, Chain: tail.Chain}, 5, 10) // a builder may move on early
	check(t, l.Append([]Frame{early}))
	holds(t, l, append(frames[:2:2], early))
	check(t, l.Close(false))
	l = mustOpen(t, small(fs))
	holds(t, l, append(frames[:2:2], early))
	check(t, l.TruncateAfter(2))
	good := form(t, l, tail, 5, 10)
	if err := l.Append([]Frame{good, good}); !errors.Is(err, ErrChain) {
		t.Errorf("twice: %v", err)
	}
	holds(t, l, frames) // and nothing was written
	check(t, l.Append([]Frame{good}))
	holds(t, l, append(frames[:2:2], good))
}

// TestBuilderAtTheEnd puts frames of all sizes at the end of a segment.
func TestBuilderAtTheEnd(t *testing.T) {
	t.Parallel()
	l := mustCreate(t, small(vfs.NewMem()))
	defer l.Close(false)
	const s = 64 << 10
	for left := ids.PhysicalOffset(16); left < 400; left += 8 { // space at the end of the segment
		tail := Tail{Term: 1, Index: 1, Offset: s - left, Chain: 7}
		e := l.EmptyFrame(tail, 1, 2)
		if fits := left >= headerSize+padSize; (e.Offset() == tail.Offset) != fits || !fits && e.Offset() != s+4096 {
			t.Fatalf("empty frame at %d with %d left", e.Offset(), left)
		}
		for n := range 300 {
			need := ids.PhysicalOffset(headerSize + recordHeaderSize + aligned(int64(n)) + padSize)
			b := l.NewBuilder(tail, 1, 5)
			body, off, ok := b.Reserve(1, 1, 0, n)
			if !ok || len(body) != n {
				t.Fatalf("%d bytes with %d left: refused", n, left)
			}
			f := b.Finish()
			if (f.Offset() == tail.Offset) != (need <= left) || off != f.Offset()+headerSize+recordHeaderSize {
				t.Fatalf("%d bytes with %d left: frame at %d, body at %d", n, left, f.Offset(), off)
			}
			if _, err := ParseFrame(f, 7); err != nil {
				t.Fatal(err)
			}
			Release(f)
		}
		// A second record must not move the first.
		b := l.NewBuilder(tail, 1, 5)
		_, first, _ := b.Reserve(1, 1, 0, 8)
		_, second, ok := b.Reserve(1, 1, 0, 200)
		if ok != (first > s || left >= headerSize+16+208+padSize) || ok && second != first+16 {
			t.Fatalf("%d left: second record at %d behind %d, %v", left, second, first, ok)
		}
		if f := b.Finish(); f.RecordCount() == 2 != ok {
			t.Fatalf("%d records", f.RecordCount())
		}
	}
	b := l.NewBuilder(l.Tail(), 1, 5)
	for _, n := range []int{-1, 16 << 10, 1 << 30} {
		if _, _, ok := b.Reserve(1, 1, 0, n); ok {
			t.Fatalf("%d bytes fit", n)
		}
	}
	if f := b.Finish(); f != nil {
		t.Fatal("a frame without a record")
	}
}

func TestTimeNeverGoesBack(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	o := small(fs)
	l := mustCreate(t, o)
	b := l.NewBuilder(l.Tail(), 1, 5000)
	b.Reserve(1, 1, 0, 1)
	check(t, l.Append([]Frame{b.Finish()}))
	check(t, l.Append([]Frame{l.EmptyFrame(l.Tail(), 2, 2)}))
	check(t, l.Append([]Frame{l.EmptyFrame(l.Tail(), 3, 3)}))
	for _, clean := range []bool{true, false} {
		check(t, l.Close(clean))
		l = mustOpen(t, o)
		if b := l.NewBuilder(l.Tail(), 3, 10); b.Time() != 5000 {
			t.Fatalf("time %d after a start", b.Time())
		}
	}
	check(t, l.TruncateAfter(2))
	if l.Tail().Time != 5000 {
		t.Fatalf("time %d after a truncation", l.Tail().Time)
	}
}

// TestReplicasAreByteEqual appends one history to a log in one go, and to another frame by frame, with restarts, truncated
// detours and recycled segments: both must end in the same bytes behind the header blocks.
func TestReplicasAreByteEqual(t *testing.T) {
	t.Parallel()
	oa, ob := small(vfs.NewMem()), small(vfs.NewMem())
	a, b := mustCreate(t, oa), mustCreate(t, ob)
	w := newTwin(rnd(1))
	for a.Tail().Offset < 12*64<<10 {
		frames := w.batch(a)
		check(t, a.Append(frames))
		for _, f := range frames {
			if w.r.IntN(5) == 0 { // a detour that another master overrules
				grow(t, b, b.Tail().Term, 1+w.r.IntN(4), w.r.IntN(3000))
				check(t, b.TruncateAfter(f.Index()-1))
			}
			if w.r.IntN(20) == 0 {
				check(t, b.Close(w.r.IntN(2) == 0))
				b = mustOpen(t, ob)
			}
			check(t, b.Append([]Frame{f}))
		}
		if base := b.Tail().Offset - 2*64<<10; base > 0 {
			check(t, b.Sync())
			check(t, b.CutFront(base))
		}
	}
	recycled := false
	segsA := a.Segments()
	for i, s := range b.Segments() {
		recycled = recycled || b.segs[i].header.recycled
		if sa := segsA[s.Base>>16]; sa != s {
			t.Fatalf("segment %+v, %+v", sa, s)
		}
		end := s.Size
		if s.Sealed {
			end += padSize
		}
		x, y := make([]byte, end-4096), make([]byte, end-4096)
		_, err := a.segs[s.Base>>16].file.ReadAt(x, 4096)
		check(t, err)
		_, err = b.segs[i].file.ReadAt(y, 4096)
		check(t, err)
		if !bytes.Equal(x, y) {
			t.Fatalf("segment %d differs", s.Base)
		}
	}
	if !recycled {
		t.Fatal("no segment was recycled")
	}
}

// TestFillAhead: the zeros reach as far as they should, in steps, and the next segment is prepared and used.
func TestFillAhead(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	o := small(fs)
	l := mustCreate(t, o)
	fill := func() (steps int) {
		for {
			more, err := l.FillAhead()
			check(t, err)
			if !more {
				return steps
			}
			steps++
		}
	}
	steps := fill()
	st, err := fs.Stat(o.Dir + "/" + segmentName(0, logSuffix))
	check(t, err)
	if steps < 10 || st.Size < 48<<10 || st.Size > 56<<10 {
		t.Fatalf("%d steps, file of %d bytes", steps, st.Size)
	}
	if fill() != 0 {
		t.Fatal("filled again")
	}
	frames := grow(t, l, 1, 6, 8000)
	fill()
	next := o.Dir + "/" + segmentName(64<<10, nextSuffix)
	if st, err := fs.Stat(next); err != nil || st.Size == 0 {
		t.Fatalf("next segment: %+v, %v", st, err)
	}
	frames = append(frames, grow(t, l, 1, 3, 8000)...)
	if _, err := fs.Stat(next); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the prepared segment was not used: %v", err)
	}
	holds(t, l, frames)
	check(t, l.Sync())
	check(t, l.CutFront(64<<10)) // its file is used again
	fill()
	grow(t, l, 1, 12, 8000)
	if s := l.segs[len(l.segs)-1]; !s.header.recycled {
		t.Fatalf("segment %d is not a recycled file", s.base())
	}
	check(t, l.Close(true))
}

// TestWriterWaitsForFiller: the zeros of a slow filler must not land on frames that were written meanwhile.
func TestWriterWaitsForFiller(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	o := small(fs)
	var slow atomic.Bool
	inside, release := make(chan struct{}), make(chan struct{})
	o.FS = vfs.Inject(fs, func(op vfs.Op, name string, off int64, n int) error {
		if op == vfs.OpWrite && strings.HasSuffix(name, logSuffix) && slow.CompareAndSwap(true, false) {
			close(inside)
			<-release
		}
		return nil
	})
	l := mustCreate(t, o)
	defer l.Close(true)
	var wg sync.WaitGroup
	slow.Store(true)
	wg.Go(func() {
		if _, err := l.FillAhead(); err != nil {
			t.Error(err)
		}
	})
	<-inside
	f := form(t, l, l.Tail(), 1, 6000)
	var appended atomic.Bool
	wg.Go(func() {
		if err := l.Append([]Frame{f}); err != nil {
			t.Error(err)
		}
		appended.Store(true)
	})
	fill := &l.segs[0].fill
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		fill.mu.Lock()
		waits := fill.waits
		fill.mu.Unlock()
		if waits > 0 || appended.Load() {
			break
		}
		if time.Now().After(deadline) {
			t.Error("the writer neither wrote nor waited")
			break
		}
	}
	close(release)
	wg.Wait()
	holds(t, l, []Frame{f})
}

// TestConcurrent runs a writer, the filler and readers at once, with truncations and cuts, for the race detector. No reader may
// ever see anything but a frame that was written under that index, or be told that it is not there.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	t.Run("Mem", func(t *testing.T) { t.Parallel(); concurrent(t, small(vfs.NewMem()), 250) })
	t.Run("OS", func(t *testing.T) {
		t.Parallel()
		o := small(vfs.OS)
		o.Dir = t.TempDir() + "/log"
		concurrent(t, o, 60)
	})
}

func concurrent(t *testing.T, o Options, steps int) {
	l := mustCreate(t, o)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	run := func(f func(r *rand.Rand)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := rnd(uint64(len(stop)))
			for {
				select {
				case <-stop:
					return
				default:
					f(r)
				}
			}
		}()
	}
	var failed atomic.Bool
	gone := func(err error) bool {
		if err == nil {
			return false
		}
		if !errors.Is(err, ErrCompacted) && !errors.Is(err, ErrUnavailable) && failed.CompareAndSwap(false, true) {
			t.Error(err)
		}
		return true
	}
	run(func(*rand.Rand) { _, err := l.FillAhead(); gone(err) })
	run(func(*rand.Rand) { gone(l.SaveMeta(nil, false)) })
	defer wg.Wait()
	done := sync.OnceFunc(func() { close(stop) })
	defer done()
	for range 2 {
		run(func(r *rand.Rand) {
			first, last := l.FirstIndex(), l.Tail().Index
			i := first + ids.Index(r.Uint64N(uint64(max(last, first)-first+1)))
			cuts := l.cuts.Load()
			f, err := l.ReadFrame(i, nil)
			if gone(err) {
				return
			}
			if f.Index() != i {
				t.Errorf("frame %d under index %d", f.Index(), i)
			}
			for rec := range f.Records() {
				p := make([]byte, len(rec.Body))
				if gone(l.ReadAt(p, rec.Offset)) {
					return
				}
				// After a truncation other frames may stand there. Without one it is the record.
				if l.cuts.Load() == cuts && !bytes.Equal(p, rec.Body) {
					t.Errorf("ReadAt of the record at %d differs from its frame", rec.Offset)
					return
				}
			}
		})
	}
	run(func(*rand.Rand) {
		prev := ids.Index(0)
		for f, err := range l.Frames(l.FirstIndex()) {
			if gone(err) {
				return
			}
			if prev != 0 && f.Index() != prev+1 {
				t.Errorf("frame %d after %d", f.Index(), prev)
			}
			prev = f.Index()
		}
	})
	r := rnd(9)
	for step := range steps {
		tail := l.Tail()
		b := l.NewBuilder(tail, ids.Term(step+1), 1)
		body, _, ok := b.Reserve(1, 1, 0, 1+r.IntN(9000))
		if !ok {
			t.Fatal("does not fit")
		}
		for i := range body {
			body[i] = byte(step)
		}
		check(t, l.Append([]Frame{b.Finish()}))
		switch r.IntN(12) {
		case 0:
			first := l.FirstIndex()
			check(t, l.TruncateAfter(first+ids.Index(r.Uint64N(uint64(l.Tail().Index-first+1)))))
		case 1:
			check(t, l.Sync())
			segs := l.Segments()
			check(t, l.CutFront(segs[len(segs)-1].Base))
		case 2:
			check(t, l.Checkpoint(nil))
		default:
			check(t, l.Sync())
		}
	}
	done()
	wg.Wait()
	check(t, l.Poisoned())
	check(t, l.Close(true))
	check(t, Verify(o, 0, nil))
}

// TestCutWhileRead: a segment that somebody reads is removed, not used again under the reader.
func TestCutWhileRead(t *testing.T) {
	t.Parallel()
	for _, reading := range []bool{true, false} {
		l := mustCreate(t, small(vfs.NewMem()))
		frames := grow(t, l, 1, 12, 8000)
		check(t, l.Sync())
		var s spot
		if reading {
			var err error
			s, err = l.locate(1)
			check(t, err)
		}
		check(t, l.CutFront(64<<10))
		if kept := len(l.spares) == 1; kept == reading {
			t.Fatalf("reading %v, kept %v", reading, kept)
		}
		grow(t, l, 1, 20, 8000) // some segments more
		if reading {
			f, err := l.readRef(s.seg, 1, frames[0].Ref(), nil)
			if err != nil || !bytes.Equal(f, frames[0]) {
				t.Fatalf("the reader's segment changed: %v", err)
			}
			s.seg.release()
		}
		check(t, l.Close(true))
	}
}

// TestMetaIsDurableFirst: a start may read of meta what only the page cache has, of a write whose sync failed. What it does
// then must not be on the disk without it.
func TestMetaIsDurableFirst(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(l *Log) error{
		"truncation": func(l *Log) error { return l.TruncateAfter(3) },
		"front cut":  func(l *Log) error { return l.CutFront(64 << 10) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for k, done := 0, false; !done; k++ {
				for seed := range uint64(4) {
					fs := vfs.NewMem()
					o := small(fs)
					l := mustCreate(t, o)
					frames := grow(t, l, 1, 20, 5000)
					check(t, l.Close(true))
					var failing atomic.Bool
					o.FS = vfs.Inject(fs, func(op vfs.Op, name string, _ int64, _ int) error {
						if failing.Load() && op == vfs.OpSync && strings.HasSuffix(name, metaName) {
							return &vfs.LostSync{Err: errInjected}
						}
						return nil
					})
					l = mustOpen(t, o)
					failing.Store(true)
					if err := change(l); !errors.Is(err, errInjected) {
						t.Fatalf("the change: %v", err)
					}
					fs = fs.KillProcess()
					var on func() bool
					o.FS, on = powerAfter(fs, k)
					_, err := Open(o)
					if done = on(); done {
						check(t, err)
					}
					o.FS = fs.Crash(rnd(seed))
					l, err = Open(o)
					if err != nil {
						t.Fatalf("step %d, seed %d: %v", k, seed, err)
					}
					holds(t, l, frames[l.FirstIndex()-1:l.Tail().Index])
				}
			}
		})
	}
}

// TestOnlySlotStays: the second slot of a new log may be in the page cache only. The first one must stay until another is on
// the disk.
func TestOnlySlotStays(t *testing.T) {
	t.Parallel()
	for k, done := 0, false; !done; k++ {
		for seed := range uint64(8) {
			fs := vfs.NewMem()
			o := small(fs)
			var metas atomic.Int64
			o.FS = vfs.Inject(fs, func(op vfs.Op, name string, _ int64, _ int) error {
				if op == vfs.OpSync && strings.HasSuffix(name, metaName) {
					metas.Add(1)
					return &vfs.LostSync{Err: errInjected}
				}
				return nil
			})
			if err := Create(o, nil); !errors.Is(err, errInjected) || metas.Load() != 1 {
				t.Fatalf("Create: %v after %d syncs", err, metas.Load())
			}
			fs = fs.KillProcess()
			var on func() bool
			o.FS, on = powerAfter(fs, k)
			_, err := Open(o)
			if done = on(); done {
				check(t, err)
			}
			o.FS = fs.Crash(rnd(seed))
			if _, err = Open(o); errors.Is(err, ErrNotCreated) {
				if err = Create(o, nil); err == nil {
					_, err = Open(o)
				}
			}
			if err != nil {
				t.Fatalf("step %d, seed %d: %v", k, seed, err)
			}
		}
	}
}

// TestBoundIsNear: without checkpoints and batches the bound in meta follows what is written, for few writes of meta.
func TestBoundIsNear(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	o := small(fs)
	metas := 0
	o.FS = vfs.Inject(fs, func(op vfs.Op, name string, _ int64, _ int) error {
		if op == vfs.OpWrite && strings.HasSuffix(name, metaName) {
			metas++
		}
		return nil
	})
	l := mustCreate(t, o)
	defer l.Close(false)
	metas = 0
	const segments = 8
	for l.Tail().Offset < segments*64<<10 {
		grow(t, l, 1, 1, 700)
		if m := l.Meta(); l.Tail().Offset > m.BoundOffset+l.o.maxBehind() {
			t.Fatalf("tail %d, bound %d", l.Tail().Offset, m.BoundOffset)
		}
		check(t, l.Sync())
	}
	// Two at the end of each segment, and one between.
	if metas > 4*segments {
		t.Errorf("%d writes of meta for %d segments", metas, segments)
	}
}

// TestStartReadsLittle: a used file is full of old bytes. Frames can be only in a part of it.
func TestStartReadsLittle(t *testing.T) {
	t.Parallel()
	o := disk(t, 1<<30)
	l := mustCreate(t, o)
	grow(t, l, 1, 20, 1000)
	check(t, l.Sync())
	h := l.segs[0].header
	check(t, l.Close(false))
	f, err := vfs.OS.OpenReadWrite(o.Dir + "/" + segmentName(0, logSuffix))
	check(t, err)
	h.recycled = true
	_, err = f.WriteAt(h.encode(), 0)
	check(t, err)
	check(t, f.Truncate(1<<30)) // a hole, which takes no space
	check(t, f.Close())
	var read atomic.Int64
	o.FS = vfs.Inject(vfs.OS, func(op vfs.Op, _ string, _ int64, n int) error {
		if op == vfs.OpRead {
			read.Add(int64(n))
		}
		return nil
	})
	l = mustOpen(t, o)
	defer l.Close(false)
	if l.Tail().Index != 20 {
		t.Fatalf("tail %d", l.Tail().Index)
	}
	if n := read.Load(); n > 200<<20 {
		t.Errorf("the start read %d MiB of a file of 1 GiB with 20 KiB in it", n>>20)
	}
}
