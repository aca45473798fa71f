package broker_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

const noWait = `"groupRetryPolicy":{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[0]}}`

// next waits for the message at an offset of queue 0.
func (w *wire) next(group, topic string, offset int64) message.Record {
	w.t.Helper()
	resp := w.ok(remoting.PullMessage, nil, pullFields(group, topic, offset, "sysFlag", "6", "suspendTimeoutMillis", "15000")...)
	return records(w.t, resp.Body)[0]
}

func (w *wire) back(group string, m message.Record, level string, more ...string) *remoting.Command {
	w.t.Helper()
	return w.call(remoting.ConsumerSendMsgBack, nil, append([]string{"group", group, "offset", strconv.FormatInt(int64(m.PhysicalOffset), 10), "delayLevel", level}, more...)...)
}

func (w *wire) endOf(topic string) int64 {
	w.t.Helper()
	return number(w.t, w.ok(remoting.GetMaxOffset, nil, "topic", topic, "queueId", "0"), "offset")
}

// A client may send a message that says it has come as often as a number can tell: it is given back once more, and counts no further.
func TestRetryCountEnds(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	w.ok(remoting.SendMessage, []byte("often"), sendFields("T", "reconsumeTimes", "2147483647")...)
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, fmt.Appendf(nil, `{"groupName":"often","retryMaxTimes":1,%s}`, noWait))
	if resp := w.back("often", w.next("often", "T", 0), "0"); resp.Code != remoting.Success {
		t.Fatalf("code %d %q", resp.Code, resp.Remark)
	}
	resp := w.ok(remoting.PullMessage, nil, pullFields("often", "%DLQ%often", 0)...)
	if m := records(t, resp.Body)[0]; m.ReconsumeTimes != math.MaxInt32 {
		t.Errorf("the dead letter has count %d", m.ReconsumeTimes)
	}
}

// With a maximum of N a message is delivered 1+N times, and is a dead letter then, at once; the origin is kept all the way.
func TestRetryMaximum(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	sent := w.ok(remoting.SendMessage, []byte("poison"), sendFields("T", "properties", "UNIQ_KEY\x01ID1\x02KEYS\x01k\x02")...)
	for _, limit := range []int{0, 1, 3, 16} {
		group := fmt.Sprintf("max%d", limit)
		w.ok(remoting.UpdateAndCreateSubscriptionGroup, fmt.Appendf(nil, `{"groupName":%q,"retryMaxTimes":%d,%s}`, group, limit, noWait))
		m, delivered := w.next(group, "T", 0), 1
		for {
			if resp := w.back(group, m, "0"); resp.Code != remoting.Success {
				t.Fatalf("maximum %d, delivery %d: code %d %q", limit, delivered, resp.Code, resp.Remark)
			}
			if resp := w.call(remoting.GetMaxOffset, nil, "topic", "%DLQ%"+group, "queueId", "0"); resp.Code == remoting.Success {
				break
			}
			m = w.next(group, "%RETRY%"+group, int64(delivered-1))
			delivered++
			if int(m.ReconsumeTimes) != delivered-1 || string(m.Body) != "poison" {
				t.Fatalf("maximum %d, delivery %d: %q with count %d", limit, delivered, m.Body, m.ReconsumeTimes)
			}
		}
		if delivered != 1+limit || w.endOf("%RETRY%"+group) != int64(limit) {
			t.Errorf("maximum %d: delivered %d times, want %d", limit, delivered, 1+limit)
		}
		dead := w.next(group, "%DLQ%"+group, 0)
		for key, want := range map[string]string{"UNIQ_KEY": "ID1", "KEYS": "k", "RETRY_TOPIC": "T", "DLQ_ORIGIN_TOPIC": "T",
			"ORIGIN_MESSAGE_ID": sent.GetOr("msgId", ""), "DLQ_ORIGIN_MESSAGE_ID": sent.GetOr("msgId", "")} {
			if got, _ := message.Property(dead.Properties, key); got != want {
				t.Errorf("maximum %d: %s of the dead letter is %q, want %q", limit, key, got, want)
			}
		}
	}
	if n := c.metric(c.master("g1"), "ledgermq_consumer_dead_letters"); n != 4 {
		t.Errorf("the metric has %v dead letters, want 4", n)
	}
}

