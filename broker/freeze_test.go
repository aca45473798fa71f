package broker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/remoting"
)

// freezeAnswer is the answer to FREEZE_GROUP.
type freezeAnswer struct {
	Frozen       bool
	Refused      string
	Left         []string
	Messages     int64
	Timers       uint64
	Transactions int
}

// freeze asks for a freeze, or only what is in the way of it.
func (w *wire) freeze(group string, more ...string) (a freezeAnswer, resp *remoting.Command) {
	w.t.Helper()
	resp = w.call(remoting.FreezeGroup, nil, append([]string{"brokerName", group}, more...)...)
	if resp.Code == remoting.Success {
		parse(w.t, resp.Body, &a)
	}
	return a, resp
}

// registered tells whether the name server knows a broker group.
func (c *cluster) registered(group string) bool {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	list, err := c.client().Cluster(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, g := range list.Groups {
		if g.Group == group {
			return true
		}
	}
	return false
}

// folders are the groups with a folder on a node, and those whose folder it moved away.
func (c *cluster) folders(node string) (here, lost []string) {
	c.t.Helper()
	names := func(dir string) (out []string) {
		list, err := os.ReadDir(filepath.Join(c.dir, node, dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			c.t.Fatal(err)
		}
		for _, e := range list {
			out = append(out, e.Name())
		}
		return out
	}
	return names("groups"), names(broker.LostFolder)
}

// A group is removed when clients send to others and all is consumed, and not before. Then its routes are gone, its replicas are closed and
// their folders moved away, also on a node that was away, and its name may be given to a new group that has nothing to do with it.
func TestRemoveGroup(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64 // of the nodes' clocks
	c := newTunedCluster(t, func(o *broker.NodeOptions) {
		o.Clock = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	}, "g1", "g2")
	w := c.wire(c.master("g2"), "g2")
	w.topic("Orders", 1)
	c.wire(c.master("g1"), "g1").topic("Orders", 1)
	for range 20 {
		w.ok(remoting.SendMessage, []byte("x"), sendFields("Orders")...)
	}
	w.ok(remoting.UpdateConsumerOffset, nil, "consumerGroup", "shop", "topic", "Orders", "queueId", "0", "commitOffset", "8")
	refused := func(says string, code int32, more ...string) {
		t.Helper()
		if a, resp := w.freeze("g2", append(more, "execute", "true")...); resp.Code != code || !strings.Contains(resp.Remark, says) {
			t.Fatalf("code %d %q %+v, want %d with %q", resp.Code, resp.Remark, a, code, says)
		}
	}
	refused("is not write-protected", remoting.SystemError)
	refused("is not write-protected", remoting.SystemError, "giveUp", "true")
	w.ok(remoting.UpdateBrokerConfig, []byte("brokerPermission=4"))
	refused("try again in", remoting.SystemError, "giveUp", "true")
	ahead.Store(int64(40 * time.Second))
	refused("consumer group shop has not consumed 12 of topic Orders", remoting.SystemError)
	if _, resp := w.freeze("g1"); resp.Code != remoting.InvalidParameter || !strings.Contains(resp.Remark, "this is broker group g2") {
		t.Errorf("another group's name: code %d %q", resp.Code, resp.Remark)
	}
	if _, resp := w.freeze("g2", "execute", "yes"); resp.Code == remoting.Success {
		t.Error("execute=yes is taken")
	}
	if a, _ := w.freeze("g2"); a.Frozen || a.Refused != "" || a.Messages != 12 || len(a.Left) != 1 {
		t.Errorf("in the way: %+v", a)
	}
	w.ok(remoting.SendMessage, []byte("late"), sendFields("Orders")...) // with an old route, and it is not lost
	if a, _ := w.freeze("g2"); a.Messages != 13 {
		t.Errorf("in the way after one more: %+v", a)
	}
	w.ok(remoting.UpdateConsumerOffset, nil, "consumerGroup", "shop", "topic", "Orders", "queueId", "0", "commitOffset", "21")

	away := c.besides(c.master("g2"))
	c.stop(away)
	w = c.wire(c.master("g2"), "g2")
	var old []byte
	c.await("g2", func(g *controllerpb.Group) error {
		old = g.GetGroupId()
		return nil
	})
	eventually(t, 20*time.Second, func() error { // an election may be under way
		if a, resp := w.freeze("g2", "execute", "true"); resp.Code != remoting.Success || !a.Frozen {
			w = c.wire(c.master("g2"), "g2")
			return fmt.Errorf("code %d %q", resp.Code, resp.Remark)
		}
		return nil
	})
	ctl, err := controller.Dial([]string{c.ctlAt}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if err := ctl.WaitRemoved(ctx, "g2", old); err != nil {
		t.Fatal(err)
	}
	if _, err := ctl.GetGroup(ctx, "g2"); !errors.Is(err, controller.ErrNotFound) || !strings.Contains(err.Error(), "was removed at") {
		t.Errorf("who asks for it is told: %v", err)
	}
	gone := func(node string) {
		t.Helper()
		eventually(t, 20*time.Second, func() error {
			here, lost := c.folders(node)
			if r := c.nodes[node].Replica("g2"); r != nil || len(here) != 1 || len(lost) != 1 {
				return fmt.Errorf("%s has %v, and moved %v away", node, here, lost)
			}
			return c.nodes[node].Ready()
		})
	}
	for node := range c.nodes {
		gone(node)
	}
	eventually(t, 10*time.Second, func() error {
		if c.registered("g2") {
			return errors.New("the name server knows g2 still")
		}
		return nil
	})
	c.start(away)
	gone(away)
	if c.registered("g2") {
		t.Error("a node that was away brought g2 back")
	}
	c.wire(c.master("g1"), "g1").ok(remoting.SendMessage, []byte("x"), sendFields("Orders")...)

	c.createGroup("g2", 2, 3)
	c.await("g2", func(g *controllerpb.Group) error {
		if string(g.GetGroupId()) == string(old) || g.GetEpoch() < 2 {
			t.Errorf("the new group: id %x, epoch %d", g.GetGroupId(), g.GetEpoch())
		}
		return nil
	})
	w = c.wire(c.master("g2"), "g2")
	w.topic("Orders", 1)
	if n := number(t, w.ok(remoting.GetMaxOffset, nil, "topic", "Orders", "queueId", "0"), "offset"); n != 0 {
		t.Errorf("the new group has %d messages of the old one", n)
	}
	if perm := c.permOf("Orders", "g2"); perm != 6 {
		t.Errorf("the route of the new g2 has permission %d", perm)
	}
	w.ok(remoting.SendMessage, []byte("x"), sendFields("Orders")...)
}

// What is left may be given up. Before the controllers hear of it nothing is stored any more, and nobody takes that back.
func TestFreezeGivesUp(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	c := newTunedCluster(t, func(o *broker.NodeOptions) {
		o.Clock = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	}, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("Orders", 1)
	w.ok(remoting.SendMessage, []byte("x"), sendFields("Orders")...)
	w.ok(remoting.SendMessage, []byte("later"), sendFields("Orders", "properties", "TIMER_DELAY_SEC\x013600\x02")...)
	w.ok(remoting.SendMessage, []byte("half"), sendFields("Orders", "sysFlag", "4", "properties", "TRAN_MSG\x01true\x02PGROUP\x01pay\x02")...)
	w.ok(remoting.UpdateConsumerOffset, nil, "consumerGroup", "shop", "topic", "Orders", "queueId", "0", "commitOffset", "0")
	w.ok(remoting.UpdateBrokerConfig, []byte("brokerPermission=4"))
	ahead.Store(int64(40 * time.Second))
	a, _ := w.freeze("g1")
	if a.Messages != 1 || a.Timers != 1 || a.Transactions != 1 || len(a.Left) != 3 {
		t.Errorf("in the way: %+v", a)
	}
	c.ctl.Close() // the freeze waits for nobody
	if a, resp := w.freeze("g1", "execute", "true", "giveUp", "true"); resp.Code != remoting.Success || !a.Frozen {
		t.Fatalf("code %d %q", resp.Code, resp.Remark)
	}
	for _, more := range [][]string{nil, {"properties", "TIMER_DELAY_SEC\x013600\x02"}, {"sysFlag", "4", "properties", "TRAN_MSG\x01true\x02PGROUP\x01pay\x02"}} {
		if resp := w.call(remoting.SendMessage, []byte("y"), sendFields("Orders", more...)...); resp.Code != remoting.NoPermission || !strings.HasPrefix(resp.Remark, "[NOT_STORED] group g1 is being removed") {
			t.Errorf("a send to a frozen group: code %d %q", resp.Code, resp.Remark)
		}
	}
	if resp := w.call(remoting.UpdateBrokerConfig, []byte("brokerPermission=6")); resp.Code != remoting.NoPermission {
		t.Errorf("the permission of a frozen group: code %d %q", resp.Code, resp.Remark)
	}
	if n := number(t, w.ok(remoting.GetMaxOffset, nil, "topic", "Orders", "queueId", "0"), "offset"); n != 1 {
		t.Errorf("the queue ends at %d", n)
	}
	eventually(t, 10*time.Second, func() error {
		if c.registered("g1") {
			return errors.New("the name server knows g1 still")
		}
		return nil
	})
	if a, resp := w.freeze("g1", "execute", "true"); resp.Code != remoting.Success || !a.Frozen {
		t.Errorf("a second freeze: code %d %q", resp.Code, resp.Remark)
	}
	c.startController()
	for node := range c.nodes {
		eventually(t, 30*time.Second, func() error {
			if here, lost := c.folders(node); len(here) != 0 || len(lost) != 1 {
				return fmt.Errorf("%s has %v, and moved %v away", node, here, lost)
			}
			return nil
		})
	}
}
