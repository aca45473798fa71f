package broker_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/loopback"
	"github.com/ledgermq/ledgermq/namesrv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is a controller, a name server and nodes in this process.
type cluster struct {
	t     *testing.T
	dir   string
	log   zerolog.Logger
	ctl   *controller.Server
	ns    *namesrv.Server
	nsAt  string
	ctlAt string
	nodes map[string]*broker.Node
	mu    sync.Mutex
	ports map[string]string // node/group or node/peer to address, so that a restarted node keeps them
	tune  func(*broker.NodeOptions)
}

// listenOn is net.Listen; "" is an address that nobody else gets, so that a node that is down for a while finds it free.
func listenOn(addr string) (net.Listener, error) {
	if addr == "" {
		addr = loopback.Host() + ":0"
	}
	return net.Listen("tcp", addr)
}

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	l, err := listenOn(addr)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// newCluster starts three nodes and creates the given groups, each on all of them, in mode 2-3.
func newCluster(t *testing.T, groups ...string) *cluster { return newTunedCluster(t, nil, groups...) }

func newTunedCluster(t *testing.T, tune func(*broker.NodeOptions), groups ...string) *cluster {
	t.Helper()
	c := &cluster{tune: tune, t: t, dir: t.TempDir(), nodes: map[string]*broker.Node{}, ports: map[string]string{}, log: zerolog.Nop()}
	if os.Getenv("BROKER_TEST_LOG") != "" {
		c.log = zerolog.New(zerolog.ConsoleWriter{Out: os.Stderr, TimeFormat: "15:04:05.000"}).With().Timestamp().Logger()
	}
	c.startController()
	var err error
	nl := listen(t, "")
	c.nsAt = nl.Addr().String()
	if c.ns, err = namesrv.New(namesrv.Options{Listener: nl, Controllers: []string{c.ctlAt}, ReadyAfter: 100 * time.Millisecond, Logger: c.log}); err != nil {
		t.Fatal(err)
	}
	c.ns.Start()
	t.Cleanup(func() { c.ns.Close() })
	t.Cleanup(func() { // those that a test adds
		for id := range c.nodes {
			c.stop(id)
		}
	})
	for i := 1; i <= 3; i++ {
		id := fmt.Sprintf("n%d", i)
		c.start(id)
		t.Cleanup(func() { c.stop(id) }) // at once, should the next one not start; and before its disk goes, which starting it may have made
	}
	for _, g := range groups {
		c.createGroup(g, 2, 3)
	}
	return c
}

// startController starts the controller, at the address it had before.
func (c *cluster) startController() {
	c.t.Helper()
	l := listen(c.t, c.ctlAt)
	c.ctlAt = l.Addr().String()
	ctl, err := controller.Open(controller.Options{Dir: filepath.Join(c.dir, "c1"), ID: "c1", Listener: l, Bootstrap: true, MinSegmentSize: 1 << 20, Logger: c.log})
	if err != nil {
		c.t.Fatal(err)
	}
	ctl.Start()
	c.ctl = ctl
	c.t.Cleanup(func() { ctl.Close() })
}

// on listens where the node had this port before.
func (c *cluster) on(id, name string) (net.Listener, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := listenOn(c.ports[id+"/"+name])
	if err == nil {
		c.ports[id+"/"+name] = l.Addr().String()
	}
	return l, err
}

func (c *cluster) port(id, name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ports[id+"/"+name]
}

func (c *cluster) clientListener(id string) func(string) (net.Listener, string, error) {
	return func(group string) (net.Listener, string, error) {
		l, err := c.on(id, group)
		if err != nil {
			return nil, "", err
		}
		return l, l.Addr().String(), nil
	}
}

func (c *cluster) start(id string) {
	c.t.Helper()
	pl, err := c.on(id, "peer")
	if err != nil {
		c.t.Fatal(err)
	}
	o := broker.NodeOptions{ID: ids.NodeID(id), Dir: filepath.Join(c.dir, id), Controllers: []string{c.ctlAt}, Namesrv: []string{c.nsAt},
		PeerListener: pl, CheckpointBytes: 1 << 20, Logger: c.log, ClientListener: c.clientListener(id)}
	if c.tune != nil {
		c.tune(&o)
	}
	n, err := broker.OpenNode(o)
	if err != nil {
		c.t.Fatal(err)
	}
	c.nodes[id] = n
	n.Start()
}

func (c *cluster) stop(id string) {
	if n := c.nodes[id]; n != nil {
		delete(c.nodes, id)
		if err := n.Close(); err != nil {
			c.t.Errorf("close %s: %v", id, err)
		}
	}
}

func (c *cluster) kill(id string) {
	c.nodes[id].Kill()
	delete(c.nodes, id)
}

func (c *cluster) createGroup(name string, a, m uint32) {
	c.t.Helper()
	c.makeGroup(&controllerpb.CreateGroupRequest{Name: name, Answers: a, Members: m})
}

