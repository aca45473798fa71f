package broker_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// tx is a half message that was answered OK.
type tx struct {
	group, key     string
	number, origin int64
}

// halfFields are those of a half message to queue 0 of T.
func halfFields(key string, more ...string) []string {
	props := "TRAN_MSG\x01true\x02PGROUP\x01pg\x02TAGS\x01a\x02KEYS\x01k\x02UNIQ_KEY\x01" + key + "\x02"
	return sendFields("T", append([]string{"properties", props, "sysFlag", "4"}, more...)...)
}

func (w *wire) half(key string, more ...string) tx {
	w.t.Helper()
	resp := w.ok(remoting.SendMessage, []byte("body of "+key), halfFields(key, more...)...)
	if id := resp.GetOr("transactionId", ""); id != key {
		w.t.Fatalf("the transaction id is %q, want %q", id, key)
	}
	_, off, err := message.ParseOffsetMessageID(resp.GetOr("msgId", ""))
	if err != nil {
		w.t.Fatal(err)
	}
	return tx{"pg", key, number(w.t, resp, "queueOffset"), int64(off)}
}

func (x tx) fields(end int32, more ...string) []string {
	return append([]string{"producerGroup", x.group, "tranStateTableOffset", strconv.FormatInt(x.number, 10), "commitLogOffset", strconv.FormatInt(x.origin, 10),
		"commitOrRollback", strconv.Itoa(int(end)), "msgId", x.key, "transactionId", x.key}, more...)
}

func (w *wire) end(x tx, end int32) *remoting.Command {
	w.t.Helper()
	return w.call(remoting.EndTransaction, nil, x.fields(end)...)
}

// inQueue are the messages of queue 0 of a topic.
func (w *wire) inQueue(topic string) []message.Record {
	w.t.Helper()
	var all []message.Record
	end := number(w.t, w.ok(remoting.GetMaxOffset, nil, "topic", topic, "queueId", "0"), "offset")
	for int64(len(all)) < end {
		all = append(all, records(w.t, w.ok(remoting.PullMessage, nil, pullFields("reader", topic, int64(len(all)))...).Body)...)
	}
	return all
}

// A half message is in no queue. A commit puts it into its own, a rollback nowhere; a second end of the same kind is OK and does nothing,
// a contrary one is refused.
func TestTransaction(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	a, b, rest := w.half("A"), w.half("B"), w.half("C")
	if a.number != 0 || b.number != 1 || rest.number != 2 {
		t.Errorf("the half messages have numbers %d, %d, %d", a.number, b.number, rest.number)
	}
	if got := w.inQueue("T"); len(got) != 0 {
		t.Fatalf("half messages are in the queue: %v", got)
	}
	if resp := w.call(remoting.PullMessage, nil, pullFields("reader", message.HalfTopic, 0)...); resp.Code != remoting.TopicNotExist {
		t.Errorf("a pull of half messages: code %d %q", resp.Code, resp.Remark)
	}
	for i, step := range []struct {
		x    tx
		end  int32
		want int32
	}{
		{a, 0, remoting.Success}, // the producer does not know yet
		{a, message.SysCommit, remoting.Success},
		{a, message.SysCommit, remoting.Success},
		{a, message.SysRollback, remoting.IllegalOperation},
		{b, message.SysRollback, remoting.Success},
		{b, message.SysRollback, remoting.Success},
		{b, message.SysCommit, remoting.IllegalOperation},
		{a, 0, remoting.Success},
	} {
		if resp := w.end(step.x, step.end); resp.Code != step.want {
			t.Errorf("step %d: code %d %q, want %d", i, resp.Code, resp.Remark, step.want)
		}
	}
	got := w.inQueue("T")
	if len(got) != 1 {
		t.Fatalf("%d messages are in the queue, want the committed one", len(got))
	}
	m := got[0]
	if string(m.Body) != "body of A" || m.SysFlag&message.SysTransaction != message.SysCommit || m.PreparedOffset != a.origin || m.BornTime != 1700000000000 {
		t.Errorf("the message is %+v", m)
	}
	for key, want := range map[string]string{"UNIQ_KEY": "A", "TAGS": "a", "KEYS": "k", "PGROUP": "pg", "TRAN_MSG": "true", "__transactionId__": "A", "REAL_TOPIC": "", "REAL_QID": ""} {
		if v, _ := message.Property(m.Properties, key); v != want {
			t.Errorf("property %s is %q, want %q", key, v, want)
		}
	}
	// A stock client does not wait, and a slave passes it on.
	s := c.wire(c.slave("g1"), "g1")
	if err := s.c.OneWay(request(remoting.EndTransaction, nil, rest.fields(message.SysCommit)...)); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, func() error {
		if got := w.inQueue("T"); len(got) != 2 || string(got[1].Body) != "body of C" {
			return fmt.Errorf("%d messages", len(got))
		}
		return nil
	})
	// It was a message like others: it can be handed back, and comes again as an ordinary one.
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg"}`))
	w.ok(remoting.ConsumerSendMsgBack, nil, "group", "cg", "offset", strconv.FormatInt(int64(m.PhysicalOffset), 10), "delayLevel", "0")
}

