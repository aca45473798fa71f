package commitlog

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// twins are two logs with the same frames, over several segments and terms. The first one is closed.
func twins(t *testing.T, clean bool, size int) (o Options, frames []Frame, other *Log) {
	t.Helper()
	o = small(vfs.NewMem())
	l, other := mustCreate(t, o), mustCreate(t, small(vfs.NewMem()))
	for term := ids.Term(1); term <= 4; term++ {
		for range 240_000 / size / 4 {
			f := form(t, l, l.Tail(), term, size)
			check(t, l.Append([]Frame{f}))
			check(t, other.Append([]Frame{f}))
			frames = append(frames, bytes.Clone(f))
		}
		f := l.EmptyFrame(l.Tail(), term, l.Tail().Index+1)
		check(t, l.Append([]Frame{f}))
		check(t, other.Append([]Frame{f}))
		frames = append(frames, bytes.Clone(f))
		check(t, errors.Join(l.Checkpoint(nil), other.Checkpoint(nil)))
	}
	check(t, l.Close(clean))
	t.Cleanup(func() { _ = other.Close(false) })
	return o, frames, other
}

// spoil changes a file of the log behind its back.
func spoil(t *testing.T, o Options, base ids.PhysicalOffset, change func([]byte) []byte) {
	t.Helper()
	name := filepath.Join(o.Dir, segmentName(base, logSuffix))
	b, err := vfs.ReadFile(o.FS, name)
	check(t, err)
	if b = change(b); b == nil {
		check(t, o.FS.Remove(name))
	} else {
		check(t, vfs.WriteFileAtomic(o.FS, name, b))
	}
	check(t, o.FS.SyncDir(o.Dir))
}

// flipInPlace changes a bit of a segment that may be open.
func flipInPlace(t *testing.T, o Options, base ids.PhysicalOffset, at int64) {
	t.Helper()
	f, err := o.FS.OpenReadWrite(filepath.Join(o.Dir, segmentName(base, logSuffix)))
	check(t, err)
	defer f.Close()
	if size, err := f.Size(); err != nil || at >= size {
		return
	}
	b := make([]byte, 1)
	_, err = f.ReadAt(b, at)
	check(t, err)
	b[0] ^= 4
	_, err = f.WriteAt(b, at)
	check(t, err)
	check(t, f.SyncData())
}

// mendFrom repairs the log of o, in pieces of n bytes. It returns how many bytes came from the other one.
func mendFrom(o Options, at ids.PhysicalOffset, n int, read func([]byte, ids.PhysicalOffset) (int, error)) (got int64, err error) {
	r, err := OpenRepair(o, at)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	buf := make([]byte, n)
	for {
		_, from, ok := r.Need()
		if !ok {
			return r.Fetched(), r.Commit()
		}
		n, err := read(buf, from)
		if err != nil {
			return 0, err
		}
		if err := r.Put(buf[:n]); err != nil {
			return 0, err
		}
	}
}

// openChecked opens the log and reads all of it, as a start and a scrub would. What is damaged is an error with its place.
func openChecked(o Options) (l *Log, at ids.PhysicalOffset, err error) {
	l, err = Open(o)
	var damage *DamageError
	if errors.As(err, &damage) {
		return nil, damage.Offset, err
	} else if err != nil {
		return nil, 0, err
	}
	for _, s := range l.Segments() {
		if s.Sealed && err == nil {
			err = l.CheckSegment(s.Base, func(int) error { return nil })
		}
	}
	if err == nil {
		for _, e := range l.Frames(l.FirstIndex()) {
			err = errors.Join(err, e)
		}
	}
	if err == nil {
		return l, 0, nil
	}
	_ = l.Close(false)
	var corrupt *CorruptionError
	if errors.As(err, &corrupt) {
		at = corrupt.Offset
	}
	return nil, at, err
}

