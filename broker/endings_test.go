package broker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/remoting"
)

// half enqueues a half message; its number, or -1 when it was not stored, comes over the channel.
func (l *loop) half() chan ids.QueueOffset {
	l.t.Helper()
	ch := make(chan ids.QueueOffset, 2)
	s := &send{key: l.key, at: l.r.now(), half: &state.HalfPrefix{Group: "pg"}, whenDone: func(_ *Replica, o outcome, s *send) {
		if o != outcomeOK {
			ch <- -1
			return
		}
		ch <- s.first
	}}
	rec := message.Record{Topic: message.HalfTopic, Body: []byte("x"), BornHost: l.r.storeHost, StoreHost: l.r.storeHost,
		Properties: "TRAN_MSG\x01true\x02UNIQ_KEY\x01K\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"}
	if _, err := l.r.encodeOne(s, &rec, false, true); err != nil {
		l.t.Fatal(err)
	}
	if !l.r.inbox.add(s) {
		l.t.Fatal("a master took no half message")
	}
	return ch
}

// end enqueues the end of a pending transaction; what is answered comes over the channel.
func (l *loop) end(number ids.QueueOffset, d state.Decision) chan error {
	l.t.Helper()
	ch := make(chan error, 2)
	e := &ending{number: number, decision: d, at: l.r.now(), done: func(err error) { ch <- err }}
	if d == state.Committed {
		e.message = newSend(l.r.now())
		e.message.key = l.key
		rec := message.Record{Topic: "T", Body: fmt.Appendf(nil, "%d", number), BornHost: l.r.storeHost, StoreHost: l.r.storeHost, SysFlag: message.SysCommit}
		if _, err := l.r.encodeOne(e.message, &rec, false, true); err != nil {
			l.t.Fatal(err)
		}
	}
	if !l.r.inbox.add(e) {
		l.t.Fatal("a master took no end of a transaction")
	}
	return ch
}

func answered[T any](t *testing.T, ch chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	default:
		t.Fatal("no answer")
	}
	if len(ch) > 0 {
		t.Fatal("a second answer")
	}
	return v
}

func code(err error) int32 {
	if err == nil {
		return remoting.Success
	}
	var ref *refusal
	if errors.As(err, &ref) {
		return ref.code
	}
	return -1
}

// Commits and rollbacks of the same transactions race in all orders, in one frame and in several, some of which Raft does not take and
// some of which are given up as unknown and stored all the same. Each transaction ends once, as the first that was answered OK said; who
// is answered OK was right; what was committed is in the queue once, what was rolled back never.
func TestFirstEndWins(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			raceEnds(t, rand.New(rand.NewPCG(seed, 3)))
		})
	}
}

