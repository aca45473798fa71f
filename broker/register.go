package broker

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/namesrv"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/remoting"
)

const (
	registerEvery  = 10 * time.Second
	registerCall   = time.Second // bounds one registration
	registerExpiry = 120 * time.Second
)

// registrar tells one name server about the replicas of this node: all of them every 10 s, when a role or a topic changed, and as
// soon as a name server that went away is back. A master registers its topics and itself under id 0; a slave only its address
// under its slot. Each carries the term: the name server never goes back to a lower one. A replica whose group is being removed takes its
// address back instead.
type registrar struct {
	n    *Node
	addr string
	kick chan struct{}
	stop context.CancelFunc // leaves the name server

	order  sync.Mutex               // held while a registration is built and sent: an older one must not arrive after a newer one
	bad    map[ids.GroupID]*lasting // refusals, under order
	mu     sync.Mutex
	client *remoting.Client
	gone   chan struct{} // closed when client has ended
	closed bool
	shares map[ids.GroupID]*share // of publish
}

// registerWith begins to register with the name servers of the list that are new, and leaves those that are not on it. What a name
// server that was left has still is its own business: it forgets the node with the connection.
func (n *Node) registerWith(list []string) {
	n.regMu.Lock()
	defer n.regMu.Unlock()
	for addr, g := range n.registrars {
		if !slices.Contains(list, addr) {
			n.log.Info().Str("namesrv", addr).Msg("this node registers no more with a name server")
			g.stop()
			delete(n.registrars, addr)
		}
	}
	for _, addr := range list {
		if n.registrars[addr] != nil {
			continue
		}
		ctx, stop := context.WithCancel(n.ctx)
		g := &registrar{n: n, addr: addr, kick: make(chan struct{}, 1), stop: stop}
		n.registrars[addr] = g
		n.spawn(func() {
			defer stop()
			n.registerLoop(ctx, g)
		})
	}
}

func (n *Node) registrarList() (list []*registrar) {
	n.regMu.Lock()
	defer n.regMu.Unlock()
	for _, addr := range slices.Sorted(maps.Keys(n.registrars)) {
		list = append(list, n.registrars[addr])
	}
	return list
}

