package broker

import (
	"fmt"
	"testing"
	"time"
)

// Senders that come back are waited for, no longer than a frame takes, and not again and again when they do not come.
func TestGathering(t *testing.T) {
	t.Parallel()
	g, now := &gathering{}, time.Unix(100, 0)
	const took = 600 * time.Microsecond
	want := func(what string, waiting, enough int) {
		t.Helper()
		if got := g.want(waiting, now); got != enough {
			t.Fatalf("%s: of those who send %d are waited for, want %d", what, got, enough)
		}
	}
	want("nothing was answered", 3, 0)
	g.ended(1, took)
	want("one sender", 0, 0)
	g.ended(1, took)
	want("two senders", 1, 0)
	g.ended(32, took)
	want("one of two halves", 32, 56)
	now = now.Add(took / 2)
	want("some came back", 50, 56)
	want("most came back", 56, 0)
	want("nobody is waited for twice", 0, 0)
	g.ended(56, took)
	now = now.Add(took)
	want("the rest", 8, 56)
	now = now.Add(took - 1)
	want("not yet", 55, 56)
	now = now.Add(1)
	want("a frame's time is over", 55, 0)
	g.ended(32, took)
	want("the frame after a miss", 32, 0)
	g.ended(32, 10*time.Millisecond)
	want("the one after that", 32, 56)
	now = now.Add(maxGather)
	want("the bound is over", 32, 0)
	for skipped, most := 1, 0; most < 3; skipped = min(2*skipped+1, maxGatherSkip) {
		if skipped == 1 {
			skipped = 3 // it missed twice
		}
		for i := range skipped {
			g.ended(32, took)
			want(fmt.Sprintf("frame %d of %d after another miss", i, skipped), 32, 0)
		}
		g.ended(32, took)
		want("a try", 32, 56)
		now = now.Add(took)
		want("in vain", 32, 0)
		if skipped == maxGatherSkip {
			most++
		}
	}
	for range maxGatherSkip {
		g.ended(32, took)
		want("skipped", 32, 0)
	}
	g.ended(32, took)
	want("a try", 32, 56)
	want("they came", 60, 0)
	g.ended(32, took)
	want("senders that came are waited for again", 32, 56)
}

// A frame is formed when enough wait or the time is over, and at once when the office ends; who comes wakes the loop only then.
func TestFramesGather(t *testing.T) {
	t.Parallel()
	l := newLoop(t)
	l.r.gathering.on.Store(true)
	l.r.gathering.answered = 0                     // of the frames that made the topic
	l.r.gathering.timer = time.NewTimer(time.Hour) // the loop is not woken: the test looks by itself
	put := func(n int) (wakes int) {
		for range n {
			if taken, wake := l.r.inbox.put(&command{at: l.r.now()}); !taken {
				t.Fatal("a master took nothing")
			} else if wake {
				wakes++
			}
		}
		return wakes
	}
	if n := put(4); n != 4 {
		t.Errorf("%d of 4 that come first wake the loop", n)
	}
	l.r.gathering.ended(4, time.Hour)
	if !l.r.gathers() {
		t.Fatal("senders are not waited for")
	}
	if time.Until(l.r.gathering.until) > maxGather {
		t.Errorf("they are waited for until %v", l.r.gathering.until)
	}
	l.r.gathering.until = time.Now().Add(time.Hour)
	if n := put(2); n != 0 {
		t.Error("the first two that come wake the loop")
	}
	if n := put(1); n != 1 {
		t.Error("the last that is waited for does not wake the loop")
	}
	if l.r.gathers() {
		t.Error("they came, and are waited for")
	}
	l.r.inbox.take(nil)
	put(4)
	l.r.gathering.ended(4, time.Hour)
	if !l.r.gathers() {
		t.Fatal("senders are not waited for the second time")
	}
	l.r.office.handing.Store(true)
	if l.r.gathers() {
		t.Error("a master that gives up its office waits for senders")
	}
	l.r.office.handing.Store(false)
	if n := len(l.r.inbox.take(nil)); n != 4 {
		t.Errorf("%d wait", n)
	}
	if n := put(1); n != 1 {
		t.Error("after that who comes does not wake the loop")
	}
}
