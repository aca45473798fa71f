package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog/peer"
)

// A member that lacks what its master's log has given up cannot be sent it. It begins anew at the master's front:
//
//	master  Raft finds no entry for it: MsgSnap with an Offer, again each election timeout until it answers ─▶
//	member  has the frame before that front: Raft is told, and the log comes as always
//	        has not: Config.Behind. Its owner fetches the state snapshot of the offer, closes the Group, commitlog.Reset, and opens
//	        the log with the snapshot again; the next offer finds the frame before the front there
//
// Raft itself never restores a snapshot here: those that it is shown change nothing but its commit index. So no configuration comes
// from another replica, nothing waits for a transfer, and what is on the disk after a crash at any moment is a log that was opened
// before, or could have been.
//
// Why the switch is safe. The frame before the front is committed, in an entry of the master that offers it. Who lacks that frame
// has acknowledged nothing above it that is committed, so all that it gives up is given up by the group, or never was
// committed. It still refuses every term below the offer's: all that it takes from then on is of masters that have everything up to
// the state snapshot, so what it gets up to there is what the snapshot contains.

// SnapshotID names a snapshot of a group's state machine: equal names, equal bytes.
type SnapshotID struct {
	Index ids.Index // of the last entry that it contains
	Size  int64     // bytes of its file
	Hash  [32]byte  // of the state
}

// Offer is what a master has for a member that lacks what the group has given up.
type Offer struct {
	From     ids.ReplicaID
	Node     ids.NodeID
	Term     ids.Term
	Front    commitlog.Front // where the log begins there
	Snapshot SnapshotID      // contains the frame before the front, and at least one more
}

// offerSize is the size of an encoded offer: docs/format/snapshot.md. The frame before the front is named by the message.
const (
	offerSize    = 96
	offerVersion = 1
)

func encodeOffer(f commitlog.Front, s SnapshotID) []byte {
	be := binary.BigEndian
	b := make([]byte, 0, offerSize)
	b = append(b, offerVersion, 0, 0, 0)
	b = be.AppendUint32(b, f.Prev.Chain)
	b = be.AppendUint64(b, uint64(f.Base))
	b = be.AppendUint64(b, uint64(f.Prev.Time))
	b = be.AppendUint64(b, uint64(f.Start.StartIndex))
	b = be.AppendUint64(b, uint64(f.Start.StartOffset))
	b = be.AppendUint64(b, uint64(s.Index))
	b = be.AppendUint64(b, uint64(s.Size))
	b = append(b, make([]byte, 8)...)
	return append(b, s.Hash[:]...)
}

// decodeOffer reads the offer of a MsgSnap from the wire.
func decodeOffer(m *pb.Message, segmentSize int64) (Offer, error) {
	be := binary.BigEndian
	b := m.GetContext()
	if len(b) != offerSize || b[0] != offerVersion || b[1]|b[2]|b[3] != 0 || be.Uint64(b[56:]) != 0 {
		return Offer{}, errors.New("its offer is of an unknown form")
	}
	index, term := ids.Index(m.GetIndex()), ids.Term(m.GetLogTerm())
	o := Offer{
		From: ids.ReplicaID(m.GetFrom()), Term: ids.Term(m.GetTerm()),
		Front: commitlog.Front{
			Base:  ids.PhysicalOffset(be.Uint64(b[8:])),
			Prev:  commitlog.Tail{Index: index, Term: term, Chain: be.Uint32(b[4:]), Time: int64(be.Uint64(b[16:]))},
			Start: commitlog.TermStart{Term: term, StartIndex: ids.Index(be.Uint64(b[24:])), StartOffset: ids.PhysicalOffset(be.Uint64(b[32:]))},
		},
		Snapshot: SnapshotID{Index: ids.Index(be.Uint64(b[40:])), Size: int64(be.Uint64(b[48:])), Hash: [32]byte(b[64:])},
	}
	switch {
	case term > o.Term:
		return o, fmt.Errorf("it names entry %d of the later term %s", index, term)
	case o.Snapshot.Index <= index || o.Snapshot.Size <= 0:
		return o, fmt.Errorf("its snapshot of %d bytes at entry %d does not reach its front behind %d", o.Snapshot.Size, o.Snapshot.Index, index)
	}
	return o, o.Front.Check(segmentSize)
}

