package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/raftlog/peer"
	"github.com/ledgermq/ledgermq/remoting"
)

// Replica is one replica of a broker group: its log, what is computed from it, and its client port.
//
// Fields in the first block are fixed once open returned; those of the second are touched by the group's loop goroutine
// alone; the rest says what guards it.
type Replica struct {
	node       *Node
	log        zerolog.Logger
	group      string
	gid        ids.GroupID
	id         ids.ReplicaID
	slot       ids.Slot
	dir        string
	clog       *commitlog.Log
	logOptions commitlog.Options
	st         *state.State
	idx        *index.Index
	raft       *raftlog.Group
	srv        *remoting.Server
	advertise  string         // client address in routes
	storeHost  netip.AddrPort // the same, in records and message ids
	ctx        context.Context
	stop       context.CancelFunc
	wg         sync.WaitGroup

	// Of the loop.
	forming       []proposal
	formed        int                           // of forming, those that are in a frame already
	overlay       map[index.Key]ids.QueueOffset // next offsets of queues that have messages in frames up to formedTo
	formedTo      ids.Index                     // newest frame formed as this master
	ledLast       raftlog.Role                  // the last one with a master
	newest        *batch                        // token of that frame while it has no outcome
	endings       endings                       // of transactions, in frames up to formedTo
	freezeAt      ids.Index                     // of a frame with a freeze that is not applied yet: nothing is formed behind it; 0: none
	heldBack      bool                          // something waits since then, and the loop must look again
	owed          []*batch                      // applied, not yet known on enough voters
	answered      map[*remoting.Conn]struct{}
	woken         map[index.Key]struct{}
	routesChanged bool
	swept         time.Time
	toldBack      time.Time // wentBack logged something
	response      remoting.Command
	scratch       []byte
	words         []uint64           // hashes of the message that is being indexed
	sinceCheck    ids.PhysicalOffset // applied end at the last checkpoint
	indexed       ids.PhysicalOffset // the same of the index alone, while the log does not reach the state

	gathering gathering

	inbox       inbox
	halfApplied atomic.Bool                  // Apply failed: state and index may have a part of the frame after applied
	frozen      atomic.Bool                  // the state is
	applied     atomic.Uint64                // index
	appliedEnd  atomic.Int64                 // physical offset after the last applied frame
	role        atomic.Pointer[raftlog.Role] // last one heard of the loop
	others      atomic.Pointer[map[ids.ReplicaID]otherReplica]
	campaigned  atomic.Uint64 // term + 1 in which the controller asked to campaign last
	counters    counters
	stats       statistics
	earliest    atomic.Pointer[earliestFrame]
	timers      *timers
	checkpoint  checkpoint
	catchup     catchup
	scrubbed    atomic.Pointer[scrubResult]
	holds       holds
	forwarder   forwarder
	office      office
	commits     commits
	resetsTold  resetsTold
	metDamage   atomic.Bool   // a pull met a damaged message, and said so
	mend        chan struct{} // asks upkeep for a rebuild of the index's holes
	retaining   sync.Mutex    // upkeep and administrators give up old segments
	queries     atomic.Int32  // under way
	surveys     atomic.Int32  // under way
	resends     sync.Mutex    // one dead letter is sent again at a time
	resending   atomic.Int32  // dead letters that are sent again, or wait for that
	relays      atomic.Int32  // that wait for members
	creating    sync.Map      // name of a topic or group being created -> *creation

	presenceMu  sync.Mutex
	presence    *presence[*remoting.Conn]
	mixedTold   map[string][]string // as presence.mixed was when it was told last
	mixedGroups atomic.Int64        // len of presence.mixed
}

// workerQueue is how many requests that wait for a quorum or the disk may wait for a worker.
const workerQueue = 16384

// earliestFrame is the time of the first frame with something in it, while the log begins at first.
type earliestFrame struct {
	first ids.Index
	time  int64
}

// otherReplica is what the controller tells of another replica of the group.
type otherReplica struct {
	slot   ids.Slot
	node   ids.NodeID
	client string // advertised client address, may be empty
}

// listenError is a client port that cannot be opened: the node cannot do its work, an operator must act.
type listenError struct{ err error }

func (e *listenError) Error() string { return e.err.Error() }
func (e *listenError) Unwrap() error { return e.err }

