package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/raftlog"
)

// This file has the node's part when the disks of all controllers are lost. It finds nobody that leads, but one that waits for a recovery, and
// tells it all that is durable here. When that one asks for it, the node holds to the recovery from then on: it takes nothing any more
// from controllers of before it, and what it says then is what the new state is made of.

// recovery is the recovery that the node holds to, as it travels; nil: none.
func (f nodeFile) recovery() *controllerpb.Recovery {
	if f.Recovery == nil {
		return nil
	}
	token, err := ids.ParseUUID(f.Recovery.Token)
	if err != nil {
		return nil // the file was checked when it was loaded
	}
	return &controllerpb.Recovery{Number: f.Recovery.Number, Token: token[:]}
}

func (n *Node) held() *recoveryFile {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.file.Recovery
}

// holdTo keeps to a recovery of the controllers that is later than the one before, durably, before anything else is done.
func (n *Node) holdTo(r *controllerpb.Recovery) error {
	n.mu.Lock()
	file := n.file
	n.mu.Unlock()
	if r.GetNumber() == 0 || file.Recovery != nil && r.GetNumber() <= file.Recovery.Number {
		return nil
	}
	if len(r.GetToken()) != len(ids.UUID{}) {
		return fmt.Errorf("a controller names its recovery with %d bytes", len(r.GetToken()))
	}
	file.Recovery = &recoveryFile{Number: r.GetNumber(), Token: ids.UUID(r.GetToken()).String()}
	if err := file.save(n.o.FS, n.o.Dir); err != nil {
		return err
	}
	n.mu.Lock()
	n.file.Recovery = file.Recovery
	n.mu.Unlock()
	n.ctl.HoldTo(file.recovery())
	n.log.Warn().Uint32("recovery", r.GetNumber()).Msg("the controllers are recovered: this node takes nothing any more from those of before")
	return nil
}

// testify tells the controller that waits for a recovery what this node has.
func (n *Node) testify() error {
	ctx, cancel := context.WithTimeout(n.ctx, callTimeout) // the search for one that leads may have used up its own
	defer cancel()
	resp, err := n.ctl.Testify(ctx, n.testimony())
	if err != nil {
		return err
	}
	before := n.held()
	if err := n.holdTo(resp.GetHoldTo()); err != nil {
		return err
	}
	if n.held() != before {
		signal(n.beat) // it waits for what is said after that
	}
	return nil
}

func (n *Node) testimony() *controllerpb.Testimony {
	n.mu.Lock()
	file := n.file
	hosts := make(map[ids.GroupID]hosted, len(n.replicas))
	for id, h := range n.replicas {
		hosts[id] = *h
	}
	n.mu.Unlock()
	t := &controllerpb.Testimony{NodeId: string(n.o.ID), Level: uint32(max(file.Level, 1)), Recovery: file.recovery(), Controllers: file.Controllers, Namesrv: file.Namesrv,
		PeerAddress: n.o.PeerAdvertise, Peers: slices.Sorted(maps.Keys(file.Peers))}
	if id, err := ids.ParseUUID(file.CheckCode); err == nil {
		t.CheckCode = id[:]
	}
	if id, err := ids.ParseUUID(file.Cluster); err == nil {
		t.ClusterId = id[:]
	}
	for id, h := range hosts {
		t.Replicas = append(t.Replicas, n.replicaTestimony(id, h))
	}
	t.Retired = n.retiredTestimonies()
	return t
}

// retiredTestimonies tell what the replicas had adopted whose folders are in lost/. One that cannot be read says nothing.
func (n *Node) retiredTestimonies() (out []*controllerpb.ReplicaTestimony) {
	lost := filepath.Join(n.o.Dir, LostFolder)
	names, err := n.o.FS.List(lost)
	if err != nil {
		return nil // there is none
	}
	for _, name := range names {
		dir := filepath.Join(lost, name)
		f, err := loadReplicaFile(n.o.FS, dir)
		if err != nil {
			continue
		}
		group, err1 := ids.ParseUUID(f.GroupID)
		inc, err2 := ids.ParseUUID(f.Incarnation)
		if errors.Join(err1, err2) != nil {
			continue
		}
		t := &controllerpb.ReplicaTestimony{GroupId: group[:], GroupName: f.Group, ReplicaId: uint64(f.Replica), Slot: uint32(f.Slot), Incarnation: inc[:], Removed: f.Removed}
		if meta, err := n.metaIn(dir, ids.GroupID(group), f); err == nil {
			if owner, err := raftlog.DecodeOwner(meta.Owner); err == nil {
				t.EpochRecord = owner.Record
			}
		}
		out = append(out, t)
	}
	return out
}

