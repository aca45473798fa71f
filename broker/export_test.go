package broker

import (
	"errors"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/timer"
)

// TryCommand proposes a command that does nothing and returns whether it was stored, once that is known.
func (r *Replica) TryCommand() bool {
	_, o := r.await(state.RecordTopicDelete, state.AppendTopicDelete(nil, "no-such-topic"))
	return o == outcomeOK
}

// PendingCommits is the number of consumer offsets that wait in memory.
func (r *Replica) PendingCommits() int {
	r.commits.mu.Lock()
	defer r.commits.mu.Unlock()
	return len(r.commits.pending)
}

// Frames is the number of frames that this replica formed.
func (r *Replica) Frames() int64 { return r.counters.frames.Load() }

// Waiting is how many proposals wait for a frame.
func (r *Replica) Waiting() int {
	n, _ := r.inbox.waiting()
	return n
}

// Successor chooses who takes over.
var Successor = successor

// CatchingUp tells whether the log of this replica does not reach its state yet.
func (r *Replica) CatchingUp() bool { return r.catchingUp() }

// Repairs is how many damages of the group's replica were repaired, and what a repair under way fetches.
func (n *Node) Repairs(group string) (repairs int64) {
	for _, h := range n.hostedList() {
		if h.file.Group == group {
			repairs += h.repairs
		}
	}
	return repairs
}

// ReadLast reads the last frame of the group's replica, as it does for a follower that lacks it.
func (n *Node) ReadLast(group string) error {
	for _, h := range n.hostedList() {
		if h.file.Group == group && h.r != nil {
			_, err := h.r.clog.ReadFrame(h.r.clog.Tail().Index, nil)
			return err
		}
	}
	return errors.New("it is not open")
}

// Unknown makes the node not know the open replica of the group, as while that one is being opened, until known is called.
func (n *Node) Unknown(group string) (known func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range n.replicas {
		if h.file.Group == group && h.r != nil {
			r := h.r
			h.r, h.opening = nil, true
			return func() {
				n.mu.Lock()
				defer n.mu.Unlock()
				h.r, h.opening = r, false
			}
		}
	}
	panic("it is not open")
}

// Unrepairable makes a repair of the group's replica fail before it begins.
func (n *Node) Unrepairable(group string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range n.replicas {
		if h.file.Group == group {
			h.file.Cluster = "none"
		}
	}
}

// Survey makes n requests that read of many queues count as under way.
func (r *Replica) Survey(n int32) { r.surveys.Add(n) }

// MaxSurveys is how many there may be at once.
const MaxSurveys = maxSurveys

// Held is how many pulls wait.
func (r *Replica) Held() int { return r.holds.count() }

// StateHash is the hash of what is applied.
func (r *Replica) StateHash() [32]byte { return r.st.Hash() }

// BreakTimers is what the finder of a damaged page of the timer index does.
func (r *Replica) BreakTimers() {
	r.timersBroken(&timer.CorruptionError{File: "x", Err: errors.New("a page is damaged")})
}
