package broker_test

import (
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/remoting"
)

// A group that is forbidden to read a topic pulls nothing of it, also after a failover, until it is allowed again or deleted; other topics and
// groups are not concerned.
func TestForbidden(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	master := c.master("g1")
	w := c.wire(master, "g1")
	w.topic("T", 1)
	w.topic("U", 1)
	for _, group := range []string{"cg", "other"} {
		w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"`+group+`"}`))
	}
	w.sends("T", 1)
	w.sends("U", 1)
	type answer struct {
		Group, Topic string
		Readable     bool
	}
	ask := func(w *wire, fields ...string) answer {
		t.Helper()
		return decode[answer](t, w.ok(remoting.UpdateAndGetGroupForbidden, nil, append(fields, "group", "cg", "topic", "T")...).Body)
	}
	pulls := func(w *wire, group, topic string, want int32) {
		t.Helper()
		if resp := w.call(remoting.PullMessage, nil, pullFields(group, topic, 0)...); resp.Code != want {
			t.Errorf("group %s, topic %s: code %d %q, want %d", group, topic, resp.Code, resp.Remark, want)
		}
	}
	if got := ask(w); got != (answer{"cg", "T", true}) {
		t.Errorf("at first %+v", got)
	}
	if got := ask(c.wire(c.slave("g1"), "g1"), "readable", "false"); got.Readable {
		t.Errorf("forbidden through a slave: %+v", got)
	}
	if got := ask(w); got.Readable {
		t.Errorf("a question has changed it: %+v", got)
	}
	pulls(w, "cg", "T", remoting.NoPermission)
	pulls(w, "cg", "U", remoting.Success)
	pulls(w, "other", "T", remoting.Success)
	table := decode[struct{ ForbiddenTable map[string]map[string]int }](t, w.ok(remoting.GetAllSubscriptionGroupConfig, nil).Body).ForbiddenTable
	if len(table) != 1 || table["cg"]["T"] != 4 {
		t.Errorf("the table of all groups has %v", table)
	}
	for _, bad := range [][]string{{"group", "cg"}, {"topic", "T"}, {"group", "a b", "topic", "T"}, {"group", "cg", "topic", "a/b"}, {"group", "cg", "topic", "T", "readable", "maybe"}} {
		if resp := w.call(remoting.UpdateAndGetGroupForbidden, nil, bad...); resp.Code == remoting.Success || strings.TrimSpace(resp.Remark) == "" {
			t.Errorf("%v: code %d %q", bad, resp.Code, resp.Remark)
		}
	}

	c.kill(master)
	w = c.wire(c.master("g1"), "g1")
	pulls(w, "cg", "T", remoting.NoPermission)
	if got := ask(w, "readable", "true"); !got.Readable {
		t.Errorf("allowed again: %+v", got)
	}
	pulls(w, "cg", "T", remoting.Success)
	ask(w, "readable", "false")
	w.ok(remoting.DeleteSubscriptionGroup, nil, "groupName", "cg")
	if got := ask(w); !got.Readable {
		t.Errorf("after the group was deleted: %+v", got)
	}
}

// What a group subscribes to in a topic is what its members said last.
func TestQuerySubscription(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	type answer struct {
		Group, Topic     string
		SubscriptionData *struct {
			Topic, SubString, ExpressionType string
			TagsSet                          []string
			SubVersion                       int64
		}
	}
	ask := func(topic string) answer {
		t.Helper()
		return decode[answer](t, w.ok(remoting.QuerySubscriptionByConsumer, nil, "group", "cg", "topic", topic).Body)
	}
	if got := ask("T"); got.SubscriptionData != nil || got.Group != "cg" || got.Topic != "T" {
		t.Errorf("without a member %+v", got)
	}
	w.join("c1", "cg", "CLUSTERING", "T", "a || b")
	if s := ask("T").SubscriptionData; s == nil || s.Topic != "T" || s.SubString != "a || b" || len(s.TagsSet) != 2 || s.ExpressionType != "TAG" || s.SubVersion != 7 {
		t.Errorf("the subscription is %+v", s)
	}
	if got := ask("U"); got.SubscriptionData != nil {
		t.Errorf("of another topic: %+v", got.SubscriptionData)
	}
}

// The messages with a time that wait are counted by their topics: not those of a level, nor what was recalled.
func TestTimerMetrics(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	w.topic("U", 1)
	send := func(topic string, kv ...string) *remoting.Command {
		return w.ok(remoting.SendMessage, []byte("x"), sendFields(topic, "properties", props(kv...))...)
	}
	for range 3 {
		send("T", "TIMER_DELAY_SEC", "3600")
	}
	send("T", "DELAY", "18")
	gone := send("T", "TIMER_DELAY_SEC", "3600", "UNIQ_KEY", "gone")
	send("U", "TIMER_DELAY_SEC", "7200")
	w.ok(remoting.RecallMessage, nil, "topic", "T", "recallHandle", gone.GetOr("recallHandle", ""))
	got := decode[struct {
		DataVersion struct{ Counter *int64 }
		TimingCount map[string]struct{ Count, TimeStamp int64 }
	}](t, w.ok(remoting.GetTimerMetrics, nil).Body)
	if len(got.TimingCount) != 2 || got.TimingCount["T"].Count != 3 || got.TimingCount["U"].Count != 1 || got.TimingCount["U"].TimeStamp == 0 || got.DataVersion.Counter == nil {
		t.Errorf("%+v", got)
	}
}
