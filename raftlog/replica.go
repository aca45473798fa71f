package raftlog

import (
	"bytes"
	"fmt"

	"github.com/rs/zerolog"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog/peer"
)

// Replica is one member of a group as a step function: no goroutine, no clock, no socket. Its inputs are Tick, Receive,
// Completed, Adopt, Campaign, Transfer, Leave, ReadIndex and Wake; after any number of them Turn does what follows from them, and Take hands out
// the messages to send and the jobs to write. It calls its StateMachine from Turn. It reads the log but never writes it.
//
// Life of a replica:
//
//	waiting ──first record──▶ sealing ──record durable──▶ running ──higher record──▶ sealing …
//	   any ──poisoned log, lost tail, unknown command──▶ parked (for this process life)
//	sealing ──record without this replica──▶ idle ──higher record──▶ sealing
//
// Invariants:
//  1. applied ≤ commit ≤ tail.Index.
//  2. tail is the tail after the last entry that Raft has, whether its frame is written or not.
//  3. While sealing, nothing is stepped and no job is outstanding once the seal is.
//  4. A parked replica has no RawNode: nothing that it sends can be a vote, an acknowledgement or a heartbeat.
type Replica struct {
	cfg    Config
	log    *commitlog.Log
	sm     StateMachine
	logger zerolog.Logger

	owner  Owner // as last given to the writer; Commit as Raft knows it
	rn     *raft.RawNode
	st     *storage
	w      window
	tail   commitlog.Tail
	staged map[entryKey]commitlog.Frame // frames of entries that Raft has been given and not shown yet
	read   []byte                       // buffer for frames that are reread to be applied

	record  EpochRecord // in force; Epoch is 0 while the first one is waited for
	encoded []byte
	hash    [16]byte
	members map[ids.ReplicaID]*member // of the record in force, and former ones that may still write to us
	order   []*member                 // members by id, made when asked for

	refusals    int64
	refusedTick int64

	seal        seal
	outstanding int // jobs given out and not completed
	out         Output

	now       int64
	more      bool  // see More
	turnBytes int   // of frames applied in this turn
	reread    int64 // bytes of frames read for followers since the last turn ended
	starved   bool  // a follower waits for more of them
	ticks     int64
	booted    int64 // tick in which the record in force came into force
	lead      ids.ReplicaID
	leading   bool
	// masterHeard is the tick of the last word of a master; masterClosed: its connection was closed since.
	masterHeard  int64
	masterClosed bool
	commits      [commitMemory]ids.Index // commit index at the last ticks
	state        raft.StateType
	ownEmpty     ids.Index // the entry with which this leadership began, 0 when it is not shown yet
	handedIn     ids.Term  // in which another master asked this replica to lead, 0: none did
	role         Role
	roleTold     bool
	commit       ids.Index
	applied      ids.Index
	synced       ids.Index
	cuts         int64 // truncations so far: a job given out before the last one says nothing about what is durable
	maxTime      int64 // of all frames this replica has had

	form  proposals
	reads reads

	transfer *transfer // under way, nil when none is
	leaving  bool      // see Leave

	ackDirty bool
	acked    ids.Index // last value given to StateMachine.Acked in this leadership
	lastAck  ackMark

	offer *Offer // of this turn

	parked *ParkedError
	idle   string // why there is no RawNode though nothing is broken: no record yet, not a member

	hooks hooks
}

// hooks are mutants for tests of the tests: each breaks one rule on purpose, and the simulation must notice.
type hooks struct {
	skipGate bool // step a message of a higher epoch without adopting its record
	keepTerm bool // seal without raising the term
}

type entryKey struct {
	index ids.Index
	term  ids.Term
}

type ackMark struct {
	to    uint64
	term  uint64
	index uint64
	tick  int64
}

// member is what a replica knows of another member of the group, or of a former one.
type member struct {
	Member
	current  bool      // of the record in force
	heard    int64     // tick of the last message, -1 when none
	epoch    ids.Epoch // highest epoch it has shown
	attached int64     // tick in which it was last sent the record
	conflict bool      // it has another record of the epoch in force
	match    ids.Index // as of the last refresh, master only
	behind   bool      // as of the last refresh, master only: it lacks what the log has given up
	offered  int64     // tick in which it was last sent an offer
	flow     flow
	watch
}

