package client

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ledgermq/ledgermq/remoting"
)

// tells makes a broker answer questions with these bodies, by code; an empty one is a refusal with code 1.
func (b *fakeBroker) tells(answers map[int32]string) {
	b.setHook(func(c *remoting.Conn, req *remoting.Command) bool {
		body, have := answers[req.Code]
		switch {
		case !have && req.Code == remoting.GetConsumerConnectionList:
			c.ReplyError(req, remoting.ConsumerNotOnline, "nobody")
		case !have:
			return false
		case body == "":
			c.ReplyError(req, remoting.SystemError, "not now")
		default:
			resp := remoting.NewResponse(remoting.Success, "")
			resp.Body = []byte(body)
			c.Reply(req, resp)
		}
		return true
	})
}

const (
	configs  = `{"subscriptionGroupTable":{"cg":{"consumeEnable":true},"other":{"consumeEnable":true}}}`
	noStats  = `{"consumeStatsList":[]}`
	progress = `{"offsetTable":{{"topic":"orders","brokerName":"g1","queueId":0}:{"brokerOffset":5,"consumerOffset":2,"minOffset":0,"committed":true}}}`
)

func members(ids ...string) string {
	var list []string
	for _, id := range ids {
		list = append(list, fmt.Sprintf(`{"clientId":%q}`, id))
	}
	return `{"messageModel":"CLUSTERING","connectionSet":[` + strings.Join(list, ",") + `]}`
}

// A broker group that does not tell its members, or tells nothing, takes no consumer group from the list: the error names it, and the groups
// are unsure.
func TestConsumerGroupsOfSomeBrokerGroups(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	b1, b2 := startBroker(t, "g1", newFakeLog()), startBroker(t, "g2", newFakeLog())
	b1.register(ns, 0, 5, topic("orders", 1))
	b2.register(ns, 0, 5, topic("orders", 1))
	b1.tells(map[int32]string{
		remoting.GetAllSubscriptionGroupConfig: configs, remoting.GetBrokerConsumeStats: noStats, remoting.GetConsumerConnectionList: members("m2", "m1"),
	})
	c := newClient(t, []string{ns})
	for what, answers := range map[string]map[int32]string{
		"no members": {remoting.GetAllSubscriptionGroupConfig: `{"subscriptionGroupTable":{"there":{"consumeEnable":true}}}`, remoting.GetBrokerConsumeStats: noStats, remoting.GetConsumerConnectionList: ""},
		"no groups":  {remoting.GetAllSubscriptionGroupConfig: ""},
	} {
		b2.tells(answers)
		list, err := c.ConsumerGroups(within(t, patience))
		want := map[string]int{"no members": 3, "no groups": 2}[what]
		if err == nil || !strings.Contains(err.Error(), "group g2") || len(list) != want || len(list[0].Members) != 2 || !list[want-1].Unsure {
			t.Errorf("%s: %+v, %v", what, list, err)
		}
	}
	b2.tells(nil)
	if list, err := c.Members(within(t, patience), "cg"); err != nil || len(list) != 2 || list[0].ClientID != "m1" {
		t.Errorf("members, where one group has none: %+v, %v", list, err)
	}
	b2.tells(map[int32]string{remoting.GetConsumerConnectionList: ""})
	if list, err := c.Members(within(t, patience), "cg"); err == nil || !strings.Contains(err.Error(), "group g2") || len(list) != 2 {
		t.Errorf("members, where one group does not tell: %+v, %v", list, err)
	}
	b2.tells(map[int32]string{remoting.GetAllSubscriptionGroupConfig: configs, remoting.GetBrokerConsumeStats: noStats})
	if list, err := c.ConsumerGroups(within(t, patience)); err != nil || len(list) != 2 || list[0].Unsure {
		t.Errorf("all told: %+v, %v", list, err)
	}
}

