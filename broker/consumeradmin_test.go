package broker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgermq/ledgermq/internal/laxjson"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// member is a wire whose client answers what the broker asks it.
func (c *cluster) member(node, group string, answer func(*remoting.Command) *remoting.Command) *wire {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	cl, err := remoting.Dial(ctx, c.port(node, group), remoting.ClientOptions{Handler: func(conn *remoting.Conn, req *remoting.Command) {
		if resp := answer(req.Clone()); resp != nil {
			conn.Reply(req, resp)
		}
	}})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { cl.Close() })
	return &wire{c.t, cl}
}

func (w *wire) join(client, group, model string, subs ...string) {
	w.t.Helper()
	var list []map[string]any
	for i := 0; i+1 < len(subs); i += 2 {
		list = append(list, map[string]any{"topic": subs[i], "subString": subs[i+1], "subVersion": 7, "expressionType": "TAG"})
	}
	body, err := json.Marshal(map[string]any{"clientID": client, "producerDataSet": []any{map[string]string{"groupName": "pg"}}, "consumerDataSet": []any{map[string]any{
		"groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": model, "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": list}}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.ok(remoting.HeartBeat, body)
}

// decode reads a body in RocketMQ's dialect.
func decode[T any](t *testing.T, body []byte) (v T) {
	t.Helper()
	text, err := laxjson.Standard(body)
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return v
}

func queueName(topic string, queue int) string {
	return fmt.Sprintf(`{"topic":%q,"brokerName":"g1","queueId":%d}`, topic, queue)
}

func (w *wire) sends(topic string, n int) {
	w.t.Helper()
	for i := range n {
		w.ok(remoting.SendMessage, fmt.Appendf(nil, "%d", i), sendFields(topic)...)
	}
}

func (w *wire) commit(group, topic string, offset int64) *remoting.Command {
	w.t.Helper()
	return w.ok(remoting.UpdateConsumerOffset, nil, "consumerGroup", group, "topic", topic, "queueId", "0", "commitOffset", strconv.FormatInt(offset, 10))
}

func (w *wire) committed(group, topic string) int64 {
	w.t.Helper()
	return number(w.t, w.ok(remoting.QueryConsumerOffset, nil, "consumerGroup", group, "topic", topic, "queueId", "0"), "offset")
}

func (w *wire) resetTo(group, topic string, offset int64) map[string]int64 {
	w.t.Helper()
	resp := w.ok(remoting.InvokeBrokerToResetOffset, nil, "topic", topic, "group", group, "timestamp", "-1", "isForce", "true", "queueId", "0", "offset", strconv.FormatInt(offset, 10))
	return decode[struct{ OffsetTable map[string]int64 }](w.t, resp.Body).OffsetTable
}

// Who is connected, and how far a group is, in RocketMQ's words.
func TestConsumerAdmin(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	master := c.master("g1")
	w := c.wire(master, "g1")
	w.topic("T", 2)
	w.topic("U", 1)
	if resp := w.call(remoting.GetConsumerConnectionList, nil, "consumerGroup", "cg"); resp.Code != remoting.ConsumerNotOnline {
		t.Errorf("a group without members: code %d %q", resp.Code, resp.Remark)
	}
	if resp := w.call(remoting.GetProducerConnectionList, nil, "producerGroup", "pg"); resp.Code != remoting.SystemError {
		t.Errorf("a producer group without members: code %d %q", resp.Code, resp.Remark)
	}
	w.sends("T", 5)
	w.join("c1", "cg", "CLUSTERING", "T", "a || b", "U", "*")
	type connection struct {
		ClientID, ClientAddr, Language string
		Version                        int32
	}
	conns := decode[struct {
		ConnectionSet                               []connection
		ConsumeType, MessageModel, ConsumeFromWhere string
		SubscriptionTable                           map[string]struct {
			SubString string
			TagsSet   []string
			CodeSet   []int32
		}
	}](t, w.ok(remoting.GetConsumerConnectionList, nil, "consumerGroup", "cg").Body)
	if len(conns.ConnectionSet) != 1 || conns.ConnectionSet[0].ClientID != "c1" || conns.ConnectionSet[0].Language != "GO" || conns.ConnectionSet[0].Version != remoting.Version ||
		!strings.HasPrefix(conns.ConnectionSet[0].ClientAddr, "127.0.0.1:") || conns.ConsumeType != "CONSUME_PASSIVELY" || conns.MessageModel != "CLUSTERING" || conns.ConsumeFromWhere != "CONSUME_FROM_FIRST_OFFSET" {
		t.Errorf("connections %+v", conns)
	}
	if s := conns.SubscriptionTable["T"]; len(conns.SubscriptionTable) != 2 || s.SubString != "a || b" || len(s.TagsSet) != 2 || s.CodeSet[0] != 97 {
		t.Errorf("subscriptions %+v", conns.SubscriptionTable)
	}
	if p := decode[struct{ ConnectionSet []connection }](t, w.ok(remoting.GetProducerConnectionList, nil, "producerGroup", "pg").Body); len(p.ConnectionSet) != 1 || p.ConnectionSet[0].ClientID != "c1" {
		t.Errorf("producers %+v", p)
	}
	w.commit("cg", "T", 3)
	type stats struct {
		OffsetTable map[string]struct{ BrokerOffset, ConsumerOffset, PullOffset, LastTimestamp int64 }
	}
	for _, node := range []string{master, c.slave("g1")} {
		got := decode[stats](t, c.wire(node, "g1").ok(remoting.GetConsumeStats, nil, "consumerGroup", "cg", "topic", "T").Body).OffsetTable
		q0, q1 := got[queueName("T", 0)], got[queueName("T", 1)]
		if len(got) != 2 || q0.BrokerOffset != 5 || q0.ConsumerOffset != 3 || q0.LastTimestamp == 0 || q1.BrokerOffset != 0 || q1.ConsumerOffset != 0 || q1.LastTimestamp != 0 {
			t.Errorf("progress by %s: %+v", node, got)
		}
	}
	for _, fields := range [][]string{{"topic", ""}, {"topicList", "T;Nope"}} {
		if got := decode[stats](t, w.ok(remoting.GetConsumeStats, nil, append([]string{"consumerGroup", "cg"}, fields...)...).Body).OffsetTable; len(got) != 2 {
			t.Errorf("progress of %v: %+v", fields, got)
		}
	}
	if got := decode[stats](t, w.ok(remoting.GetConsumeStats, nil, "consumerGroup", "cg", "topic", "g1").Body).OffsetTable; len(got) != 0 {
		t.Errorf("progress in a topic that nobody subscribes to: %+v", got)
	}
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"other","retryMaxTimes":3}`))
	type groups struct {
		SubscriptionGroupTable map[string]struct{ RetryMaxTimes int32 }
		DataVersion            json.RawMessage
	}
	resp := w.ok(remoting.GetAllSubscriptionGroupConfig, nil)
	all := decode[groups](t, resp.Body)
	if len(all.SubscriptionGroupTable) != 2 || all.SubscriptionGroupTable["other"].RetryMaxTimes != 3 || number(t, resp, "totalGroupNum") != 2 {
		t.Errorf("groups %s", resp.Body)
	}
	page := decode[groups](t, w.ok(remoting.GetAllSubscriptionGroupConfig, nil, "groupSeq", "1", "maxGroupNum", "1", "dataVersion", string(all.DataVersion)).Body)
	if _, other := page.SubscriptionGroupTable["other"]; len(page.SubscriptionGroupTable) != 1 || !other {
		t.Errorf("the second page is %+v", page.SubscriptionGroupTable)
	}
}

// A reset of a running group: its members are told at once, what they commit of before does not count, and the group goes on exactly at
// the new place. The same when a failover comes in between.
func TestResetOfARunningGroup(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	master := c.master("g1")
	w := c.wire(master, "g1")
	w.topic("T", 1)
	w.sends("T", 5)
	w.join("c1", "cg", "CLUSTERING", "T", "*")
	w.commit("cg", "T", 4)
	held := make(chan *remoting.Command, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		resp, err := w.c.Call(ctx, request(remoting.PullMessage, nil, pullFields("cg", "T", 5, "sysFlag", "6", "suspendTimeoutMillis", "60000")...))
		if err != nil {
			resp = remoting.NewResponse(-1, err.Error())
		}
		held <- resp
	}()
	eventually(t, 10*time.Second, func() error {
		if c.nodes[master].Replica("g1").Held() == 0 {
			return fmt.Errorf("no pull is held")
		}
		return nil
	})
	if got := w.resetTo("cg", "T", 1); got[queueName("T", 0)] != 1 {
		t.Fatalf("the reset went to %v", got)
	}
	if resp := <-held; resp.Code != remoting.PullRetryImmediately || number(t, resp, "nextBeginOffset") != 5 {
		t.Errorf("the held pull got %d %q", resp.Code, resp.Remark)
	}
	if resp := w.commit("cg", "T", 5); resp.Remark == "" {
		t.Error("a commit during a reset does not say that it is left out")
	}
	pull := func(w *wire, offset int64, want int32) *remoting.Command {
		t.Helper()
		resp := w.call(remoting.PullMessage, nil, pullFields("cg", "T", offset, "sysFlag", "5", "commitOffset", "5")...)
		if resp.Code != want {
			t.Fatalf("a pull at %d got %d %q, want %d", offset, resp.Code, resp.Remark, want)
		}
		return resp
	}
	if next := number(t, pull(w, 5, remoting.PullOffsetMoved), "nextBeginOffset"); next != 1 {
		t.Fatalf("the member is sent to %d, want 1", next)
	}
	if got := w.committed("cg", "T"); got != 1 {
		t.Fatalf("the group is at %d, want 1: a commit of before the reset counted", got)
	}
	// Another master knows of the reset, but not who was told.
	c.kill(master)
	w = c.wire(c.masterOfTheRest("g1"), "g1")
	w.join("c1", "cg", "CLUSTERING", "T", "*")
	w.commit("cg", "T", 5)
	if got := w.committed("cg", "T"); got != 1 {
		t.Fatalf("after the failover the group is at %d, want 1", got)
	}
	resp := pull(w, 1, remoting.Success) // it has asked where to go on after it came: it need not be told
	if m := records(t, resp.Body); string(m[0].Body) != "1" {
		t.Fatalf("the group goes on with %q", m[0].Body)
	}
	if got := w.committed("cg", "T"); got != 1 {
		t.Fatalf("the commit that came with the pull at the new place counted: %d", got)
	}
	w.commit("cg", "T", 3)
	if got := w.committed("cg", "T"); got != 3 {
		t.Fatalf("after the reset was taken over, a commit of 3 gives %d", got)
	}
	// To the end, where the member pulls anyway: what it has fetched below must not be committed any more.
	w.resetTo("cg", "T", 5)
	w.commit("cg", "T", 4)
	if next := number(t, pull(w, 5, remoting.PullOffsetMoved), "nextBeginOffset"); next != 5 {
		t.Fatalf("the member is sent to %d, want 5", next)
	}
	// A slave does not know who was told: it passes the pull on.
	slave := c.slave("g1")
	s := c.wire(slave, "g1")
	eventually(t, 10*time.Second, func() error {
		resp := s.call(remoting.PullMessage, nil, pullFields("cg", "T", 4)...)
		if resp.Code != remoting.PullOffsetMoved || number(t, resp, "nextBeginOffset") != 5 {
			return fmt.Errorf("a pull through a slave got %d %q", resp.Code, resp.Remark)
		}
		return nil
	})
	pull(w, 5, remoting.PullNotFound)
	w.sends("T", 1)
	pull(w, 5, remoting.Success)
}

// By time, beyond the ends, of groups and queues that are not there; and a pull of another group is not concerned.
func TestResetPlaces(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 2)
	w.sends("T", 3)
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg"}`))
	reset := func(more ...string) *remoting.Command {
		return w.call(remoting.InvokeBrokerToResetOffset, nil, append([]string{"topic", "T", "group", "cg", "timestamp", "0", "isForce", "true"}, more...)...)
	}
	table := func(resp *remoting.Command) map[string]int64 {
		t.Helper()
		if resp.Code != remoting.Success {
			t.Fatalf("code %d %q", resp.Code, resp.Remark)
		}
		return decode[struct{ OffsetTable map[string]int64 }](t, resp.Body).OffsetTable
	}
	if got := table(reset("timestamp", "-1")); len(got) != 2 || got[queueName("T", 0)] != 3 || got[queueName("T", 1)] != 0 {
		t.Errorf("to the end: %v", got)
	}
	if got := table(reset("timestamp", "1")); len(got) != 2 || got[queueName("T", 0)] != 0 {
		t.Errorf("to the start: %v", got)
	}
	if got := table(reset("timestamp", "1", "queueId", "0")); len(got) != 1 {
		t.Errorf("one queue by time: %v", got)
	}
	if got := table(reset("queueId", "0", "offset", "3")); got[queueName("T", 0)] != 3 {
		t.Errorf("to the end by its offset: %v", got)
	}
	for what, tt := range map[string]struct {
		fields []string
		want   int32
	}{
		"beyond the end":     {[]string{"queueId", "0", "offset", "4"}, remoting.SystemError},
		"a queue that isn't": {[]string{"queueId", "2", "offset", "0"}, remoting.InvalidParameter},
		"an offset for all":  {[]string{"offset", "1"}, remoting.InvalidParameter},
		"below zero":         {[]string{"queueId", "0", "offset", "-2"}, remoting.InvalidParameter},
		"no number":          {[]string{"queueId", "x"}, remoting.SystemError},
		"no time":            {[]string{"timestamp", "soon"}, remoting.SystemError},
		"no yes or no":       {[]string{"isForce", "perhaps"}, remoting.SystemError},
		"an unknown topic":   {[]string{"topic", "Nope"}, remoting.TopicNotExist},
		"an unknown group":   {[]string{"group", "nobody"}, remoting.SubscriptionGroupNotExist},
		"a bad name":         {[]string{"group", "c g"}, remoting.InvalidParameter},
		"overflow":           {[]string{"queueId", "0", "offset", "9223372036854775808"}, remoting.SystemError},
	} {
		if resp := reset(tt.fields...); resp.Code != tt.want || resp.Remark == "" {
			t.Errorf("%s: code %d %q, want %d", what, resp.Code, resp.Remark, tt.want)
		}
	}
	if got := w.committed("cg", "T"); got != 3 {
		t.Errorf("a refused reset moved the group to %d", got)
	}
	if resp := w.call(remoting.PullMessage, nil, pullFields("another", "T", 0)...); resp.Code != remoting.Success {
		t.Errorf("another group's pull got %d", resp.Code)
	}
	// A clone: the other group goes on where this one is.
	w.ok(remoting.CloneGroupOffset, nil, "srcGroup", "cg", "destGroup", "clone", "topic", "T")
	if got := w.committed("clone", "T"); got != 3 {
		t.Errorf("the clone is at %d, want 3", got)
	}
	for what, fields := range map[string][]string{
		"to itself":           {"srcGroup", "cg", "destGroup", "cg"},
		"of nothing":          {"srcGroup", "nobody", "destGroup", "x"},
		"without a source":    {"destGroup", "x"},
		"of an unknown topic": {"srcGroup", "cg", "destGroup", "x", "topic", "Nope"},
		"to a bad name":       {"srcGroup", "cg", "destGroup", "x y"},
	} {
		if resp := w.call(remoting.CloneGroupOffset, nil, fields...); resp.Code == remoting.Success || resp.Remark == "" {
			t.Errorf("a clone %s: code %d %q", what, resp.Code, resp.Remark)
		}
	}
}

