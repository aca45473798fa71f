package commitlog

import (
	"errors"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// wantIndexAt is IndexAt by definition: the frame that holds off, else the first one behind it.
func wantIndexAt(frames []Frame, first, off ids.PhysicalOffset) (ids.Index, error) {
	if off < first {
		return 0, ErrCompacted
	}
	for _, f := range frames {
		if off < f.Offset()+ids.PhysicalOffset(aligned(int64(f.Size()))) {
			return f.Index(), nil
		}
	}
	return 0, ErrUnavailable
}

// checkIndexAt compares IndexAt with its definition around every boundary of the log, and in steps between.
func checkIndexAt(t *testing.T, l *Log, frames []Frame) {
	t.Helper()
	front := l.o.base(l.FirstOffset())
	end := l.Tail().Offset
	var at []ids.PhysicalOffset
	for off := ids.PhysicalOffset(0); off < end+2*ids.PhysicalOffset(l.SegmentSize()); off += 1000 {
		at = append(at, off)
	}
	for base := ids.PhysicalOffset(0); base <= end+ids.PhysicalOffset(l.SegmentSize()); base += ids.PhysicalOffset(l.SegmentSize()) {
		at = append(at, base, base+1, base+segmentHeaderSize-1, base+segmentHeaderSize, base+ids.PhysicalOffset(l.SegmentSize())-1)
	}
	for _, f := range frames {
		size := ids.PhysicalOffset(f.Size())
		at = append(at, f.Offset()-1, f.Offset(), f.Offset()+1, f.Offset()+size-1, f.Offset()+size, f.Offset()+ids.PhysicalOffset(aligned(int64(size))))
	}
	for _, off := range at {
		want, wantErr := wantIndexAt(frames, front, off)
		got, err := l.IndexAt(off)
		if !errors.Is(err, wantErr) || err == nil && got != want {
			t.Fatalf("IndexAt(%d) = %d, %v; want %d, %v (log from %d to %d)", off, got, err, want, wantErr, front, end)
		}
	}
}

func TestIndexAt(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	o := small(fs)
	l := mustCreate(t, o)
	if i, err := l.IndexAt(0); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("in an empty log: %d, %v", i, err)
	}
	r := rnd(7)
	var frames []Frame
	for l.Tail().Offset < 5*64<<10 {
		f := form(t, l, l.Tail(), 1, r.IntN(12<<10))
		if r.IntN(4) == 0 {
			f = l.EmptyFrame(l.Tail(), 1, l.Tail().Index+1)
		}
		check(t, l.Append([]Frame{f}))
		frames = append(frames, f)
	}
	checkIndexAt(t, l, frames)
	check(t, l.Sync())
	check(t, l.CutFront(2*64<<10))
	for frames[0].Offset() < 2*64<<10 {
		frames = frames[1:]
	}
	checkIndexAt(t, l, frames)
	check(t, l.TruncateAfter(frames[len(frames)-3].Index()))
	frames = frames[:len(frames)-2]
	checkIndexAt(t, l, frames)
	check(t, l.Close(true))
	l = mustOpen(t, o) // the positions that memory keeps are other ones now
	checkIndexAt(t, l, frames)
	check(t, l.Close(false))
	if _, err := l.IndexAt(frames[0].Offset()); !errors.Is(err, ErrClosed) {
		t.Fatalf("in a closed log: %v, want ErrClosed", err)
	}
}

// What Admit admits fits, whole, into the one frame; what it refuses does not, unless the next segment would take it. Replicas
// accept the frame.
func TestAdmit(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	o := small(fs)
	l := mustCreate(t, o)
	other := o
	other.Dir = "/data/other"
	twin := mustCreate(t, other)
	r := rnd(8)
	moved, refused := 0, 0
	for range 600 {
		b := l.NewBuilder(l.Tail(), 1, 0)
		if b.Admit(o.maxFrame()) || b.Admit(-1) {
			t.Fatal("more than a frame can hold was admitted")
		}
		for range 1 + r.IntN(3) {
			sizes := make([]int, 1+r.IntN(4))
			n := 0
			for i := range sizes {
				sizes[i] = r.IntN(3 << 10)
				n += RecordSpace(sizes[i])
			}
			before := b.Count()
			if !b.Admit(n) {
				if before == 0 && len(b.buf)+n <= o.maxFrame() {
					t.Fatalf("an empty frame at %d refuses %d bytes", l.Tail().Offset, n)
				}
				refused++
				break
			}
			at := b.Len()
			for i, size := range sizes {
				_, off, ok := b.Reserve(1, 1, uint16(i), size)
				if !ok {
					t.Fatalf("record %d of %v does not fit, though %d bytes were admitted behind %d records", i, sizes, n, before)
				}
				if at := l.o.base(off); at != l.o.base(off+ids.PhysicalOffset(size)) {
					t.Fatalf("a record at %d of %d bytes spans segments", off, size)
				}
			}
			if b.Len() != at+n {
				t.Fatalf("records of %v took %d bytes, RecordSpace said %d", sizes, b.Len()-at, n)
			}
		}
		if b.Count() == 0 {
			b.Abandon()
			continue
		}
		f := b.Finish()
		if l.o.base(f.Offset()) != l.o.base(l.Tail().Offset) {
			moved++
		}
		check(t, l.Append([]Frame{f}))
		check(t, twin.Append([]Frame{f}))
	}
	if moved == 0 || refused == 0 {
		t.Fatalf("%d frames moved on to the next segment, %d records were refused: the test proves nothing", moved, refused)
	}
	if l.Tail() != twin.Tail() {
		t.Fatalf("the twin ends at %+v, the log at %+v", twin.Tail(), l.Tail())
	}
	check(t, l.Close(false))
	check(t, twin.Close(false))
}
