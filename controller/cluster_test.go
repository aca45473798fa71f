package controller

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/loopback"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is a set of controllers on loopback, in this process, with fast ticks.
type cluster struct {
	t      *testing.T
	dirs   map[string]string
	addrs  map[string]string
	mu     sync.Mutex
	up     map[string]*Server
	tune   func(*Options)
	secret []byte
}

// newCluster starts n controllers c1, c2, ….
func newCluster(t *testing.T, n int, tune func(*Options)) *cluster {
	t.Helper()
	c := &cluster{t: t, dirs: map[string]string{}, addrs: map[string]string{}, up: map[string]*Server{}, tune: tune, secret: []byte("a secret")}
	listeners := map[string]net.Listener{}
	for i := range n {
		id := fmt.Sprintf("c%d", i+1)
		l, err := net.Listen("tcp", loopback.Host()+":0")
		if err != nil {
			t.Fatal(err)
		}
		c.dirs[id], c.addrs[id], listeners[id] = t.TempDir(), l.Addr().String(), l
	}
	t.Cleanup(func() { // also of those that started before one that does not
		for id := range c.dirs {
			c.stop(id)
		}
	})
	for id, l := range listeners {
		c.startOn(id, l)
	}
	return c
}

func (c *cluster) options(id string, l net.Listener) Options {
	logger := zerolog.Nop()
	if os.Getenv("LEDGERMQ_TEST_LOG") != "" {
		logger = zerolog.New(zerolog.NewConsoleWriter(zerolog.ConsoleTestWriter(c.t))).With().Timestamp().Logger()
	}
	o := Options{
		Dir: c.dirs[id], ID: id, Listener: l, Peers: maps.Clone(c.addrs), Bootstrap: true, Secret: c.secret,
		TickInterval: 20 * time.Millisecond, NodeSilence: 400 * time.Millisecond, MinSegmentSize: 64 << 10, Logger: logger,
	}
	if c.tune != nil {
		c.tune(&o)
	}
	return o
}

func (c *cluster) startOn(id string, l net.Listener) *Server {
	c.t.Helper()
	s, err := Open(c.options(id, l))
	if err != nil {
		c.t.Fatalf("open %s: %v", id, err)
	}
	s.Start()
	c.mu.Lock()
	c.up[id] = s
	c.mu.Unlock()
	return s
}

// listen takes the member's address again; another process may hold the port for a moment.
func (c *cluster) listen(id string) net.Listener {
	c.t.Helper()
	var l net.Listener
	eventually(c.t, "listening on "+c.addrs[id], func() (err error) {
		l, err = net.Listen("tcp", c.addrs[id])
		return err
	})
	return l
}

func (c *cluster) start(id string) *Server {
	c.t.Helper()
	return c.startOn(id, c.listen(id))
}

func (c *cluster) stop(id string) {
	c.mu.Lock()
	s := c.up[id]
	delete(c.up, id)
	c.mu.Unlock()
	if s != nil {
		if err := s.Close(); err != nil {
			c.t.Errorf("close %s: %v", id, err)
		}
	}
}

func (c *cluster) restart(id string) *Server {
	c.t.Helper()
	c.stop(id)
	return c.start(id)
}

// leader waits for a controller that leads.
func (c *cluster) leader() *Server {
	c.t.Helper()
	var lead *Server
	eventually(c.t, "a leader", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, s := range c.up {
			if s.view.Load().ready {
				lead = s
				return nil
			}
		}
		return fmt.Errorf("none of %d leads", len(c.up))
	})
	return lead
}

func (c *cluster) client() *Client {
	c.t.Helper()
	var addrs []string
	for _, id := range sortedKeys(c.addrs) {
		addrs = append(addrs, c.addrs[id])
	}
	return dial(c.t, addrs, c.secret)
}

