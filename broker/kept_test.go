package broker_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// A body that the client packed is its own: whatever the flags say, it is stored and comes back byte for byte, also when it is no packed body at all.
func TestPackedBodiesAreUntouched(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	r := rand.New(rand.NewPCG(3, 4))
	for i, flags := range []int32{1, 1 | 1<<8, 1 | 2<<8, 1 | 3<<8, 1 | 7<<8, 2, 0} {
		body := make([]byte, 1+r.IntN(9000))
		for j := range body {
			body[j] = byte(r.Uint32())
		}
		w.ok(remoting.SendMessage, body, sendFields("T", "sysFlag", strconv.Itoa(int(flags)), "properties", fmt.Sprintf("KEYS\x01k%d\x02", i))...)
		for name, resp := range map[string]*remoting.Command{
			"pull": w.ok(remoting.PullMessage, nil, pullFields("cg", "T", int64(i))...), "query": w.ok(remoting.QueryMessage, nil, queryFields("T", fmt.Sprintf("k%d", i))...),
		} {
			m := records(t, resp.Body)[0]
			if !bytes.Equal(m.Body, body) || m.SysFlag&(message.SysCompressed|7<<8) != flags&(message.SysCompressed|7<<8) {
				t.Errorf("flags %#x, %s: %d bytes with the flags %#x, want %d", flags, name, len(m.Body), m.SysFlag, len(body))
			}
		}
	}
}

// After a kill of all nodes every key of what was answered OK is found, on each replica.
func TestKeysAreFoundAfterAKillOfAll(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	const batches, each = 40, 100
	for b := range batches {
		var props []string
		for i := range each {
			props = append(props, fmt.Sprintf("KEYS\x01key-%d\x02UNIQ_KEY\x01id-%d\x02", b*each+i, b*each+i))
		}
		w.ok(remoting.SendBatchMessage, batchOf(props...), "a", "pg", "b", "T", "c", "TBW102", "d", "4", "e", "0", "f", "0", "g", "0", "h", "0", "i", "", "m", "true")
	}
	nodes := []string{"n1", "n2", "n3"}
	for _, n := range nodes {
		c.kill(n)
	}
	for _, n := range nodes {
		c.start(n)
	}
	c.master("g1")
	r := rand.New(rand.NewPCG(5, 6))
	for _, n := range nodes {
		w := c.wire(n, "g1")
		eventually(t, 30*time.Second, func() error {
			if resp := w.call(remoting.QueryMessage, nil, queryFields("T", fmt.Sprintf("key-%d", batches*each-1))...); resp.Code != remoting.Success {
				return fmt.Errorf("%s: code %d %q", n, resp.Code, resp.Remark)
			}
			return nil
		})
		for range 200 {
			i := r.IntN(batches * each)
			for _, fields := range [][]string{queryFields("T", fmt.Sprintf("key-%d", i)), queryFields("T", fmt.Sprintf("id-%d", i), "_UNIQUE_KEY_QUERY", "true")} {
				if got := w.bodies(fields...); len(got) != 1 || got[0] != fmt.Sprintf("batch %d", i%each) {
					t.Fatalf("%s: message %d by %v: %q", n, i, fields, got)
				}
			}
		}
	}
}

// A search by time ends before a batch whose messages have one time, or behind it, never in its middle; an empty queue has its end there.
func TestSearchByTimeAroundABatch(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 2)
	props := make([]string, 1000)
	for i := range props {
		props[i] = "A\x01b\x02"
	}
	w.ok(remoting.SendMessage, []byte("before"), sendFields("T")...)
	w.ok(remoting.SendBatchMessage, batchOf(props...), "a", "pg", "b", "T", "c", "TBW102", "d", "4", "e", "0", "f", "0", "g", "0", "h", "0", "i", "", "m", "true")
	w.ok(remoting.SendMessage, []byte("after"), sendFields("T")...)
	at := func(off int64) int64 {
		return records(t, w.ok(remoting.PullMessage, nil, pullFields("cg", "T", off)...).Body)[0].StoreTime
	}
	before, batch, after := at(0), at(1), at(1001)
	if batch != at(1000) {
		t.Fatalf("the batch was stored from %d to %d", batch, at(1000))
	}
	first := func(ts int64) (off int64) {
		for off = 0; off <= 1001 && []int64{before, batch, after}[min(2, (off+999)/1000)] < ts; off++ {
		}
		return off
	}
	for _, ts := range []int64{0, before - 1, before, before + 1, batch - 1, batch, batch + 1, after, after + 1, 1 << 62} {
		got := number(t, w.ok(remoting.SearchOffsetByTimestamp, nil, "topic", "T", "queueId", "0", "timestamp", strconv.FormatInt(ts, 10)), "offset")
		if got != first(ts) {
			t.Errorf("the first message from %d on is %d, want %d (times %d, %d, %d)", ts, got, first(ts), before, batch, after)
		}
		if got := number(t, w.ok(remoting.SearchOffsetByTimestamp, nil, "topic", "T", "queueId", "1", "timestamp", strconv.FormatInt(ts, 10)), "offset"); got != 0 {
			t.Errorf("in an empty queue the first message from %d on is %d, want 0", ts, got)
		}
	}
}