// makeGroup makes a group on the first nodes, and waits for its master and until the name server knows that one.
func (c *cluster) makeGroup(req *controllerpb.CreateGroupRequest) {
	c.t.Helper()
	req.Nodes, req.SegmentSize = []string{"n1", "n2", "n3"}[:req.Members], 16<<20
	cl, err := controller.Dial([]string{c.ctlAt}, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer cl.Close()
	eventually(c.t, 20*time.Second, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_, err := cl.CreateGroup(ctx, req)
		return err
	})
	eventually(c.t, 20*time.Second, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		g, err := cl.GetGroup(ctx, req.Name)
		if err == nil && !g.GetMaster().GetLive() {
			err = fmt.Errorf("no live master: %v", g)
		}
		return err
	})
	routes := c.client()
	eventually(c.t, 20*time.Second, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		r, err := routes.Route(ctx, req.Name)
		if err == nil && (len(r.Groups) == 0 || r.Groups[0].Master() == "") {
			err = fmt.Errorf("the route of %s has no master: %v", req.Name, r)
		}
		return err
	})
}

// master is the node that leads a group, as the controller knows it.
func (c *cluster) master(group string) (node string) {
	c.t.Helper()
	c.await(group, func(g *controllerpb.Group) error {
		if node = g.GetMaster().GetNodeId(); !g.GetMaster().GetLive() || c.nodes[node] == nil {
			return fmt.Errorf("no live master of %s: %v", group, g.GetMaster())
		}
		return nil
	})
	return node
}

// masterOfTheRest is master, once the set of voters has shrunk after a kill: that is an election more, which another replica may win.
func (c *cluster) masterOfTheRest(group string) (node string) {
	c.t.Helper()
	c.await(group, func(g *controllerpb.Group) error {
		m := g.GetMaster()
		if node = m.GetNodeId(); g.GetEpoch() < 2 || g.GetActiveEpoch() != g.GetEpoch() || !m.GetLive() || c.nodes[node] == nil || uint32(m.GetTerm()>>32) != g.GetEpoch() {
			return fmt.Errorf("%s is in epoch %d, active %d, with the master %v", group, g.GetEpoch(), g.GetActiveEpoch(), m)
		}
		return nil
	})
	return node
}

// await returns once what the controller knows of the group passes is.
func (c *cluster) await(group string, is func(*controllerpb.Group) error) {
	c.t.Helper()
	cl, err := controller.Dial([]string{c.ctlAt}, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer cl.Close()
	eventually(c.t, 20*time.Second, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		g, err := cl.GetGroup(ctx, group)
		if err != nil {
			return err
		}
		return is(g)
	})
}

// awaitNoMaster returns once the controller knows that the group has no master.
func (c *cluster) awaitNoMaster(group string) {
	c.t.Helper()
	c.await(group, func(g *controllerpb.Group) error {
		if m := g.GetMaster(); m.GetLive() || m.GetNotHeardYet() {
			return fmt.Errorf("the master of %s lives: %v", group, m)
		}
		return nil
	})
}

// startsSeen is the start counter of a node's replica that the controller heard last.
func (c *cluster) startsSeen(group, node string) (n uint64) {
	c.t.Helper()
	c.await(group, func(g *controllerpb.Group) error {
		for _, r := range g.Replicas {
			if r.NodeId == node {
				n = r.GetReport().GetStarts()
			}
		}
		return nil
	})
	return n
}

// slave is a node that runs and does not lead the group.
func (c *cluster) slave(group string) string {
	c.t.Helper()
	return c.besides(c.master(group))
}

// besides is a node that runs and is not the given one. A busy machine may change a master between two calls.
func (c *cluster) besides(node string) string {
	c.t.Helper()
	for _, id := range []string{"n1", "n2", "n3"} {
		if id != node && c.nodes[id] != nil {
			return id
		}
	}
	c.t.Fatal("no other node")
	return ""
}

func (c *cluster) client() *client.Client {
	c.t.Helper()
	cl, err := client.New([]string{c.nsAt})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { cl.Close() })
	return cl
}

// eventually polls f until it returns nil.
func eventually(t *testing.T, within time.Duration, f func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", within, err)
		}
		<-tick.C
	}
}

func TestSendAndConsume(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	cl := c.client()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	p := cl.Producer()
	const n = 200
	for i := range n {
		if _, err := p.Send(ctx, client.Message{Topic: "Orders", Body: fmt.Appendf(nil, "order %d", i)}); err != nil {
			t.Fatalf("send %d: %v", i, err)
		}
	}
	got := map[string]bool{}
	k, err := cl.Subscribe(ctx, "shop", "Orders")
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for len(got) < n {
		msgs, err := k.Poll(ctx)
		if err != nil {
			t.Fatalf("poll after %d: %v", len(got), err)
		}
		for _, m := range msgs {
			got[string(m.Body)] = true
		}
	}
}
