package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// This file has a controller that waits, with an empty folder, until an operator lets it be the first one of a cluster whose controllers
// are lost. Nodes that find no other controller testify to it, again and again:
//
//	Testify ──▶ kept ──Recover: plan──▶ shown
//	                 ──Recover: execute──▶ nodes are asked to hold to this recovery ──all of them do──▶ plan once more ──▶ written, leads
//
// A node that holds to a recovery takes nothing any more from controllers of an earlier one, or of none, also when they come back.

// errAwaitsRecovery is what every other call is answered with.
var errAwaitsRecovery = errors.New("this controller waits for a recovery: run `ledgermq admin controller recover` with its address, or start it without --recover")

const (
	testimonyAge  = 5 * time.Second // an older one does not count: its node may be gone
	holdPatience  = 8 * time.Second // for the nodes to hold to a recovery
	maxTestifying = 10_000          // nodes
)

// testimony is what a node said last.
type testimony struct {
	*pb.Testimony
	at time.Time
}

// recovering is what a controller that waits for a recovery knows.
type recovering struct {
	token   hexID // of the founding that may come of it
	decided chan *State

	mu     sync.Mutex
	number uint32
	asks   bool // nodes are to hold to it
	done   bool
	heard  map[string]testimony // by node id and check code

	acting sync.Mutex // held while it is executed
}

func newRecovering() *recovering {
	return &recovering{token: hexID(ids.NewUUID(nil)), decided: make(chan *State, 1), number: 1, heard: map[string]testimony{}}
}

// hear keeps what a node says, and returns what it is to hold to, nil when nothing yet.
func (r *recovering) hear(now time.Time, t *pb.Testimony) (*pb.Recovery, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := t.GetNodeId() + "/" + string(t.GetCheckCode())
	if _, known := r.heard[key]; !known && len(r.heard) >= maxTestifying {
		return nil, errBusy
	}
	r.heard[key] = testimony{t, now}
	if held := t.GetRecovery(); string(held.GetToken()) != string(r.token[:]) && held.GetNumber() >= r.number {
		r.number = held.GetNumber() + 1
	}
	if !r.asks {
		return nil, nil
	}
	return &pb.Recovery{Number: r.number, Token: slices.Clone(r.token[:])}, nil
}

// fresh returns what nodes said since a moment ago, and no longer ago than since, by node.
func (r *recovering) fresh(now, since time.Time) (number uint32, list []*pb.Testimony) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range sortedKeys(r.heard) {
		if t := r.heard[key]; now.Sub(t.at) < testimonyAge && !t.at.Before(since) {
			list = append(list, t.Testimony)
		}
	}
	return r.number, list
}

// ask has the nodes hold to this recovery, as long as somebody executes it: of two controllers that ask, each would have to outbid the
// other for ever.
func (r *recovering) ask() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asks = true
}

func (r *recovering) askNoMore() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asks = r.done
}

// waitsFor lists the nodes of list that do not hold to the recovery yet, or have not said so in now.
func (r *recovering) waitsFor(list, now []*pb.Testimony) (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range list {
		if !slices.Contains(out, t.GetNodeId()) && !slices.ContainsFunc(now, func(n *pb.Testimony) bool {
			held := n.GetRecovery()
			return n.GetNodeId() == t.GetNodeId() && held.GetNumber() == r.number && string(held.GetToken()) == string(r.token[:])
		}) {
			out = append(out, t.GetNodeId())
		}
	}
	return out
}

