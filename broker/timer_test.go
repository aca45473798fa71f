package broker_test

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

func props(kv ...string) string {
	p := ""
	for i := 0; i+1 < len(kv); i += 2 {
		p = message.AppendProperty(p, kv[i], kv[i+1])
	}
	return p
}

// delivered returns all messages of a queue.
func (w *wire) delivered(topic string, queue int) (out []message.Record) {
	w.t.Helper()
	for off := int64(0); ; {
		resp := w.call(remoting.PullMessage, nil, pullFields("cg", topic, off, "queueId", strconv.Itoa(queue))...)
		if resp.Code != remoting.Success {
			return out
		}
		out = append(out, records(w.t, resp.Body)...)
		off = number(w.t, resp, "nextBeginOffset")
	}
}

// maxLate is how late a timer may be here. A master looks for them once a second at least.
const maxLate = 2 * time.Second

// A delayed message comes at its time, not before, with the properties that RocketMQ leaves; those of one level and those with a time are
// in the order of their times.
func TestDelayedDelivery(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 2)
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg"}`))
	type sent struct {
		key string
		due time.Time
	}
	var all []sent
	send := func(key string, in time.Duration, kv ...string) *remoting.Command {
		before := time.Now()
		resp := w.ok(remoting.SendMessage, []byte(key), sendFields("T", "queueId", "1", "properties", props(append(kv, "UNIQ_KEY", key, "TAGS", "A")...))...)
		all = append(all, sent{key, before.Truncate(time.Millisecond).Add(in)})
		return resp
	}
	at := time.Now().Add(700 * time.Millisecond)
	send("level", time.Second, "DELAY", "1")
	timed := send("deliver", 0, "TIMER_DELIVER_MS", strconv.FormatInt(at.UnixMilli(), 10))
	all[1].due = at.Truncate(time.Millisecond)
	send("ms", 400*time.Millisecond, "TIMER_DELAY_MS", "400")
	send("sec", 2*time.Second, "TIMER_DELAY_SEC", "2")
	send("past", 0, "TIMER_DELIVER_MS", "1000")
	send("both", time.Second, "TIMER_DELAY_SEC", "60", "DELAY", "1")
	if h, ok := timed.Get("recallHandle"); !ok || h == "" {
		t.Error("a message with a time has no recall handle")
	} else if b, err := base64.URLEncoding.DecodeString(h); err != nil || string(b) != fmt.Sprintf("v1 T g1 %d deliver", at.UnixMilli()+1) {
		t.Errorf("recall handle %q (%v)", b, err)
	}
	if off := number(t, timed, "queueOffset"); off != 0 {
		t.Errorf("a message that waits is at queue offset %d", off)
	}
	id, _ := timed.Get("msgId")
	_, phys, err := message.ParseOffsetMessageID(id)
	if err != nil {
		t.Fatal(err)
	}
	view := records(t, w.ok(remoting.ViewMessageByID, nil, "offset", strconv.FormatInt(int64(phys), 10), "topic", "T").Body)
	if len(view) != 1 || view[0].Topic != "rmq_sys_wheel_timer" || string(view[0].Body) != "deliver" {
		t.Errorf("the message that waits is %+v", view)
	}
	eventually(t, 20*time.Second, func() error {
		if n := len(w.delivered("T", 1)); n != len(all) {
			return fmt.Errorf("%d of %d delivered", n, len(all))
		}
		return nil
	})
	got := map[string]message.Record{}
	var order []string
	for _, m := range w.delivered("T", 1) {
		got[string(m.Body)] = m
		order = append(order, string(m.Body))
	}
	for _, s := range all {
		m := got[s.key]
		if late := time.UnixMilli(m.StoreTime).Sub(s.due); late < 0 || late > maxLate {
			t.Errorf("%s was delivered %v after its time", s.key, late)
		}
		if m.Topic != "T" || m.QueueID != 1 {
			t.Errorf("%s is in %s/%d", s.key, m.Topic, m.QueueID)
		}
	}
	if want := "past ms deliver level both sec"; strings.Join(order, " ") != want {
		t.Errorf("the order is %q, want %q", order, want)
	}
	have := func(key, property, want string) {
		if v, _ := message.Property(got[key].Properties, property); v != want {
			t.Errorf("%s: property %s=%q, want %q", key, property, v, want)
		}
	}
	have("level", "DELAY", "1")
	have("level", "REAL_TOPIC", "T")
	have("level", "REAL_QID", "1")
	have("both", "TIMER_DELAY_SEC", "")
	have("deliver", "TIMER_OUT_MS", strconv.FormatInt(at.UnixMilli(), 10))
	have("deliver", "TAGS", "A")
	have("past", "TIMER_OUT_MS", "")
}