// Output is what a turn produced. The shell sends Sends first, then hands Jobs to the writer; both in order.
type Output struct {
	Sends []Outgoing
	Jobs  []*Job
}

// Outgoing is one envelope with the node it goes to.
type Outgoing struct {
	Node     ids.NodeID
	Envelope peer.Envelope
}

// raftPanic is what the library's logger panics with when the library finds one of its invariants broken.
type raftPanic string

// OpenReplica reads what the log and its meta file hold and returns the replica as it was before the stop. It writes only when
// the meta file has no owner record yet. Errors: those of Config.Validate, *IdentityError, ErrOwner, ErrEpochRecord.
func OpenReplica(cfg Config) (*Replica, error) {
	if cfg.Record != nil {
		def(&cfg.Cluster, cfg.Record.Cluster)
		def(&cfg.Group, cfg.Record.Group)
	}
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Replica{
		cfg: cfg, log: cfg.Log, sm: cfg.SM,
		staged:  make(map[entryKey]commitlog.Frame),
		members: make(map[ids.ReplicaID]*member),
		applied: cfg.Applied,
		logger:  cfg.Logger,
		idle:    "no epoch record yet",
		now:     cfg.Clock(),
	}
	if err := r.loadOwner(); err != nil {
		return nil, err
	}
	r.tail = r.log.Tail()
	r.maxTime = r.tail.Time
	r.synced, _ = r.log.Synced()
	r.commit = min(max(r.owner.Commit, r.applied), r.tail.Index)
	if r.applied > r.tail.Index {
		r.park(fmt.Sprintf("the log ends at entry %d, below entry %d that its state machine has applied: a lost tail", r.tail.Index, r.applied), nil)
		r.parked.Lost = true
		return r, nil
	}
	if err := r.log.Poisoned(); err != nil {
		r.park("the log is poisoned", err)
		return r, nil
	}
	if r.record.Epoch > 0 {
		r.guard(r.boot)
	}
	if cfg.Record != nil && cfg.Record.Epoch == r.record.Epoch {
		_ = r.comparable(*cfg.Record) // another one is told in the log; the one on the disk stays
	}
	if cfg.Record != nil && cfg.Record.Epoch > r.record.Epoch {
		if err := r.Adopt(*cfg.Record); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// loadOwner reads the owner record of the meta file, or writes the first one.
func (r *Replica) loadOwner() error {
	blob := r.log.Meta().Owner
	if len(blob) == 0 {
		if i := r.log.Tail().Index; i != 0 {
			return &IdentityError{fmt.Sprintf("the log holds %d entries but its meta file names no replica", i)}
		}
		r.owner = Owner{Replica: r.cfg.Replica, Incarnation: r.cfg.Incarnation}
		if err := r.log.SaveMeta(r.owner.Encode(), true); err != nil {
			return fmt.Errorf("raftlog: write the first owner record: %w", err)
		}
		return nil
	}
	o, err := DecodeOwner(blob)
	if err != nil {
		return err
	}
	if o.Replica != r.cfg.Replica {
		return &IdentityError{fmt.Sprintf("the log belongs to replica %d, not to %d", o.Replica, r.cfg.Replica)}
	}
	if o.Incarnation != r.cfg.Incarnation {
		return &IdentityError{fmt.Sprintf("the log's incarnation is %s, not %s", o.Incarnation, r.cfg.Incarnation)}
	}
	r.owner = o
	if len(o.Record) == 0 {
		return nil
	}
	rec, err := DecodeEpochRecord(o.Record)
	if err != nil {
		return err
	}
	if rec.Group != r.cfg.Group {
		return &IdentityError{fmt.Sprintf("the log belongs to group %s, not to %s", rec.Group, r.cfg.Group)}
	}
	def(&r.cfg.Cluster, rec.Cluster)
	if rec.Cluster != r.cfg.Cluster {
		return &IdentityError{fmt.Sprintf("the log belongs to cluster %s, not to %s", rec.Cluster, r.cfg.Cluster)}
	}
	r.install(rec, o.Record)
	return nil
}

// install makes rec the record in force, in memory.
func (r *Replica) install(rec EpochRecord, encoded []byte) {
	r.record, r.encoded, r.hash = rec, bytes.Clone(encoded), rec.Hash()
	for _, m := range r.members {
		m.current = false
	}
	for _, list := range [2][]Member{rec.Voters, rec.Learners} {
		for _, m := range list {
			p := r.members[m.ID]
			if p == nil {
				p = &member{heard: -1}
				r.members[m.ID] = p
			}
			p.Member, p.current, p.match, p.attached, p.conflict, p.flow = m, true, 0, -attachEvery, false, flow{}
			p.behind, p.offered = false, 0
			p.watch = watch{closed: p.closed}
		}
	}
}

// boot builds the RawNode of the record in force, or tells why there is none.
func (r *Replica) boot() {
	r.rn, r.lead, r.leading, r.ownEmpty, r.state = nil, 0, false, 0, raft.StateFollower
	r.booted = r.ticks
	r.masterHeard, r.masterClosed = r.ticks, false
	self, ok := r.record.Member(r.cfg.Replica)
	switch {
	case !ok:
		r.idle = fmt.Sprintf("not a member of epoch %d", r.record.Epoch)
		r.logger.Info().Uint32("epoch", uint32(r.record.Epoch)).Msg("replica is not a member of its epoch and parks")
		return
	case self.Incarnation != r.cfg.Incarnation:
		r.idle = fmt.Sprintf("epoch %d names incarnation %s of this replica, this folder is %s: a lost identity", r.record.Epoch, self.Incarnation, r.cfg.Incarnation)
		r.logger.Error().Uint32("epoch", uint32(r.record.Epoch)).Msg(r.idle)
		return
	}
	r.idle = ""
	term := max(r.owner.Term, r.tail.Term)
	if !r.hooks.keepTerm {
		term = max(term, ids.MakeTerm(r.record.Epoch, 0))
	}
	if term > r.owner.Term {
		// A write that a crash cut off between the log and the meta file: no vote of that term can have left.
		r.owner.Term, r.owner.Vote = term, 0
	}
	conf := &pb.ConfState{}
	for _, m := range r.record.Voters {
		conf.Voters = append(conf.Voters, uint64(m.ID))
	}
	for _, m := range r.record.Learners {
		conf.Learners = append(conf.Learners, uint64(m.ID))
	}
	r.st = &storage{
		log: r.log, w: &r.w, conf: conf, limit: r.cfg.Limits.Message, newest: r.cfg.Newest,
		hard: &pb.HardState{Term: new(uint64(r.owner.Term)), Vote: new(uint64(r.owner.Vote)), Commit: new(uint64(r.commit))},
	}
	rn, err := raft.NewRawNode(&raft.Config{
		ID: uint64(r.cfg.Replica), ElectionTick: r.cfg.ElectionTick, HeartbeatTick: r.cfg.HeartbeatTick,
		Storage: r.st, Applied: uint64(r.applied), AsyncStorageWrites: true,
		MaxSizePerMsg: thinLimit, MaxCommittedSizePerReady: thinLimit, MaxInflightMsgs: maxInflightMessages,
		CheckQuorum: true, PreVote: true, StepDownOnRemoval: true, DisableProposalForwarding: true,
		ReadOnlyOption: raft.ReadOnlySafe, Logger: RaftLogger(r.logger),
	})
	if err != nil {
		panic(raftPanic(err.Error()))
	}
	r.rn = rn
}

// Bounds in the library's own terms. They see thin entries of some 40 bytes; the frames' bytes are bounded by Limits.
const (
	thinLimit           = 64 << 10
	maxInflightMessages = 256
)

// guard runs f and parks the replica when the library, or a read below it, finds something impossible.
func (r *Replica) guard(f func()) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case raftPanic:
			r.park("Raft found a broken invariant: "+string(e), nil)
		case storageError:
			r.park("the log could not be read", e.err)
		default:
			panic(e)
		}
	}()
	f()
}

