package broker_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// Every message has its region once, however it came to where it is: sent, in a batch, after a wait, as the end of a transaction, for another
// try, as a dead letter, and as one that was sent again.
func TestRegion(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, fmt.Appendf(nil, `{"groupName":"cg","retryMaxTimes":1,%s}`, noWait))
	send := func(body string, kv ...string) {
		w.ok(remoting.SendMessage, []byte(body), sendFields("T", "properties", props(kv...))...)
	}
	send("bare")
	send("plain", "KEYS", "k", "UNIQ_KEY", "P")
	w.ok(remoting.SendMessage, []byte("open"), sendFields("T", "properties", "KEYS\x01k")...) // without the last separator
	send("ours", "MSG_REGION", "DefaultRegion", "TRACE_ON", "true")
	send("foreign", "MSG_REGION", "elsewhere", "KEYS", "k")
	send("twice", "MSG_REGION", "DefaultRegion", "KEYS", "k", "MSG_REGION", "elsewhere")
	w.ok(remoting.SendBatchMessage, batchOf("", "KEYS\x01k\x02", "MSG_REGION\x01DefaultRegion"), "a", "pg", "b", "T", "c", "TBW102", "d", "4", "e", "0", "f", "0", "g", "0",
		"h", "0", "i", "", "m", "true")
	send("level", "DELAY", "1")
	send("timed", "TIMER_DELAY_MS", "300")
	if resp := w.end(w.half("H"), message.SysCommit); resp.Code != remoting.Success {
		t.Fatalf("commit: code %d %q", resp.Code, resp.Remark)
	}
	once := func(m message.Record) {
		t.Helper()
		var regions []string
		for k, v := range message.Properties(m.Properties) {
			if k == message.KeyMsgRegion {
				regions = append(regions, v)
			}
		}
		if len(regions) != 1 || regions[0] != "DefaultRegion" {
			t.Errorf("%q of %s has the regions %q in %q", m.Body, m.Topic, regions, m.Properties)
		}
	}
	const sent = 12
	var got []message.Record
	eventually(t, 20*time.Second, func() error {
		if got = w.delivered("T", 0); len(got) != sent {
			return fmt.Errorf("%d messages of %d", len(got), sent)
		}
		return nil
	})
	for _, m := range got {
		once(m)
	}
	if keys, _ := message.Property(got[2].Properties, message.KeyKeys); keys != "k" {
		t.Errorf("a message whose properties had no last separator has the keys %q", keys)
	}

	// Handed back by the consumer, sent to the retry topic by itself, dead, and sent again.
	if resp := w.back("cg", got[0], "0"); resp.Code != remoting.Success {
		t.Fatalf("handed back: code %d %q", resp.Code, resp.Remark)
	}
	again := w.next("cg", "%RETRY%cg", 0)
	once(again)
	w.ok(remoting.SendMessage, again.Body, sendFields("%RETRY%cg", "properties", again.Properties, "reconsumeTimes", "1", "maxReconsumeTimes", "1")...)
	once(w.next("cg", "%RETRY%cg", 1))
	if resp := w.back("cg", again, "0"); resp.Code != remoting.Success {
		t.Fatalf("handed back for good: code %d %q", resp.Code, resp.Remark)
	}
	dead := w.next("cg", "%DLQ%cg", 0)
	once(dead)
	w.ok(remoting.ResendDeadLetter, nil, "consumerGroup", "cg", "offset", "0", "physicalOffset", fmt.Sprint(dead.PhysicalOffset))
	once(w.next("cg", "%RETRY%cg", 2))
}