// No more than the bound runs at a time, and each runs once.
func TestInParallelIsBounded(t *testing.T) {
	t.Parallel()
	var running, most, sum atomic.Int32
	inParallel(10*atOnce, func(i int) {
		n := running.Add(1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		for range 1000 {
			runtime.Gosched() // let begin who may
		}
		sum.Add(int32(i))
		running.Add(-1)
	})
	if n := int32(10 * atOnce); most.Load() != atOnce || sum.Load() != n*(n-1)/2 {
		t.Errorf("%d at a time, the sum is %d", most.Load(), sum.Load())
	}
}

// The members of many groups are asked at once.
func TestMembersAreAskedInParallel(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	b := startBroker(t, "g1", newFakeLog())
	b.register(ns, 0, 5, topic("orders", 1))
	var table []string
	for i := range 3 * atOnce {
		table = append(table, strconv.Quote("cg"+strconv.Itoa(i))+`:{"consumeEnable":true}`)
	}
	var waiting atomic.Int32
	full := make(chan struct{})
	b.setHook(func(conn *remoting.Conn, req *remoting.Command) bool {
		resp := remoting.NewResponse(remoting.Success, "")
		switch req.Code {
		case remoting.GetAllSubscriptionGroupConfig:
			resp.Body = []byte(`{"subscriptionGroupTable":{` + strings.Join(table, ",") + `}}`)
		case remoting.GetBrokerConsumeStats:
			resp.Body = []byte(noStats)
		case remoting.GetConsumerConnectionList:
			conn.Async(req, func(_ *remoting.Command, p *remoting.Pending) {
				if waiting.Add(1) == atOnce {
					close(full)
				}
				select {
				case <-full:
				case <-b.gone:
				}
				p.Answer(remoting.NewResponse(remoting.ConsumerNotOnline, "nobody"))
			})
			return true
		default:
			return false
		}
		conn.Reply(req, resp)
		return true
	})
	list, err := newClient(t, []string{ns}).ConsumerGroups(within(t, patience))
	if err != nil || len(list) != 3*atOnce {
		t.Errorf("%d groups, %d questions, %v", len(list), waiting.Load(), err)
	}
}

// One consumer group is asked for alone. A member counts that any replica knows, a replica that is away does not, and a master that does not
// tell is an error.
func TestOneConsumerGroup(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	log := newFakeLog()
	master, replica := startBroker(t, "g1", log), startBroker(t, "g1", log)
	master.register(ns, 0, 5, topic("orders", 1))
	replica.register(ns, 2, 5)
	c := newClient(t, []string{ns})
	answers := map[int32]string{remoting.GetSubscriptionGroupConfig: `{"groupName":"cg","consumeEnable":false}`, remoting.GetConsumeStats: progress}
	master.tells(answers)
	replica.tells(map[int32]string{remoting.GetConsumerConnectionList: members("m1")})
	g, ok, err := c.ConsumerGroup(within(t, patience), "cg")
	if err != nil || !ok || !g.Disabled || len(g.Members) != 1 || fmt.Sprint(g.Topics) != "[orders]" || g.Lag == nil || *g.Lag != 3 {
		t.Errorf("a member that the replica knows: %+v, %v, %v", g, ok, err)
	}
	if n := master.called(remoting.GetAllSubscriptionGroupConfig) + master.called(remoting.GetBrokerConsumeStats); n > 0 {
		t.Errorf("all consumer groups were asked for, %d times", n)
	}
	_ = replica.srv.Close() // the list of broker groups still names it
	if g, ok, err = c.ConsumerGroup(within(t, patience), "cg"); err != nil || !ok || len(g.Members) != 0 {
		t.Errorf("without the replica: %+v, %v, %v", g, ok, err)
	}
	master.setHook(func(conn *remoting.Conn, req *remoting.Command) bool {
		switch req.Code {
		case remoting.GetSubscriptionGroupConfig:
			conn.ReplyError(req, remoting.SubscriptionGroupNotExist, "none")
		case remoting.GetConsumeStats:
			resp := remoting.NewResponse(remoting.Success, "")
			resp.Body = []byte(`{"offsetTable":{}}`)
			conn.Reply(req, resp)
		case remoting.GetConsumerConnectionList:
			conn.ReplyError(req, remoting.ConsumerNotOnline, "nobody")
		default:
			return false
		}
		return true
	})
	if _, ok, err = c.ConsumerGroup(within(t, patience), "cg"); err != nil || ok {
		t.Errorf("none of this name: %v, %v", ok, err)
	}
	answers[remoting.GetConsumerConnectionList] = ""
	master.tells(answers)
	if _, _, err = c.ConsumerGroup(within(t, patience), "cg"); err == nil {
		t.Error("a master that does not tell its members is no error")
	}
}
