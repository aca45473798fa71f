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

// What the broker itself writes into properties means nothing when a client sends it: a message goes where its header says, once, whether it
// is plain, delayed, part of a transaction or handed back.
func TestPropertiesThatClientsMustNotSet(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	w.topic("Other", 2)
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg"}`))
	forged := []string{"REAL_TOPIC", "Other", "REAL_QID", "1", "POP_CK", "x", "__transactionId__", "forged", "TRANSACTION_CHECK_TIMES", "99", "TRAN_PREPARED_QUEUE_OFFSET", "7",
		"TIMER_ENQUEUE_MS", "5", "TIMER_DEQUEUE_MS", "5", "DLQ_ORIGIN_TOPIC", "Other", "LEDGERMQ_RESENT_FROM", "g1/0", "MIN_OFFSET", "9", "MAX_OFFSET", "9", "CLUSTER", "other"}
	with := func(more ...string) string { return props(append(append([]string{}, forged...), more...)...) }
	w.ok(remoting.SendMessage, []byte("plain"), sendFields("T", "properties", with())...)
	w.ok(remoting.SendMessage, []byte("once a timer"), sendFields("T", "properties", with("TIMER_OUT_MS", "1", "TIMER_DELAY_MS", "60000"))...) // RocketMQ delivers it at once too
	w.ok(remoting.SendMessage, []byte("level"), sendFields("T", "properties", with("DELAY", "1"))...)
	w.ok(remoting.SendMessage, []byte("timed"), sendFields("T", "properties", with("TIMER_DELAY_MS", "300"))...)
	half := w.ok(remoting.SendMessage, []byte("half"), halfFields("H", "properties", with("TRAN_MSG", "true", "PGROUP", "pg", "UNIQ_KEY", "H"))...)
	if id := half.GetOr("transactionId", ""); id != "H" {
		t.Errorf("the transaction id is %q", id)
	}
	_, at, err := message.ParseOffsetMessageID(half.GetOr("msgId", ""))
	if err != nil {
		t.Fatal(err)
	}
	if resp := w.end(tx{"pg", "H", number(t, half, "queueOffset"), int64(at)}, message.SysCommit); resp.Code != remoting.Success {
		t.Errorf("commit: code %d %q", resp.Code, resp.Remark)
	}
	var got []message.Record
	eventually(t, 20*time.Second, func() error {
		if got = w.delivered("T", 0); len(got) != 5 {
			return fmt.Errorf("%d messages", len(got))
		}
		return nil
	})
	for _, m := range got {
		if _, there := message.Property(m.Properties, message.KeyPopCk); there {
			t.Errorf("%s has the property %s", m.Body, message.KeyPopCk)
		}
		if string(m.Body) == "half" {
			for key, want := range map[string]string{message.KeyTransactionID: "H", message.KeyPreparedQueueOffset: "", message.KeyCheckTimes: ""} {
				if v, _ := message.Property(m.Properties, key); v != want {
					t.Errorf("the committed message has %s=%q, want %q", key, v, want)
				}
			}
		}
	}
	if resp := w.back("cg", got[0], "1"); resp.Code != remoting.Success {
		t.Errorf("handed back: code %d %q", resp.Code, resp.Remark)
	}
	if m := w.next("cg", "%RETRY%cg", 0); string(m.Body) != "plain" {
		t.Errorf("the retry is %q", m.Body)
	}
	for q := range 2 {
		if m := w.delivered("Other", q); len(m) != 0 {
			t.Errorf("queue %d of a topic to which nothing was sent has %q", q, m[0].Body)
		}
	}
}

// A handle of which anything was changed, or of a message that was delivered, recalls nothing, and the message comes; the handle itself
// does, and it does not.
func TestAlteredRecallHandles(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1", "g2")
	w := c.wire(c.master("g1"), "g1")
	w.topic("D", 1)
	w.topic("U", 1)
	at := time.Now().Add(4 * time.Second)
	send := func(key string, due time.Time) string {
		return w.ok(remoting.SendMessage, []byte(key), sendFields("D", "properties", props("UNIQ_KEY", key, "TIMER_DELIVER_MS", strconv.FormatInt(due.UnixMilli(), 10)))...).GetOr("recallHandle", "")
	}
	kept, taken := send("kept", at), send("taken", at)
	send("past", time.Now().Add(-time.Hour)) // at once, without a handle
	recall := func(topic, handle string) *remoting.Command {
		return w.call(remoting.RecallMessage, nil, "topic", topic, "recallHandle", handle)
	}
	plain, err := base64.URLEncoding.DecodeString(kept)
	if err != nil {
		t.Fatal(err)
	}
	for i, word := range strings.Fields(string(plain)) {
		other := word + "x"
		if n, err := strconv.ParseInt(word, 10, 64); err == nil {
			other = strconv.FormatInt(n+1, 10)
		}
		words := strings.Fields(string(plain))
		words[i] = other
		if resp := recall("D", base64.URLEncoding.EncodeToString([]byte(strings.Join(words, " ")))); resp.Code != remoting.IllegalOperation {
			t.Errorf("a handle with %q for %q: code %d %q", other, word, resp.Code, resp.Remark)
		}
	}
	for i := range len(kept) { // any one character
		altered := kept[:i] + string("AB"[kept[i]&1]) + kept[i+1:]
		if altered == kept {
			altered = kept[:i] + "-" + kept[i+1:]
		}
		if b, err := base64.URLEncoding.DecodeString(altered); err == nil && strings.TrimSpace(string(b)) == string(plain) {
			continue
		}
		if resp := recall("D", altered); resp.Code != remoting.IllegalOperation {
			t.Errorf("handle %q: code %d %q", altered, resp.Code, resp.Remark)
		}
	}
	if resp := recall("U", kept); resp.Code != remoting.IllegalOperation {
		t.Errorf("for another topic: code %d %q", resp.Code, resp.Remark)
	}
	if resp := c.wire(c.master("g2"), "g2").call(remoting.RecallMessage, nil, "topic", "D", "recallHandle", kept); resp.Code != remoting.TopicNotExist {
		t.Errorf("in another broker group: code %d %q", resp.Code, resp.Remark)
	}
	if resp := recall("D", taken); resp.Code != remoting.Success {
		t.Errorf("the handle itself: code %d %q", resp.Code, resp.Remark)
	}
	eventually(t, 20*time.Second, func() error {
		if got := w.delivered("D", 0); len(got) != 2 || string(got[1].Body) != "kept" {
			return fmt.Errorf("%d messages were delivered", len(got))
		}
		return nil
	})
	if resp := recall("D", kept); resp.Code != remoting.IllegalOperation {
		t.Errorf("after it was delivered: code %d %q", resp.Code, resp.Remark)
	}
	if got := w.delivered("D", 0); len(got) != 2 || string(got[0].Body) != "past" {
		t.Errorf("%d messages were delivered", len(got))
	}
}