// A consumer may fail with a message before its first heartbeat is through: its 36, or its own send when 36 fails, makes the group as the
// heartbeat would. Where heartbeats make none, both are refused.
func TestRetryOfUnknownGroup(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	w.ok(remoting.SendMessage, []byte("too early"), sendFields("T")...)
	own := func(group string) *remoting.Command {
		return w.call(remoting.SendMessage, []byte("too early"), sendFields(message.RetryTopic(group), "reconsumeTimes", "1", "maxReconsumeTimes", "16")...)
	}
	m := w.next("early", "T", 0)
	if resp := w.back("early", m, "1"); resp.Code != remoting.Success {
		t.Errorf("36 of a group that is not there yet: code %d %q", resp.Code, resp.Remark)
	}
	if again := w.next("early", message.RetryTopic("early"), 0); string(again.Body) != "too early" || again.ReconsumeTimes != 1 {
		t.Errorf("the repetition is %q with count %d", again.Body, again.ReconsumeTimes)
	}
	if resp := own("early2"); resp.Code != remoting.Success {
		t.Errorf("a client's own send of a group that is not there yet: code %d %q", resp.Code, resp.Remark)
	}
	for _, group := range []string{"early", "early2"} {
		w.ok(remoting.GetSubscriptionGroupConfig, nil, "group", group)
	}

	w.ok(remoting.UpdateBrokerConfig, []byte("autoCreateSubscriptionGroup=false"))
	for name, resp := range map[string]*remoting.Command{"36": w.back("late", m, "1"), "a client's own send": own("late")} {
		if resp.Code != remoting.SubscriptionGroupNotExist || !strings.HasPrefix(resp.Remark, "[NOT_STORED] ") {
			t.Errorf("%s where groups are not made: code %d %q", name, resp.Code, resp.Remark)
		}
	}
	if resp := w.call(remoting.GetSubscriptionGroupConfig, nil, "group", "late"); resp.Code == remoting.Success {
		t.Error("a refused retry made its group")
	}
	if resp := w.call(remoting.GetMaxOffset, nil, "topic", message.RetryTopic("late"), "queueId", "0"); resp.Code != remoting.TopicNotExist {
		t.Errorf("a refused retry made its topic: code %d", resp.Code)
	}
}

