package broker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/remoting"
)

func (w *wire) setting(name string) string {
	w.t.Helper()
	for line := range strings.Lines(string(w.ok(remoting.GetBrokerConfig, nil).Body)) {
		if v, found := strings.CutPrefix(line, name+"="); found {
			return strings.TrimSuffix(v, "\n")
		}
	}
	w.t.Fatalf("there is no setting %s", name)
	return ""
}

// A setting that is changed is changed on all replicas, through a slave too, survives the death of the master, and can be taken back. What
// cannot be changed is refused by its name, and nothing of that request is done.
func TestChangeSettings(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	master := c.master("g1")
	slave := c.besides(master)
	w, s := c.wire(master, "g1"), c.wire(slave, "g1")
	w.topic("T", 1)
	w.ok(remoting.UpdateBrokerConfig, []byte("# mended\nautoCreateTopicEnable=FALSE\nfileReservedTime = 48\n"))
	s.ok(remoting.UpdateBrokerConfig, []byte("brokerPermission=4"))
	for _, on := range []*wire{w, s} {
		eventually(t, 10*time.Second, func() error {
			if p, a, r := on.setting("brokerPermission"), on.setting("autoCreateTopicEnable"), on.setting("fileReservedTime"); p != "4" || a != "false" || r != "48" {
				return fmt.Errorf("the settings are %s, %s, %s", p, a, r)
			}
			return nil
		})
	}
	if resp := w.call(remoting.SendMessage, []byte("x"), sendFields("New")...); resp.Code != remoting.TopicNotExist {
		t.Errorf("a send to an unknown topic: code %d %q", resp.Code, resp.Remark)
	}
	for _, bad := range []struct {
		body, says string
		code       int32
	}{
		{"", "names no setting", remoting.InvalidParameter},
		{"brokerPermission", "want key=value", remoting.InvalidParameter},
		{"=4", "want key=value", remoting.InvalidParameter},
		{"brokerPermission=7", "brokerPermission=", remoting.InvalidParameter},
		{"brokerPermission=6\nrocketmqHome=/tmp/x;id", `no such setting: "rocketmqHome"`, remoting.InvalidParameter},
		{"brokerPermission=6\nfilterServerNums=1", `no such setting: "filterServerNums"`, remoting.InvalidParameter},
		{"brokerPermission=6\nstorePathRootDir=../x", "storePathRootDir cannot be changed", remoting.NoPermission},
		{"brokerPermission=6\nnamesrvAddr=1.2.3.4:1", "namesrvAddr cannot be changed", remoting.NoPermission},
		{"brokerPermission=6\nbrokerName=$(id)", "brokerName cannot be changed", remoting.NoPermission},
		{"fileReservedTime=0", "use 1 to", remoting.InvalidParameter},
		{"fileReservedTime=99999999999999999999", "use 1 to", remoting.InvalidParameter},
		{"autoCreateTopicEnable=yes", "use true or false", remoting.InvalidParameter},
		{"x=" + strings.Repeat("y", 70_000), "at most", remoting.InvalidParameter},
	} {
		if resp := w.call(remoting.UpdateBrokerConfig, []byte(bad.body)); resp.Code != bad.code || !strings.Contains(resp.Remark, bad.says) {
			t.Errorf("%.60q: code %d %q", bad.body, resp.Code, resp.Remark)
		}
	}
	if p := w.setting("brokerPermission"); p != "4" {
		t.Errorf("a refused change made it %s", p)
	}

	c.kill(master)
	next := c.master("g1")
	w = c.wire(next, "g1")
	if p, a := w.setting("brokerPermission"), w.setting("autoCreateTopicEnable"); p != "4" || a != "false" {
		t.Errorf("after a failover the settings are %s, %s", p, a)
	}
	w.ok(remoting.UpdateBrokerConfig, []byte("autoCreateTopicEnable=default\nbrokerPermission=default"))
	eventually(t, 10*time.Second, func() error { // the node may be the master no more, and have forwarded it
		if p, a := w.setting("brokerPermission"), w.setting("autoCreateTopicEnable"); p != "6" || a != "true" {
			return fmt.Errorf("taken back they are %s, %s", p, a)
		}
		return nil
	})
}

// A group that is taken out of use: its routes become read-only at once, a send with an old route is still taken, and what is there is
// consumed. No message is lost and no send fails.
func TestDecommission(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1", "g2")
	m1, m2 := c.wire(c.master("g1"), "g1"), c.wire(c.master("g2"), "g2")
	for _, w := range []*wire{m1, m2} {
		w.topic("Orders", 2)
	}
	cl := c.client()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	p := cl.Producer()
	sent := map[string]bool{}
	send := func(n int) {
		t.Helper()
		for range n {
			body := fmt.Sprintf("order %d", len(sent))
			if _, err := p.Send(ctx, client.Message{Topic: "Orders", Body: []byte(body)}); err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			sent[body] = true
		}
	}
	send(40)
	m1.ok(remoting.UpdateBrokerConfig, []byte("brokerPermission=4"))
	if perm := c.permOf("Orders", "g1"); perm != 4 {
		t.Errorf("when the change is answered the route of g1 has permission %d", perm)
	}
	if perm := c.permOf("Orders", "g2"); perm != 6 {
		t.Errorf("the route of g2 has permission %d", perm)
	}
	send(40) // with the old route
	m1.ok(remoting.SendMessage, []byte("late"), sendFields("Orders")...)
	sent["late"] = true

	k, err := cl.Subscribe(ctx, "shop", "Orders")
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for got := map[string]bool{}; len(got) < len(sent); {
		msgs, err := k.Poll(ctx)
		if err != nil {
			t.Fatalf("poll after %d of %d: %v", len(got), len(sent), err)
		}
		for _, m := range msgs {
			got[string(m.Body)] = true
		}
	}
	// A new client chooses the other group.
	before := m1.ends("Orders")
	p2 := c.client().Producer()
	for range 20 {
		if _, err := p2.Send(ctx, client.Message{Topic: "Orders", Body: []byte("new")}); err != nil {
			t.Fatal(err)
		}
	}
	if after := m1.ends("Orders"); after != before {
		t.Errorf("a new client sent %d messages to a group that is write-protected", after-before)
	}
}

func (w *wire) ends(topic string) (n int64) {
	w.t.Helper()
	for _, q := range []string{"0", "1"} {
		n += number(w.t, w.ok(remoting.GetMaxOffset, nil, "topic", topic, "queueId", q), "offset")
	}
	return n
}

// permOf is the permission of a group's queues in the route of a topic.
func (c *cluster) permOf(topic, group string) int32 {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ns, err := remoting.Dial(ctx, c.nsAt, remoting.ClientOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	defer ns.Close()
	w := &wire{c.t, ns}
	var route struct {
		QueueDatas []struct {
			BrokerName string
			Perm       int32
		}
	}
	parse(c.t, w.ok(remoting.GetRouteInfoByTopic, nil, "topic", topic, "acceptStandardJsonOnly", "true").Body, &route)
	for _, q := range route.QueueDatas {
		if q.BrokerName == group {
			return q.Perm
		}
	}
	c.t.Fatalf("the route of %s lacks %s", topic, group)
	return 0
}
