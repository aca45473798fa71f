package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/timer"
)

// timerLoop is a loop with a clock, whose frames are in the log as soon as they are formed: what fires is read from there.
type timerLoop struct {
	*loop
	now  int64
	f    firing
	lost map[string]bool // messages that were not stored
}

func newTimerLoop(t testing.TB) *timerLoop {
	l := &timerLoop{loop: newLoop(t), now: 1_000_000, lost: map[string]bool{}}
	for _, f := range l.before {
		l.write(f)
	}
	l.formed = l.write
	l.clock = func() int64 { return l.now }
	l.r.node.o.Clock = func() time.Time { return time.UnixMilli(l.now) }
	l.f = firing{term: l.term, sync: true, done: make(chan bool, 1000)}
	return l
}

func (l *timerLoop) write(f commitlog.Frame) {
	l.t.Helper()
	if err := l.log.Append([]commitlog.Frame{f}); err != nil {
		l.t.Fatal(err)
	}
	if err := l.log.Sync(); err != nil {
		l.t.Fatal(err)
	}
}

// later enqueues a message that is due at that time.
func (l *timerLoop) later(due int64, body string) {
	l.t.Helper()
	s := &send{key: l.key, at: l.r.now(), later: later{due: due}, whenDone: func(_ *Replica, o outcome, _ *send) { l.lost[body] = o == outcomeNotStored }}
	if _, err := l.r.encodeOne(s, &message.Record{Topic: "T", Body: []byte(body), BornHost: l.r.storeHost, StoreHost: l.r.storeHost,
		Properties: message.AppendProperty("", message.KeyUniqueKey, body)}, false, true); err != nil {
		l.t.Fatal(err)
	}
	if !l.r.inbox.add(s) {
		l.t.Fatal("a master took no send")
	}
}

// plan enqueues the batch of what is due, at most limit; false: nothing is.
func (l *timerLoop) plan(limit int) *fire {
	l.t.Helper()
	if l.f.sync {
		l.f.planned, _ = l.r.st.TimerMarks()
		l.f.sync = false
	}
	b := l.r.st.TimerBounds()
	if b.After.Compare(l.f.planned) < 0 {
		b.After = l.f.planned
	}
	list, err := l.r.timers.due(b, l.now, limit)
	if err != nil {
		l.t.Fatal(err)
	}
	if len(list) == 0 {
		return nil
	}
	p, err := l.r.planFire(&l.f, list)
	if err != nil {
		l.t.Fatal(err)
	}
	l.r.inbox.add(p)
	l.f.planned = p.to
	return p
}

func (l *timerLoop) recall(e timer.Entry) *recall {
	p := &recall{TimerRecall: state.TimerRecall{Pos: e.Pos, Size: e.Size}, at: l.r.now(), done: make(chan outcome, 1)}
	l.r.inbox.add(p)
	return p
}

// bodies are the messages of the queue, in its order.
func (l *timerLoop) bodies() (all []string) {
	l.t.Helper()
	for f, err := range l.log.Frames(1) {
		if err != nil {
			l.t.Fatal(err)
		}
		for rec := range f.Records() {
			if rec.Type == state.RecordMessage {
				m, _, err := message.Decode(rec.Body[state.MessagePrefixSize:])
				if err != nil {
					l.t.Fatal(err)
				}
				all = append(all, string(m.Body))
			}
		}
	}
	return all
}

func (l *timerLoop) want(bodies ...string) {
	l.t.Helper()
	if got := l.bodies(); !slices.Equal(got, bodies) {
		l.t.Errorf("delivered are %q, want %q", got, bodies)
	}
	n, _, _ := l.r.st.TimersPending()
	left, err := l.r.timers.idx.Scan(l.r.st.TimerBounds(), 1<<62, 1<<20)
	if err != nil {
		l.t.Fatal(err)
	}
	left = slices.DeleteFunc(left, func(e timer.Entry) bool { return l.r.st.TimerRecalled(e.Pos) })
	if int(n) != len(left) {
		l.t.Errorf("the state counts %d pending timers, the index has %d", n, len(left))
	}
}