// TestRepair spoils a log in some places before its last frame. It ends with the same bytes again, and no more than what was bad and the
// frames around it came from the other log.
func TestRepair(t *testing.T) {
	t.Parallel()
	for seed := range uint64(120) {
		r := rand.New(rand.NewPCG(seed, 9))
		o, frames, other := twins(t, seed%2 == 0, []int{200, 1000, 9000}[seed%3])
		tail := frames[len(frames)-1].Offset()
		places := 1 + r.IntN(3)
		what := ""
		for range places {
			at := ids.PhysicalOffset(r.Int64N(int64(tail)))
			base := o.base(at)
			switch k := r.IntN(8); {
			case k == 0 && base < o.base(tail):
				spoil(t, o, base, func([]byte) []byte { return nil })
				what += fmt.Sprintf(" segment %d removed", base)
			case k == 1:
				spoil(t, o, base, flip(int64(r.IntN(segmentUsed))))
				what += fmt.Sprintf(" header %d", base)
			case k == 2:
				n := min(int64(r.IntN(20_000)), int64(tail-at))
				spoil(t, o, base, func(b []byte) []byte {
					if int64(at-base) < int64(len(b)) {
						clear(b[at-base : min(int64(at-base)+n, int64(len(b)))])
					}
					return b
				})
				what += fmt.Sprintf(" zeros [%d, %d)", at, int64(at)+n)
			case k == 3 && base < o.base(tail):
				spoil(t, o, base, func(b []byte) []byte { return b[:min(int64(at-base), int64(len(b)))] })
				what += fmt.Sprintf(" cut at %d", at)
			default:
				spoil(t, o, base, func(b []byte) []byte {
					if int64(at-base) < int64(len(b)) {
						b[at-base] ^= 1 << r.IntN(8)
					}
					return b
				})
				what += fmt.Sprintf(" flip at %d", at)
			}
			if _, err := o.FS.Stat(filepath.Join(o.Dir, segmentName(base, logSuffix))); err != nil {
				break // nothing more can be spoiled there
			}
		}
		for round := 0; ; round++ {
			l, at, err := openChecked(o)
			if err == nil {
				holds(t, l, frames)
				check(t, l.Close(true))
				break
			}
			if round > 12 {
				t.Fatalf("seed %d:%s: not repaired after %d rounds: %v", seed, what, round, err)
			}
			if _, again := mendFrom(o, at, 1+r.IntN(70_000), other.ReadRaw); again != nil {
				t.Fatalf("seed %d:%s: seen as %v: %v", seed, what, err, again)
			}
		}
		names, err := o.FS.List(o.Dir)
		check(t, err)
		for _, n := range names {
			if filepath.Ext(n) == vfs.TempSuffix {
				t.Errorf("seed %d: %s is left", seed, n)
			}
		}
	}
}

// TestRepairFetchesTheDamage: one bad frame of a large log costs that frame.
func TestRepairFetchesTheDamage(t *testing.T) {
	t.Parallel()
	o, frames, other := twins(t, true, 1000)
	f := frames[100]
	spoil(t, o, o.base(f.Offset()), flip(int64(f.Offset()-o.base(f.Offset()))+300))
	got, err := mendFrom(o, f.Offset(), len(f), other.ReadRaw)
	check(t, err)
	if got != int64(len(f)) {
		t.Errorf("%d bytes were fetched for a frame of %d", got, len(f))
	}
	l, _, err := openChecked(o)
	check(t, err)
	defer l.Close(false)
	holds(t, l, frames)
}