// openReplica recovers the replica in its folder and starts it.
func openReplica(n *Node, gid ids.GroupID, f replicaFile, record *raftlog.EpochRecord, starts uint64) (*Replica, error) {
	cluster, err := ids.ParseUUID(f.Cluster)
	if err != nil {
		return nil, fmt.Errorf("replica.json: cluster: %w", err)
	}
	inc, err := ids.ParseUUID(f.Incarnation)
	if err != nil {
		return nil, fmt.Errorf("replica.json: incarnation: %w", err)
	}
	dir := filepath.Join(n.o.Dir, "groups", gid.String())
	r := &Replica{node: n, group: f.Group, gid: gid, id: f.Replica, slot: f.Slot, dir: dir,
		log:     n.log.With().Str("group", f.Group).Uint64("replica", uint64(f.Replica)).Logger(),
		overlay: map[index.Key]ids.QueueOffset{}, answered: map[*remoting.Conn]struct{}{}, woken: map[index.Key]struct{}{},
		presence: newPresence[*remoting.Conn](), mixedTold: map[string][]string{}, holds: newHolds(), mend: make(chan struct{}, 1), timers: newTimers()}
	r.counters.open(f.Group)
	r.stats.open(n.o.Clock())
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.catchup.fetcher, r.catchup.asked = newFetcher(n, r.log, gid, r.id, dir, r.ctx), make(chan peer.Envelope, maxAsked)
	r.others.Store(&map[ids.ReplicaID]otherReplica{})
	r.role.Store(&raftlog.Role{})
	r.scrubbed.Store(&scrubResult{})
	began := n.o.Clock()
	r.logOptions = logOptions(n.o, dir, ids.ClusterID(cluster), gid, f)
	r.logOptions.AcceptLoss = f.Reviving
	if r.clog, err = commitlog.Open(r.logOptions); err != nil {
		// The folder got its name when the log in it was whole: none there is one that was wiped. A log that ends too early is left to
		// the repair, which knows whether there is another replica.
		var damage *commitlog.DamageError
		if commitlog.IdentityLost(err) && !errors.As(err, &damage) || errors.Is(err, commitlog.ErrNotCreated) {
			return nil, fmt.Errorf("%w: open the commit log: %w", errLost, err)
		}
		return nil, fmt.Errorf("open the commit log: %w", err)
	}
	own := r.clog.Meta().Starts
	if own > starts {
		if seen := n.announce(gid, own); seen > own {
			starts = seen
		}
	}
	if own <= starts {
		return nil, errors.Join(fmt.Errorf("%w: "+remarkBackup, errLost, own, starts), r.clog.Close(false))
	}
	if f.Reviving {
		err := raftlog.Seal(r.clog, *record)
		if err == nil {
			err = n.revived(gid)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("begin epoch %d: %w", f.Revived, err), r.clog.Close(false))
		}
		r.logOptions.AcceptLoss = false
	}
	if err := r.recover(); err != nil {
		return nil, errors.Join(err, r.clog.Close(false))
	}
	l, advertise, err := n.o.ClientListener(f.Group)
	if err != nil {
		n.fail(fmt.Errorf("broker: group %s: client port: %w", f.Group, err))
		return nil, errors.Join(&listenError{err}, r.closeIndexes(), r.clog.Close(false))
	}
	r.advertise, r.storeHost = advertise, hostOf(advertise, l)
	r.forwarder = newForwarder(r)
	r.srv = remoting.NewServer(remoting.ServerOptions{Listener: l, Handler: r.handle, Closed: r.connClosed, Workers: 256, WorkerQueue: workerQueue, Logger: r.log})
	r.raft, err = raftlog.Start(raftlog.Config{Cluster: ids.ClusterID(cluster), Group: gid, Record: record, Replica: r.id,
		Incarnation: ids.Incarnation(inc), Log: r.clog, Applied: ids.Index(r.applied.Load()), SM: r, Send: n.send,
		Newest: r.newestSnapshot, Behind: r.behind, Logger: r.log,
		Written: func(took time.Duration) { r.counters.writes.Observe(took.Seconds()) }})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start replication: %w", err), l.Close(), r.closeIndexes(), r.clog.Close(false))
	}
	r.gathering.on.Store(true)
	r.srv.Start()
	r.spawn(r.housekeeping)
	r.spawn(r.upkeep)
	r.spawn(r.serveParts)
	r.spawn(r.fetch)
	r.spawn(r.scrub)
	r.spawn(r.checkBack)
	r.spawn(r.fireTimers)
	r.log.Info().Str("clients", advertise).Dur("took", n.o.Clock().Sub(began)).Uint64("applied", r.applied.Load()).Msg("replica open")
	return r, nil
}

