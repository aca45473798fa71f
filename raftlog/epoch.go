package raftlog

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// Limits of an epoch record. They keep every encoded record below MaxEpochRecord.
const (
	MaxEpochRecord = 2 << 10 // bytes of an encoded record
	MaxVoters      = 5       // the largest mode is A-5
	MaxLearners    = 5       // one that is catching up, or asynchronous, for each slot
)

const (
	epochMagic   = "LMQE"
	epochVersion = 1
	epochFixed   = 56 // bytes in front of the members
	memberFixed  = 26 // bytes of a member in front of its node id
	epochHash    = 16 // bytes of SHA-256 at the end
)

// ErrEpochRecord is wrapped by every error that DecodeEpochRecord and Validate return: the bytes are not a record that a
// replica may adopt. The record in force stays as it is.
var ErrEpochRecord = errors.New("raftlog: not a valid epoch record")

// EpochRecord is the membership of a group in one epoch: who votes, who only receives, how many copies an answer waits for.
// The controller issues it, it never changes afterwards, and it is not part of the log. Two records of one group and epoch
// with different hashes are an alarm, never a choice.
//
// Invariants, tested by Validate:
//  1. no replica id occurs twice, neither in one list nor in both;
//  2. no slot and no node occurs twice among the voters, nor twice among the learners; a learner may share both with a voter,
//     though the controllers issue no such record: a lost replica leaves it before the one that follows comes in;
//  3. a member's id, slot, node and incarnation are all set: an id without an incarnation names no folder.
type EpochRecord struct {
	Cluster ids.ClusterID
	Group   ids.GroupID
	Epoch   ids.Epoch // from 1

	// Voters is the SyncStateSet, 1 to MaxVoters. Learners receive the log and never count. The order does not matter:
	// Encode sorts by slot, DecodeEpochRecord returns them sorted.
	Voters   []Member
	Learners []Member

	A           uint8 // copies that an answered send has, 1 to 5; see K
	MinISR      uint8 // the SyncStateSet never gets smaller than this, 1 to 5
	SegmentSize int64 // bytes of a segment of the commit log, a power of two; fixed when the group is made
}

// Member is one replica of a group as an epoch record names it.
type Member struct {
	ID          ids.ReplicaID
	Slot        ids.Slot // 1 to 5
	Node        ids.NodeID
	Incarnation ids.Incarnation // of the folder that the node created for this id
}

// K is the number of voters that must hold a message before its producer is answered OK: min(A, number of voters).
func (r EpochRecord) K() int { return min(int(r.A), len(r.Voters)) }

// Member returns the voter or learner with that id.
func (r EpochRecord) Member(id ids.ReplicaID) (Member, bool) {
	for _, list := range [2][]Member{r.Voters, r.Learners} {
		for _, m := range list {
			if m.ID == id {
				return m, true
			}
		}
	}
	return Member{}, false
}

// IsVoter tells whether id votes in this epoch.
func (r EpochRecord) IsVoter(id ids.ReplicaID) bool {
	return slices.ContainsFunc(r.Voters, func(m Member) bool { return m.ID == id })
}

// Hash returns the first 16 bytes of the SHA-256 over everything else in the encoded record. Records with equal content have
// equal hashes, in whatever order their members were listed.
func (r EpochRecord) Hash() [epochHash]byte {
	b := r.Encode()
	return [epochHash]byte(b[len(b)-epochHash:])
}

