package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

func TestAdmin(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	b1, b2 := startBroker(t, "g1", newFakeLog()), startBroker(t, "g2", newFakeLog())
	b1.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	b2.register(ns, 0, 6, topic("orders", 1), topic("x", 1))
	c := newClient(t, []string{"127.0.0.1:1;" + ns})
	ctx := within(t, patience)

	cl, err := c.Cluster(ctx)
	if err != nil || len(cl.Groups) != 2 || cl.Groups[1].Master() != b2.addr || cl.Groups[1].Term != 6 || cl.Groups[1].Cluster != "c1" {
		t.Fatalf("cluster %+v, %v", cl, err)
	}
	if list, err := c.TopicList(ctx); err != nil || fmt.Sprint(list) != "[orders x]" {
		t.Fatalf("topics %v, %v", list, err)
	}
	if id, addrs, err := c.Controllers(ctx); err != nil || id != "id1" || fmt.Sprint(addrs) != "[k1:1 k2:2]" {
		t.Fatalf("controllers %q %v, %v", id, addrs, err)
	}
	if r, err := c.Route(ctx, "orders"); err != nil || len(r.Groups) != 2 || r.Groups[0].Term != 5 {
		t.Fatalf("route %+v, %v", r, err)
	}

	list, err := c.CreateTopic(ctx, TopicSpec{Name: "fresh", ReadQueues: 3, Attributes: map[string]string{"b": "2", "a": "1"}})
	if err != nil || len(list) != 2 || b1.log.topics["fresh"] != "3" || b2.log.topics["fresh"] != "3" {
		t.Fatalf("create topic: %+v, %v", list, err)
	}
	// One group refuses for a reason, and is named; the other one is done.
	b1.setHook(func(conn *remoting.Conn, req *remoting.Command) bool {
		conn.ReplyError(req, remoting.SystemError, "the disk is full")
		return true
	})
	list, err = c.CreateTopic(ctx, TopicSpec{Name: "half"})
	var code *CodeError
	if !errors.As(err, &code) || !strings.Contains(err.Error(), "g1") || len(list) != 2 || list[0].Err == nil || list[1].Err != nil || b2.log.topics["half"] != "8" {
		t.Fatalf("create half a topic: %+v, %v", list, err)
	}
	// A refusal that passes is waited for, by a fresh list of groups.
	refusals := 0
	b1.setHook(func(conn *remoting.Conn, req *remoting.Command) bool {
		if refusals++; refusals > 2 {
			return false
		}
		conn.ReplyError(req, remoting.ServiceNotAvailable, "[NOT_STORED] no master")
		return true
	})
	if list, err = c.CreateTopic(ctx, TopicSpec{Name: "half", Groups: []string{"g1"}}); err != nil || len(list) != 1 || b1.log.topics["half"] != "8" {
		t.Fatalf("create the other half: %+v, %v", list, err)
	}
	if _, err := c.CreateTopic(ctx, TopicSpec{Name: "half", Groups: []string{"g9"}}); err == nil || !strings.Contains(err.Error(), "g9") {
		t.Fatalf("a group that does not exist: %v", err)
	}
	if _, err := c.CreateTopic(ctx, TopicSpec{Name: "a b"}); err == nil {
		t.Fatal("a bad name was sent")
	}

	if list, err := c.CreateGroup(ctx, GroupSpec{Name: "cg"}); err != nil || len(list) != 2 {
		t.Fatalf("create group: %+v, %v", list, err)
	}
	if list, err := c.ConsumerMembers(ctx, "cg"); err != nil || fmt.Sprint(list) != "[all@1 g1@1 g2@1]" {
		t.Fatalf("members %v, %v", list, err)
	}
	if _, err := c.DeleteTopic(ctx, "orders"); err != nil {
		t.Fatal(err)
	}
	if list, err := c.TopicList(ctx); err != nil || fmt.Sprint(list) != "[x]" {
		t.Fatalf("topics %v, %v", list, err)
	}
}

// What a retry policy means is what RocketMQ's brokers make of it: a customized one begins with its third delay.
func TestRetryPolicyOnTheWire(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]RetryPolicy{
		`null`: {},
		`{"customizedRetryPolicy":{"next":[1000,1000,1000,10000]},"type":"CUSTOMIZED"}`:                 {Delays: []time.Duration{time.Second, 10 * time.Second}},
		`{"exponentialRetryPolicy":{"initial":5000,"max":7200000,"multiplier":2},"type":"EXPONENTIAL"}`: {Initial: 5 * time.Second, Max: 2 * time.Hour, Multiplier: 2},
	} {
		w, err := p.wire()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(w); err != nil || string(got) != want {
			t.Errorf("%s, %v: want %s", got, err, want)
		}
	}
	for _, p := range []RetryPolicy{{Delays: make([]time.Duration, MaxRetryDelays+1)}, {Delays: make([]time.Duration, 1), Multiplier: 2}} {
		if w, err := p.wire(); err == nil {
			t.Errorf("%+v became %v", p, w)
		}
	}
}

func TestViewMessageAfterFailover(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	log := newFakeLog()
	old, fresh := startBroker(t, "g1", log), startBroker(t, "g1", log)
	old.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	fresh.register(ns, 2, 5)
	c := newClient(t, []string{ns})
	r, err := c.Producer().Send(within(t, patience), Message{Topic: "orders", Body: []byte("b")})
	if err != nil {
		t.Fatal(err)
	}
	_ = old.srv.Close() // the route still names it
	m, err := c.ViewMessage(within(t, patience), r.OffsetMessageID)
	if err != nil || string(m.Body) != "b" || m.Group != "g1" {
		t.Fatalf("%+v, %v", m, err)
	}
	if _, err := c.ViewMessage(within(t, patience), "xyz"); err == nil {
		t.Fatal("a bad id was taken")
	}
	var code *CodeError
	id := message.OffsetMessageID(m.StoreHost, 99999)
	if _, err := c.ViewMessage(within(t, patience), id); !errors.As(err, &code) {
		t.Fatalf("no message there: %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	if _, err := New(nil); err == nil {
		t.Fatal("no name server")
	}
	_, err := New([]string{"a:1"}, WithCallTimeout(-1), WithRouteTimeout(-time.Second))
	if err == nil || !strings.Contains(err.Error(), "call timeout") || !strings.Contains(err.Error(), "route timeout") {
		t.Fatalf("%v does not name all faults", err)
	}
}
