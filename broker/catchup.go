package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/raftlog/peer"
)

// A replica that lacks what the group has given up gets the master's state snapshot, and begins its log anew at the master's front:
//
//	raft ─Behind─▶ fetch: asks for one part after the other ─▶ received.part ─whole, checked, synced─▶ received.snap
//	     ─▶ the replica is closed ─▶ commitlog.Reset: the switch ─▶ it is opened again ─▶ the log from the front on comes by Raft
//
// Before the switch received.snap is not looked at: the snapshots of the replica reach its log. After it only received.snap reaches the
// log, and counts. So there is one moment at which the old life ends and the new one begins, that of one write of the log's meta.
//
// While the log does not reach the snapshot, what is applied goes to the index only: the state has it already. The replica answers
// no question about messages meanwhile.
const (
	receivedName = "received.snap"
	partName     = "received.part"

	partPatience   = time.Second // how long a part is waited for, before it is asked for again
	partTries      = 5           // in a row without an answer: then the next offer counts
	partRate       = 32 << 20    // bytes a second at most, so that live traffic has the network and the disks
	maxSnapshot    = 4 << 30     // bytes of a snapshot: it is decoded in memory
	pinnedPatience = 10 * time.Second
	maxAsked       = 16 // requests that wait to be answered; more are dropped, and asked again
)

// fetcher fetches for one replica, open or not, what others have.
type fetcher struct {
	node   *Node
	log    zerolog.Logger
	gid    ids.GroupID
	id     ids.ReplicaID
	dir    string
	ctx    context.Context
	offers chan raftlog.Offer // the newest; capacity 1
	parts  chan peer.Envelope // answers; capacity 1

	size, got, from atomic.Int64 // of the transfer under way: bytes of it, how many are here, and with how many it began
	began           atomic.Int64 // when it began, ms since 1970; 0 while there is none
}

func newFetcher(n *Node, log zerolog.Logger, gid ids.GroupID, id ids.ReplicaID, dir string, ctx context.Context) *fetcher {
	return &fetcher{node: n, log: log, gid: gid, id: id, dir: dir, ctx: ctx, offers: make(chan raftlog.Offer, 1), parts: make(chan peer.Envelope, 1)}
}

// begin notes a transfer of size bytes, of which at are here. 0: the size is not known.
func (f *fetcher) begin(size, at int64) {
	f.size.Store(size)
	f.got.Store(at)
	f.from.Store(at)
	f.began.Store(f.node.o.Clock().UnixMilli())
}

// progress tells of the transfer under way; nil: there is none.
func (f *fetcher) progress(what string) *controllerpb.Fetching {
	began := f.began.Load()
	if began == 0 {
		return nil
	}
	p := &controllerpb.Fetching{What: what, Got: f.got.Load(), Size: f.size.Load()}
	p.BytesPerSecond = (p.Got - f.from.Load()) * 1000 / max(f.node.o.Clock().UnixMilli()-began, 1)
	return p
}

// pause waits for d. It returns false when the replica closes.
func (f *fetcher) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-f.ctx.Done():
		return false
	}
}

// rein waits as long as n bytes since began are above the rate at which is fetched.
func (f *fetcher) rein(began time.Time, n int64) bool {
	early := time.Duration(n*int64(time.Second)/partRate) - f.node.o.Clock().Sub(began)
	return early <= time.Millisecond || f.pause(early)
}

// catchup is both sides of a transfer of a state snapshot.
type catchup struct {
	*fetcher
	asked  chan peer.Envelope // questions of others; capacity maxAsked
	newest atomic.Pointer[raftlog.SnapshotID]

	// received is the last entry that a received snapshot contains: up to it what is applied goes to the index only. 0: none.
	received ids.Index

	mu     sync.Mutex
	pinned raftlog.SnapshotID // being sent
	file   vfs.File           // open, so that it can be sent to its end whatever newer ones there are
	used   time.Time
}

// newestSnapshot names the snapshot that others can have: the one that is being sent, or the newest.
func (r *Replica) newestSnapshot(after ids.Index) (raftlog.SnapshotID, bool) {
	c := &r.catchup
	c.mu.Lock()
	id, sending := c.pinned, c.file != nil && r.now().Sub(c.used) < pinnedPatience
	c.mu.Unlock()
	if sending && id.Index > after {
		return id, true
	}
	if n := c.newest.Load(); n != nil {
		return *n, true
	}
	return raftlog.SnapshotID{}, false
}

