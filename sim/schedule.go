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
	Crashes, Epochs, Leaders, Cuts, Installs               int
	Healed                                                 int64 // microseconds from the end of the faults to full health
	Entries                                                ids.Index
	Virtual                                                int64 // microseconds
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
	s := &schedule{p: p, r: rand.New(rand.NewPCG(p.Seed, 1)), w: NewWorld(), cut: make(map[[2]ids.ReplicaID]bool), arrival: make(map[[2]ids.ReplicaID]int64),
		stride: 64, disk: make(map[ids.ReplicaID]bool), silent: make(map[ids.ReplicaID]bool), fetching: make(map[ids.ReplicaID]bool),
		paused: make(map[ids.ReplicaID]int64), handing: make(map[*handover]bool)}
	s.w.mutant, s.w.trace = o.Mutant, o.Trace
	s.c = newControllers(s)
	return s
}

// schedule is the random driver of one world.
type schedule struct {
	p      Params
	r      *rand.Rand
	w      *World
	queue  events
	seq    int
	events int
	stride int // events between two looks at whether something is done

	cut     map[[2]ids.ReplicaID]bool  // one-way: from, to
	drop    func(peer.Envelope) bool   // of a story: what is lost
	arrival map[[2]ids.ReplicaID]int64 // when the last message of this direction arrives
	calm    bool                       // the second phase
	ended   bool                       // its end: no client sends
	begun   int                        // operations before the second phase
	c       *controllers
	ops     []*Op
	crashes int
	healed  int64
	cuts    int // fronts given up
	// installs: replicas that began anew at the front of another one; fetching: they are about to
	installs int
	fetching map[ids.ReplicaID]bool
	disk     map[ids.ReplicaID]bool  // a disk event is due
	silent   map[ids.ReplicaID]bool  // its node cannot reach the controllers
	paused   map[ids.ReplicaID]int64 // until when its process does nothing
	handing  map[*handover]bool      // hand-overs of the mastership that are under way
	gaveUp   bool                    // an unclean election gave replicas up
}

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
	heap.Push(&s.queue, event{s.w.Now + d, s.seq, do})
}

func (s *schedule) chance(p float64) bool { return p > 0 && s.r.Float64() < p }

func (s *schedule) between(a, b int64) int64 {
	if b <= a {
		return a
	}
	return a + s.r.Int64N(b-a)
}

func (s *schedule) fail(format string, args ...any) { s.w.Check.fail(format, args...) }

// run is the whole life of a seed.
func (s *schedule) run() {
	s.begin()
	s.after(1_000, s.client)
	s.after(s.p.Fault, s.fault)
	s.until(s.p.Safety, func() bool { return false })
	if s.w.Check.Err == nil {
		s.heal()
	}
}

// begin makes the group and starts its nodes and their agents.
func (s *schedule) begin() {
	w := s.w
	w.Sent = s.sent
	w.Config = func(c *raftlog.Config) {
		c.MaxInflightFrames, c.Limits = s.p.Inflight, s.p.Limits
		c.Limits.Inbox = 1 << 20
	}
	w.Tracef("%s", s.p)
	for i := range s.p.M {
		if _, err := w.AddNode(ids.ReplicaID(i + 1)); err != nil {
			s.fail("create replica %d: %v", i+1, err)
			return
		}
	}
	s.c.found(s.p.A, s.p.M, s.p.MinISR)
	s.c.decide = s.p.Decides
	if w.Check.Err != nil {
		return
	}
	agents := make(map[*Node]*agent)
	for _, n := range w.Nodes {
		agents[n] = &agent{s: s, n: n}
	}
	w.Role = func(n *Node) {
		if n.Machine.master {
			s.after(100, agents[n].hurry)
		}
	}
	for _, n := range w.Nodes {
		s.open(n)
		s.after(s.between(0, 50_000), func() { s.tick(n) })
		s.after(s.between(0, 50_000), agents[n].beat)
	}
}

// until runs events for a time, or until done.
func (s *schedule) until(d int64, done func() bool) bool {
	end := s.w.Now + d
	for s.w.Check.Err == nil && len(s.queue) > 0 && s.queue[0].at <= end {
		e := heap.Pop(&s.queue).(event)
		s.w.Now = e.at
		s.events++
		e.do()
		if s.events%s.stride == 0 && done() {
			return true
		}
	}
	return done()
}

// open starts a machine, if its disk lets it.
func (s *schedule) open(n *Node) {
	s.w.Check.mayPark[n.ID] = false
	if s.calm {
		n.powerAfter, n.failSync = 0, false
	} else if s.chance(s.p.Crash) {
		n.powerAfter = 1 + s.r.IntN(20) // the power goes while it recovers, or soon after
	}
	var rec *raftlog.EpochRecord
	if newest := s.c.newest(); newest.Epoch == 1 || s.p.Informs && s.chance(0.3) {
		rec = &newest
	}
	err := n.Open(rec)
	s.w.Tracef("n%d opens: %v", n.ID, err)
	if n.powerAfter < 0 {
		s.powerCut(n)
		return
	}
	if err != nil {
		s.fail("replica %d does not open: %v", n.ID, err)
		return
	}
	s.settleDisk(n)
}