// TestRepairRefuses: what cannot be proven to be what was there is not put in, and nothing of the log is changed.
func TestRepairRefuses(t *testing.T) {
	t.Parallel()
	o, frames, other := twins(t, true, 1000)
	pristine := image(t, o)
	// another has the same frames up to one, and others from there on.
	another := func(same, size int) *Log {
		l := mustCreate(t, small(vfs.NewMem()))
		for _, f := range frames[:same] {
			check(t, l.Append([]Frame{f}))
		}
		grow(t, l, 9, len(frames)-same+80, size)
		check(t, l.Sync())
		t.Cleanup(func() { _ = l.Close(false) })
		return l
	}
	spoilt := func(n int) ids.PhysicalOffset {
		f := frames[n]
		spoil(t, o, o.base(f.Offset()), flip(int64(f.Offset()-o.base(f.Offset()))+40))
		return f.Offset()
	}
	var damage *DamageError
	for _, c := range []struct {
		name   string
		bad    int
		read   func([]byte, ids.PhysicalOffset) (int, error)
		refuse func(error) bool
	}{
		{"another history from the damage on", 100, another(100, 1000).ReadRaw, func(err error) bool { return errors.Is(err, ErrNoMatch) }},
		{"another history before the damage", 100, another(90, 1000).ReadRaw, func(err error) bool { return errors.Is(err, ErrNoMatch) }},
		{"another history of other sizes", 100, another(100, 900).ReadRaw, func(err error) bool { return errors.Is(err, ErrNoMatch) }},
		{"garbage", 100, func(p []byte, _ ids.PhysicalOffset) (int, error) {
			return copy(p, bytes.Repeat([]byte{7}, len(p))), nil
		},
			func(err error) bool { return errors.Is(err, ErrNoMatch) }},
		{"flipped on the way", 100, func(p []byte, off ids.PhysicalOffset) (int, error) {
			n, err := other.ReadRaw(p, off)
			p[50] ^= 1
			return n, err
		}, func(err error) bool { return errors.Is(err, ErrNoMatch) }},
		{"nothing", 100, func([]byte, ids.PhysicalOffset) (int, error) { return 0, ErrUnavailable }, func(err error) bool { return errors.Is(err, ErrUnavailable) }},
		{"the last frame", len(frames) - 1, other.ReadRaw, func(err error) bool { return errors.As(err, &damage) && damage.Lost }},
	} {
		at := spoilt(c.bad)
		before := image(t, o)
		if r, err := OpenRepair(o, at); err == nil {
			if err := r.Commit(); err == nil {
				t.Errorf("%s: a repair that lacks something was committed", c.name)
			}
			check(t, r.Close())
		}
		if _, err := mendFrom(o, at, 4096, c.read); !c.refuse(err) {
			t.Errorf("%s: %v", c.name, err)
		}
		if after := image(t, o); !maps.Equal(before, after) {
			t.Errorf("%s: the files changed", c.name)
		}
		spoilt(c.bad) // back again
		if now := image(t, o); !maps.Equal(pristine, now) {
			t.Fatalf("%s: not as before", c.name)
		}
	}
	// Nothing is bad: nothing is done.
	r, err := OpenRepair(o, frames[50].Offset())
	check(t, err)
	if r.Damaged() {
		t.Error("damage was found in a good log")
	}
	if _, err := OpenRepair(o, 0); !errors.Is(err, vfs.ErrLocked) {
		t.Errorf("a second one: %v", err)
	}
	check(t, errors.Join(r.Commit(), r.Close()))
}

// TestRepairUnreadable: a place that the disk cannot read is damage like any other.
func TestRepairUnreadable(t *testing.T) {
	t.Parallel()
	o, frames, other := twins(t, true, 1000)
	disk := o.FS
	at := frames[60].Offset()
	name := segmentName(o.base(at), logSuffix)
	sector := int64(at-o.base(at)) + 200
	o.FS = vfs.Inject(disk, func(op vfs.Op, file string, off int64, n int) error {
		if op == vfs.OpRead && filepath.Base(file) == name && off <= sector && off+int64(n) > sector {
			return errInjected
		}
		return nil
	})
	l, seen, err := openChecked(o)
	if err == nil {
		_ = l.Close(false)
		t.Fatal("it was read")
	}
	if _, err := mendFrom(o, seen, 4096, other.ReadRaw); err != nil {
		t.Fatalf("seen as %v: %v", err, err)
	}
	o.FS = disk // the new file lies elsewhere
	l, _, err = openChecked(o)
	check(t, err)
	defer l.Close(false)
	holds(t, l, frames)
}

