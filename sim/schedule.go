package sim

import (
	"container/heap"
	crand "crypto/rand"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/raftlog/peer"
)

// Result is what a run was worth.
type Result struct {
	Params                                                 Params
	Trace                                                  uint64 // hash of the trace
	Events, Ops, Acked, Unknown, NotStored, Reads, Masters int
	Crashes, Epochs, Leaders, Stale, Cuts, Installs        int
	Heirs, Flips, Repairs, Fulls, Uncleans, Dropped        int
	Healed                                                 int64     // microseconds from the end of the faults to full health
	Entries                                                ids.Index // of all groups
	Virtual                                                int64     // microseconds
	Err                                                    error
	Rule                                                   error // the first epoch that the rules do not allow; Err is what came of it, or this
}

// Options of Run.
type Options struct {
	Mutant  Mutant
	Trace   io.Writer // gets each line of the trace, nil: nobody
	Recover bool      // a panic is a fault like others
}

// Run runs one seed. It puts a source with the seed in the place of crypto/rand.Reader while it runs.
func Run(seed uint64, o Options) Result { return play(draw(seed), o, (*schedule).run) }

// play lets do drive a world, judges it, and returns what came of it.
func play(p Params, o Options, do func(*schedule)) (res Result) {
	old := crand.Reader
	seed := p.Seed
	src := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24), byte(seed >> 32), 1})
	crand.Reader = src
	defer func() { crand.Reader = old }()

	s := newSchedule(p, o)
	defer func() {
		res = s.result()
		if e := recover(); e != nil {
			if res.Err == nil || res.Err == res.Rule {
				res.Err = fmt.Errorf("panic: %v", e)
			}
			if o.Mutant == NoMutant && !o.Recover {
				panic(fmt.Sprintf("seed %d: %v", seed, e))
			}
		}
	}()
	do(s)
	return s.result()
}

func newSchedule(p Params, o Options) *schedule {
	s := &schedule{p: p, r: rand.New(rand.NewPCG(p.Seed, 1)), Site: newSite(), cut: make(map[way]bool), arrival: make(map[way]int64),
		stride: 64, handing: make(map[*handover]bool)}
	s.mutant, s.trace = o.Mutant, o.Trace
	s.c = newControllers(s)
	return s
}

// schedule is the random driver of the groups of a site.
type schedule struct {
	*Site
	p      Params
	r      *rand.Rand
	worlds []*World
	queue  events
	seq    int
	events int
	stride int // events between two looks at whether something is done

	replicas ids.ReplicaID // the newest one

	cut      map[way]bool
	drop     func(peer.Envelope) bool // of a story: what is lost
	arrival  map[way]int64            // when the last message arrives
	calm     bool                     // the second phase
	ended    bool                     // its end: no client sends
	c        *controllers
	crashes  int
	healed   int64
	cuts     int                // fronts given up
	installs int                // replicas that began anew at the front of another one
	handing  map[*handover]bool // hand-overs of the mastership that are under way
	gaveUp   bool               // an unclean election gave replicas up
	unsynced bool               // of a story: nothing is synced behind an acknowledgement
	heirs    int                // replicas that follow lost ones
	flips    int                // bits
	repairs  int                // logs that were repaired from another replica
	fulls    int                // disks that were full for a while
	uncleans int                // unclean elections that no operator asked for
	dropped  int                // operations that were acknowledged, and lost in one
}

// way is one direction between two machines: from, to.
type way [2]*Host

type event struct {
	at  int64
	seq int
	do  func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}

func (s *schedule) after(d int64, do func()) {
	s.seq++
	heap.Push(&s.queue, event{s.Now + d, s.seq, do})
}

func (s *schedule) chance(p float64) bool { return p > 0 && s.r.Float64() < p }

func (s *schedule) between(a, b int64) int64 {
	if b <= a {
		return a
	}
	return a + s.r.Int64N(b-a)
}

// run is the whole life of a seed.
func (s *schedule) run() {
	s.begin()
	for _, w := range s.worlds {
		s.after(1_000, func() { s.client(w) })
	}
	s.after(s.p.Fault, s.fault)
	s.until(s.p.Safety, func() bool { return false })
	if s.Err == nil {
		s.heal()
	}
}

// epoch is what the clocks of all machines show in the beginning, in microseconds since 1970.
const epoch = 1_700_000_000_000_000

// begin makes the groups and starts the nodes and their agents.
func (s *schedule) begin() {
	s.Sent = s.sent
	s.Config = func(c *raftlog.Config) {
		c.MaxInflightFrames, c.Limits = s.p.Inflight, s.p.Limits
		c.Limits.Inbox = 1 << 20
	}
	s.Tracef("%s", s.p)
	for range s.p.Hosts {
		h := s.addHost()
		h.agent, h.clock = &agent{s: s, h: h}, epoch
	}
	for _, m := range s.p.Groups {
		s.addWorld(m)
	}
	s.c.found()
	s.c.decide = s.p.Decides
	if s.Err != nil {
		return
	}
	s.Role = func(n *Node) {
		if n.Machine.master {
			s.after(100, n.agent.hurry)
		}
	}
	for _, h := range s.Hosts {
		s.open(h)
		s.after(s.between(0, 50_000), h.agent.beat)
	}
}

