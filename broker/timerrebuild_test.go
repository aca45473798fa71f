package broker

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/remoting"
	"github.com/ledgermq/ledgermq/timer"
)

// breakTimers is what the finder of a damaged page does.
func (l *timerLoop) breakTimers() { l.r.BreakTimers() }

// rebuild is what upkeep does then.
func (l *timerLoop) rebuild() {
	l.t.Helper()
	l.r.ctx = context.Background()
	if err := l.r.mendTimers(); err != nil {
		l.t.Error(err)
	}
}

// A rebuild while a frame is being applied keeps the timers of that frame: the log is read up to before it only.
func TestTimerRebuildBesideApply(t *testing.T) {
	t.Parallel()
	l := newTimerLoop(t)
	l.later(l.now+20, "before")
	l.apply(l.form())
	l.later(l.now+10, "beside")
	l.send() // behind it in the frame; the first message of T asks the clock while it is applied
	f := l.form()
	armed := true
	l.r.node.o.Clock = func() time.Time {
		if armed {
			armed = false
			l.breakTimers()
			l.rebuild()
		}
		return time.UnixMilli(l.now)
	}
	l.apply(f)
	if armed {
		t.Fatal("nothing was rebuilt")
	}
	l.now += 1000
	l.plan(10)
	l.apply(l.form())
	l.want("x", "beside", "before")
}

// A rebuild takes up what is alive, and writes what it has gathered itself when that is much, however much the loop adds beside it.
func TestTimerRebuildBesideManySends(t *testing.T) {
	t.Parallel()
	l := newTimerLoop(t)
	for i := range int64(5) {
		l.later(l.now+i, "fired")
		l.later(l.now+1000+i, "pending")
		l.apply(l.form())
	}
	l.now += 10
	l.plan(10)
	l.apply(l.form())
	end := ids.PhysicalOffset(l.r.appliedEnd.Load())
	for i := range ids.PhysicalOffset(maxTimersInMemory) {
		l.r.timers.idx.Add(timer.Entry{Pos: timer.Pos{Due: 1 << 40, Offset: end + 100*i}})
	}
	l.breakTimers()
	l.rebuild()
	if at := l.r.timers.idx.Covered(); at != 0 {
		t.Errorf("a file was written up to %d", at)
	}
	if n := l.r.timers.idx.InMemory() - maxTimersInMemory; n != 5 {
		t.Errorf("the rebuild took %d timers from the log, want the 5 that are pending", n)
	}
	l.retire(end, 2) // takes them along
	l.breakTimers()
	l.rebuild()
	if list, err := l.r.timers.idx.Scan(l.r.st.TimerBounds(), 1<<30, 100); err != nil || len(list) != 5 {
		t.Errorf("%d timers are pending, want 5 (%v)", len(list), err)
	}
}

// untilOne is a context that ends as soon as the index has a timer: a rebuild stops there.
type untilOne struct {
	context.Context
	idx *timer.Index
}

func (c untilOne) Err() error {
	if c.idx.InMemory() > 0 {
		return context.Canceled
	}
	return nil
}

// Nobody believes an index that is being rebuilt, also who found it whole a moment before: neither does a batch jump over what it does not
// have yet, nor does retention give that up, nor is a recall too late.
func TestTimersOfAHalfRebuiltIndex(t *testing.T) {
	t.Parallel()
	l := newTimerLoop(t)
	l.r.raft = new(raftlog.Group)
	l.later(l.now+20, "later, in front")
	l.apply(l.form())
	l.later(l.now+10, "sooner, behind")
	l.apply(l.form())
	front := ids.PhysicalOffset(l.r.appliedEnd.Load())
	half := func() {
		l.breakTimers()
		l.r.ctx = untilOne{context.Background(), l.r.timers.idx}
		if err := l.r.mendTimers(); !errors.Is(err, context.Canceled) || l.r.timers.idx.InMemory() != 1 {
			t.Fatalf("the rebuild ended with %v", err)
		}
	}
	var list []timer.Entry
	if err := l.r.readTimers(func(x *timer.Index) (err error) {
		half()
		list, err = x.Below(l.r.st.TimerBounds(), front, 10)
		return err
	}); !errors.Is(err, errNotWhole) || len(list) != 1 {
		t.Errorf("a look beside a rebuild found %v and ended with %v", list, err)
	}
	if err := l.r.rollTimers(front, 10); !errors.Is(err, errRolls) {
		t.Errorf("retention goes on: %v", err)
	}
	var ref *refusal
	if _, err := l.r.tryRecall(handle{topic: "T", due: l.now - 10, unique: "sooner, behind"}); !errors.As(err, &ref) || ref.code != remoting.SystemBusy {
		t.Errorf("a recall: %v", err)
	}
	if _, some := l.r.nextTimer(); some {
		t.Error("it is known what is due next")
	}
	if list, err := l.r.waiting("sooner, behind"); !errors.As(err, &ref) || ref.code != remoting.SystemBusy {
		t.Errorf("what waits: %v, %v", list, err)
	}
	if resp, err := l.r.timerMetrics(nil); !errors.As(err, &ref) || ref.code != remoting.SystemBusy {
		t.Errorf("the count of what waits: %v, %v", resp, err)
	}
	l.rebuild()
	l.now += 100
	armed := true
	l.r.node.o.Clock = func() time.Time {
		if armed {
			armed = false
			half()
		}
		return time.UnixMilli(l.now)
	}
	if d := l.r.fire(&l.f); armed || d != firePause {
		t.Errorf("looks again after %v", d)
	}
	if items := l.r.inbox.take(nil); len(items) > 0 {
		t.Errorf("fired from a half rebuilt index: %+v", items[0])
	}
	l.rebuild()
	l.plan(10)
	l.apply(l.form())
	l.want("sooner, behind", "later, in front")
}

// The first checkpoint behind a rebuild counts the index against the state.
func TestTimerRebuildIsProved(t *testing.T) {
	t.Parallel()
	for _, lacks := range []int64{0, 1} {
		l := newTimerLoop(t)
		prove := func(want int64) {
			t.Helper()
			l.r.proveTimers(ids.PhysicalOffset(l.r.appliedEnd.Load()), l.r.st.Clone())
			if n := l.r.counters.timerMismatches.Load(); n != want {
				t.Errorf("%d mismatches, want %d", n, want)
			}
		}
		l.later(l.now+10, "a")
		l.later(l.now+20, "b")
		l.later(l.now+30, "c")
		l.apply(l.form())
		e, _, err := l.r.timers.idx.Next(l.r.st.TimerBounds())
		if err != nil {
			t.Fatal(err)
		}
		l.recall(e)
		l.apply(l.form())
		l.breakTimers()
		l.rebuild()
		if lacks > 0 {
			l.r.timers.idx.Reset(math.MaxInt64)
		}
		prove(0) // of a state that may be behind it
		l.later(l.now+40, "d")
		l.apply(l.form())
		prove(lacks)
		l.r.timers.idx.Reset(math.MaxInt64)
		prove(lacks) // once
	}
}
