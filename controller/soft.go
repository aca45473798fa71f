package controller

import (
	"bytes"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// soft is what the leader knows from heartbeats and nobody else needs: when each node was heard, and what it said of its
// replicas. It begins empty with each leadership; one round of heartbeats fills it.
type soft struct {
	silence time.Duration

	mu    sync.Mutex
	on    bool
	term  uint64
	since time.Time // this leadership began to answer
	nodes map[ids.NodeID]*softNode
	plans map[ids.GroupID]*plan
}

// plan is what the leader remembers of a group between two decisions.
type plan struct {
	epoch     ids.Epoch     // the newest one that it saw
	seen      time.Time     // when it first saw that one
	first     ids.ReplicaID // the replica that is given the record first
	failures  int           // epochs in a row that were given up
	flaps     map[ids.ReplicaID]flap
	proposing bool
	campaign  ids.ReplicaID // is to campaign
	order     order         // not given out yet; its to is 0 when there is none
	ordered   time.Time     // when a hand-over was last ordered by a decision
	stuck     string
	doomed    time.Time // since when no majority can prove what it holds; zero: one can
}

// flap is how often a replica left the voters, each time within flapMemory of the time before.
type flap struct {
	times int
	last  time.Time
}

// count returns the times as of now.
func (f flap) count(now time.Time) int {
	if now.Sub(f.last) >= flapMemory {
		return 0
	}
	return f.times
}

// told is an order to campaign that was given out.
type told struct {
	at    time.Time
	epoch ids.Epoch // the group's newest one then
}

type softNode struct {
	session    hexID
	levels     Levels
	sequence   uint64    // of the last heartbeat
	heard      time.Time // when it came; zero: none yet
	beats      int       // heartbeats taken
	silent     bool      // said in the log
	reporting  bool      // a report of this node is on its way through the log
	reports    map[ids.ReplicaID]*pb.ReplicaReport
	campaigned map[ids.ReplicaID]told // when each replica was last told to campaign
}

func (s *soft) reset(now time.Time, term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on, s.term, s.since, s.nodes, s.plans = true, term, now, map[ids.NodeID]*softNode{}, map[ids.GroupID]*plan{}
}

func (s *soft) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on, s.nodes, s.plans = false, nil, nil
}

// hear takes a heartbeat. It tells false when it is older than one that came before it, or nobody leads here.
func (s *soft) hear(now time.Time, id ids.NodeID, session hexID, sequence uint64, levels Levels, reports []*pb.ReplicaReport) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.on {
		return false
	}
	n := s.nodes[id]
	if n == nil || n.session != session {
		n = &softNode{session: session, campaigned: map[ids.ReplicaID]told{}}
		s.nodes[id] = n
	} else if sequence <= n.sequence {
		return false
	}
	n.sequence, n.heard, n.levels = sequence, now, levels
	n.beats++
	n.reports = make(map[ids.ReplicaID]*pb.ReplicaReport, len(reports))
	for _, r := range reports {
		n.reports[ids.ReplicaID(r.GetReplicaId())] = r
	}
	return true
}

// heardFrom returns when the session was last heard, and how often; before the first heartbeat it is the beginning of this
// leadership, since the session may have been heard by another leader until then.
func (s *soft) heardFrom(id ids.NodeID, session hexID) (last time.Time, beats int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[id]; n != nil && n.session == session && !n.heard.IsZero() {
		return n.heard, n.beats
	}
	return s.since, 0
}

// beginReport reserves the node's one report in the log. endReport frees it.
func (s *soft) beginReport(id ids.NodeID, session hexID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[id]
	if n == nil || n.session != session || n.reporting {
		return false
	}
	n.reporting = true
	return true
}

func (s *soft) endReport(id ids.NodeID, session hexID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[id]; n != nil && n.session == session {
		n.reporting = false
	}
}

// campaignEvery is the shortest time between two orders to campaign to one replica.
const campaignEvery = 500 * time.Millisecond