// addWorld makes a group, each with another machine as its first one.
func (s *schedule) addWorld(m mode) *World {
	w := s.newWorld(len(s.worlds) + 1)
	w.mode = m
	for i := range m.M {
		n, err := w.addNode(s.Hosts[(len(s.worlds)+i)%len(s.Hosts)], s.replicas+1)
		if err != nil {
			s.fail("create replica %d: %v", s.replicas+1, err)
			return w
		}
		s.replicas++
		s.after(s.between(0, 50_000), func() { s.tick(n) })
	}
	s.worlds = append(s.worlds, w)
	return w
}

// until runs events for a time, or until done.
func (s *schedule) until(d int64, done func() bool) bool {
	end := s.Now + d
	for s.Err == nil && len(s.queue) > 0 && s.queue[0].at <= end {
		e := heap.Pop(&s.queue).(event)
		s.Now = e.at
		s.events++
		e.do()
		if s.events%s.stride == 0 && done() {
			return true
		}
	}
	return done()
}

// open starts a machine, if its disk lets it.
func (s *schedule) open(h *Host) {
	h.running, h.failSync = true, false
	h.life++
	if !s.calm && s.chance(s.p.Crash) {
		s.armPower(h, 20) // the power goes while it recovers, or soon after
	}
	for _, n := range h.Nodes {
		if h.running && s.Err == nil {
			s.openReplica(n)
		}
	}
}

// openReplica starts one replica of a machine.
func (s *schedule) openReplica(n *Node) {
	if n.Up || n.lost != "" || n.missing || n.reviving {
		return
	}
	var rec *raftlog.EpochRecord
	if len(n.w.records) > 0 {
		if newest := n.w.newest(); newest.Epoch == 1 || s.p.Informs && s.chance(0.3) {
			rec = &newest
		}
	}
	s.openWith(n, rec)
}

// openWith is openReplica with a record that the replica is given.
func (s *schedule) openWith(n *Node, rec *raftlog.EpochRecord) {
	n.damage = nil
	if n.w.mode.Async && !n.harmed { // a replica that came since the fault was due
		n.powerAfter, n.failSync = 0, false
	}
	n.w.Check.mayPark[n.ID] = n.failSync || n.full
	err := n.Open(rec)
	s.Tracef("r%d opens: %v", n.ID, err)
	if n.powerAfter < 0 {
		s.powerCut(n.Host)
		return
	}
	if err != nil {
		s.closed(n, err)
		return
	}
	s.settleDisk(n)
}

func (s *schedule) powerCut(h *Host) {
	s.Tracef("%s loses its power", h.Name)
	s.crashes++
	h.PowerCut(s.r)
	s.reopen(h)
}

func (s *schedule) kill(h *Host) {
	s.Tracef("%s is killed", h.Name)
	s.crashes++
	h.end()
	if s.chance(0.9) {
		s.disconnect(h)
	}
	s.reopen(h)
}

func (s *schedule) reopen(h *Host) {
	h.paused = 0
	d := s.between(10_000, 1_500_000)
	if s.chance(0.2) {
		d = s.between(1_500_000, 8_000_000)
	}
	s.after(d, func() {
		if !h.running {
			s.open(h)
			s.disconnect(h) // what is left of connections to the process before
		}
	})
}

func (s *schedule) tick(n *Node) {
	if n.gone {
		return
	}
	s.after(s.between(49_000, 51_000), func() { s.tick(n) })
	if n.Up && s.pausedFor(n.Host) == 0 {
		n.Tick()
		s.settleDisk(n)
		s.inspect(n)
	}
}

// settleDisk makes sure that queued jobs are written some time.
func (s *schedule) settleDisk(n *Node) {
	if !n.Up || n.due || len(n.Queue) == 0 && !s.hold(n) {
		return
	}
	d := s.between(s.p.DiskMin, s.p.DiskMax)
	if !s.calm && s.chance(s.p.DiskStall) {
		d = s.between(20_000, 400_000)
	}
	n.due = true
	life := n.Log
	var due func()
	due = func() {
		if d := s.pausedFor(n.Host); d > 0 {
			s.after(d, due)
			return
		}
		n.due = false
		if n.Log != life || !n.Up {
			s.settleDisk(n)
			return
		}
		s.write(n)
	}
	s.after(d, due)
}

// hold tells whether a turn is due though nothing happens.
func (s *schedule) hold(n *Node) bool {
	_, ok := n.Replica.HoldUntil()
	return ok
}

