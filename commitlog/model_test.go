package commitlog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// twin is the naive log: a list of frames.
type twin struct {
	r      *rand.Rand
	frames []Frame // frames[n] has index first+n
	first  ids.Index
	term   ids.Term
	owner  []byte
	synced ids.Index // every frame up to here must survive anything
}

func newTwin(r *rand.Rand) *twin { return &twin{r: r, first: 1, term: 1, owner: []byte("owner")} }

func (w *twin) last() ids.Index { return w.first + ids.Index(len(w.frames)) - 1 }

// batch makes 1 to 4 frames that follow the log, of sizes from none to the largest.
func (w *twin) batch(l *Log) []Frame {
	t := l.Tail()
	var frames []Frame
	for range 1 + w.r.IntN(4) {
		if w.r.IntN(8) == 0 {
			w.term++
		}
		var f Frame
		if w.r.IntN(6) == 0 {
			f = l.EmptyFrame(t, w.term, t.Index+1)
		} else {
			b := l.NewBuilder(t, w.term, int64(w.r.IntN(1000)))
			for range 1 + w.r.IntN(5) {
				n := w.r.IntN(300)
				switch w.r.IntN(10) {
				case 0:
					n = w.r.IntN(15 << 10)
				case 1:
					n = 0
				}
				body, _, ok := b.Reserve(uint8(w.r.IntN(5)), 1, 0, n)
				if !ok {
					break
				}
				for i := range body {
					body[i] = byte(w.r.Uint32())
				}
			}
			f = b.Finish()
		}
		frames = append(frames, f)
		t = t.After(f)
	}
	return frames
}

// agrees checks that l holds what w does, at random places and, when all is set, everywhere.
func (w *twin) agrees(t *testing.T, l *Log, all bool) {
	t.Helper()
	if l.FirstIndex() != w.first || l.Tail().Index != w.last() {
		t.Fatalf("log holds [%d, %d], want [%d, %d]", l.FirstIndex(), l.Tail().Index, w.first, w.last())
	}
	if all {
		holds(t, l, w.frames)
		var want []TermStart
		for _, f := range w.frames {
			if n := len(want); n == 0 || want[n-1].Term != f.Term() {
				want = append(want, TermStart{f.Term(), f.Index(), f.Offset()})
			}
		}
		got := l.Epochs()
		if len(got) > 0 && got[0].StartIndex < w.first {
			got = got[1:]
			if len(want) > 0 && (len(got) == 0 || got[0] != want[0]) {
				want = want[1:]
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("epochs %v, want %v", got, want)
		}
		next := w.first
		for _, s := range l.Segments() {
			if s.FirstIndex != next {
				t.Fatalf("segments %+v", l.Segments())
			}
			next = s.LastIndex + 1
		}
	}
	if len(w.frames) == 0 {
		return
	}
	f := w.frames[w.r.IntN(len(w.frames))]
	got, err := l.ReadFrame(f.Index(), nil)
	if err != nil || !bytes.Equal(got, f) {
		t.Fatalf("ReadFrame(%d): %v", f.Index(), err)
	}
	at := w.r.IntN(len(f))
	part := make([]byte, w.r.IntN(len(f)-at)+1)
	if err := l.ReadAt(part, f.Offset()+ids.PhysicalOffset(at)); err != nil || !bytes.Equal(part, f[at:at+len(part)]) {
		t.Fatalf("ReadAt inside frame %d: %v", f.Index(), err)
	}
}

func TestModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 1))
			fs := vfs.NewMem()
			o := small(fs)
			o.FillAhead = []int64{-1, 16 << 10, 64 << 10}[r.IntN(3)]
			o.KeepSpare = []int{-1, 1, 3}[r.IntN(3)]
			l := mustCreate(t, o)
			w := newTwin(r)
			for step := range 250 {
				switch op := r.IntN(20); {
				case op < 8:
					frames := w.batch(l)
					if err := l.Append(frames); err != nil {
						t.Fatalf("step %d: %v", step, err)
					}
					w.frames = append(w.frames, frames...)
				case op < 10:
					check(t, l.Sync())
					if i, _ := l.Synced(); i != w.last() {
						t.Fatalf("step %d: synced %d of %d", step, i, w.last())
					}
				case op < 11:
					i := w.first - 1 + ids.Index(r.IntN(len(w.frames)+1))
					err := l.TruncateAfter(i)
					if i == w.first-1 && i > 0 && len(w.frames) > 0 {
						if !errors.Is(err, ErrCompacted) {
							t.Fatalf("step %d: truncation to before the front: %v", step, err)
						}
						break
					}
					check(t, err)
					w.frames = w.frames[:i-w.first+1]
				case op < 12 && r.IntN(3) == 0:
					check(t, l.Sync())
					segs := l.Segments()
					s := segs[r.IntN(len(segs))]
					if s.LastIndex < s.FirstIndex {
						break
					}
					check(t, l.CutFront(s.Base+ids.PhysicalOffset(r.IntN(100))))
					w.frames = w.frames[s.FirstIndex-w.first:]
					w.first = s.FirstIndex
					if _, err := l.ReadFrame(w.first-1, nil); !errors.Is(err, ErrCompacted) {
						t.Fatalf("step %d: below the front: %v", step, err)
					}
				case op < 13:
					w.owner = []byte(fmt.Sprint("owner", step))
					check(t, l.SaveMeta(w.owner, r.IntN(2) == 0))
				case op < 14:
					check(t, l.Checkpoint(nil))
				case op < 17:
					if _, err := l.FillAhead(); err != nil {
						t.Fatal(err)
					}
				case op < 18:
					if r.IntN(2) == 0 {
						check(t, l.Close(true))
					} else {
						check(t, l.Close(false))
						fs = fs.KillProcess()
						o.FS = fs
					}
					l = mustOpen(t, o)
					if m := l.Meta(); !bytes.Equal(m.Owner, w.owner) {
						t.Fatalf("step %d: owner %q, want %q", step, m.Owner, w.owner)
					}
					w.agrees(t, l, true)
				default:
					w.agrees(t, l, false)
				}
			}
			w.agrees(t, l, true)
			n := 0
			check(t, l.Close(true))
			check(t, Verify(o, 0, func(f Frame) error {
				if !bytes.Equal(f, w.frames[n]) {
					return fmt.Errorf("frame %d differs", f.Index())
				}
				n++
				return nil
			}))
			if n != len(w.frames) {
				t.Fatalf("verified %d of %d", n, len(w.frames))
			}
		})
	}
}