// mayCampaign tells whether the replica is to campaign and was not told so just now, and in which term.
func (s *soft) mayCampaign(now time.Time, g *groupEntry, r *replicaEntry) (term uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, p := s.nodes[r.Node], s.plans[ids.GroupID(g.ID)]
	if n == nil || p == nil || p.campaign != r.ID {
		return 0, false
	}
	report := n.reports[r.ID]
	if report.GetEpoch() == 0 || report.GetParked() != "" || report.GetPoisoned() != "" {
		return 0, false
	}
	if last, ok := n.campaigned[r.ID]; ok && now.Sub(last.at) < campaignEvery && last.epoch == p.epoch {
		return 0, false
	}
	n.campaigned[r.ID] = told{now, p.epoch}
	if ids.Epoch(report.GetEpoch()) < g.Epoch {
		return uint64(ids.MakeTerm(g.Epoch, 0)), true
	}
	return report.GetTerm(), true
}

// mayHaveRecord tells whether the replica is given the newest record now: for a moment only the one that is to lead in it is, so
// that the others learn of it from its vote request and the group does not stand still for longer than an election.
func (s *soft) mayHaveRecord(now time.Time, g *groupEntry, r *replicaEntry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.plans[ids.GroupID(g.ID)]
	return p == nil || g.Active == g.Epoch || p.epoch < g.Epoch || p.first == 0 || p.first == r.ID || now.Sub(p.seen) >= firstAlone
}

// view returns what is known of a group, and the memory of it. The caller holds the state still.
func (s *soft) view(now time.Time, g *groupEntry) (*groupView, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.on {
		return nil, false
	}
	p := s.plans[ids.GroupID(g.ID)]
	if p == nil {
		p = &plan{flaps: map[ids.ReplicaID]flap{}}
		s.plans[ids.GroupID(g.ID)] = p
	}
	if p.epoch != g.Epoch {
		p.epoch, p.seen, p.campaign, p.first, p.order = g.Epoch, now, 0, 0, order{}
	}
	if g.Active == g.Epoch {
		p.failures = 0
	}
	v := &groupView{replicas: map[ids.ReplicaID]replicaView{}, newest: now.Sub(p.seen), first: p.first, failures: p.failures, flaps: map[ids.ReplicaID]int{}, silence: s.silence}
	switch {
	case !g.doomed():
		p.doomed = time.Time{}
	case p.doomed.IsZero():
		p.doomed = now
	default:
		v.doomed = now.Sub(p.doomed)
	}
	for _, r := range g.Replicas {
		rv := replicaView{silent: now.Sub(s.since), early: now.Sub(s.since) < hearing*s.silence}
		if n := s.nodes[r.Node]; n != nil && !n.heard.IsZero() {
			rv.heard, rv.early, rv.silent = true, false, now.Sub(n.heard)
			rv.learnFrom(n.reports[r.ID], r.Lost != "")
			rv.usable = rv.usable && bytes.Equal(n.reports[r.ID].GetIncarnation(), r.Incarnation[:])
		}
		v.replicas[r.ID] = rv
		if n := p.flaps[r.ID].count(now); n > 0 {
			v.flaps[r.ID] = n
		}
	}
	return v, !p.proposing
}

// learnFrom takes over what the node said of the replica.
func (v *replicaView) learnFrom(r *pb.ReplicaReport, lost bool) {
	if r == nil {
		return
	}
	v.able = r.GetEpoch() > 0 && r.GetParked() == "" && r.GetPoisoned() == "" && !lost
	v.master = r.GetRole() == pb.Role_ROLE_MASTER
	v.leaving, v.frozen = r.GetLeaving(), r.GetFrozen() && !lost // an unclean election may have gone on without it
	v.epoch, v.term = ids.Epoch(r.GetEpoch()), ids.Term(r.GetTerm())
	v.lastTerm, v.last = ids.Term(r.GetLastTerm()), ids.Index(r.GetLastIndex())
	v.terms = termsOf(r.GetTerms())
	v.usable = v.able || r.GetLooked()
	v.told = r.GetMissing() || r.GetLooked() || v.able && (len(v.terms) > 0 || v.last == 0)
	v.masterSilent, v.masterClosed = time.Duration(r.GetMasterSilentMillis())*time.Millisecond, r.GetMasterClosed()
	if !v.master {
		return
	}
	v.members = make(map[ids.ReplicaID]memberView, len(r.GetMembers()))
	for _, m := range r.GetMembers() {
		v.members[ids.ReplicaID(m.GetReplicaId())] = memberView{
			stalled: time.Duration(m.GetStalledMillis()) * time.Millisecond, closed: m.GetClosed(),
			caughtUp: time.Duration(m.GetCaughtUpMillis()) * time.Millisecond, match: ids.Index(m.GetMatch())}
	}
}