// Members of a broadcasting group have their progress themselves: each is told of a reset, and none is sent back by a pull.
func TestResetOfABroadcastingGroup(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	master := c.master("g1")
	w := c.wire(master, "g1")
	w.topic("T", 1)
	w.sends("T", 3)
	told := make(chan *remoting.Command, 8)
	for i := range 2 {
		m := c.member(master, "g1", func(req *remoting.Command) *remoting.Command { told <- req; return nil })
		m.join(fmt.Sprintf("c%d", i), "bg", "BROADCASTING", "T", "*")
	}
	w.resetTo("bg", "T", 2)
	for range 2 {
		req := <-told
		table := decode[struct{ OffsetTable map[string]int64 }](t, req.Body).OffsetTable
		if req.Code != remoting.ResetConsumerClientOffset || req.GetOr("group", "") != "bg" || req.GetOr("topic", "") != "T" || table[queueName("T", 0)] != 2 {
			t.Errorf("a member was told %d %v %s", req.Code, table, req.Body)
		}
	}
	if resp := w.call(remoting.PullMessage, nil, pullFields("bg", "T", 0)...); resp.Code != remoting.Success {
		t.Errorf("a pull of the broadcasting group got %d %q", resp.Code, resp.Remark)
	}
}

// What only a member knows is asked of it, and comes back as it is.
func TestRelayToMembers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	master := c.master("g1")
	w := c.wire(master, "g1")
	w.topic("T", 1)
	sent := w.ok(remoting.SendMessage, []byte("hello"), sendFields("T", "properties", "UNIQ_KEY\x01ID1\x02")...)
	m := c.member(master, "g1", func(req *remoting.Command) *remoting.Command {
		resp := remoting.NewResponse(remoting.Success, "")
		switch req.Code {
		case remoting.GetConsumerRunningInfo:
			resp.Body = []byte(`{"mqTable":{{"brokerName":"g1","queueId":0,"topic":"T"}:{}},"jstack":"` + req.GetOr("jstackEnable", "") + `"}`)
		case remoting.ConsumeMessageDirectly:
			rec, _, err := message.Decode(req.Body)
			resp.Body = fmt.Appendf(nil, "%s of %s, %v", rec.Body, req.GetOr("brokerName", ""), err)
		case remoting.GetConsumerStatusFromClient:
			resp.Body = []byte(`{"messageQueueTable":{{"brokerName":"g1","queueId":0,"topic":"T"}:17}}`)
		default:
			return nil
		}
		return resp
	})
	m.join("c1", "cg", "CLUSTERING", "T", "*")
	info := []string{"consumerGroup", "cg", "clientId", "c1", "jstackEnable", "true"}
	if got := string(w.ok(remoting.GetConsumerRunningInfo, nil, info...).Body); got != `{"mqTable":{{"brokerName":"g1","queueId":0,"topic":"T"}:{}},"jstack":"true"}` {
		t.Errorf("running info %s", got)
	}
	// The slave has no connection of this member: the master has.
	if got := string(c.wire(c.slave("g1"), "g1").ok(remoting.GetConsumerRunningInfo, nil, info...).Body); !strings.Contains(got, "mqTable") {
		t.Errorf("running info through a slave %s", got)
	}
	msgID := sent.GetOr("msgId", "")
	if got := string(w.ok(remoting.ConsumeMessageDirectly, nil, "consumerGroup", "cg", "clientId", "c1", "msgId", msgID).Body); got != "hello of g1, <nil>" {
		t.Errorf("consumed %q", got)
	}
	status := w.ok(remoting.InvokeBrokerToGetConsumerStatus, nil, "topic", "T", "group", "cg")
	if got := decode[struct{ ConsumerTable map[string]map[string]int64 }](t, status.Body).ConsumerTable; got["c1"][queueName("T", 0)] != 17 {
		t.Errorf("status %s", status.Body)
	}
	for what, tt := range map[string]struct {
		code   int32
		fields []string
	}{
		"info of nobody":            {remoting.GetConsumerRunningInfo, []string{"consumerGroup", "cg", "clientId", "c2"}},
		"info without a client":     {remoting.GetConsumerRunningInfo, []string{"consumerGroup", "cg"}},
		"consuming without an id":   {remoting.ConsumeMessageDirectly, []string{"consumerGroup", "cg", "clientId", "c1"}},
		"consuming a strange id":    {remoting.ConsumeMessageDirectly, []string{"consumerGroup", "cg", "clientId", "c1", "msgId", "zz"}},
		"consuming what is not":     {remoting.ConsumeMessageDirectly, []string{"consumerGroup", "cg", "clientId", "c1", "msgId", "7F0000010000277B0000000000FFFFFF"}},
		"status of no group":        {remoting.InvokeBrokerToGetConsumerStatus, []string{"topic", "T", "group", "nobody"}},
		"status of another client":  {remoting.InvokeBrokerToGetConsumerStatus, []string{"topic", "T", "group", "cg", "clientAddr", "c9"}},
		"status without a topic":    {remoting.InvokeBrokerToGetConsumerStatus, []string{"group", "cg"}},
		"progress without a group":  {remoting.GetConsumeStats, nil},
		"progress of a bad name":    {remoting.GetConsumeStats, []string{"consumerGroup", "c g"}},
		"connections without group": {remoting.GetConsumerConnectionList, nil},
		"producers without group":   {remoting.GetProducerConnectionList, nil},
		"a negative page":           {remoting.GetAllSubscriptionGroupConfig, []string{"groupSeq", "-1"}},
		"a page that is no number":  {remoting.GetAllSubscriptionGroupConfig, []string{"maxGroupNum", "many"}},
	} {
		if resp := w.call(tt.code, nil, tt.fields...); resp.Code == remoting.Success || resp.Remark == "" || strings.Contains(resp.Remark, "\n") {
			t.Errorf("%s: code %d %q", what, resp.Code, resp.Remark)
		}
	}
}

