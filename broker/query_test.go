package broker_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

const forever = "9223372036854775807"

func queryFields(topic, key string, more ...string) []string {
	return append([]string{"topic", topic, "key", key, "maxNum", "64", "beginTimestamp", "0", "endTimestamp", forever}, more...)
}

// bodies returns the bodies of the messages that a query finds, in the order of the answer.
func (w *wire) bodies(fields ...string) (out []string) {
	w.t.Helper()
	resp := w.call(remoting.QueryMessage, nil, fields...)
	for _, m := range records(w.t, resp.Body) {
		out = append(out, string(m.Body))
	}
	if want := remoting.QueryNotFound; resp.Code != remoting.Success && resp.Code != want || (resp.Code == want) != (len(out) == 0) {
		w.t.Fatalf("query %v: code %d %q and %d messages", fields, resp.Code, resp.Remark, len(out))
	}
	return out
}

func batchOf(props ...string) (body []byte) {
	for i, p := range props {
		b := fmt.Sprintf("batch %d", i)
		body = binary.BigEndian.AppendUint32(body, uint32(20+len(b)+2+len(p)))
		body = append(body, make([]byte, 12)...)
		body = binary.BigEndian.AppendUint32(body, uint32(len(b)))
		body = append(body, b...)
		body = binary.BigEndian.AppendUint16(body, uint16(len(p)))
		body = append(body, p...)
	}
	return body
}

// A message is found by each of its keys, by its unique id and by its tag, once, and by nothing else: not by a key of another topic, a part of a
// key, or a tag asked for as a key. Slaves answer like the master.
func TestQueryMessage(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	master := c.master("g1")
	w := c.wire(master, "g1")
	w.topic("T", 2)
	w.topic("U", 1)
	send := func(topic, body, props string) {
		t.Helper()
		w.ok(remoting.SendMessage, []byte(body), sendFields(topic, "properties", props)...)
	}
	send("T", "a", "KEYS\x01red blue\x02UNIQ_KEY\x01ID-A\x02TAGS\x01t1\x02")
	send("T", "b", "KEYS\x01red red  red\x02UNIQ_KEY\x01ID-B\x02TAGS\x01t2\x02")
	send("U", "c", "KEYS\x01red\x02UNIQ_KEY\x01ID-A\x02")
	send("T", "d", "UNIQ_KEY\x01red\x02TAGS\x01red\x02")
	send("T", "e", "KEYS\x01redd\x02KEYS\x01green\x02")
	w.ok(remoting.SendBatchMessage, batchOf("KEYS\x01red\x02UNIQ_KEY\x01B0\x02", "KEYS\x01other\x02UNIQ_KEY\x01B1\x02", "KEYS\x01red\x02UNIQ_KEY\x01B2\x02"),
		"a", "pg", "b", "T", "c", "TBW102", "d", "4", "e", "1", "f", "0", "g", "0", "h", "0", "i", "", "m", "true")
	unique := []string{"_UNIQUE_KEY_QUERY", "true"}
	for _, node := range []string{master, c.slave("g1")} {
		w := c.wire(node, "g1")
		eventually(t, 10*time.Second, func() error {
			if got := w.bodies(queryFields("T", "B2", unique...)...); len(got) != 1 {
				return fmt.Errorf("the last message is not there: %q", got)
			}
			return nil
		})
		for _, tt := range []struct {
			fields []string
			want   string
		}{
			{queryFields("T", "red"), "a b batch 0 batch 2"},
			{queryFields("T", "red", "indexType", "K"), "a b batch 0 batch 2"},
			{queryFields("T", "blue"), "a"},
			{queryFields("U", "red"), "c"},
			{queryFields("T", "red", unique...), "d"},
			{queryFields("T", "red", "_UNIQUE_KEY_QUERY", "TRUE"), "d"},
			{queryFields("T", "red", "indexType", "U"), "d"},
			{queryFields("T", "red", "indexType", "T"), "d"},
			{queryFields("T", "t2", "indexType", "T"), "b"},
			{queryFields("T", "ID-A", unique...), "a"},
			{queryFields("U", "ID-A", unique...), "c"},
			{queryFields("T", "B1", unique...), "batch 1"},
			{queryFields("T", "green"), "e"},
			{queryFields("T", "redd"), ""}, // the last of two pairs counts
			{queryFields("T", "ID-A"), ""},
			{queryFields("T", "re"), ""},
			{queryFields("T", "red blue"), ""},
			{queryFields("T", "Red"), ""},
			{queryFields("Nope", "red"), ""},
			{queryFields("T", "red", "maxNum", "2"), "batch 0 batch 2"}, // the newest
			{queryFields("T", "red", "maxNum", "0"), ""},
			{queryFields("T", "red", "maxNum", "-1"), ""},
			{queryFields("T", "ID-A", append(unique, "maxNum", "0")...), "a"},
			{queryFields("T", "red", "beginTimestamp", forever), ""},
			{queryFields("T", "red", "endTimestamp", "-9223372036854775808"), ""},
			{queryFields("T", "red", "beginTimestamp", "2", "endTimestamp", "1"), ""},
			{queryFields("T", "red", "lastKey", "x"), "a b batch 0 batch 2"},
		} {
			if got := strings.Join(w.bodies(tt.fields...), " "); got != tt.want {
				t.Errorf("%s: %v finds %q, want %q", node, tt.fields, got, tt.want)
			}
		}
		resp := w.ok(remoting.QueryMessage, nil, queryFields("T", "red")...)
		if number(t, resp, "indexLastUpdatePhyoffset") <= 0 || number(t, resp, "indexLastUpdateTimestamp") < time.Now().Add(-time.Hour).UnixMilli() {
			t.Errorf("%s: the answer's header is %d at %d", node, number(t, resp, "indexLastUpdatePhyoffset"), number(t, resp, "indexLastUpdateTimestamp"))
		}
		// Of a deleted topic nothing is found, not even under the same name.
		if node != master {
			m := c.wire(master, "g1")
			m.ok(remoting.DeleteTopicInBroker, nil, "topic", "U")
			m.topic("U", 1)
			eventually(t, 10*time.Second, func() error {
				if got := w.bodies(queryFields("U", "red")...); len(got) > 0 {
					return fmt.Errorf("of a deleted topic %q is found", got)
				}
				return nil
			})
		}
	}
}

