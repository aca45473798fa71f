package broker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// wire is a raw connection to one replica.
type wire struct {
	t *testing.T
	c *remoting.Client
}

func (c *cluster) wire(node, group string) *wire {
	c.t.Helper()
	var cl *remoting.Client
	eventually(c.t, 20*time.Second, func() (err error) { // a node that has just started opens its ports a little later
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		cl, err = remoting.Dial(ctx, c.port(node, group), remoting.ClientOptions{})
		return err
	})
	c.t.Cleanup(func() { cl.Close() })
	return &wire{c.t, cl}
}

func request(code int32, body []byte, fields ...string) *remoting.Command {
	req := remoting.NewRequest(code)
	for i := 0; i+1 < len(fields); i += 2 {
		req.Set(fields[i], fields[i+1])
	}
	req.Body = body
	return req
}

func (w *wire) call(code int32, body []byte, fields ...string) *remoting.Command {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	resp, err := w.c.Call(ctx, request(code, body, fields...))
	if err != nil {
		w.t.Fatalf("request %d: %v", code, err)
	}
	return resp
}

func (w *wire) ok(code int32, body []byte, fields ...string) *remoting.Command {
	w.t.Helper()
	var resp *remoting.Command
	eventually(w.t, 20*time.Second, func() error {
		resp = w.call(code, body, fields...)
		if resp.Code == remoting.Success {
			return nil
		}
		err := fmt.Errorf("request %d %v: code %d %q", code, fields, resp.Code, resp.Remark)
		// A busy machine may change the master in between: who is told that nothing was stored asks again.
		if resp.Code != remoting.ServiceNotAvailable || !strings.HasPrefix(resp.Remark, "[NOT_STORED]") {
			w.t.Fatal(err)
		}
		return err
	})
	return resp
}

func sendFields(topic string, more ...string) []string {
	f := []string{"producerGroup", "pg", "topic", topic, "defaultTopic", "TBW102", "defaultTopicQueueNums", "4", "queueId", "0", "sysFlag", "0",
		"bornTimestamp", "1700000000000", "flag", "0", "properties", "", "reconsumeTimes", "0"}
	return append(f, more...)
}

func pullFields(group, topic string, offset int64, more ...string) []string {
	f := []string{"consumerGroup", group, "topic", topic, "queueId", "0", "queueOffset", strconv.FormatInt(offset, 10), "maxMsgNums", "32",
		"sysFlag", "4", "commitOffset", "0", "suspendTimeoutMillis", "0", "subscription", "*", "subVersion", "0"}
	return append(f, more...)
}

func (w *wire) topic(name string, queues int) {
	w.t.Helper()
	q := strconv.Itoa(queues)
	w.ok(remoting.UpdateAndCreateTopic, nil, "topic", name, "defaultTopic", "TBW102", "readQueueNums", q, "writeQueueNums", q, "perm", "6", "topicFilterType", "SINGLE_TAG", "order", "false")
}