// registerLoop runs until the node stops, or leaves the name server.
func (n *Node) registerLoop(ctx context.Context, g *registrar) {
	defer g.close()
	backoff := 100 * time.Millisecond
	quiet := false
	for {
		gone, err := g.all(ctx)
		wait := time.Duration(registerEvery)
		if err != nil {
			wait = backoff
			backoff = min(2*backoff, 2*time.Second)
			if !quiet && ctx.Err() == nil {
				quiet = true
				n.log.Warn().Err(err).Str("namesrv", g.addr).Msg("a name server cannot be reached: clients keep the routes they have")
			}
		} else {
			backoff = 100 * time.Millisecond
			if quiet {
				quiet = false
				n.log.Info().Str("namesrv", g.addr).Msg("the name server answers again")
			}
		}
		t := time.NewTimer(wait)
		select {
		case <-g.kick:
		case <-gone:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		t.Stop()
	}
}

// all registers every open replica. The channel is closed when the connection ends.
func (g *registrar) all(ctx context.Context) (<-chan struct{}, error) {
	for _, r := range g.n.open() {
		if err := g.register(ctx, r); err != nil {
			return nil, err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gone, nil
}

// connection dials when there is no living connection.
func (g *registrar) connection(ctx context.Context) (*remoting.Client, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, errors.New("this node has left the name server")
	}
	if g.client != nil {
		select {
		case <-g.gone:
		default:
			return g.client, nil
		}
	}
	gone := make(chan struct{})
	c, err := remoting.Dial(ctx, g.addr, remoting.ClientOptions{Closed: func(error) { close(gone) }, Logger: g.n.log})
	if err != nil {
		return nil, err
	}
	g.client, g.gone = c, gone
	return c, nil
}

func (g *registrar) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.client != nil {
		g.client.Close()
	}
}

// register sends one replica's registration. A refusal of a name server that knows a newer term is no error: the next round says
// what is true then.
func (g *registrar) register(ctx context.Context, r *Replica) error {
	if r.office.hushed(r.now()) && !r.goes() {
		return nil // what ends that kicks the registrars
	}
	ctx, cancel := context.WithTimeout(ctx, registerCall)
	defer cancel()
	c, err := g.connection(ctx)
	if err != nil {
		return err
	}
	g.order.Lock()
	build := r.registration
	if r.goes() {
		build = r.unregistration
	}
	resp, err := c.Call(ctx, build())
	tell := g.refused(r).note(r.now(), err == nil && resp.Code != remoting.Success)
	if r.goes() {
		delete(g.bad, r.gid)
	}
	g.order.Unlock()
	if err != nil {
		return err
	}
	if tell {
		e := r.log.Warn().Str("namesrv", g.addr).Str("remark", resp.Remark)
		if newest := resp.GetOr(namesrv.FieldGroupTerm, ""); newest != "" {
			e = e.Str("newest_term", newest) // that of somebody who registered this group's name
		}
		e.Msg("a name server refuses this replica's registrations: its clients do not find it")
	}
	return nil
}

func (g *registrar) shared(r *Replica) *share {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.shares[r.gid]
	if s == nil {
		if g.shares == nil {
			g.shares = map[ids.GroupID]*share{}
		}
		s = &share{}
		g.shares[r.gid] = s
	}
	return s
}

// refused returns what is noted of a group's registrations. The caller holds order.
func (g *registrar) refused(r *Replica) *lasting {
	l := g.bad[r.gid]
	if l == nil {
		if g.bad == nil {
			g.bad = map[ids.GroupID]*lasting{}
		}
		l = &lasting{}
		g.bad[r.gid] = l
	}
	return l
}

// lasting is a trouble that is worth a word when it lasts: one refusal is what a master that was deposed meets.
type lasting struct{ since, told time.Time }

const tellRefusedEvery = time.Minute

// note takes how it went now, and tells whether to say something.
func (l *lasting) note(now time.Time, bad bool) bool {
	switch {
	case !bad:
		*l = lasting{}
		return false
	case l.since.IsZero():
		l.since = now
	}
	if now.Sub(l.since) < registerEvery || !l.told.IsZero() && now.Sub(l.told) < tellRefusedEvery {
		return false
	}
	l.told = now
	return true
}

// registration is what this replica tells the name servers now.
func (r *Replica) registration() *remoting.Command {
	role := *r.role.Load()
	version := r.st.TopicVersion()
	body := namesrv.RegisterBody{Version: namesrv.DataVersion{StateVersion: int64(role.Term), Timestamp: version.Time, Counter: version.Counter}}
	id := ids.BrokerID(r.slot)
	if role.Kind == raftlog.RoleMaster {
		id = ids.MasterBrokerID
		permission := r.permission() | permInherit
		for _, t := range r.st.Topics() {
			if t.Name == message.DefaultTopic && !r.createsTopics() {
				continue
			}
			body.Topics = append(body.Topics, namesrv.TopicConfig{Name: t.Name, ReadQueues: t.ReadQueues, WriteQueues: t.WriteQueues,
				Perm: t.Perm & permission, SysFlag: t.SysFlag, Order: t.Order, Attributes: t.Attributes})
		}
	}
	req := remoting.NewRequest(remoting.RegisterBroker)
	req.Set("brokerName", r.group)
	req.Set("brokerAddr", r.advertise)
	req.Set("clusterName", r.node.o.ClusterName)
	req.Set("haServerAddr", r.node.o.PeerAdvertise)
	req.SetInt64("brokerId", int64(id))
	req.SetInt64("heartbeatTimeoutMillis", registerExpiry.Milliseconds())
	req.SetBool("enableActingMaster", false)
	req.SetBool("compressed", false)
	req.Set(namesrv.FieldGroupTerm, strconv.FormatUint(uint64(role.Term), 10))
	req.Set(namesrv.FieldControllers, strings.Join(r.node.ctl.Addresses(), ","))
	r.node.mu.Lock()
	req.Set(namesrv.FieldClusterID, r.node.file.Cluster)
	r.node.mu.Unlock()
	req.Body = body.Encode()
	req.SetInt64("bodyCrc32", int64(namesrv.BodyCRC(req.Body)))
	return req
}

// goes tells whether the name servers are to forget this replica: its group is being removed.
func (r *Replica) goes() bool { return r.frozen.Load() || r.office.removed.Load() }

// unregistration takes this replica's address back.
func (r *Replica) unregistration() *remoting.Command {
	req := remoting.NewRequest(remoting.UnregisterBroker)
	req.Set("brokerName", r.group)
	req.Set("brokerAddr", r.advertise)
	req.Set("clusterName", r.node.o.ClusterName)
	req.SetInt64("brokerId", int64(r.brokerID()))
	req.Set(namesrv.FieldGroupTerm, strconv.FormatUint(uint64(r.term()), 10))
	return req
}

// kickRegistrars makes every registrar run soon. It never blocks.
func (n *Node) kickRegistrars() {
	for _, g := range n.registrarList() {
		signal(g.kick)
	}
}

// publish registers one replica with all name servers at once and waits for them, up to a second: who created a topic finds its
// route when the answer is there. Those who wait at the same time wait for one registration.
func (n *Node) publish(r *Replica) {
	var wg sync.WaitGroup
	for _, g := range n.registrarList() {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := g.shared(r).do(func() error { return g.register(n.ctx, r) }); err != nil {
				n.log.Debug().Err(err).Str("namesrv", g.addr).Msg("a change of topics reaches this name server later")
			}
		}()
	}
	wg.Wait()
}