// TestRepairCrash stops a repair over two segments at each of its writes, with whatever of them on the disk. What a start finds is a log that is
// whole, or one that can be repaired again.
func TestRepairCrash(t *testing.T) {
	t.Parallel()
	again, whole := 0, 0
	for seed := range uint64(4) {
		for at := 0; ; at++ {
			o, frames, other := twins(t, seed%2 == 0, 9000)
			disk := o.FS.(*vfs.Mem)
			second := ids.PhysicalOffset(o.SegmentSize)
			var bad ids.PhysicalOffset
			for _, f := range frames {
				if f.Offset() < second {
					bad = f.Offset() // the last one of the first segment
				}
			}
			spoil(t, o, 0, func(b []byte) []byte { return b[:bad] })
			spoil(t, o, second, flip(20))
			left := at
			o.FS = vfs.Inject(disk, func(op vfs.Op, _ string, _ int64, n int) error {
				if op != vfs.OpWrite && op != vfs.OpSync && op != vfs.OpSyncDir && op != vfs.OpRename && op != vfs.OpCreate {
					return nil
				}
				if left--; left >= 0 {
					return nil
				}
				if left == -1 && op == vfs.OpWrite {
					return &vfs.ShortWrite{N: n / 2, Err: errInjected}
				}
				return errInjected
			})
			_, err := mendFrom(o, bad, 4096, other.ReadRaw)
			done := err == nil
			if err != nil && !errors.Is(err, errInjected) {
				t.Fatal(err)
			}
			if seed%2 == 1 {
				disk = disk.KillProcess()
			} else {
				disk = disk.Crash(rand.New(rand.NewPCG(seed, uint64(at))))
			}
			o.FS = disk
			l, seen, err := openChecked(o)
			if err != nil && done {
				t.Fatalf("seed %d: a repair that was finished: %v", seed, err)
			}
			for round := 0; err != nil; round++ {
				if round > 3 {
					t.Fatalf("seed %d, stopped at %d: %v", seed, at, err)
				}
				again++
				if _, err := mendFrom(o, seen, 4096, other.ReadRaw); err != nil {
					t.Fatalf("seed %d, stopped at %d: %v", seed, at, err)
				}
				l, seen, err = openChecked(o)
			}
			whole++
			holds(t, l, frames)
			check(t, l.Close(false))
			if done {
				break
			}
		}
	}
	if again < 20 || whole < 20 {
		t.Errorf("repaired again %d times of %d", again, whole)
	}
}

// TestCheckSegment: rot in a sealed segment is found wherever it is, and poisons the log.
func TestCheckSegment(t *testing.T) {
	t.Parallel()
	o, frames, _ := twins(t, true, 1000)
	for at := int64(0); at < o.SegmentSize; at += 509 {
		l := mustOpen(t, o)
		flipInPlace(t, o, 65536, at)
		bytes := 0
		err := l.CheckSegment(65536, func(n int) error { bytes += n; return nil })
		var corrupt *CorruptionError
		last := l.Segments()[1]
		switch inside := at < last.Size+padSize; {
		case inside && !errors.As(err, &corrupt):
			t.Fatalf("a flip at %d is not found: %v", at, err)
		case inside && l.Poisoned() == nil:
			t.Fatal("the log is not poisoned")
		case !inside && err != nil:
			t.Fatalf("a flip behind the frames, at %d: %v", at, err)
		case !inside && int64(bytes) != last.Size-segmentHeaderSize:
			t.Fatalf("%d bytes were paced, the segment has %d", bytes, last.Size)
		}
		check(t, l.Close(false))
		flipInPlace(t, o, 65536, at)
	}
	l := mustOpen(t, o)
	defer l.Close(false)
	holds(t, l, frames)
	if err := l.CheckSegment(65536, func(int) error { return os.ErrDeadlineExceeded }); !errors.Is(err, os.ErrDeadlineExceeded) || l.Poisoned() != nil {
		t.Errorf("stopped: %v, poisoned %v", err, l.Poisoned())
	}
	segs := l.Segments()
	for _, base := range []ids.PhysicalOffset{segs[len(segs)-1].Base, 1, 1 << 40} {
		if err := l.CheckSegment(base, func(int) error { return nil }); !errors.Is(err, ErrUnavailable) {
			t.Errorf("segment %d: %v", base, err)
		}
	}
}