func number(t *testing.T, c *remoting.Command, field string) int64 {
	t.Helper()
	n, err := c.MustInt64(field)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func records(t *testing.T, body []byte) (out []message.Record) {
	t.Helper()
	for len(body) > 0 {
		r, n, err := message.Decode(body)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
		body = body[n:]
	}
	return out
}

// Each of these is refused with the protocol's own code, at once, and neither the connection nor another one notices.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 2)
	big := bytes.Repeat([]byte("x"), message.MaxBody+1)
	props := "k\x01" + strings.Repeat("v", message.MaxProperties) + "\x02"
	for _, tt := range []struct {
		name   string
		code   int32
		body   []byte
		fields []string
		want   int32
	}{
		{"unknown code", 999, nil, nil, remoting.RequestCodeNotSupported},
		{"pop", remoting.PopMessage, nil, nil, remoting.RequestCodeNotSupported},
		{"send without a topic", remoting.SendMessage, []byte("x"), []string{"queueId", "0", "sysFlag", "0", "bornTimestamp", "0", "flag", "0"}, remoting.SystemError},
		{"send with a queue that is no number", remoting.SendMessage, []byte("x"), sendFields("T", "queueId", "one"), remoting.SystemError},
		{"send to a queue that does not exist", remoting.SendMessage, []byte("x"), sendFields("T", "queueId", "2"), remoting.InvalidParameter},
		{"send to a bad name", remoting.SendMessage, []byte("x"), sendFields("no spaces"), remoting.InvalidParameter},
		{"send to a long name", remoting.SendMessage, []byte("x"), sendFields(strings.Repeat("t", message.MaxTopic+1)), remoting.InvalidParameter},
		{"send to a reserved topic", remoting.SendMessage, []byte("x"), sendFields(message.ScheduleTopic), remoting.NoPermission},
		{"send of a body over the limit", remoting.SendMessage, big, sendFields("T"), remoting.MessageIllegal},
		{"send of properties over the limit", remoting.SendMessage, []byte("x"), sendFields("T", "properties", props), remoting.MessageIllegal},
		{"half a transaction by flag only", remoting.SendMessage, []byte("x"), sendFields("T", "sysFlag", "4"), remoting.MessageIllegal},
		{"empty batch", remoting.SendBatchMessage, nil, []string{"a", "pg", "b", "T", "c", "TBW102", "d", "4", "e", "0", "f", "0", "g", "0", "h", "0", "i", "", "m", "true"}, remoting.MessageIllegal},
		{"batch that lies", remoting.SendBatchMessage, []byte{0, 0, 1, 0, 0, 0, 0, 0}, []string{"b", "T", "e", "0", "f", "0", "g", "0", "h", "0", "m", "true"}, remoting.MessageIllegal},
		{"pull of an unknown topic", remoting.PullMessage, nil, pullFields("cg", "Nope", 0), remoting.TopicNotExist},
		{"pull of a queue that does not exist", remoting.PullMessage, nil, pullFields("cg", "T", 0, "queueId", "2"), remoting.InvalidParameter},
		{"pull of nothing", remoting.PullMessage, nil, pullFields("cg", "T", 0, "maxMsgNums", "0"), remoting.InvalidParameter},
		{"pull without a field", remoting.PullMessage, nil, []string{"topic", "T"}, remoting.SystemError},
		{"pull with SQL", remoting.PullMessage, nil, pullFields("cg", "T", 0, "expressionType", "SQL92"), remoting.SystemError},
		{"pull by a group nobody is in", remoting.PullMessage, nil, pullFields("cg", "T", 0, "sysFlag", "0"), remoting.SubscriptionNotExist},
		{"pull beyond the end", remoting.PullMessage, nil, pullFields("cg", "T", 7), remoting.PullOffsetMoved},
		{"commit to an unknown topic", remoting.UpdateConsumerOffset, nil, []string{"consumerGroup", "cg", "topic", "Nope", "queueId", "0", "commitOffset", "0"}, remoting.TopicNotExist},
		{"commit below zero", remoting.UpdateConsumerOffset, nil, []string{"consumerGroup", "cg", "topic", "T", "queueId", "0", "commitOffset", "-1"}, remoting.InvalidParameter},
		{"offset of a queue that does not exist", remoting.QueryConsumerOffset, nil, []string{"consumerGroup", "cg", "topic", "T", "queueId", "9"}, remoting.InvalidParameter},
		{"end of an unknown topic", remoting.GetMaxOffset, nil, []string{"topic", "Nope", "queueId", "0"}, remoting.TopicNotExist},
		{"heartbeat that is no JSON", remoting.HeartBeat, []byte("{"), nil, remoting.SystemError},
		{"heartbeat of a bad group", remoting.HeartBeat, []byte(`{"clientID":"c","consumerDataSet":[{"groupName":"a b"}]}`), nil, remoting.InvalidParameter},
		{"list of a group without members", remoting.GetConsumerListByGroup, nil, []string{"consumerGroup", "cg"}, remoting.SystemError},
		{"pull by a group with a bad name", remoting.PullMessage, nil, pullFields("c g", "T", 0), remoting.InvalidParameter},
		{"lock by a group with a bad name", remoting.LockBatchMQ, []byte(`{"consumerGroup":"c g","clientId":"c"}`), nil, remoting.InvalidParameter},
		{"lock by an endless client id", remoting.LockBatchMQ, []byte(`{"consumerGroup":"cg","clientId":"` + strings.Repeat("c", 5000) + `"}`), nil, remoting.InvalidParameter},
		{"group with attributes that no frame can hold", remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg2","attributes":{"a":"` + strings.Repeat("v", 6<<20) + `"}}`), nil, remoting.InvalidParameter},
		{"send-back without an offset", remoting.ConsumerSendMsgBack, nil, []string{"group", "cg", "delayLevel", "0"}, remoting.SystemError},
		{"send-back of a group with a bad name", remoting.ConsumerSendMsgBack, nil, []string{"group", "no body", "offset", "4200", "delayLevel", "0"}, remoting.InvalidParameter},
		{"query without a key", remoting.QueryMessage, nil, []string{"topic", "T", "maxNum", "1", "beginTimestamp", "0", "endTimestamp", "1"}, remoting.SystemError},
		{"query without a topic", remoting.QueryMessage, nil, []string{"key", "k", "maxNum", "1", "beginTimestamp", "0", "endTimestamp", "1"}, remoting.SystemError},
		{"query with an empty key", remoting.QueryMessage, nil, []string{"topic", "T", "key", "", "maxNum", "1", "beginTimestamp", "0", "endTimestamp", "1"}, remoting.SystemError},
		{"query without a time", remoting.QueryMessage, nil, []string{"topic", "T", "key", "k", "maxNum", "1", "endTimestamp", "1"}, remoting.SystemError},
		{"query with a number that is none", remoting.QueryMessage, nil, []string{"topic", "T", "key", "k", "maxNum", "x", "beginTimestamp", "0", "endTimestamp", "1"}, remoting.SystemError},
		{"query with a number that is too large", remoting.QueryMessage, nil, []string{"topic", "T", "key", "k", "maxNum", "2147483648", "beginTimestamp", "0", "endTimestamp", "1"}, remoting.SystemError},
		{"query with a time that is too large", remoting.QueryMessage, nil, []string{"topic", "T", "key", "k", "maxNum", "1", "beginTimestamp", "0", "endTimestamp", "9223372036854775808"}, remoting.SystemError},
		{"query with an endless key", remoting.QueryMessage, nil, []string{"topic", "T", "key", strings.Repeat("k", 30000), "maxNum", "64", "beginTimestamp", "0", "endTimestamp", "1"}, remoting.QueryNotFound},
		{"query with a key of control characters", remoting.QueryMessage, nil, []string{"topic", "T", "key", "\x01\x02", "maxNum", "64", "beginTimestamp", "0", "endTimestamp", "1"}, remoting.QueryNotFound},
		{"query of an unknown topic", remoting.QueryMessage, nil, []string{"topic", "no such topic", "key", "k", "maxNum", "64", "beginTimestamp", "0", "endTimestamp", "1"}, remoting.QueryNotFound},
		{"view of no message", remoting.ViewMessageByID, nil, []string{"offset", "123"}, remoting.SystemError},
		{"view beyond the end", remoting.ViewMessageByID, nil, []string{"offset", "4611686018427387904"}, remoting.SystemError},
		{"topic without queues", remoting.UpdateAndCreateTopic, nil, []string{"topic", "N", "readQueueNums", "0", "writeQueueNums", "0", "perm", "6"}, remoting.InvalidParameter},
		{"topic with a strange permission", remoting.UpdateAndCreateTopic, nil, []string{"topic", "N", "readQueueNums", "1", "writeQueueNums", "1", "perm", "99"}, remoting.InvalidParameter},
		{"change of the template of topics", remoting.UpdateAndCreateTopic, nil, []string{"topic", "TBW102", "readQueueNums", "1", "writeQueueNums", "1", "perm", "6"}, remoting.InvalidParameter},
		{"deletion of a system topic", remoting.DeleteTopicInBroker, nil, []string{"topic", "g1"}, remoting.InvalidParameter},
		{"group with a bad name", remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"a b"}`), nil, remoting.InvalidParameter},
		{"lock without a client", remoting.LockBatchMQ, []byte(`{"consumerGroup":"cg"}`), nil, remoting.SystemError},
	} {
		resp := w.call(tt.code, tt.body, tt.fields...)
		if resp.Code != tt.want {
			t.Errorf("%s: code %d %q, want %d", tt.name, resp.Code, resp.Remark, tt.want)
		}
		if resp.Code != remoting.PullOffsetMoved && strings.TrimSpace(resp.Remark) == "" {
			t.Errorf("%s: the answer has no remark", tt.name)
		}
		switch tt.code {
		case remoting.SendMessage, remoting.SendBatchMessage, remoting.ConsumerSendMsgBack:
			if !strings.HasPrefix(resp.Remark, "[NOT_STORED] ") {
				t.Errorf("%s: the remark does not say that nothing was stored: %q", tt.name, resp.Remark)
			}
		}
		if strings.Contains(resp.Remark, "\n") || strings.Contains(resp.Remark, "goroutine") {
			t.Errorf("%s: the remark is not one line: %q", tt.name, resp.Remark)
		}
	}
	w.ok(remoting.SendMessage, []byte("still fine"), sendFields("T")...)
	if end := number(t, w.ok(remoting.GetMaxOffset, nil, "topic", "T", "queueId", "0"), "offset"); end != 1 {
		t.Errorf("the queue ends at %d, want 1: a refused send left something", end)
	}
}

// A held pull is answered by the arrival of a message, long before its time is over; one whose filter does not match waits on.
func TestLongPollIsWokenByArrival(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	master, slave := c.master("g1"), c.slave("g1")
	w := c.wire(master, "g1")
	w.topic("T", 1)
	hold := func(node, tag string) chan *remoting.Command {
		other := c.wire(node, "g1")
		ch := make(chan *remoting.Command, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			resp, err := other.c.Call(ctx, request(remoting.PullMessage, nil, pullFields("cg", "T", 0, "sysFlag", "6", "suspendTimeoutMillis", "15000", "subscription", tag)...))
			if err != nil {
				resp = remoting.NewResponse(-1, err.Error())
			}
			ch <- resp
		}()
		return ch
	}
	eventually(t, 10*time.Second, func() error {
		if resp := c.wire(slave, "g1").call(remoting.PullMessage, nil, pullFields("cg", "T", 0)...); resp.Remark != "" {
			return fmt.Errorf("the slave says %q", resp.Remark)
		}
		return nil
	})
	any, red, onSlave := hold(master, "*"), hold(master, "red"), hold(slave, "*")
	eventually(t, 10*time.Second, func() error {
		onMaster, onSlave := c.metric(master, "ledgermq_replica_held_pulls"), c.metric(slave, "ledgermq_replica_held_pulls")
		if onMaster != 2 || onSlave != 1 {
			return fmt.Errorf("%v pulls are held on the master, %v on the slave", onMaster, onSlave)
		}
		return nil
	})
	// soon is the answer to a held pull that was woken: one that waits for its timer comes seven times later.
	soon := func(what string, ch chan *remoting.Command) *remoting.Command {
		t.Helper()
		select {
		case resp := <-ch:
			return resp
		case <-time.After(2 * time.Second):
			t.Fatalf("the held pull %s is not answered within 2 s of the message's arrival", what)
			return nil
		}
	}
	w.ok(remoting.SendMessage, []byte("one"), sendFields("T", "properties", "TAGS\x01blue\x02")...)
	for name, ch := range map[string]chan *remoting.Command{"master": any, "slave": onSlave} {
		if resp := soon("on the "+name, ch); resp.Code != remoting.Success || len(records(t, resp.Body)) != 1 {
			t.Errorf("held pull on the %s: code %d %q", name, resp.Code, resp.Remark)
		}
	}
	w.ok(remoting.SendMessage, []byte("two"), sendFields("T", "properties", "TAGS\x01red\x02")...)
	resp := soon("with a filter", red)
	if got := records(t, resp.Body); resp.Code != remoting.Success || len(got) != 1 || string(got[0].Body) != "two" {
		t.Errorf("the filtered pull got %d %v, want only the red message", resp.Code, got)
	}
	if next := number(t, resp, "nextBeginOffset"); next != 2 {
		t.Errorf("the filtered pull goes on at %d, want 2", next)
	}
}

// What an operator forbids counts for pulls that are held already.
func TestHeldPullIsForbidden(t *testing.T) {
	t.Parallel()
	for name, forbid := range map[string]func(w *wire){
		"the group may not consume": func(w *wire) {
			w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg","consumeEnable":false}`))
		},
		"the topic is not readable": func(w *wire) {
			w.ok(remoting.UpdateAndCreateTopic, nil, "topic", "T", "readQueueNums", "1", "writeQueueNums", "1", "perm", "2")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, "g1")
			w, other := c.wire(c.master("g1"), "g1"), c.wire(c.master("g1"), "g1")
			w.topic("T", 1)
			answer := make(chan *remoting.Command, 1)
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				defer cancel()
				resp, err := other.c.Call(ctx, request(remoting.PullMessage, nil, pullFields("cg", "T", 0, "sysFlag", "6", "suspendTimeoutMillis", "20000")...))
				if err != nil {
					resp = remoting.NewResponse(-1, err.Error())
				}
				answer <- resp
			}()
			eventually(t, 10*time.Second, func() error {
				if n := c.metric(c.master("g1"), "ledgermq_replica_held_pulls"); n != 1 {
					return fmt.Errorf("%v pulls are held", n)
				}
				return nil
			})
			forbid(w)
			w.ok(remoting.SendMessage, []byte("one"), sendFields("T")...)
			if resp := <-answer; resp.Code != remoting.NoPermission || len(resp.Body) != 0 {
				t.Errorf("the held pull got code %d %q and %d bytes", resp.Code, resp.Remark, len(resp.Body))
			}
		})
	}
}