// Time windows are exact to the millisecond and inclusive on both sides, whatever lies between the messages.
func TestQueryTimeWindows(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	type stored struct {
		body string
		at   int64
	}
	var all []stored
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		key := "k"
		if r.IntN(3) == 0 {
			key = "other"
		}
		resp := w.ok(remoting.SendMessage, fmt.Appendf(nil, "%d", i), sendFields("T", "properties", "KEYS\x01"+key+"\x02")...)
		m := records(t, w.ok(remoting.PullMessage, nil, pullFields("cg", "T", number(t, resp, "queueOffset"))...).Body)[0]
		if key == "k" {
			all = append(all, stored{string(m.Body), m.StoreTime})
		}
	}
	times := []int64{-1 << 63, -1, 0, all[0].at - 1, all[len(all)-1].at + 1, 1<<63 - 1}
	for _, m := range all {
		times = append(times, m.at-1, m.at, m.at+1)
	}
	for range 300 {
		begin, end := times[r.IntN(len(times))], times[r.IntN(len(times))]
		limit := 1 + r.IntN(64)
		var want []string
		for _, m := range all {
			if m.at >= begin && m.at <= end {
				want = append(want, m.body)
			}
		}
		want = want[max(0, len(want)-limit):]
		got := w.bodies(queryFields("T", "k", "beginTimestamp", strconv.FormatInt(begin, 10), "endTimestamp", strconv.FormatInt(end, 10), "maxNum", strconv.Itoa(limit))...)
		if !slices.Equal(got, want) {
			t.Fatalf("from %d to %d, %d at most: %q, want %q", begin, end, limit, got, want)
		}
	}
}

// An answer has 64 messages and 4 MiB at most, the newest, and at least one; a query by unique id 32.
func TestQueryBounds(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	var props []string
	for range 1000 {
		props = append(props, "KEYS\x01hot\x02UNIQ_KEY\x01same\x02")
	}
	for range 20 {
		w.ok(remoting.SendBatchMessage, batchOf(props...), "a", "pg", "b", "T", "c", "TBW102", "d", "4", "e", "0", "f", "0", "g", "0", "h", "0", "i", "", "m", "true")
	}
	if got := w.bodies(queryFields("T", "hot", "maxNum", "2147483647")...); len(got) != 64 || got[63] != "batch 999" || got[0] != "batch 936" {
		t.Errorf("%d messages, %q", len(got), got)
	}
	if got := w.bodies(queryFields("T", "same", "_UNIQUE_KEY_QUERY", "true")...); len(got) != 32 || got[31] != "batch 999" {
		t.Errorf("%d messages, %q", len(got), got)
	}
	for i := range 3 {
		w.ok(remoting.SendMessage, bytes.Repeat([]byte{byte('0' + i)}, 3<<20), sendFields("T", "properties", "KEYS\x01big\x02")...)
	}
	if got := w.bodies(queryFields("T", "big")...); len(got) != 1 || got[0][0] != '2' {
		t.Errorf("%d messages of 3 MiB, want the newest", len(got))
	}
}

