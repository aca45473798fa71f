package sim

import (
	"container/heap"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/raftlog/peer"
)

// Params are what a seed draws first. Times are in virtual microseconds, rates are chances per event or per fault step.
type Params struct {
	Seed     uint64
	Replicas int
	A        uint8

	Safety   int64 // length of the phase with faults
	Liveness int64 // bound of the phase without

	DelayMin, DelayMax int64
	Ordered            bool // messages of one direction do not overtake each other, as on a connection
	Loss, Duplicate    float64
	DiskMin, DiskMax   int64
	DiskStall          float64 // chance that a write takes up to 400 ms

	Fault      int64   // a fault step comes so often
	Crash      float64 // chances of each fault in one step
	Partition  float64
	FailSync   float64
	Epoch      float64
	Campaign   float64
	Checkpoint float64

	Inflight int            // frames in flight
	Limits   raftlog.Limits // small, so that bounds are met
	MaxOp    int            // bytes of a payload
	OpEvery  int64
}

func draw(seed uint64) Params {
	r := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	pick := func(list ...float64) float64 { return list[r.IntN(len(list))] }
	p := Params{
		Seed: seed, Replicas: 3, A: uint8(1 + r.IntN(3)),
		Safety: 12e6, Liveness: 20e6,
		DelayMin: 100, DelayMax: int64(pick(500, 5_000, 40_000)),
		Ordered: r.IntN(2) == 0,
		Loss:    pick(0, 0.01, 0.1), Duplicate: pick(0, 0.02, 0.1),
		DiskMin: 150, DiskMax: int64(pick(500, 5_000, 20_000)), DiskStall: pick(0, 0.005, 0.03),
		Fault: 50_000,
		Crash: pick(0, 0.01, 0.05), Partition: pick(0, 0.02, 0.06), FailSync: pick(0, 0, 0.005, 0.02),
		Epoch: pick(0, 0.01, 0.04), Campaign: pick(0, 0.01, 0.04), Checkpoint: 0.05,
		Inflight: 1 + r.IntN(4), MaxOp: int(pick(40, 400, 5_000)), OpEvery: int64(pick(5_000, 20_000)),
	}
	p.Limits = raftlog.Limits{Message: int64(pick(1_000, 20_000, 1<<20)), Inflight: int64(pick(2_000, 30_000, 8<<20)),
		Uncommitted: int64(pick(5_000, 16<<20)), Window: int64(pick(1, 10_000, 8<<20))}
	return p
}

func (p Params) String() string {
	type plain Params
	return fmt.Sprintf("%+v", plain(p))
}

// Result is what a run was worth.
type Result struct {
	Params                                                 Params
	Trace                                                  uint64 // hash of the trace
	Events, Ops, Acked, Unknown, NotStored, Reads, Masters int
	Undecided                                              int // 1 when the run ended early
	Crashes, Epochs                                        int
	Entries                                                ids.Index
	Virtual                                                int64 // microseconds
	Err                                                    error
}

// Options of Run.
type Options struct {
	Mutant Mutant
	Trace  io.Writer // gets each line of the trace, nil: nobody
}

// Run runs one seed. It puts a source with the seed in the place of crypto/rand.Reader while it runs.
func Run(seed uint64, o Options) (res Result) {
	old := crand.Reader
	src := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24), byte(seed >> 32), 1})
	crand.Reader = src
	defer func() { crand.Reader = old }()

	s := &schedule{p: draw(seed), r: rand.New(rand.NewPCG(seed, 1)), w: NewWorld(), cut: make(map[[2]ids.ReplicaID]bool), arrival: make(map[[2]ids.ReplicaID]int64)}
	s.w.mutant, s.w.trace = o.Mutant, o.Trace
	defer func() {
		res = s.result()
		if e := recover(); e != nil {
			if res.Err == nil {
				res.Err = fmt.Errorf("panic: %v", e)
			}
			if o.Mutant == NoMutant {
				panic(fmt.Sprintf("seed %d: %v", seed, e))
			}
		}
	}()
	s.run()
	return s.result()
}

// schedule is the random driver of one world.
type schedule struct {
	p      Params
	r      *rand.Rand
	w      *World
	queue  events
	seq    int
	events int

	cut     map[[2]ids.ReplicaID]bool  // one-way: from, to
	arrival map[[2]ids.ReplicaID]int64 // when the last message of this direction arrives
	calm    bool                       // the second phase
	begun   int                        // operations before the second phase
	hist    []issued
	ops     []*Op
	crashes int
	over    bool // the run ended early, undecided
	epochs  int
	disk    map[ids.ReplicaID]bool // a disk event is due
}