// offerSnapshot is raft.Storage's Snapshot: where the log begins, and the state snapshot that goes with it.
func (s *storage) offerSnapshot() (*pb.Snapshot, error) {
	f := s.log.Front()
	if s.newest == nil || f.Prev.Index == 0 {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	id, ok := s.newest(f.Prev.Index)
	if !ok || id.Index <= f.Prev.Index {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	return &pb.Snapshot{
		Data:     encodeOffer(f, id),
		Metadata: &pb.SnapshotMetadata{ConfState: s.conf, Index: new(uint64(f.Prev.Index)), Term: new(uint64(f.Prev.Term))},
	}, nil
}

// sendOffer puts Raft's MsgSnap on its way to p, in the form of the wire.
func (r *Replica) sendOffer(p *member, m *pb.Message) {
	p.offered = r.ticks
	meta := m.GetSnapshot().GetMetadata()
	r.push(p, &pb.Message{Type: pb.MsgSnap.Enum(), To: m.To, From: m.From, Term: m.Term, Index: meta.Index, LogTerm: meta.Term,
		Context: m.GetSnapshot().GetData()}, nil)
}

// offerAgain lets Raft offer once more to members that have not answered for an election timeout: an offer is lost when the member's
// process starts again, as it does to take it, and Raft would wait for ever.
func (r *Replica) offerAgain() {
	if !r.leading {
		return
	}
	for _, p := range r.sortedMembers() {
		if p.current && p.behind && r.ticks-p.offered >= int64(r.cfg.ElectionTick) {
			p.offered = r.ticks
			r.rn.ReportSnapshot(uint64(p.ID), raft.SnapshotFailure)
		}
	}
}

// receiveOffer checks a MsgSnap and keeps it for the turn: only when Raft has handed out all that it took is it known what this
// replica has.
func (r *Replica) receiveOffer(p *member, env peer.Envelope) {
	m := env.Msg
	if env.Epoch != r.record.Epoch || ids.Term(m.GetTerm()) != r.owner.Term {
		return // of an earlier term; or of one that the master's next heartbeat brings, and then it offers again
	}
	if !bytes.Equal(env.Record, r.encoded) {
		r.refuse(env, "it offers a snapshot under another configuration than the one in force here")
		return
	}
	o, err := decodeOffer(m, r.log.SegmentSize())
	if err != nil {
		r.refuse(env, err.Error())
		return
	}
	o.Node = p.Node
	r.offer = &o
}

// takeOffer tells Raft that this replica has the frame before the front of its master, or its owner that it has not.
func (r *Replica) takeOffer() {
	o := r.offer
	r.offer = nil
	if o == nil || r.rn == nil || r.seal.active() || r.leading || o.Term != r.owner.Term {
		return
	}
	i := uint64(o.Front.Prev.Index)
	if o.Front.Prev.Index > r.commit {
		if term, err := r.st.Term(i); err != nil || term != uint64(o.Front.Prev.Term) {
			if r.cfg.Behind != nil {
				r.cfg.Behind(*o)
			}
			return
		}
	}
	_ = r.rn.Step(&pb.Message{Type: pb.MsgSnap.Enum(), To: new(uint64(r.cfg.Replica)), From: new(uint64(o.From)), Term: new(uint64(o.Term)),
		Snapshot: &pb.Snapshot{Metadata: &pb.SnapshotMetadata{ConfState: r.st.conf, Index: new(i), Term: new(uint64(o.Front.Prev.Term))}}})
}

// Stands tells whether the log, which is closed to its group, may still be replaced by what o offers: it is behind the offer's front, and
// its owner refuses every term below the offer's.
func (o Offer) Stands(log *commitlog.Log) error {
	owner, err := DecodeOwner(log.Meta().Owner)
	switch {
	case err != nil:
		return err
	case owner.Term < o.Term:
		return fmt.Errorf("raftlog: the offer is of term %s, the log in %s", o.Term, owner.Term)
	case log.FirstIndex() > o.Front.Prev.Index:
		return fmt.Errorf("raftlog: the log begins at %d, the offer behind %d", log.FirstIndex(), o.Front.Prev.Index)
	}
	if term, err := log.TermOf(o.Front.Prev.Index); err == nil && term == o.Front.Prev.Term {
		return fmt.Errorf("raftlog: the log has entry %d, the one before the offer's front", o.Front.Prev.Index)
	}
	return nil
}