const remarkBackup = "this log was started %d times, but the controller has seen start %d of it: the folder is a restored backup, its identity is lost"

// hostOf is the address that records carry: the advertised one when it is an IP address, else the listener's.
func hostOf(advertise string, l net.Listener) netip.AddrPort {
	if a, err := netip.ParseAddrPort(advertise); err == nil {
		return a
	}
	if t, ok := l.Addr().(*net.TCPAddr); ok {
		a := t.AddrPort()
		if _, port, err := net.SplitHostPort(advertise); err == nil {
			if p, err := netip.ParseAddrPort(net.JoinHostPort(a.Addr().Unmap().String(), port)); err == nil {
				return p
			}
		}
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	}
	return netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
}

// recover loads the newest snapshot, and indexes what of the log before it the index lacks. What is after it comes through
// Apply once Raft knows it as committed.
func (r *Replica) recover() error {
	fs := r.node.o.FS
	st, meta, err := state.LoadNewest(fs, r.dir, r.gid)
	for _, d := range meta.Damaged {
		r.log.Error().Err(d).Msg("a state snapshot is damaged: an older one serves")
	}
	first := r.clog.FirstIndex()
	if received := filepath.Join(r.dir, receivedName); first > 1 && (err != nil || meta.Index+1 < first) {
		// Only what came from a peer may reach the log: it began anew.
		if s, m, e := state.LoadSnapshot(fs, received, r.gid); e == nil && m.Index+1 >= first {
			st, meta, err, r.catchup.received = s, m, nil, m.Index
		} else if !errors.Is(e, os.ErrNotExist) {
			r.log.Error().Err(e).Msg("the state snapshot that came from a peer cannot be used")
		}
	} else if e := fs.Remove(received); e != nil && !errors.Is(e, os.ErrNotExist) {
		r.log.Warn().Err(e).Msg("an old state snapshot of a peer cannot be removed")
	}
	switch {
	case err == nil:
	case errors.Is(err, state.ErrNoSnapshot) && first <= 1:
		st, meta = state.New(), state.SnapshotMeta{}
	default:
		return r.noState(fmt.Errorf("the log no longer reaches back to its start and no state snapshot can be used: a peer's is needed: %w", err))
	}
	tail := r.clog.Tail()
	if meta.Index > tail.Index && r.catchup.received == 0 {
		return fmt.Errorf("%w: the state snapshot is of entry %d but the log ends at %d: the log lost its tail", errLost, meta.Index, tail.Index)
	}
	if meta.Index+1 < first {
		return r.noState(fmt.Errorf("the newest usable state snapshot is of entry %d but the log begins at %d: a peer's is needed", meta.Index, first))
	}
	applied, appliedEnd := meta.Index, meta.Offset
	if r.catchup.received != 0 {
		agrees, err := r.reaches(meta)
		if err != nil {
			return err
		}
		if !agrees {
			// What the log has behind its front may not be what the state knows: Raft tells, and it is indexed then.
			applied, appliedEnd = first-1, r.clog.FirstOffset()
			if err := r.dropIndexes(); err != nil {
				return err
			}
		}
	}
	r.st = st
	r.frozen.Store(st.Frozen() != state.NotFrozen)
	if r.idx, err = index.Open(index.Options{FS: fs, Dir: filepath.Join(r.dir, "index"), Group: r.gid, SegmentSize: r.clog.SegmentSize(),
		FirstOffset: r.clog.FirstOffset(), EndOffset: r.clog.Tail().Offset}); err != nil {
		return fmt.Errorf("open the queue index: %w", err)
	}
	for _, p := range r.idx.Problems() {
		r.log.Error().Err(p).Msg("a file of the queue index cannot be used: it is rebuilt from the log")
	}
	if err := r.openTimers(); err != nil {
		return errors.Join(err, r.idx.Close())
	}
	r.applied.Store(uint64(applied))
	r.appliedEnd.Store(int64(appliedEnd))
	if meta.Index > 0 {
		r.keepNewest(meta)
	}
	r.sinceCheck = meta.Offset
	r.checkpoint.offset.Store(int64(meta.Offset))
	r.checkpoint.cut.Store(int64(st.CutBase()))
	if err := r.reindex(applied, appliedEnd); err != nil {
		return errors.Join(err, r.closeIndexes())
	}
	r.timers.whole.Store(true)
	return nil
}

