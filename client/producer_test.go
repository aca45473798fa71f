package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/namesrv"
	"github.com/ledgermq/ledgermq/remoting"
)

func TestSend(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	b := startBroker(t, "g1", newFakeLog())
	b.register(ns, 0, 5, topic("orders", 2), topic("x", 1))
	c := newClient(t, []string{ns})
	p := c.Producer(InProducerGroup("pg"))
	seen := map[ids.QueueID]ids.QueueOffset{}
	for i := range 6 {
		m := Message{Topic: "orders", Body: []byte(fmt.Sprint(i)), Keys: []string{"k1", "k2"}, Tags: "red", Properties: map[string]string{"a": "b"}}
		r, err := p.Send(within(t, patience), m)
		if err != nil {
			t.Fatal(err)
		}
		if r.Group != "g1" || r.Offset != seen[r.Queue] || len(r.MessageID) != 32 || r.OffsetMessageID == "" {
			t.Fatalf("receipt %+v, seen %v", r, seen)
		}
		seen[r.Queue]++
	}
	if seen[0] != 3 || seen[1] != 3 {
		t.Fatalf("the queues got %v, want 3 each", seen)
	}
	res, err := c.Pull(within(t, patience), QueueRef{Group: "g1", Topic: "orders", Queue: 1}, 0, 32)
	if err != nil || res.Status != PullFound || len(res.Messages) != 3 || res.NextOffset != 3 || res.MaxOffset != 3 {
		t.Fatalf("pull: %+v, %v", res, err)
	}
	m := res.Messages[1]
	if m.Offset != 1 || m.Queue != 1 || m.Tags != "red" || strings.Join(m.Keys, ",") != "k1,k2" || m.Properties["a"] != "b" || len(m.ID) != 32 || m.Group != "g1" {
		t.Fatalf("message %+v", m)
	}
	back, err := c.ViewMessage(within(t, patience), m.OffsetID)
	if err != nil || string(back.Body) != string(m.Body) || back.ID != m.ID {
		t.Fatalf("view %s: %+v, %v", m.OffsetID, back, err)
	}
}

func TestSendBatch(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	b := startBroker(t, "g1", newFakeLog())
	b.register(ns, 0, 5, topic("orders", 4), topic("x", 1))
	c := newClient(t, []string{ns})
	p := c.Producer()
	batch := []Message{{Body: []byte("0"), Tags: "t"}, {Topic: "orders", Body: []byte("1")}, {Body: []byte("2")}}
	list, err := p.SendBatch(within(t, patience), "orders", batch)
	if err != nil || len(list) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	for i, r := range list {
		if r.Queue != list[0].Queue || r.Offset != ids.QueueOffset(i) || len(r.OffsetMessageID) != 32 {
			t.Fatalf("receipt %d: %+v", i, r)
		}
	}
	res, err := c.Pull(within(t, patience), QueueRef{Group: "g1", Topic: "orders", Queue: list[0].Queue}, 0, 32)
	if err != nil || len(res.Messages) != 3 || string(res.Messages[2].Body) != "2" || res.Messages[0].Tags != "t" || res.Messages[1].ID != list[1].MessageID {
		t.Fatalf("%+v, %v", res, err)
	}
	if list, err := p.SendBatch(within(t, patience), "orders", nil); list != nil || err != nil {
		t.Fatalf("an empty batch: %v, %v", list, err)
	}
	for name, bad := range map[string][]Message{
		"other topic": {{Topic: "x"}}, "other key": {{OrderKey: "a"}, {OrderKey: "b"}},
		"too long": {{Body: make([]byte, 3<<20)}, {Body: make([]byte, 3<<20)}},
	} {
		if _, err := p.SendBatch(within(t, patience), "orders", bad); !errors.Is(err, ErrNotStored) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := b.called(remoting.SendBatchMessage); n != 1 {
		t.Fatalf("%d batches reached the broker, want 1", n)
	}
}

// TestJudge lists what each answer means for the message.
func TestJudge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code   int32
		remark string
		want   verdict
	}{
		{remoting.Success, "", verdictStored},
		{remoting.ServiceNotAvailable, "[NOT_STORED] not master", verdictRetry},
		{remoting.ServiceNotAvailable, "[UNKNOWN] leader changed", verdictUnknown},
		{remoting.ServiceNotAvailable, "the store is closed", verdictUnknown},
		{remoting.SystemError, "[NOT_STORED] too few replicas", verdictRetry},
		{remoting.SystemError, "something broke", verdictUnknown},
		{remoting.SystemBusy, "[REJECTREQUEST]", verdictRetry},
		{remoting.SystemBusy, "[NOT_STORED] busy", verdictRetry},
		{remoting.MessageIllegal, "", verdictRefused},
		{remoting.NoPermission, "", verdictRefused},
		{remoting.TopicNotExist, "", verdictRefused},
		{remoting.InvalidParameter, "", verdictRefused},
		{remoting.FlushDiskTimeout, "", verdictUnknown},
		{remoting.FlushSlaveTimeout, "", verdictUnknown},
		{remoting.SlaveNotAvailable, "", verdictUnknown},
		{12345, "", verdictUnknown},
	} {
		if got := judge(c.code, c.remark); got != c.want {
			t.Errorf("judge(%d, %q) = %d, want %d", c.code, c.remark, got, c.want)
		}
	}
}

