package broker

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// This file has what becomes of a lost replica of a group that flushes asynchronously when the others are lost too: it tells what its
// log has, and goes on with it when the controllers choose it. The steps, each durable before the next:
//
//	lost ──it won epoch e──▶ replica.json: reviving ──▶ log opened in spite of its loss ──▶ epoch e sealed ──▶ replica.json: revived ──▶ open
//
// Nothing is acknowledged before the last one, so each may be repeated.

// hasLog is what the log of a lost replica has.
type hasLog struct {
	last     ids.Index
	lastTerm ids.Term
	terms    []ids.Term
	starts   []ids.Index
}

func (l *hasLog) report(rep *controllerpb.ReplicaReport) {
	rep.Looked, rep.LastIndex, rep.LastTerm = true, uint64(l.last), uint64(l.lastTerm)
	controller.TellTerms(rep, l.terms, l.starts)
}

// peek looks what the log of a lost replica has. Of one that it could not go on with nothing is told: nobody chooses it then, and an
// operator must say what becomes of it.
func (n *Node) peek(id ids.GroupID, f replicaFile) {
	if !f.Async {
		return
	}
	has, err := n.look(id, f)
	if err != nil {
		n.log.Error().Str("group", f.Group).Uint64("replica", uint64(f.Replica)).Err(err).Msg("this lost replica cannot tell what it has")
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if h := n.replicas[id]; h != nil && h.file.Replica == f.Replica && h.file.Revived == f.Revived && h.file.Lost != "" {
		h.has = has
	}
}

func (n *Node) look(id ids.GroupID, f replicaFile) (*hasLog, error) {
	cluster, err := ids.ParseUUID(f.Cluster)
	if err != nil {
		return nil, fmt.Errorf("replica.json: cluster: %w", err)
	}
	dir := filepath.Join(n.o.Dir, "groups", id.String())
	o := logOptions(n.o, dir, ids.ClusterID(cluster), id, f)
	o.ReadOnly = true
	l, err := commitlog.Open(o)
	if err != nil {
		return nil, err
	}
	defer l.Close(false)
	t := l.Tail()
	if err := goesWith(n.o.FS, dir, id, l.FirstIndex(), t.Index); err != nil {
		return nil, err
	}
	has := &hasLog{last: t.Index, lastTerm: t.Term}
	has.terms, has.starts = termStarts(l)
	return has, nil
}

// goesWith tells why a replica could not go on with a log from first to last and the state snapshots beside it, nil when it can: the
// state is nowhere ahead of the log, and reaches back to its front. See Replica.recover.
func goesWith(fs vfs.FS, dir string, id ids.GroupID, first, last ids.Index) error {
	_, meta, err := state.LoadNewest(fs, dir, id)
	if first > 1 && (err != nil || meta.Index+1 < first) {
		_, meta, err = state.LoadSnapshot(fs, filepath.Join(dir, receivedName), id)
	}
	switch {
	case errors.Is(err, state.ErrNoSnapshot) && first <= 1:
		return nil
	case err != nil:
		return fmt.Errorf("its log begins at %d, and no state snapshot can be used: %w", first, err)
	case meta.Index > last || meta.Index+1 < first:
		return fmt.Errorf("its state snapshot is of entry %d, and its log goes from %d to %d", meta.Index, first, last)
	}
	return nil
}

// revive lets a lost replica go on, since the controllers chose it.
func (n *Node) revive(id ids.GroupID, h *hosted, w *controllerpb.WantedReplica) {
	n.mu.Lock()
	busy := h.opening || h.closing || h.r != nil || h.repair != nil
	n.mu.Unlock()
	if busy {
		return
	}
	dir := filepath.Join(n.o.Dir, "groups", id.String())
	f, err := loadReplicaFile(n.o.FS, dir)
	if err == nil {
		f.Lost, f.Revived, f.Reviving = "", ids.Epoch(w.Revived), true
		err = f.save(n.o.FS, dir)
	}
	if err != nil {
		n.log.Error().Str("group", w.GroupName).Err(err).Msg("a lost replica that was chosen cannot go on: tried again")
		return
	}
	n.log.Error().Str("group", w.GroupName).Uint32("epoch", w.Revived).Msg("this replica goes on with what its log has: what it lacks is lost")
	n.mu.Lock()
	h.file, h.parked, h.has, h.seen, h.starts = f, "", nil, 0, 0 // starts that were seen of it count no more
	n.mu.Unlock()
}

// revived ends that: from now on the replica's identity can be lost again.
func (n *Node) revived(id ids.GroupID) error {
	dir := filepath.Join(n.o.Dir, "groups", id.String())
	f, err := loadReplicaFile(n.o.FS, dir)
	if err == nil {
		f.Reviving = false
		err = f.save(n.o.FS, dir)
	}
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.replicas[id].file.Reviving = false
	return nil
}