// A member never passes over what another member of its group wants: the pull is refused there, and goes on when they agree, or in the
// hands of a member that wants it. "Aa" and "BB" have the same hash.
func TestMembersWithDifferentTags(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	master := c.master("g1")
	w := c.wire(master, "g1")
	w.topic("T", 1)
	for i, tag := range []string{"Aa", "other", "Aa", "BB", "Aa"} {
		w.ok(remoting.SendMessage, fmt.Appendf(nil, "%d", i), sendFields("T", "properties", "TAGS\x01"+tag+"\x02")...)
	}
	a, b := c.wire(master, "g1"), c.wire(master, "g1")
	a.join("a", "cg", "CLUSTERING", "T", "Aa")
	b.join("b", "cg", "CLUSTERING", "T", "Aa || BB")
	pull := func(w *wire, offset int64) *remoting.Command {
		return w.call(remoting.PullMessage, nil, pullFields("cg", "T", offset, "sysFlag", "0")...)
	}
	if resp := pull(a, 0); resp.Code != remoting.Success || len(records(t, resp.Body)) != 2 || number(t, resp, "nextBeginOffset") != 3 {
		t.Fatalf("the first messages: code %d %q, next %d", resp.Code, resp.Remark, number(t, resp, "nextBeginOffset"))
	}
	if resp := pull(a, 1); resp.Code != remoting.Success || number(t, resp, "nextBeginOffset") != 3 { // nobody wants the one at 1
		t.Fatalf("from 1: code %d %q", resp.Code, resp.Remark)
	}
	if resp := pull(a, 3); resp.Code != remoting.SystemError || !strings.Contains(resp.Remark, "consumer group cg, whose members subscribe to different tags") {
		t.Fatalf("at the other member's message: code %d %q", resp.Code, resp.Remark)
	}
	if resp := pull(b, 3); resp.Code != remoting.Success || len(records(t, resp.Body)) != 2 {
		t.Fatalf("the member that wants it: code %d %q", resp.Code, resp.Remark)
	}
	conns := decode[struct {
		ConnectionSet []struct {
			ClientID      string
			Subscriptions map[string]string
		}
	}](t, w.ok(remoting.GetConsumerConnectionList, nil, "consumerGroup", "cg").Body).ConnectionSet
	if len(conns) != 2 || conns[0].Subscriptions["T"] != "Aa" || conns[1].Subscriptions["T"] != "Aa || BB" {
		t.Errorf("the members are shown as %+v", conns)
	}
	if n := c.metric(master, "ledgermq_replica_consumer_group_mixed"); n != 1 {
		t.Errorf("%v groups are told to be mixed, want 1", n)
	}
	// One that says goodbye changes nothing between the others, whatever its connection carries next, over the place of its goodbye.
	gone := c.wire(master, "g1")
	gone.join("gone", "cg", "CLUSTERING", "T", "BB")
	gone.ok(remoting.UnregisterClient, nil, "clientID", "gone", "producerGroup", "pg", "consumerGroup", "cg")
	gone.call(-1, nil, "padding", strings.Repeat("\xff", 1000))
	if resp := pull(a, 3); resp.Code != remoting.SystemError {
		t.Fatalf("at the other member's message, after a third one left: code %d %q", resp.Code, resp.Remark)
	}
	if n := c.metric(master, "ledgermq_replica_consumer_group_mixed"); n != 1 {
		t.Errorf("%v groups are told to be mixed after a third member left, want 1", n)
	}
	b.ok(remoting.UnregisterClient, nil, "clientID", "b", "consumerGroup", "cg")
	if resp := pull(a, 3); resp.Code != remoting.Success || number(t, resp, "nextBeginOffset") != 5 {
		t.Errorf("after the other member left: code %d %q", resp.Code, resp.Remark)
	}
	if n := c.metric(master, "ledgermq_replica_consumer_group_mixed"); n != 0 {
		t.Errorf("%v groups are told to be mixed, want none", n)
	}
}

// metric is the sum of a metric's samples on a node.
func (c *cluster) metric(node, name string) (sum float64) {
	c.t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(c.nodes[node])
	all, err := reg.Gather()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}
