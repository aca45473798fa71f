package broker_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/remoting"
)

// timers are delayed messages that a test has sent.
type timers struct {
	t    *testing.T
	c    *cluster
	due  map[string]int64
	recs map[string]string // recall handles
	must map[string]bool   // recalled

	unknown int            // calls of which nobody knows what became, so that they were made again
	atMost  map[string]int // how often a message may have been stored, of those that may have been more than once
}

func (c *cluster) timers() *timers {
	return &timers{t: c.t, c: c, due: map[string]int64{}, recs: map[string]string{}, must: map[string]bool{}, atMost: map[string]int{}}
}

// call asks the master until there is an answer that is not a refusal for want of one.
func (s *timers) call(code int32, body []byte, fields ...string) *remoting.Command {
	s.t.Helper()
	var resp *remoting.Command
	eventually(s.t, 30*time.Second, func() error {
		w := s.c.wire(s.c.master("g1"), "g1")
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		var err error
		if resp, err = w.c.Call(ctx, request(code, body, fields...)); err != nil {
			s.unknown++
			return err
		}
		if resp.Code == remoting.SystemError {
			s.unknown++
		}
		if resp.Code == remoting.ServiceNotAvailable || resp.Code == remoting.SystemError {
			return fmt.Errorf("code %d %q", resp.Code, resp.Remark)
		}
		return nil
	})
	return resp
}

func (s *timers) send(key string, due time.Time, body []byte) {
	s.t.Helper()
	before := s.unknown
	resp := s.call(remoting.SendMessage, body, sendFields("D", "properties", props("UNIQ_KEY", key, "KEYS", key, "TIMER_DELIVER_MS", strconv.FormatInt(due.UnixMilli(), 10)))...)
	if resp.Code != remoting.Success {
		s.t.Fatalf("send %s: code %d %q", key, resp.Code, resp.Remark)
	}
	if n := s.unknown - before; n > 0 {
		s.atMost[key] = 1 + n
	}
	s.due[key] = due.UnixMilli()
	s.recs[key], _ = resp.Get("recallHandle")
}

func (s *timers) recall(key string) int32 {
	s.t.Helper()
	resp := s.call(remoting.RecallMessage, nil, "producerGroup", "pg", "topic", "D", "recallHandle", s.recs[key])
	if resp.Code == remoting.Success {
		if id, _ := resp.Get("msgId"); id != key {
			s.t.Errorf("the recall of %s answers msgId %q", key, id)
		}
		s.must[key] = true
	}
	return resp.Code
}

// judge waits until all are delivered that must be, and tells what is wrong with them.
func (s *timers) judge() {
	s.t.Helper()
	want := len(s.due) - len(s.must)
	var w *wire
	eventually(s.t, 60*time.Second, func() error {
		w = s.c.wire(s.c.master("g1"), "g1")
		if n := len(w.delivered("D", 0)); n < want {
			return fmt.Errorf("%d of %d delivered", n, want)
		}
		return nil
	})
	times := map[string]int{}
	for _, m := range w.delivered("D", 0) {
		key := strings.TrimRight(string(m.Body), ".")
		times[key]++
		if m.StoreTime < s.due[key] {
			s.t.Errorf("%s is due at %d and was delivered at %d", key, s.due[key], m.StoreTime)
		}
	}
	for key := range s.due {
		if n := s.atMost[key]; n > 0 && times[key] > 0 && times[key] <= n {
			continue // a recall takes back the one whose handle was answered
		}
		if want := 1; times[key] != want && !s.must[key] || s.must[key] && times[key] != 0 {
			s.t.Errorf("%s was delivered %d times, recalled %v", key, times[key], s.must[key])
		}
	}
}

