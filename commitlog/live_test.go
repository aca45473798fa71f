package commitlog

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// TestReadOnlyBesideWriter: who reads the log of a running node never sees damage, whatever the node appends and cuts
// meanwhile.
func TestReadOnlyBesideWriter(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		cuts bool
		span time.Duration
	}{
		{"append", false, 500 * time.Millisecond},
		{"append and cut", true, time.Second},
	} {
		t.Run("Mem "+test.name, func(t *testing.T) {
			t.Parallel()
			readBeside(t, small(vfs.NewMem()), test.cuts, test.span)
		})
		t.Run("OS "+test.name, func(t *testing.T) {
			t.Parallel()
			o := small(vfs.OS)
			o.Dir = t.TempDir() + "/log"
			readBeside(t, o, test.cuts, test.span)
		})
	}
}

func readBeside(t *testing.T, o Options, cuts bool, span time.Duration) {
	l := mustCreate(t, o)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	halt := sync.OnceFunc(func() { close(stop); wg.Wait() })
	defer halt() // of a test that gives up
	for range 2 {
		wg.Go(func() {
			opened, overtaken := 0, 0
			for {
				select {
				case <-stop:
					if opened <= overtaken {
						t.Errorf("%d opened, %d of them overtaken", opened, overtaken)
					}
					return
				default:
				}
				opened++
				switch err := Verify(o, 0, nil); {
				case errors.Is(err, ErrOvertaken) && cuts:
					overtaken++
				case err != nil:
					t.Error(err)
					return
				}
			}
		})
	}
	r := rnd(31)
	for end := time.Now().Add(span); time.Now().Before(end) && !t.Failed(); {
		var frames []Frame
		tail := l.Tail()
		for range 1 + r.IntN(20) {
			f := form(t, l, tail, 1, 1+r.IntN(3000))
			frames, tail = append(frames, f), tail.After(f)
		}
		check(t, l.Append(frames))
		switch n := r.IntN(40); {
		case cuts && n == 0:
			check(t, l.Sync())
			check(t, l.TruncateAfter(l.Tail().Index-ids.Index(r.Uint64N(uint64(len(frames))))))
		case cuts && n == 1:
			check(t, l.Sync())
			segs := l.Segments()
			check(t, l.CutFront(segs[len(segs)-1].Base))
		case n == 2:
			check(t, l.Checkpoint(nil))
		case n < 10:
			check(t, l.Sync())
		}
	}
	halt()
	check(t, l.Close(true))
	check(t, Verify(o, 0, nil))
}

// behind calls act once, before the first read of a segment file at or behind pos: the writer is faster than the reader.
func behind(fs vfs.FS, pos int64, act func()) vfs.FS {
	var once sync.Once
	return vfs.Inject(fs, func(op vfs.Op, name string, off int64, _ int) error {
		if op == vfs.OpRead && strings.HasSuffix(name, logSuffix) && off >= pos {
			once.Do(act)
		}
		return nil
	})
}

// TestReadOnlyGoesOn: frames, and whole segments, that were written after the tail was read are read too.
func TestReadOnlyGoesOn(t *testing.T) {
	t.Parallel()
	for _, more := range []int{1, 5, 60} {
		fs := vfs.NewMem()
		l := mustCreate(t, small(fs))
		frames := grow(t, l, 1, 5, 1000)
		check(t, l.Sync())
		o := small(nil)
		// The reads of a segment: its header, the frames through one buffer, and then what follows the last frame.
		o.FS = behind(fs, int64(l.Tail().Offset), func() { frames = append(frames, grow(t, l, 1, more, 3000)...) })
		o.ReadOnly = true
		reader, err := Open(o)
		if err != nil {
			t.Fatalf("%d frames more: %v", more, err)
		}
		holds(t, reader, frames)
		check(t, reader.Close(false))
		check(t, l.Close(true))
	}
}

// TestReadOnlyMeetsSegmentInTheMaking: a segment whose file was empty when its size was asked, and had its header a moment later.
func TestReadOnlyMeetsSegmentInTheMaking(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	l := mustCreate(t, small(fs))
	var frames []Frame
	for len(l.Segments()) < 2 {
		frames = append(frames, grow(t, l, 1, 1, 3000)...)
	}
	o := small(nil)
	path := o.Dir + "/" + segmentName(ids.PhysicalOffset(o.SegmentSize), logSuffix)
	whole, err := vfs.ReadFile(fs, path)
	check(t, err)
	tamper(t, fs, path, func([]byte) []byte { return nil })
	var once sync.Once
	o.FS = vfs.Inject(fs, func(op vfs.Op, name string, _ int64, _ int) error {
		if op == vfs.OpRead && strings.HasSuffix(name, path) {
			once.Do(func() { tamper(t, fs, path, func([]byte) []byte { return whole }) })
		}
		return nil
	})
	o.ReadOnly = true
	reader, err := Open(o)
	check(t, err)
	holds(t, reader, frames)
	check(t, reader.Close(false))
	check(t, l.Close(true))
}

// TestReadOnlyStartsAfresh: a truncation below the bound that was read is no lost tail, and a read that met one tells so.
func TestReadOnlyStartsAfresh(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	l := mustCreate(t, small(fs))
	frames := grow(t, l, 1, 5, 1000)
	check(t, l.Sync())
	check(t, l.SaveMeta(nil, true))
	o := small(nil)
	o.FS = behind(fs, 0, func() { check(t, l.TruncateAfter(3)) })
	o.ReadOnly = true
	reader, err := Open(o)
	check(t, err)
	holds(t, reader, frames[:3])
	check(t, l.TruncateAfter(1))
	if _, err := reader.ReadFrame(3, nil); !errors.Is(err, ErrOvertaken) {
		t.Errorf("a frame that was cut: %v", err)
	}
	check(t, reader.Close(false))

	// With nobody else at work the same bytes are damage.
	check(t, l.Close(false))
	tamper(t, fs, o.Dir+"/"+segmentName(0, logSuffix), flip(segmentHeaderSize+70))
	var damage *DamageError
	if _, err := Open(o); !errors.As(err, &damage) {
		t.Errorf("a flipped bit: %v", err)
	}
}
