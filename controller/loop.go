package controller

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"go.etcd.io/raft/v3"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// loop is the one goroutine that drives the member: ticks and events in, effects out.
type loop struct {
	server *Server
	member *member
	links  map[uint64]*link

	number  uint64                   // of the next request; starts at random so that no earlier life's can be met
	waiting map[requestID]chan error // proposals of this leadership; bounded by raft's bound on uncommitted bytes
	reading []chan error             // wait for the round under way
	next    []chan error             // wait for the round after it; at most maxReads
	round   uint64                   // number of the round under way; 0: none
	role    raft.SoftState
	term    uint64 // as of the last turn; a change ends what waits
	founded uint64 // term in which this leader proposed the founding
}

// maxReads bounds the calls that wait for one confirmation; over it the answer is "busy" at once.
const maxReads = 10_000

var errBusy = errors.New("the controller is busy: too many calls wait")

func newLoop(s *Server, m *member) *loop {
	u := ids.NewUUID(nil)
	return &loop{
		server:  s,
		member:  m,
		links:   map[uint64]*link{},
		number:  binary.BigEndian.Uint64(u[:]),
		waiting: map[requestID]chan error{},
	}
}

func (lp *loop) run(ctx context.Context) {
	ticker := time.NewTicker(lp.server.o.TickInterval)
	defer ticker.Stop()
	lp.turn()
	for {
		select {
		case <-ctx.Done():
			lp.abandon(ErrClosed)
			return
		case <-ticker.C:
			lp.member.tick()
			lp.server.lead.watch(lp.server.o.Clock(), lp.server.log)
		case fn := <-lp.server.events:
			fn(lp)
			for range len(lp.server.events) { // what waits shares one write
				(<-lp.server.events)(lp)
			}
		}
		lp.turn()
	}
}

// turn does what is ready, until nothing is, and shows the result to the handlers.
func (lp *loop) turn() {
	for lp.once() && lp.member.node.HasReady() {
	}
}

// once tells false when the member has failed.
func (lp *loop) once() bool {
	m, s := lp.member, lp.server
	fx, err := m.advance()
	if err != nil {
		lp.abandon(err)
		if s.view.Load().failure == "" {
			s.lead.End()
			s.view.Store(&view{failure: err.Error()})
		}
		return false
	}
	if fx.members {
		lp.followMembers()
	}
	for _, msg := range fx.messages {
		l := lp.links[msg.to]
		if l == nil || !l.send(msg) {
			m.reportUnreachable(msg.to)
			if msg.snapshot {
				m.reportSnapshot(msg.to, false)
			}
		}
	}
	for _, r := range fx.results {
		if done := lp.waiting[r.id]; done != nil {
			delete(lp.waiting, r.id)
			done <- r.err
		}
	}
	if fx.soft != nil {
		lp.role = *fx.soft
	}
	status := m.node.BasicStatus()
	if status.GetTerm() != lp.term || lp.role.RaftState != raft.StateLeader {
		lp.term = status.GetTerm()
		lp.abandon(errors.New("this controller does not lead any more: the outcome is unknown, ask again"))
	}
	for _, r := range fx.reads {
		lp.confirmed(binary.BigEndian.Uint64(r.RequestCtx), r.Index)
	}
	lp.show(status.GetTerm())
	return true
}

// show publishes the view, and founds the cluster when this member is the first leader.
func (lp *loop) show(term uint64) {
	m, s := lp.member, lp.server
	first, _ := m.log.FirstIndex()
	v := view{leaderID: s.membership.Load().name(lp.role.Lead), term: term, first: first}
	if lp.role.RaftState == raft.StateLeader && m.applied.Term == term {
		if m.state.cluster.Cluster.isZero() {
			if lp.founded != term {
				lp.founded = term
				if err := m.propose(requestID{m.raftID, lp.take()}, &foundCommand{hexID(ids.NewUUID(nil)), s.membership.Load().Level}); err != nil {
					s.log.Warn().Err(err).Msg("the cluster could not be founded yet")
					lp.founded = 0
				}
			}
		} else {
			v.ready = true
		}
	}
	old := s.view.Load()
	if *old == v {
		return
	}
	if v.ready && (!old.ready || old.term != v.term) {
		s.lead.Begin(s.o.Clock(), v.term)
		s.log.Info().Uint64("controller_term", v.term).Stringer("cluster", ids.ClusterID(m.state.cluster.Cluster)).Msg("this controller leads")
	} else if old.ready && !v.ready {
		s.lead.End()
		s.log.Info().Uint64("controller_term", v.term).Str("leader", v.leaderID).Msg("this controller leads no more")
	}
	s.view.Store(&v)
}

func (lp *loop) take() uint64 {
	lp.number++
	return lp.number
}

// leads returns nil when this member is a leader that may answer.
func (lp *loop) leads() error {
	if lp.member.failed != nil {
		return lp.member.failed
	}
	return lp.server.notLeader()
}

func (lp *loop) propose(c Command, done chan error) {
	if err := lp.leads(); err != nil {
		done <- err
		return
	}
	id := requestID{lp.member.raftID, lp.take()}
	if err := lp.member.propose(id, c); err != nil {
		done <- err
		return
	}
	lp.waiting[id] = done
}

func (lp *loop) read(done chan error) {
	if err := lp.leads(); err != nil {
		done <- err
		return
	}
	if len(lp.next) >= maxReads {
		done <- errBusy
		return
	}
	lp.next = append(lp.next, done)
	lp.ask()
}

// ask starts a round of confirmation for all calls that wait, unless one is under way: that one may have begun before them.
func (lp *loop) ask() {
	if lp.round == 0 && len(lp.next) > 0 {
		lp.round = lp.take()
		lp.reading, lp.next = lp.next, nil
		lp.member.readIndex(lp.round)
	}
}

// confirmed ends a round. A ready leader has applied up to index already or does so in order of the same log: commands that
// were answered are applied here, so no call waits for more.
func (lp *loop) confirmed(round, index uint64) {
	if round != lp.round {
		return
	}
	var err error
	if lp.member.applied.Index < index {
		err = errors.New("this controller has not applied all that is committed: ask again")
	}
	for _, done := range lp.reading {
		done <- err
	}
	lp.round, lp.reading = 0, nil
	lp.ask()
}

// abandon ends everything that waits for this leadership.
func (lp *loop) abandon(err error) {
	for id, done := range lp.waiting {
		delete(lp.waiting, id)
		done <- err
	}
	for _, done := range append(lp.reading, lp.next...) {
		done <- err
	}
	lp.round, lp.reading, lp.next = 0, nil, nil
}
