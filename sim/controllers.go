package sim

import (
	"errors"
	"time"

	"github.com/ledgermq/ledgermq/controller"
	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// groupName is the name of the one group of a world.
const groupName = "g"

// reportWait is how long a heartbeat waits for what it brought to be applied, as at a controller's server.
const reportWait = 300_000

// errNoController is what a call gets when nobody leads, or the network lost it.
var errNoController = errors.New("sim: no controller answers")

// controllers are the controllers of a world: the state that they agree on, and the one that leads, if any. What a leader decides
// is the product's own code; what is simulated is their log, which applies proposals in order, late, or not at all when the
// leader changes meanwhile.
type controllers struct {
	s       *schedule
	state   *controller.State
	lead    *controller.Leader // nil: nobody leads
	term    uint64
	applyAt int64                 // when the last proposal is applied
	decide  bool                  // false: the leader only listens, an adversary issues epochs
	records []raftlog.EpochRecord // all that were issued: that of epoch e is at e-1
	active  ids.Epoch
	changes int // of leaders
}

// controllerSilence is when a node counts as silent: the product's default.
const controllerSilence = time.Second

func newControllers(s *schedule) *controllers {
	return &controllers{s: s, state: controller.NewState()}
}

// now is the virtual time as the controllers' clock shows it.
func (c *controllers) now() time.Time { return time.UnixMicro(c.s.w.Now) }

// found makes the cluster, its nodes and the group, up to its first epoch.
func (c *controllers) found(a, m, minISR int) {
	w := c.s.w
	var nodes []ids.NodeID
	c.elect()
	c.must(c.apply(controller.NewFound(w.Cluster)))
	for _, n := range w.Nodes {
		nodes = append(nodes, n.Name())
		c.must(c.apply(c.lead.Register(c.now(), c.state, n.Name(), n.checkCode(), ids.UUID{1, byte(n.ID)})))
	}
	c.must(c.apply(controller.NewGroup(w.Group, groupName, a, m, minISR, SegmentSize, nodes)))
	for _, n := range w.Nodes {
		p, err := c.lead.Hear(c.now(), c.state, &pb.HeartbeatRequest{NodeId: string(n.Name()), CheckCode: bytesOf(n.checkCode()), Session: bytesOf(ids.UUID{1, byte(n.ID)}), Sequence: 1, Levels: controller.OwnLevels().Wire(),
			Replicas: []*pb.ReplicaReport{{GroupId: w.Group[:], ReplicaId: uint64(n.ID), Incarnation: n.Incarnation[:]}}})
		c.must(err)
		err = c.apply(p.Command)
		p.Done(c.now(), err)
		c.must(err)
	}
	if len(c.records) != 1 {
		c.s.fail("the group has %d epochs after its creation", len(c.records))
	}
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
	c.s.w.Tracef("controller %d leads", c.term)
}

// stop leaves the controllers without a leader.
func (c *controllers) stop() {
	if c.lead != nil {
		c.lead.End()
		c.lead = nil
		c.s.w.Tracef("no controller leads")
	}
}

// newest is the newest record.
func (c *controllers) newest() raftlog.EpochRecord { return c.records[len(c.records)-1] }

// group is what an operator would see.
func (c *controllers) group() *pb.Group {
	lead := c.lead
	if lead == nil {
		lead = controller.NewLeader(controllerSilence)
	}
	return lead.Describe(c.now(), c.state, groupName)
}

// apply is one command at its place in the log.
func (c *controllers) apply(cmd controller.Command) error {
	err := c.state.Apply(cmd)
	var refused *controller.RefusedError
	switch {
	case err == nil:
	case errors.As(err, &refused):
		c.s.w.Tracef("refused: %v", err)
		return err
	default:
		c.s.fail("the controllers cannot apply a command: %w", err)
		return err
	}
	if err := c.state.Check(); err != nil {
		c.s.w.Check.rule("the controllers' state: %w", err)
	}
	g := c.group()
	if g == nil || g.Epoch == 0 {
		return nil
	}
	if int(g.Epoch) > len(c.records) {
		rec, err := raftlog.DecodeEpochRecord(g.EpochRecord)
		if err != nil {
			c.s.fail("the controllers issue a record that does not decode: %w", err)
			return nil
		}
		c.s.w.Tracef("epoch %d: voters %v learners %v: %s", rec.Epoch, idsOf(rec.Voters), idsOf(rec.Learners), reason(g))
		c.s.w.Check.issued(c.records, c.active, rec, int(g.MinIsr))
		c.records = append(c.records, rec)
	}
	if e := ids.Epoch(g.ActiveEpoch); e != c.active {
		c.s.w.Tracef("epoch %d is active", e)
		c.s.w.Check.activated(e)
		c.active = e
	}
	return nil
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
	at = max(s.w.Now+s.between(s.p.ApplyMin, s.p.ApplyMax), c.applyAt)
	c.applyAt = at
	s.after(at-s.w.Now, func() {
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
	c.s.after(min(at, c.s.w.Now+reportWait)-c.s.w.Now, func() {
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
	c.s.w.Tracef("controller %d hears %s, news %t: %v", c.term, node, news != nil, err)
	if err != nil {
		refuse(err)
		return
	}
	at := c.s.w.Now
	if news != nil {
		at = c.propose(news.Command, news.Done)
	}
	c.wait(at, refuse, func() {
		if !c.decide {
			answer(nil, nil)
			return
		}
		at := c.s.w.Now
		for _, p := range c.lead.Decide(c.now(), c.state, node) {
			at = c.propose(p.Command, p.Done)
		}
		c.wait(at, refuse, func() { answer(c.lead.Wanted(c.now(), c.state, node), nil) })
	})
}
