package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// calls answers nodes and tools.
type calls struct {
	pb.UnimplementedControllerServer
	s *Server
}

// Bounds of what a heartbeat may carry.
const (
	maxReports    = 2 * maxReplicas // of one node, which may have folders that the controller does not know
	maxReportText = 500             // bytes of a reason; longer ones are cut
	reportWait    = 300 * time.Millisecond
)

func id16(what string, b []byte) (hexID, error) {
	var id hexID
	if len(b) != len(id) {
		return id, refuse(ErrInvalid, "%s of %d bytes: want %d", what, len(b), len(id))
	}
	copy(id[:], b)
	return id, nil
}

// readState runs fn while the state stands still.
func (s *Server) readState(fn func(*State)) {
	m := s.member.Load()
	m.stateMu.RLock()
	defer m.stateMu.RUnlock()
	fn(m.state)
}

func (c *calls) RegisterNode(ctx context.Context, req *pb.RegisterNodeRequest) (*pb.RegisterNodeResponse, error) {
	s := c.s
	if err := s.notLeader(); err != nil {
		return nil, err
	}
	cmd := &registerCommand{Node: ids.NodeID(req.GetNodeId())}
	var err error
	if err := cmd.Node.Check(); err != nil {
		return nil, refuse(ErrInvalid, "%v", err)
	}
	if cmd.CheckCode, err = id16("check code", req.GetCheckCode()); err != nil {
		return nil, err
	}
	if cmd.Session, err = id16("session", req.GetSession()); err != nil {
		return nil, err
	}
	if err := s.checkCluster(cmd.Node, req.GetClusterId()); err != nil {
		return nil, err
	}
	if err := s.outlived(cmd.Node, req.GetRecovery()); err != nil {
		return nil, err
	}
	s.readState(func(st *State) { err = st.understood(cmd.Node, LevelsOf(req.GetLevels())) })
	if err != nil {
		return nil, err
	}
	cmd.Replaces, err = s.silentSession(ctx, cmd)
	if err != nil {
		return nil, err
	}
	if cmd.Replaces != cmd.Session {
		if err := s.propose(ctx, cmd); err != nil {
			return nil, err
		}
		s.log.Info().Str("node", req.GetNodeId()).Msg("node registered")
	} else if err := s.confirm(ctx); err != nil {
		return nil, err
	}
	resp := &pb.RegisterNodeResponse{Controllers: s.members(), Recovery: s.recovery()}
	s.readState(func(st *State) { resp.ClusterId = st.cluster.Cluster[:] })
	return resp, nil
}

// checkCluster refuses a node whose data folder belongs to another cluster.
func (s *Server) checkCluster(node ids.NodeID, cluster []byte) error {
	if len(cluster) == 0 {
		return nil
	}
	id, err := id16("cluster id", cluster)
	if err != nil {
		return err
	}
	s.readState(func(st *State) {
		if id != st.cluster.Cluster {
			err = refuse(ErrNodeConflict, "node %s belongs to cluster %v, this controller to %v: give the node its own controllers, or an empty data folder; "+
				"when its controllers have lost their disks, `ledgermq admin controller recover` makes new ones from what the nodes have",
				node, ids.ClusterID(id), ids.ClusterID(st.cluster.Cluster))
		}
	})
	return err
}