// A timer that is on its way into the log when a batch is planned must not slip below the cursor that the batch moves.
func TestTimerInFlightWhileABatchIsPlanned(t *testing.T) {
	t.Parallel()
	l := newTimerLoop(t)
	l.later(l.now+10, "a")
	l.later(l.now+30, "c")
	l.apply(l.form())
	l.later(l.now+20, "b")
	inFlight := l.form()
	l.now += 100
	if p := l.plan(10); p == nil || len(p.items) != 1 {
		t.Fatalf("a batch %+v goes beyond a timer that is not applied yet", p)
	}
	fired := l.form()
	l.apply(inFlight)
	l.apply(fired)
	if p := l.plan(10); p == nil || len(p.items) != 2 {
		t.Fatalf("the second batch is %+v", p)
	}
	// One that is formed after a batch was planned comes after it, whatever its time.
	l.later(l.now-50, "late")
	l.apply(l.form())
	l.want("a", "b", "c")
	l.plan(10)
	l.apply(l.form())
	l.want("a", "b", "c", "late")
}

// Of a recall and a batch the first one in the log counts, in flight or applied; and one that was taken back does not count at all.
func TestTimerRecallAgainstBatch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		story func(l *timerLoop, e timer.Entry) *recall
		want  []string
		kind  state.EffectKind
	}{
		{"the recall is applied first", func(l *timerLoop, e timer.Entry) *recall {
			p := l.recall(e)
			l.apply(l.form())
			l.plan(10)
			l.apply(l.form())
			return p
		}, []string{"b"}, state.EffectTimerRecalled},
		{"the recall is in flight when the batch is formed", func(l *timerLoop, e timer.Entry) *recall {
			l.plan(10)
			items := l.r.inbox.take(nil)
			p := l.recall(e)
			first := l.form()
			l.r.inbox.add(items[0])
			second := l.form()
			l.apply(first)
			l.apply(second)
			return p
		}, []string{"b"}, state.EffectTimerRecalled},
		{"both in one frame", func(l *timerLoop, e timer.Entry) *recall {
			l.plan(10)
			p := l.recall(e)
			l.apply(l.form())
			return p
		}, []string{"a", "b"}, state.EffectNone},
		{"the batch is in flight when the recall is formed", func(l *timerLoop, e timer.Entry) *recall {
			l.plan(10)
			first := l.form()
			p := l.recall(e)
			second := l.form()
			l.apply(first)
			l.apply(second)
			return p
		}, []string{"a", "b"}, state.EffectNone},
		{"the recall is taken back", func(l *timerLoop, e timer.Entry) *recall {
			tail := l.tail
			p := l.recall(e)
			b := l.builder()
			token := l.r.Form(b)
			b.Abandon()
			l.r.Abandon(token, raftlog.NotStored)
			l.tail = tail
			l.plan(10)
			l.apply(l.form())
			return p
		}, []string{"a", "b"}, state.EffectNone},
		{"the second of two recalls is taken back", func(l *timerLoop, e timer.Entry) *recall {
			p := l.recall(e)
			first := l.form()
			l.recall(e)
			b := l.builder()
			token := l.r.Form(b)
			b.Abandon()
			l.r.Abandon(token, raftlog.NotStored)
			l.plan(10)
			second := l.form()
			l.apply(first)
			l.apply(second)
			return p
		}, []string{"b"}, state.EffectTimerRecalled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newTimerLoop(t)
			l.later(l.now+10, "a")
			l.later(l.now+10, "b")
			l.apply(l.form())
			e, found, err := l.r.timers.idx.Next(l.r.st.TimerBounds())
			if err != nil || !found {
				t.Fatal(err, found)
			}
			l.now += 100
			if p := tt.story(l, e); p.effect.Kind != tt.kind {
				t.Errorf("the recall's effect is %d, want %d", p.effect.Kind, tt.kind)
			}
			l.want(tt.want...)
		})
	}
}

