package controller

import (
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
}

type softNode struct {
	session    hexID
	sequence   uint64    // of the last heartbeat
	heard      time.Time // when it came; zero: none yet
	beats      int       // heartbeats taken
	silent     bool      // said in the log
	reporting  bool      // a report of this node is on its way through the log
	reports    map[ids.ReplicaID]*pb.ReplicaReport
	campaigned map[ids.ReplicaID]time.Time // when the replica was last told to campaign
}

func (s *soft) reset(now time.Time, term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on, s.term, s.since, s.nodes = true, term, now, map[ids.NodeID]*softNode{}
}

func (s *soft) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on, s.nodes = false, nil
}

// hear takes a heartbeat. It tells false when it is older than one that came before it, or nobody leads here.
func (s *soft) hear(now time.Time, id ids.NodeID, session hexID, sequence uint64, reports []*pb.ReplicaReport) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.on {
		return false
	}
	n := s.nodes[id]
	if n == nil || n.session != session {
		n = &softNode{session: session, campaigned: map[ids.ReplicaID]time.Time{}}
		s.nodes[id] = n
	} else if sequence <= n.sequence {
		return false
	}
	n.sequence, n.heard = sequence, now
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

// mayCampaign tells whether the replica follows in its first epoch, and was not told to campaign just now.
func (s *soft) mayCampaign(now time.Time, node ids.NodeID, id ids.ReplicaID) (term uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	if n == nil {
		return 0, false
	}
	r := n.reports[id]
	if r.GetEpoch() == 0 || r.GetRole() != pb.Role_ROLE_FOLLOWER || r.GetParked() != "" || r.GetPoisoned() != "" {
		return 0, false
	}
	if last, told := n.campaigned[id]; told && now.Sub(last) < campaignEvery {
		return 0, false
	}
	n.campaigned[id] = now
	return r.GetTerm(), true
}

// nodeView is a copy of what is known about one node.
type nodeView struct {
	heard   time.Time // zero: not since this leadership began
	live    bool
	early   bool                                // not heard, and had no chance to report yet: nothing can be said of it
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
		out.heard[id] = nodeView{heard: n.heard, live: !n.heard.IsZero() && now.Sub(n.heard) < s.silence, reports: n.reports}
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
