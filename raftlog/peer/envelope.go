package peer

import (
	"errors"
	"fmt"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// Bounds of one envelope. The layer above keeps well inside them: a Raft message carries 1 MiB of frames, or one frame.
const (
	MaxEntries       = 16 << 10  // entries of one message
	MaxFrames        = 16 << 10  // frames of one message
	MaxFrameBytes    = 8 << 20   // bytes of all frames of one message
	MaxContextBytes  = 1 << 10   // bytes of a message's context
	MaxEntryData     = 1 << 10   // bytes of one entry's data: entries are thin, frames carry the payload
	MaxRecordBytes   = 2 << 10   // bytes of an encoded epoch record
	MaxPartBytes     = 256 << 10 // bytes of a part of a state snapshot, or of the log
	envelopeOverhead = 512       // what a queued envelope is charged beside its frames: about what it costs in memory
)

// Envelope is one Raft message of one group on its way between two replicas, with what travels beside it.
type Envelope struct {
	Group    ids.GroupID
	From, To ids.ReplicaID // equal to those of Msg
	Epoch    ids.Epoch     // of the sender

	// Msg is one of Raft's peer messages, see Carried; nil when only Record is sent. Exactly the fields that Raft uses on a
	// peer message travel: not snapshots, not responses. A MsgSnap has what it offers in Index, LogTerm and Context.
	Msg *raftpb.Message

	// Part, instead of Msg, asks for a part of a state snapshot or of the log, or names the one that it brings.
	Part *Part

	// Frames are the frames of Msg's entries. A received one was checked by commitlog.CheckFrame and belongs to the receiver.
	// Beside a Part there is none, or one that is no frame: the bytes of that part, whose checksum was checked.
	Frames []commitlog.Frame

	// Record is the encoded epoch record of the sender, when it attaches it. This package does not look into it.
	Record []byte
}

// Part is a piece of something that another replica has whole: the bytes from At on, up to MaxPartBytes of them. Without bytes it asks
// for them.
type Part struct {
	Kind  PartKind
	Index ids.Index // of the last entry that the snapshot contains; of the frame in which At lies; of the last entry before those that are left
	Size  int64     // of the whole file; or where the segment ends
	Hash  [32]byte  // of the state in the snapshot; else zero
	At    int64     // in the file; or the physical offset
}

// PartKind tells of what a Part is. The numbers are on the wire.
type PartKind uint8

const (
	// PartOfSnapshot is a piece of a file with a snapshot of the group's state machine.
	PartOfSnapshot PartKind = iota
	// PartOfLog is a piece of a segment as it lies on the disk. It is not verified by who sends it.
	PartOfLog
	// PartOfNewest asks for the beginning of the newest snapshot that contains entry Index. The answer is a PartOfSnapshot.
	PartOfNewest
	partKinds
)

// Carried tells whether t may come in from another node. Proposals, read requests, transfers and everything that Raft says to
// itself never travel, and a peer that sends one is cut off: a proposal or a read from the wire would pass by the master's own
// order, and local messages would forge the work of this process.
func Carried(t raftpb.MessageType) bool {
	switch t {
	case raftpb.MsgApp, raftpb.MsgAppResp,
		raftpb.MsgVote, raftpb.MsgVoteResp,
		raftpb.MsgPreVote, raftpb.MsgPreVoteResp,
		raftpb.MsgHeartbeat, raftpb.MsgHeartbeatResp,
		raftpb.MsgTimeoutNow, raftpb.MsgSnap:
		return true
	default:
		return false
	}
}

// channel is the connection that an envelope takes. The number is on the wire.
type channel uint8

const (
	control channel = 1
	bulk    channel = 2
)

func (c channel) String() string {
	switch c {
	case control:
		return "control"
	case bulk:
		return "bulk"
	default:
		return fmt.Sprintf("channel %d", uint8(c))
	}
}

// channel keeps all appends of a group on one connection. An append without frames that overtook the one before it would be
// rejected by the follower, and the leader would start to probe.
func (e *Envelope) channel() channel {
	if len(e.Frames) > 0 || (e.Msg != nil && e.Msg.GetType() == raftpb.MsgApp) {
		return bulk
	}
	return control
}

// needs is what the other end must understand to take e.
func (e *Envelope) needs() features {
	switch {
	case e.Part != nil && e.Part.Kind != PartOfSnapshot:
		return featureRepair
	case e.Part != nil || e.Msg != nil && e.Msg.GetType() == raftpb.MsgSnap:
		return featureSnapshots
	}
	return 0
}

// lazy tells whether e may wait a moment for others: a heartbeat, or its answer, that no read waits for.
func (e *Envelope) lazy() bool {
	if e.Msg == nil || len(e.Msg.Context) > 0 {
		return false
	}
	t := e.Msg.GetType()
	return t == raftpb.MsgHeartbeat || t == raftpb.MsgHeartbeatResp
}

// cost is what e is charged for in a queue, in bytes.
func (e *Envelope) cost() int {
	n := envelopeOverhead + len(e.Record)
	for _, f := range e.Frames {
		n += len(f)
	}
	return n
}

// check tells why the wire cannot carry e. Each of these is a bug of the caller.
func (e *Envelope) check() error {
	if len(e.Record) > MaxRecordBytes {
		return fmt.Errorf("an epoch record of %d bytes, at most %d travel", len(e.Record), MaxRecordBytes)
	}
	if len(e.Frames) > MaxFrames {
		return fmt.Errorf("%d frames, at most %d travel", len(e.Frames), MaxFrames)
	}
	bytes := 0
	for _, f := range e.Frames {
		bytes += len(f)
	}
	if bytes > MaxFrameBytes {
		return fmt.Errorf("%d bytes of frames, at most %d travel", bytes, MaxFrameBytes)
	}
	m := e.Msg
	if p := e.Part; p != nil {
		switch {
		case m != nil || len(e.Frames) > 1 || bytes > MaxPartBytes || len(e.Frames) == 1 && bytes == 0:
			return fmt.Errorf("a part with a message, or in %d pieces of %d bytes", len(e.Frames), bytes)
		case p.Kind >= partKinds || p.Kind == PartOfNewest && len(e.Frames) > 0:
			return fmt.Errorf("a part of kind %d with %d bytes", p.Kind, bytes)
		case p.Index == 0 || p.At < 0 || p.At+int64(bytes) > p.Size:
			return fmt.Errorf("%d bytes at %d of %d", bytes, p.At, p.Size)
		}
		return nil
	}
	if m == nil {
		if len(e.Frames) > 0 {
			return errors.New("frames without a message")
		}
		return nil
	}
	if !Carried(m.GetType()) {
		return fmt.Errorf("a %v never travels", m.GetType())
	}
	if m.GetType() == raftpb.MsgSnap && len(m.Entries)+len(e.Frames) > 0 || m.Snapshot != nil || len(m.Responses) > 0 {
		return fmt.Errorf("a %v with a snapshot or responses, or a MsgSnap with entries or frames", m.GetType())
	}
	if m.GetFrom() != uint64(e.From) || m.GetTo() != uint64(e.To) {
		return fmt.Errorf("a %v from %d to %d in an envelope from %d to %d", m.GetType(), m.GetFrom(), m.GetTo(), e.From, e.To)
	}
	if len(m.Context) > MaxContextBytes {
		return fmt.Errorf("a context of %d bytes, at most %d travel", len(m.Context), MaxContextBytes)
	}
	if len(m.Entries) > MaxEntries {
		return fmt.Errorf("%d entries, at most %d travel", len(m.Entries), MaxEntries)
	}
	for _, x := range m.Entries {
		if len(x.Data) > MaxEntryData {
			return fmt.Errorf("an entry with %d bytes of data, at most %d travel", len(x.Data), MaxEntryData)
		}
	}
	if n := envelopeSize(e); n > maxPacketHead {
		return fmt.Errorf("a message of %d bytes beside its frames, at most %d travel", n, maxPacketHead)
	}
	return nil
}