// recover waits for the decision and writes it.
func (s *Server) recover(r *recovering) error {
	s.log.Warn().Msg("this controller waits for a recovery: nodes that find no other one testify to it")
	var state *State
	select {
	case state = <-r.decided:
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
	m := &membership{Token: r.token, Members: []identity{s.identity}, Level: state.level().orNone()}
	if err := s.store.adopt(m, state); err != nil {
		return fmt.Errorf("writing the recovered state: %w", err)
	}
	s.loaded.membership = m
	if err := s.store.db.View(s.loaded.read); err != nil {
		return err
	}
	s.membership.Store(m)
	s.log.Warn().Uint32("recovery", state.cluster.Recovery).Stringer("cluster", ids.ClusterID(state.cluster.Cluster)).Int("groups", len(state.groups)).
		Msg("the controllers are made anew from what the nodes have: this is the first one")
	return nil
}

// awaits returns what this controller waits for a recovery with, nil when it does not.
func (s *Server) awaits() *recovering {
	if s.membership.Load() != nil {
		return nil
	}
	return s.recovering
}

func (c *calls) Testify(_ context.Context, t *pb.Testimony) (*pb.TestifyResponse, error) {
	s := c.s
	r := s.awaits()
	if r == nil {
		return nil, errors.New("this controller waits for no recovery")
	}
	if err := checkTestimony(t); err != nil {
		return nil, err
	}
	hold, err := r.hear(s.o.Clock(), t)
	return &pb.TestifyResponse{HoldTo: hold}, err
}

// checkTestimony refuses what no node says. What it means is judged by planRecovery.
func checkTestimony(t *pb.Testimony) error {
	node := ids.NodeID(t.GetNodeId())
	if err := node.Check(); err != nil {
		return refuse(ErrInvalid, "%v", err)
	}
	if _, err := id16("check code", t.GetCheckCode()); err != nil {
		return err
	}
	if n := len(t.GetClusterId()); n != 0 && n != 16 {
		return refuse(ErrInvalid, "node %s: a cluster id of %d bytes", node, n)
	}
	if n := len(t.GetReplicas()); n > maxReports {
		return refuse(ErrInvalid, "node %s testifies of %d replicas: at most %d", node, n, maxReports)
	}
	if a := t.GetPeerAddress(); a != "" && !validAddress(a) {
		return refuse(ErrInvalid, "node %s says that it is at %q: want host:port of at most 255 visible characters", node, cut(a))
	}
	for _, r := range t.GetReplicas() {
		if len(r.GetGroupId()) != 16 || len(r.GetIncarnation()) != 0 && len(r.GetIncarnation()) != 16 {
			return refuse(ErrInvalid, "node %s testifies of a replica whose ids have a wrong length", node)
		}
		r.Lost, r.Unready = cut(r.GetLost()), cut(r.GetUnready())
	}
	return nil
}

// Recover plans a recovery, or executes it.
func (c *calls) Recover(ctx context.Context, req *pb.RecoverRequest) (*pb.RecoverResponse, error) {
	s := c.s
	r := s.awaits()
	if r == nil {
		return nil, refuse(ErrInvalid, "controller %s waits for no recovery: it has its data; start one with an empty folder and --recover when the disks of all controllers are lost", s.identity.ID)
	}
	if !r.acting.TryLock() {
		return nil, refuse(ErrNotNow, "controller %s is being recovered already: look again in some seconds", s.identity.ID)
	}
	defer r.acting.Unlock()
	stopped := nodeIDs(req.GetStopped())
	number, list := r.fresh(s.o.Clock(), time.Time{})
	living := s.living(ctx, list)
	p := planRecovery(number, r.token, list, stopped, s.o.Clock().UnixMilli())
	p.blocked = append(living, p.blocked...)
	if !req.GetExecute() {
		return p.proto(number, list), nil
	}
	if len(p.blocked) > 0 {
		return nil, refuse(ErrNotNow, "the controllers cannot be recovered: %s", strings.Join(p.blocked, "; "))
	}
	r.ask()
	defer r.askNoMore()
	since := s.o.Clock()
	ctx, cancel := context.WithTimeout(ctx, holdPatience)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		next, now := r.fresh(s.o.Clock(), since)
		missing := r.waitsFor(slices.Concat(list, now), now) // also one that has come meanwhile
		if len(missing) == 0 {
			number, list = next, now
			break
		}
		select {
		case <-ticker.C:
		case <-s.ctx.Done():
			return nil, ErrClosed
		case <-ctx.Done():
			if next != number {
				return nil, refuse(ErrNotNow, "the controllers cannot be recovered yet: another controller waits for a recovery too, and the nodes were asked to hold to that one (%d times meanwhile): "+
					"stop it, only one may be started with --recover, and ask again", next-number)
			}
			return nil, refuse(ErrNotNow, "the controllers cannot be recovered yet: node %s does not say that it holds to this recovery: look whether it runs, and ask again", strings.Join(missing, ", "))
		}
	}
	p = planRecovery(number, r.token, list, stopped, s.o.Clock().UnixMilli())
	if len(p.blocked) > 0 {
		return nil, refuse(ErrNotNow, "the controllers cannot be recovered: %s", strings.Join(p.blocked, "; "))
	}
	r.mu.Lock()
	done := r.done
	r.done = true
	r.mu.Unlock()
	if !done {
		r.decided <- p.state
	}
	return p.proto(number, list), nil
}