// A batch that is certain not to be in the log gives cursor and queue offsets free again; one of a term that is over is not formed.
func TestTimerBatchTakenBack(t *testing.T) {
	t.Parallel()
	l := newTimerLoop(t)
	for i := range 4 {
		l.later(l.now+10, fmt.Sprint(i))
	}
	l.apply(l.form())
	l.now += 100
	l.plan(2)
	b := l.builder()
	token := l.r.Form(b)
	b.Abandon()
	l.r.Abandon(token, raftlog.NotStored)
	if ok := <-l.f.done; ok {
		t.Error("a batch that was taken back says that it is stored")
	}
	stale := l.plan(2) // from behind the one that was lost
	if l.r.Form(l.builder()) != nil || <-l.f.done || stale.records() != 0 {
		t.Fatal("a batch that does not begin at the cursor was formed")
	}
	l.f.sync = true
	l.plan(2)
	l.apply(l.form())
	l.plan(10)
	old := l.r.inbox.take(nil)[0]
	l.term++
	l.r.Role(raftlog.Role{Kind: raftlog.RoleMaster, Term: l.term})
	l.apply(l.form())
	l.r.inbox.add(old)
	if l.r.Form(l.builder()) != nil {
		t.Fatal("a batch of an earlier term was formed")
	}
	l.f.term, l.f.sync = l.term, true
	l.plan(10)
	l.apply(l.form())
	l.want("0", "1", "2", "3")
	if next := l.r.st.NextOffset(l.key); next != 4 {
		t.Errorf("the queue ends at %d, want 4", next)
	}
}

// roll plans to take along what lies before front.
func (l *timerLoop) roll(front ids.PhysicalOffset, limit int) *roll {
	l.t.Helper()
	list, err := l.r.timers.idx.Below(l.r.st.TimerBounds(), front, limit)
	if err != nil {
		l.t.Fatal(err)
	}
	_, low := l.r.st.TimerMarks()
	if len(list) == 0 || front <= low {
		return nil
	}
	p := &roll{term: l.term, TimerRoll: state.TimerRoll{From: low, To: front}, at: l.r.now(), done: make(chan outcome, 1)}
	if err := p.plan(l.r, list); err != nil {
		l.t.Fatal(err)
	}
	if len(list) == limit {
		p.To = p.items[len(p.items)-1].Offset + 1
	}
	l.r.inbox.add(p)
	return p
}

// The next master may have an address of another family: what it rolls, moves or fires was stored by one with an address of the other.
func TestTimersOverAddressFamilies(t *testing.T) {
	t.Parallel()
	v4, v6 := netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("[::1]:1")
	for _, hosts := range [][2]netip.AddrPort{{v4, v6}, {v6, v4}} {
		l := newTimerLoop(t)
		l.r.storeHost = hosts[0]
		l.later(l.now+1000, "a")
		l.half()
		l.apply(l.form())
		l.r.storeHost = hosts[1]
		l.roll(ids.PhysicalOffset(l.r.appliedEnd.Load()), 10)
		var list []state.Transaction
		l.r.st.EachTransaction(func(x state.Transaction) { list = append(list, x) })
		p, err := l.r.planHalves(list)
		if err != nil {
			t.Fatal(err)
		}
		l.r.inbox.add(p)
		l.apply(l.form())
		e, _, err := l.r.timers.idx.Next(l.r.st.TimerBounds())
		if err != nil {
			t.Fatal(err)
		}
		raw, err := l.r.readTimer(e, nil)
		if err != nil {
			t.Fatal(err)
		}
		if rec, _, err := message.Decode(raw[state.TimerPrefixSize:]); err != nil || rec.StoreHost != hosts[0] || rec.PhysicalOffset != e.Offset {
			t.Errorf("the timer that was rolled is of %v, at %d: %v", rec.StoreHost, rec.PhysicalOffset, err)
		}
		l.r.st.EachTransaction(func(x state.Transaction) {
			if rec, err := l.r.readHalf(&x); err != nil || rec.StoreHost != hosts[0] {
				t.Errorf("the half message that has moved is of %v: %v", rec.StoreHost, err)
			}
		})
		l.now += 2000
		l.plan(10)
		l.apply(l.form())
		l.want("a")
	}
}

