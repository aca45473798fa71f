package broker

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/remoting"
)

// resends is a loop with one dead letter of the consumer group cg, which is sent again beside it.
type resends struct {
	*timerLoop
	retry index.Key
	dead  ids.PhysicalOffset
}

func newResends(t *testing.T) *resends {
	l := &resends{timerLoop: newTimerLoop(t)}
	l.r.raft, l.r.ctx = new(raftlog.Group), context.Background()
	for _, topic := range []state.Topic{retryTopic("cg"), dlqTopic("cg")} {
		l.r.proposeNow(state.RecordTopicPut, state.AppendTopicPut(nil, state.Put, topic))
	}
	l.all()
	top, found := l.r.st.Topic(message.DLQTopic("cg"))
	retry, too := l.r.st.Topic(message.RetryTopic("cg"))
	if !found || !too {
		t.Fatal("the topics were not made")
	}
	l.retry = index.Key{Topic: retry.ID}
	s := &send{key: index.Key{Topic: top.ID}, at: l.r.now(), whenDone: func(*Replica, outcome, *send) {}}
	if _, err := l.r.encodeOne(s, &message.Record{Topic: top.Name, Body: []byte("x"), BornHost: l.r.storeHost, StoreHost: l.r.storeHost}, false, true); err != nil {
		t.Fatal(err)
	}
	l.r.inbox.add(s)
	l.all()
	e, err := l.r.entries(index.Key{Topic: top.ID}, 0, 1, nil)
	if err != nil || len(e) != 1 {
		t.Fatal(e, err)
	}
	l.dead = e[0].Offset
	return l
}

// begin sends the dead letter again beside the loop; what becomes of it comes over the channel.
func (l *resends) begin() chan error {
	done := make(chan error, 1)
	go func() { done <- l.r.sendAgain("cg", 0, l.dead, false) }()
	return done
}

// next is the frame of what it proposes next.
func (l *resends) next(done chan error) formed {
	l.t.Helper()
	for {
		select {
		case err := <-done:
			l.t.Fatalf("it ended with %v", err)
		default:
		}
		if n, _ := l.r.inbox.waiting(); n > 0 {
			return l.form()
		}
		runtime.Gosched()
	}
}

// end runs the loop until it has ended.
func (l *resends) end(done chan error) error {
	l.t.Helper()
	for {
		select {
		case err := <-done:
			return err
		default:
		}
		if n, _ := l.r.inbox.waiting(); n > 0 {
			l.apply(l.form())
		}
		runtime.Gosched()
	}
}

func (l *resends) want(retries ids.QueueOffset, code int32, err error) {
	l.t.Helper()
	var ref *refusal
	if code == remoting.Success && err != nil || code != remoting.Success && (!errors.As(err, &ref) || ref.code != code) {
		l.t.Errorf("the answer is %v, want code %d", err, code)
	}
	if n := l.r.st.NextOffset(l.retry); n != retries {
		l.t.Errorf("it was sent again %d times, want %d", n, retries)
	}
}

// One that was answered unknown may be in the log and not applied yet: the next one waits for it before it looks.
func TestResendBehindAnUnknownOne(t *testing.T) {
	t.Parallel()
	l := newResends(t)
	first := l.begin()
	l.apply(l.next(first)) // all before is applied
	f := l.next(first)
	l.r.Abandon(f.token, raftlog.Unknown)
	f.token = nil
	l.want(0, remoting.ServiceNotAvailable, <-first)
	second := l.begin()
	behind := l.next(second)
	l.apply(f)
	l.apply(behind)
	l.want(1, remoting.IllegalOperation, l.end(second))
}

// Between the look and the send another master may have had a turn, and have sent it: then it is not sent.
func TestResendAcrossTerms(t *testing.T) {
	t.Parallel()
	l := newResends(t)
	first := l.begin()
	l.apply(l.next(first))
	for n := 0; n == 0; n, _ = l.r.inbox.waiting() { // it has looked
		runtime.Gosched()
	}
	l.term++
	l.r.Role(raftlog.Role{Kind: raftlog.RoleMaster, Term: l.term})
	l.want(0, remoting.ServiceNotAvailable, l.end(first))
	l.want(1, remoting.Success, l.end(l.begin()))
	l.want(1, remoting.IllegalOperation, l.end(l.begin()))
}

// Many at once, as of a client in a loop, must not hold all workers: few wait for their turn, the others are refused at once.
func TestResendsAreBounded(t *testing.T) {
	t.Parallel()
	const most, at = 16, 40
	l := newResends(t)
	done := make(chan error, at)
	for range at {
		go func() { done <- l.r.sendAgain("cg", 0, l.dead, false) }()
	}
	for range at - most { // nothing of the log moves
		select {
		case err := <-done:
			l.want(0, remoting.SystemBusy, err)
		case <-time.After(20 * time.Second):
			t.Fatal("more wait for their turn")
		}
	}
	l.want(1, remoting.Success, l.end(done))
	for range most - 1 {
		l.want(1, remoting.IllegalOperation, l.end(done))
	}
}