// Levels and policies delay, never less than they say; what a consumer gives up (level below 0) is a dead letter; a group that consumes
// in order has no retries, only dead letters.
func TestRetryDelays(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	w.ok(remoting.SendMessage, []byte("x"), sendFields("T")...)
	group := func(name, policy string) message.Record {
		w.ok(remoting.UpdateAndCreateSubscriptionGroup, fmt.Appendf(nil, `{"groupName":%q,"groupRetryPolicy":%s}`, name, policy))
		return w.next(name, "T", 0)
	}
	timed := func(name string, m message.Record, level string, least time.Duration) {
		t.Helper()
		began := time.Now()
		if resp := w.back(name, m, level); resp.Code != remoting.Success {
			t.Fatalf("%s: code %d %q", name, resp.Code, resp.Remark)
		}
		if got := w.next(name, "%RETRY%"+name, 0); got.ReconsumeTimes != 1 {
			t.Errorf("%s: count %d", name, got.ReconsumeTimes)
		}
		if took := time.Since(began); took < least-2*time.Millisecond { // the broker's clock has milliseconds
			t.Errorf("%s: the retry came after %v, want %v at least", name, took, least)
		} else if took > least+maxLate {
			t.Errorf("%s: the retry came after %v, want %v", name, took, least)
		}
	}
	timed("level", group("level", `{"type":"CUSTOMIZED"}`), "1", time.Second)
	timed("ladder", group("ladder", `{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1,1,400,1]}}`), "0", 400*time.Millisecond)
	timed("growing", group("growing", `{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":300,"max":1000,"multiplier":2}}`), "0", 300*time.Millisecond)
	m := group("plain", `{"type":"CUSTOMIZED"}`)
	if resp := w.back("plain", m, "0"); resp.Code != remoting.Success {
		t.Fatalf("without a policy: code %d %q", resp.Code, resp.Remark)
	}
	if resp := w.back("plain", m, "-1"); resp.Code != remoting.Success || w.endOf("%DLQ%plain") != 1 || w.endOf("%RETRY%plain") != 0 {
		t.Errorf("given up: code %d %q, %d dead letters, %d retries before their time", resp.Code, resp.Remark, w.endOf("%DLQ%plain"), w.endOf("%RETRY%plain"))
	}
	if got := w.lock("c1", 0); len(got) != 1 { // of group cg
		t.Fatalf("locked %v", got)
	}
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg"}`))
	w.ok(remoting.SendMessage, []byte("in order"), sendFields("%RETRY%cg", "properties", "DELAY\x013\x02RETRY_TOPIC\x01T\x02", "reconsumeTimes", "16", "maxReconsumeTimes", "16")...)
	dead := w.next("cg", "%DLQ%cg", 0)
	if from, _ := message.Property(dead.Properties, message.KeyDLQOriginTopic); from != "T" || strings.Contains(dead.Properties, "DELAY") {
		t.Errorf("what an ordered consumer gives up is %q", dead.Properties)
	}
	for what, body := range map[string]string{
		"an unknown policy":   `{"groupName":"bad","groupRetryPolicy":{"type":"SOMETIMES"}}`,
		"no delays":           `{"groupName":"bad","groupRetryPolicy":{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[]}}}`,
		"a negative delay":    `{"groupName":"bad","groupRetryPolicy":{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[-1]}}}`,
		"an endless delay":    `{"groupName":"bad","groupRetryPolicy":{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[9223372036854775807]}}}`,
		"max below initial":   `{"groupName":"bad","groupRetryPolicy":{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":5,"max":4,"multiplier":2}}}`,
		"a shrinking one":     `{"groupName":"bad","groupRetryPolicy":{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":5,"max":9,"multiplier":0}}}`,
		"a policy as a text":  `{"groupName":"bad","groupRetryPolicy":"soon"}`,
		"delays that are not": `{"groupName":"bad","groupRetryPolicy":{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":["x"]}}}`,
	} {
		if resp := w.call(remoting.UpdateAndCreateSubscriptionGroup, []byte(body)); resp.Code == remoting.Success || resp.Remark == "" {
			t.Errorf("%s: code %d %q", what, resp.Code, resp.Remark)
		}
	}
	for what, tt := range map[string]struct{ offset, level, limit string }{
		"no message there":   {"12345678", "0", "1"},
		"a negative offset":  {"-1", "0", "1"},
		"a strange level":    {strconv.FormatInt(int64(m.PhysicalOffset), 10), "soon", "1"},
		"a strange maximum":  {strconv.FormatInt(int64(m.PhysicalOffset), 10), "0", "many"},
		"an overflown level": {strconv.FormatInt(int64(m.PhysicalOffset), 10), "2147483648", "1"},
	} {
		resp := w.call(remoting.ConsumerSendMsgBack, nil, "group", "plain", "offset", tt.offset, "delayLevel", tt.level, "maxReconsumeTimes", tt.limit)
		if resp.Code == remoting.Success || !strings.HasPrefix(resp.Remark, "[NOT_STORED] ") {
			t.Errorf("%s: code %d %q", what, resp.Code, resp.Remark)
		}
	}
}

// A message that was handed back with OK comes again, once, whoever is master then.
func TestRetryThroughFailover(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	old := c.master("g1")
	w := c.wire(old, "g1")
	w.topic("T", 1)
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg","groupRetryPolicy":{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1500]}}}`))
	const n = 5
	for i := range n {
		w.ok(remoting.SendMessage, fmt.Appendf(nil, "m%d", i), sendFields("T")...)
		if resp := w.back("cg", w.next("cg", "T", int64(i)), "0"); resp.Code != remoting.Success {
			t.Fatalf("code %d %q", resp.Code, resp.Remark)
		}
	}
	c.kill(old)
	w = c.wire(c.master("g1"), "g1")
	seen := map[string]int{}
	for i := range n {
		seen[string(w.next("cg", "%RETRY%cg", int64(i)).Body)]++
	}
	if len(seen) != n {
		t.Errorf("the retries are %v, want each of %d once", seen, n)
	}
}