// What cannot be a delay is refused, and nothing of it is stored.
func TestBadDelays(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	handle := func(words string) string { return base64.URLEncoding.EncodeToString([]byte(words)) }
	future := strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10)
	for _, p := range []string{
		props("DELAY", "-1"), props("DELAY", "x"), props("DELAY", "99999999999"),
		props("TIMER_DELIVER_MS", "-1"), props("TIMER_DELIVER_MS", "soon"), props("TIMER_DELIVER_MS", "9223372036854775808"), props("TIMER_DELIVER_MS", "9223372036854775807"),
		props("TIMER_DELAY_MS", "-5"), props("TIMER_DELAY_MS", "259200001"), props("TIMER_DELAY_MS", "9223372036854775807"),
		props("TIMER_DELAY_SEC", "-5"), props("TIMER_DELAY_SEC", "259201"), props("TIMER_DELAY_SEC", "9223372036854775807"), props("TIMER_DELAY_SEC", "1.5"),
		props("TIMER_DEL_UNIQKEY", "k", "TIMER_DELIVER_MS", future),
	} {
		resp := w.call(remoting.SendMessage, []byte("x"), sendFields("T", "properties", p)...)
		if resp.Code != remoting.MessageIllegal || !strings.HasPrefix(resp.Remark, "[NOT_STORED] ") || strings.Contains(resp.Remark, "\n") {
			t.Errorf("%q: code %d %q", p, resp.Code, resp.Remark)
		}
	}
	item := message.AppendBatchItem(nil, message.BatchItem{Body: []byte("x"), Properties: props("DELAY", "3")})
	if resp := w.call(remoting.SendBatchMessage, item, "a", "pg", "b", "T", "c", "TBW102", "d", "4", "e", "0", "f", "0", "g", "0", "h", "0", "i", "", "m", "true"); resp.Code != remoting.MessageIllegal {
		t.Errorf("a delayed message in a batch: code %d %q", resp.Code, resp.Remark)
	}
	if resp := w.call(remoting.SendMessage, []byte("x"), sendFields("rmq_sys_wheel_timer")...); resp.Code != remoting.NoPermission {
		t.Errorf("a send to the timer topic: code %d %q", resp.Code, resp.Remark)
	}
	for _, tt := range []struct {
		name   string
		want   int32
		fields []string
	}{
		{"no field", remoting.SystemError, nil},
		{"no handle", remoting.SystemError, []string{"topic", "T"}},
		{"unknown topic", remoting.TopicNotExist, []string{"topic", "Nope", "recallHandle", handle("v1 Nope g1 " + future + " k")}},
		{"no base64", remoting.IllegalOperation, []string{"topic", "T", "recallHandle", "!!"}},
		{"another version", remoting.IllegalOperation, []string{"topic", "T", "recallHandle", handle("v2 T g1 " + future + " k")}},
		{"too few words", remoting.IllegalOperation, []string{"topic", "T", "recallHandle", handle("v1 T g1 " + future)}},
		{"another topic", remoting.IllegalOperation, []string{"topic", "T", "recallHandle", handle("v1 U g1 " + future + " k")}},
		{"another group", remoting.IllegalOperation, []string{"topic", "T", "recallHandle", handle("v1 T g2 " + future + " k")}},
		{"time no number", remoting.IllegalOperation, []string{"topic", "T", "recallHandle", handle("v1 T g1 soon k")}},
		{"time negative", remoting.IllegalOperation, []string{"topic", "T", "recallHandle", handle("v1 T g1 -5 k")}},
		{"time over the edge", remoting.IllegalOperation, []string{"topic", "T", "recallHandle", handle("v1 T g1 9223372036854775807 k")}},
		{"nothing waits there", remoting.IllegalOperation, []string{"topic", "T", "recallHandle", handle("v1 T g1 " + future + " k")}},
	} {
		if resp := w.call(remoting.RecallMessage, nil, tt.fields...); resp.Code != tt.want || strings.TrimSpace(resp.Remark) == "" {
			t.Errorf("recall, %s: code %d %q, want %d", tt.name, resp.Code, resp.Remark, tt.want)
		}
	}
	w.ok(remoting.SendMessage, []byte("still fine"), sendFields("T")...)
	if end := number(t, w.ok(remoting.GetMaxOffset, nil, "topic", "T", "queueId", "0"), "offset"); end != 1 {
		t.Errorf("the queue ends at %d, want 1", end)
	}
}