// sending tells whether somebody is being sent a snapshot now.
func (r *Replica) sending() bool {
	c := &r.catchup
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.file != nil && r.now().Sub(c.used) < pinnedPatience
}

// keepNewest notes a snapshot file that is durable here.
func (r *Replica) keepNewest(m state.SnapshotMeta) {
	r.catchup.newest.Store(&raftlog.SnapshotID{Index: m.Index, Size: m.FileSize(), Hash: m.Hash})
}

// behind takes an offer from the loop.
func (r *Replica) behind(o raftlog.Offer) {
	for {
		select {
		case r.catchup.offers <- o:
			return
		case <-r.catchup.offers: // an older one
		}
	}
}

// takePart takes a request, or an answer, from the transport. It does not block.
func (r *Replica) takePart(env peer.Envelope) {
	to := r.catchup.parts
	if len(env.Frames) == 0 {
		to = r.catchup.asked
	}
	select {
	case to <- env:
	default:
	}
}

// serveParts answers requests of others.
func (r *Replica) serveParts() {
	defer r.unpin()
	idle := time.NewTicker(pinnedPatience)
	defer idle.Stop()
	for {
		select {
		case env := <-r.catchup.asked:
			if err := r.servePart(env); err != nil {
				r.log.Warn().Err(err).Uint64("to", uint64(env.From)).Msg("another replica is not sent what it asks for")
			}
		case <-idle.C:
			if !r.sending() {
				r.unpin()
			}
		case <-r.ctx.Done():
			return
		}
	}
}

func (r *Replica) unpin() {
	c := &r.catchup
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file != nil {
		_ = c.file.Close()
		c.file = nil
	}
}

func (r *Replica) servePart(env peer.Envelope) error {
	p := *env.Part
	if p.Kind == peer.PartOfNewest {
		id, ok := r.newestSnapshot(p.Index)
		if !ok || id.Index < p.Index {
			return fmt.Errorf("it asks for a state snapshot that contains entry %d, and there is none", p.Index)
		}
		p = peer.Part{Index: id.Index, Size: id.Size, Hash: id.Hash}
	}
	// The part belongs to the transport once it is sent: it has its own bytes.
	b := make([]byte, min(peer.MaxPartBytes, p.Size-p.At))
	if len(b) == 0 {
		return fmt.Errorf("it asks for what is behind the end, %d", p.Size)
	}
	if p.Kind == peer.PartOfLog {
		n, err := r.clog.ReadRaw(b, ids.PhysicalOffset(p.At))
		if err != nil {
			return fmt.Errorf("read the log at %d: %w", p.At, err)
		}
		b = b[:n]
	} else {
		f, err := r.pin(raftlog.SnapshotID{Index: p.Index, Size: p.Size, Hash: p.Hash})
		if err != nil {
			return err
		}
		if n, err := f.ReadAt(b, p.At); n < len(b) {
			return fmt.Errorf("read the state snapshot of entry %d: %w", p.Index, err)
		}
	}
	node, known := r.nodeOf(env.From)
	if !known {
		return fmt.Errorf("nobody knows where replica %d lives", env.From)
	}
	r.node.send(node, []peer.Envelope{{Group: r.gid, From: r.id, To: env.From, Epoch: env.Epoch, Part: &p, Frames: []commitlog.Frame{b}}})
	return nil
}

// pin opens the file of a snapshot and keeps it, in the place of the one before.
func (r *Replica) pin(id raftlog.SnapshotID) (vfs.File, error) {
	c := &r.catchup
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil || c.pinned != id {
		f, err := r.node.o.FS.Open(state.SnapshotFile(r.dir, id.Index))
		if errors.Is(err, os.ErrNotExist) { // it may be one that came from a peer itself, and no other was written since
			f, err = r.node.o.FS.Open(filepath.Join(r.dir, receivedName))
		}
		if err != nil {
			return nil, err
		}
		head := make([]byte, state.SnapshotHeaderSize)
		_, err = f.ReadAt(head, 0)
		var m state.SnapshotMeta
		if err == nil {
			m, err = state.ParseSnapshotHeader(head)
		}
		if err == nil && (m.Index != id.Index || m.FileSize() != id.Size || m.Hash != id.Hash) {
			err = fmt.Errorf("the state snapshot of entry %d here is another one", id.Index)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if c.file != nil {
			_ = c.file.Close()
		}
		c.file, c.pinned = f, id
	}
	c.used = r.now()
	return c.file, nil
}

// nodeOf is where a replica of the group lives.
func (r *Replica) nodeOf(id ids.ReplicaID) (ids.NodeID, bool) {
	st := r.raft.Status()
	for _, list := range [2][]raftlog.MemberStatus{st.Voters, st.Learners} {
		for _, m := range list {
			if m.ID == id {
				return m.Node, true
			}
		}
	}
	o, known := (*r.others.Load())[id]
	return o.node, known
}

// fetch waits for an offer and takes it.
func (r *Replica) fetch() {
	for {
		select {
		case o := <-r.catchup.offers:
			r.log.Info().Uint64("front", uint64(o.Front.Prev.Index+1)).Msg("this replica lacks what the group has given up: it begins anew with a state snapshot of the master")
			front, err := r.catchup.fetchSnapshot(o)
			switch {
			case r.ctx.Err() != nil:
				return
			case err != nil:
				r.log.Warn().Err(err).Int64("bytes", r.catchup.got.Load()).Msg("the state snapshot of the master did not come: it goes on with the next offer")
			default:
				r.node.beginAnew(r, front)
				return // this replica is closed
			}
		case <-r.ctx.Done():
			return
		}
	}
}

// fetchSnapshot brings the snapshot of an offer to received.snap. What is there of the same one already, of an earlier try, epoch or process,
// is not asked for again. It returns the newest offer of it.
func (f *fetcher) fetchSnapshot(o raftlog.Offer) (raftlog.Offer, error) {
	fs, id := f.node.o.FS, o.Snapshot
	if id.Size > maxSnapshot || id.Size < state.SnapshotHeaderSize {
		return o, fmt.Errorf("a snapshot of %d bytes: at most %d are taken", id.Size, int64(maxSnapshot))
	}
	if m, err := f.checkReceived(filepath.Join(f.dir, receivedName), id); err == nil {
		f.log.Info().Uint64("entry", uint64(m.Index)).Msg("the state snapshot that is offered is here already")
		return o, nil
	}
	name := filepath.Join(f.dir, partName)
	file, at, err := openPart(fs, name, id)
	if err != nil {
		return o, err
	}
	defer file.Close()
	f.begin(id.Size, at)
	defer f.began.Store(0)
	f.log.Info().Uint64("from", uint64(o.From)).Uint64("entry", uint64(id.Index)).Int64("bytes", id.Size).Int64("here", at).
		Msg("fetching a state snapshot of another replica")
	began, first := f.node.o.Clock(), at
	for at < id.Size {
		b, err := f.fetchPart(&o, at)
		if err != nil {
			return o, err
		}
		if _, err := file.WriteAt(b, at); err != nil {
			return o, err
		}
		at += int64(len(b))
		f.got.Store(at)
		if !f.rein(began, at-first) {
			return o, f.ctx.Err()
		}
	}
	if err := file.SyncData(); err != nil {
		return o, err
	}
	if _, err := f.checkReceived(name, id); err != nil {
		return o, errors.Join(fmt.Errorf("the state snapshot that came: %w", err), fs.Remove(name))
	}
	if err := fs.Rename(name, filepath.Join(f.dir, receivedName)); err != nil {
		return o, err
	}
	f.log.Info().Uint64("entry", uint64(id.Index)).Int64("bytes", id.Size).Dur("took", f.node.o.Clock().Sub(began)).Msg("the state snapshot is here")
	return o, fs.SyncDir(f.dir)
}

// checkReceived reads a whole file and compares it with what was offered.
func (f *fetcher) checkReceived(name string, id raftlog.SnapshotID) (state.SnapshotMeta, error) {
	_, m, err := state.LoadSnapshot(f.node.o.FS, name, f.gid)
	if err == nil && (m.Index != id.Index || m.Hash != id.Hash || m.FileSize() != id.Size) {
		err = fmt.Errorf("%s is of entry %d, the offer of %d", name, m.Index, id.Index)
	}
	return m, err
}

// openPart opens the file of a transfer, and tells how much of it is there. One of another snapshot is begun anew.
func openPart(fs vfs.FS, name string, id raftlog.SnapshotID) (vfs.File, int64, error) {
	f, err := fs.OpenReadWrite(name)
	if errors.Is(err, os.ErrNotExist) {
		f, err = fs.Create(name)
		return f, 0, err
	}
	if err != nil {
		return nil, 0, err
	}
	head := make([]byte, state.SnapshotHeaderSize)
	size, err := f.Size()
	if err == nil && size >= int64(len(head)) && size <= id.Size {
		if _, err = f.ReadAt(head, 0); err == nil {
			if m, bad := state.ParseSnapshotHeader(head); bad == nil && m.Index == id.Index && m.Hash == id.Hash && m.FileSize() == id.Size {
				return f, size, nil
			}
		}
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, 0, nil
}

// fetchPart asks for the bytes of the snapshot from at on until they come. Later offers of it take the place of o: its sender may have
// changed, and the front of its log.
func (f *fetcher) fetchPart(o *raftlog.Offer, at int64) ([]byte, error) {
	id := o.Snapshot
	want := peer.Part{Index: id.Index, Size: id.Size, Hash: id.Hash, At: at}
	env, err := f.ask(o, want, func(got peer.Part) bool { return got == want })
	if err != nil {
		return nil, err
	}
	return env.Frames[0], nil
}

// ask asks the sender of o for a part until an answer comes that is wanted, some times. Later offers of the same snapshot take the place of
// o.
func (f *fetcher) ask(o *raftlog.Offer, part peer.Part, wanted func(peer.Part) bool) (peer.Envelope, error) {
	t := time.NewTimer(0)
	defer t.Stop()
	for tries := 0; ; {
		select {
		case env := <-f.parts:
			if wanted(*env.Part) {
				return env, nil
			}
		case next := <-f.offers:
			if next.Snapshot == o.Snapshot {
				*o = next
			}
		case <-t.C:
			if tries++; tries > partTries {
				return peer.Envelope{}, fmt.Errorf("replica %d on node %s does not send what lies from %d on", o.From, o.Node, part.At)
			}
			question := part
			f.node.send(o.Node, []peer.Envelope{{Group: f.gid, From: f.id, To: o.From, Epoch: o.Term.Epoch(), Part: &question}})
			t.Reset(partPatience)
		case <-f.ctx.Done():
			return peer.Envelope{}, f.ctx.Err()
		}
	}
}

// catchingUp tells that the log does not reach the state yet: the index lacks messages that the state counts.
func (r *Replica) catchingUp() bool { return r.applied.Load() < uint64(r.catchup.received) }

// beginAnew closes a replica, makes its log begin at the front of the offer, and opens it again: with the state that it received, or as
// it was when the offer stands no more.
func (n *Node) beginAnew(r *Replica, o raftlog.Offer) {
	n.mu.Lock()
	h := n.replicas[r.gid]
	if h == nil || h.r != r || n.closing {
		n.mu.Unlock()
		return
	}
	h.r, h.opening = nil, true
	starts := h.seen
	n.wg.Go(func() {
		err := r.close(false)
		if err == nil {
			err = r.reset(o)
		}
		if err != nil {
			r.log.Error().Err(err).Msg("the log cannot begin anew at the front of the master's: it goes on as it was")
		}
		n.mu.Lock()
		h.opening = false
		n.mu.Unlock()
		n.openReplica(r.gid, nil, starts)
	})
	n.mu.Unlock()
}

// reset makes the log of a closed replica begin at the front of the offer, if that still stands.
func (r *Replica) reset(o raftlog.Offer) error {
	lo := r.logOptions
	lo.ReadOnly = true
	l, err := commitlog.Open(lo)
	if err != nil {
		return err
	}
	if err := errors.Join(o.Stands(l), l.Close(false)); err != nil {
		return err
	}
	if err := commitlog.Reset(r.logOptions, o.Front); err != nil {
		return err
	}
	r.log.Warn().Int64("front", int64(o.Front.Base)).Uint64("entry", uint64(o.Front.Prev.Index+1)).
		Msg("the log begins anew at the front of the master's: all before it was given up by the group")
	return nil
}
