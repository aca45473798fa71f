package index

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// TestDeleteEverything removes all files, and each file alone, and reads the log again: the same answers.
func TestDeleteEverything(t *testing.T) {
	t.Parallel()
	w, mem := newTwin(5), vfs.NewMem()
	x := w.open(t, mem)
	for i := range 1300 {
		m := w.message()
		if err := m.add(x); err != nil {
			t.Fatal(err)
		}
		if i%150 == 149 {
			if err := x.Checkpoint(w.end); err != nil {
				t.Fatal(err)
			}
		}
	}
	names, err := mem.List("data/index")
	if err != nil || len(names) < 10 {
		t.Fatalf("files %v, %v", names, err)
	}
	for i := range len(names) + 1 {
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		names, err := mem.List("data/index")
		if err != nil {
			t.Fatal(err)
		}
		if i < len(names) {
			names = names[i : i+1]
		}
		for _, n := range names {
			if err := mem.Remove("data/index/" + n); err != nil {
				t.Fatal(err)
			}
		}
		x, w.damaged = w.open(t, mem), true
		if i%2 == 0 {
			x = w.fill(t, x, mem)
		}
		w.replay(t, x)
		w.check(t, x)
		if err := x.Checkpoint(w.end); err != nil {
			t.Fatal(err)
		}
		w.check(t, x)
		if holes := x.Missing(); len(holes) > 0 || x.Covered() < w.end {
			t.Fatalf("after the checkpoint: holes %v, covered %d of %d", holes, x.Covered(), w.end)
		}
	}
}

