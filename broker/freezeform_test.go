package broker

import (
	"testing"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/raftlog"
)

// freeze enqueues a freeze.
func (l *loop) freeze(giveUp bool) chan outcome {
	l.t.Helper()
	ch := make(chan outcome, 2)
	if !l.r.inbox.add(&freezing{command{kind: state.RecordFreeze, body: state.AppendFreeze(nil, giveUp), at: l.r.now(), done: func(o outcome, _ state.Effect) { ch <- o }}}) {
		l.t.Fatal("a master took no freeze")
	}
	return ch
}

// formsNothing asks for a frame and demands that there is none.
func (l *loop) formsNothing(why string) {
	l.t.Helper()
	b := l.builder()
	if token := l.r.Form(b); token != nil || b.Count() != 0 {
		l.t.Fatalf("%s: %d records were formed", why, b.Count())
	}
	b.Abandon()
}

// While a freeze is in flight nothing is formed behind it, in its own frame either: a send that comes after it waits until its effect is known.
func TestNothingBehindAFreeze(t *testing.T) {
	t.Parallel()
	for _, left := range []bool{false, true} {
		l := newLoop(t)
		if left { // a consumer group has not consumed what comes before the freeze
			l.r.proposeNow(state.RecordOffsets, state.AppendOffsets(nil, []state.ConsumerOffset{{Group: "billing", Topic: l.key.Topic}}))
		}
		first := l.send()
		frozen := l.freeze(false)
		second := l.send()
		f := l.form()
		l.formsNothing("a freeze is in flight")
		l.r.Abandon(f.token, raftlog.Unknown) // it took too long, and is in the log all the same
		expect(t, first, outcomeUnknown)
		expect(t, frozen, outcomeUnknown)
		f.token = nil
		l.formsNothing("a freeze of which nobody waits is in flight")
		if len(second) != 0 {
			t.Fatal("the send behind the freeze was answered before its effect was known")
		}
		l.apply(f)
		if l.r.frozen.Load() == left || (l.r.st.Frozen() == state.NotFrozen) != left {
			t.Fatalf("left %t: frozen %v", left, l.r.st.Frozen())
		}
		if !left {
			l.formsNothing("the group is frozen")
			expect(t, second, outcomeNotStored)
		} else {
			l.apply(l.form())
			expect(t, second, outcomeOK)
		}
		want := 1
		if left {
			want = 2
		}
		if next := l.r.st.NextOffset(l.key); int(next) != want {
			t.Errorf("left %t: the queue ends at %d, want %d", left, next, want)
		}
	}
}

// A freeze that Raft did not take is as if it had never been.
func TestFreezeNotStored(t *testing.T) {
	t.Parallel()
	l := newLoop(t)
	frozen := l.freeze(false)
	tail := l.tail
	f := l.form()
	l.r.Abandon(f.token, raftlog.NotStored)
	l.tail = tail
	expect(t, frozen, outcomeNotStored)
	sent := l.send()
	l.apply(l.form())
	expect(t, sent, outcomeOK)
}

// A frozen group takes commands still: consumers commit what they have.
func TestFrozenTakesCommands(t *testing.T) {
	t.Parallel()
	l := newLoop(t)
	sent := l.send()
	l.apply(l.form())
	expect(t, sent, outcomeOK)
	frozen := l.freeze(true)
	l.apply(l.form())
	expect(t, frozen, outcomeOK)
	late := l.send()
	again := l.freeze(true)
	l.r.proposeNow(state.RecordOffsets, state.AppendOffsets(nil, []state.ConsumerOffset{{Group: "billing", Topic: l.key.Topic, Offset: 1}}))
	l.apply(l.form())
	expect(t, late, outcomeNotStored)
	expect(t, again, outcomeOK)
	l.apply(l.form()) // what was held back behind it
	if at, ok := l.r.st.ConsumerOffset("billing", "T", 0); !ok || at != 1 {
		t.Errorf("the commit in a frozen group: %d, %t", at, ok)
	}
	l.formsNothing("nothing waits")
}