func (r *Replica) closeIndexes() error { return errors.Join(r.idx.Close(), r.timers.idx.Close()) }

// noState is err as one that a peer can help against.
func (r *Replica) noState(err error) error {
	return &noStateError{least: r.clog.FirstIndex() - 1, err: err}
}

// reaches tells whether the log has the last entry of a state that came from another replica: then it has all before it as well.
func (r *Replica) reaches(meta state.SnapshotMeta) (bool, error) {
	if meta.Index > r.clog.Tail().Index {
		return false, nil
	}
	if meta.Index < r.clog.FirstIndex() {
		return true, nil // the last one before the front, which the group agreed on
	}
	f, err := r.clog.ReadFrame(meta.Index, nil)
	if err != nil {
		return false, fmt.Errorf("compare the log with the state snapshot of entry %d: %w", meta.Index, err)
	}
	return f.Term() == meta.Term && f.Chain() == meta.Chain, nil
}

// dropIndexes removes the files of the queue index and of the timer index: they are built again.
func (r *Replica) dropIndexes() error {
	fs := r.node.o.FS
	for _, sub := range [2]string{"index", timersDir} {
		dir := filepath.Join(r.dir, sub)
		names, err := fs.List(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("list the files of an index: %w", err)
		}
		for _, name := range names {
			if err := fs.Remove(filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("remove a file of an index: %w", err)
			}
		}
	}
	return nil
}

// reindex adds the messages and timers between what the indexes cover and what is applied: entry last, which ends at end.
func (r *Replica) reindex(last ids.Index, end ids.PhysicalOffset) error {
	from := max(min(r.idx.Covered(), r.timers.idx.Covered()), r.clog.FirstOffset())
	if from >= end {
		return nil
	}
	first, err := r.clog.IndexAt(from)
	if err != nil {
		return fmt.Errorf("find the frame at %d to rebuild the index from: %w", from, err)
	}
	n, spilled := 0, from
	for f, err := range r.clog.Frames(first) {
		if err != nil {
			return fmt.Errorf("read the log to rebuild the index: %w", err)
		}
		if f.Index() > last {
			break
		}
		if at := f.Offset(); at-spilled >= ids.PhysicalOffset(r.node.o.CheckpointBytes) || r.idx.Full() { // memory has room for a part of the log only
			if err := r.idx.Checkpoint(at); err != nil {
				r.log.Error().Err(err).Msg("cannot write a checkpoint of the index: the next start reads more of the log")
			}
			spilled = at
		}
		for rec := range f.Records() {
			if err := r.addMessage(rec, r.idx.Add, &r.words); err != nil {
				return fmt.Errorf("rebuild the index: %w", err)
			}
			if err := r.addTimer(rec); err != nil {
				return fmt.Errorf("rebuild the timer index: %w", err)
			}
			n++
		}
		if err := r.spillTimers(min(end, f.Offset()+ids.PhysicalOffset(f.Size()))); err != nil {
			return err
		}
	}
	r.log.Info().Int("records", n).Msg("indexes brought up to the state snapshot")
	return nil
}

// addMessage adds a record to an index when it is a message. Those of a deleted topic are left out: nobody can ask for them, and
// sends that raced with the deletion may have any offset. words is memory to use.
func (r *Replica) addMessage(rec commitlog.Record, add func(index.Key, ids.QueueOffset, index.Entry, ...uint64) error, words *[]uint64) error {
	if rec.Type != state.RecordMessage {
		return nil
	}
	p, err := state.ParseMessagePrefix(rec.Body)
	if err != nil {
		return fmt.Errorf("the record at %d: %w", rec.Offset, err)
	}
	if _, lives := r.st.TopicByID(p.Key.Topic); !lives {
		return nil
	}
	e := index.Entry{Offset: rec.Offset + state.MessagePrefixSize, Size: uint32(len(rec.Body) - state.MessagePrefixSize), TagsCode: p.TagsCode}
	*words = wordsOf((*words)[:0], p.Key.Topic, rec.Body[state.MessagePrefixSize:])
	return add(p.Key, p.QueueOffset, e, *words...)
}

func (r *Replica) spawn(f func()) {
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		f()
	}()
}

// close stops the replica. A clean one leaves nothing to replay.
func (r *Replica) close(clean bool) error {
	r.stop()
	errs := []error{r.srv.Close()}
	r.forwarder.close()
	if clean {
		r.flushLast()
	}
	errs = append(errs, r.raft.Close())
	r.refuseRest()
	r.wg.Wait()
	r.checkpoint.wg.Wait()
	// A parked replica may have applied half a frame: its state is nobody's.
	if clean && !r.halfApplied.Load() {
		errs = append(errs, r.lastCheckpoint())
	}
	errs = append(errs, r.closeIndexes(), r.clog.Close(clean))
	return errors.Join(errs...)
}

