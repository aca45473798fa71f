package raftlog

import (
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog/peer"
)

// Config is what a group needs to start. The log stays the caller's: it is opened before Start and closed after Close.
type Config struct {
	Cluster ids.ClusterID
	Group   ids.GroupID

	// Record is the newest epoch record that the caller knows; nil when it knows none. The one in the log's meta file counts
	// when it is newer. With neither the replica waits for its first record, from Adopt or from a peer.
	Record      *EpochRecord
	Replica     ids.ReplicaID   // Raft id, not 0
	Incarnation ids.Incarnation // of the replica's folder

	Log     *commitlog.Log
	Applied ids.Index // last entry that the state machine already contains (its snapshot); Apply begins with the next
	SM      StateMachine

	// Newest names a state snapshot of an entry above after that other replicas can have of this one, and Behind is told that the master offers one
	// because this replica lacks what the group has given up; see Offer. Both are called from the loop goroutine and must not
	// block; Behind comes again and again until the replica was opened anew. Without them nobody catches up so.
	Newest func(after ids.Index) (SnapshotID, bool)
	Behind func(Offer)

	// Send hands envelopes to the transport. It is called from the loop goroutine, never blocks, and owns envs afterwards.
	Send func(to ids.NodeID, envs []peer.Envelope)

	// Written, when not nil, hears how long each write of frames with its sync took. It is called by the writer's goroutine.
	Written func(took time.Duration)

	// Tick is the length of one tick, default 50 ms. ElectionTick (default 6, so 300 ms, randomised up to twice that) is how
	// long a follower waits for its master; HeartbeatTick (default 1) how often a master sends.
	Tick          time.Duration
	ElectionTick  int
	HeartbeatTick int

	// AbandonAfter is how long a proposal may stay undecided before its token is abandoned as unknown. Default 5 s.
	AbandonAfter time.Duration

	// CommitHold is how long a message that only carries the commit index waits for the next frame to carry it. Default 5 ms,
	// negative: not at all.
	CommitHold time.Duration

	// MaxInflightFrames is how many proposed frames may be unapplied at a time. Default 1, which is best on a local network;
	// with real round trips 2 or more pay.
	MaxInflightFrames int

	Limits Limits

	// Clock returns milliseconds since 1970. Default: the wall clock.
	Clock func() int64

	Logger zerolog.Logger // its lines name the group and the replica already
}

// Limits bounds the frame bytes that a replica holds or sends; the Raft library sees only thin entries. One frame is always
// allowed, however large.
type Limits struct {
	Message     int64 // bytes of frames in one message to a follower, default 1 MiB
	Inflight    int64 // bytes sent to one follower and not acknowledged, default 8 MiB; more wait here
	Uncommitted int64 // bytes proposed and not applied, default 16 MiB; no frame is formed above it
	Window      int64 // bytes of frames kept in memory though they are applied and durable, for followers a little behind, default 8 MiB
	Inbox       int64 // bytes of received messages that wait for the loop, default 32 MiB; more are dropped, Raft sends again
	// Cached is how much of the log's end a follower lets the system keep in memory, default 64 MiB: what a consumer that is not far
	// behind reads when the follower becomes master. Most of what a node writes belongs to groups that it follows and is not read there;
	// without this it would drive out what consumers read of the group that the node leads, and each page of it would be a fresh one, which
	// costs a virtual machine more than the write itself.
	Cached int64
}

// EnsureDefaults fills in what is zero.
func (c *Config) EnsureDefaults() {
	def(&c.Tick, 50*time.Millisecond)
	def(&c.ElectionTick, 6)
	def(&c.HeartbeatTick, 1)
	def(&c.AbandonAfter, 5*time.Second)
	def(&c.CommitHold, 5*time.Millisecond)
	def(&c.MaxInflightFrames, 1)
	def(&c.Limits.Message, 1<<20)
	def(&c.Limits.Inflight, 8<<20)
	def(&c.Limits.Uncommitted, 16<<20)
	def(&c.Limits.Window, 8<<20)
	def(&c.Limits.Inbox, 32<<20)
	def(&c.Limits.Cached, 64<<20)
	if c.Clock == nil {
		c.Clock = func() int64 { return time.Now().UnixMilli() }
	}
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Validate reports all that is wrong with c at once.
func (c *Config) Validate() error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf("raftlog: "+format, args...)) }
	if ids.UUID(c.Group).IsZero() {
		bad("Group is not set")
	}
	if c.Replica == 0 || c.Replica > 1<<62 {
		bad("Replica %d is not a replica id", c.Replica)
	}
	if c.Log == nil {
		bad("Log is nil")
	}
	if c.SM == nil {
		bad("SM is nil")
	}
	if c.Send == nil {
		bad("Send is nil")
	}
	if c.Tick <= 0 {
		bad("Tick %v is not positive", c.Tick)
	}
	if c.HeartbeatTick < 1 || c.ElectionTick <= c.HeartbeatTick {
		bad("ElectionTick %d must be above HeartbeatTick %d, and both at least 1", c.ElectionTick, c.HeartbeatTick)
	}
	if c.MaxInflightFrames < 1 || c.MaxInflightFrames > 64 {
		bad("MaxInflightFrames %d: want 1 to 64", c.MaxInflightFrames)
	}
	for _, l := range []struct {
		name  string
		bytes int64
	}{{"Message", c.Limits.Message}, {"Inflight", c.Limits.Inflight}, {"Uncommitted", c.Limits.Uncommitted}, {"Window", c.Limits.Window}, {"Inbox", c.Limits.Inbox}, {"Cached", c.Limits.Cached}} {
		if l.bytes < 1 {
			bad("Limits.%s %d is not positive", l.name, l.bytes)
		}
	}
	return errors.Join(faults...)
}