// silentSession returns the session that a new process of the node replaces: it waits until that one has been silent for 60 %
// of the node silence, and refuses when it goes on speaking meanwhile.
func (s *Server) silentSession(ctx context.Context, cmd *registerCommand) (hexID, error) {
	var before hexID
	var address string
	var err error
	s.readState(func(st *State) {
		var n *nodeEntry
		if n, err = st.checkNode(cmd.Node, cmd.CheckCode); n != nil {
			before, address = n.Session, n.Addresses.Peer
		}
	})
	if err != nil || before.isZero() || before == cmd.Session {
		return before, err
	}
	enough := s.lead.replaceAfter()
	ticker := time.NewTicker(max(enough/20, time.Millisecond))
	defer ticker.Stop()
	_, began := s.lead.heardFrom(cmd.Node, before)
	for {
		heard, beats := s.lead.heardFrom(cmd.Node, before)
		if beats > began+1 { // one may have been on its way when its process died
			return before, refuse(ErrNodeConflict, "node %s is running already, at %s: two processes cannot share one node id and data folder: stop one of them", cmd.Node, orUnknown(address))
		}
		if s.o.Clock().Sub(heard) >= enough {
			return before, nil
		}
		if err := s.notLeader(); err != nil {
			return before, err
		}
		select {
		case <-ctx.Done():
			return before, ctx.Err()
		case <-s.ctx.Done():
			return before, ErrClosed
		case <-ticker.C:
		}
	}
}

func (c *calls) Heartbeat(ctx context.Context, req *pb.HeartbeatRequest) (*pb.HeartbeatResponse, error) {
	s := c.s
	if err := s.notLeader(); err != nil {
		return nil, err
	}
	if err := s.checkHeartbeat(req); err != nil {
		return nil, err
	}
	node := ids.NodeID(req.GetNodeId())
	var news *Proposal
	var err error
	s.readState(func(st *State) { news, err = s.lead.Hear(s.o.Clock(), st, req) })
	if err != nil {
		return nil, err
	}
	if news != nil {
		var refused *RefusedError
		if err := s.proposeSoon(ctx, news); errors.As(err, &refused) {
			return nil, refused
		} // a report that was lost is made again
	}
	var next []*Proposal
	s.readState(func(st *State) { next = s.lead.Decide(s.o.Clock(), st, node) })
	for _, p := range next {
		_ = s.proposeSoon(ctx, p)
	}
	if err := s.notLeader(); err != nil {
		return nil, err
	}
	return s.wanted(node), nil
}