// park takes the replica out of its group for this process life.
func (r *Replica) park(reason string, err error) {
	if r.parked != nil {
		return
	}
	r.parked = &ParkedError{Reason: reason, Err: err}
	r.offer = nil
	r.noteFailedSync()
	r.rn, r.lead, r.leading = nil, 0, false
	r.seal = seal{}
	r.forgetFlows()
	r.logger.Error().Err(err).Uint32("epoch", uint32(r.record.Epoch)).Stringer("term", r.owner.Term).Msg("replica parks: " + r.parked.Reason)
	r.form.abandonAll(r.sm)
	r.reads.fail(r.parked)
	r.endTransfer()
}

// noteFailedSync makes a parked replica a lost one when a sync of its log failed, also one that was under way when something else parked it.
func (r *Replica) noteFailedSync() {
	if r.parked.Lost || !r.log.Async() || !r.log.SyncFailed() {
		return
	}
	p := *r.parked // others may hold it
	// What it acknowledged may be lost, and can still be read: a later start would see nothing.
	p.Reason, p.Lost = p.Reason+", and what was acknowledged and not synced may be lost", true
	r.parked = &p
}

// Record returns the epoch record in force; its Epoch is 0 while the first one is waited for.
func (r *Replica) Record() EpochRecord { return r.record }