// A group that is new to a queue that still has its first message, or none yet, starts at 0; "there is none" and "I do not know"
// are different answers.
func TestConsumerOffsets(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 2)
	q := []string{"consumerGroup", "cg", "topic", "T", "queueId", "0"}
	if got := number(t, w.ok(remoting.QueryConsumerOffset, nil, q...), "offset"); got != 0 {
		t.Fatalf("a new group in an empty queue starts at %d, want 0", got)
	}
	if resp := w.call(remoting.QueryConsumerOffset, nil, append(q, "setZeroIfNotFound", "false")...); resp.Code != remoting.QueryNotFound {
		t.Fatalf("asked not to guess, the broker answers %d, want %d", resp.Code, remoting.QueryNotFound)
	}
	for range 5 {
		w.ok(remoting.SendMessage, []byte("x"), sendFields("T")...)
	}
	if got := number(t, w.ok(remoting.QueryConsumerOffset, nil, q...), "offset"); got != 0 {
		t.Fatalf("a new group in a warm queue starts at %d, want 0", got)
	}
	w.ok(remoting.UpdateConsumerOffset, nil, append(q, "commitOffset", "3")...)
	if got := number(t, w.ok(remoting.QueryConsumerOffset, nil, q...), "offset"); got != 3 {
		t.Fatalf("the committed offset is %d, want 3", got)
	}
	// One-way: nobody waits, but a question flushes it first.
	if err := w.c.OneWay(request(remoting.UpdateConsumerOffset, nil, append(q, "commitOffset", "4")...)); err != nil {
		t.Fatal(err)
	}
	if got := number(t, w.ok(remoting.QueryConsumerOffset, nil, q...), "offset"); got != 4 {
		t.Fatalf("after a one-way commit the offset is %d, want 4", got)
	}
	// A slave passes the question on.
	s := c.wire(c.slave("g1"), "g1")
	if got := number(t, s.ok(remoting.QueryConsumerOffset, nil, q...), "offset"); got != 4 {
		t.Fatalf("through a slave the offset is %d, want 4", got)
	}
}