// A message is never refused for its region's sake, nor do its copies lack room for what they add: it has none when its properties leave
// little room.
func TestRegionWithoutRoom(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, fmt.Appendf(nil, `{"groupName":"cg",%s}`, noWait))
	const head = "UNIQ_KEY\x01K\x02pad\x01"
	offset := int64(0)
	for _, left := range []int{0, 1, 25, 300, 536, 537, 538, 600} {
		for _, end := range []string{"", "\x02"} {
			p := head + strings.Repeat("x", message.MaxProperties-left-len(head)-len(end)) + end
			w.ok(remoting.SendMessage, []byte("m"), sendFields("T", "properties", p)...)
			got := w.next("cg", "T", offset)
			offset++
			want := p
			if left >= 512+message.PropertySize(p, message.KeyMsgRegion, "DefaultRegion") {
				want = message.AppendProperty(p, message.KeyMsgRegion, "DefaultRegion")
			}
			if got.Properties != want {
				t.Errorf("%d bytes left: stored with %d bytes of properties, want %d; %d were sent", left, len(got.Properties), len(want), len(p))
			}
			if left >= 300 { // there is room for what another try adds, with the region or without
				if resp := w.back("cg", got, "0"); resp.Code != remoting.Success {
					t.Errorf("%d bytes left: handed back: code %d %q", left, resp.Code, resp.Remark)
				}
			}
		}
	}
}

// A batch that a frame has room for is not refused for its regions' sake: where it has room for the messages alone, none has a region.
func TestRegionOfBigBatch(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	const limit = 5 << 20 // of the records of one send
	const props = "UNIQ_KEY\x01K\x02"
	region := message.PropertySize(props, message.KeyMsgRegion, "DefaultRegion")
	host := netip.MustParseAddrPort("127.0.0.1:1")
	// space is what a message takes in the log.
	space := func(body, more int) int {
		r := message.Record{Topic: "T0", Body: make([]byte, body), BornHost: host, StoreHost: host, Properties: props}
		return commitlog.RecordSpace(state.MessagePrefixSize + r.Size() + more)
	}
	const small = 256
	for i, tc := range []struct {
		what         string
		more         int // bytes of each message that count
		over         int // the limit
		taken, bears bool
	}{
		{"all that fits with regions", region, 0, true, true},
		{"one byte more than fits with regions", region, 1, true, false},
		{"all that fits without regions", 0, 0, true, false},
		{"one byte more than fits without regions", 0, 1, false, false},
	} {
		topic := fmt.Sprintf("T%d", i)
		w.topic(topic, 1)
		n := limit/space(small, tc.more) - 8
		last := 0 // the body of the last message fills what is left
		for n*space(small, tc.more)+space(last+1, tc.more) <= limit {
			last++
		}
		last += tc.over
		var body []byte
		for j := range n + 1 {
			size := small
			if j == n {
				size = last
			}
			body = message.AppendBatchItem(body, message.BatchItem{Body: bytes.Repeat([]byte("x"), size), Properties: props})
		}
		resp := w.call(remoting.SendBatchMessage, body, "a", "pg", "b", topic, "c", "TBW102", "d", "4", "e", "0", "f", "0", "g", "0", "h", "0", "i", "", "m", "true")
		if !tc.taken {
			if resp.Code != remoting.MessageIllegal {
				t.Errorf("%s: code %d %q, want %d", tc.what, resp.Code, resp.Remark, remoting.MessageIllegal)
			}
			continue
		}
		if resp.Code != remoting.Success {
			t.Errorf("%s: %d messages, %d bytes: code %d %q", tc.what, n+1, len(body), resp.Code, resp.Remark)
			continue
		}
		want := props
		if tc.bears {
			want = message.AppendProperty(props, message.KeyMsgRegion, "DefaultRegion")
		}
		if end := w.endOf(topic); end != int64(n+1) {
			t.Errorf("%s: %d messages in the queue, want %d", tc.what, end, n+1)
		}
		for _, offset := range []int{0, n / 2, n} {
			if got := w.next("cg", topic, int64(offset)); got.Properties != want {
				t.Errorf("%s: message %d has the properties %q, want %q", tc.what, offset, got.Properties, want)
			}
		}
	}
}