// flushLast writes the consumer offsets that nobody waited for, if that goes quickly: their clients are gone.
func (r *Replica) flushLast() {
	done := make(chan struct{})
	r.flushCommits("", func(outcome) { close(done) })
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		r.log.Warn().Msg("the last consumer offsets could not be written before the stop")
	}
}

// refuseRest ends what the loop, which has ended, left in the inbox. Nothing is proposed any more.
func (r *Replica) refuseRest() {
	r.role.Store(&raftlog.Role{Kind: raftlog.RoleParked, Term: r.term()})
	r.inbox.setOpen(false)
	r.refuseWaiting(r.forming[r.formed:])
	r.refuseWaiting(r.inbox.take(nil))
}

func (r *Replica) now() time.Time { return r.node.o.Clock() }

// isMaster tells whether this replica led and could form frames when the loop last said so, and is not giving that up.
func (r *Replica) isMaster() bool {
	return r.role.Load().Kind == raftlog.RoleMaster && !r.office.handing.Load()
}

// term is the newest term the loop has told.
func (r *Replica) term() ids.Term { return r.role.Load().Term }

// from tells whether messages of replica id may come from node. A replica that nobody named yet may: the record that a
// message of a newer epoch carries will tell.
func (r *Replica) from(id ids.ReplicaID, node ids.NodeID) bool {
	o, known := (*r.others.Load())[id]
	return !known || o.node == node
}

// learnOthers takes in where the group's other replicas are, and which one the controller knows as the master.
func (r *Replica) learnOthers(w *controllerpb.WantedReplica) {
	others := make(map[ids.ReplicaID]otherReplica, len(w.Others))
	for _, o := range w.Others {
		others[ids.ReplicaID(o.ReplicaId)] = otherReplica{slot: ids.Slot(o.Slot), node: ids.NodeID(o.NodeId), client: o.ClientAddress}
	}
	r.others.Store(&others)
	r.office.told.Store(&raftlog.Role{Term: ids.Term(w.MasterTerm), Master: ids.ReplicaID(w.MasterReplicaId)})
}

// wanted takes in what the controller says of this replica.
func (r *Replica) wanted(record *raftlog.EpochRecord, w *controllerpb.WantedReplica) {
	r.learnOthers(w)
	if own := r.clog.Meta().Starts; own < w.Starts {
		r.node.park(r, fmt.Sprintf(remarkBackup, own, w.Starts), false)
		return
	}
	st := r.raft.Status()
	if w.Lost != "" {
		why := w.Lost
		if st.Lost { // it said so itself, and knows more
			why = st.Parked
		}
		r.node.park(r, why, w.Planned && !st.Lost)
		return
	}
	if record != nil && record.Epoch > st.Epoch {
		if err := r.raft.Adopt(*record); err != nil && !errors.Is(err, raftlog.ErrStaleEpoch) {
			r.log.Error().Err(err).Msg("cannot adopt the epoch record of the controller")
			return
		}
	}
	if to := controller.HandsOver(w, st); to != 0 {
		r.node.wg.Go(func() { // ends with the hand-over, or with the replica
			if err := r.handOver(to); err != nil {
				r.log.Warn().Err(err).Uint64("to", uint64(to)).Msg("the controller asked for a hand-over that did not come about")
			}
		})
	}
	if controller.Campaigns(w, st, record) && r.campaigned.Swap(w.CampaignTerm+1) != w.CampaignTerm+1 {
		r.log.Info().Msg("the controller asks this replica to campaign")
		r.raft.Campaign()
	}
}

// report fills in what the controller wants to know of this replica.
func (r *Replica) report(rep *controllerpb.ReplicaReport) {
	st := r.raft.Status()
	last, err := r.clog.TermOf(st.Last)
	if err != nil {
		last = 0
	}
	controller.Report(rep, st, last)
	terms, starts := termStarts(r.clog)
	controller.ReportTerms(rep, terms, starts)
	rep.Starts, rep.Frozen = r.clog.Meta().Starts, r.frozen.Load()
	rep.Fetching, rep.ScrubbedMillis = r.catchup.progress("a state snapshot"), r.scrubbed.Load().Finished
}