func raceEnds(t *testing.T, rnd *rand.Rand) {
	l := newLoop(t)
	l.r.raft = new(raftlog.Group) // to be woken
	delivered := map[string]int{}
	l.formed = nil
	count := func(f commitlog.Frame) {
		for rec := range f.Records() {
			if rec.Type == state.RecordMessage {
				m, _, err := message.Decode(rec.Body[state.MessagePrefixSize:])
				if err != nil {
					t.Fatal(err)
				}
				delivered[string(m.Body)]++
			}
		}
	}
	type asked struct {
		number ids.QueueOffset
		d      state.Decision
		ch     chan error
	}
	var ends []asked
	var halves []chan ids.QueueOffset
	var inFlight []formed
	for range 300 {
		switch c := rnd.IntN(10); {
		case c < 2:
			halves = append(halves, l.half())
		case c < 6:
			if n := l.r.st.NextHalf(); n > 0 {
				e := asked{number: n - 1 - ids.QueueOffset(rnd.IntN(min(int(n), 4))), d: state.Decision(1 + rnd.IntN(2))}
				if _, _, pending, _ := l.r.st.Transaction(e.number); pending { // as the door sees to it
					e.ch = l.end(e.number, e.d)
					ends = append(ends, e)
				}
			}
		case c < 8:
			tail := l.tail
			b := l.log.NewBuilder(l.tail, l.term, 1000)
			token := l.r.Form(b)
			if b.Count() == 0 {
				if token != nil {
					t.Fatal("a token for an empty frame")
				}
				continue
			}
			f := formed{b.Finish(), token}
			if rnd.IntN(5) == 0 { // Raft did not take it
				l.tail = tail
				l.r.Abandon(f.token, raftlog.NotStored)
				continue
			}
			l.tail = l.tail.After(f.frame)
			if rnd.IntN(5) == 0 { // nobody waits for it any more
				l.r.Abandon(f.token, raftlog.Unknown)
				f.token = nil
			}
			inFlight = append(inFlight, f)
		case len(inFlight) > 0:
			l.apply(inFlight[0])
			count(inFlight[0].frame)
			inFlight = inFlight[1:]
		}
	}
	for len(inFlight) > 0 || len(l.r.inbox.items) > 0 {
		if len(l.r.inbox.items) > 0 {
			b := l.log.NewBuilder(l.tail, l.term, 1000)
			if token := l.r.Form(b); b.Count() > 0 {
				f := formed{b.Finish(), token}
				l.tail = l.tail.After(f.frame)
				inFlight = append(inFlight, f)
			}
		}
		if len(inFlight) > 0 {
			l.apply(inFlight[0])
			count(inFlight[0].frame)
			inFlight = inFlight[1:]
		}
	}
	last := l.send() // a frame that Raft did not take may have been the newest that was formed
	l.apply(l.form())
	expect(t, last, outcomeOK)
	numbers := map[ids.QueueOffset]bool{}
	for _, ch := range halves {
		if n := answered(t, ch); n >= 0 && numbers[n] {
			t.Errorf("number %d was given twice", n)
		} else if n >= 0 {
			numbers[n] = true
		}
	}
	ok, contrary := 0, 0
	for _, e := range ends {
		_, d, pending, known := l.r.st.Transaction(e.number)
		if !known {
			t.Fatalf("transaction %d is not known", e.number)
		}
		switch err := answered(t, e.ch); code(err) {
		case remoting.Success:
			ok++
			if d != e.d {
				t.Errorf("the end of transaction %d as %v was answered OK, but it is %v, pending %v", e.number, e.d, d, pending)
			}
		case remoting.IllegalOperation:
			contrary++
			if d == e.d || pending {
				t.Errorf("the end of transaction %d as %v was refused, and it is %v, pending %v: %v", e.number, e.d, d, pending, err)
			}
		case remoting.ServiceNotAvailable:
		default:
			t.Errorf("the end of transaction %d: %v", e.number, err)
		}
	}
	if ok == 0 || contrary == 0 {
		t.Errorf("%d ends were answered OK and %d as contrary: the test tests nothing", ok, contrary)
	}
	committed := 0
	for n := range l.r.st.NextHalf() {
		_, d, _, _ := l.r.st.Transaction(n)
		want := 0
		if d == state.Committed {
			want = 1
			committed++
		}
		if got := delivered[fmt.Sprint(n)]; got != want {
			t.Errorf("transaction %d is %v, and its message was delivered %d times", n, d, got)
		}
	}
	if next := l.r.st.NextOffset(l.key); int(next) != committed+1 {
		t.Errorf("the queue ends at %d, want %d", next, committed+1)
	}
	if n := len(l.r.endings.of); n > 0 {
		t.Errorf("%d ends are noted when nothing is in flight", n)
	}
}

// The topic of a transaction is deleted while its commit is in flight: it stays pending, and a rollback that came in between is
// carried out.
func TestCommitToDeletedTopic(t *testing.T) {
	t.Parallel()
	l := newLoop(t)
	l.r.raft = new(raftlog.Group)
	ch := l.half()
	l.apply(l.form())
	number := answered(t, ch)
	l.r.proposeNow(state.RecordTopicDelete, state.AppendTopicDelete(nil, "T"))
	commit := l.end(number, state.Committed)
	rollback := l.end(number, state.RolledBack)
	l.apply(l.form())
	if err := answered(t, commit); code(err) != remoting.TopicNotExist {
		t.Errorf("the commit: %v", err)
	}
	if _, d, pending, _ := l.r.st.Transaction(number); !pending {
		t.Fatalf("the transaction has ended: %v", d)
	}
	l.apply(l.form())
	if err := answered(t, rollback); err != nil {
		t.Errorf("the rollback: %v", err)
	}
	if _, d, _, _ := l.r.st.Transaction(number); d != state.RolledBack {
		t.Errorf("the transaction is %v", d)
	}
}