// Search by time gives the first message at or after it, the end when there is none, and start = end for an empty queue.
func TestSearchOffsetByTime(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 2)
	search := func(queue string, at int64, boundary string) int64 {
		return number(t, w.ok(remoting.SearchOffsetByTimestamp, nil, "topic", "T", "queueId", queue, "timestamp", strconv.FormatInt(at, 10), "boundaryType", boundary), "offset")
	}
	var stored []int64
	for i := range 20 {
		resp := w.ok(remoting.SendMessage, []byte("x"), sendFields("T")...)
		off := number(t, resp, "queueOffset")
		pulled := w.ok(remoting.PullMessage, nil, pullFields("cg", "T", off)...)
		stored = append(stored, records(t, pulled.Body)[0].StoreTime)
		if i > 0 && stored[i] < stored[i-1] {
			t.Fatalf("store time went back from %d to %d", stored[i-1], stored[i])
		}
	}
	for _, ts := range append(stored, stored[0]-1, stored[len(stored)-1]+1) {
		lower, upper := int64(len(stored)), int64(0)
		for i, s := range stored {
			if s >= ts {
				lower = min(lower, int64(i))
			}
			if s <= ts {
				upper = int64(i)
			}
		}
		if ts > stored[len(stored)-1] {
			upper = int64(len(stored))
		}
		if got := search("0", ts, "LOWER"); got != lower {
			t.Errorf("lower bound of %d is %d, want %d", ts, got, lower)
		}
		if got := search("0", ts, "UPPER"); got != upper && got != upper+1 {
			t.Errorf("upper bound of %d is %d, want %d", ts, got, upper)
		}
	}
	if got := search("1", stored[0], "LOWER"); got != 0 {
		t.Errorf("an empty queue has its start at %d, want 0", got)
	}
}