// Parked returns why the replica is parked for this process life, or nil.
func (r *Replica) Parked() *ParkedError { return r.parked }

// Tick tells that one tick of time has passed.
func (r *Replica) Tick() {
	r.ticks++
	if err := r.log.Poisoned(); err != nil && r.parked == nil {
		r.park("the log is poisoned", err) // by the filler of its space, or by a read: nobody else tells
	}
	if r.parked != nil {
		r.noteFailedSync()
	}
	r.form.expire(r.sm, r.ticks, int64(r.cfg.AbandonAfter/r.cfg.Tick))
	if r.rn == nil || r.seal.active() {
		return
	}
	r.guard(func() {
		if !r.yields() {
			r.rn.Tick()
		}
		for _, m := range r.sortedMembers() {
			m.flow.tick(r, m)
		}
		r.refresh()
		r.offerAgain()
		r.watchMembers()
	})
}

// firstPatience is how long a new group leaves its first election to the first of its voters, in election timeouts.
const firstPatience = 20

// yields tells whether this replica does not campaign by itself yet: in the first epoch, before any election, the voter with
// the lowest slot goes first, which the controller tells to campaign. Otherwise a machine under load would give a new group
// whichever master is quickest. A timer may be as late as it likes, so nothing that is safe depends on it.
func (r *Replica) yields() bool {
	if r.record.Epoch != 1 || r.owner.Term.Election() != 0 || r.lead != 0 || r.state != raft.StateFollower ||
		r.ticks-r.booted >= int64(firstPatience*r.cfg.ElectionTick) {
		return false
	}
	return sortedMembers(r.record.Voters)[0].ID != r.cfg.Replica
}

// Campaign starts an election at once, also while the voters hear a master. It does nothing on a master, a learner, or a
// replica without a record. While a record is being adopted it waits for the new epoch.
func (r *Replica) Campaign() {
	if r.seal.active() {
		r.seal.campaign = true
		return
	}
	if r.rn == nil {
		return
	}
	r.guard(func() {
		if r.state == raft.StateCandidate || r.state == raft.StatePreCandidate {
			_ = r.rn.Campaign() // a candidate does not hear MsgTimeoutNow, and is not bound by a master it hears
			return
		}
		self := new(uint64(r.cfg.Replica))
		_ = r.rn.Step(&pb.Message{Type: pb.MsgTimeoutNow.Enum(), To: self, From: self, Term: new(uint64(r.owner.Term))})
	})
}

// Wake tells that the state machine has something to form.
func (r *Replica) Wake() { r.form.wanted = true }

// Take hands out what the last turns produced.
func (r *Replica) Take() Output {
	o := r.out
	r.out = Output{}
	return o
}