// TestDamageWhileRunning flips a bit in each page of a sealed segment's file in turn. Whoever meets it gets an error that
// names the file, never a wrong entry; a rebuilt hole answers as before.
func TestDamageWhileRunning(t *testing.T) {
	t.Parallel()
	w, mem := newTwin(6), vfs.NewMem()
	x := w.open(t, mem)
	for w.end < 2*testSegment {
		m := w.message()
		if err := m.add(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.Checkpoint(w.end); err != nil {
		t.Fatal(err)
	}
	const name = "data/index/00000000000000000000.idx"
	data, err := vfs.ReadFile(mem, name)
	if err != nil {
		t.Fatal(err)
	}
	h, err := decodeHeader(data)
	if err != nil || h.words == 0 {
		t.Fatalf("%d words, %v", h.words, err)
	}
	for page := 1; page < len(data)/pageSize; page++ {
		if n := int64(page); n >= h.fencePage() && n < h.fencePage()+h.fencePages() {
			continue // the fence is read once, at Open
		}
		f, err := mem.OpenReadWrite(name)
		if err != nil {
			t.Fatal(err)
		}
		at := int64(page*pageSize + w.r.IntN(pageSize))
		if _, err := f.WriteAt([]byte{data[at] ^ 1}, at); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()

		met := false
		for _, m := range w.log {
			got, err := x.Get(m.k, m.qo, 1, nil)
			var bad *CorruptionError
			switch {
			case errors.As(err, &bad):
				if met || bad.File != name || bad.Page != int64(page) {
					t.Fatalf("page %d is damaged: %v", page, err)
				}
				met = true
			case err != nil:
				t.Fatal(err)
			case len(got) > 0 && got[0] != m.e:
				t.Fatalf("page %d is damaged: entry %d of %v is %+v", page, m.qo, m.k, got[0])
			case len(got) == 0 && !met:
				t.Fatalf("entry %d of %v is gone without a word", m.qo, m.k)
			}
		}
		for _, m := range w.log {
			for _, hash := range m.w {
				found := false
				err := x.Find(hash, m.e.Offset, m.e.Offset+1, func(o ids.PhysicalOffset) bool { found = o == m.e.Offset; return true })
				var bad *CorruptionError
				var hole *HoleError
				switch {
				case errors.As(err, &bad):
					if met || bad.File != name || bad.Page != int64(page) {
						t.Fatalf("page %d is damaged: %v", page, err)
					}
					met = true
				case errors.As(err, &hole):
					if !met || hole.Hole != (Span{m.e.Offset, m.e.Offset + 1}) {
						t.Fatalf("page %d is damaged: met %v, %v", page, met, err)
					}
				case err != nil || !found:
					t.Fatalf("page %d is damaged: a word of the message at %d is gone: %v", page, m.e.Offset, err)
				}
			}
		}
		if !met || x.Covered() != 0 || !slices.Equal(x.Missing(), []Span{{0, testSegment}}) {
			t.Fatalf("page %d is damaged: met %v, covered %d, holes %v", page, met, x.Covered(), x.Missing())
		}
		w.rebuild(t, x)
		w.check(t, x)
	}
	if err := x.Rebuild(Span{0, testSegment}, nil); err == nil {
		t.Fatal("a span that is no hole was rebuilt")
	}
}

// TestDensity checks what Add can see of a hole in a queue.
func TestDensity(t *testing.T) {
	t.Parallel()
	x, err := Open(Options{FS: vfs.NewMem(), Dir: "index", SegmentSize: testSegment})
	if err != nil {
		t.Fatal(err)
	}
	k := Key{1, 2}
	at := ids.PhysicalOffset(0)
	add := func(qo ids.QueueOffset) error {
		at += 100
		return x.Add(k, qo, Entry{Offset: at, Size: 90})
	}
	if err := errors.Join(add(5), add(6)); err != nil {
		t.Fatal(err)
	}
	dense := func(err error, want, have ids.QueueOffset) {
		t.Helper()
		var d *DensityError
		if !errors.As(err, &d) || d.Want != want || d.Have != have || d.Key != k {
			t.Fatalf("want a hole from %d to %d: %v", want, have, err)
		}
	}
	dense(add(8), 7, 8)
	dense(add(6), 7, 6)
	if err := x.Checkpoint(at + 100); err != nil {
		t.Fatal(err)
	}
	dense(add(9), 7, 9)
	if err := add(7); err != nil {
		t.Fatal(err)
	}
	// What lies below what was added is left alone, whatever it says.
	if err := x.Add(k, 99, Entry{Offset: 100}); err != nil {
		t.Fatal(err)
	}
	if first, next, ok := x.Range(k); first != 5 || next != 8 || !ok {
		t.Fatalf("range %d to %d, %v", first, next, ok)
	}
}

// TestReadersBesideWriter reads from three goroutines while one adds and one makes checkpoints and cuts the front. It is of
// use with the race detector.
func TestReadersBesideWriter(t *testing.T) {
	t.Parallel()
	x, err := Open(Options{FS: vfs.OS, Dir: t.TempDir(), SegmentSize: testSegment, MaxRuns: 3})
	if err != nil {
		t.Fatal(err)
	}
	const queues, messages = 50, 20_000
	entry := func(i int) Entry { // message i is in queue i%queues, at offset i/queues of it
		return Entry{Offset: ids.PhysicalOffset(i)*128 + 4096, Size: 100, TagsCode: int64(i)}
	}
	stop := make(chan struct{})
	stopped := func() bool {
		select {
		case <-stop:
			return true
		default:
			return false
		}
	}
	var wg sync.WaitGroup
	for g := range 3 {
		wg.Go(func() {
			var dst []Entry
			for i := g; !stopped(); i++ {
				k := Key{1, ids.QueueID(i % queues)}
				first, next, ok := x.Range(k)
				if !ok || first == next {
					continue
				}
				from := first + ids.QueueOffset(i)%(next-first)
				got, err := x.Get(k, from, 32, dst[:0])
				if err != nil {
					t.Error(err)
					return
				}
				for j, e := range got {
					if want := entry((int(from)+j)*queues + int(k.Queue)); e != want {
						t.Errorf("entry %d of %v is %+v, want %+v", int(from)+j, k, e, want)
						return
					}
				}
				dst = got
			}
		})
	}
	wg.Go(func() {
		for i := 0; !stopped(); i++ {
			x.mu.RLock()
			at := x.added
			x.mu.RUnlock()
			if err := x.Checkpoint(at); err != nil {
				t.Error(err)
				return
			}
			if i%5 == 4 {
				if err := x.CutFront(x.Covered() - 4*testSegment); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for i := range messages {
		if err := x.Add(Key{1, ids.QueueID(i % queues)}, ids.QueueOffset(i/queues), entry(i)); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
}

// fill100k spreads messages of 1 KiB over 100,000 queues of 100 topics, with a checkpoint for each 64 MiB of log.
func fill100k(tb testing.TB, x *Index, queues, messages int) (end ids.PhysicalOffset) {
	tb.Helper()
	const step = 1200
	for i := range messages {
		at := ids.PhysicalOffset(i)*step + 4096
		q := i * 7919 % queues
		k := Key{ids.TopicID(1 + q%100), ids.QueueID(q / 100)}
		if err := x.Add(k, ids.QueueOffset(i/queues), Entry{Offset: at, Size: 1100, TagsCode: int64(q)}); err != nil {
			tb.Fatal(err)
		}
		end = at + step
		if i%55_000 == 54_999 {
			if err := x.Checkpoint(end); err != nil {
				tb.Fatal(err)
			}
		}
	}
	return end
}

// TestManyQueues spreads messages over 100,000 queues: the number of files follows from the log alone, the bytes from the
// entries and the queues of each segment.
func TestManyQueues(t *testing.T) {
	t.Parallel()
	const queues, messages = 100_000, 450_000 // 515 MiB of log
	dir := t.TempDir()
	o := Options{Dir: dir, SegmentSize: 256 << 20}
	x, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	end := fill100k(t, x, queues, messages)
	if err := x.Checkpoint(end); err != nil {
		t.Fatal(err)
	}
	names, err := vfs.OS.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	var bytes int64
	for _, n := range names {
		i, err := vfs.OS.Stat(dir + "/" + n)
		if err != nil {
			t.Fatal(err)
		}
		bytes += i.Size
	}
	// Two sealed segments and the runs of the third.
	if len(names) > 2+8 {
		t.Fatalf("%d files: %v", len(names), names)
	}
	most := int64(messages*entrySize+3*queues*rowSize)*102/100 + int64(len(names))*4*pageSize
	if bytes > most {
		t.Fatalf("%d bytes, want at most %d", bytes, most)
	}
	t.Logf("%d queues, %d messages, %d MiB of log: %d files, %.1f bytes a message", queues, messages, end>>20, len(names), float64(bytes)/messages)
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if x, err = Open(o); err != nil || len(x.Problems()) > 0 {
		t.Fatal(err, x.Problems())
	}
	for q := 0; q < queues; q += 997 {
		k := Key{ids.TopicID(1 + q%100), ids.QueueID(q / 100)}
		got, err := x.Get(k, 0, 32, nil)
		if err != nil || len(got) < 4 || got[0].TagsCode != int64(q) || got[3].TagsCode != int64(q) {
			t.Fatalf("queue %v: %v, %v", k, got, err)
		}
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestGetAllocates checks that a read takes no memory but dst.
func TestGetAllocates(t *testing.T) {
	x, err := Open(Options{Dir: t.TempDir(), SegmentSize: testSegment})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	w := newTwin(8)
	for range 300 {
		m := w.message()
		if err := m.add(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.Checkpoint(w.end); err != nil {
		t.Fatal(err)
	}
	k := Key{1, 0}
	_, next, _ := x.Range(k)
	dst := make([]Entry, 0, 32)
	for name, from := range map[string]ids.QueueOffset{"tail": next - 1, "file": 0} {
		got := testing.AllocsPerRun(100, func() {
			list, err := x.Get(k, from, 1, dst)
			if err != nil || len(list) != 1 {
				panic(fmt.Sprint(list, err))
			}
		})
		if got >= 1 {
			t.Errorf("a read of the %s allocates %v times", name, got)
		}
	}
}

// TestRunsStayFew makes a checkpoint after every few messages of one segment, as a node that is restarted all the time does.
func TestRunsStayFew(t *testing.T) {
	t.Parallel()
	w, mem := newTwin(9), vfs.NewMem()
	x := w.open(t, mem)
	for w.end < testSegment-4000 {
		m := w.message()
		if err := errors.Join(m.add(x), x.Checkpoint(w.end)); err != nil {
			t.Fatal(err)
		}
		names, err := mem.List("data/index")
		if err != nil {
			t.Fatal(err)
		}
		if len(names) > x.o.MaxRuns {
			t.Fatalf("%d files: %v", len(names), names)
		}
	}
	w.check(t, x)
}

// TestOverlap puts a run back that was merged, as a power cut does before its removal is on the disk: the merged file
// counts, the run is removed.
func TestOverlap(t *testing.T) {
	t.Parallel()
	w, mem := newTwin(10), vfs.NewMem()
	x := w.open(t, mem)
	runs := map[string][]byte{}
	for w.end < 2*testSegment {
		m := w.message()
		if err := m.add(x); err != nil {
			t.Fatal(err)
		}
		if len(w.log)%20 != 0 {
			continue
		}
		if err := x.Checkpoint(w.end); err != nil {
			t.Fatal(err)
		}
		names, err := mem.List("data/index")
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			data, err := vfs.ReadFile(mem, "data/index/"+n)
			if err != nil {
				t.Fatal(err)
			}
			runs[n] = data
		}
	}
	if err := errors.Join(x.Checkpoint(w.end), x.Close()); err != nil {
		t.Fatal(err)
	}
	before, err := mem.List("data/index")
	if err != nil {
		t.Fatal(err)
	}
	back := 0
	for n, data := range runs {
		if slices.Contains(before, n) {
			continue
		}
		if err := vfs.WriteFileAtomic(mem, "data/index/"+n, data); err != nil {
			t.Fatal(err)
		}
		x := w.open(t, mem)
		if x.Covered() != w.end || len(x.Problems()) > 0 || len(x.Missing()) > 0 {
			t.Fatalf("with %s: covered %d of %d, %v, holes %v", n, x.Covered(), w.end, x.Problems(), x.Missing())
		}
		w.check(t, x)
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		if after, err := mem.List("data/index"); err != nil || !slices.Equal(after, before) {
			t.Fatalf("with %s: files %v, were %v", n, after, before)
		}
		back++
	}
	if back < 2 {
		t.Fatalf("%d runs came back", back)
	}
}

// TestHoleBeforeFiles opens an index whose first file is gone, rebuilds the hole and adds nothing: the files behind it count as
// added. A topic that is dropped then stays hidden while they are there, and one of them that is given up is a hole.
func TestHoleBeforeFiles(t *testing.T) {
	t.Parallel()
	w, mem := newTwin(9), vfs.NewMem()
	x := w.open(t, mem)
	for w.end < 3*testSegment {
		m := w.message()
		if err := m.add(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(x.Checkpoint(w.end), x.Close()); err != nil {
		t.Fatal(err)
	}
	names, err := mem.List("data/index")
	if err != nil {
		t.Fatal(err)
	}
	if err := mem.Remove("data/index/" + names[0]); err != nil {
		t.Fatal(err)
	}
	x = w.open(t, mem)
	const dropped = 2
	x.Drop(dropped) // before the rebuild, and another one after it
	if holes := x.Missing(); !slices.Equal(holes, []Span{{0, testSegment}}) {
		t.Fatalf("holes %v", holes)
	}
	w.rebuild(t, x)
	x.Drop(dropped + 1)
	if err := x.CutFront(testSegment); err != nil {
		t.Fatal(err)
	}
	w.front, w.dropped = testSegment, map[ids.TopicID]bool{dropped: true, dropped + 1: true}
	w.check(t, x)

	f, err := mem.OpenReadWrite("data/index/" + names[len(names)-1])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{0xff}, pageSize+5); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	if err := x.Verify(); !errors.As(err, new(*CorruptionError)) {
		t.Fatalf("verify of a damaged file: %v", err)
	}
	w.rebuild(t, x)
	if w.check(t, x); x.Covered() < w.end {
		t.Fatalf("covered %d of %d", x.Covered(), w.end)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
}