// What a consumer hands back comes again in the retry topic, as often as its group allows, and then lies in the dead letters.
func TestSendBackToRetryAndDeadLetters(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg","retryMaxTimes":2,"groupRetryPolicy":{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[0]}}}`))
	w.ok(remoting.SendMessage, []byte("poison"), sendFields("T", "properties", "UNIQ_KEY\x01ID1\x02TAGS\x01a\x02")...)
	topic := "T"
	for try := range 3 {
		resp := w.ok(remoting.PullMessage, nil, pullFields("cg", topic, number(t, w.ok(remoting.GetMaxOffset, nil, "topic", topic, "queueId", "0"), "offset")-1)...)
		m := records(t, resp.Body)[0]
		if int(m.ReconsumeTimes) != try || string(m.Body) != "poison" {
			t.Fatalf("try %d: the message was handed back %d times and says %q", try, m.ReconsumeTimes, m.Body)
		}
		w.ok(remoting.ConsumerSendMsgBack, nil, "group", "cg", "offset", strconv.FormatInt(int64(m.PhysicalOffset), 10), "delayLevel", "0", "originMsgId", "ORIG")
		topic = "%RETRY%cg"
	}
	if end := number(t, w.ok(remoting.GetMaxOffset, nil, "topic", "%RETRY%cg", "queueId", "0"), "offset"); end != 2 {
		t.Fatalf("the retry topic has %d messages, want 2", end)
	}
	dead := records(t, w.ok(remoting.PullMessage, nil, pullFields("cg", "%DLQ%cg", 0)...).Body)
	if len(dead) != 1 || string(dead[0].Body) != "poison" {
		t.Fatalf("the dead letters are %v, want the message once", dead)
	}
	for key, want := range map[string]string{"UNIQ_KEY": "ID1", "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "ORIG", "DLQ_ORIGIN_TOPIC": "T", "TAGS": "a"} {
		if got, _ := message.Property(dead[0].Properties, key); got != want {
			t.Errorf("property %s of the dead letter is %q, want %q", key, got, want)
		}
	}
	// A client whose send-back failed sends to the retry topic by itself, with a delay level.
	w.ok(remoting.SendMessage, []byte("again"), sendFields("%RETRY%cg", "properties", "DELAY\x011\x02", "reconsumeTimes", "1", "maxReconsumeTimes", "2")...)
	w.ok(remoting.SendMessage, []byte("enough"), sendFields("%RETRY%cg", "properties", "DELAY\x015\x02", "reconsumeTimes", "3", "maxReconsumeTimes", "2")...)
	got := records(t, w.ok(remoting.PullMessage, nil, pullFields("cg", "%RETRY%cg", 2, "sysFlag", "6", "suspendTimeoutMillis", "15000")...).Body)
	if len(got) != 1 || string(got[0].Body) != "again" {
		t.Errorf("the retry topic got %v, want the one within its limit", got)
	}
	got = records(t, w.ok(remoting.PullMessage, nil, pullFields("cg", "%DLQ%cg", 1)...).Body)
	if len(got) != 1 || string(got[0].Body) != "enough" || strings.Contains(got[0].Properties, "DELAY") {
		t.Errorf("the dead letters got %v, want the one past its limit", got)
	}
}