// A batch may be planned in a turn of the loop that began before its time: what is not due by the turn's time waits for the next one. So
// the store times of a queue do not go back, and none is before its message was due.
func TestStoreTimesBesideTimers(t *testing.T) {
	t.Parallel()
	l := newTimerLoop(t)
	began := l.now
	turn := func(at int64) {
		t.Helper()
		l.clock = func() int64 { return at }
		l.apply(l.form())
	}
	for _, in := range []int64{7, 8, 10, 10} {
		l.later(began+in, fmt.Sprint("due in ", in))
	}
	turn(began)
	l.now = began + 12
	l.plan(10)
	l.send()
	l.send()
	turn(began + 8) // it began before
	if <-l.f.done {
		t.Error("a batch of which a part was left out says that all is stored")
	}
	l.f.sync = true
	l.plan(10)
	l.clock = func() int64 { return began + 9 }
	if l.r.Form(l.builder()) != nil || <-l.f.done {
		t.Error("a batch of which nothing is due was formed")
	}
	l.f.sync = true
	l.plan(10)
	l.send()
	turn(began + 12)
	l.want("due in 7", "due in 8", "x", "x", "due in 10", "due in 10", "x")
	var times []int64
	for q := range ids.QueueOffset(7) {
		at, err := l.r.storeTime(l.key, q)
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, at-began)
	}
	if want := []int64{8, 8, 8, 8, 12, 12, 12}; !slices.Equal(times, want) {
		t.Errorf("the store times are %v, want %v", times, want)
	}
}

// retire does what upkeep does before a cut at front, and the cut.
func (l *timerLoop) retire(front ids.PhysicalOffset, gather int) {
	l.t.Helper()
	l.r.raft = new(raftlog.Group)
	done := make(chan error, 1)
	go func() { done <- l.r.rollTimers(front, gather) }()
	for ended := false; !ended; {
		select {
		case err := <-done:
			if err != nil {
				l.t.Fatal(err)
			}
			ended = true
		default:
			if n, _ := l.r.inbox.waiting(); n == 0 {
				runtime.Gosched()
				continue
			}
			l.apply(l.form())
		}
	}
	l.r.proposeNow(state.RecordCutFront, state.AppendCutFront(nil, front, nil))
	l.apply(l.form())
}

// More timers than a frame has, and than are looked for at once, are taken along, each once.
func TestManyTimersAreTakenAlong(t *testing.T) {
	t.Parallel()
	l := newTimerLoop(t)
	const n = 4000
	for i := range n {
		l.later(l.now+int64(n-i), fmt.Sprint(i))
	}
	l.apply(l.form())
	if err := l.r.timers.idx.Checkpoint(ids.PhysicalOffset(l.r.appliedEnd.Load()), l.r.st.TimerBounds()); err != nil {
		t.Fatal(err)
	}
	for l.r.formed < len(l.r.forming) {
		l.apply(l.form())
	}
	front := ids.PhysicalOffset(l.r.appliedEnd.Load())
	l.retire(front, 1500)
	if rolled := l.r.counters.timersRolled.Load(); rolled != n {
		t.Errorf("%d timers were rolled, want %d", rolled, n)
	}
	if list, err := l.r.timers.idx.Below(l.r.st.TimerBounds(), front, n); err != nil || len(list) != 0 {
		t.Errorf("%d timers are left before the front (%v)", len(list), err)
	}
	l.now += n
	var want []string
	for i := range n {
		want = append(want, fmt.Sprint(n-1-i))
	}
	for l.plan(fireTimersAtOnce) != nil {
		l.apply(l.form())
	}
	l.want(want...)
}

// A timer that cannot be read is tried all the time, and told of once a minute.
func TestUnreadableTimersAreToldOfOnceInAWhile(t *testing.T) {
	t.Parallel()
	l := newTimerLoop(t)
	var log bytes.Buffer
	l.r.log = zerolog.New(&log)
	for range 3600 * 20 / 10 { // six minutes
		l.r.unreadable(&l.f, commitlog.ErrCompacted)
		l.r.unreadable(&l.f, errors.New("the disk is ill"))
		l.now += firePause.Milliseconds()
	}
	if n := strings.Count(log.String(), "\n"); n != 6 || strings.Count(log.String(), "the disk is ill") != n {
		t.Errorf("told of %d times in six minutes:\n%s", n, log.String())
	}
}