// TestDamageAtTheTail: the last frame that was reported as durable goes bad while the log is open, far above the bound in meta. A read
// finds it, and from then on the log is one that lost its tail, for a repair and for a start: nothing cuts that frame as a torn one. So
// it is when the process ends before or after Close, and for what a log that syncs later has written.
func TestDamageAtTheTail(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		for _, end := range []string{"closed", "killed behind KeepBound", "stopped"} {
			fs := vfs.NewMem()
			o := small(fs)
			if late {
				o = async(fs, "a")
			}
			l := mustCreate(t, o)
			var last Frame
			for range 4 {
				last = chain(t, l, l.Tail(), 1, 500)[0]
				check(t, l.Append([]Frame{last}))
				if !late {
					check(t, l.Sync())
				}
			}
			if m := l.Meta(); m.BoundIndex != 0 {
				t.Fatalf("the bound is %d", m.BoundIndex)
			}
			flipInPlace(t, o, 0, int64(last.Offset())+40)
			if _, err := l.ReadFrame(4, nil); err == nil {
				t.Fatal("the bad frame was read")
			}
			switch end {
			case "closed":
				check(t, l.Close(false))
			case "killed behind KeepBound":
				check(t, l.KeepBound())
				o.FS = fs.KillProcess()
			default:
				if err := l.Close(true); err == nil {
					t.Error("a stop passes for a clean one")
				}
			}
			var damage *DamageError
			r, err := OpenRepair(o, last.Offset())
			if !errors.As(err, &damage) || !damage.Lost {
				t.Errorf("late %v, %s: the repair says %v", late, end, err)
			}
			if r != nil {
				check(t, r.Close())
			}
			if l, err := Open(o); !errors.As(err, &damage) {
				t.Errorf("late %v, %s: a start says %v", late, end, err)
				if err == nil {
					_ = l.Close(false)
				}
			}
		}
	}
}

// TestKeepBoundFails: what a log that syncs later wrote is not known to be there when its sync fails.
func TestKeepBoundFails(t *testing.T) {
	t.Parallel()
	fail := atomic.Bool{}
	mem := vfs.NewMem()
	fs := vfs.Inject(mem, func(op vfs.Op, name string, _ int64, _ int) error {
		if fail.Load() && op == vfs.OpSync {
			return errInjected
		}
		return nil
	})
	l := mustCreate(t, async(fs, "a"))
	defer l.Close(false)
	frames := grow(t, l, 1, 4, 500)
	flipInPlace(t, async(mem, "a"), 0, int64(frames[3].Offset())+40)
	if _, err := l.ReadFrame(4, nil); err == nil {
		t.Fatal("the bad frame was read")
	}
	fail.Store(true)
	if err := l.KeepBound(); err == nil || !l.SyncFailed() {
		t.Errorf("KeepBound: %v", err)
	}
	fail.Store(false)
	if err := l.KeepBound(); err == nil {
		t.Error("a sync that failed was repeated")
	}
}

// TestRepairWithoutAFirstSegment: a start demands the first segment also of a log without a frame, and so does a repair, or the two would go
// round in a circle.
func TestRepairWithoutAFirstSegment(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func([]byte) []byte{"removed": func([]byte) []byte { return nil }, "bad header": flip(24)} {
		o := small(vfs.NewMem())
		check(t, mustCreate(t, o).Close(true))
		spoil(t, o, 0, change)
		var damage *DamageError
		if _, err := Open(o); !errors.As(err, &damage) {
			t.Fatalf("%s: a start says %v", name, err)
		}
		r, err := OpenRepair(o, damage.Offset)
		if !errors.As(err, &damage) || !damage.Lost {
			t.Errorf("%s: the repair says %v", name, err)
		}
		if r != nil {
			check(t, r.Close())
		}
	}
}
