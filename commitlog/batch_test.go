package commitlog

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/internal/vfs"
)

// chain forms n frames of one record each that follow tail.
func chain(t testing.TB, l *Log, tail Tail, n, size int) []Frame {
	t.Helper()
	var frames []Frame
	for range n {
		f := form(t, l, tail, max(tail.Term, 1), size)
		frames, tail = append(frames, f), tail.After(f)
	}
	return frames
}

// TestPowerCutAtEachStep cuts the power in each write, sync and change of a name while frames are appended one by one and in
// batches, over the ends of segments, into new files and used ones. Every start goes well, holds what was synced, and leaves
// nothing behind that a second power cut could bring to light.
func TestPowerCutAtEachStep(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		cut     bool // the front is cut, so that the next segment is a used file
		fill    bool
		batches []int // frames of 5 KiB in each Append before a Sync; the last segment has room for 4
	}{
		{"one frame over the end", false, false, []int{1, 1, 1, 1, 1, 1}},
		{"one frame over the end, prepared file", false, true, []int{1, 1, 1, 1, 1, 1}},
		{"one frame over the end, used file", true, false, []int{1, 1, 1, 1, 1, 1}},
		{"batch", false, true, []int{1, 3, 1}},
		{"batch over the end", false, false, []int{1, 12, 1}},
		{"batch over the end, prepared file", false, true, []int{2, 8, 4, 1}},
		{"batch over the end, used file", true, false, []int{2, 13, 1}},
		{"batch over two ends", true, false, []int{1, 22, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cuts, every := 0, 1
			if testing.Short() {
				every = 3
			}
			for k := 0; ; k += every {
				done := false
				seeds := uint64(2)
				if c.cut {
					seeds = 8 // the name of the used file must come back, and the frames in it stay
				}
				for seed := range seeds {
					fs := vfs.NewMem()
					o := small(fs)
					l := mustCreate(t, o)
					frames := grow(t, l, 1, 20, 5000)
					check(t, l.Sync())
					first := 0
					if c.cut {
						check(t, l.CutFront(64<<10))
						first = int(l.FirstIndex()) - 1
					}
					for more := c.fill; more; {
						var err error
						more, err = l.FillAhead()
						check(t, err)
					}
					check(t, l.Close(true))

					var on func() bool
					o.FS, on = powerAfter(fs, k)
					synced, err := len(frames), error(nil)
					if l, err = Open(o); err == nil {
						for _, n := range c.batches {
							batch := chain(t, l, l.Tail(), n, 5000)
							frames = append(frames, batch...)
							if err = l.Append(batch); err == nil {
								err = l.Sync()
							}
							if err != nil {
								break
							}
							synced = len(frames)
						}
					}
					if on() {
						check(t, err)
						done = true
					}
					r := rnd(seed)
					for range 3 { // the second and third start find what the one before made of it
						fs = fs.Crash(r)
						o.FS = fs
						l = mustOpen(t, o)
						last := int(l.Tail().Index)
						if last < synced || last > len(frames) {
							t.Fatalf("step %d, seed %d: tail %d, %d were synced, %d written", k, seed, last, synced, len(frames))
						}
						if last < len(frames) {
							cuts++
						}
						frames, synced = frames[:last:last], last
						holds(t, l, frames[first:])
						f := form(t, l, l.Tail(), 1, 300)
						frames = append(frames, f)
						check(t, l.Append([]Frame{f}))
					}
				}
				if done {
					break
				}
			}
			if cuts == 0 {
				t.Error("no power cut cost a frame")
			}
		})
	}
}