// What is due next is found behind any number of recalled timers, with a search for thousands of them.
func TestNextTimerBehindRecalledOnes(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 8, 9, 10, 72, 73, 74, 700, 5000} {
		l := newTimerLoop(t)
		for i := range n + 1 {
			l.later(l.now+int64(1+i), fmt.Sprint(i))
		}
		all := func() {
			for waiting := 1; waiting > 0 || l.r.formed < len(l.r.forming); waiting, _ = l.r.inbox.waiting() {
				l.apply(l.form())
			}
		}
		all()
		list, err := l.r.timers.idx.Scan(l.r.st.TimerBounds(), 1<<62, n+1)
		if err != nil || len(list) != n+1 {
			t.Fatal(len(list), err)
		}
		for i, e := range list {
			if next, some := l.r.nextTimer(); i == n && (!some || next != e.Due) {
				t.Errorf("behind %d recalled ones %d is due next (%v), want %d", n, next, some, e.Due)
			}
			l.recall(e)
			if i >= n-1 {
				all()
			}
		}
		if next, some := l.r.nextTimer(); some {
			t.Errorf("all are recalled, and %d is due next", next)
		}
	}
}

// Recalled timers go with the segments that they lie in, also when nothing else is pending.
func TestRecalledTimersGoWithTheFront(t *testing.T) {
	t.Parallel()
	l := newTimerLoop(t)
	l.later(l.now+1000, "a")
	l.apply(l.form())
	e, found, err := l.r.timers.idx.Next(l.r.st.TimerBounds())
	if err != nil || !found {
		t.Fatal(err, found)
	}
	l.recall(e)
	l.apply(l.form())
	l.retire(ids.PhysicalOffset(l.r.appliedEnd.Load()), 10)
	if pending, _, recalled := l.r.st.TimersPending(); pending != 0 || recalled != 0 {
		t.Errorf("%d timers are pending, and %d recalled ones are kept, which nothing will ever take away", pending, recalled)
	}
	l.now += 2000
	l.later(l.now-5, "b")
	l.apply(l.form())
	l.plan(10)
	l.apply(l.form())
	l.want("b")
}

// Half messages that were read to be stored again and have moved since are left where they are.
func TestHalvesMoveOnce(t *testing.T) {
	t.Parallel()
	l := newTimerLoop(t)
	l.half()
	l.half()
	l.apply(l.form())
	plan := func() *halfRoll {
		t.Helper()
		var list []state.Transaction
		l.r.st.EachTransaction(func(x state.Transaction) { list = append(list, x) })
		p, err := l.r.planHalves(list)
		if err != nil || len(p.halves) != 2 {
			t.Fatal(p, err)
		}
		l.r.inbox.add(p)
		return p
	}
	plan()
	stale := plan()
	first := l.r.inbox.take(nil)
	l.r.inbox.add(first[0])
	l.apply(l.form())
	l.r.inbox.add(first[1])
	if l.r.Form(l.builder()) != nil || stale.wrote != 0 || <-stale.done != outcomeNotStored {
		t.Errorf("%d half messages were stored once more", stale.wrote)
	}
	again := plan()
	if l.apply(l.form()); again.wrote != 2 {
		t.Errorf("%d half messages were stored again, want 2", again.wrote)
	}
}

