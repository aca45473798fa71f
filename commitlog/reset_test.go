package commitlog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// donor is a log of several segments whose front was cut, and what it holds.
func donor(t *testing.T) (*Log, []Frame) {
	t.Helper()
	l := mustCreate(t, small(vfs.NewMem()))
	var frames []Frame
	for term := ids.Term(1); term <= 4; term++ {
		frames = append(frames, grow(t, l, term, 30, 4000)...)
	}
	check(t, l.Sync())
	check(t, l.CutFront(3*64<<10))
	return l, frames[l.FirstIndex()-1:]
}

// TestReset replaces a log by the one of another replica: it begins at the other's front, takes its frames, and is byte-equal to it
// from there. Owner and start counter stay.
func TestReset(t *testing.T) {
	t.Parallel()
	from, frames := donor(t)
	defer from.Close(false)
	o := small(vfs.NewMem())
	l := mustCreate(t, o)
	grow(t, l, 1, 60, 4000) // as far as the other's front, and behind it
	check(t, l.SaveMeta([]byte("another owner"), true))
	starts := l.Meta().Starts
	if err := Reset(o, from.Front()); !errors.Is(err, vfs.ErrLocked) {
		t.Fatalf("a log that is open: %v", err)
	}
	check(t, l.Close(true))
	check(t, Reset(o, from.Front()))
	l = mustOpen(t, o)
	if m := l.Meta(); string(m.Owner) != "another owner" || m.Starts != starts+1 {
		t.Errorf("owner %q, start %d", m.Owner, m.Starts)
	}
	if l.Front() != from.Front() || l.Tail().Index != from.FirstIndex()-1 || len(l.Segments()) != 1 {
		t.Fatalf("front %+v, tail %+v", l.Front(), l.Tail())
	}
	for _, f := range frames {
		check(t, l.Append([]Frame{f}))
	}
	check(t, l.Sync())
	if l.Tail() != from.Tail() {
		t.Errorf("tail %+v, want %+v", l.Tail(), from.Tail())
	}
	check(t, l.Close(true))
	l = mustOpen(t, o)
	defer l.Close(false)
	holds(t, l, frames)
	if got, want := fmt.Sprint(l.Epochs()), fmt.Sprint(from.Epochs()); got != want {
		t.Errorf("epochs %s, want %s", got, want)
	}
	for _, s := range from.Segments() {
		body := func(fs vfs.FS, dir string) string {
			b, err := vfs.ReadFile(fs, filepath.Join(dir, segmentName(s.Base, logSuffix)))
			check(t, err)
			return string(b[segmentHeaderSize:s.Size])
		}
		if body(o.FS, o.Dir) != body(from.o.FS, from.o.Dir) {
			t.Errorf("segment %d differs", s.Base)
		}
	}
}

// TestResetCrash stops a Reset at each of its writes, with whatever of them on the disk. What a start finds is the old log, whole, or
// the new one, empty at its front; then the Reset can be repeated.
func TestResetCrash(t *testing.T) {
	t.Parallel()
	from, _ := donor(t)
	defer from.Close(false)
	before, after := 0, 0
	for seed := range uint64(8) {
		for at := 0; ; at++ {
			disk := vfs.NewMem()
			o := small(disk)
			l := mustCreate(t, o)
			frames := grow(t, l, 1, 60, 4000)
			check(t, l.Sync())
			check(t, l.Close(seed%2 == 0))
			left := at
			o.FS = vfs.Inject(disk, func(op vfs.Op, _ string, _ int64, n int) error {
				if op != vfs.OpWrite && op != vfs.OpSync && op != vfs.OpSyncDir && op != vfs.OpRename && op != vfs.OpCreate && op != vfs.OpRemove {
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
			err := Reset(o, from.Front())
			whole := err == nil
			if err != nil && !errors.Is(err, errInjected) {
				t.Fatal(err)
			}
			if seed%4 == 3 {
				disk = disk.KillProcess()
			} else {
				disk = disk.Crash(rand.New(rand.NewPCG(seed, uint64(at))))
			}
			o.FS = disk
			l, err = Open(o)
			if err != nil {
				t.Fatalf("seed %d, stopped at %d: %v", seed, at, err)
			}
			switch {
			case l.Front() == from.Front():
				after++
				if l.Tail().Index != from.FirstIndex()-1 {
					t.Fatalf("seed %d, stopped at %d: the new log ends at %d", seed, at, l.Tail().Index)
				}
			case whole:
				t.Fatalf("seed %d: a Reset that was reported is gone", seed)
			default:
				before++
				holds(t, l, frames)
			}
			check(t, l.Close(false))
			check(t, Reset(o, from.Front()))
			l = mustOpen(t, o)
			if l.Front() != from.Front() {
				t.Fatalf("seed %d, stopped at %d: not repeated", seed, at)
			}
			check(t, l.Close(false))
			if whole {
				break
			}
		}
	}
	if before < 8 || after < 40 {
		t.Errorf("%d starts with the old log, %d with the new one", before, after)
	}
}

// TestFrontCheck refuses fronts that no log has.
func TestFrontCheck(t *testing.T) {
	t.Parallel()
	from, _ := donor(t)
	defer from.Close(false)
	good := from.Front()
	check(t, good.Check(64<<10))
	o := small(vfs.NewMem())
	l := mustCreate(t, o)
	check(t, l.Close(true))
	for name, change := range map[string]func(*Front){
		"no base":              func(f *Front) { f.Base = 0 },
		"base inside":          func(f *Front) { f.Base += 8 },
		"no frame before":      func(f *Front) { f.Prev.Index = 0 },
		"more frames than fit": func(f *Front) { f.Prev.Index = 1 << 60 },
		"another term":         func(f *Front) { f.Start.Term++ },
		"a later start":        func(f *Front) { f.Start.StartIndex = f.Prev.Index + 1 },
		"a start behind":       func(f *Front) { f.Start.StartOffset = f.Base },
		"a time before 1970":   func(f *Front) { f.Prev.Time = -1 },
	} {
		bad := good
		change(&bad)
		if err := Reset(o, bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	l = mustOpen(t, o)
	defer l.Close(false)
	if l.FirstIndex() != 1 {
		t.Error("a refused front changed the log")
	}
}
