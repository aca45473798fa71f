package sim

import (
	"errors"
	"time"

	"github.com/ledgermq/ledgermq/controller"
	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// reportWait is how long a heartbeat waits for what it brought to be applied, as at a controller's server.
const reportWait = 300_000

// errNoController is what a call gets when nobody leads, or the network lost it.
var errNoController = errors.New("sim: no controller answers")

// controllers are the controllers of all groups: the state that they agree on, and the one that leads, if any. What a leader decides
// is the product's own code; what is simulated is their log, which applies proposals in order, late, or not at all when the
// leader changes meanwhile.
type controllers struct {
	s       *schedule
	state   *controller.State
	lead    *controller.Leader // nil: nobody leads
	term    uint64
	applyAt int64 // when the last proposal is applied
	decide  bool  // false: the leader only listens, an adversary issues epochs
	changes int   // of leaders
}

// controllerSilence is when a node counts as silent: the product's default.
const controllerSilence = time.Second

func newControllers(s *schedule) *controllers {
	return &controllers{s: s, state: controller.NewState()}
}

// now is the virtual time as the controllers' clock shows it.
func (c *controllers) now() time.Time { return time.UnixMicro(c.s.Now) }

// found makes the cluster, its nodes and the groups, up to their first epochs.
func (c *controllers) found() {
	s := c.s
	c.elect()
	c.must(c.apply(controller.NewFound(s.worlds[0].Cluster)))
	for _, h := range s.Hosts {
		c.must(c.apply(c.lead.Register(c.now(), c.state, h.Name, h.checkCode(), h.firstSession())))
	}
	for _, w := range s.worlds {
		c.create(w)
	}
	for _, h := range s.Hosts {
		req := &pb.HeartbeatRequest{NodeId: string(h.Name), CheckCode: bytesOf(h.checkCode()), Session: bytesOf(h.firstSession()), Sequence: 1, Levels: controller.OwnLevels().Wire()}
		for _, n := range h.Nodes {
			req.Replicas = append(req.Replicas, &pb.ReplicaReport{GroupId: n.w.Group[:], ReplicaId: uint64(n.ID), Incarnation: n.Incarnation[:]})
		}
		p, err := c.lead.Hear(c.now(), c.state, req)
		c.must(err)
		if p != nil {
			err = c.apply(p.Command)
			p.Done(c.now(), err)
			c.must(err)
		}
	}
	for _, w := range s.worlds {
		if len(w.records) != 1 {
			s.fail("group %s has %d epochs after its creation", w.name, len(w.records))
		}
	}
}

// create makes a group.
func (c *controllers) create(w *World) {
	var nodes []ids.NodeID
	for _, n := range w.Nodes {
		nodes = append(nodes, n.Name)
	}
	c.must(c.apply(controller.NewGroup(w.Group, w.name, w.mode.A, w.mode.M, w.mode.MinISR, SegmentSize, nodes)))
}

func (c *controllers) must(err error) {
	if err != nil {
		c.s.fail("%w", err)
	}
}

func bytesOf(u ids.UUID) []byte { return u[:] }

// elect lets another controller lead. It knows what was applied, and nothing of the nodes.
func (c *controllers) elect() {
	c.stop()
	c.term++
	c.changes++
	c.lead = controller.NewLeader(controllerSilence)
	c.lead.Begin(c.now(), c.term)
	c.s.Tracef("controller %d leads", c.term)
}

// stop leaves the controllers without a leader.
func (c *controllers) stop() {
	if c.lead != nil {
		c.lead.End()
		c.lead = nil
		c.s.Tracef("no controller leads")
	}
}

// group is what an operator would see.
func (c *controllers) group(w *World) *pb.Group {
	lead := c.lead
	if lead == nil {
		lead = controller.NewLeader(controllerSilence)
	}
	return lead.Describe(c.now(), c.state, w.name)
}

// apply is one command at its place in the log.
func (c *controllers) apply(cmd controller.Command) error {
	err := c.state.Apply(cmd)
	var refused *controller.RefusedError
	switch {
	case err == nil:
	case errors.As(err, &refused):
		c.s.Tracef("refused: %v", err)
		return err
	default:
		c.s.fail("the controllers cannot apply a command: %w", err)
		return err
	}
	if err := c.state.Check(); err != nil {
		c.s.rule("the controllers' state: %w", err)
	}
	var changed []string
	for _, w := range c.s.worlds {
		if c.look(w) {
			changed = append(changed, w.name)
		}
	}
	if len(changed) > 1 {
		c.s.rule("one command changes the voters of the groups %v", changed)
	}
	return nil
}

// look judges what a command has made of a group. It tells whether its voters changed.
func (c *controllers) look(w *World) (changed bool) {
	g := c.group(w)
	if g == nil || g.Epoch == 0 {
		return false
	}
	if int(g.Epoch) > len(w.records) {
		rec, err := raftlog.DecodeEpochRecord(g.EpochRecord)
		if err != nil {
			c.s.fail("the controllers issue a record that does not decode: %w", err)
			return false
		}
		w.Tracef("%s epoch %d: voters %v learners %v: %s", w.name, rec.Epoch, idsOf(rec.Voters), idsOf(rec.Learners), reason(g))
		w.Check.issued(w.records, w.active, rec, int(g.MinIsr))
		w.records = append(w.records, rec)
		changed = rec.Epoch > 1
	}
	if e := ids.Epoch(g.ActiveEpoch); e != w.active {
		w.Tracef("%s epoch %d is active", w.name, e)
		w.Check.activated(e)
		w.active = e
	}
	return changed
}

func reason(g *pb.Group) string {
	if n := len(g.Changes); n > 0 {
		return g.Changes[n-1].Reason
	}
	return "the first"
}

func idsOf(list []raftlog.Member) (out []ids.ReplicaID) {
	for _, m := range list {
		out = append(out, m.ID)
	}
	return out
}

// propose puts a command into the log and returns when it is applied. done, which may be nil, hears what became of it.
func (c *controllers) propose(cmd controller.Command, done func(time.Time, error)) (at int64) {
	s, term := c.s, c.term
	at = max(s.Now+s.between(s.p.ApplyMin, s.p.ApplyMax), c.applyAt)
	c.applyAt = at
	s.after(at-s.Now, func() {
		err := errNoController
		if c.term == term && c.lead != nil || s.chance(0.5) {
			err = c.apply(cmd)
		}
		if done != nil {
			done(c.now(), err)
		}
	})
	return at
}

// wait continues a call once a proposal is applied, or was waited for long enough; or answers that the leader has changed.
func (c *controllers) wait(at int64, refuse func(error), then func()) {
	lead := c.lead
	c.s.after(min(at, c.s.Now+reportWait)-c.s.Now, func() {
		if c.lead != lead {
			refuse(errNoController)
			return
		}
		then()
	})
}

// register answers a process that wants to speak for its node. It is registered when its next heartbeat is taken.
func (c *controllers) register(node ids.NodeID, checkCode, session ids.UUID, answer func(error)) {
	if c.lead == nil {
		answer(errNoController)
		return
	}
	cmd := c.lead.Register(c.now(), c.state, node, checkCode, session)
	if cmd == nil {
		answer(nil)
		return
	}
	c.wait(c.propose(cmd, nil), answer, func() { answer(nil) })
}

// heartbeat answers a node.
func (c *controllers) heartbeat(req *pb.HeartbeatRequest, answer func([]*pb.WantedReplica, error)) {
	if c.lead == nil {
		answer(nil, errNoController)
		return
	}
	node := ids.NodeID(req.GetNodeId())
	refuse := func(err error) { answer(nil, err) }
	news, err := c.lead.Hear(c.now(), c.state, req)
	c.s.Tracef("controller %d hears %s, news %t: %v", c.term, node, news != nil, err)
	if err != nil {
		refuse(err)
		return
	}
	at := c.s.Now
	if news != nil {
		at = c.propose(news.Command, news.Done)
	}
	c.wait(at, refuse, func() {
		if !c.decide {
			answer(nil, nil)
			return
		}
		at := c.s.Now
		for _, p := range c.lead.Decide(c.now(), c.state, node) {
			at = c.propose(p.Command, p.Done)
		}
		c.wait(at, refuse, func() { answer(c.lead.Wanted(c.now(), c.state, node), nil) })
	})
}