func (s *schedule) write(n *Node) {
	if len(n.Queue) == 0 {
		n.Turn()
		s.settleDisk(n)
		return
	}
	if !s.calm && s.chance(s.p.Crash/4) {
		s.armPower(n.Host, 8)
	}
	err := n.Write()
	if n.powerAfter < 0 {
		s.powerCut(n.Host)
		return
	}
	if err != nil {
		n.w.Check.mayPark[n.ID] = true
		s.Tracef("r%d: %v", n.ID, err)
	} else if n.w.mode.Async {
		s.syncBehind(n)
	}
	life := n.Log
	var told func()
	told = func() {
		if d := s.pausedFor(n.Host); d > 0 {
			s.after(d, told)
		} else if n.Up && n.Log == life && n.Complete() {
			s.settleDisk(n)
		}
	}
	s.after(s.between(5, 50), told)
	s.settleDisk(n)
}

// sent puts a message on the network.
func (s *schedule) sent(from *Node, o raftlog.Outgoing) {
	env := o.Envelope
	to := from.w.Node(env.To)
	if to == nil {
		return
	}
	key := way{from.Host, to.Host}
	if s.cut[key] || !s.calm && s.chance(s.p.Loss) || s.drop != nil && s.drop(env) {
		return
	}
	copies := 1
	if !s.calm && s.chance(s.p.Duplicate) {
		copies = 2
	}
	for range copies {
		at := s.Now + s.between(s.p.DelayMin, s.p.DelayMax)
		if s.p.Ordered || s.calm {
			at = max(at, s.arrival[key])
			s.arrival[key] = at
		}
		s.after(at-s.Now, func() { s.deliver(key, to, env) })
	}
}

func (s *schedule) deliver(over way, n *Node, env peer.Envelope) {
	if !n.Up || s.cut[over] {
		return
	}
	if d := s.pausedFor(n.Host); d > 0 {
		s.after(d, func() { s.deliver(over, n, env) })
		return
	}
	s.Tracef("r%d gets %s from r%d term %s index %d entries %d commit %d reject %t", n.ID, env.Msg.GetType(), env.From,
		ids.Term(env.Msg.GetTerm()), env.Msg.GetIndex(), len(env.Msg.GetEntries()), env.Msg.GetCommit(), env.Msg.GetReject())
	n.Deliver(env)
	s.catchUp(n)
	s.settleDisk(n)
}

// client sends operations and reads to whoever says that it is master of a group.
func (s *schedule) client(w *World) {
	if s.ended {
		return
	}
	every := s.p.OpEvery
	if s.calm {
		every *= 10
	}
	s.after(s.between(every/2, every*3/2), func() { s.client(w) })
	var masters []*Node
	for _, n := range w.Nodes {
		if n.Up && n.Machine.master && s.pausedFor(n.Host) == 0 && !n.full { // a full disk takes no sends
			masters = append(masters, n)
		}
	}
	if len(masters) == 0 {
		return
	}
	n := masters[s.r.IntN(len(masters))]
	if s.chance(0.2) {
		s.read(n)
	}
	for range 1 + s.r.IntN(4) {
		op := &Op{ID: len(w.ops) + 1}
		op.Payload = fmt.Sprintf("op %d %s", op.ID, strings.Repeat("x", s.r.IntN(s.p.MaxOp)))
		w.ops = append(w.ops, op)
		n.Propose(op)
	}
	s.settleDisk(n)
}

func (s *schedule) read(n *Node) {
	asked := n.w.Check.MaxAcked
	n.Replica.ReadIndex(func(i ids.Index, err error) {
		if err == nil {
			n.w.Check.read(n, asked, i)
		}
	})
	n.Turn()
}

func (s *schedule) result() Result {
	res := Result{Params: s.p, Trace: s.TraceHash(), Events: s.events, Crashes: s.crashes, Leaders: s.c.changes, Stale: s.c.stale, Healed: s.healed,
		Virtual: s.Now, Err: s.Err, Rule: s.Rule, Cuts: s.cuts, Installs: s.installs, Heirs: s.heirs, Flips: s.flips, Repairs: s.repairs, Fulls: s.fulls,
		Uncleans: s.uncleans, Dropped: s.dropped}
	if res.Err == nil {
		res.Err = s.Rule
	}
	for _, w := range s.worlds {
		res.Ops += len(w.ops)
		res.Reads += w.Check.Reads
		res.Masters += w.Check.Masters
		res.Epochs += len(w.records)
		for _, op := range w.ops {
			switch op.State {
			case Acked:
				res.Acked++
			case Unknown:
				res.Unknown++
			case NotStored:
				res.NotStored++
			}
		}
		var last ids.Index
		for i := range w.Check.values {
			last = max(last, i)
		}
		res.Entries += last
	}
	return res
}