// proposeSoon proposes and waits for at most reportWait; then its error is nil, and what becomes of the proposal is seen to later.
func (s *Server) proposeSoon(ctx context.Context, p *Proposal) error {
	done := make(chan error, 1)
	if err := s.post(ctx, func(lp *loop) { lp.propose(p.Command, done) }); err != nil {
		s.settled(p, err)
		return err
	}
	result := make(chan error, 1)
	s.wg.Go(func() { // ends with the proposal, its leadership or the server
		err := s.wait(s.ctx, done)
		s.settled(p, err)
		result <- err
	})
	timer := time.NewTimer(reportWait)
	defer timer.Stop()
	select {
	case err := <-result:
		return err
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil
}

// settled tells the leader and the log what became of a proposal.
func (s *Server) settled(p *Proposal, err error) {
	p.Done(s.o.Clock(), err)
	switch cmd := p.Command.(type) {
	case *reportCommand:
		if err == nil {
			s.logReport(cmd)
		}
	case *issueEpochCommand:
		if err != nil {
			s.log.Warn().Str("group", p.group).Err(err).Stringer("voters", cmd.Voters).Msg("a change of the SyncStateSet was not made")
			return
		}
		s.log.Info().Str("group", p.group).Uint32("epoch", uint32(cmd.Epoch+1)).Stringer("voters", cmd.Voters).
			Str("reason", cmd.Reason).Msg("the SyncStateSet changes")
	case *removeGroupCommand:
		if err != nil {
			s.log.Warn().Str("group", p.group).Err(err).Msg("a frozen group was not removed")
			return
		}
		s.log.Warn().Str("group", p.group).Msg("a group is removed: it was frozen")
	case *renewCommand:
		if err != nil {
			s.log.Warn().Str("group", p.group).Err(err).Uint64("replica", uint64(cmd.Replica)).Msg("a lost replica got no heir")
			return
		}
		s.log.Info().Str("group", p.group).Uint32("epoch", uint32(cmd.Epoch)).Uint64("replica", uint64(cmd.Replica)).
			Msg("a lost replica is followed by a new one, which begins empty")
	}
}

// checkHeartbeat refuses what no node sends, and cuts what is too long.
func (s *Server) checkHeartbeat(req *pb.HeartbeatRequest) error {
	node := ids.NodeID(req.GetNodeId())
	if _, err := id16("check code", req.GetCheckCode()); err != nil {
		return err
	}
	if _, err := id16("session", req.GetSession()); err != nil {
		return err
	}
	if err := s.checkCluster(node, req.GetClusterId()); err != nil {
		return err
	}
	if err := s.outlived(node, req.GetRecovery()); err != nil {
		return err
	}
	if len(req.GetReplicas()) > maxReports {
		return refuse(ErrInvalid, "node %s reports %d replicas: at most %d", node, len(req.GetReplicas()), maxReports)
	}
	for _, a := range append([]string{req.GetAddresses().GetPeer(), req.GetAddresses().GetMetrics()}, mapValues(req.GetAddresses().GetClients())...) {
		if a != "" && !validAddress(a) {
			return refuse(ErrInvalid, "node %s reports the address %q: want host:port of at most 255 visible characters", node, a)
		}
	}
	if z := req.GetAddresses().GetZone(); !validZone(z) {
		return refuse(ErrInvalid, "node %s reports the zone %q: want at most 64 visible characters", node, cut(z))
	}
	for _, r := range req.GetReplicas() {
		if n := len(r.GetIncarnation()); n != 0 && n != 16 {
			return refuse(ErrInvalid, "node %s reports an incarnation of %d bytes for replica %d: want 16 or none", node, n, r.GetReplicaId())
		}
		r.Parked, r.Poisoned = cut(r.GetParked()), cut(r.GetPoisoned())
	}
	return nil
}

func mapValues(m map[string]string) []string {
	var out []string
	for _, k := range sortedKeys(m) {
		out = append(out, m[k])
	}
	return out
}

func cut(text string) string {
	if len(text) <= maxReportText {
		return text
	}
	return strings.ToValidUTF8(text[:maxReportText], "") + "..."
}

func (s *Server) logReport(cmd *reportCommand) {
	s.readState(func(st *State) {
		for _, f := range cmd.Replicas {
			g, r := st.replicaOn(f.Group, f.Replica, cmd.Node)
			switch {
			case r == nil:
			case r.Lost != "":
				s.log.Error().Str("group", g.Name).Uint32("epoch", uint32(g.Epoch)).Uint64("replica", uint64(r.ID)).Str("reason", r.Lost).
					Msg("a replica is lost: it stays parked, the group goes on without it")
			case g.Epoch == 1 && g.Master.Replica == 0:
				s.log.Info().Str("group", g.Name).Uint32("epoch", 1).Msg("all replicas are there: the group has its first epoch")
			}
		}
		for _, f := range cmd.Masters {
			if g, r := st.replicaOn(f.Group, f.Replica, cmd.Node); r != nil && g.Master == (masterEntry{f.Replica, f.Term}) {
				s.log.Info().Str("group", g.Name).Uint32("epoch", uint32(f.Term.Epoch())).Stringer("term", f.Term).
					Str("node", string(cmd.Node)).Uint64("replica", uint64(f.Replica)).Msg("the group has a new master")
			}
		}
	})
}

func (c *calls) CreateGroup(ctx context.Context, req *pb.CreateGroupRequest) (*pb.Group, error) {
	s := c.s
	cmd := &createGroupCommand{
		ID:          hexID(ids.NewUUID(nil)),
		Name:        req.GetName(),
		Answers:     int(req.GetAnswers()),
		Members:     int(req.GetMembers()),
		MinISR:      int(req.GetMinIsr()),
		SegmentSize: req.GetSegmentSize(),
		Async:       req.GetAsyncFlush(),
		Nodes:       nodeIDs(req.GetNodes()),
		Learners:    nodeIDs(req.GetLearners()),
	}
	cmd.ensureDefaults()
	if err := cmd.validate(); err != nil {
		return nil, err
	}
	if err := ids.CheckSegmentSize(cmd.SegmentSize, s.o.MinSegmentSize); err != nil {
		return nil, refuse(ErrInvalid, "group %q: %v", cmd.Name, err)
	}
	if err := s.notLeader(); err != nil {
		return nil, err
	}
	if err := s.propose(ctx, cmd); err != nil {
		return nil, err
	}
	g, err := s.group(cmd.Name)
	if err == nil {
		s.log.Info().Str("group", g.GetName()).Str("mode", fmt.Sprintf("%d-%d", g.GetAnswers(), g.GetMembers())).
			Strs("nodes", req.GetNodes()).Msg("group created")
	}
	return g, err
}

func (c *calls) ReplaceReplica(ctx context.Context, req *pb.ReplaceReplicaRequest) (*pb.Group, error) {
	s := c.s
	if err := s.notLeader(); err != nil {
		return nil, err
	}
	var cmd Command
	var err error
	s.readState(func(st *State) {
		cmd, err = s.lead.Replace(s.o.Clock(), st, req.GetGroup(), ids.ReplicaID(req.GetReplicaId()), ids.NodeID(req.GetNodeId()), req.GetReason(), req.GetGiveUp())
	})
	if err != nil {
		return nil, err
	}
	if err := s.propose(ctx, cmd); err != nil {
		return nil, err
	}
	event, text := s.log.Info(), "an operator replaces a replica, which votes until the new one does"
	if _, givenUp := cmd.(*giveUpCommand); givenUp {
		event, text = s.log.Warn(), "an operator gives a replica up"
	}
	event.Str("group", req.GetGroup()).Uint64("replica", req.GetReplicaId()).Str("heir", req.GetNodeId()).Str("reason", req.GetReason()).Msg(text)
	return s.group(req.GetGroup())
}

func (c *calls) SetMode(ctx context.Context, req *pb.SetModeRequest) (*pb.Group, error) {
	s := c.s
	if err := s.confirm(ctx); err != nil {
		return nil, err
	}
	want := SetMode{Group: req.GetGroup(), Answers: int(req.GetAnswers()), Members: int(req.GetMembers()), MinISR: int(req.GetMinIsr()),
		On: nodeIDs(req.GetOn()), Learners: nodeIDs(req.GetLearners())}
	for _, id := range req.GetRemove() {
		want.Remove = append(want.Remove, ids.ReplicaID(id))
	}
	var cmd Command
	var err error
	s.readState(func(st *State) { cmd, err = s.lead.SetMode(s.o.Clock(), st, want) })
	if err == nil {
		err = s.propose(ctx, cmd)
	}
	if err != nil {
		return nil, err
	}
	s.log.Info().Str("group", want.Group).Str("mode", fmt.Sprintf("%d-%d", want.Answers, want.Members)).Strs("on", req.GetOn()).
		Uints64("remove", removed(cmd)).Msg("an operator changes the mode of a group")
	return s.group(want.Group)
}

// groupCommand proposes a command about a group and answers with the group.
func (s *Server) groupCommand(ctx context.Context, group string, command func(id hexID) Command) (*pb.Group, error) {
	if err := s.notLeader(); err != nil {
		return nil, err
	}
	var cmd Command
	s.readState(func(st *State) {
		if g := st.groups[group]; g != nil {
			cmd = command(g.ID)
		}
	})
	if cmd == nil {
		return nil, refuse(ErrNotFound, "group %q does not exist: look at the list of groups", cut(group))
	}
	if err := s.propose(ctx, cmd); err != nil {
		return nil, err
	}
	return s.group(group)
}

func (c *calls) KeepLearner(ctx context.Context, req *pb.KeepLearnerRequest) (*pb.Group, error) {
	g, err := c.s.groupCommand(ctx, req.GetGroup(), func(id hexID) Command {
		return &keepLearnerCommand{Group: id, Replica: ids.ReplicaID(req.GetReplicaId()), Learner: req.GetLearner()}
	})
	if err == nil {
		c.s.log.Info().Str("group", req.GetGroup()).Uint64("replica", req.GetReplicaId()).Bool("learner", req.GetLearner()).Msg("an operator says whether a replica may vote")
	}
	return g, err
}

func (c *calls) Prefer(ctx context.Context, req *pb.PreferRequest) (*pb.Group, error) {
	g, err := c.s.groupCommand(ctx, req.GetGroup(), func(id hexID) Command { return &preferCommand{Group: id, Node: ids.NodeID(req.GetNodeId())} })
	if err == nil {
		c.s.log.Info().Str("group", req.GetGroup()).Str("node", req.GetNodeId()).Msg("an operator prefers a master")
	}
	return g, err
}

func (c *calls) RemoveNode(ctx context.Context, req *pb.RemoveNodeRequest) (*pb.RemoveNodeResponse, error) {
	s, id := c.s, ids.NodeID(req.GetNodeId())
	if err := s.confirm(ctx); err != nil {
		return nil, err
	}
	var uses []string
	s.readState(func(st *State) { uses = st.nodeUses(id) })
	if s.lead.nodesAt(s.o.Clock()).of(id).live && uses == nil {
		return nil, refuse(ErrNotNow, "node %s runs: stop its process first, it would register again", id)
	}
	if err := s.propose(ctx, &removeNodeCommand{id}); err != nil {
		return nil, err
	}
	s.log.Info().Str("node", req.GetNodeId()).Msg("an operator removes a node")
	return &pb.RemoveNodeResponse{}, nil
}

// removed lists the replicas that a command takes out of a group.
func removed(cmd Command) (out []uint64) {
	if c, ok := cmd.(*setModeCommand); ok {
		for _, id := range c.Remove {
			out = append(out, uint64(id))
		}
	}
	return out
}

func nodeIDs(list []string) (out []ids.NodeID) {
	for _, n := range list {
		out = append(out, ids.NodeID(n))
	}
	return out
}

func (c *calls) Elect(ctx context.Context, req *pb.ElectRequest) (*pb.Group, error) {
	s := c.s
	if err := s.confirm(ctx); err != nil {
		return nil, err
	}
	var err error
	s.readState(func(st *State) { err = s.lead.Elect(s.o.Clock(), st, req.GetGroup(), ids.NodeID(req.GetNodeId())) })
	if err != nil {
		return nil, err
	}
	s.log.Info().Str("group", req.GetGroup()).Str("node", req.GetNodeId()).Msg("an operator elects a master")
	return s.group(req.GetGroup())
}

// ElectUnclean plans, or does what was planned.
func (c *calls) ElectUnclean(ctx context.Context, req *pb.ElectUncleanRequest) (*pb.ElectUncleanResponse, error) {
	s := c.s
	if err := s.confirm(ctx); err != nil {
		return nil, err
	}
	var resp *pb.ElectUncleanResponse
	var cmd Command
	var err error
	s.readState(func(st *State) { resp, cmd, err = s.lead.Unclean(s.o.Clock(), st, req) })
	if err == nil && req.GetEpoch() != 0 {
		if err = s.propose(ctx, cmd); err == nil {
			s.log.Error().Str("group", req.GetGroup()).Uint32("epoch", req.GetEpoch()+1).Uint64("replica", req.GetReplicaId()).Str("node", resp.GetNodeId()).
				Strs("losses", resp.GetLosses()).Str("reason", req.GetReason()).Msg("UNCLEAN election: an operator lets a replica go on alone that may lack what was answered OK")
		}
	}
	if err != nil {
		return nil, err
	}
	resp.Group, err = s.group(req.GetGroup())
	return resp, err
}

func (c *calls) GetGroup(ctx context.Context, req *pb.GetGroupRequest) (*pb.Group, error) {
	if err := c.s.confirm(ctx); err != nil {
		return nil, err
	}
	return c.s.group(req.GetName())
}

func (c *calls) ListGroups(ctx context.Context, _ *pb.ListGroupsRequest) (*pb.ListGroupsResponse, error) {
	s := c.s
	if err := s.confirm(ctx); err != nil {
		return nil, err
	}
	nodes := s.lead.nodesAt(s.o.Clock())
	resp := &pb.ListGroupsResponse{}
	s.readState(func(st *State) {
		for _, name := range sortedKeys(st.groups) {
			resp.Groups = append(resp.Groups, s.lead.describe(st, st.groups[name], nodes))
		}
	})
	return resp, nil
}

// group returns one group.
func (s *Server) group(name string) (*pb.Group, error) {
	var out *pb.Group
	var err error
	s.readState(func(st *State) {
		if out = s.lead.Describe(s.o.Clock(), st, name); out == nil {
			err = st.unknownGroup(name)
		}
	})
	return out, err
}

func (c *calls) ListNodes(ctx context.Context, _ *pb.ListNodesRequest) (*pb.ListNodesResponse, error) {
	s := c.s
	if err := s.confirm(ctx); err != nil {
		return nil, err
	}
	now := s.o.Clock()
	nodes := s.lead.nodesAt(now)
	resp := &pb.ListNodesResponse{}
	s.readState(func(st *State) {
		replicas := map[ids.NodeID]uint32{}
		for _, g := range st.groups {
			for _, r := range g.Replicas {
				replicas[r.Node]++
			}
		}
		for _, id := range sortedKeys(st.nodes) {
			n := &pb.Node{NodeId: string(id), Addresses: st.nodes[id].Addresses.proto(), Replicas: replicas[id], SilentMillis: -1}
			v := nodes.of(id)
			n.Live, n.NotHeardYet = v.live, v.early
			if !v.heard.IsZero() {
				n.Levels = v.levels.Wire()
				n.SilentMillis = v.silent.Milliseconds()
			}
			resp.Nodes = append(resp.Nodes, n)
		}
	})
	return resp, nil
}

func (c *calls) Members(ctx context.Context, _ *pb.MembersRequest) (*pb.MembersResponse, error) {
	if err := c.s.confirm(ctx); err != nil {
		return nil, err
	}
	resp := &pb.MembersResponse{Members: c.s.members(), Term: c.s.view.Load().term}
	c.s.readState(func(st *State) { resp.ClusterId, resp.Level = st.cluster.Cluster[:], uint32(st.level()) })
	return resp, nil
}

// Upgrade asks every controller and looks at every node before it raises the level.
func (c *calls) Upgrade(ctx context.Context, _ *pb.UpgradeRequest) (*pb.UpgradeResponse, error) {
	s := c.s
	if err := s.confirm(ctx); err != nil {
		return nil, err
	}
	var addresses []string
	for _, m := range s.members() {
		addresses = append(addresses, m.GetAddress())
	}
	all, err := Dial(addresses, s.o.Secret)
	if err != nil {
		return nil, err
	}
	defer all.Close()
	answers, err := all.Status(ctx)
	if err != nil {
		return nil, err
	}
	to := s.o.levels.Newest
	resp := &pb.UpgradeResponse{Level: uint32(to)}
	s.readState(func(st *State) {
		if resp.Before = uint32(st.level()); resp.Before >= resp.Level {
			resp.Level = resp.Before
			return
		}
		if err = membersMayRaise(st.level(), to, answers); err == nil {
			err = s.lead.mayRaise(s.o.Clock(), st, to)
		}
	})
	if err != nil || resp.Before == resp.Level {
		return resp, err
	}
	if err := s.propose(ctx, &raiseLevelCommand{to}); err != nil {
		return nil, err
	}
	s.log.Info().Uint32("before", resp.Before).Uint32("level", resp.Level).Msg("the cluster's feature level was raised")
	return resp, nil
}

func (s *Server) members() []*pb.Member {
	var out []*pb.Member
	leader := s.view.Load().leaderID
	known := s.membership.Load()
	if known == nil {
		for _, id := range sortedKeys(s.o.Peers) {
			out = append(out, &pb.Member{Id: id, Address: s.o.Peers[id]})
		}
		return out
	}
	for _, i := range known.Members {
		if !i.Learner {
			out = append(out, &pb.Member{Id: i.ID, Address: s.address(i.ID), Leader: i.ID == leader})
		}
	}
	return out
}

func (c *calls) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	s := c.s
	v := s.view.Load()
	resp := &pb.StatusResponse{
		Id: s.identity.ID, LeaderId: v.leaderID, LeaderAddress: s.address(v.leaderID), Term: v.term, Failure: v.failure,
		Members: s.members(), FirstIndex: v.first, Levels: s.o.levels.Wire(),
	}
	m := s.member.Load()
	if m == nil {
		switch {
		case resp.Failure != "":
		case s.awaits() != nil:
			resp.Failure = errAwaitsRecovery.Error()
		default:
			resp.Failure = "the cluster is being founded: not every controller has answered yet"
		}
		return resp, nil
	}
	m.stateMu.RLock()
	defer m.stateMu.RUnlock()
	hash := m.state.Hash()
	cluster := m.state.cluster.Cluster
	resp.Applied, resp.StateHash, resp.ClusterId, resp.Level = m.applied.Index, hash[:], cluster[:], uint32(m.state.level())
	return resp, nil
}

