package raftlog

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog/peer"
)

// Group is one running replica: a Replica with its goroutines. They are three: the loop, the writer of the log, and one that
// fills the log's space ahead of the writer; a log that flushes asynchronously has one more, which syncs it. Close ends them all.
type Group struct {
	cfg    Config
	r      *Replica // of the loop alone
	status atomic.Pointer[Status]

	wake   chan struct{} // something is in the inbox
	wanted atomic.Bool   // Wake was called since the last turn
	ready  atomic.Bool   // a frame could be formed at once: only then Wake need interrupt the loop's sleep

	mu     sync.Mutex
	in     inbox
	closed bool

	queue jobQueue
	fill  chan struct{}

	flush    chan struct{} // something is written and not durable
	flushNow chan struct{} // much of it is
	flusher  sync.WaitGroup

	stop   chan struct{} // ends the loop
	killed atomic.Bool
	loop   chan struct{} // closed when the loop has ended
	writer chan struct{} // closed when the writer has ended
	filler chan struct{}
}

// inbox collects what happened since the last turn.
type inbox struct {
	envs  []peer.Envelope // bounded by Limits.Inbox: more are dropped, and Raft sends again
	bytes int64
	done  []completion
	calls []func(*Replica) // one for each caller that waits, and for each Adopt and Campaign
}

type completion struct {
	jobs []*Job
	err  error
}

// Start opens the replica and starts its goroutines. The errors are those of OpenReplica. A replica that must park starts too,
// and says why in Status.
func Start(cfg Config) (*Group, error) {
	r, err := OpenReplica(cfg)
	if err != nil {
		return nil, err
	}
	w, err := NewWriter(r.log)
	if err != nil {
		return nil, err
	}
	g := &Group{
		cfg: r.cfg, r: r,
		wake:  make(chan struct{}, 1),
		queue: jobQueue{wake: make(chan struct{}, 1)},
		fill:  make(chan struct{}, 1),
		flush: make(chan struct{}, 1), flushNow: make(chan struct{}, 1),
		stop: make(chan struct{}), loop: make(chan struct{}), writer: make(chan struct{}), filler: make(chan struct{}),
	}
	s := r.Status()
	g.status.Store(&s)
	go g.run()
	go g.write(w)
	go g.fillAhead()
	if g.cfg.Log.Async() {
		g.flusher.Go(g.syncBehind)
	}
	signal(g.fill)
	return g, nil
}

// Close is a clean stop: it settles what waits as unknown, finishes the writes that were begun, and renews the durable bound.
// The log stays open; the caller closes it next. It returns when all goroutines have ended. Close may be called more than once.
func (g *Group) Close() error {
	g.end()
	if err := g.cfg.Log.Poisoned(); err != nil {
		return err
	}
	return nil
}

// Kill ends the goroutines without the checkpoint of a clean stop, and drops writes that were not begun. For tests.
func (g *Group) Kill() {
	g.killed.Store(true)
	g.end()
}

func (g *Group) end() {
	g.mu.Lock()
	if !g.closed {
		g.closed = true
		close(g.stop)
	}
	g.mu.Unlock()
	<-g.loop
	<-g.writer
	<-g.filler
	g.flusher.Wait()
}

// Receive takes an envelope from the transport. It never blocks; what is above Limits.Inbox is dropped.
func (g *Group) Receive(env peer.Envelope) {
	n := envelopeCost
	for _, f := range env.Frames {
		n += int64(len(f))
	}
	g.mu.Lock()
	ok := !g.closed && (g.in.bytes == 0 || g.in.bytes+n <= g.cfg.Limits.Inbox)
	if ok {
		g.in.envs = append(g.in.envs, env)
		g.in.bytes += n
	}
	g.mu.Unlock()
	if ok {
		signal(g.wake)
	}
}

// envelopeCost is what an envelope without frames counts for in the inbox, in bytes.
const envelopeCost int64 = 512

// Wake tells that something waits in Form. It is cheap, and may be called for every request: while a frame is under way it
// leaves a mark, which the turn that ends the frame finds.
func (g *Group) Wake() {
	if !g.wanted.Swap(true) && g.ready.Load() {
		signal(g.wake)
	}
}

// Campaign is a named election: this replica asks for the votes at once, also while the voters hear a master. Whoever calls it
// has made sure that it is wanted. It does nothing on a master or a learner.
func (g *Group) Campaign() { g.call((*Replica).Campaign) }

// Transfer hands the mastership to another voter; see Replica.Transfer. False: the group is closed, and done is not called.
func (g *Group) Transfer(to ids.ReplicaID, done func(error)) bool {
	return g.call(func(r *Replica) { r.Transfer(to, done) })
}

// Leave tells that this process ends soon: the replica takes no mastership that another one hands over.
func (g *Group) Leave() { g.call((*Replica).Leave) }

// PeerDown tells that the connection to a node went down, so that what was on its way is sent again at once.
func (g *Group) PeerDown(node ids.NodeID) { g.call(func(r *Replica) { r.PeerDown(node) }) }