// TestBatchIsJudged damages a log that was written in batches: only what nobody was told to be synced may be cut as a torn tail.
func TestBatchIsJudged(t *testing.T) {
	t.Parallel()
	const damaged = -1
	for _, c := range []struct {
		name string
		// write appends to a log of 3 synced frames, and returns the frames and the one in which a bit flips.
		write func(t *testing.T, l *Log) (frames []Frame, bad int)
		// lose is the slot of meta that is lost too: 0 none, 1 the newest, 2 the older one.
		lose int
		want int // frames left, or damaged
	}{
		{"in a batch that is not synced", func(t *testing.T, l *Log) ([]Frame, int) {
			b := chain(t, l, l.Tail(), 5, 500)
			check(t, l.Append(b))
			return b, 5
		}, 0, 5},
		{"in a batch that grew", func(t *testing.T, l *Log) ([]Frame, int) {
			return grow(t, l, 1, 5, 500), 4
		}, 0, 4},
		{"before a batch that is not synced", func(t *testing.T, l *Log) ([]Frame, int) {
			b := chain(t, l, l.Tail(), 5, 500)
			check(t, l.Append(b))
			return b, 2
		}, 0, damaged},
		{"at the start of a synced batch", func(t *testing.T, l *Log) ([]Frame, int) {
			b := chain(t, l, l.Tail(), 5, 500)
			check(t, l.Append(b))
			check(t, l.Sync())
			return b, 3
		}, 0, damaged},
		{"at the end of a synced batch", func(t *testing.T, l *Log) ([]Frame, int) {
			b := chain(t, l, l.Tail(), 5, 500)
			check(t, l.Append(b))
			check(t, l.Sync())
			return b, 7
		}, 0, damaged},
		{"in a synced batch, and the write of meta that ended it is lost", func(t *testing.T, l *Log) ([]Frame, int) {
			b := chain(t, l, l.Tail(), 5, 500)
			check(t, l.Append(b))
			check(t, l.Sync())
			f := form(t, l, l.Tail(), 1, 500)
			check(t, l.Append([]Frame{f}))
			check(t, l.Sync())
			return append(b, f), 4
		}, 1, damaged},
		{"in a synced batch, and the write of meta that began it is lost", func(t *testing.T, l *Log) ([]Frame, int) {
			b := chain(t, l, l.Tail(), 5, 500)
			check(t, l.Append(b))
			check(t, l.Sync())
			return b, 4
		}, 2, damaged},
		{"in single frames where a batch was truncated", func(t *testing.T, l *Log) ([]Frame, int) {
			check(t, l.Append(chain(t, l, l.Tail(), 5, 500)))
			check(t, l.TruncateAfter(3))
			var frames []Frame
			for range 3 {
				frames = append(frames, grow(t, l, 2, 1, 300)...)
				check(t, l.Sync())
			}
			return frames, 4
		}, 0, damaged},
		{"in single frames where a batch was truncated in the middle", func(t *testing.T, l *Log) ([]Frame, int) {
			b := chain(t, l, l.Tail(), 5, 500)
			check(t, l.Append(b))
			check(t, l.TruncateAfter(5))
			frames := b[:2:2]
			for range 2 {
				frames = append(frames, grow(t, l, 2, 1, 300)...)
				check(t, l.Sync())
			}
			return frames, 5
		}, 0, damaged},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			fs := vfs.NewMem()
			o := small(fs)
			l := mustCreate(t, o)
			frames := grow(t, l, 1, 3, 500)
			check(t, l.Sync())
			more, bad := c.write(t, l)
			frames = append(frames, more...)
			next := l.meta.next // the older one
			check(t, l.Close(false))
			if c.lose > 0 {
				slot := (next + c.lose) % 2
				tamper(t, fs, o.Dir+"/"+metaName, flip(int64(slot*metaSlot+300)))
			}
			tamper(t, fs, o.Dir+"/"+segmentName(0, logSuffix), flip(int64(frames[bad].Offset())+70))
			before := image(t, o)
			l, err := Open(o)
			var d *DamageError
			switch {
			case c.want == damaged:
				if !errors.As(err, &d) || d.Offset != frames[bad].Offset() {
					t.Fatalf("Open: %v, want damage at %d", err, frames[bad].Offset())
				}
				name := segmentName(0, logSuffix)
				if image(t, o)[name] != before[name] {
					t.Fatal("Open changed the frames")
				}
			default:
				check(t, err)
				holds(t, l, frames[:c.want])
				check(t, l.Close(true))
			}
		})
	}
}