type lockAnswer struct {
	Locked []struct {
		QueueID int `json:"queueId"`
	} `json:"lockOKMQSet"`
}

func lockBody(client string, queues ...int) []byte {
	type q struct {
		Topic      string `json:"topic"`
		BrokerName string `json:"brokerName"`
		QueueID    int    `json:"queueId"`
	}
	var set []q
	for _, id := range queues {
		set = append(set, q{"T", "g1", id})
	}
	b, err := json.Marshal(map[string]any{"consumerGroup": "cg", "clientId": client, "mqSet": set})
	if err != nil {
		panic(err)
	}
	return b
}

func (w *wire) lock(client string, queues ...int) []int {
	w.t.Helper()
	resp := w.ok(remoting.LockBatchMQ, lockBody(client, queues...))
	var a lockAnswer
	if err := json.Unmarshal(resp.Body, &a); err != nil {
		w.t.Fatal(err)
	}
	got := []int{}
	for _, q := range a.Locked {
		got = append(got, q.QueueID)
	}
	return got
}

// All that was answered survives the death of the master: topics, groups, consumer offsets, queue locks, messages.
func TestFailoverKeepsWhatWasAnswered(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	old := c.master("g1")
	w := c.wire(old, "g1")
	w.topic("T", 4)
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg","retryMaxTimes":5}`))
	const n = 50
	for i := range n {
		w.ok(remoting.SendMessage, fmt.Appendf(nil, "m%d", i), sendFields("T", "queueId", strconv.Itoa(i%4))...)
	}
	w.ok(remoting.UpdateConsumerOffset, nil, "consumerGroup", "cg", "topic", "T", "queueId", "1", "commitOffset", "7")
	if got := w.lock("a", 0, 1); len(got) != 2 {
		t.Fatalf("the locks %v were granted, want both", got)
	}
	c.kill(old)
	next := c.master("g1")
	if next == old {
		t.Fatalf("%s is master although it is dead", next)
	}
	for _, node := range []string{next, c.slave("g1")} {
		w := c.wire(node, "g1")
		if got := number(t, w.ok(remoting.QueryConsumerOffset, nil, "consumerGroup", "cg", "topic", "T", "queueId", "1"), "offset"); got != 7 {
			t.Errorf("asked at %s the consumer offset is %d, want 7", node, got)
		}
		if got := w.lock("b", 0, 1, 2); fmt.Sprint(got) != "[2]" {
			t.Errorf("asked at %s another client gets the locks %v, want only the free one", node, got)
		}
		w.ok(remoting.UnlockBatchMQ, lockBody("b", 2))
		seen := 0
		for q := range 4 {
			seen += len(records(t, w.ok(remoting.PullMessage, nil, pullFields("cg", "T", 0, "queueId", strconv.Itoa(q))...).Body))
		}
		if seen != n {
			t.Errorf("%s has %d messages, want %d", node, seen, n)
		}
	}
}