// Adopt takes a record from the controller. It checks the record against the one in force and returns; the replica is in the
// new epoch when Status shows it. Errors: ErrEpochRecord, ErrForeignRecord, ErrStaleEpoch, ErrEpochConflict, ErrClosed.
func (g *Group) Adopt(rec EpochRecord) error {
	if err := rec.Validate(); err != nil {
		return err
	}
	s := g.Status()
	switch {
	case rec.Epoch < s.Epoch:
		return ErrStaleEpoch
	case rec.Epoch == s.Epoch && rec.Hash() == s.Hash:
		return nil
	}
	result := make(chan error, 1)
	if !g.call(func(r *Replica) { result <- r.Adopt(rec) }) {
		return ErrClosed
	}
	select {
	case err := <-result:
		return err
	case <-g.loop:
		return ErrClosed
	}
}

// ReadIndex returns an index that is at or above everything that was committed when it was called, confirmed by a quorum and
// applied here. All that wait share one round. Errors: *NotMasterError, *ParkedError, ErrClosed, those of ctx.
func (g *Group) ReadIndex(ctx context.Context) (ids.Index, error) {
	type answer struct {
		index ids.Index
		err   error
	}
	result := make(chan answer, 1)
	if !g.call(func(r *Replica) { r.ReadIndex(func(i ids.Index, err error) { result <- answer{i, err} }) }) {
		return 0, ErrClosed
	}
	select {
	case a := <-result:
		return a.index, a.err
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-g.loop:
		return 0, ErrClosed
	}
}

// Status returns the newest snapshot. It is cheap.
func (g *Group) Status() Status { return *g.status.Load() }

// MinMatch returns the last entry that every voter of the epoch is known to hold durably, past which retention must not cut, and
// the last one that every learner is known to hold too. Both are 0 on a replica that is not master; an unheard member holds
// nothing.
func (g *Group) MinMatch() (voters, all ids.Index) {
	s := g.status.Load()
	if s.Role != RoleMaster {
		return 0, 0
	}
	lowest := func(low ids.Index, list []MemberStatus) ids.Index {
		for _, m := range list {
			if m.ID != s.Replica {
				low = min(low, m.Match)
			}
		}
		return low
	}
	voters = lowest(s.Synced, s.Voters)
	return voters, lowest(voters, s.Learners)
}

// call runs f in the loop goroutine; false when the group is closed.
func (g *Group) call(f func(*Replica)) bool {
	g.mu.Lock()
	ok := !g.closed
	if ok {
		g.in.calls = append(g.in.calls, f)
	}
	g.mu.Unlock()
	if ok {
		signal(g.wake)
	}
	return ok
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run is the loop. It alone touches the Replica and calls the StateMachine.
func (g *Group) run() {
	defer close(g.loop)
	ticker := time.NewTicker(g.cfg.Tick)
	defer ticker.Stop()
	hold := time.NewTimer(time.Hour)
	defer hold.Stop()
	for tick := false; ; {
		g.turn(tick)
		if until, ok := g.r.HoldUntil(); ok {
			hold.Reset(max(0, time.Duration(until-g.cfg.Clock())*time.Millisecond))
		}
		select {
		case <-g.stop:
			g.finish()
			return
		case <-g.wake:
			tick = false
		case <-hold.C:
			tick = false
		case <-ticker.C:
			tick = true
		}
	}
}

// turn is one turn of the loop: all inputs, what follows from them, messages, jobs, answers.
func (g *Group) turn(tick bool) {
	g.mu.Lock()
	in := g.in
	g.in = inbox{}
	g.mu.Unlock()
	r := g.r
	if tick {
		r.Tick()
	}
	if g.wanted.Swap(false) {
		r.Wake()
	}
	for _, c := range in.done {
		r.Completed(c.jobs, c.err)
	}
	for _, env := range in.envs {
		r.Receive(env)
	}
	for _, f := range in.calls {
		f(r)
	}
	r.Turn(g.cfg.Clock())
	// Either Wake sees that the loop is ready, or this sees Wake's mark.
	if ready := r.couldForm(); g.ready.Swap(ready) != ready && ready && g.wanted.Load() {
		signal(g.wake)
	}
	out := r.Take()
	g.send(out.Sends)
	g.queue.put(out.Jobs)
	g.publish(tick)
	if r.More() {
		signal(g.wake)
	}
	g.cfg.SM.Flush()
}

// send gives each node its envelopes, in order, in one call.
func (g *Group) send(list []Outgoing) {
	for len(list) > 0 {
		node := list[0].Node
		var envs []peer.Envelope
		rest := list[:0]
		for _, o := range list {
			if o.Node == node {
				envs = append(envs, o.Envelope)
			} else {
				rest = append(rest, o)
			}
		}
		list = rest
		g.cfg.Send(node, envs)
	}
}

// finish settles what waits when the group closes.
func (g *Group) finish() {
	g.mu.Lock()
	calls := g.in.calls
	g.in = inbox{}
	g.mu.Unlock()
	g.r.shutDown()
	for _, f := range calls {
		f(g.r)
	}
	g.cfg.SM.Flush()
}

// publish renews the snapshot; the members' part only when all is set or a tick has passed, but for what it says of the master: a controller that
// reads of a lost one where a new one was heard would call for another election.
func (g *Group) publish(all bool) {
	s := g.r.snapshot()
	if old := g.status.Load(); !all && old.Role == s.Role && old.Epoch == s.Epoch && old.Term == s.Term {
		s.Voters, s.Learners, s.Heard = old.Voters, old.Learners, old.Heard
		g.r.masterStatus(&s)
	} else {
		g.r.memberStatus(&s)
	}
	g.status.Store(&s)
}