// Sends, recalls, batches and rolls in any order, in frames that are applied later, taken back or rewritten by a new term, beside rebuilds of
// the index, some of which end half way: in the end each timer was delivered once, and not before its time, or recalled.
func TestTimerStories(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 11))
			l := newTimerLoop(t)
			due := map[string]int64{}
			recalls := map[string][]*recall{}
			var flying []formed
			early := func() {
				for _, body := range l.bodies() {
					if due[body] > l.now {
						t.Fatalf("%s is due at %d and was delivered at %d", body, due[body], l.now)
					}
				}
			}
			for i := range 300 {
				l.now += r.Int64N(20)
				step := r.IntN(10)
				if whole := l.r.timers.whole.Load(); !whole && step >= 3 && step <= 5 {
					l.f.sync = true // as fire does; who looks into it otherwise is told to try later
					continue
				}
				switch step {
				case 0, 1, 2:
					body := fmt.Sprint(i)
					due[body] = l.now + r.Int64N(200) - 20
					l.later(due[body], body)
				case 3:
					l.plan(1 + r.IntN(4))
				case 4:
					list, err := l.r.timers.idx.Scan(l.r.st.TimerBounds(), 1<<62, 20)
					if err != nil {
						t.Fatal(err)
					}
					if len(list) > 0 {
						e := list[r.IntN(len(list))]
						raw, err := l.r.readTimer(e, nil)
						if err != nil {
							t.Fatal(err)
						}
						m, _, err := message.Decode(raw[state.TimerPrefixSize:])
						if err != nil {
							t.Fatal(err)
						}
						recalls[string(m.Body)] = append(recalls[string(m.Body)], l.recall(e))
					}
				case 5:
					if end := l.r.appliedEnd.Load(); end > 1000 {
						l.roll(ids.PhysicalOffset(r.Int64N(end)), 1+r.IntN(5))
					}
				case 6, 7:
					b := l.builder()
					token := l.r.Form(b)
					if token == nil {
						continue
					}
					if r.IntN(8) == 0 { // Raft does not take it
						b.Abandon()
						l.r.Abandon(token, raftlog.NotStored)
						continue
					}
					f := formed{b.Finish(), token}
					l.tail = l.tail.After(f.frame)
					l.write(f.frame)
					if r.IntN(10) == 0 { // it takes too long
						l.r.Abandon(f.token, raftlog.Unknown)
						f.token = nil
					}
					flying = append(flying, f)
				case 8:
					for len(flying) > 0 && r.IntN(4) > 0 {
						l.apply(flying[0])
						flying = flying[1:]
					}
					if r.IntN(10) == 0 {
						if err := l.r.checkpointTimers(ids.PhysicalOffset(l.r.appliedEnd.Load()), l.r.st.TimerBounds()); err != nil {
							t.Fatal(err)
						}
					}
					if len(flying) == 0 && r.IntN(10) == 0 {
						l.term++
						l.r.Role(raftlog.Role{Kind: raftlog.RoleMaster, Term: l.term})
						l.f.term, l.f.sync = l.term, true
					}
				}
				if step == 9 && r.IntN(3) == 0 {
					l.breakTimers()
				} else if step == 9 {
					l.r.ctx = context.Background()
					if r.IntN(3) == 0 {
						l.r.ctx = untilOne{l.r.ctx, l.r.timers.idx}
					}
					if err := l.r.mendTimers(); err != nil && !errors.Is(err, context.Canceled) {
						t.Fatal(err)
					}
				}
				for len(l.f.done) > 0 {
					l.f.sync = !<-l.f.done || l.f.sync
				}
				if l.f.sync {
					// As fire does, which waits for what is in flight first.
					for _, f := range flying {
						l.apply(f)
					}
					flying = nil
				}
			}
			l.rebuild()
			for range 50 { // what is left becomes due
				l.now += 50
				l.f.sync = true
				l.plan(100)
				b := l.builder()
				token := l.r.Form(b)
				if token == nil {
					b.Abandon()
				} else {
					f := formed{b.Finish(), token}
					l.tail = l.tail.After(f.frame)
					l.write(f.frame)
					flying = append(flying, f)
				}
				for _, f := range flying {
					l.apply(f)
				}
				flying = nil
				early()
			}
			times := map[string]int{}
			for _, body := range l.bodies() {
				times[body]++
			}
			for body := range due {
				recalled := slices.ContainsFunc(recalls[body], func(p *recall) bool { return p.effect.Kind == state.EffectTimerRecalled })
				if times[body] == 0 && slices.ContainsFunc(recalls[body], func(p *recall) bool { return <-p.done == outcomeUnknown }) {
					continue // it may have been
				}
				want := 1
				if recalled || l.lost[body] {
					want = 0
				}
				if times[body] != want {
					t.Errorf("message %s: recalled %v, not stored %v, delivered %d times", body, recalled, l.lost[body], times[body])
				}
			}
			if n, bytes, _ := l.r.st.TimersPending(); n != 0 || bytes != 0 {
				t.Errorf("%d timers of %d bytes are pending in the end", n, bytes)
			}
		})
	}
}
