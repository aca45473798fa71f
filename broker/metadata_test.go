package broker_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/remoting"
)

// shape is what was asked for of a topic and of the consumer group with its number.
type shape struct {
	queues, perm int
	attribute    string
	retries      int
	consumes     bool
}

// shaped is shape number v of thing i: each number differs.
func shaped(i, v int) shape {
	return shape{queues: 1 + i%5 + v, perm: []int{6, 4, 2}[(i+v)%3], attribute: []string{"NORMAL", "FIFO", "UNSPECIFIED"}[v], retries: i%7 + v, consumes: (i+v)%2 == 0}
}

// ask sends a request to whoever leads, and returns the code; -1 when there was no answer.
func (c *cluster) ask(code int32, body []byte, fields ...string) int32 {
	for _, node := range []string{"n1", "n2", "n3"} {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		cl, err := remoting.Dial(ctx, c.port(node, "g1"), remoting.ClientOptions{})
		if err != nil {
			cancel()
			continue
		}
		resp, err := cl.Call(ctx, request(code, body, fields...))
		cl.Close()
		cancel()
		if err == nil {
			return resp.Code
		}
	}
	return -1
}

// Topics and groups with all that was said of them are in the log: through masters that are killed, also in the middle of a change, and
// nodes that come back, each has the last shape that was answered OK, or one whose answer never came, whole, on every replica.
func TestTopicsAndGroupsOutliveMasters(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	const workers, each = 4, 40
	var mu sync.Mutex
	topics, groups := map[string][]shape{}, map[string][]shape{} // the first one is certain, the others may be; none: it need not be there
	note := func(all map[string][]shape, name string, s shape, code int32) {
		mu.Lock()
		defer mu.Unlock()
		if code == remoting.Success {
			all[name] = []shape{s}
		} else {
			all[name] = append(all[name], s)
		}
	}
	certain := map[string]bool{}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	defer func() { close(stop); wg.Wait() }() // a test that gives up leaves nobody behind
	for k := range workers {
		wg.Go(func() {
			for n := range each {
				i := k*each + n
				name, group := fmt.Sprintf("T%d", i), fmt.Sprintf("G%d", i)
				for v := range 3 {
					select {
					case <-stop:
						return
					default:
					}
					s := shaped(i, v)
					q := strconv.Itoa(s.queues)
					code := c.ask(remoting.UpdateAndCreateTopic, nil, "topic", name, "defaultTopic", "TBW102", "readQueueNums", q, "writeQueueNums", q, "perm", strconv.Itoa(s.perm),
						"topicFilterType", "SINGLE_TAG", "order", "false", "attributes", "+message.type="+s.attribute)
					note(topics, name, s, code)
					other := c.ask(remoting.UpdateAndCreateSubscriptionGroup, fmt.Appendf(nil, `{"groupName":%q,"retryMaxTimes":%d,"consumeEnable":%v,"attributes":{"note":%q}}`, group, s.retries, s.consumes, s.attribute))
					note(groups, group, s, other)
					mu.Lock()
					certain[name], certain[group] = certain[name] || code == remoting.Success, certain[group] || other == remoting.Success
					mu.Unlock()
				}
			}
		})
	}
	made := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(groups)
	}
	for round := range 3 {
		eventually(t, 60*time.Second, func() error {
			if n := made(); n < (round+1)*workers*each/5 {
				return fmt.Errorf("%d groups were made", n)
			}
			return nil
		})
		old := c.master("g1")
		c.kill(old)
		c.masterOfTheRest("g1")
		c.start(old)
		eventually(t, 30*time.Second, func() error { return c.nodes[old].Ready() })
	}
	wg.Wait()
	sure := 0
	for _, is := range certain {
		if is {
			sure++
		}
	}
	if all := 2 * workers * each; sure < all/2 {
		t.Fatalf("%d of %d topics and groups were answered OK: what is certain shows little", sure, all)
	}
	check := func() {
		t.Helper()
		w := c.wire(c.master("g1"), "g1")
		haveTopics := decode[struct {
			TopicConfigTable map[string]struct {
				ReadQueueNums, WriteQueueNums, Perm int
				Attributes                          map[string]string
			}
		}](t, w.ok(remoting.GetAllTopicConfig, nil).Body).TopicConfigTable
		haveGroups := decode[struct {
			SubscriptionGroupTable map[string]struct {
				RetryMaxTimes int
				ConsumeEnable bool
				Attributes    map[string]string
			}
		}](t, w.ok(remoting.GetAllSubscriptionGroupConfig, nil, "maxGroupNum", "100000").Body).SubscriptionGroupTable
		for name, may := range topics {
			have, there := haveTopics[name]
			is := !there && !certain[name]
			for _, s := range may {
				is = is || there && have.ReadQueueNums == s.queues && have.WriteQueueNums == s.queues && have.Perm == s.perm && have.Attributes["message.type"] == s.attribute
			}
			if !is {
				t.Errorf("topic %s is %+v (%v), want one of %+v", name, have, there, may)
			}
		}
		for name, may := range groups {
			have, there := haveGroups[name]
			is := !there && !certain[name]
			for _, s := range may {
				is = is || there && have.RetryMaxTimes == s.retries && have.ConsumeEnable == s.consumes && have.Attributes["note"] == s.attribute
			}
			if !is {
				t.Errorf("group %s is %+v (%v), want one of %+v", name, have, there, may)
			}
		}
	}
	check()
	eventually(t, 20*time.Second, func() error {
		first := c.nodes["n1"].Replica("g1").StateHash()
		if c.nodes["n2"].Replica("g1").StateHash() != first || c.nodes["n3"].Replica("g1").StateHash() != first {
			return errors.New("the replicas differ")
		}
		return nil
	})
	c.kill(c.master("g1"))
	c.masterOfTheRest("g1")
	check()
}