// A client with an old route reaches the master through a slave, once, with its own address kept.
func TestSlaveForwards(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.slave("g1"), "g1")
	w.topic("T", 1)
	resp := w.ok(remoting.SendMessage, []byte("through a slave"), sendFields("T")...)
	if _, ok := resp.Get("ledgermqMaster"); !ok {
		t.Error("the answer does not name the master")
	}
	if off := number(t, resp, "queueOffset"); off != 0 {
		t.Errorf("queue offset %d, want 0", off)
	}
	if end := number(t, w.ok(remoting.GetMaxOffset, nil, "topic", "T", "queueId", "0"), "offset"); end != 1 {
		t.Errorf("through the slave the queue ends at %d, want 1", end)
	}
	eventually(t, 10*time.Second, func() error {
		resp := w.call(remoting.PullMessage, nil, pullFields("cg", "T", 0)...)
		if resp.Code != remoting.Success {
			return fmt.Errorf("code %d %q", resp.Code, resp.Remark)
		}
		m := records(t, resp.Body)[0]
		if m.BornHost.Port() != w.c.Conn().LocalAddr().Port() {
			t.Errorf("the message was born at %v, want the client's %v", m.BornHost, w.c.Conn().LocalAddr())
		}
		return nil
	})
	// Ahead of what a slave knows it never says that an offset does not exist.
	ahead := w.call(remoting.PullMessage, nil, pullFields("cg", "T", 100)...)
	if ahead.Code != remoting.PullNotFound || number(t, ahead, "nextBeginOffset") != 100 {
		t.Errorf("ahead of the slave: code %d, next %d; want %d and 100", ahead.Code, number(t, ahead, "nextBeginOffset"), remoting.PullNotFound)
	}
	// One hop: a request that was forwarded already is refused here.
	if resp := w.call(remoting.SendMessage, []byte("x"), sendFields("T", "ledgermqForward", "1")...); resp.Code != remoting.ServiceNotAvailable || !strings.HasPrefix(resp.Remark, "[NOT_STORED]") {
		t.Errorf("a second hop: code %d %q, want %d", resp.Code, resp.Remark, remoting.ServiceNotAvailable)
	}
}

// While a group is between two masters, a send that reaches a slave waits for the new one: what could not be sent to the dead one
// was not sent at all.
func TestSlaveWaitsForTheNextMaster(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	old := c.master("g1")
	w := c.wire(c.besides(old), "g1")
	w.topic("T", 1) // by way of the master: the link to it exists
	c.kill(old)
	began := time.Now()
	resp := w.call(remoting.SendMessage, []byte("x"), sendFields("T")...)
	if strings.HasPrefix(resp.Remark, "[UNKNOWN]") && time.Since(began) < time.Second {
		// It went out on the link to the old master, which broke under it. Now the slave knows.
		began = time.Now()
		resp = w.call(remoting.SendMessage, []byte("x"), sendFields("T")...)
	}
	took := time.Since(began)
	switch {
	case resp.Code == remoting.Success:
	case strings.HasPrefix(resp.Remark, "[NOT_STORED] this replica is not master"): // the next one lost its office at once, on a busy machine
	case took < time.Second:
		t.Errorf("after %v the slave gave up: code %d %q", took, resp.Code, resp.Remark)
	case !strings.HasPrefix(resp.Remark, "[NOT_STORED] "):
		t.Errorf("code %d %q, want that nothing was stored", resp.Code, resp.Remark)
	}
	if took > 5*time.Second {
		t.Errorf("the answer came after %v", took)
	}
}