func TestConnectionLostMidCallIsUnknown(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	b, other := startBroker(t, "g1", newFakeLog()), startBroker(t, "g2", newFakeLog())
	b.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	c := newClient(t, []string{ns})
	b.setHook(func(conn *remoting.Conn, req *remoting.Command) bool {
		conn.Close()
		return true
	})
	other.register(ns, 0, 5, topic("orders", 1), topic("x", 1)) // a temptation to send again
	var err error
	sent := 0 // to the other group, before the turn of the first one comes
	for ; err == nil && sent < 3; sent++ {
		_, err = c.Producer().Send(within(t, patience), Message{Topic: "orders", Body: []byte("1")})
	}
	sent--
	var send *SendError
	if !errors.Is(err, ErrUnknown) || errors.Is(err, ErrNotStored) || !errors.As(err, &send) || send.Topic != "orders" {
		t.Fatalf("got %v, want ErrUnknown", err)
	}
	if n, m := b.called(remoting.SendMessageV2), other.called(remoting.SendMessageV2); n != 1 || m != sent {
		t.Fatalf("it was sent %d times, and %d times to the other group", n, m-sent)
	}
	// The next ones go over a new connection.
	b.setHook(nil)
	for range 2 {
		if _, err := c.Producer().Send(within(t, patience), Message{Topic: "orders", Body: []byte("2")}); err != nil {
			t.Fatal(err)
		}
	}
}

// expiring is a context whose deadline comes when over is closed.
type expiring struct {
	context.Context
	over chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.over }

