package broker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/remoting"
)

// A request to give up old segments does not wait for who is at it already.
func TestDeleteExpiredDoesNotWait(t *testing.T) {
	t.Parallel()
	r := newLoop(t).r
	r.retaining.Lock()
	answered := make(chan *remoting.Command, 1)
	go func() {
		resp, err := r.deleteExpired(remoting.NewRequest(remoting.DeleteExpiredCommitLog))
		if err != nil {
			t.Error(err)
		}
		answered <- resp
	}()
	select {
	case resp := <-answered:
		r.retaining.Unlock()
		if resp.Code != remoting.Success || resp.Remark == "" {
			t.Errorf("code %d %q, want that it is under way", resp.Code, resp.Remark)
		}
	case <-time.After(5 * time.Second):
		t.Error("it waits")
		r.frozen.Store(true) // so that nothing is given up
		r.retaining.Unlock()
		<-answered
	}
}

// What reads of many queues ends when its time is over, and says so; it never counts as under way after that.
func TestSurveyEnds(t *testing.T) {
	t.Parallel()
	l := newLoop(t)
	r := l.r
	var stop context.CancelFunc
	r.ctx, stop = context.WithCancel(t.Context())
	topic := remoting.NewRequest(remoting.GetTopicStatsInfo)
	topic.Set("topic", "T")
	topic.Set("group", "cg")
	for name, f := range map[string]func(context.Context, *remoting.Command) (*remoting.Command, error){"202": r.topicStats, "303": r.consumeTimeSpan} {
		if resp, err := r.survey(f)(topic); err != nil || resp.Code != remoting.Success {
			t.Errorf("%s: %v", name, err)
		}
	}
	var ref *refusal
	late := func(context.Context, *remoting.Command) (*remoting.Command, error) {
		return nil, context.DeadlineExceeded
	}
	if _, err := r.survey(late)(topic); !errors.As(err, &ref) || ref.code != remoting.SystemBusy {
		t.Errorf("a survey whose time was over: %v", err)
	}
	stop()
	for name, f := range map[string]func(context.Context, *remoting.Command) (*remoting.Command, error){"202": r.topicStats, "303": r.consumeTimeSpan} {
		if _, err := r.survey(f)(topic); !errors.Is(err, context.Canceled) {
			t.Errorf("%s of a replica that is closed: %v", name, err)
		}
	}
	if n := r.surveys.Load(); n != 0 {
		t.Errorf("%d are under way", n)
	}
}