// badEnds are ends of transactions that must change nothing.
func TestBadTransactions(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	x, other, done := w.half("X"), w.half("Y"), w.half("Z")
	plain := w.ok(remoting.SendMessage, []byte("plain"), sendFields("T")...)
	_, plainAt, err := message.ParseOffsetMessageID(plain.GetOr("msgId", ""))
	if err != nil {
		t.Fatal(err)
	}
	if resp := w.end(done, message.SysRollback); resp.Code != remoting.Success {
		t.Fatal(resp.Code, resp.Remark)
	}
	with := func(x tx, f func(*tx)) tx { f(&x); return x }
	without := func(field string) []string {
		var out []string
		for f := x.fields(message.SysCommit); len(f) > 0; f = f[2:] {
			if f[0] != field {
				out = append(out, f[:2]...)
			}
		}
		return out
	}
	for _, tt := range []struct {
		name   string
		fields []string
		want   int32
	}{
		{"nothing", nil, remoting.SystemError},
		{"no producer group", without("producerGroup"), remoting.SystemError},
		{"no number", without("tranStateTableOffset"), remoting.SystemError},
		{"no offset", without("commitLogOffset"), remoting.SystemError},
		{"no decision", without("commitOrRollback"), remoting.SystemError},
		{"empty number", x.fields(8, "tranStateTableOffset", ""), remoting.SystemError},
		{"a number that is none", x.fields(8, "tranStateTableOffset", "one"), remoting.SystemError},
		{"a number too large for its type", x.fields(8, "tranStateTableOffset", "9223372036854775808"), remoting.SystemError},
		{"a decision that is no number", x.fields(8, "commitOrRollback", "commit"), remoting.SystemError},
		{"a flag that is none", x.fields(8, "fromTransactionCheck", "perhaps"), remoting.SystemError},
		{"a strange decision", x.fields(4), remoting.InvalidParameter},
		{"a negative decision", x.fields(-8), remoting.InvalidParameter},
		{"another group", with(x, func(x *tx) { x.group = "other" }).fields(8), remoting.SystemError},
		{"an endless group", with(x, func(x *tx) { x.group = strings.Repeat("g", 10000) }).fields(8), remoting.SystemError},
		{"the number of another one", with(x, func(x *tx) { x.number = other.number }).fields(8), remoting.SystemError},
		{"the offset of another one", with(x, func(x *tx) { x.origin = other.origin }).fields(8), remoting.SystemError},
		{"the message of another one", with(x, func(x *tx) { x.key = other.key }).fields(8), remoting.SystemError},
		{"the offset of a plain message", with(x, func(x *tx) { x.origin = int64(plainAt) }).fields(8), remoting.SystemError},
		{"an unknown number", with(x, func(x *tx) { x.number = 3 }).fields(8), remoting.SystemError},
		{"a negative number", with(x, func(x *tx) { x.number = -1 }).fields(8), remoting.SystemError},
		{"a huge number", with(x, func(x *tx) { x.number = 1<<63 - 1 }).fields(8), remoting.SystemError},
		{"a negative offset", with(x, func(x *tx) { x.origin = -1 }).fields(8), remoting.SystemError},
		{"an offset beyond the log", with(x, func(x *tx) { x.origin = 1 << 62 }).fields(8), remoting.SystemError},
		{"an ended one, contrary", done.fields(8), remoting.IllegalOperation},
		{"an ended one, another group", with(done, func(x *tx) { x.group = "other" }).fields(12), remoting.SystemError},
		{"an ended one, another offset", with(done, func(x *tx) { x.origin = other.origin }).fields(12), remoting.SystemError},
		{"an ended one, no offset of a message", with(done, func(x *tx) { x.origin++ }).fields(12), remoting.SystemError},
		{"an ended one, beyond the log", with(done, func(x *tx) { x.origin = 1 << 62 }).fields(12), remoting.SystemError},
	} {
		resp := w.call(remoting.EndTransaction, nil, tt.fields...)
		if resp.Code != tt.want {
			t.Errorf("%s: code %d %q, want %d", tt.name, resp.Code, resp.Remark, tt.want)
		}
		if resp.Remark == "" || strings.ContainsAny(resp.Remark, "\n") || strings.Contains(resp.Remark, "goroutine") {
			t.Errorf("%s: the remark is %q", tt.name, resp.Remark)
		}
	}
	props := func(p string) []string { return sendFields("T", "sysFlag", "4", "properties", p) }
	batch := message.AppendBatchItem(nil, message.BatchItem{Body: []byte("x"), Properties: "TRAN_MSG\x01true\x02"})
	v2 := func(more ...string) []string {
		return append([]string{"a", "pg", "b", "T", "c", "TBW102", "d", "4", "e", "0", "f", "0", "g", "0", "h", "0", "i", "", "m", "true"}, more...)
	}
	for _, tt := range []struct {
		name   string
		code   int32
		body   []byte
		fields []string
		want   int32
	}{
		{"without its property", remoting.SendMessage, nil, sendFields("T", "sysFlag", "4"), remoting.MessageIllegal},
		{"with a commit's bits", remoting.SendMessage, nil, halfFields("K", "sysFlag", "8"), remoting.MessageIllegal},
		{"with a rollback's bits", remoting.SendMessage, nil, halfFields("K", "sysFlag", "12"), remoting.MessageIllegal},
		{"delayed", remoting.SendMessage, nil, props("TRAN_MSG\x01true\x02PGROUP\x01pg\x02DELAY\x013\x02"), remoting.MessageIllegal},
		{"timed", remoting.SendMessage, nil, props("TRAN_MSG\x01true\x02PGROUP\x01pg\x02TIMER_DELAY_SEC\x013\x02"), remoting.MessageIllegal},
		{"timed in ms", remoting.SendMessage, nil, props("TRAN_MSG\x01true\x02PGROUP\x01pg\x02TIMER_DELAY_MS\x013\x02"), remoting.MessageIllegal},
		{"timed by date", remoting.SendMessage, nil, props("TRAN_MSG\x01true\x02PGROUP\x01pg\x02TIMER_DELIVER_MS\x013\x02"), remoting.MessageIllegal},
		{"of a bad group", remoting.SendMessage, nil, props("TRAN_MSG\x01true\x02PGROUP\x01p g\x02"), remoting.MessageIllegal},
		{"of no group", remoting.SendMessage, nil, append(props("TRAN_MSG\x01true\x02"), "producerGroup", ""), remoting.MessageIllegal},
		{"to dead letters", remoting.SendMessage, nil, halfFields("K", "topic", "%DLQ%cg"), remoting.MessageIllegal},
		{"to half messages", remoting.SendMessage, nil, halfFields("K", "topic", message.HalfTopic), remoting.NoPermission},
		{"with huge properties", remoting.SendMessage, nil, props("TRAN_MSG\x01true\x02PGROUP\x01pg\x02k\x01" + strings.Repeat("v", message.MaxProperties-40) + "\x02"), remoting.MessageIllegal},
		{"to no such queue", remoting.SendMessage, nil, halfFields("K", "queueId", "1"), remoting.InvalidParameter},
		{"in a batch", remoting.SendBatchMessage, batch, v2(), remoting.MessageIllegal},
		{"as a batch", remoting.SendBatchMessage, message.AppendBatchItem(nil, message.BatchItem{Body: []byte("x")}), v2("f", "4"), remoting.MessageIllegal},
		{"to a retry topic", remoting.SendMessage, nil, halfFields("K", "topic", "%RETRY%cg"), remoting.MessageIllegal},
	} {
		if tt.name == "to a retry topic" {
			w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg"}`))
		}
		resp := w.call(tt.code, tt.body, tt.fields...)
		if resp.Code != tt.want || !strings.HasPrefix(resp.Remark, "[NOT_STORED] ") || strings.Contains(resp.Remark, "\n") {
			t.Errorf("a half message %s: code %d %q, want %d", tt.name, resp.Code, resp.Remark, tt.want)
		}
	}
	if got := w.inQueue("T"); len(got) != 1 {
		t.Errorf("%d messages are in the queue, want the plain one: a refused request left something", len(got))
	}
	if next := w.half("N"); next.number != 3 {
		t.Errorf("the next half message has number %d, want 3: a refused one left something", next.number)
	}
	for _, x := range []tx{x, other} { // both are pending still
		if resp := w.end(x, message.SysCommit); resp.Code != remoting.Success {
			t.Errorf("commit of %s: code %d %q", x.key, resp.Code, resp.Remark)
		}
	}
	// A consumer's own retry of a message that was a transaction's is an ordinary message.
	w.ok(remoting.SendMessage, []byte("again"), halfFields("K", "topic", "%RETRY%cg", "reconsumeTimes", "1")...)
}