// Encode returns the canonical bytes of r, as docs/format/epoch.md draws them: records with equal content have equal bytes. It
// does not validate: what Validate refuses DecodeEpochRecord refuses too. A node id longer than ids.MaxNodeID or a list too long
// for its one-byte count is a bug of the caller and panics.
func (r EpochRecord) Encode() []byte {
	b := make([]byte, 0, epochFixed+(len(r.Voters)+len(r.Learners))*(memberFixed+8)+epochHash)
	b = append(b, epochMagic...)
	b = append(b, epochVersion, r.A, r.MinISR, 0)
	b = append(b, r.Cluster[:]...)
	b = append(b, r.Group[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(r.Epoch))
	b = binary.BigEndian.AppendUint64(b, uint64(r.SegmentSize))
	b = append(b, byteLen("voters", len(r.Voters), 255), byteLen("learners", len(r.Learners), 255), 0, 0)
	for _, list := range [2][]Member{r.Voters, r.Learners} {
		for _, m := range sortedMembers(list) {
			b = binary.BigEndian.AppendUint64(b, uint64(m.ID))
			b = append(b, m.Incarnation[:]...)
			b = append(b, byte(m.Slot), byteLen("node id", len(m.Node), ids.MaxNodeID))
			b = append(b, m.Node...)
		}
	}
	sum := sha256.Sum256(b)
	return append(b, sum[:epochHash]...)
}

func byteLen(what string, n, limit int) byte {
	if n > limit {
		panic(fmt.Sprintf("raftlog: an epoch record with %d %s does not fit its format: call Validate first", n, what))
	}
	return byte(n)
}

// sortedMembers returns list by slot, then id. It copies only when the order is wrong.
func sortedMembers(list []Member) []Member {
	if slices.IsSortedFunc(list, compareMembers) {
		return list
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, compareMembers)
	return list
}

func compareMembers(a, b Member) int {
	return cmp.Or(cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.ID, b.ID))
}

// DecodeEpochRecord reads what Encode wrote and validates it. It accepts only canonical bytes, so Encode of the result gives b
// again. Every error wraps ErrEpochRecord and names the field. The result does not alias b.
func DecodeEpochRecord(b []byte) (EpochRecord, error) {
	var r EpochRecord
	switch {
	case len(b) > MaxEpochRecord:
		return r, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrEpochRecord, len(b), MaxEpochRecord)
	case len(b) < epochFixed+epochHash:
		return r, fmt.Errorf("%w: %d bytes, too short", ErrEpochRecord, len(b))
	case string(b[:4]) != epochMagic:
		return r, fmt.Errorf("%w: magic %q", ErrEpochRecord, b[:4])
	case b[4] != epochVersion:
		return r, fmt.Errorf("%w: version %d, this program knows %d", ErrEpochRecord, b[4], epochVersion)
	}
	content, hash := b[:len(b)-epochHash], b[len(b)-epochHash:]
	if sum := sha256.Sum256(content); !bytes.Equal(sum[:epochHash], hash) {
		return r, fmt.Errorf("%w: hash %s does not fit the content", ErrEpochRecord, hex.EncodeToString(hash))
	}
	if b[7] != 0 || b[54] != 0 || b[55] != 0 {
		return r, fmt.Errorf("%w: reserved bytes are not zero", ErrEpochRecord)
	}
	r.A, r.MinISR = b[5], b[6]
	r.Cluster = ids.ClusterID(b[8:24])
	r.Group = ids.GroupID(b[24:40])
	r.Epoch = ids.Epoch(binary.BigEndian.Uint32(b[40:]))
	r.SegmentSize = int64(binary.BigEndian.Uint64(b[44:]))
	voters, learners := int(b[52]), int(b[53])
	if voters > MaxVoters || learners > MaxLearners {
		return EpochRecord{}, fmt.Errorf("%w: %d voters and %d learners, at most %d and %d are allowed", ErrEpochRecord, voters, learners, MaxVoters, MaxLearners)
	}
	rest := content[epochFixed:]
	var err error
	if r.Voters, rest, err = decodeMembers(rest, voters); err != nil {
		return EpochRecord{}, fmt.Errorf("%w: voters: %w", ErrEpochRecord, err)
	}
	if r.Learners, rest, err = decodeMembers(rest, learners); err != nil {
		return EpochRecord{}, fmt.Errorf("%w: learners: %w", ErrEpochRecord, err)
	}
	if len(rest) != 0 {
		return EpochRecord{}, fmt.Errorf("%w: %d bytes follow the last member", ErrEpochRecord, len(rest))
	}
	if err := r.Validate(); err != nil {
		return EpochRecord{}, err
	}
	return r, nil
}