// Without a master a slave goes on serving what it has: pulls, and offsets that it holds. What needs a master is refused with the
// code that makes clients ask again, never with "there is none", until there is a master again.
func TestSlaveWithoutMaster(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	old := c.master("g1")
	w := c.wire(old, "g1")
	w.topic("T", 2)
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg","retryMaxTimes":5}`))
	first := w.ok(remoting.SendMessage, []byte("x"), sendFields("T")...)
	stored := []string{"consumerGroup", "cg", "topic", "T", "queueId", "0"}
	w.ok(remoting.UpdateConsumerOffset, nil, append(stored, "commitOffset", "1")...)
	w.ok(remoting.SendMessage, []byte("behind the offset"), sendFields("T", "queueId", "1")...)
	left := c.slave("g1")
	s := c.wire(left, "g1")
	pulls := func(queue string) error {
		if resp := s.call(remoting.PullMessage, nil, pullFields("cg", "T", 0, "queueId", queue)...); resp.Code != remoting.Success || len(records(t, resp.Body)) != 1 {
			return fmt.Errorf("queue %s: code %d %q", queue, resp.Code, resp.Remark)
		}
		return nil
	}
	eventually(t, 10*time.Second, func() error { return pulls("1") }) // so it has the offset too
	var down []string
	for _, id := range []string{"n1", "n2", "n3"} {
		if id != left {
			c.kill(id)
			down = append(down, id)
		}
	}
	c.awaitNoMaster("g1")

	backOffset, _ := first.Get("msgId")
	topic := []string{"topic", "New", "defaultTopic", "TBW102", "readQueueNums", "2", "writeQueueNums", "2", "perm", "6", "topicFilterType", "SINGLE_TAG", "order", "false"}
	batch := []string{"a", "pg", "b", "T", "c", "TBW102", "d", "4", "e", "0", "f", "0", "g", "0", "h", "0", "i", "", "m", "true"}
	needMaster := map[string]chan *remoting.Command{
		"send":                       s.start(remoting.SendMessage, []byte("x"), sendFields("T")...),
		"send of version 2":          s.start(remoting.SendMessageV2, []byte("x"), batch[:len(batch)-2]...),
		"batch":                      s.start(remoting.SendBatchMessage, []byte("x"), batch...),
		"send back":                  s.start(remoting.ConsumerSendMsgBack, nil, "group", "cg", "offset", "0", "delayLevel", "0", "originMsgId", backOffset),
		"commit of an offset":        s.start(remoting.UpdateConsumerOffset, nil, append(stored, "commitOffset", "1")...),
		"offset that it has not":     s.start(remoting.QueryConsumerOffset, nil, "consumerGroup", "other", "topic", "T", "queueId", "0"),
		"greatest offset":            s.start(remoting.GetMaxOffset, nil, "topic", "T", "queueId", "0"),
		"least offset":               s.start(remoting.GetMinOffset, nil, "topic", "T", "queueId", "0"),
		"offset of a time":           s.start(remoting.SearchOffsetByTimestamp, nil, "topic", "T", "queueId", "0", "timestamp", "0"),
		"time of the oldest message": s.start(remoting.GetEarliestMsgStoreTime, nil, "topic", "T", "queueId", "0"),
		"lock":                       s.start(remoting.LockBatchMQ, lockBody("a", 0)),
		"unlock":                     s.start(remoting.UnlockBatchMQ, lockBody("a", 0)),
		"topic":                      s.start(remoting.UpdateAndCreateTopic, nil, topic...),
		"deletion of a topic":        s.start(remoting.DeleteTopicInBroker, nil, "topic", "T"),
		"consumer group":             s.start(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg2"}`)),
	}
	for what, answer := range needMaster {
		if resp := <-answer; resp.Code != remoting.ServiceNotAvailable || !strings.HasPrefix(resp.Remark, "[NOT_STORED] group g1 has no master") {
			t.Errorf("%s: code %d %q, want %d", what, resp.Code, resp.Remark, remoting.ServiceNotAvailable)
		}
	}
	if got := number(t, s.ok(remoting.QueryConsumerOffset, nil, stored...), "offset"); got != 1 {
		t.Errorf("the offset that the slave holds is %d, want 1", got)
	}
	for _, queue := range []string{"0", "1"} {
		if err := pulls(queue); err != nil {
			t.Error(err)
		}
	}
	for _, id := range down {
		c.start(id)
	}
	eventually(t, 20*time.Second, func() error {
		if resp := s.call(remoting.SendMessage, []byte("x"), sendFields("T")...); resp.Code != remoting.Success {
			return fmt.Errorf("with a master again: code %d %q", resp.Code, resp.Remark)
		}
		return nil
	})
}