// The master is killed between half and commit; the next one knows what is pending and how the others ended, also from a snapshot, and so
// does the old one when it is back.
func TestTransactionsSurvive(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	first := c.master("g1")
	w := c.wire(first, "g1")
	w.topic("T", 1)
	a, b, p := w.half("A"), w.half("B"), w.half("P")
	filler := strings.Repeat("x", 256<<10)
	for range 6 { // a checkpoint is due
		w.ok(remoting.SendMessage, []byte(filler), sendFields("T")...)
	}
	q := w.half("Q")
	for x, end := range map[tx]int32{a: message.SysCommit, b: message.SysRollback} {
		if resp := w.end(x, end); resp.Code != remoting.Success {
			t.Fatal(resp.Code, resp.Remark)
		}
	}
	c.kill(first)
	check := func(w *wire) {
		t.Helper()
		for _, s := range []struct {
			x    tx
			end  int32
			want int32
		}{{a, message.SysCommit, 0}, {a, message.SysRollback, remoting.IllegalOperation}, {b, message.SysRollback, 0}, {b, message.SysCommit, remoting.IllegalOperation}} {
			if resp := w.end(s.x, s.end); resp.Code != s.want {
				t.Errorf("%s as %d after a failover: code %d %q, want %d", s.x.key, s.end, resp.Code, resp.Remark, s.want)
			}
		}
	}
	w = c.wire(c.master("g1"), "g1")
	check(w)
	for _, x := range []tx{p, q} {
		eventually(t, 20*time.Second, func() error {
			if resp := w.end(x, message.SysCommit); resp.Code != remoting.Success {
				return fmt.Errorf("commit of %s: code %d %q", x.key, resp.Code, resp.Remark)
			}
			return nil
		})
	}
	c.start(first)
	for _, id := range []string{"n1", "n2", "n3"} { // all of them from their disks
		if c.nodes[id] != nil {
			c.stop(id)
		}
	}
	for _, id := range []string{"n1", "n2", "n3"} {
		c.start(id)
	}
	var last *wire
	eventually(t, 30*time.Second, func() error {
		last = c.wire(c.master("g1"), "g1")
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		resp, err := last.c.Call(ctx, request(remoting.EndTransaction, nil, a.fields(message.SysCommit)...))
		if err == nil && resp.Code != remoting.Success {
			err = fmt.Errorf("code %d %q", resp.Code, resp.Remark)
		}
		return err
	})
	check(last)
	got := map[string]int{}
	for _, m := range last.inQueue("T") {
		if len(m.Body) < 100 {
			got[string(m.Body)]++
		}
	}
	if len(got) != 3 || got["body of A"] != 1 || got["body of P"] != 1 || got["body of Q"] != 1 {
		t.Errorf("committed messages in the queue: %v", got)
	}
}