func decodeMembers(b []byte, n int) (list []Member, rest []byte, err error) {
	for i := range n {
		if len(b) < memberFixed {
			return nil, nil, fmt.Errorf("member %d of %d is cut off", i+1, n)
		}
		var m Member
		m.ID = ids.ReplicaID(binary.BigEndian.Uint64(b))
		m.Incarnation = ids.Incarnation(b[8:24])
		m.Slot = ids.Slot(b[24])
		size := int(b[25])
		if b = b[memberFixed:]; len(b) < size {
			return nil, nil, fmt.Errorf("the node id of member %d of %d is cut off", i+1, n)
		}
		m.Node, b = ids.NodeID(b[:size]), b[size:]
		if len(list) > 0 && compareMembers(list[len(list)-1], m) >= 0 {
			return nil, nil, fmt.Errorf("member %d of %d is not in the order of slots", i+1, n)
		}
		list = append(list, m)
	}
	return list, b, nil
}

// Validate reports all that is wrong with r at once, as one error that wraps ErrEpochRecord, or nil. It looks at one record
// alone: whether r may follow another one (overlap, activation) is decided by the controller.
func (r EpochRecord) Validate() error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if ids.UUID(r.Cluster).IsZero() {
		bad("the cluster id is zero")
	}
	if ids.UUID(r.Group).IsZero() {
		bad("the group id is zero")
	}
	if r.Epoch == 0 {
		bad("epoch 0: epochs start at 1")
	}
	if len(r.Voters) < 1 || len(r.Voters) > MaxVoters {
		bad("%d voters: want 1 to %d", len(r.Voters), MaxVoters)
	}
	if len(r.Learners) > MaxLearners {
		bad("%d learners: at most %d are allowed", len(r.Learners), MaxLearners)
	}
	if r.A < 1 || r.A > MaxVoters {
		bad("A is %d: want 1 to %d", r.A, MaxVoters)
	}
	if r.MinISR < 1 || r.MinISR > MaxVoters {
		bad("min ISR is %d: want 1 to %d", r.MinISR, MaxVoters)
	}
	if err := ids.CheckSegmentSize(r.SegmentSize, ids.MinTestSegmentSize); err != nil {
		bad("%w", err)
	}
	seen := make(map[ids.ReplicaID]bool)
	checkMembers("voter", r.Voters, seen, bad)
	checkMembers("learner", r.Learners, seen, bad)
	if faults == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrEpochRecord, errors.Join(faults...))
}

func checkMembers(kind string, list []Member, seen map[ids.ReplicaID]bool, bad func(string, ...any)) {
	slots, nodes := make(map[ids.Slot]bool), make(map[ids.NodeID]bool)
	for _, m := range list {
		if m.ID == 0 {
			bad("a %s has replica id 0", kind)
		} else if seen[m.ID] {
			bad("replica %d is listed twice", m.ID)
		}
		if m.Slot < 1 || m.Slot > MaxVoters {
			bad("%s %d has slot %d: want 1 to %d", kind, m.ID, m.Slot, MaxVoters)
		} else if slots[m.Slot] {
			bad("two %ss have slot %d", kind, m.Slot)
		}
		if err := m.Node.Check(); err != nil {
			bad("%s %d: %w", kind, m.ID, err)
		} else if nodes[m.Node] {
			bad("two %ss are on node %q", kind, m.Node)
		}
		if ids.UUID(m.Incarnation).IsZero() {
			bad("%s %d has no incarnation", kind, m.ID)
		}
		seen[m.ID], slots[m.Slot], nodes[m.Node] = true, true, true
	}
}