// replicaTestimony tells what of a replica is on the disk.
func (n *Node) replicaTestimony(id ids.GroupID, h hosted) *controllerpb.ReplicaTestimony {
	f := h.file
	t := &controllerpb.ReplicaTestimony{GroupId: id[:], GroupName: f.Group, ReplicaId: uint64(f.Replica), Slot: uint32(f.Slot), SegmentSize: f.SegmentSize,
		AsyncFlush: f.Async, Wishes: h.wishes, Removed: f.Removed}
	if inc, err := ids.ParseUUID(f.Incarnation); err == nil {
		t.Incarnation = inc[:]
	}
	switch {
	case f.Replica == 0:
		t.Unready = h.parked // its replica.json could not be read
		return t
	case h.missing:
		t.Lost = h.parked
		return t
	case f.Lost != "":
		t.Lost = f.Lost
	case f.Reviving:
		t.Lost = "it lost what it acknowledged last, and has not begun the epoch in which it was to go on all the same"
	case h.opening || h.closing || h.r == nil && h.parked == "":
		t.Unready = "it is being opened"
		return t
	}
	meta, err := n.metaOf(id, h)
	if err == nil {
		var owner raftlog.Owner
		if owner, err = raftlog.DecodeOwner(meta.Owner); err == nil && owner.Replica != f.Replica {
			err = fmt.Errorf("its log belongs to replica %d", owner.Replica)
		}
		t.Starts, t.EpochRecord = meta.Starts, owner.Record
	}
	switch {
	case t.Lost != "": // what it has adopted is good to know all the same
	case commitlog.IdentityLost(err):
		t.Lost = err.Error()
	case err != nil:
		t.Unready = err.Error()
	case h.r != nil:
		if st := h.r.raft.Status(); st.Lost {
			t.Lost = st.Parked
		}
	}
	return t
}

// metaOf returns what is durable beside the log of a replica, open or not.
func (n *Node) metaOf(id ids.GroupID, h hosted) (commitlog.Meta, error) {
	if h.r != nil {
		return h.r.clog.Meta(), nil
	}
	return n.metaIn(filepath.Join(n.o.Dir, "groups", id.String()), id, h.file)
}

func (n *Node) metaIn(dir string, id ids.GroupID, file replicaFile) (commitlog.Meta, error) {
	cluster, err := ids.ParseUUID(file.Cluster)
	if err != nil {
		return commitlog.Meta{}, fmt.Errorf("replica.json: cluster: %w", err)
	}
	o := logOptions(n.o, dir, ids.ClusterID(cluster), id, file)
	o.ReadOnly, o.SmallSegments = true, true
	return commitlog.ReadMeta(o)
}

// wishesName is the file, in the folder of a replica, with what of its group stands in no epoch record, as a controller told it last. It is
// read only when all controllers are lost.
const wishesName = "wishes.json"

// keepWishes writes down what is wanted of the group, when it has changed.
func (n *Node) keepWishes(id ids.GroupID, h *hosted, w *controllerpb.WantedReplica) {
	n.mu.Lock()
	same := w.Wishes == nil || w.Lost != "" || h.missing || proto.Equal(h.wishes, w.Wishes)
	n.mu.Unlock()
	if same {
		return
	}
	text, err := protojson.MarshalOptions{Multiline: true}.Marshal(w.Wishes)
	if err == nil {
		err = vfs.WriteFileAtomic(n.o.FS, filepath.Join(n.o.Dir, "groups", id.String(), wishesName), append(text, '\n'))
	}
	if err != nil {
		n.log.Error().Str("group", w.GroupName).Err(err).Msg("cannot keep what is wanted of the group")
		return
	}
	n.mu.Lock()
	h.wishes = w.Wishes
	n.mu.Unlock()
}

func (n *Node) loadWishes(dir string) *controllerpb.GroupWishes {
	text, err := vfs.ReadFile(n.o.FS, filepath.Join(dir, wishesName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	w := &controllerpb.GroupWishes{}
	if err == nil {
		err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, w)
	}
	if err != nil {
		n.log.Warn().Str("folder", dir).Err(err).Msg("what was wanted of the group cannot be read: a controller tells it again")
		return nil
	}
	return w
}