// producer is a connection that said by a heartbeat that it is one of a producer group. What it is asked comes over the channel.
type producer struct {
	*wire
	asked chan *remoting.Command
}

func (c *cluster) producer(node, group string) producer {
	c.t.Helper()
	p := producer{&wire{t: c.t}, make(chan *remoting.Command, 1000)}
	eventually(c.t, 20*time.Second, func() (err error) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		p.c, err = remoting.Dial(ctx, c.port(node, "g1"), remoting.ClientOptions{Handler: func(_ *remoting.Conn, req *remoting.Command) {
			if req.Code == remoting.CheckTransactionState {
				p.asked <- req.Clone()
			}
		}})
		return err
	})
	c.t.Cleanup(func() { p.c.Close() })
	p.ok(remoting.HeartBeat, fmt.Appendf(nil, `{"clientID":"producer of %s","producerDataSet":[{"groupName":%q}]}`, group, group))
	return p
}

// question waits for the next check and reads it.
func (p producer) question() (tx, message.Record) {
	p.t.Helper()
	select {
	case req := <-p.asked:
		m := records(p.t, req.Body)
		if len(m) != 1 || !req.OneWay() {
			p.t.Fatalf("a check with %d messages, one-way %v", len(m), req.OneWay())
		}
		group, _ := message.Property(m[0].Properties, message.KeyProducerGroup)
		x := tx{group, req.GetOr("transactionId", ""), number(p.t, req, "tranStateTableOffset"), number(p.t, req, "commitLogOffset")}
		if req.GetOr("msgId", "") != x.key || req.GetOr("topic", "") != m[0].Topic || int64(m[0].QueueOffset) != x.number || int64(m[0].PhysicalOffset) != x.origin {
			p.t.Errorf("the check says %v of %+v", x, m[0])
		}
		if _, off, err := message.ParseOffsetMessageID(req.GetOr("offsetMsgId", "")); err != nil || int64(off) != x.origin {
			p.t.Errorf("the check has offset id %q: %v", req.GetOr("offsetMsgId", ""), err)
		}
		return x, m[0]
	case <-time.After(20 * time.Second):
		p.t.Fatal("no check within 20 s")
		panic("unreachable")
	}
}

