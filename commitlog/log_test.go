package commitlog

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

var (
	testCluster = ids.ClusterID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	testGroup   = ids.GroupID{16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1}
)

// small returns options of a log with segments of 64 KiB.
func small(fs vfs.FS) Options {
	return Options{FS: fs, Dir: "/data/log", Cluster: testCluster, Group: testGroup, SegmentSize: 64 << 10, SmallSegments: true, FillAhead: 48 << 10}
}

func mustCreate(t testing.TB, o Options) *Log {
	t.Helper()
	if err := Create(o, []byte("owner")); err != nil {
		t.Fatalf("Create: %v", err)
	}
	return mustOpen(t, o)
}

func mustOpen(t testing.TB, o Options) *Log {
	t.Helper()
	l, err := Open(o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return l
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// form makes the next frame after tail with records of the given sizes.
func form(t testing.TB, l *Log, tail Tail, term ids.Term, sizes ...int) Frame {
	t.Helper()
	b := l.NewBuilder(tail, term, 1000+int64(tail.Index))
	for i, n := range sizes {
		body, _, ok := b.Reserve(1, 1, uint16(i), n)
		if !ok {
			t.Fatalf("record of %d bytes does not fit", n)
		}
		for at := range body {
			body[at] = byte(int(tail.Index) + i + at)
		}
	}
	return b.Finish()
}

// grow appends n frames of one record each and returns them.
func grow(t testing.TB, l *Log, term ids.Term, n, size int) []Frame {
	t.Helper()
	var frames []Frame
	for range n {
		f := form(t, l, l.Tail(), term, size)
		check(t, l.Append([]Frame{f}))
		frames = append(frames, f)
	}
	return frames
}

// holds checks that the log has exactly these frames from its front on.
func holds(t testing.TB, l *Log, frames []Frame) {
	t.Helper()
	if got, want := l.Tail().Index, l.FirstIndex()+ids.Index(len(frames))-1; got != want {
		t.Fatalf("tail is index %d, want %d", got, want)
	}
	n := 0
	for f, err := range l.Frames(l.FirstIndex()) {
		check(t, err)
		if !bytes.Equal(f, frames[n]) {
			t.Fatalf("frame %d differs", f.Index())
		}
		n++
	}
	if n != len(frames) {
		t.Fatalf("%d frames read, want %d", n, len(frames))
	}
	for i := range frames {
		want := frames[i]
		f, err := l.ReadFrame(want.Index(), nil)
		check(t, err)
		if !bytes.Equal(f, want) {
			t.Fatalf("ReadFrame(%d) differs", want.Index())
		}
		if f, err = l.FrameAt(want.Offset()); err != nil || !bytes.Equal(f, want) {
			t.Fatalf("FrameAt(%d) of frame %d: %v", want.Offset(), want.Index(), err)
		}
		if ref, err := l.RefOf(want.Index()); err != nil || ref != want.Ref() {
			t.Fatalf("RefOf(%d) = %+v, %v", want.Index(), ref, err)
		}
		if term, err := l.TermOf(want.Index()); err != nil || term != want.Term() {
			t.Fatalf("TermOf(%d) = %v, %v", want.Index(), term, err)
		}
		raw := make([]byte, len(want))
		if err := l.ReadAt(raw, want.Offset()); err != nil || !bytes.Equal(raw, want) {
			t.Fatalf("ReadAt(%d): %v", want.Offset(), err)
		}
	}
}

func TestAppendSyncReopen(t *testing.T) {
	t.Parallel()
	for _, clean := range []bool{true, false} {
		t.Run(fmt.Sprintf("clean=%v", clean), func(t *testing.T) {
			t.Parallel()
			fs := vfs.NewMem()
			o := small(fs)
			l := mustCreate(t, o)
			frames := grow(t, l, 1, 30, 5000) // some segments
			e := l.EmptyFrame(l.Tail(), 2, l.Tail().Index+1)
			check(t, l.Append([]Frame{e}))
			frames = append(frames, e)
			frames = append(frames, grow(t, l, 2, 30, 100)...)
			check(t, l.Sync())
			holds(t, l, frames)
			if len(l.Segments()) < 3 {
				t.Fatalf("segments: %+v", l.Segments())
			}
			check(t, l.SaveMeta([]byte("other"), true))
			check(t, l.Close(clean))
			l = mustOpen(t, o)
			holds(t, l, frames)
			if m := l.Meta(); string(m.Owner) != "other" || m.Starts != 2 || m.CleanStop {
				t.Fatalf("meta %+v", m)
			}
			if e := l.Epochs(); len(e) != 2 || e[1].StartIndex != 31 || e[1].Term != 2 {
				t.Fatalf("epochs %+v", e)
			}
			frames = append(frames, grow(t, l, 3, 5, 9000)...)
			holds(t, l, frames)
			if _, err := l.ReadFrame(l.Tail().Index+1, nil); !errors.Is(err, ErrUnavailable) {
				t.Fatalf("above the tail: %v", err)
			}
			check(t, l.Close(true))
		})
	}
}

func readMetaFile(o Options) ([]byte, error) {
	o.EnsureDefaults()
	return vfs.ReadFile(o.FS, o.Dir+"/"+metaName)
}

func writeMetaFile(o Options, b []byte) error {
	o.EnsureDefaults()
	return vfs.WriteFileAtomic(o.FS, o.Dir+"/"+metaName, b)
}

func crcOf(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }
