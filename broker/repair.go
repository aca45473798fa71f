package broker

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/raftlog/peer"
)

// A replica whose log is damaged, or that has no state, is an honest one still: it promised nothing that it does not hold but for what
// is bad. It is closed, so that it neither votes, acknowledges nor leads, and gets what is bad from another replica:
//
//	a start, a read or a scrub finds it ─▶ closed ─▶ repair: commitlog.Repair from one peer after the other ─▶ opened again
//	                                                 no state: received.snap from one of them              ─┘
//
// Nothing but what was there is put in: commitlog.Repair proves it by the chain of the frames. What cannot be proven, or has no other
// replica, stays closed and says why; it is tried again, since the others may come back. Damage that reaches the end of the log is a lost
// tail: nobody can tell what was there, so the identity is lost; in a group that has no other replica that would end it, so it stays closed.
const (
	repairAgain    = time.Second // pause after a round over all peers, doubling
	repairAgainMax = 30 * time.Second
)

// noStateError tells that a log does not reach back to its start and no state snapshot reaches the log. A peer's does.
type noStateError struct {
	least ids.Index // the snapshot must contain it
	err   error
}

func (e *noStateError) Error() string { return e.err.Error() }
func (e *noStateError) Unwrap() error { return e.err }

// repairable tells whether another replica can help against err.
func repairable(err error) bool {
	var damage *commitlog.DamageError
	var corrupt *commitlog.CorruptionError
	var noState *noStateError
	return errors.As(err, &damage) || errors.As(err, &corrupt) && corrupt.Offset >= 0 || errors.As(err, &noState)
}

// repair is the work on one replica that is closed.
type repair struct {
	n      *Node
	file   replicaFile
	gid    ids.GroupID
	fault  error // what was found
	log    commitlog.Options
	stop   context.CancelFunc
	asked  chan question
	others atomic.Pointer[[]otherPeer]         // as the controller tells
	record atomic.Pointer[raftlog.EpochRecord] // its newest one
	*fetcher
}

// question is a part that another damaged replica asks this one for.
type question struct {
	from ids.NodeID
	env  peer.Envelope
}

// otherPeer is a replica that may have what this one lacks.
type otherPeer struct {
	id   ids.ReplicaID
	node ids.NodeID
}

// newRepair makes the repair of a replica that is being closed, or could not be opened. n.mu is held.
func (n *Node) newRepair(h *hosted, gid ids.GroupID, fault error) (*repair, error) {
	cluster, err := ids.ParseUUID(h.file.Cluster)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(n.o.Dir, "groups", gid.String())
	p := &repair{n: n, file: h.file, gid: gid, fault: fault, asked: make(chan question, maxAsked),
		log: logOptions(n.o, dir, ids.ClusterID(cluster), gid, h.file)}
	ctx, stop := context.WithCancel(n.ctx)
	p.stop = stop
	p.fetcher = newFetcher(n, n.log.With().Str("group", h.file.Group).Uint64("replica", uint64(h.file.Replica)).Logger(), gid, h.file.Replica, dir, ctx)
	h.repair, h.parked = p, "damaged, being repaired from another replica: "+fault.Error()
	p.fetcher.log.Error().Err(fault).Msg("the replica is damaged: it neither votes, acknowledges nor leads until it is repaired from another one")
	return p, nil
}

// repairOpen closes a replica whose log turned out to be damaged, and repairs it. It returns false when it does not close it, as park does.
func (n *Node) repairOpen(r *Replica, fault error) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.replicas[r.gid]
	if h == nil || h.r != r || n.closing {
		return false
	}
	h.r = nil
	p, err := n.newRepair(h, r.gid, fault)
	if err != nil { // it stays closed
		h.closing, h.parked = true, fmt.Sprintf("damaged: %v; it cannot be repaired: %v", fault, err)
		tellParked(r.log, false, h.parked)
		n.wg.Go(func() {
			if err := r.close(false); err != nil {
				r.log.Warn().Err(err).Msg("closing the damaged replica")
			}
			n.mu.Lock()
			h.closing = false
			n.mu.Unlock()
		})
		return true
	}
	n.wg.Go(func() {
		// The end of what was acknowledged is known to this process alone, and damage there would pass for a torn tail.
		unknown := r.clog.KeepBound()
		if err := r.close(false); err != nil {
			r.log.Warn().Err(err).Msg("closing the damaged replica")
		}
		if unknown != nil {
			n.giveUp(p.gid, p, fmt.Sprintf("damaged: %v; how far its log reached could not be noted, and what was acknowledged may be lost: %v", fault, unknown))
			p.end()
			return
		}
		p.run()
	})
	return true
}

// run repairs until that succeeds, or cannot.
func (p *repair) run() {
	var wg sync.WaitGroup
	wg.Go(p.answers)
	defer wg.Wait()
	defer p.stop()
	for pause := repairAgain; ; pause = min(2*pause, repairAgainMax) {
		peers, err := p.peers()
		if err == nil {
			err = p.round(peers)
		}
		if p.ctx.Err() != nil {
			break
		}
		if err == nil {
			p.reopen()
			return
		}
		if errors.Is(err, commitlog.ErrMetaLost) || commitlog.IdentityLost(err) && len(peers) > 0 {
			p.n.giveUp(p.gid, p, err.Error())
			break
		}
		if commitlog.IdentityLost(err) {
			err = fmt.Errorf("%w; %w", err, errAlone)
		}
		p.tell(fmt.Sprintf("damaged: %v; not repaired yet: %v", p.fault, err))
		p.fetcher.log.Error().Err(err).Msg("the damaged replica is not repaired yet")
		if !p.pause(pause) {
			break
		}
	}
	p.end()
}

// end tells the node that nothing is repaired any more.
func (p *repair) end() {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	if h := p.n.replicas[p.gid]; h != nil && h.repair == p {
		h.repair = nil
	}
}

// reopen opens the replica that is repaired.
func (p *repair) reopen() {
	p.n.mu.Lock()
	h := p.n.replicas[p.gid]
	if h == nil || h.repair != p {
		p.n.mu.Unlock()
		return
	}
	h.repair = nil
	if h.file.Lost != "" { // it was given up meanwhile
		p.n.mu.Unlock()
		return
	}
	h.parked = ""
	h.repairs++
	h.repaired += p.got.Load()
	seen := h.seen
	p.n.mu.Unlock()
	p.n.openReplica(p.gid, nil, seen)
}

// tell says why the replica is parked.
func (p *repair) tell(why string) {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	if h := p.n.replicas[p.gid]; h != nil && h.repair == p {
		h.parked = why
	}
}

// round tries one peer after the other. It returns nil when the replica can be opened.
func (p *repair) round(peers []otherPeer) (err error) {
	var noState *noStateError
	if errors.As(p.fault, &noState) {
		return p.each(peers, func(o otherPeer) error { return p.fetchState(o, noState.least) })
	}
	at := damagedAt(p.fault)
	r, err := commitlog.OpenRepair(p.log, at)
	if err != nil {
		return err
	}
	defer func() {
		if r != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	switch _, _, needs := r.Need(); {
	case !r.Damaged():
		p.fetcher.log.Warn().Err(p.fault).Msg("what was damaged is good now: the disk or the memory of this machine is not to be trusted")
		p.pause(repairAgain) // not at once, or a fault that comes and goes would spin
		return nil
	case !needs: // the header of a segment, which is known
		return r.Commit()
	}
	return p.each(peers, func(o otherPeer) (err error) {
		if r == nil { // what another one sent is given up
			if r, err = commitlog.OpenRepair(p.log, at); err != nil {
				return err
			}
		}
		err = errors.Join(p.fetchLog(r, o), r.Close())
		r = nil
		return err
	})
}

// damagedAt is where err saw the damage.
func damagedAt(err error) ids.PhysicalOffset {
	var damage *commitlog.DamageError
	if errors.As(err, &damage) {
		return damage.Offset
	}
	var corrupt *commitlog.CorruptionError
	errors.As(err, &corrupt)
	return corrupt.Offset
}

// peers are the other replicas that may be asked. What comes for a log is proven by the chain of its frames: all that the controller tells,
// and those of the epoch record on this disk. Nothing proves a state: only the members of the newest epoch record that is known here, which
// all have its history. One that an unclean election left behind may have come back with another.
func (p *repair) peers() ([]otherPeer, error) {
	meta, err := commitlog.ReadMeta(p.log)
	if err != nil {
		return nil, err
	}
	owner, err := raftlog.DecodeOwner(meta.Owner)
	if err != nil {
		return nil, err
	}
	var own *raftlog.EpochRecord
	if rec, err := raftlog.DecodeEpochRecord(owner.Record); err == nil {
		own = &rec
	}
	var others []otherPeer
	if o := p.others.Load(); o != nil {
		others = *o
	}
	var noState *noStateError
	if errors.As(p.fault, &noState) {
		if told := p.record.Load(); told != nil && (own == nil || told.Epoch > own.Epoch) {
			own = told
		}
		others = nil
	}
	list := withMembers(others, own)
	return slices.DeleteFunc(list, func(o otherPeer) bool { return o.id == p.id || o.node == p.n.o.ID }), nil
}

// withMembers is list and the members of a record, which may be nil.
func withMembers(list []otherPeer, rec *raftlog.EpochRecord) []otherPeer {
	list = slices.Clone(list)
	if rec == nil {
		return list
	}
	for _, members := range [2][]raftlog.Member{rec.Voters, rec.Learners} {
		for _, m := range members {
			if o := (otherPeer{m.ID, m.Node}); !slices.Contains(list, o) {
				list = append(list, o)
			}
		}
	}
	return list
}

var errAlone = errors.New("the group has no other replica to repair it from: bring back the folder from a disk that is good, or restore the disk")

// each asks one after the other until one can help.
func (p *repair) each(peers []otherPeer, try func(otherPeer) error) error {
	if len(peers) == 0 {
		return errAlone
	}
	var faults []string
	for _, o := range peers {
		err := try(o)
		if err == nil {
			p.fetcher.log.Warn().Uint64("from", uint64(o.id)).Str("from_node", string(o.node)).Int64("bytes", p.got.Load()).
				Msg("the replica is repaired: what was damaged is as it was")
			return nil
		}
		if p.ctx.Err() != nil || commitlog.IdentityLost(err) {
			return err
		}
		faults = append(faults, fmt.Sprintf("replica %d on node %s: %v", o.id, o.node, err))
	}
	faults = append(faults, fmt.Sprintf("if none of them has it, bring back the folder from a disk that is good, or give this replica up: "+
		"admin group replace %s --replica %d --give-up", p.file.Group, p.id))
	return errors.New(strings.Join(faults, "; "))
}

// fetchLog repairs the log from one peer.
func (p *repair) fetchLog(r *commitlog.Repair, o otherPeer) error {
	p.begin(0, 0)
	defer p.fetcher.began.Store(0)
	from, began := raftlog.Offer{From: o.id, Node: o.node}, p.n.o.Clock()
	for {
		index, off, needs := r.Need()
		if !needs {
			return r.Commit()
		}
		end := off - off%ids.PhysicalOffset(p.file.SegmentSize) + ids.PhysicalOffset(p.file.SegmentSize)
		want := peer.Part{Kind: peer.PartOfLog, Index: index, Size: int64(end), At: int64(off)}
		env, err := p.ask(&from, want, func(got peer.Part) bool { return got == want })
		if err != nil {
			return err
		}
		if err := r.Put(env.Frames[0]); err != nil {
			return err
		}
		p.got.Store(r.Fetched())
		if !p.rein(began, r.Fetched()) {
			return p.ctx.Err()
		}
	}
}

// fetchState brings a state snapshot that contains entry least to received.snap.
func (p *repair) fetchState(o otherPeer, least ids.Index) error {
	from := raftlog.Offer{From: o.id, Node: o.node}
	env, err := p.ask(&from, peer.Part{Kind: peer.PartOfNewest, Index: least}, func(got peer.Part) bool {
		return got.Kind == peer.PartOfSnapshot && got.At == 0 && got.Index >= least
	})
	if err != nil {
		return err
	}
	from.Snapshot = raftlog.SnapshotID{Index: env.Part.Index, Size: env.Part.Size, Hash: env.Part.Hash}
	_, err = p.fetchSnapshot(from)
	return err
}

// take takes a question, or an answer, from the transport. It does not block.
func (p *repair) take(from ids.NodeID, env peer.Envelope) {
	if len(env.Frames) > 0 {
		select {
		case p.parts <- env:
		default:
		}
		return
	}
	select {
	case p.asked <- question{from, env}:
	default:
	}
}

// what tells what the repair fetches.
func (p *repair) what() string {
	var noState *noStateError
	if errors.As(p.fault, &noState) {
		return "a state snapshot"
	}
	return "damaged frames"
}

// answers sends other damaged replicas what they ask for, until the repair ends: two may lack different things.
func (p *repair) answers() {
	for {
		select {
		case q := <-p.asked:
			p.answer(q)
		case <-p.ctx.Done():
			return
		}
	}
}

// answer sends what lies in the damaged log: who asked finds out whether it is good.
func (p *repair) answer(q question) {
	part := *q.env.Part
	if part.Kind != peer.PartOfLog {
		return
	}
	b := make([]byte, min(peer.MaxPartBytes, part.Size-part.At))
	if n, err := commitlog.ReadRaw(p.log, b, ids.PhysicalOffset(part.At)); err == nil && n > 0 {
		p.n.send(q.from, []peer.Envelope{{Group: p.gid, From: p.id, To: q.env.From, Epoch: q.env.Epoch, Part: &part, Frames: []commitlog.Frame{b[:n]}}})
	}
}

// giveUp ends a repair: the identity of the replica is lost. Of a repair that has ended by itself nothing is given up: the replica is being
// opened, and is told what became of it when it is open.
func (n *Node) giveUp(id ids.GroupID, p *repair, why string) {
	p.stop()
	n.mu.Lock()
	h := n.replicas[id]
	if h == nil || h.repair != p {
		n.mu.Unlock()
		return
	}
	h.parked, h.file.Lost = why, why
	f := h.file
	n.wg.Go(func() { n.peek(id, f) })
	n.mu.Unlock()
	n.remember(id, why)
}

// learn takes in which other replicas the controller knows, and its epoch record, nil when there is none.
func (p *repair) learn(w *controllerpb.WantedReplica, record *raftlog.EpochRecord) {
	if record != nil {
		p.record.Store(record)
	}
	var list []otherPeer
	for _, o := range w.Others {
		list = append(list, otherPeer{ids.ReplicaID(o.ReplicaId), ids.NodeID(o.NodeId)})
	}
	p.others.Store(&list)
}