// living asks the controllers that the nodes know whether one of them has its data.
func (s *Server) living(ctx context.Context, list []*pb.Testimony) (out []string) {
	known := map[string]string{} // address to a node that told it
	for _, t := range list {
		for _, a := range t.GetControllers() {
			if validAddress(a) && known[a] == "" && len(known) < maxLearned {
				known[a] = t.GetNodeId()
			}
		}
	}
	said := make([]string, len(known))
	var wg sync.WaitGroup
	for i, a := range sortedKeys(known) {
		wg.Go(func() {
			conn, err := dialPeer(a, &secretCredentials{secret: s.o.Secret})
			if err != nil {
				return
			}
			defer conn.Close()
			askCtx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			defer cancel()
			who, err := pb.NewPeerClient(conn).Identify(askCtx, &pb.IdentifyRequest{Id: s.identity.ID, RaftId: s.identity.RaftID})
			if err == nil && who.GetMembership() != nil {
				said[i] = fmt.Sprintf("controller %s at %s, which node %s knows, answers and has its data: let it go on, `admin controller replace` gives the places of lost ones to new ones; "+
					"or stop it for ever", cut(who.GetId()), a, known[a])
			}
		})
	}
	wg.Wait()
	return slices.DeleteFunc(said, func(line string) bool { return line == "" })
}

func (p *recoveryPlan) proto(number uint32, list []*pb.Testimony) *pb.RecoverResponse {
	resp := &pb.RecoverResponse{ClusterId: p.cluster.bytes(), Recovery: number, Groups: p.groups, Notes: p.notes, Blocked: p.blocked}
	for _, t := range list {
		resp.Nodes = append(resp.Nodes, t.GetNodeId())
	}
	slices.Sort(resp.Nodes)
	return resp
}

// outlived refuses a node that holds to a recovery of which this controller is not: what it knows counts no more.
func (s *Server) outlived(node ids.NodeID, held *pb.Recovery) error {
	own := s.recovery()
	switch c := cmp.Compare(held.GetNumber(), own.GetNumber()); {
	case c > 0, c == 0 && string(held.GetToken()) != string(own.GetToken()):
		if s.past.CompareAndSwap(false, true) {
			s.log.Error().Str("node", string(node)).Uint32("recovery", held.GetNumber()).Msg("the controllers were recovered without this one: stop it and empty its folder")
		}
		return fmt.Errorf("controller %s is one of before recovery %d of the controllers: stop it and empty its folder", s.identity.ID, held.GetNumber())
	}
	return nil
}

// recovery names that from which these controllers come, nil when from none.
func (s *Server) recovery() (out *pb.Recovery) {
	token := s.membership.Load().Token
	s.readState(func(st *State) {
		if n := st.cluster.Recovery; n > 0 {
			out = &pb.Recovery{Number: n, Token: slices.Clone(token[:])}
		}
	})
	return out
}