// halfOf is a half message of a group that may be checked at once.
func (w *wire) halfOf(group, key, immunity string) tx {
	w.t.Helper()
	x := w.half(key, "properties", "TRAN_MSG\x01true\x02PGROUP\x01"+group+"\x02UNIQ_KEY\x01"+key+"\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01"+immunity+"\x02")
	x.group = group
	return x
}

// Who may end a pending transaction is asked for it: any producer of its group, also one that came later, and of the next master; not
// before its immunity is over; one group without a producer, and what cannot be asked, do not touch the others. The end that it answers
// with is the end.
func TestCheckBack(t *testing.T) {
	t.Parallel()
	c := newTunedCluster(t, func(o *broker.NodeOptions) { o.TransactionCheckInterval = 300 * time.Millisecond }, "g1")
	first := c.master("g1")
	w := c.wire(first, "g1")
	w.topic("T", 1)
	w.halfOf("nobody", "N", "0")
	young := w.halfOf("pg", "Y", "1000")
	a, b := w.halfOf("pg", "A", "0"), w.halfOf("pg", "B", "0")
	p := c.producer(first, "pg")
	seen := map[string]int{}
	for seen[a.key] < 2 || seen[b.key] < 2 { // without an answer it comes again
		x, m := p.question()
		if x != a && x != b {
			t.Fatalf("asked for %v", x)
		}
		if seen[x.key]++; string(m.Body) != "body of "+x.key || m.Topic != "T" || m.QueueID != 0 {
			t.Errorf("asked with %+v", m)
		}
		if times, _ := message.Property(m.Properties, message.KeyCheckTimes); times != strconv.Itoa(seen[x.key]) {
			t.Errorf("check %d of %s says that it is number %q", seen[x.key], x.key, times)
		}
	}
	if err := p.c.OneWay(request(remoting.EndTransaction, nil, a.fields(message.SysCommit, "fromTransactionCheck", "true")...)); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, func() error {
		if got := w.inQueue("T"); len(got) != 1 || string(got[0].Body) != "body of A" {
			return fmt.Errorf("%d messages", len(got))
		}
		return nil
	})
	c.kill(first)
	second := c.masterOfTheRest("g1")
	q := c.producer(second, "pg")
	x, m := q.question()
	if times, _ := message.Property(m.Properties, message.KeyCheckTimes); x != b || times < "3" && len(times) == 1 {
		t.Errorf("the next master asks for %v, and says that it is check %q", x, times)
	}
	if resp := q.call(remoting.EndTransaction, nil, b.fields(message.SysRollback, "fromTransactionCheck", "true")...); resp.Code != remoting.Success {
		t.Errorf("rollback: code %d %q", resp.Code, resp.Remark)
	}
	if resp := q.call(remoting.EndTransaction, nil, young.fields(message.SysCommit)...); resp.Code != remoting.Success {
		t.Errorf("commit within the immunity: code %d %q", resp.Code, resp.Remark)
	}
	if resp := q.call(remoting.EndTransaction, nil, b.fields(message.SysCommit, "fromTransactionCheck", "true")...); resp.Code != remoting.IllegalOperation {
		t.Errorf("commit after a rollback: code %d %q", resp.Code, resp.Remark)
	}
}

