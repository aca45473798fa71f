package controller

import (
	"fmt"
	"slices"
	"strings"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// news returns what of a heartbeat differs from the state, or nil.
func (s *State) news(node ids.NodeID, session hexID, req *pb.HeartbeatRequest) *reportCommand {
	n := s.nodes[node]
	if n == nil {
		return nil
	}
	cmd := &reportCommand{Node: node, Session: session}
	mine := map[string]bool{} // groups with a replica here
	for _, r := range req.GetReplicas() {
		var group hexID
		copy(group[:], r.GetGroupId())
		g, e := s.replicaOn(group, ids.ReplicaID(r.GetReplicaId()), node)
		if e == nil {
			continue
		}
		mine[g.Name] = true
		f := replicaFacts{Group: g.ID, Replica: e.ID, Missing: r.GetMissing(), Starts: r.GetStarts(), Lost: r.GetIdentityLost(), Revived: ids.Epoch(r.GetRevived())}
		copy(f.Incarnation[:], r.GetIncarnation())
		trial := *g
		trial.Replicas = append([]replicaEntry(nil), g.Replicas...)
		if s.applyReplicaFacts(&trial, trial.replica(e.ID), f) {
			cmd.Replicas = append(cmd.Replicas, f)
		}
		term := ids.Term(r.GetTerm())
		if r.GetRole() == pb.Role_ROLE_MASTER && e.Lost == "" && term > g.Master.Term && term.Epoch() >= 1 && term.Epoch() <= g.Epoch {
			cmd.Masters = append(cmd.Masters, masterFacts{Group: g.ID, Replica: e.ID, Term: term})
		}
	}
	a := addresses{Peer: req.GetAddresses().GetPeer(), Metrics: req.GetAddresses().GetMetrics()}
	if s.level() >= 2 {
		a.Zone = req.GetAddresses().GetZone()
	}
	for name, addr := range req.GetAddresses().GetClients() {
		if mine[name] && addr != "" {
			if a.Clients == nil {
				a.Clients = map[string]string{}
			}
			a.Clients[name] = addr
		}
	}
	if !a.equal(n.Addresses) {
		cmd.Addresses = &a
	}
	if cmd.Addresses == nil && cmd.Replicas == nil && cmd.Masters == nil {
		return nil
	}
	return cmd
}

func (a addresses) proto() *pb.Addresses {
	p := &pb.Addresses{Peer: a.Peer, Metrics: a.Metrics, Zone: a.Zone, Clients: map[string]string{}}
	for k, v := range a.Clients {
		p.Clients[k] = v
	}
	return p
}

// wanted is the answer to a heartbeat.
func (s *Server) wanted(node ids.NodeID) *pb.HeartbeatResponse {
	v := s.view.Load()
	resp := &pb.HeartbeatResponse{LeaderId: v.leaderID, LeaderAddress: s.address(v.leaderID), Controllers: s.members(), Recovery: s.recovery()}
	now := s.o.Clock()
	s.readState(func(st *State) {
		resp.ClusterId = append([]byte(nil), st.cluster.Cluster[:]...)
		resp.Replicas, resp.Level = s.lead.Wanted(now, st, node), uint32(st.level())
		resp.Namesrv = st.cluster.Namesrv
	})
	return resp
}

// givenUp tells a node which of the replicas that it reports belong to nobody any more: they must not take part, though their
// folders are whole.
func (s *State) givenUp(node ids.NodeID, reports []*pb.ReplicaReport) (out []*pb.WantedReplica) {
	for _, r := range reports {
		var group ids.GroupID
		copy(group[:], r.GetGroupId())
		if e := s.removed[hexID(group)]; e != nil && len(r.GetGroupId()) == len(group) {
			out = append(out, e.ofRemoved(r))
			continue
		}
		g := s.byID[group]
		if g == nil || r.GetReplicaId() == 0 || ids.ReplicaID(r.GetReplicaId()) >= s.cluster.NextReplica ||
			slices.ContainsFunc(g.Replicas, func(e replicaEntry) bool { return e.Node == node }) {
			continue
		}
		unclean := slices.ContainsFunc(g.Uncleans, func(u uncleanElection) bool { return slices.Contains(u.Gone, ids.ReplicaID(r.GetReplicaId())) })
		out = append(out, &pb.WantedReplica{GroupId: r.GetGroupId(), GroupName: g.Name, ReplicaId: r.GetReplicaId(), Incarnation: r.GetIncarnation(),
			Lost:    fmt.Sprintf("replica %d was taken out: group %s goes on without it", r.GetReplicaId(), g.Name),
			Retired: true, Planned: !unclean, Unclean: g.uncleans(),
			MasterReplicaId: uint64(g.Master.Replica), MasterTerm: uint64(g.Master.Term), Others: s.others(g, 0)})
	}
	return out
}

func (s *State) wantedReplica(g *groupEntry, r *replicaEntry) *pb.WantedReplica {
	w := &pb.WantedReplica{
		GroupId:         append([]byte(nil), g.ID[:]...),
		GroupName:       g.Name,
		ReplicaId:       uint64(r.ID),
		Slot:            uint32(r.Slot),
		SegmentSize:     g.SegmentSize,
		EpochRecord:     g.Record.bytes(),
		Epoch:           uint32(g.Epoch),
		Starts:          r.Starts,
		Lost:            r.Lost,
		Planned:         strings.HasPrefix(r.Lost, givenUpByOperator),
		MasterReplicaId: uint64(g.Master.Replica),
		MasterTerm:      uint64(g.Master.Term),
		Answers:         uint32(g.Answers),
		MinIsr:          uint32(g.MinISR),
		Incarnation:     r.Incarnation.bytes(),
		AsyncFlush:      g.Async,
		Revived:         uint32(r.Revived),
		Unclean:         g.uncleans(),
	}
	w.Wishes = g.wishes()
	w.Others = s.others(g, r.ID)
	return w
}

// others says where the replicas of a group are, but for one.
func (s *State) others(g *groupEntry, but ids.ReplicaID) (out []*pb.GroupReplica) {
	for i := range g.Replicas {
		if o := &g.Replicas[i]; o.ID != but {
			a := s.nodes[o.Node].Addresses
			out = append(out, &pb.GroupReplica{
				ReplicaId: uint64(o.ID), Slot: uint32(o.Slot), NodeId: string(o.Node), PeerAddress: a.Peer, ClientAddress: a.Clients[g.Name],
			})
		}
	}
	return out
}

// wishes is what each node keeps of the group in case all controllers are lost.
func (g *groupEntry) wishes() *pb.GroupWishes {
	w := &pb.GroupWishes{Answers: uint32(g.Answers), Members: uint32(g.Members), MinIsr: uint32(g.MinISR), PreferredNode: string(g.Preferred)}
	for _, r := range g.Replicas {
		w.Replicas = append(w.Replicas, &pb.WishedReplica{ReplicaId: uint64(r.ID), Slot: uint32(r.Slot), NodeId: string(r.Node), Learner: r.Learner, Leaving: r.Leaving})
	}
	return w
}

// bytes returns the id for the wire: empty when it is zero.
func (h hexID) bytes() []byte {
	if h.isZero() {
		return nil
	}
	return append([]byte(nil), h[:]...)
}

// describe returns a group with what is known about it now.
func (s *State) describe(g *groupEntry, nodes nodeViews) *pb.Group {
	out := &pb.Group{
		Name:          g.Name,
		GroupId:       append([]byte(nil), g.ID[:]...),
		State:         pb.GroupState_GROUP_STATE_READY,
		Answers:       uint32(g.Answers),
		Members:       uint32(g.Members),
		MinIsr:        uint32(g.MinISR),
		SegmentSize:   g.SegmentSize,
		AsyncFlush:    g.Async,
		PreferredNode: string(g.preferredNode()),
		Changing:      g.outstanding(nodes),
		Epoch:         uint32(g.Epoch),
		EpochRecord:   g.Record.bytes(),
	}
	out.ActiveEpoch, out.ModeVoters = uint32(g.Active), uint32(g.modeVoters())
	for _, c := range g.Changes {
		e := &pb.Change{Epoch: uint32(c.Epoch), Reason: c.Reason, Millis: c.Millis, Unclean: c.Unclean}
		for _, id := range c.Voters {
			e.Voters = append(e.Voters, uint64(id))
		}
		out.Changes = append(out.Changes, e)
	}
	out.Uncleans, out.UncleanElections = g.uncleans(), g.UncleanCount
	if g.Epoch == 0 {
		out.State = pb.GroupState_GROUP_STATE_PENDING
		out.WaitingFor = g.waitingFor()
	}
	votes := g.voters()
	for _, r := range g.Replicas {
		a, node := s.nodes[r.Node].Addresses, nodes.of(r.Node)
		silent := int64(-1)
		if !node.heard.IsZero() {
			silent = node.silent.Milliseconds()
		}
		out.Replicas = append(out.Replicas, &pb.Replica{
			ReplicaId:     uint64(r.ID),
			Slot:          uint32(r.Slot),
			NodeId:        string(r.Node),
			Incarnation:   r.Incarnation.bytes(),
			Voter:         votes.has(r.ID),
			Lost:          r.Lost,
			PeerAddress:   a.Peer,
			ClientAddress: a.Clients[g.Name],
			Live:          node.live,
			NotHeardYet:   node.early,
			Report:        node.reports[r.ID],
			Learner:       r.Learner,
			Leaving:       r.Leaving,
			SilentMillis:  silent,
		})
	}
	if g.Master.Replica != 0 {
		r := g.replica(g.Master.Replica)
		live := g.masterLive(nodes)
		out.Master = &pb.Master{
			ReplicaId:     uint64(r.ID),
			NodeId:        string(r.Node),
			Term:          uint64(g.Master.Term),
			ClientAddress: s.nodes[r.Node].Addresses.Clients[g.Name],
			Live:          live,
			NotHeardYet:   !live && g.unheard(nodes),
		}
	}
	return out
}

// masterLive tells whether the known master was heard, and said that it is.
func (g *groupEntry) masterLive(nodes nodeViews) bool {
	r := g.replica(g.Master.Replica)
	if r == nil {
		return false
	}
	n := nodes.of(r.Node)
	report := n.reports[r.ID]
	return n.live && report.GetRole() == pb.Role_ROLE_MASTER && ids.Term(report.GetTerm()) == g.Master.Term
}

// unheard tells whether a replica's node had no chance to report yet: it may be the master by now.
func (g *groupEntry) unheard(nodes nodeViews) bool {
	return slices.ContainsFunc(g.Replicas, func(r replicaEntry) bool { return nodes.of(r.Node).early })
}