// TestStartEndsBatch: what a start has cut out of a batch is no excuse for what is written there afterwards.
func TestStartEndsBatch(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	o := small(fs)
	l := mustCreate(t, o)
	frames := chain(t, l, l.Tail(), 8, 500)
	check(t, l.Append(frames))
	check(t, l.Close(false))
	name := o.Dir + "/" + segmentName(0, logSuffix)
	tamper(t, fs, name, flip(int64(frames[3].Offset())+70))
	l = mustOpen(t, o)
	frames = frames[:3:3]
	for range 3 {
		frames = append(frames, grow(t, l, 2, 1, 300)...)
		check(t, l.Sync())
	}
	check(t, l.Close(false))
	tamper(t, fs, name, flip(int64(frames[4].Offset())+70))
	var d *DamageError
	if _, err := Open(o); !errors.As(err, &d) || d.Offset != frames[4].Offset() {
		t.Fatalf("Open: %v", err)
	}
}

// TestRestOfBatchIsErased: a used file is not erased to its end, but as far as the batch went that a start has cut.
func TestRestOfBatchIsErased(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	o := small(fs)
	l := mustCreate(t, o)
	grow(t, l, 1, 12, 8000)
	check(t, l.Sync())
	check(t, l.CutFront(64<<10))
	for !l.segs[len(l.segs)-1].header.recycled {
		grow(t, l, 1, 1, 8000)
		check(t, l.Sync())
	}
	kept := l.Tail().Index
	batch := chain(t, l, l.Tail(), 6, 8000)
	check(t, l.Append(batch))
	if last := batch[5]; int(last.Offset()-batch[0].Offset()) < 2*o.maxFrame() || o.base(last.Offset()) != o.base(batch[0].Offset()) {
		t.Fatalf("the batch from %d to %d is not as this test needs it", batch[0].Offset(), last.Offset())
	}
	base := o.base(batch[0].Offset())
	check(t, l.Close(false))
	tamper(t, fs, o.Dir+"/"+segmentName(base, logSuffix), flip(int64(batch[0].Offset()-base)+70))
	for range 2 {
		l = mustOpen(t, o)
		if l.Tail().Index != kept {
			t.Fatalf("tail %d, want %d", l.Tail().Index, kept)
		}
		check(t, l.Close(false))
	}
}

// TestCostOfBatch: one frame at a time costs one sync and no write of meta, a batch two writes of meta.
func TestCostOfBatch(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	o := small(fs)
	var writes, syncs, metas int
	o.FS = vfs.Inject(fs, func(op vfs.Op, name string, _ int64, _ int) error {
		switch {
		case op == vfs.OpSync:
			syncs++
		case op == vfs.OpWrite && strings.HasSuffix(name, metaName):
			metas++
		case op == vfs.OpWrite:
			writes++
		}
		return nil
	})
	l := mustCreate(t, o)
	defer l.Close(false)
	costs := func(appends [][]Frame) string {
		writes, syncs, metas = 0, 0, 0
		for _, frames := range appends {
			check(t, l.Append(frames))
			check(t, l.Sync())
		}
		return fmt.Sprintf("%d writes, %d of meta, %d syncs", writes, metas, syncs)
	}
	var single [][]Frame
	for _, f := range chain(t, l, l.Tail(), 10, 500) {
		single = append(single, []Frame{f})
	}
	if got, want := costs(single), "10 writes, 0 of meta, 10 syncs"; got != want {
		t.Errorf("10 single frames: %s, want %s", got, want)
	}
	batch := chain(t, l, l.Tail(), 10, 500)
	if got, want := costs([][]Frame{batch}), "1 writes, 2 of meta, 3 syncs"; got != want {
		t.Errorf("a batch of 10: %s, want %s", got, want)
	}
	if got, want := costs([][]Frame{chain(t, l, l.Tail(), 1, 500)}), "1 writes, 0 of meta, 1 syncs"; got != want {
		t.Errorf("one frame behind a batch: %s, want %s", got, want)
	}
}
