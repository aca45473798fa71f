package timer

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

func open(tb testing.TB, o Options) *Index {
	tb.Helper()
	x, err := Open(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { x.Close() })
	return x
}

// twin is the index as a plain list.
type twin struct {
	all []Entry
	b   Bounds
}

func (w *twin) living() []Entry {
	var l []Entry
	for _, e := range w.all {
		if w.b.Alive(e.Pos) {
			l = append(l, e)
		}
	}
	slices.SortFunc(l, func(a, b Entry) int { return a.Compare(b.Pos) })
	return l
}

func (w *twin) check(tb testing.TB, x *Index, r *rand.Rand) {
	tb.Helper()
	living := w.living()
	same := func(what string, got []Entry, err error, want []Entry) {
		tb.Helper()
		if err != nil || !slices.Equal(got, want) {
			tb.Fatalf("%s: %v\n got %v\nwant %v", what, err, got, want)
		}
	}
	until, limit := r.Int64N(3000), 1+r.IntN(400)
	var want []Entry
	for _, e := range living {
		if e.Due <= until && len(want) < limit {
			want = append(want, e)
		}
	}
	got, err := x.Scan(w.b, until, limit)
	same(fmt.Sprintf("scan to %d, %d", until, limit), got, err, want)
	first, some, err := x.Next(w.b)
	if err != nil || some != (len(living) > 0) || some && first != living[0] {
		tb.Fatalf("next: %v %v %v", first, some, err)
	}
	if len(living) > 0 {
		e := living[r.IntN(len(living))]
		want = nil
		for _, o := range living {
			if o.Due == e.Due && o.Key == e.Key {
				want = append(want, o)
			}
		}
		got, err := x.Find(w.b, e.Due, e.Key)
		same("find", got, err, want)
	}
	to := ids.PhysicalOffset(r.IntN(200_000))
	want = slices.DeleteFunc(slices.Clone(living), func(e Entry) bool { return e.Offset >= to })
	slices.SortFunc(want, func(a, b Entry) int { return int(a.Offset - b.Offset) })
	got, err = x.Below(w.b, to, limit)
	same("below", got, err, want[:min(len(want), limit)])
}

// The index against a list, through checkpoints, restarts with what is on the disk and the log read again from there, bounds that rise,
// and a front that is cut.
func TestTwin(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 5))
		o := Options{FS: vfs.OS, Dir: filepath.Join(t.TempDir(), "timers")}
		x := open(t, o)
		w := &twin{}
		at, durable := ids.PhysicalOffset(64), ids.PhysicalOffset(0)
		for range 300 {
			switch r.IntN(12) {
			default:
				for range 1 + r.IntN(120) {
					at += ids.PhysicalOffset(8 * (1 + r.IntN(10)))
					e := Entry{Pos{max(w.b.After.Due, 1) + r.Int64N(300), at}, uint32(r.IntN(1000)), uint32(r.IntN(3))}
					x.Add(e)
					w.all = append(w.all, e)
				}
			case 0, 1:
				if living := w.living(); len(living) > 0 {
					w.b.After = living[r.IntN(len(living)/2+1)].Pos
				}
			case 2:
				w.b.Low += ids.PhysicalOffset(r.Int64N(int64(at-w.b.Low) + 1))
			case 3, 4:
				if err := x.Checkpoint(at+1, w.b); err != nil {
					t.Fatal(err)
				}
				durable = at + 1
				if n := x.InMemory(); n != 0 {
					t.Fatalf("seed %d: %d entries in memory after a checkpoint of all", seed, n)
				}
			case 5:
				o.FirstOffset = max(o.FirstOffset, w.b.Low/2)
				x.CutFront(o.FirstOffset)
				w.b.Low = max(w.b.Low, o.FirstOffset)
			case 6:
				if err := x.Close(); err != nil {
					t.Fatal(err)
				}
				x = open(t, o)
				if p := x.Problems(); len(p) > 0 {
					t.Fatalf("seed %d: %v", seed, p)
				}
				if c := x.Covered(); c != max(durable, o.FirstOffset) {
					t.Fatalf("seed %d: covered is %d, want %d", seed, c, max(durable, o.FirstOffset))
				}
				for _, e := range w.all {
					if e.Offset >= x.Covered()-500 { // some of them twice
						x.Add(e)
					}
				}
			}
			w.check(t, x, r)
		}
		if n := len(x.runs); n > 12 {
			t.Errorf("seed %d: %d runs", seed, n)
		}
	}
}

