package controller

import (
	"slices"
	"sync"
	"time"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// Leader is what the controller that leads makes of heartbeats: what it remembers, what it wants to have applied, and what it
// answers. It has no clock, network, log or goroutine: the Server drives it, and the simulation drives the same code. A heartbeat
// is three calls, with the proposals of each applied, or waited for long enough, before the next:
//
//	Hear ─▶ at most one proposal   what of it must survive
//	Decide ─▶ proposals            the next epochs of the node's groups, the heirs of lost replicas, the end of frozen groups
//	Wanted                         the answer
//
// All methods may be called from many goroutines, while the State that they are given stands still.
type Leader struct {
	soft
	deciding sync.Mutex // two nodes' heartbeats must not both decide for a group from what they saw before the other
}

// NewLeader returns a Leader that does not lead yet. A node counts as silent after silence.
func NewLeader(silence time.Duration) *Leader { return &Leader{soft: soft{silence: silence}} }

// Begin begins a leadership: nothing is known of any node. End ends it.
func (l *Leader) Begin(now time.Time, term uint64) { l.reset(now, term) }

// End ends the leadership: from now on no heartbeat is taken.
func (l *Leader) End() { l.stop() }

// Proposal is a command that a Leader wants to have applied.
type Proposal struct {
	Command Command
	group   string // of an epoch
	done    func(now time.Time, err error)
}

// Done tells the Leader what became of the proposal, exactly once: nil when it was applied, an error when it was refused or is
// not waited for any more. What was not made is decided again.
func (p *Proposal) Done(now time.Time, err error) { p.done(now, err) }

// Hear takes a heartbeat and returns what of it must survive, or nil. ErrUnregistered and ErrNodeConflict are returned when it
// does not come from the process that speaks for the node. One report of a node is on its way at a time: the next heartbeat tells
// everything again.
func (l *Leader) Hear(now time.Time, st *State, req *pb.HeartbeatRequest) (*Proposal, error) {
	node := ids.NodeID(req.GetNodeId())
	var session, code hexID
	copy(session[:], req.GetSession())
	copy(code[:], req.GetCheckCode())
	switch n, err := st.checkNode(node, code); {
	case err != nil:
		return nil, err
	case n == nil || n.Session != session:
		return nil, refuse(ErrUnregistered, "node %s: this process does not speak for it: register it first", node)
	}
	levels := LevelsOf(req.GetLevels())
	if err := st.understood(node, levels); err != nil {
		return nil, err
	}
	if !l.hear(now, node, session, req.GetSequence(), levels, req.GetReplicas()) {
		return nil, nil
	}
	cmd := st.news(node, session, req)
	if cmd == nil || !l.beginReport(node, session) {
		return nil, nil
	}
	return &Proposal{Command: cmd, done: func(time.Time, error) { l.endReport(node, session) }}, nil
}

// Decide works towards what each group with a replica on the node should have. An epoch in which a master is to go on is issued only
// when its node speaks: it has the record with the answer then, and the group stands still for no longer than its election. Issued at
// the word of another node it could reach the others first, and leave the master waiting for its next heartbeat.
func (l *Leader) Decide(now time.Time, st *State, node ids.NodeID) (list []*Proposal) {
	l.deciding.Lock()
	defer l.deciding.Unlock()
	for _, name := range sortedKeys(st.groups) {
		g := st.groups[name]
		if !slices.ContainsFunc(g.Replicas, func(r replicaEntry) bool { return r.Node == node }) {
			continue
		}
		v, free := l.view(now, g)
		if !free {
			continue
		}
		v.near = st.near(g)
		d := g.decide(v)
		if m := g.replica(d.campaign); d.voters != nil && m != nil && m.Node != node && v.replicas[m.ID].master {
			d = decision{}
		}
		id, next := ids.GroupID(g.ID), g.Epoch+1
		l.begin(id, d)
		if d.handOver != 0 {
			l.orderHandOver(now, g, v, d.handOver)
		}
		var cmd Command
		switch {
		case d.remove:
			cmd = &removeGroupCommand{Group: g.ID, Millis: now.UnixMilli()}
		case d.voters != nil:
			cmd = &issueEpochCommand{Group: g.ID, Epoch: g.Epoch, Voters: d.voters, Reason: cut(d.reason), Millis: now.UnixMilli()}
		case d.renew != 0:
			cmd = &renewCommand{Group: g.ID, Replica: d.renew, Epoch: g.Epoch}
		case d.unclean != 0:
			w := v.replicas[d.unclean]
			cmd = &uncleanCommand{Group: g.ID, Epoch: g.Epoch, Winner: d.unclean, Last: w.last, Terms: w.terms, Revive: g.replica(d.unclean).Lost != "", Auto: true,
				Reason: cut(d.reason), Millis: now.UnixMilli()}
		default:
			continue
		}
		list = append(list, &Proposal{cmd, name, func(now time.Time, err error) { l.end(now, id, next, d, err == nil) }})
	}
	return list
}

// Wanted returns every replica that the node should have, with the record and the orders to campaign or to hand over that it gets now,
// and those that it has and that were given up.
func (l *Leader) Wanted(now time.Time, st *State, node ids.NodeID) (list []*pb.WantedReplica) {
	for _, name := range sortedKeys(st.groups) {
		g := st.groups[name]
		for i := range g.Replicas {
			if r := &g.Replicas[i]; r.Node == node {
				w := st.wantedReplica(g, r)
				if g.Epoch > 0 && !l.mayHaveRecord(now, g, r) {
					w.EpochRecord = nil
				} else {
					w.CampaignTerm, w.Campaign = l.mayCampaign(now, g, r)
				}
				l.takeOrder(g, r, w)
				list = append(list, w)
			}
		}
	}
	return append(list, st.givenUp(node, l.reported(node))...)
}

// Describe returns a group with what is known about it now, and why it gets no master if so; nil when there is no such group.
func (l *Leader) Describe(now time.Time, st *State, name string) *pb.Group {
	g := st.groups[name]
	if g == nil {
		return nil
	}
	return l.describe(st, g, l.nodesAt(now))
}

func (l *Leader) describe(st *State, g *groupEntry, nodes nodeViews) *pb.Group {
	out := st.describe(g, nodes)
	out.Stuck = l.stuck(ids.GroupID(g.ID))
	return out
}

// Register returns the command by which a process takes over a node, or nil while the process before it may still speak: a node
// is taken over when it has been silent for 60 % of the node silence. It returns nil too when the process speaks already.
func (l *Leader) Register(now time.Time, st *State, node ids.NodeID, checkCode, session ids.UUID) Command {
	cmd := &registerCommand{Node: node, CheckCode: hexID(checkCode), Session: hexID(session)}
	if n := st.nodes[node]; n != nil {
		if cmd.Replaces = n.Session; cmd.Replaces == cmd.Session {
			return nil
		}
		if heard, _ := l.heardFrom(node, n.Session); now.Sub(heard) < l.replaceAfter() {
			return nil
		}
	}
	return cmd
}

// replaceAfter is how long a process must have been silent until another one may speak for its node.
func (l *Leader) replaceAfter() time.Duration { return l.silence * 6 / 10 }

// NewFound returns the first command of a cluster. With NewGroup and NewEpoch it makes commands for a State without a Server around
// it.
func NewFound(cluster ids.ClusterID) Command { return &foundCommand{hexID(cluster), NewestLevel} }

// NewRegistration returns the command by which the first process of a node registers.
func NewRegistration(node ids.NodeID, checkCode, session ids.UUID) Command {
	return &registerCommand{Node: node, CheckCode: hexID(checkCode), Session: hexID(session)}
}

// NewGroup returns the command that makes a group of mode answers-members on nodes, the first of them preferred.
func NewGroup(id ids.GroupID, name string, answers, members, minISR int, segmentSize int64, async bool, nodes []ids.NodeID) Command {
	return &createGroupCommand{ID: hexID(id), Name: name, Answers: answers, Members: members, Nodes: nodes, MinISR: minISR, SegmentSize: segmentSize, Async: async}
}

// NewEpoch returns the command that makes voters, sorted by id, those of the epoch after epoch.
func NewEpoch(id ids.GroupID, epoch ids.Epoch, voters []ids.ReplicaID, reason string) Command {
	return &issueEpochCommand{Group: hexID(id), Epoch: epoch, Voters: voters, Reason: reason}
}

// Copy returns the state as it is now, in memory of its own: that of a member to which nothing comes any more.
func (s *State) Copy() *State {
	c, err := decodeSnapshot(encodeSnapshot(s))
	if err != nil {
		panic(err) // it was encoded just now
	}
	return c
}

// What follows is the node's side of a heartbeat.

// A node's heartbeat is urgent while a replica misses its master or a voter, for urgentAfter at least and urgentFor at most.
const (
	urgentAfter = 200 * time.Millisecond
	urgentFor   = 3 * time.Second
)

// Urgent tells whether a replica has news that must not wait for the next regular heartbeat: it misses its master, or as a master
// it misses a member. What has not changed for a while is news no more.
func Urgent(st raftlog.Status) bool {
	if st.Epoch == 0 || st.Parked != "" {
		return false
	}
	if st.Role != raftlog.RoleMaster && (st.MasterClosed || st.MasterSilent >= urgentAfter) && st.MasterSilent < urgentFor {
		return true
	}
	return slices.ContainsFunc(st.Voters, func(m raftlog.MemberStatus) bool { return m.Stalled >= urgentAfter && m.Stalled < urgentFor })
}

// Report fills in what a replica's status tells the controller. lastTerm is the term of its last entry, 0 when it is not known.
func Report(rep *pb.ReplicaReport, st raftlog.Status, lastTerm ids.Term) {
	rep.Epoch = uint32(st.Epoch)
	rep.EpochHash, rep.Leaving = st.Hash[:], st.Leaving
	switch {
	case st.Parked != "" || st.Role == raftlog.RoleParked:
		rep.Role, rep.Parked, rep.IdentityLost = pb.Role_ROLE_PARKED, st.Parked, st.Lost
	case st.Role == raftlog.RoleMaster:
		rep.Role = pb.Role_ROLE_MASTER
	default:
		rep.Role = pb.Role_ROLE_FOLLOWER
	}
	if st.Epoch == 0 {
		rep.EpochHash, rep.Parked = nil, ""
	}
	if st.Poisoned != nil {
		rep.Poisoned = st.Poisoned.Error()
	}
	rep.Term, rep.Commit, rep.Applied = uint64(st.Term), uint64(st.Commit), uint64(st.Applied)
	rep.LastIndex, rep.EndOffset, rep.LastTerm = uint64(st.Last), int64(st.End), uint64(lastTerm)
	rep.MasterSilentMillis, rep.MasterClosed = st.MasterSilent.Milliseconds(), st.MasterClosed
	if st.Role != raftlog.RoleMaster {
		return
	}
	for _, m := range slices.Concat(st.Voters, st.Learners) {
		if m.ID != st.Replica {
			rep.Members = append(rep.Members, &pb.MemberReport{ReplicaId: uint64(m.ID), Match: uint64(m.Match),
				StalledMillis: m.Stalled.Milliseconds(), Closed: m.Closed, CaughtUpMillis: m.CaughtUp.Milliseconds()})
		}
	}
}

// HandsOver returns to whom a replica is to hand its mastership now, 0: to nobody.
func HandsOver(w *pb.WantedReplica, st raftlog.Status) ids.ReplicaID {
	if st.Role != raftlog.RoleMaster || uint64(st.Term) != w.GetHandOverTerm() {
		return 0
	}
	return ids.ReplicaID(w.GetHandOverTo())
}

// Campaigns tells whether a replica is to campaign now. record is the one that came with the order, or nil: a campaign in an epoch
// that is just being adopted waits for it. An order is obeyed once in each term.
func Campaigns(w *pb.WantedReplica, st raftlog.Status, record *raftlog.EpochRecord) bool {
	term := st.Term
	if record != nil && record.Epoch > st.Epoch {
		term = ids.MakeTerm(record.Epoch, 0)
	}
	return w.GetCampaign() && uint64(term) == w.GetCampaignTerm()
}
