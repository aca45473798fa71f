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
	lead    *leadership // nil: nobody leads
	term    uint64
	applyAt int64 // when the last proposal is applied
	decide  bool  // false: the leader only listens, an adversary issues epochs
	changes int   // of leaders
	stale   int   // of them, those that did not know for a while that they had been deposed
}

// leadership is that of one controller, as long as it believes in it.
type leadership struct {
	*controller.Leader
	state   *controller.State
	term    uint64
	deposed bool                     // another one leads, or nobody
	over    bool                     // and it knows
	waiting []func(time.Time, error) // for what it proposed since it was deposed, which is never applied
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
	c.must(c.apply(controller.NewGroup(w.Group, w.name, w.mode.A, w.mode.M, w.mode.MinISR, SegmentSize, w.mode.Async, nodes)))
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
	c.lead = &leadership{Leader: controller.NewLeader(controllerSilence), state: c.state, term: c.term}
	c.lead.Begin(c.now(), c.term)
	c.s.Tracef("controller %d leads", c.term)
}

// stop leaves the controllers without a leader.
func (c *controllers) stop() {
	if l := c.lead; l != nil {
		c.lead = nil
		l.deposed = true
		c.end(l)
	}
}

// end lets a deposed leader know. Until then it answers the nodes that find it, and applies nothing.
func (c *controllers) end(l *leadership) {
	l.over = true
	l.End()
	for _, done := range l.waiting {
		done(c.now(), errNoController)
	}
	c.s.Tracef("controller %d leads no more", l.term)
}

// depose lets another controller lead, or none, while the old one knows nothing of it for a while: some nodes still speak with it, and it
// answers and decides from the state as it was.
func (c *controllers) depose() {
	s, old := c.s, c.lead
	old.deposed, old.state = true, c.state.Copy()
	c.lead = nil
	c.stale++
	for _, h := range s.Hosts {
		if s.chance(0.5) {
			h.hearer = old
			s.Tracef("%s still speaks with controller %d", h.Name, old.term)
		}
	}
	s.after(s.between(100_000, 2_500_000), func() {
		c.end(old)
		for _, h := range s.Hosts {
			if h.hearer == old {
				h.hearer = nil
			}
		}
	})
	s.after(s.between(0, 1_000_000), func() {
		if c.lead == nil {
			c.elect()
		}
	})
}

// of returns the leadership that answers a machine, nil when none does.
func (c *controllers) of(h *Host) *leadership {
	if h.hearer != nil {
		return h.hearer
	}
	return c.lead
}

// group is what an operator would see.
func (c *controllers) group(w *World) *pb.Group {
	lead := controller.NewLeader(controllerSilence)
	if c.lead != nil {
		lead = c.lead.Leader
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
		if k := len(g.Uncleans) - 1; k >= 0 && ids.Epoch(g.Uncleans[k].Epoch) == rec.Epoch && rec.Epoch != w.Check.unclean {
			c.s.goesOn(w, rec.Epoch, ids.ReplicaID(g.Uncleans[k].ReplicaId))
		}
		w.Check.issued(w.records, w.active, rec, int(g.MinIsr))
		w.records = append(w.records, rec)
		for _, n := range w.Nodes {
			if w.mode.Async && !n.gone && c.s.needed(n) {
				n.powerAfter, n.failSync = min(n.powerAfter, 0), false
			}
		}
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
func (c *controllers) propose(l *leadership, cmd controller.Command, done func(time.Time, error)) (at int64) {
	s := c.s
	if l.deposed {
		if done != nil {
			l.waiting = append(l.waiting, done)
		}
		return s.Now + reportWait
	}
	at = max(s.Now+s.between(s.p.ApplyMin, s.p.ApplyMax), c.applyAt)
	c.applyAt = at
	s.after(at-s.Now, func() {
		err := errNoController
		if !l.deposed || s.chance(0.5) {
			err = c.apply(cmd)
		}
		if done != nil {
			done(c.now(), err)
		}
	})
	return at
}

// wait continues a call once a proposal is applied, or was waited for long enough; or answers that the leader has changed.
func (c *controllers) wait(l *leadership, at int64, refuse func(error), then func()) {
	c.s.after(min(at, c.s.Now+reportWait)-c.s.Now, func() {
		if l.over {
			refuse(errNoController)
			return
		}
		then()
	})
}

// register answers a process that wants to speak for its node. It is registered when its next heartbeat is taken.
func (c *controllers) register(h *Host, session ids.UUID, answer func(error)) {
	l := c.of(h)
	if l == nil {
		answer(errNoController)
		return
	}
	cmd := l.Register(c.now(), l.state, h.Name, h.checkCode(), session)
	if cmd == nil {
		answer(nil)
		return
	}
	c.wait(l, c.propose(l, cmd, nil), answer, func() { answer(nil) })
}

// heartbeat answers a node.
func (c *controllers) heartbeat(h *Host, req *pb.HeartbeatRequest, answer func([]*pb.WantedReplica, error)) {
	l := c.of(h)
	if l == nil {
		answer(nil, errNoController)
		return
	}
	refuse := func(err error) { answer(nil, err) }
	news, err := l.Hear(c.now(), l.state, req)
	c.s.Tracef("controller %d hears %s, news %t: %v", l.term, h.Name, news != nil, err)
	if err != nil {
		refuse(err)
		return
	}
	at := c.s.Now
	if news != nil {
		at = c.propose(l, news.Command, news.Done)
	}
	c.wait(l, at, refuse, func() {
		if !c.decide {
			answer(nil, nil)
			return
		}
		at := c.s.Now
		for _, p := range l.Decide(c.now(), l.state, h.Name) {
			at = c.propose(l, p.Command, p.Done)
		}
		c.wait(l, at, refuse, func() { answer(l.Wanted(c.now(), l.state, h.Name), nil) })
	})
}