// begin notes what was decided; end what became of a proposal.
func (s *soft) begin(id ids.GroupID, d decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.plans[id]; p != nil {
		p.campaign, p.stuck, p.proposing = d.campaign, d.stuck, d.voters != nil || d.renew != 0 || d.unclean != 0 || d.remove
	}
}

func (s *soft) end(now time.Time, id ids.GroupID, epoch ids.Epoch, d decision, issued bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.plans[id]
	if p == nil {
		return
	}
	p.proposing = false
	if issued && d.remove {
		delete(s.plans, id)
		return
	}
	if !issued || d.voters == nil {
		return
	}
	p.epoch, p.seen, p.first, p.campaign = epoch, now, d.campaign, d.campaign
	if d.givenUp {
		p.failures++
	}
	if d.left != 0 {
		p.flaps[d.left] = flap{p.flaps[d.left].count(now) + 1, now}
	}
}

// stuck returns why a group gets no master, "" when it has one or will.
func (s *soft) stuck(id ids.GroupID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.plans[id]; p != nil {
		return p.stuck
	}
	return ""
}

// reported returns what the node said of its replicas, by id.
func (s *soft) reported(node ids.NodeID) (out []*pb.ReplicaReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	if n == nil {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(n.reports)) {
		out = append(out, n.reports[id])
	}
	return out
}

// nodeView is a copy of what is known about one node.
type nodeView struct {
	heard   time.Time     // zero: not since this leadership began
	silent  time.Duration // since then
	live    bool
	early   bool                                // not heard, and had no chance to report yet: nothing can be said of it
	levels  Levels                              // that its program understands; zero: not heard
	reports map[ids.ReplicaID]*pb.ReplicaReport // never changed once here
}

// nodeViews is what is known about all nodes.
type nodeViews struct {
	heard map[ids.NodeID]nodeView
	early bool // this leadership is younger than hearing
}

// of returns what is known about one node, whether it was heard or not.
func (v nodeViews) of(id ids.NodeID) nodeView {
	n, ok := v.heard[id]
	n.early = v.early && !ok
	return n
}

// hearing is how long a new leadership waits for the first report of a node until it calls the node silent, in node silences.
// A node finds a controller that is back within a second: its back-off is no longer.
const hearing = 3

func (s *soft) nodesAt(now time.Time) nodeViews {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := nodeViews{make(map[ids.NodeID]nodeView, len(s.nodes)), now.Sub(s.since) < hearing*s.silence}
	for id, n := range s.nodes {
		silent := now.Sub(n.heard)
		out.heard[id] = nodeView{heard: n.heard, silent: silent, live: !n.heard.IsZero() && silent < s.silence, levels: n.levels, reports: n.reports}
	}
	return out
}

// watch says in the log which nodes fell silent, and which are back.
func (s *soft) watch(now time.Time, log zerolog.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, n := range s.nodes {
		if silent := now.Sub(n.heard) >= s.silence; silent != n.silent {
			n.silent = silent
			if silent {
				log.Warn().Str("node", string(id)).Dur("silent", now.Sub(n.heard)).Msg("node is silent")
			} else {
				log.Info().Str("node", string(id)).Msg("node is heard again")
			}
		}
	}
}