// A transaction that nobody can tell about is asked for 15 times, and stays: its producer can end it still.
func TestChecksEnd(t *testing.T) {
	t.Parallel()
	c := newTunedCluster(t, func(o *broker.NodeOptions) { o.TransactionCheckInterval = time.Millisecond }, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	x := w.halfOf("pg", "A", "0")
	p := c.producer(c.master("g1"), "pg")
	for i := 1; i <= 15; i++ {
		y, m := p.question()
		if times, _ := message.Property(m.Properties, message.KeyCheckTimes); y != x || times != strconv.Itoa(i) {
			t.Fatalf("check %d says that it is number %q of %v", i, times, y)
		}
	}
	y := w.halfOf("pg", "B", "0")
	for { // when that one is asked for the third time, the other one would have been too
		z, m := p.question()
		if z != y {
			t.Fatalf("asked for %v once more", z)
		}
		if times, _ := message.Property(m.Properties, message.KeyCheckTimes); times == "3" {
			break
		}
	}
	if resp := w.end(x, message.SysCommit); resp.Code != remoting.Success {
		t.Errorf("commit: code %d %q", resp.Code, resp.Remark)
	}
	if got := w.inQueue("T"); len(got) != 1 {
		t.Errorf("%d messages are in the queue", len(got))
	}
}

// The front of the log goes, and takes no pending half message with it: what producers know it by stays good.
func TestHalfMessagesOutliveTheFront(t *testing.T) {
	t.Parallel()
	c := newTunedCluster(t, func(o *broker.NodeOptions) { o.RetentionBytes, o.CheckpointBytes = 1<<20, 18<<20 }, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 4)
	a, b, d := w.half("A"), w.half("B"), w.half("D")
	if resp := w.end(d, message.SysRollback); resp.Code != remoting.Success {
		t.Fatal(resp.Code, resp.Remark)
	}
	w.fill(0, 60, 1<<20)
	eventually(t, 60*time.Second, func() error {
		logs, err := filepath.Glob(filepath.Join(c.dir, c.master("g1"), "groups", "*", "log", "*.log"))
		if err != nil || len(logs) == 0 || filepath.Base(logs[0]) == "00000000000000000000.log" {
			return fmt.Errorf("the log is %v (%v)", logs, err)
		}
		return nil
	})
	w = c.wire(c.master("g1"), "g1")
	for _, s := range []struct {
		x    tx
		end  int32
		want int32
	}{{a, message.SysCommit, 0}, {b, message.SysRollback, 0}, {a, message.SysRollback, remoting.IllegalOperation}, {d, message.SysCommit, remoting.IllegalOperation}} {
		if resp := w.end(s.x, s.end); resp.Code != s.want {
			t.Errorf("%s as %d: code %d %q, want %d", s.x.key, s.end, resp.Code, resp.Remark, s.want)
		}
	}
	end := number(t, w.ok(remoting.GetMaxOffset, nil, "topic", "T", "queueId", "0"), "offset")
	got := records(t, w.ok(remoting.PullMessage, nil, pullFields("reader", "T", end-1)...).Body)
	if len(got) != 1 || string(got[0].Body) != "body of A" || got[0].PreparedOffset != a.origin {
		t.Errorf("the committed message: %+v", got)
	}
}

// What is pending can be listed in pages, shown and ended by an operator, also after its checks have ended; checks can begin anew.
func TestResolveTransactions(t *testing.T) {
	t.Parallel()
	c := newTunedCluster(t, func(o *broker.NodeOptions) { o.TransactionCheckInterval = time.Millisecond }, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	cl := c.client()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var all []tx
	for i := range 5 {
		all = append(all, w.halfOf("pg", fmt.Sprint("K", i), "3600"))
	}
	stuck := w.halfOf("stuck", "S", "0")
	p := c.producer(c.master("g1"), "stuck")
	for range 15 {
		p.question()
	}
	list := func(q client.TransactionQuery) string {
		t.Helper()
		got, err := cl.Transactions(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, x := range got {
			if x.Group != "g1" || x.Topic != "T" || x.Bytes != len("body of ")+len(x.MessageID) || x.Fault != "" {
				t.Errorf("listed: %+v", x)
			}
			keys = append(keys, x.MessageID)
		}
		return strings.Join(keys, " ")
	}
	for want, q := range map[string]client.TransactionQuery{
		"K0 K1 K2 K3 K4 S": {}, "K0 K1": {Limit: 2}, "S": {ProducerGroup: "stuck"}, " ": {ProducerGroup: "other"}, "": {StoredBefore: 1},
	} {
		if got := list(q); got != strings.TrimSpace(want) {
			t.Errorf("%+v lists %q, want %q", q, got, want)
		}
	}
	eventually(t, 10*time.Second, func() error {
		if got := list(client.TransactionQuery{GaveUp: true}); got != "S" {
			return fmt.Errorf("given up are %q", got)
		}
		return nil
	})
	resp := w.ok(remoting.ListTransactions, nil, "from", "2", "limit", "2")
	if body := string(resp.Body); !strings.Contains(body, `"pending":6`) || !strings.Contains(body, `"found":4`) || !strings.Contains(body, `"gaveUp":1`) {
		t.Errorf("a page: %s", body)
	}
	// Checks begin anew for the one that was given up.
	id := message.OffsetMessageID(netip.MustParseAddrPort(c.port(c.master("g1"), "g1")), ids.PhysicalOffset(stuck.origin))
	w.ok(remoting.ResumeCheckHalfMessage, nil, "topic", "T", "msgId", id)
	if x, m := p.question(); x != stuck {
		t.Errorf("asked for %v", x)
	} else if times, _ := message.Property(m.Properties, message.KeyCheckTimes); times != "1" {
		t.Errorf("the first check after a new beginning is number %q", times)
	}
	shown, ok, err := cl.Transaction(ctx, "g1", stuck.number)
	if err != nil || !ok || string(shown.Body) != "body of S" {
		t.Fatalf("shown: %+v, %v, %v", shown, ok, err)
	}
	if err := cl.ResolveTransaction(ctx, shown, true); err != nil {
		t.Error(err)
	}
	if err := cl.ResolveTransaction(ctx, shown, true); err != nil {
		t.Errorf("once more: %v", err)
	}
	var code *client.CodeError
	if err := cl.ResolveTransaction(ctx, shown, false); !errors.As(err, &code) || code.Code != remoting.IllegalOperation {
		t.Errorf("the other way: %v", err)
	}
	if _, ok, err := cl.Transaction(ctx, "g1", stuck.number); ok || err != nil {
		t.Errorf("it is pending still: %v, %v", ok, err)
	}
	if got := w.inQueue("T"); len(got) != 1 || string(got[0].Body) != "body of S" {
		t.Errorf("%d messages are in the queue", len(got))
	}
	first := strconv.FormatInt(all[0].origin, 10)
	for _, tt := range []struct {
		name   string
		code   int32
		fields []string
		want   int32
	}{
		{"a list with no limit", remoting.ListTransactions, []string{"limit", "0"}, remoting.InvalidParameter},
		{"a list that is too long", remoting.ListTransactions, []string{"limit", "501"}, remoting.InvalidParameter},
		{"a list with bodies", remoting.ListTransactions, []string{"limit", "2", "body", "true"}, remoting.InvalidParameter},
		{"a list from somewhere", remoting.ListTransactions, []string{"from", "x"}, remoting.SystemError},
		{"an end of nothing", remoting.ResolveTransaction, nil, remoting.SystemError},
		{"an end without an offset", remoting.ResolveTransaction, []string{"number", "0", "commitOrRollback", "8"}, remoting.SystemError},
		{"neither commit nor rollback", remoting.ResolveTransaction, []string{"number", "0", "offset", first, "commitOrRollback", "0"}, remoting.InvalidParameter},
		{"another one's offset", remoting.ResolveTransaction, []string{"number", "1", "offset", first, "commitOrRollback", "8"}, remoting.SystemError},
		{"an unknown number", remoting.ResolveTransaction, []string{"number", "99", "offset", first, "commitOrRollback", "8"}, remoting.SystemError},
		{"an ended one, at another's offset", remoting.ResolveTransaction, []string{"number", fmt.Sprint(stuck.number), "offset", first, "commitOrRollback", "8"}, remoting.SystemError},
		{"checks of no message", remoting.ResumeCheckHalfMessage, nil, remoting.SystemError},
		{"checks of no id", remoting.ResumeCheckHalfMessage, []string{"msgId", strings.Repeat("z", 5000)}, remoting.InvalidParameter},
		{"checks of an ended one", remoting.ResumeCheckHalfMessage, []string{"msgId", id}, remoting.SystemError},
	} {
		if resp := w.call(tt.code, nil, tt.fields...); resp.Code != tt.want || resp.Remark == "" || strings.Contains(resp.Remark, "\n") {
			t.Errorf("%s: code %d %q, want %d", tt.name, resp.Code, resp.Remark, tt.want)
		}
	}
	if got := list(client.TransactionQuery{}); got != "K0 K1 K2 K3 K4" {
		t.Errorf("pending are %q", got)
	}
}

// A half message whose properties leave no room for the number of checks is asked for and committed like others, by each master.
func TestCheckOfFullProperties(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	master := c.master("g1")
	w := c.wire(master, "g1")
	w.topic("T", 1)
	var x tx
	for size := message.MaxProperties; x.key == ""; size-- { // the largest one that is taken
		p := "TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01K\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x010\x02pad\x01"
		p += strings.Repeat("x", size-len(p)-1) + "\x02"
		resp := w.call(remoting.SendMessage, []byte("body"), sendFields("T", "properties", p, "sysFlag", "4")...)
		switch {
		case resp.Code == remoting.Success:
			x.key = "K"
		case resp.Code != remoting.MessageIllegal || size < message.MaxProperties-200:
			t.Fatalf("properties of %d bytes: code %d %q", size, resp.Code, resp.Remark)
		}
	}
	p := c.producer(master, "pg")
	x, m := p.question()
	if len(m.Properties) < message.MaxProperties-1 {
		t.Errorf("asked with %d bytes of properties: that leaves room", len(m.Properties))
	}
	if resp := w.end(x, message.SysCommit); resp.Code != remoting.Success {
		t.Errorf("the commit: code %d %q", resp.Code, resp.Remark)
	}
	if got := w.inQueue("T"); len(got) != 1 || string(got[0].Body) != "body" {
		t.Errorf("%d messages are in the queue", len(got))
	}
}