func (s *schedule) powerCut(n *Node) {
	s.w.Tracef("n%d loses its power", n.ID)
	s.crashes++
	n.PowerCut(s.r)
	s.reopen(n)
}

func (s *schedule) kill(n *Node) {
	s.w.Tracef("n%d is killed", n.ID)
	s.crashes++
	n.Kill()
	if s.chance(0.9) {
		s.disconnect(n)
	}
	s.reopen(n)
}

func (s *schedule) reopen(n *Node) {
	s.paused[n.ID] = 0
	d := s.between(10_000, 1_500_000)
	if s.chance(0.2) {
		d = s.between(1_500_000, 8_000_000)
	}
	s.after(d, func() {
		if !n.Up {
			s.open(n)
			s.disconnect(n) // what is left of connections to the process before
		}
	})
}

func (s *schedule) tick(n *Node) {
	s.after(s.between(49_000, 51_000), func() { s.tick(n) })
	if n.Up && s.pausedFor(n) == 0 {
		n.Tick()
		s.settleDisk(n)
	}
}

// settleDisk makes sure that queued jobs are written some time.
func (s *schedule) settleDisk(n *Node) {
	if !n.Up || s.disk[n.ID] || len(n.Queue) == 0 && !s.hold(n) {
		return
	}
	d := s.between(s.p.DiskMin, s.p.DiskMax)
	if !s.calm && s.chance(s.p.DiskStall) {
		d = s.between(20_000, 400_000)
	}
	s.disk[n.ID] = true
	life := n.Log
	var due func()
	due = func() {
		if d := s.pausedFor(n); d > 0 {
			s.after(d, due)
			return
		}
		s.disk[n.ID] = false
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
		n.powerAfter = 1 + s.r.IntN(8)
	}
	err := n.Write()
	if n.powerAfter < 0 {
		s.powerCut(n)
		return
	}
	if err != nil {
		s.w.Check.mayPark[n.ID] = true
		s.w.Tracef("n%d: %v", n.ID, err)
	}
	life := n.Log
	var told func()
	told = func() {
		if d := s.pausedFor(n); d > 0 {
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
	key := [2]ids.ReplicaID{env.From, env.To}
	if s.cut[key] || !s.calm && s.chance(s.p.Loss) || s.drop != nil && s.drop(env) {
		return
	}
	copies := 1
	if !s.calm && s.chance(s.p.Duplicate) {
		copies = 2
	}
	for range copies {
		at := s.w.Now + s.between(s.p.DelayMin, s.p.DelayMax)
		if s.p.Ordered || s.calm {
			at = max(at, s.arrival[key])
			s.arrival[key] = at
		}
		s.after(at-s.w.Now, func() { s.deliver(env) })
	}
}

func (s *schedule) deliver(env peer.Envelope) {
	n := s.w.Node(env.To)
	if !n.Up || s.cut[[2]ids.ReplicaID{env.From, env.To}] {
		return
	}
	if d := s.pausedFor(n); d > 0 {
		s.after(d, func() { s.deliver(env) })
		return
	}
	s.w.Tracef("n%d gets %s from n%d term %s index %d entries %d commit %d reject %t", n.ID, env.Msg.GetType(), env.From,
		ids.Term(env.Msg.GetTerm()), env.Msg.GetIndex(), len(env.Msg.GetEntries()), env.Msg.GetCommit(), env.Msg.GetReject())
	n.Deliver(env)
	s.catchUp(n)
	s.settleDisk(n)
}

// client sends operations and reads to whoever says that it is master.
func (s *schedule) client() {
	if s.ended {
		return
	}
	every := s.p.OpEvery
	if s.calm {
		every *= 10
	}
	s.after(s.between(every/2, every*3/2), s.client)
	var masters []*Node
	for _, n := range s.w.Nodes {
		if n.Up && n.Machine.master && s.pausedFor(n) == 0 {
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
		op := &Op{ID: len(s.ops) + 1}
		op.Payload = fmt.Sprintf("op %d %s", op.ID, strings.Repeat("x", s.r.IntN(s.p.MaxOp)))
		s.ops = append(s.ops, op)
		n.Propose(op)
	}
	s.settleDisk(n)
}

func (s *schedule) read(n *Node) {
	asked := s.w.Check.MaxAcked
	n.Replica.ReadIndex(func(i ids.Index, err error) {
		if err == nil {
			s.w.Check.read(n, asked, i)
		}
	})
	n.Turn()
}

func (s *schedule) result() Result {
	c := s.w.Check
	res := Result{Params: s.p, Trace: s.w.TraceHash(), Events: s.events, Ops: len(s.ops), Reads: c.Reads, Masters: c.Masters,
		Crashes: s.crashes, Epochs: len(s.c.records), Leaders: s.c.changes, Healed: s.healed, Virtual: s.w.Now, Err: c.Err, Rule: c.Rule,
		Cuts: s.cuts, Installs: s.installs}
	if res.Err == nil {
		res.Err = c.Rule
	}
	for _, op := range s.ops {
		switch op.State {
		case Acked:
			res.Acked++
		case Unknown:
			res.Unknown++
		case NotStored:
			res.NotStored++
		}
	}
	for i := range c.values {
		res.Entries = max(res.Entries, i)
	}
	return res
}
