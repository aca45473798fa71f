// Package ids holds one type for each kind of number in LedgerMQ, so that the compiler keeps a Raft index apart from a
// queue offset and a term apart from an epoch. The glossary in docs/glossary.md gives each word its meaning.
//
// Ranges are half-open: every Max…Offset is exclusive, every Min… inclusive. All types are plain values and safe to copy.
package ids

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
)

// Epoch is the version of a group's membership. The controller issues it; it grows by one and starts at 1.
type Epoch uint32

// Term is the Raft term of a group's log: the epoch in the upper 32 bits, the number of the election within it below.
type Term uint64

// MakeTerm builds the term of election n inside epoch e.
func MakeTerm(e Epoch, n uint32) Term { return Term(e)<<32 | Term(n) }

// Epoch returns the epoch that t belongs to.
func (t Term) Epoch() Epoch { return Epoch(t >> 32) }

// Election returns the number of the election inside the epoch of t.
func (t Term) Election() uint32 { return uint32(t) }

// String formats t as epoch.election, for logs and tables.
func (t Term) String() string { return fmt.Sprintf("%d.%d", t.Epoch(), t.Election()) }

// Index is the position of an entry, and so of a frame, in a group's Raft log. The first entry has index 1.
type Index uint64

// PhysicalOffset is a byte position in a group's commit log. It is equal on all replicas for the same record.
type PhysicalOffset int64

// QueueOffset is a position in one message queue, dense from 0.
type QueueOffset int64

// QueueID numbers the queues of one topic inside one broker group, from 0.
type QueueID int32

// TopicID names one incarnation of a topic inside one broker group: a topic that is deleted and created again has another.
type TopicID uint32

// ReplicaID names one replica of one group for ever; the controller never gives it twice. It is the Raft id.
type ReplicaID uint64

// Slot is the place of a replica in its group, 1 to 5, fixed while the replica lives.
type Slot uint8

// BrokerID is RocketMQ's id of a replica on the wire: MasterBrokerID while it is master, else its slot.
type BrokerID int64

// MasterBrokerID is the wire id of a master.
const MasterBrokerID BrokerID = 0

// NodeID is the persisted identity of a node, chosen by its operator: n1, n2, ….
type NodeID string

// MaxNodeID is the length of the longest NodeID, in bytes.
const MaxNodeID = 64

// Check returns an error when n cannot be the id of a node.
func (n NodeID) Check() error {
	if n == "" || len(n) > MaxNodeID || strings.ContainsFunc(string(n), func(c rune) bool { return !nameChar(c) }) {
		return fmt.Errorf("node id %q: want 1 to %d of A-Z a-z 0-9 _ . -", n[:min(len(n), MaxNodeID+1)], MaxNodeID)
	}
	return nil
}

func nameChar(c rune) bool {
	return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '.' || c == '-'
}

// The size of a commit log's segments, in bytes. Below MinSegmentSize only tests go.
const (
	DefaultSegmentSize = 1 << 30
	MinSegmentSize     = 16 << 20
	MaxSegmentSize     = 4 << 30
	MinTestSegmentSize = 64 << 10
)

// CheckSegmentSize returns an error when n is not a power of two from least to MaxSegmentSize.
func CheckSegmentSize(n, least int64) error {
	if n < least || n > MaxSegmentSize || n&(n-1) != 0 {
		return fmt.Errorf("segment size %d: want a power of two from %d to %d bytes", n, least, int64(MaxSegmentSize))
	}
	return nil
}

// UUID is 16 random bytes.
type UUID [16]byte

// ClusterID names a cluster. It is drawn when the first controller is made.
type ClusterID UUID

// GroupID names a broker group. It is drawn when the group is created; the group's name is its RocketMQ brokerName.
type GroupID UUID

// Incarnation is drawn by a node when it durably creates the folder of a replica. A replica id without a folder of the
// recorded incarnation is a lost identity.
type Incarnation UUID

// NewUUID reads 16 bytes of r, or of crypto/rand when r is nil.
func NewUUID(r io.Reader) UUID {
	if r == nil {
		r = rand.Reader
	}
	var u UUID
	if _, err := io.ReadFull(r, u[:]); err != nil {
		panic(fmt.Sprintf("ids: the source of randomness failed: %v", err))
	}
	return u
}

// ParseUUID is the reverse of String. It returns an error when s is not 32 hexadecimal digits.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	if len(s) != 2*len(u) {
		return u, fmt.Errorf("id %q: want %d hexadecimal digits", s, 2*len(u))
	}
	if _, err := hex.Decode(u[:], []byte(s)); err != nil {
		return u, fmt.Errorf("id %q: %w", s, err)
	}
	return u, nil
}

// String returns 32 hexadecimal digits.
func (u UUID) String() string { return hex.EncodeToString(u[:]) }

// IsZero tells whether u was never drawn.
func (u UUID) IsZero() bool { return u == UUID{} }

func (c ClusterID) String() string   { return UUID(c).String() }
func (g GroupID) String() string     { return UUID(g).String() }
func (i Incarnation) String() string { return UUID(i).String() }