func (e expiring) Err() error {
	select {
	case <-e.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestDeadlineIsUnknown(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	b := startBroker(t, "g1", newFakeLog())
	b.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	c := newClient(t, []string{ns})
	ctx := expiring{t.Context(), make(chan struct{})}
	b.setHook(func(_ *remoting.Conn, req *remoting.Command) bool {
		if req.Code == remoting.SendMessageV2 {
			close(ctx.over) // it has left, whatever came before took how long it took
		}
		return req.Code == remoting.SendMessageV2
	})
	_, err := c.Producer().Send(ctx, Message{Topic: "orders"})
	if !errors.Is(err, ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("deadline: %v", err)
	}
	// Without a deadline the client's own bound holds.
	b.setHook(nil)
	quick := newClient(t, []string{ns}, WithCallTimeout(50*time.Millisecond))
	eventually(t, "a send that knows its way", func() bool {
		_, err := quick.Producer().Send(within(t, patience), Message{Topic: "orders"})
		return err == nil
	})
	b.setHook(func(_ *remoting.Conn, req *remoting.Command) bool { return req.Code == remoting.SendMessageV2 })
	if _, err := quick.Producer().Send(within(t, patience), Message{Topic: "orders"}); !errors.Is(err, ErrUnknown) {
		t.Fatalf("call timeout: %v", err)
	}
	// Close is a deadline too.
	closing, err := New([]string{ns})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	before := b.called(remoting.SendMessageV2)
	go func() {
		_, err := closing.Producer().Send(context.Background(), Message{Topic: "orders"})
		done <- err
	}()
	eventually(t, "the send is under way", func() bool { return b.called(remoting.SendMessageV2) > before })
	closing.Close()
	if err := <-done; !errors.Is(err, ErrUnknown) {
		t.Fatalf("close: %v", err)
	}
	if _, err := closing.Producer().Send(context.Background(), Message{Topic: "orders"}); !errors.Is(err, ErrNotStored) || !errors.Is(err, ErrClosed) {
		t.Fatalf("after close: %v", err)
	}
}

func TestRefusedAtTheDoorIsSentAgainByAFreshRoute(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	log := newFakeLog()
	old, fresh := startBroker(t, "g1", log), startBroker(t, "g1", log)
	old.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	c := newClient(t, []string{ns})
	if _, err := c.Producer().Send(within(t, patience), Message{Topic: "orders"}); err != nil {
		t.Fatal(err)
	}
	old.setHook(answerWith(remoting.ServiceNotAvailable, "[NOT_STORED] not the master"))
	done := make(chan error, 1)
	go func() {
		_, err := c.Producer().Send(within(t, patience), Message{Topic: "orders", Body: []byte("again")})
		done <- err
	}()
	eventually(t, "several refusals", func() bool { return old.called(remoting.SendMessageV2) > 3 })
	fresh.register(ns, 0, 6, topic("orders", 1), topic("x", 1))
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if fresh.called(remoting.SendMessageV2) != 1 {
		t.Fatal("the new master did not get it once")
	}
	// Until the context ends there is nothing but refusals: not stored, with the last one's words.
	fresh.setHook(answerWith(remoting.SystemError, "[NOT_STORED] too few replicas"))
	// A context that happens to end in the middle of a call leaves that call unknown; one that ends between two calls must not.
	var err error
	for range 50 {
		if _, err = c.Producer().Send(within(t, 100*time.Millisecond), Message{Topic: "orders"}); !errors.Is(err, ErrUnknown) {
			break
		}
	}
	var send *SendError
	if !errors.Is(err, ErrNotStored) || errors.Is(err, ErrUnknown) || !errors.As(err, &send) || send.Code != remoting.SystemError || !strings.Contains(send.Remark, "too few") {
		t.Fatalf("got %v", err)
	}
}

func TestHintNamesTheMaster(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	log := newFakeLog()
	old, fresh := startBroker(t, "g1", log), startBroker(t, "g1", log)
	old.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	old.setHook(answerWith(remoting.ServiceNotAvailable, "[NOT_STORED] not the master", fieldMaster, fresh.addr, fieldTerm, "6"))
	c := newClient(t, []string{ns})
	for range 3 {
		if _, err := c.Producer().Send(within(t, patience), Message{Topic: "orders"}); err != nil {
			t.Fatal(err)
		}
	}
	if o, f := old.called(remoting.SendMessageV2), fresh.called(remoting.SendMessageV2); o != 1 || f != 3 {
		t.Fatalf("the old master got %d sends, the new one %d; the name server still names the old one", o, f)
	}
}

func TestUnknownAndRefusedAreNotSentAgain(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	b := startBroker(t, "g1", newFakeLog())
	b.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	c := newClient(t, []string{ns})
	for i, want := range []struct {
		code    int32
		remark  string
		outcome error
	}{
		{remoting.ServiceNotAvailable, "[UNKNOWN] the leader changed", ErrUnknown},
		{remoting.MessageIllegal, "no", ErrNotStored},
		{remoting.NoPermission, "no", ErrNotStored},
	} {
		b.setHook(answerWith(want.code, want.remark))
		_, err := c.Producer().Send(within(t, patience), Message{Topic: "orders"})
		var code *CodeError
		if !errors.Is(err, want.outcome) || !errors.As(err, &code) || code.Code != want.code {
			t.Fatalf("code %d: %v", want.code, err)
		}
		if n := b.called(remoting.SendMessageV2); n != i+1 {
			t.Fatalf("code %d: %d sends reached the broker", want.code, n-i)
		}
	}
	// An OK that cannot be read proves nothing.
	b.setHook(answerWith(remoting.Success, ""))
	if _, err := c.Producer().Send(within(t, patience), Message{Topic: "orders"}); !errors.Is(err, ErrUnknown) {
		t.Fatalf("an OK without an offset: %v", err)
	}
}

func TestBadMessagesNeverLeave(t *testing.T) {
	t.Parallel()
	c := newClient(t, []string{"127.0.0.1:1"})
	for name, m := range map[string]Message{
		"no topic": {}, "bad topic": {Topic: "a b"}, "long body": {Topic: "x", Body: make([]byte, message.MaxBody+1)},
		"separator": {Topic: "x", Properties: map[string]string{"a": "b\x02c"}}, "empty value": {Topic: "x", Properties: map[string]string{"a": ""}},
		"long properties": {Topic: "x", Keys: []string{strings.Repeat("k", message.MaxProperties)}},
	} {
		if _, err := c.Producer().Send(within(t, patience), m); !errors.Is(err, ErrNotStored) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	// The first group's broker is gone but not yet out of the route: the send goes to the other group at once.
	gone, alive := startBroker(t, "g1", newFakeLog()), startBroker(t, "g2", newFakeLog())
	gone.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	alive.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	_ = gone.srv.Close()
	c := newClient(t, []string{ns})
	for range 4 {
		r, err := c.Producer().Send(within(t, patience), Message{Topic: "orders"})
		if err != nil || r.Group != "g2" {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	// With nobody at all, and with no name server at all: not stored.
	alive.stop()
	late := newClient(t, []string{ns}) // c may not have noticed yet that its connection ended
	if _, err := late.Producer().Send(within(t, 100*time.Millisecond), Message{Topic: "orders"}); !errors.Is(err, ErrNotStored) {
		t.Fatalf("nobody listens: %v", err)
	}
	lost := newClient(t, []string{"127.0.0.1:1"})
	if _, err := lost.Producer().Send(within(t, time.Second), Message{Topic: "orders"}); !errors.Is(err, ErrNotStored) || !errors.Is(err, ErrNoNamesrv) {
		t.Fatalf("no name server: %v", err)
	}
}

func TestNameServersDead(t *testing.T) {
	t.Parallel()
	ns, stop := startNamesrv(t, nil)
	b := startBroker(t, "g1", newFakeLog())
	b.register(ns, 0, 5, topic("orders", 2), topic("x", 1))
	c := newClient(t, []string{ns}, WithRouteRefresh(5*time.Millisecond))
	if _, err := c.Producer().Send(within(t, patience), Message{Topic: "orders"}); err != nil {
		t.Fatal(err)
	}
	stop()
	for range 20 {
		if _, err := c.Producer().Send(within(t, patience), Message{Topic: "orders"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Route(within(t, patience), "orders"); !errors.Is(err, ErrNoNamesrv) {
		t.Fatalf("route: %v", err)
	}
}

func TestUnknownTopic(t *testing.T) {
	t.Parallel()
	var ready atomic.Bool
	ns, _ := startNamesrv(t, func(o *namesrv.Options) {
		o.ReadyAfter, o.AskEvery = time.Hour, time.Millisecond
		o.Known = func(context.Context) ([]string, error) {
			if ready.Load() {
				return nil, nil
			}
			return nil, errors.New("not yet")
		}
	})
	b := startBroker(t, "g1", newFakeLog())
	c, strict := newClient(t, []string{ns}), newClient(t, []string{ns}, WithoutAutoCreate())
	if _, err := c.Route(within(t, patience), "orders"); !errors.Is(err, ErrNotReady) {
		t.Fatalf("not ready: %v", err)
	}
	// A send waits for the name server.
	done := make(chan error, 1)
	go func() {
		_, err := strict.Producer().Send(within(t, patience), Message{Topic: "x"})
		done <- err
	}()
	b.register(ns, 0, 5, topic("x", 1), namesrv.TopicConfig{Name: "TBW102", ReadQueues: 8, WriteQueues: 8, Perm: 7})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	ready.Store(true)
	eventually(t, "no such topic", func() bool {
		_, err := c.Route(t.Context(), "orders")
		return errors.Is(err, ErrTopicNotFound)
	})
	if _, err := strict.Producer().Send(within(t, patience), Message{Topic: "orders"}); !errors.Is(err, ErrNotStored) || !errors.Is(err, ErrTopicNotFound) {
		t.Fatalf("without creation: %v", err)
	}
	if _, err := c.Producer().Send(within(t, patience), Message{Topic: "orders", OrderKey: "k"}); !errors.Is(err, ErrTopicNotFound) {
		t.Fatalf("creation by a send with a key: %v", err)
	}
	// By the template it goes to one of four queues.
	for range 9 {
		r, err := c.Producer().Send(within(t, patience), Message{Topic: "orders"})
		if err != nil || r.Queue > 3 {
			t.Fatalf("with creation: %+v, %v", r, err)
		}
	}
}

func TestOrderKeysStay(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	log1, log2 := newFakeLog(), newFakeLog()
	b1, b2 := startBroker(t, "g1", log1), startBroker(t, "g2", log2)
	b1.register(ns, 0, 5, topic("orders", 3), topic("x", 1))
	b2.register(ns, 0, 5, topic("orders", 3), topic("x", 1))
	c := newClient(t, []string{ns})
	p := c.Producer()
	home := map[string]QueueRef{}
	groups := map[string]string{} // group → a key that lives there
	for i := range 30 {
		key := fmt.Sprintf("key-%d", i%10)
		r, err := p.Send(within(t, patience), Message{Topic: "orders", OrderKey: key})
		if err != nil {
			t.Fatal(err)
		}
		at := QueueRef{Group: r.Group, Topic: "orders", Queue: r.Queue}
		if old, ok := home[key]; ok && old != at {
			t.Fatalf("%s moved from %v to %v", key, old, at)
		}
		home[key], groups[r.Group] = at, key
	}
	if len(groups) != 2 {
		t.Fatalf("10 keys lie in %d groups", len(groups))
	}
	// g2's only replica goes away altogether: the keys of g2 wait, those of g1 go on.
	b2.stop()
	eventually(t, "g2 is out of the route", func() bool {
		r, err := c.Route(t.Context(), "orders")
		return err == nil && len(r.Groups) == 1
	})
	if r, err := p.Send(within(t, patience), Message{Topic: "orders", OrderKey: groups["g1"]}); err != nil || r.Queue != home[groups["g1"]].Queue {
		t.Fatalf("a key of the living group: %+v, %v", r, err)
	}
	done := make(chan Receipt, 1)
	go func() {
		r, err := p.Send(within(t, patience), Message{Topic: "orders", OrderKey: groups["g2"]})
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	again := startBroker(t, "g2", log2)
	again.register(ns, 0, 6, topic("orders", 3), topic("x", 1))
	if r := <-done; r.Group != "g2" || r.Queue != home[groups["g2"]].Queue {
		t.Fatalf("the key of g2 went to %+v, its home is %v", r, home[groups["g2"]])
	}
}

func TestHungBrokerIsAvoided(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	hung, alive := startBroker(t, "g1", newFakeLog()), startBroker(t, "g2", newFakeLog())
	hung.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	alive.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	hung.setHook(func(_ *remoting.Conn, req *remoting.Command) bool { return req.Code == remoting.SendMessageV2 })
	t0 := time.Now()
	stopClock := func(o *options) { o.now = func() time.Time { return t0 } } // nobody is forgiven by the passing of time
	c := newClient(t, []string{ns}, WithSlowAfter(time.Millisecond), WithCallTimeout(patience), stopClock)
	stuck := make(chan error, 2)
	ctx, cancel := context.WithCancel(t.Context())
	send := func() {
		_, err := c.Producer().Send(ctx, Message{Topic: "orders"})
		stuck <- err
	}
	go send()
	go send() // one of two goes to the hung broker
	eventually(t, "the hung broker has a send", func() bool { return hung.called(remoting.SendMessageV2) > 0 })
	eventually(t, "it is suspected", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.cache.group("g1").suspected(t0)
	})
	// The other one is done, and with its answer the living broker is trusted, however slow it was.
	if err := <-stuck; err != nil {
		t.Fatal(err)
	}
	before := hung.called(remoting.SendMessageV2)
	for range 6 {
		if r, err := c.Producer().Send(within(t, patience), Message{Topic: "orders"}); err != nil || r.Group != "g2" {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	if n := hung.called(remoting.SendMessageV2); n != before {
		t.Fatalf("the hung broker got %d more sends", n-before)
	}
	cancel()
	if err := <-stuck; !errors.Is(err, ErrUnknown) {
		t.Fatalf("the stuck send: %v", err)
	}
}

func TestAnotherNameServerKnowsMore(t *testing.T) {
	t.Parallel()
	ns1, _ := startNamesrv(t, nil)
	ns2, _ := startNamesrv(t, nil)
	log := newFakeLog()
	old, fresh := startBroker(t, "g1", log), startBroker(t, "g1", log)
	old.register(ns1, 0, 5, topic("orders", 1), topic("x", 1))
	c := newClient(t, []string{ns1, ns2})
	if _, err := c.Producer().Send(within(t, patience), Message{Topic: "orders"}); err != nil {
		t.Fatal(err)
	}
	// The new master reaches only the second name server; the first one still names the old master.
	old.setHook(answerWith(remoting.ServiceNotAvailable, "[NOT_STORED] not the master"))
	fresh.register(ns2, 0, 6, topic("orders", 1), topic("x", 1), topic("fresh", 1))
	for range 5 {
		if _, err := c.Producer().Send(within(t, patience), Message{Topic: "orders"}); err != nil {
			t.Fatal(err)
		}
	}
	if n := old.called(remoting.SendMessageV2); n > 4 {
		t.Fatalf("the old master got %d sends: the client went back to a lower term", n)
	}
	// A topic that only one of them knows exists.
	for range 3 {
		if _, err := c.Route(within(t, patience), "fresh"); err != nil {
			t.Fatal(err)
		}
		c.server.Store(0)
	}
}

// TestSendToReadOnlyTopic holds that a topic that takes no sends is told as such at once, and that an old route is not believed.
func TestSendToReadOnlyTopic(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	b := startBroker(t, "g1", newFakeLog())
	readOnly := topic("orders", 1)
	readOnly.Perm = permRead
	b.register(ns, 0, 5, readOnly, topic("x", 1))
	c := newClient(t, []string{ns})
	for _, key := range []string{"", "k"} {
		ctx := within(t, patience)
		_, err := c.Producer().Send(ctx, Message{Topic: "orders", OrderKey: key})
		if !errors.Is(err, ErrNotStored) || !errors.Is(err, ErrNotWritable) || ctx.Err() != nil {
			t.Errorf("key %q: %v, %v", key, err, ctx.Err())
		}
	}
	b.register(ns, 0, 6, topic("orders", 1), topic("x", 1))
	if _, err := c.Producer().Send(within(t, patience), Message{Topic: "orders"}); err != nil {
		t.Errorf("after it was made writable: %v", err)
	}
}

// TestReplacedMasterIsNotWaitedFor: a paused master never answers. When the group has another one, a send that waits for it ends
// as unknown at once, and the next one goes to the new master.
func TestReplacedMasterIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	log := newFakeLog()
	paused, next := startBroker(t, "g1", log), startBroker(t, "g1", log)
	paused.register(ns, 0, 5, topic("orders", 1))
	paused.setHook(func(_ *remoting.Conn, req *remoting.Command) bool { return req.Code == remoting.SendMessageV2 })
	c := newClient(t, []string{ns}, WithSlowAfter(5*time.Millisecond), WithCallTimeout(patience))
	done := make(chan error, 1)
	go func() {
		_, err := c.Producer().Send(within(t, patience), Message{Topic: "orders"})
		done <- err
	}()
	eventually(t, "the paused master has the send", func() bool { return paused.called(remoting.SendMessageV2) > 0 })
	next.register(ns, 0, 6, topic("orders", 1))
	if err := <-done; !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "another master") {
		t.Fatalf("the send that waited: %v", err)
	}
	if _, err := c.Producer().Send(within(t, patience), Message{Topic: "orders"}); err != nil {
		t.Fatalf("the next one: %v", err)
	}
	if n := paused.called(remoting.SendMessageV2); n != 1 {
		t.Errorf("the paused master got %d sends", n)
	}
}

// TestAllBrokersAway: the name servers know nothing of a topic whose brokers are all away. A client that knew it waits for them.
func TestAllBrokersAway(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	log := newFakeLog()
	b := startBroker(t, "g1", log)
	b.register(ns, 0, 5, topic("orders", 1))
	c := newClient(t, []string{ns}, WithoutAutoCreate())
	if _, err := c.Producer().Send(within(t, patience), Message{Topic: "orders"}); err != nil {
		t.Fatal(err)
	}
	b.stop()
	eventually(t, "the topic is out of the routes", func() bool {
		_, err := c.Route(t.Context(), "orders")
		return errors.Is(err, ErrTopicNotFound)
	})
	done := make(chan error, 1)
	go func() {
		_, err := c.Producer().Send(within(t, patience), Message{Topic: "orders"})
		done <- err
	}()
	again := startBroker(t, "g1", log)
	again.register(ns, 0, 6, topic("orders", 1))
	if err := <-done; err != nil {
		t.Fatalf("a send while all brokers were away: %v", err)
	}
}