// A message with thousands of keys is found by each of them, also when there are so many that the index spills early.
func TestManyKeysOfOneMessage(t *testing.T) {
	t.Parallel()
	c := newTunedCluster(t, func(o *broker.NodeOptions) { o.CheckpointBytes = 64 << 20 }, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	const messages, keys = 130, 9000 // 1.17 million words in 4 MiB of log
	words := make([]string, keys)
	for i := range messages {
		for j := range words {
			words[j] = string([]byte{byte('a' + i%26), byte('0' + j/900), byte('0' + j/30%30), byte('A' + j%30)})[1:]
		}
		w.ok(remoting.SendMessage, fmt.Appendf(nil, "%d", i), sendFields("T", "properties", "KEYS\x01"+strings.Join(words[:keys*9/10], " ")+"\x02")...)
	}
	eventually(t, 20*time.Second, func() error {
		runs, err := filepath.Glob(filepath.Join(c.groupDir(c.master("g1")), "index", "*.run"))
		if err != nil || len(runs) == 0 {
			return fmt.Errorf("no run was spilled: %v", err)
		}
		return nil
	})
	for _, word := range []string{words[0], words[keys/2], words[keys*9/10-1]} {
		if got := w.bodies(queryFields("T", word)...); len(got) != 64 || got[63] != fmt.Sprint(messages-1) {
			t.Errorf("key %q: %d messages, the last one %q", word, len(got), got[len(got)-1])
		}
	}
	if got := w.bodies(queryFields("T", words[keys-1])...); len(got) > 0 {
		t.Errorf("a key of none finds %q", got)
	}
}

// A replica whose index is damaged while it runs never answers that there is no message: it is busy until the part is made again, and then answers
// as before.
func TestQueryDamagedIndex(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	node := c.master("g1")
	w := c.wire(node, "g1")
	w.topic("T", 4)
	w.fill(0, 90, 40<<10)
	var runs []string
	eventually(t, 20*time.Second, func() (err error) {
		if runs, err = filepath.Glob(filepath.Join(c.groupDir(node), "index", "*.run")); err != nil || len(runs) < 2 {
			return fmt.Errorf("runs %v, %v", runs, err)
		}
		return nil
	})
	want := w.bodies(queryFields("T", "k1")...)
	if len(want) != 2 { // messages 1 and 51
		t.Fatalf("%d messages with k1", len(want))
	}
	b, err := os.ReadFile(runs[0])
	if err != nil {
		t.Fatal(err)
	}
	for page := 4096; page < len(b); page += 4096 {
		b[page+9] ^= 4
	}
	if err := os.WriteFile(runs[0], b, 0o644); err != nil { // in place: the replica has it open
		t.Fatal(err)
	}
	met := false
	eventually(t, 20*time.Second, func() error {
		resp := w.call(remoting.QueryMessage, nil, queryFields("T", "k1")...)
		switch got := records(t, resp.Body); {
		case resp.Code == remoting.SystemBusy && strings.Contains(resp.Remark, "rebuilt"):
			met = true
			return fmt.Errorf("code %d %q", resp.Code, resp.Remark)
		case resp.Code != remoting.Success || len(got) != len(want):
			t.Fatalf("code %d %q, %d messages", resp.Code, resp.Remark, len(got))
		}
		return nil
	})
	if !met {
		t.Error("the damage was not met: the test proves nothing")
	}
}

// 33 finds a message by the offset in its id, whatever address is in that, and nothing where none begins.
func TestViewMessageByID(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	resp := w.ok(remoting.SendMessage, []byte("x"), sendFields("T", "properties", "UNIQ_KEY\x01U1\x02")...)
	id, _ := resp.Get("msgId")
	_, off, err := message.ParseOffsetMessageID(id)
	if err != nil {
		t.Fatal(err)
	}
	at := func(n int64) string { return strconv.FormatInt(int64(off)+n, 10) }
	for _, more := range [][]string{nil, {"topic", "T"}, {"topic", ""}} {
		if m := records(t, w.ok(remoting.ViewMessageByID, nil, append([]string{"offset", at(0)}, more...)...).Body); len(m) != 1 || string(m[0].Body) != "x" {
			t.Errorf("%v: %v", more, m)
		}
	}
	for _, fields := range [][]string{{"offset", at(1)}, {"offset", at(-24)}, {"offset", at(8)}, {"offset", "-1"}, {"offset", "-9223372036854775808"}, {"offset", "0"}, {"offset", forever},
		{"offset", ""}, {"offset", "x"}, {"offset", "9223372036854775808"}, {}, {"offset", at(0), "topic", "Other"}} {
		if resp := w.call(remoting.ViewMessageByID, nil, fields...); resp.Code != remoting.SystemError || resp.Remark == "" || strings.Contains(resp.Remark, "\n") || len(resp.Body) > 0 {
			t.Errorf("%v: code %d %q", fields, resp.Code, resp.Remark)
		}
	}
}

// Our own client goes on where an answer ended, over messages of one millisecond and over answers that their size ended, and puts the answers of
// several groups together; and it finds what has no key by its time.
func TestFindByClient(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1", "g2")
	cl := c.client()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := cl.CreateTopic(ctx, client.TopicSpec{Name: "T", ReadQueues: 2}); err != nil {
		t.Fatal(err)
	}
	var props []string
	for i := range 150 {
		props = append(props, fmt.Sprintf("KEYS\x01k\x02TAGS\x01t%d\x02UNIQ_KEY\x01U%d\x02", i%2, i))
	}
	for _, g := range []string{"g1", "g2"} {
		w := c.wire(c.master(g), g)
		w.ok(remoting.SendBatchMessage, batchOf(props...), "a", "pg", "b", "T", "c", "TBW102", "d", "4", "e", "1", "f", "0", "g", "0", "h", "0", "i", "", "m", "true")
	}
	w := c.wire(c.master("g1"), "g1")
	for i := range 3 {
		w.ok(remoting.SendMessage, bytes.Repeat([]byte{byte('0' + i)}, 3<<20), sendFields("T", "properties", "KEYS\x01big\x02")...)
	}
	find := func(s client.Search) []client.Message {
		t.Helper()
		s.Topic = "T"
		list, err := cl.Find(ctx, s)
		if err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		for i := 1; i < len(list); i++ {
			if list[i].StoreTime.Before(list[i-1].StoreTime) {
				t.Fatalf("%+v: message %d is older than the one before it", s, i)
			}
		}
		return list
	}
	count := func(want int, s client.Search) {
		t.Helper()
		list := find(s)
		places := map[string]bool{}
		for _, m := range list {
			places[fmt.Sprintf("%s/%d@%d", m.Group, m.Queue, m.Offset)] = true
		}
		if len(list) != want || len(places) != want {
			t.Errorf("%+v: %d messages, %d of them differ, want %d", s, len(list), len(places), want)
		}
	}
	count(300, client.Search{By: client.ByKey, Word: "k", Max: 1000})
	count(64, client.Search{By: client.ByKey, Word: "k"})
	count(200, client.Search{By: client.ByKey, Word: "k", Max: 200})
	count(150, client.Search{By: client.ByTag, Word: "t1", Max: 1000})
	count(2, client.Search{By: client.ByUniqueID, Word: "U7", Max: 1000})
	count(0, client.Search{By: client.ByKey, Word: "U7", Max: 1000})
	count(3, client.Search{By: client.ByKey, Word: "big", Max: 10})
	count(2, client.Search{By: client.ByKey, Word: "big", Max: 2})
	count(303, client.Search{Max: 1000})
	count(10, client.Search{Max: 10})
	first := find(client.Search{By: client.ByKey, Word: "big", Max: 10})[0].StoreTime
	count(3, client.Search{From: first, Max: 100})
	count(300, client.Search{Until: first.Add(-time.Millisecond), Max: 1000})
	count(300, client.Search{By: client.ByKey, Word: "k", Until: first, Max: 1000})
	count(0, client.Search{By: client.ByKey, Word: "k", From: first.Add(time.Millisecond), Max: 1000})
	if _, err := cl.Find(ctx, client.Search{Topic: "Nope", Word: "k"}); !errors.Is(err, client.ErrTopicNotFound) {
		t.Errorf("an unknown topic: %v", err)
	}
	// Where no replica of a group answers, what it has may be missing: that is an error.
	for _, n := range []string{"n1", "n2", "n3"} {
		c.kill(n)
	}
	short, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	if list, err := cl.Find(short, client.Search{Topic: "T", By: client.ByKey, Word: "k"}); err == nil {
		t.Errorf("with all nodes dead %d messages are found, and no error", len(list))
	}
}