// Timers belong to the group: masters that are killed or hand over while they fire lose none and fire none twice, a deleted index gives
// the same answers, and a recall is for good.
func TestTimersOutliveMasters(t *testing.T) {
	t.Parallel()
	c := newTunedCluster(t, func(o *broker.NodeOptions) { o.CheckpointBytes = 1 << 16 }, "g1")
	c.wire(c.master("g1"), "g1").topic("D", 1)
	s := c.timers()
	began := time.Now()
	r := rand.New(rand.NewPCG(1, 1))
	const n = 150
	for i := range n {
		key := fmt.Sprintf("K%d", i)
		body := append([]byte(key), make([]byte, 2000)...)
		for j := len(key); j < len(body); j++ {
			body[j] = '.'
		}
		s.send(key, began.Add(4*time.Second+time.Duration(r.IntN(5000))*time.Millisecond), body)
	}
	s.send("far", began.Add(48*time.Hour), []byte("far"))
	for i := range 20 {
		key := fmt.Sprintf("K%d", i)
		if time.Now().UnixMilli() < s.due[key]-1000 {
			if code := s.recall(key); code != remoting.Success {
				t.Errorf("the recall of %s long before its time: code %d", key, code)
			}
		}
	}
	if code := s.recall("far"); code != remoting.Success {
		t.Errorf("the recall of a message of in two days: code %d", code)
	}
	if code := s.recall("far"); code != remoting.Success {
		t.Errorf("the same recall once more: code %d", code)
	}
	at := func(d time.Duration) { eventually(t, 20*time.Second, func() error { return until(began.Add(d)) }) }
	at(5 * time.Second)
	first := c.master("g1")
	dir := c.groupDir(first)
	c.kill(first)
	removeFiles(t, filepath.Join(dir, timersFolder, "*"))
	c.start(first)
	at(6500 * time.Millisecond)
	c.nodes[c.master("g1")].Drain(t.Context(), 100*time.Millisecond)
	s.judge()
	for i := range n {
		key := fmt.Sprintf("K%d", i)
		if s.recs[key] == "" {
			continue // it was due when it was sent, on a slow machine, and there was nothing to take back
		}
		if code := s.recall(key); !s.must[key] && code != remoting.IllegalOperation {
			t.Errorf("the recall of %s after it was sent: code %d", key, code)
		}
	}
}

// The group is away when its timers become due, and for a while: they wait for it, each comes once, and none early.
func TestTimersOutliveAnOutage(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	c.wire(c.master("g1"), "g1").topic("D", 1)
	s := c.timers()
	due := time.Now().Add(4 * time.Second)
	for i := range 60 {
		key := fmt.Sprintf("K%d", i)
		s.send(key, due.Add(time.Duration(i)*20*time.Millisecond), []byte(key))
	}
	for _, id := range []string{"n1", "n2"} { // the third one alone delivers nothing
		c.kill(id)
	}
	eventually(t, 20*time.Second, func() error { return until(due.Add(1500 * time.Millisecond)) })
	c.start("n1")
	s.judge()
	c.kill("n3")
	c.start("n2")
	s.send("after", time.Now().Add(300*time.Millisecond), []byte("after"))
	s.judge()
}

const timersFolder = "timers"

func until(at time.Time) error {
	if d := time.Until(at); d > 0 {
		return fmt.Errorf("%v too early", d)
	}
	return nil
}