// Dead letters are found by time and key, and sent again to their group: with all tries before them, and once, however often that is asked.
func TestResendOfDeadLetters(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg"}`))
	for i := range 3 {
		w.ok(remoting.SendMessage, fmt.Appendf(nil, "m%d", i), sendFields("T", "properties", fmt.Sprintf("UNIQ_KEY\x01ID%d\x02KEYS\x01k%d all\x02", i, i))...)
		if resp := w.back("cg", w.next("cg", "T", int64(i)), "-1"); resp.Code != remoting.Success {
			t.Fatalf("code %d %q", resp.Code, resp.Remark)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cl := c.client()
	list := func(q client.DeadLetterQuery) (all []*client.DeadLetter) {
		t.Helper()
		q.Group = "cg"
		if err := cl.DeadLetters(ctx, q, func(d *client.DeadLetter) error { all = append(all, d); return nil }); err != nil {
			t.Fatal(err)
		}
		return all
	}
	eventually(t, 20*time.Second, func() error { // the name server learns of the new topic
		if _, err := cl.Route(ctx, "%DLQ%cg"); err != nil {
			return err
		}
		return nil
	})
	all := list(client.DeadLetterQuery{})
	if len(all) != 3 || all[0].OriginTopic != "T" || all[0].OriginID == "" {
		t.Fatalf("dead letters %+v", all)
	}
	for what, tt := range map[string]struct {
		q    client.DeadLetterQuery
		want int
	}{
		"one key":       {client.DeadLetterQuery{Key: "k1"}, 1},
		"common key":    {client.DeadLetterQuery{Key: "all", Limit: 2}, 2},
		"message id":    {client.DeadLetterQuery{Key: "ID2"}, 1},
		"no such key":   {client.DeadLetterQuery{Key: "k"}, 0},
		"later":         {client.DeadLetterQuery{Since: time.Now().Add(time.Hour)}, 0},
		"before":        {client.DeadLetterQuery{Until: all[2].StoreTime.Add(time.Millisecond)}, 3},
		"before all":    {client.DeadLetterQuery{Until: all[0].StoreTime}, 0},
		"one by name":   {client.DeadLetterQuery{At: []client.DeadLetterName{{Group: "g1", Offset: 2}}}, 1},
		"another group": {client.DeadLetterQuery{At: []client.DeadLetterName{{Group: "g2", Offset: 2}}}, 0},
	} {
		if got := list(tt.q); len(got) != tt.want {
			t.Errorf("%s: %d dead letters, want %d", what, len(got), tt.want)
		}
	}
	for i, d := range all[:2] {
		if err := cl.Resend(ctx, "cg", d, false); err != nil {
			t.Fatal(err)
		}
		if err := cl.Resend(ctx, "cg", d, false); !errors.Is(err, client.ErrResent) {
			t.Errorf("a second time: %v", err)
		}
		m := w.next("cg", "%RETRY%cg", int64(i))
		from, _ := message.Property(m.Properties, message.KeyRetryTopic)
		keys, _ := message.Property(m.Properties, message.KeyKeys)
		if string(m.Body) != fmt.Sprintf("m%d", i) || m.ReconsumeTimes != 0 || from != "T" || keys != fmt.Sprintf("k%d all", i) {
			t.Errorf("it came as %q with count %d and %q", m.Body, m.ReconsumeTimes, m.Properties)
		}
	}
	if done, err := cl.Resent(ctx, "cg", all[2]); err != nil || done {
		t.Errorf("the third one was sent again: %v, %v", done, err)
	}
	if err := cl.Resend(ctx, "cg", all[0], true); err != nil || w.endOf("%RETRY%cg") != 3 {
		t.Errorf("a second time, as an operator insists: %v, %d retries", err, w.endOf("%RETRY%cg"))
	}
	// Many at once are one.
	var sent atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		other := c.client()
		wg.Go(func() {
			switch err := other.Resend(ctx, "cg", all[2], false); {
			case err == nil:
				sent.Add(1)
			case !errors.Is(err, client.ErrResent):
				t.Errorf("beside others: %v", err)
			}
		})
	}
	wg.Wait()
	if sent.Load() != 1 || w.endOf("%RETRY%cg") != 4 {
		t.Errorf("eight at once sent it %d times, %d retries", sent.Load(), w.endOf("%RETRY%cg"))
	}
	// A limit counts what is sent: those that were sent before do not keep it from the others.
	looked := 0
	err := cl.DeadLetters(ctx, client.DeadLetterQuery{Group: "cg", Limit: 1}, func(d *client.DeadLetter) error {
		looked++
		return cl.Resend(ctx, "cg", d, false)
	})
	if err != nil || looked != 3 {
		t.Errorf("with a limit of 1, %d of 3 that were sent before were looked at: %v", looked, err)
	}
	good := []string{"consumerGroup", "cg", "offset", "0", "physicalOffset", strconv.FormatInt(int64(all[0].PhysicalOffset), 10)}
	for what, tt := range map[string]struct {
		want   int32
		fields []string
	}{
		"no group":             {remoting.SystemError, good[2:]},
		"an unknown group":     {remoting.SubscriptionGroupNotExist, append([]string{"consumerGroup", "nobody"}, good[2:]...)},
		"no offset":            {remoting.SystemError, good[:2]},
		"another offset":       {remoting.SystemError, append(good[:6:6], "offset", "1")},
		"beyond the end":       {remoting.SystemError, append(good[:6:6], "offset", "3")},
		"a negative one":       {remoting.SystemError, append(good[:6:6], "offset", "-1")},
		"another place":        {remoting.SystemError, append(good[:6:6], "physicalOffset", "0")},
		"a place that is none": {remoting.SystemError, append(good[:6:6], "physicalOffset", "9223372036854775808")},
		"a strange force":      {remoting.SystemError, append(good[:6:6], "force", "perhaps")},
		"sent before":          {remoting.IllegalOperation, good},
	} {
		if resp := w.call(remoting.ResendDeadLetter, nil, tt.fields...); resp.Code != tt.want || resp.Remark == "" || strings.Contains(resp.Remark, "\n") {
			t.Errorf("%s: code %d %q, want %d", what, resp.Code, resp.Remark, tt.want)
		}
	}
	// The next master knows too.
	c.kill(c.master("g1"))
	w = c.wire(c.masterOfTheRest("g1"), "g1")
	for range 3 {
		eventually(t, 20*time.Second, func() error {
			if resp := w.call(remoting.ResendDeadLetter, nil, good...); resp.Code != remoting.IllegalOperation {
				return fmt.Errorf("code %d %q", resp.Code, resp.Remark)
			}
			return nil
		})
	}
	if n := w.endOf("%RETRY%cg"); n != 4 {
		t.Errorf("after a failover there are %d retries", n)
	}
}

// What was sent before is found whatever its size: a dead letter alone is over the bytes of one look.
func TestResendOfALargeDeadLetter(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg"}`))
	w.ok(remoting.SendMessage, make([]byte, 4<<20), sendFields("T")...)
	if resp := w.back("cg", w.next("cg", "T", 0), "-1"); resp.Code != remoting.Success {
		t.Fatalf("code %d %q", resp.Code, resp.Remark)
	}
	dead := w.next("cg", "%DLQ%cg", 0)
	for i, want := range []int32{remoting.Success, remoting.IllegalOperation, remoting.IllegalOperation} {
		if resp := w.call(remoting.ResendDeadLetter, nil, "consumerGroup", "cg", "offset", "0", "physicalOffset", strconv.FormatInt(int64(dead.PhysicalOffset), 10)); resp.Code != want {
			t.Errorf("time %d: code %d %q, want %d", i, resp.Code, resp.Remark, want)
		}
	}
	if n := w.endOf("%RETRY%cg"); n != 1 {
		t.Errorf("it was sent again %d times", n)
	}
}