// Who reads files holds nobody up, and reads on from the files of its moment when they are merged or given up.
func TestReadersHoldNobodyUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	x := open(t, Options{FS: vfs.OS, Dir: dir})
	fill := func(from, n int) {
		t.Helper()
		for i := range n {
			x.Add(Entry{Pos: Pos{int64(1 + i), ids.PhysicalOffset(from + 8*i)}})
		}
		if err := x.Checkpoint(ids.PhysicalOffset(from+8*n), Bounds{}); err != nil {
			t.Fatal(err)
		}
	}
	fill(64, 1000)
	seen := 0
	err := x.each(Bounds{}, maxOffset, func(Entry) {
		switch seen++; seen {
		case 1:
			fill(10_000, 2000) // takes the first run up
			if len(x.runs) != 1 || x.runs[0].count != 3000 {
				t.Errorf("%d runs", len(x.runs))
			}
		case 300:
			x.Reset(maxOffset)
		}
	})
	if err != nil || seen != 1000 {
		t.Errorf("a reader saw %d entries, want 1000 (%v)", seen, err)
	}
	if names, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(names) != 0 {
		t.Errorf("files are left: %v %v", names, err)
	}
}

// What was found in one run bounds what is looked for in the next ones; what is equally due counts.
func TestScanOfEqualTimes(t *testing.T) {
	t.Parallel()
	x := open(t, Options{FS: vfs.OS, Dir: t.TempDir()})
	for off := range ids.PhysicalOffset(60) { // the first ones lie in the last run
		x.Add(Entry{Pos: Pos{int64(100 - off/10), 64 + off}})
		if off%10 == 9 {
			if err := x.Checkpoint(64+off+1, Bounds{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for limit := 1; limit <= 60; limit++ {
		list, err := x.Scan(Bounds{}, maxDue, limit)
		if err != nil || len(list) != limit {
			t.Fatal(len(list), err)
		}
		for i, e := range list {
			if want := (Pos{int64(95 + i/10), ids.PhysicalOffset(64 + 50 - i/10*10 + i%10)}); e.Pos != want {
				t.Fatalf("of %d, number %d is %v, want %v", limit, i, e.Pos, want)
			}
		}
	}
}

// A run that is damaged is given up by the next start when the header tells, and reported by who meets it later; it is never read wrongly.
func TestDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := Options{FS: vfs.OS, Dir: filepath.Join(dir, "timers"), EndOffset: 1 << 20}
	x := open(t, o)
	for i := range 1000 {
		x.Add(Entry{Pos: Pos{int64(1 + i), ids.PhysicalOffset(64 + 8*i)}})
	}
	if err := x.Checkpoint(10_000, Bounds{}); err != nil {
		t.Fatal(err)
	}
	x.Close()
	names, err := filepath.Glob(filepath.Join(o.Dir, "*"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	whole, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(whole); at += 97 {
		bad := slices.Clone(whole)
		bad[at] ^= 0x10
		if err := os.WriteFile(names[0], bad, 0o600); err != nil {
			t.Fatal(err)
		}
		x, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		if at < pageSize {
			if len(x.Problems()) != 1 || x.Covered() != 0 {
				t.Fatalf("a flip in the header at %d: %v, covered %d", at, x.Problems(), x.Covered())
			}
		} else {
			_, err := x.Scan(Bounds{}, maxDue, 2000)
			var c *CorruptionError
			if !errors.As(err, &c) {
				t.Fatalf("a flip at %d: %v", at, err)
			}
			x.Reset(maxOffset)
			if x.Covered() != 0 || x.InMemory() != 0 {
				t.Fatal("something is left after a reset")
			}
			x.Add(Entry{Pos: Pos{5, 72}})
			if list, err := x.Scan(Bounds{}, maxDue, 10); err != nil || len(list) != 1 {
				t.Fatal(list, err)
			}
		}
		x.Close()
	}
	// One that goes further than the log is of another log.
	if err := os.WriteFile(names[0], whole, 0o600); err != nil {
		t.Fatal(err)
	}
	o.EndOffset = 9_999
	if y := open(t, o); len(y.Problems()) != 1 || y.Covered() != 0 {
		t.Errorf("%v, covered %d", y.Problems(), y.Covered())
	}
}

// A disk that fails at any moment of a checkpoint leaves the index as it was, and a power cut then leaves the runs before it or those
// after it.
func TestCrash(t *testing.T) {
	t.Parallel()
	for at := range 40 {
		mem := vfs.NewMem()
		left := -1
		fs := vfs.Inject(mem, func(op vfs.Op, _ string, _ int64, _ int) error {
			if left < 0 {
				return nil
			}
			if left == 0 {
				return errors.New("no power")
			}
			left--
			return nil
		})
		o := Options{FS: fs, Dir: "/timers"}
		x := open(t, o)
		add := func(x *Index, from int) {
			for i := from; i < from+400; i++ {
				x.Add(Entry{Pos: Pos{int64(1 + i%50), ids.PhysicalOffset(64 + 8*i)}})
			}
		}
		const first, second = ids.PhysicalOffset(64 + 8*400), ids.PhysicalOffset(64 + 8*800)
		add(x, 0)
		if err := x.Checkpoint(first, Bounds{}); err != nil {
			t.Fatal(err)
		}
		add(x, 400)
		left = at
		failed := x.Checkpoint(second, Bounds{})
		left = -1
		if list, err := x.Scan(Bounds{}, maxDue, 2000); err != nil || len(list) != 800 {
			t.Fatalf("failure %d (%v): %d entries, %v", at, failed, len(list), err)
		}
		o.FS = mem.Crash(rand.New(rand.NewPCG(uint64(at), 1)))
		y := open(t, o)
		switch c := y.Covered(); {
		case c == first:
			add(y, 400)
		case c != second:
			t.Fatalf("failure %d (%v): covered is %d", at, failed, c)
		case failed == nil && c != second:
			t.Fatalf("a checkpoint that came about is gone")
		}
		if list, err := y.Scan(Bounds{}, maxDue, 2000); err != nil || len(list) != 800 || len(y.Problems()) > 0 {
			t.Fatalf("failure %d (%v): %d entries after the crash, %v, %v", at, failed, len(list), err, y.Problems())
		}
		if failed == nil {
			return
		}
	}
	t.Error("no checkpoint came about")
}

// A run has the bytes that the page shows, which were written down by other means.
func TestGoldenRun(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/run.hex")
	if err != nil {
		t.Fatal(err)
	}
	shown, err := os.ReadFile("../docs/format/timer.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(shown, text) {
		t.Error("docs/format/timer.md does not show testdata/run.hex as it is")
	}
	var golden []byte
	for line := range strings.Lines(string(text)) {
		b, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(line[:min(len(line), 48)]), " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		golden = append(golden, b...)
	}
	const headerEnd, entriesEnd = 48, 52 + 2*entrySize
	want := make([]byte, 2*pageSize)
	copy(want, golden[:headerEnd])
	copy(want[atCRC:], golden[headerEnd:])
	clear(want[atCRC+4:])
	copy(want[pageSize:], golden[headerEnd+4:entriesEnd])
	copy(want[pageSize+atNumber:], golden[entriesEnd:])

	const due = 1_796_000_000_000
	o := Options{FS: vfs.OS, Dir: filepath.Join(t.TempDir(), "timers"), FirstOffset: 4096}
	for i := range o.Group {
		o.Group[i] = 0x91
	}
	x := open(t, o)
	x.Add(Entry{Pos{due, 9000}, 160, 7})
	x.Add(Entry{Pos{due, 4400}, 150, 0x650d1045})
	if err := x.Checkpoint(64<<20, Bounds{}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(runName(o.Dir, 4096, 64<<20))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v\n got %x\nwant %x", err, got, want)
	}
}