// Operators clean the log (329) while segments go, timers are taken along, the index is found broken and rebuilt, and timers fire: each
// comes once, none early, and who asks is answered OK or told to try later.
func TestCleaningBesideTimers(t *testing.T) {
	t.Parallel()
	c := newTunedCluster(t, func(o *broker.NodeOptions) { o.RetentionBytes, o.CheckpointBytes = 1<<20, 2<<20 }, "g1")
	node := c.master("g1")
	w := c.wire(node, "g1")
	w.topic("T", 4)
	w.topic("D", 1)
	s := c.timers()
	began := time.Now()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	halt := sync.OnceFunc(func() { close(stop); wg.Wait() })
	defer halt() // of a test that gives up
	var cleaned, busy atomic.Int64
	during := func(every time.Duration, f func(*wire) error) {
		x := c.wire(node, "g1")
		tick := time.NewTicker(every)
		wg.Go(func() {
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
					if err := f(x); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for range 2 {
		during(5*time.Millisecond, func(x *wire) error {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			resp, err := x.c.Call(ctx, request(remoting.DeleteExpiredCommitLog, nil))
			switch {
			case err != nil:
				return err
			case resp.Code == remoting.Success && resp.Remark == "":
				cleaned.Add(1)
			case resp.Code == remoting.Success: // another one is at it
			case resp.Code == remoting.SystemBusy && strings.Contains(resp.Remark, "try later"), resp.Code == remoting.ServiceNotAvailable:
				busy.Add(1)
			default:
				return fmt.Errorf("329 got %d %q", resp.Code, resp.Remark)
			}
			return nil
		})
	}
	during(1500*time.Millisecond, func(*wire) error { // a rebuild begins a second after another one at the earliest
		c.nodes[node].Replica("g1").BreakTimers()
		return nil
	})
	during(100*time.Millisecond, func(x *wire) error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_, err := x.c.Call(ctx, request(remoting.SendMessage, make([]byte, 1<<20), sendFields("T")...))
		return err
	})
	// What was delivered goes with its segment soon: it is read as it comes.
	times, next := map[string][]int64{}, int64(0)
	var seen atomic.Int64
	during(20*time.Millisecond, func(x *wire) error {
		resp := x.call(remoting.PullMessage, nil, pullFields("cg", "D", next)...)
		if resp.Code == remoting.PullOffsetMoved {
			return fmt.Errorf("the message at %d went before it was read", next)
		}
		if resp.Code == remoting.Success {
			for _, m := range records(t, resp.Body) {
				times[string(m.Body)] = append(times[string(m.Body)], m.StoreTime)
				next = int64(m.QueueOffset) + 1
			}
			seen.Store(int64(len(times)))
		}
		return nil
	})
	r := rand.New(rand.NewPCG(3, 3))
	for i := range 200 {
		key := fmt.Sprintf("K%d", i)
		s.send(key, began.Add(2*time.Second+time.Duration(r.IntN(8000))*time.Millisecond), []byte(key))
	}
	folder := filepath.Join(c.dir, node, "groups", "*", "log", "*.log")
	eventually(t, 60*time.Second, func() error {
		logs, err := filepath.Glob(folder)
		if err != nil || len(logs) == 0 || filepath.Base(logs[0]) < "00000000000050331648.log" {
			return fmt.Errorf("the log is %v (%v)", logs, err)
		}
		return until(began.Add(10 * time.Second))
	})
	eventually(t, 60*time.Second, func() error {
		if n := seen.Load(); n < int64(len(s.due)) {
			return fmt.Errorf("%d of %d delivered", n, len(s.due))
		}
		return nil
	})
	halt()
	for key, due := range s.due {
		if n := len(times[key]); n != 1 && n > s.atMost[key] || n > 0 && times[key][0] < due {
			t.Errorf("%s is due at %d and was delivered at %v", key, due, times[key])
		}
	}
	if cleaned.Load() == 0 {
		t.Errorf("329 was answered OK %d times, and busy %d times", cleaned.Load(), busy.Load())
	}
	t.Logf("329 was answered OK %d times, and busy %d times", cleaned.Load(), busy.Load())
}

// The front of the log goes, and takes no pending timer with it, nor does a recall miss one that was taken along; a topic that is gone
// holds nobody up.
func TestTimersOutliveTheFront(t *testing.T) {
	t.Parallel()
	c := newTunedCluster(t, func(o *broker.NodeOptions) { o.RetentionBytes, o.CheckpointBytes = 1<<20, 18<<20 }, "g1")
	first := c.master("g1")
	w := c.wire(first, "g1")
	w.topic("T", 4)
	w.topic("D", 1)
	w.topic("Gone", 1)
	s := c.timers()
	began := time.Now()
	const wait = 25 * time.Second
	for i := range 30 {
		key := fmt.Sprintf("K%d", i)
		s.send(key, began.Add(wait), []byte(key))
	}
	s.send("far", began.Add(48*time.Hour), []byte("far"))
	w.ok(remoting.SendMessage, []byte("nobody"), sendFields("Gone", "properties", props("TIMER_DELIVER_MS", strconv.FormatInt(began.Add(wait).UnixMilli()-1, 10)))...)
	w.ok(remoting.DeleteTopicInBroker, nil, "topic", "Gone")
	s.recall("K0")
	w.fill(0, 60, 1<<20)
	eventually(t, 60*time.Second, func() error {
		logs, err := filepath.Glob(filepath.Join(c.dir, c.master("g1"), "groups", "*", "log", "*.log"))
		if err != nil || len(logs) == 0 || filepath.Base(logs[0]) == "00000000000000000000.log" {
			return fmt.Errorf("the log is %v (%v)", logs, err)
		}
		return nil
	})
	if code := s.recall("far"); code != remoting.Success {
		t.Errorf("the recall of a message that was taken along: code %d", code)
	}
	s.judge()
	// A replica that comes with an empty folder of timers has the log from its new front on.
	node := c.slave("g1")
	dir := c.groupDir(node)
	c.kill(node)
	removeFiles(t, filepath.Join(dir, timersFolder, "*"))
	c.start(node)
	eventually(t, 20*time.Second, func() error { return c.nodes[node].Ready() })
	if list, err := c.client().Timers(t.Context(), nil); err != nil || len(list) != 1 || list[0].Group != "g1" || list[0].Pending != 0 || list[0].Next != 0 || list[0].Index != "whole" ||
		list[0].Dropped != 1 && c.master("g1") == first { // who dropped it counts it

		t.Errorf("the figures of the timers are %+v, %v", list, err)
	}
	s.send("last", time.Now().Add(300*time.Millisecond), []byte("last"))
	s.judge()
}