// peerCalls answers the other controllers.
type peerCalls struct {
	pb.UnimplementedPeerServer
	s *Server
}

func (c *peerCalls) Identify(context.Context, *pb.IdentifyRequest) (*pb.IdentifyResponse, error) {
	resp := &pb.IdentifyResponse{Id: c.s.identity.ID, RaftId: c.s.identity.RaftID, Levels: c.s.o.levels.Wire()}
	if m := c.s.membership.Load(); m != nil {
		resp.Membership = m.proto()
	}
	return resp, nil
}

func (c *peerCalls) Step(ctx context.Context, req *pb.StepRequest) (*pb.StepResponse, error) {
	s := c.s
	m := s.membership.Load()
	if v := s.view.Load(); m == nil || v.failure != "" {
		return nil, status.Error(codes.Unavailable, "this controller takes no part")
	}
	if string(req.GetToken()) != string(m.Token[:]) || req.GetTo() != s.identity.RaftID {
		return nil, refuse(ErrNodeConflict, "controller %s is not the one that this message is for: one of the two has another data folder than before", s.identity.ID)
	}
	if s.wasRemoved(req.GetFrom()) {
		return &pb.StepResponse{Removed: true}, nil
	}
	err := s.post(ctx, func(lp *loop) { lp.step(req) })
	return &pb.StepResponse{}, err
}

func (lp *loop) step(req *pb.StepRequest) {
	s := lp.server
	for _, data := range req.GetMessages() {
		if err := lp.member.step(req.GetFrom(), data); err != nil {
			s.log.Warn().Str("from", s.membership.Load().name(req.GetFrom())).Err(err).Msg("a message was refused")
		}
	}
	if len(req.GetCheckHash()) > 0 && !lp.member.compare(req.GetCheckIndex(), req.GetCheckHash()) && s.mismatches.Add(1) == 1 {
		s.log.Error().Str("other", s.membership.Load().name(req.GetFrom())).Uint64("index", req.GetCheckIndex()).
			Msg("the states of two controllers differ at the same position: stop the one that differs from the others and report this")
	}
}