func dial(t *testing.T, addrs []string, secret []byte, opts ...DialOption) *Client {
	t.Helper()
	client, err := Dial(addrs, secret, append([]DialOption{WithAttemptTimeout(2 * time.Second), WithCallTimeout(time.Minute)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// eventually polls until fn has no error.
func eventually(t *testing.T, what string, fn func() error) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := fn()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		<-ticker.C
	}
}

func ctxFor(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// fakeNode does what a broker node does with a controller: it creates the replicas that it is told to, and reports them.
type fakeNode struct {
	t      *testing.T
	client *Client
	id     string
	code   ids.UUID

	mu       sync.Mutex
	replicas map[uint64]*fakeReplica
	lead     map[string]uint64 // group name to the term in which this node says that it is master
	campaign map[string]int    // group name to how often it was told to campaign
	create   bool              // create replicas when told to
}

type fakeReplica struct {
	group       []byte
	name        string
	incarnation ids.UUID
	starts      uint64
	record      []byte
	missing     bool
}

func newNode(t *testing.T, c *cluster, id string) *fakeNode {
	t.Helper()
	return &fakeNode{
		t: t, client: c.client(), id: id, code: ids.NewUUID(nil), create: true,
		replicas: map[uint64]*fakeReplica{}, lead: map[string]uint64{}, campaign: map[string]int{},
	}
}

func (n *fakeNode) register(ctx context.Context) (*pb.RegisterNodeResponse, error) {
	return n.client.RegisterNode(ctx, &pb.RegisterNodeRequest{NodeId: n.id, CheckCode: n.code[:]})
}

func (n *fakeNode) mustRegister() {
	n.t.Helper()
	if _, err := n.register(ctxFor(n.t)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *fakeNode) request() *pb.HeartbeatRequest {
	n.mu.Lock()
	defer n.mu.Unlock()
	req := &pb.HeartbeatRequest{NodeId: n.id, CheckCode: n.code[:], Addresses: &pb.Addresses{Peer: "10.0.0.1:1", Clients: map[string]string{}}}
	for id, r := range n.replicas {
		rep := &pb.ReplicaReport{GroupId: r.group, ReplicaId: id, Starts: r.starts, Missing: r.missing, Role: pb.Role_ROLE_FOLLOWER}
		if !r.missing {
			rep.Incarnation = r.incarnation[:]
		}
		if len(r.record) > 0 {
			rep.Epoch, rep.Term = 1, 1<<32
		}
		if term := n.lead[r.name]; term != 0 {
			rep.Role, rep.Term = pb.Role_ROLE_MASTER, term
		}
		req.Addresses.Clients[r.name] = "10.0.0.1:2"
		req.Replicas = append(req.Replicas, rep)
	}
	return req
}

// beat sends one heartbeat and does what the answer wants.
func (n *fakeNode) beat(ctx context.Context) (*pb.HeartbeatResponse, error) {
	resp, err := n.client.Heartbeat(ctx, n.request())
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range resp.GetReplicas() {
		r := n.replicas[w.GetReplicaId()]
		if r == nil && len(w.GetEpochRecord()) == 0 && n.create {
			r = &fakeReplica{group: w.GetGroupId(), name: w.GetGroupName(), incarnation: ids.NewUUID(nil), starts: 1}
			n.replicas[w.GetReplicaId()] = r
		}
		if r != nil && len(w.GetEpochRecord()) > 0 {
			r.record = w.GetEpochRecord()
		}
		if w.GetCampaign() {
			n.campaign[w.GetGroupName()]++
		}
	}
	return resp, nil
}

func (n *fakeNode) mustBeat() *pb.HeartbeatResponse {
	n.t.Helper()
	resp, err := n.beat(ctxFor(n.t))
	if err != nil {
		n.t.Fatal(err)
	}
	return resp
}

// live sends heartbeats until stop is called. Errors are what a node meets while controllers die.
func (n *fakeNode) live() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				beatCtx, end := context.WithTimeout(ctx, time.Second)
				n.beat(beatCtx)
				end()
			}
		}
	}()
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); <-done }) }
	n.t.Cleanup(stop)
	return stop
}