// issued is one record of the controller.
type issued struct {
	rec    raftlog.EpochRecord
	active bool
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
	w := s.w
	s.disk = make(map[ids.ReplicaID]bool)
	w.Sent = s.sent
	w.Config = func(c *raftlog.Config) {
		c.MaxInflightFrames, c.Limits = s.p.Inflight, s.p.Limits
		c.Limits.Inbox = 1 << 20
	}
	w.Tracef("%s", s.p)
	var all []ids.ReplicaID
	for i := range s.p.Replicas {
		id := ids.ReplicaID(i + 1)
		if _, err := w.AddNode(id); err != nil {
			s.fail("create replica %d: %v", id, err)
			return
		}
		all = append(all, id)
	}
	voters := all
	if s.chance(0.3) {
		voters = all[:2]
	}
	first := w.Record(1, s.p.A, 1, voters, all[len(voters):])
	s.hist = []issued{{first, true}}
	for _, n := range w.Nodes {
		s.open(n)
		s.after(s.between(0, 50_000), func() { s.tick(n) })
	}
	s.after(1_000, s.client)
	s.after(s.p.Fault, s.fault)
	s.until(s.p.Safety, func() bool { return false })
	if w.Check.Err == nil && !s.over {
		s.heal()
	}
}

// until runs events for a time, or until done.
func (s *schedule) until(d int64, done func() bool) bool {
	end := s.w.Now + d
	for s.w.Check.Err == nil && !s.over && len(s.queue) > 0 && s.queue[0].at <= end {
		e := heap.Pop(&s.queue).(event)
		s.w.Now = e.at
		s.events++
		e.do()
		if s.events%64 == 0 && done() {
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
	if s.chance(0.3) || len(s.hist) == 1 {
		rec = &s.hist[len(s.hist)-1].rec
	}
	err := n.Open(rec)
	s.w.Tracef("n%d opens: %v", n.ID, err)
	if n.powerAfter < 0 {
		s.powerCut(n)
		return
	}
	if err != nil {
		if tornBatch(err) {
			s.w.Tracef("the run ends: recovery took a torn batch for damage")
			s.over = true
			return
		}
		s.fail("replica %d does not open: %v", n.ID, err)
		return
	}
	s.settleDisk(n)
}

// tornBatch tells whether recovery reports a bad frame, or a lost segment header, as damage because a valid frame follows it.
// After a power cut that may be a batch of which nothing was synced, so nothing is broken but the replica parks: safe, and
// the end of a run.
func tornBatch(err error) bool {
	var damage *commitlog.DamageError
	return errors.As(err, &damage) && strings.Contains(damage.Reason, "a valid frame follows")
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
	s.reopen(n)
}

func (s *schedule) reopen(n *Node) {
	s.after(s.between(10_000, 1_500_000), func() {
		if !n.Up {
			s.open(n)
		}
	})
}

func (s *schedule) tick(n *Node) {
	s.after(s.between(49_000, 51_000), func() { s.tick(n) })
	if n.Up {
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
	s.after(d, func() {
		s.disk[n.ID] = false
		if n.Log != life || !n.Up {
			s.settleDisk(n)
			return
		}
		s.write(n)
	})
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
	s.after(s.between(5, 50), func() {
		if n.Up && n.Log == life && n.Complete() {
			s.settleDisk(n)
		}
	})
	s.settleDisk(n)
}

// sent puts a message on the network.
func (s *schedule) sent(from *Node, o raftlog.Outgoing) {
	env := o.Envelope
	key := [2]ids.ReplicaID{env.From, env.To}
	if s.cut[key] || !s.calm && s.chance(s.p.Loss) {
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
	s.w.Tracef("n%d gets %s from n%d term %s index %d entries %d commit %d reject %t", n.ID, env.Msg.GetType(), env.From,
		ids.Term(env.Msg.GetTerm()), env.Msg.GetIndex(), len(env.Msg.GetEntries()), env.Msg.GetCommit(), env.Msg.GetReject())
	n.Deliver(env)
	s.settleDisk(n)
	s.observe(n)
}

// observe is the controller's view: a master that has applied an entry of its own epoch activates it.
func (s *schedule) observe(n *Node) {
	last := &s.hist[len(s.hist)-1]
	if !last.active && n.Machine.master && n.Replica.Record().Epoch == last.rec.Epoch && n.Status().Activated {
		last.active = true
		s.w.Tracef("epoch %d is active", last.rec.Epoch)
	}
}

// client sends operations and reads to whoever says that it is master.
func (s *schedule) client() {
	every := s.p.OpEvery
	if s.calm {
		every *= 10
		if s.ackedSince() > 0 {
			return // enough: now all must catch up
		}
	}
	s.after(s.between(every/2, every*3/2), s.client)
	var masters []*Node
	for _, n := range s.w.Nodes {
		if n.Up && n.Machine.master {
			masters = append(masters, n)
		}
	}
	if len(masters) == 0 {
		return
	}
	n := masters[s.r.IntN(len(masters))]
	s.observe(n)
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
	if s.w.mutant == ReadUnsafe {
		s.w.Check.read(n, asked, n.Status().Applied)
		return
	}
	n.Replica.ReadIndex(func(i ids.Index, err error) {
		if err == nil {
			s.w.Check.read(n, asked, i)
		}
	})
	n.Turn()
}

// fault is one step of what may go wrong.
func (s *schedule) fault() {
	if s.calm {
		return
	}
	s.after(s.p.Fault, s.fault)
	n := s.w.Nodes[s.r.IntN(len(s.w.Nodes))]
	if s.chance(s.p.Crash) && n.Up {
		if s.chance(0.5) {
			s.powerCut(n)
		} else {
			s.kill(n)
		}
	}
	if n.Up && s.w.Check.mayPark[n.ID] && s.chance(0.1) {
		s.kill(n) // an operator restarts what has parked
	}
	if s.chance(s.p.Partition) {
		s.partition()
	}
	if s.chance(s.p.FailSync) && n.Up {
		n.failSync = true
		s.w.Check.mayPark[n.ID] = true
	}
	if s.chance(s.p.Epoch) {
		s.issue()
	}
	if s.chance(0.3) && n.Up {
		s.inform(n)
	}
	if s.chance(s.p.Campaign) && n.Up {
		s.w.Tracef("n%d is told to campaign", n.ID)
		n.Campaign()
	}
	if s.chance(s.p.Checkpoint) && n.Up {
		s.checkpoint(n)
	}
	s.settleDisk(n)
}

// checkpoint renews the durable bound, and keeps what the state machine has.
func (s *schedule) checkpoint(n *Node) {
	if n.failed != nil {
		return
	}
	if s.chance(0.5) {
		n.Machine.TakeSnapshot()
	}
	if err := n.Writer.Checkpoint(); err != nil {
		n.failed = err
		n.written = append(n.written, writtenJobs{nil, err})
		s.w.Check.mayPark[n.ID] = true
		n.Complete()
	}
	if n.powerAfter < 0 {
		s.powerCut(n)
	}
}

// partition cuts some directions, or mends all.
func (s *schedule) partition() {
	if len(s.cut) > 0 && s.chance(0.5) {
		clear(s.cut)
		s.w.Tracef("the network is whole")
		return
	}
	a := s.w.Nodes[s.r.IntN(len(s.w.Nodes))].ID
	for _, b := range s.w.Nodes {
		if b.ID == a {
			continue
		}
		if in := s.chance(0.7); in {
			s.cut[[2]ids.ReplicaID{a, b.ID}] = true
		}
		if out := s.chance(0.7); out {
			s.cut[[2]ids.ReplicaID{b.ID, a}] = true
		}
	}
	s.w.Tracef("n%d is cut off in some directions", a)
}

// issue makes the next epoch: one voter is added, removed or replaced, and every majority of it meets every majority of each
// epoch from the last active one on.
func (s *schedule) issue() {
	cur := s.hist[len(s.hist)-1].rec
	var voters []ids.ReplicaID
	for _, m := range cur.Voters {
		voters = append(voters, m.ID)
	}
	var others []ids.ReplicaID
	for _, n := range s.w.Nodes {
		if !slices.Contains(voters, n.ID) {
			others = append(others, n.ID)
		}
	}
	if len(voters) > 1 && s.chance(0.5) {
		k := s.r.IntN(len(voters))
		voters = slices.Delete(voters, k, k+1)
	}
	if len(others) > 0 && s.chance(0.5) {
		voters = append(voters, others[s.r.IntN(len(others))])
	}
	for i := len(s.hist) - 1; i >= 0; i-- {
		if !Overlap(voters, s.hist[i].rec) {
			return
		}
		if s.hist[i].active {
			break
		}
	}
	var learners []ids.ReplicaID
	for _, n := range s.w.Nodes {
		if !slices.Contains(voters, n.ID) && s.chance(0.8) {
			learners = append(learners, n.ID)
		}
	}
	rec := s.w.Record(cur.Epoch+1, s.p.A, 1, voters, learners)
	s.hist = append(s.hist, issued{rec: rec})
	s.epochs++
	s.w.Tracef("epoch %d: voters %v learners %v", rec.Epoch, voters, learners)
	if n := s.w.Nodes[s.r.IntN(len(s.w.Nodes))]; n.Up {
		s.inform(n)
	}
}

// Overlap tells whether every majority of voters meets every majority of the voters of rec.
func Overlap(voters []ids.ReplicaID, rec raftlog.EpochRecord) bool {
	common := 0
	for _, id := range voters {
		if rec.IsVoter(id) {
			common++
		}
	}
	na, nb := len(voters), len(rec.Voters)
	needA, needB := max(0, na/2+1-(na-common)), max(0, nb/2+1-(nb-common))
	return needA+needB > common
}

// inform gives n the newest record.
func (s *schedule) inform(n *Node) {
	rec := s.hist[len(s.hist)-1].rec
	if err := n.Adopt(rec); err != nil && n.Replica.Parked() == nil {
		s.fail("replica %d refuses the record of epoch %d: %v", n.ID, rec.Epoch, err)
	}
}

// heal ends the faults and waits for the group to work again.
func (s *schedule) heal() {
	s.calm = true
	s.p.DelayMax, s.p.DiskMax = min(s.p.DelayMax, 3_000), min(s.p.DiskMax, 3_000)
	clear(s.cut)
	s.w.Tracef("the faults end")
	for _, n := range s.w.Nodes {
		n.powerAfter, n.failSync = 0, false
		if n.Up && n.Replica.Parked() != nil {
			n.Kill()
		}
		if !n.Up {
			s.open(n)
		}
		if s.w.Check.Err != nil || s.over {
			return
		}
		s.inform(n)
		s.settleDisk(n)
	}
	s.begun = len(s.ops)
	rec := s.hist[len(s.hist)-1].rec
	if !s.until(s.p.Liveness, func() bool { return s.converged(rec) }) && s.w.Check.Err == nil && !s.over {
		var state []string
		for _, n := range s.w.Nodes {
			if n.Up {
				st := n.Status()
				state = append(state, fmt.Sprintf("n%d %s term %s epoch %d applied %d commit %d last %d parked %q", n.ID, st.Role, st.Term, st.Epoch, st.Applied, st.Commit, st.Last, st.Parked))
			}
		}
		s.fail("no convergence within %d virtual ms after the faults: %s", s.p.Liveness/1000, strings.Join(state, "; "))
	}
	if s.w.Check.Err == nil && !s.over {
		s.w.Check.Final(s.w, rec, s.ops)
	}
}

// ackedSince returns the highest index that was acknowledged in the second phase, 0 when none was.
func (s *schedule) ackedSince() (acked ids.Index) {
	for _, op := range s.ops[s.begun:] {
		if op.State == Acked {
			acked = max(acked, op.Index)
		}
	}
	return acked
}

// converged tells whether the newest epoch has a master that acknowledged an operation of this phase and all members have
// applied all that was ever acknowledged.
func (s *schedule) converged(rec raftlog.EpochRecord) bool {
	if s.ackedSince() == 0 {
		return false
	}
	for _, n := range s.w.Nodes {
		if _, ok := rec.Member(n.ID); !ok {
			continue
		}
		if !n.Up || n.Replica.Record().Epoch != rec.Epoch || n.Status().Applied < s.w.Check.MaxAcked {
			return false
		}
	}
	return true
}

func (s *schedule) result() Result {
	c := s.w.Check
	res := Result{Params: s.p, Trace: s.w.TraceHash(), Events: s.events, Ops: len(s.ops), Reads: c.Reads, Masters: c.Masters,
		Crashes: s.crashes, Epochs: s.epochs, Virtual: s.w.Now, Err: c.Err}
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
	if s.over {
		res.Undecided = 1
	}
	for i := range c.values {
		res.Entries = max(res.Entries, i)
	}
	return res
}
