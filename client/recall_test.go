package client

import (
	"errors"
	"testing"

	"github.com/ledgermq/ledgermq/remoting"
)

// A recall is asked for again where an answer is not the last word, and tells what the answers prove.
func TestRecall(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	b := startBroker(t, "g1", newFakeLog())
	b.register(ns, 0, 5, topic("orders", 1))
	c := newClient(t, []string{ns})
	b.setHook(answerWith(remoting.Success, "", "queueId", "0", "queueOffset", "0", "recallHandle", "h"))
	r, err := c.Producer().Send(within(t, patience), Message{Topic: "orders"})
	if err != nil || r.RecallHandle != "h" {
		t.Fatalf("%+v, %v", r, err)
	}
	type answer struct {
		code   int32 // -1: the connection is lost
		remark string
	}
	for _, tc := range []struct {
		name    string
		answers []answer
		want    error
	}{
		{"OK", []answer{{remoting.Success, ""}}, nil},
		{"refused at the door, then OK", []answer{{remoting.SystemBusy, "later"}, {remoting.ServiceNotAvailable, "[NOT_STORED] no"}, {remoting.Success, ""}}, nil},
		{"too late", []answer{{remoting.ServiceNotAvailable, "[NOT_STORED] no"}, {remoting.IllegalOperation, "gone"}}, ErrTooLate},
		{"unknown, then OK", []answer{{remoting.ServiceNotAvailable, "[UNKNOWN] moved"}, {remoting.Success, ""}}, nil},
		{"unknown, then not there", []answer{{remoting.ServiceNotAvailable, "[UNKNOWN] moved"}, {remoting.IllegalOperation, "gone"}}, ErrUnknown},
		{"no answer, then not there", []answer{{-1, ""}, {remoting.IllegalOperation, "gone"}}, ErrUnknown},
	} {
		n := 0
		b.setHook(func(conn *remoting.Conn, req *remoting.Command) bool {
			if req.Code != remoting.RecallMessage {
				return false
			}
			if req.GetOr("recallHandle", "") != "h" || req.GetOr("topic", "") != "orders" {
				t.Errorf("%s: %+v", tc.name, req)
			}
			a := tc.answers[min(n, len(tc.answers)-1)]
			n++
			if a.code < 0 {
				conn.Close()
			} else {
				conn.Reply(req, remoting.NewResponse(a.code, a.remark))
			}
			return true
		})
		err := c.Producer().Recall(within(t, patience), "orders", r)
		if !errors.Is(err, tc.want) || tc.want == nil && err != nil || errors.Is(err, ErrTooLate) && errors.Is(err, ErrUnknown) || n != len(tc.answers) {
			t.Errorf("%s: %v after %d answers", tc.name, err, n)
		}
	}
	var code *CodeError
	b.setHook(func(conn *remoting.Conn, req *remoting.Command) bool {
		conn.ReplyError(req, remoting.TopicNotExist, "gone")
		return true
	})
	if err := c.Producer().Recall(within(t, patience), "orders", r); !errors.As(err, &code) || errors.Is(err, ErrTooLate) {
		t.Errorf("another refusal: %v", err)
	}
}

// An offset that nobody waits for arrives; one that a reset outweighs is told.
func TestCommits(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	b := startBroker(t, "g1", newFakeLog())
	b.register(ns, 0, 5, topic("orders", 1))
	c := newClient(t, []string{ns})
	q := QueueRef{Group: "g1", Topic: "orders"}
	if err := c.CommitOffsetSoon(within(t, patience), "cg", q, 7); err != nil {
		t.Fatal(err)
	}
	if off, found, err := c.CommittedOffset(within(t, patience), "cg", q); err != nil || !found || off != 7 {
		t.Fatalf("%d, %v, %v", off, found, err)
	}
	b.setHook(func(conn *remoting.Conn, req *remoting.Command) bool {
		if req.Code != remoting.UpdateConsumerOffset {
			return false
		}
		conn.Reply(req, remoting.NewResponse(remoting.Success, "the group was reset"))
		return true
	})
	if err := c.CommitOffset(within(t, patience), "cg", q, 8); !errors.Is(err, ErrResetPending) {
		t.Fatalf("a commit that was left out: %v", err)
	}
	nobody := listen(t)
	q.Broker = nobody.Addr().String()
	if err := nobody.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.CommitOffsetSoon(within(t, patience), "cg", q, 9); !errors.Is(err, errNotSent) {
		t.Fatalf("nobody listens: %v", err)
	}
}
