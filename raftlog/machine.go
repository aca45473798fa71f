package raftlog

import (
	"fmt"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// StateMachine is what a group replicates for. All methods are called from the group's one loop goroutine and must not block
// on the group: no call of ReadIndex or Close from inside.
type StateMachine interface {
	// Form is called on a master when a frame may be proposed. It appends all that waits to b and returns a token that stands
	// for the answers it owes. It returns nil and leaves b empty when nothing waits.
	Form(b *commitlog.Builder) (token any)

	// Apply is called for each committed entry, in order, once per process life, from Config.Applied+1 on. An error means
	// that this replica cannot go on (an unknown command): it parks.
	Apply(c Committed) error

	// Acked tells that all entries up to this index are applied here and durable on K = min(A, voters) voters: the answer of
	// each token up to it is OK. Only a master calls it; where K is not more than a majority it follows Apply at once.
	Acked(upTo ids.Index)

	// Abandon settles a token that Acked will never cover. It may come before Apply of the token's entry (then Apply has no
	// token), or after it (applied, but not known on K voters).
	Abandon(token any, stored Outcome)

	// Role tells a change of role. RoleMaster comes when the empty entry of the master's own term is applied: from then on
	// Form may be called.
	Role(r Role)

	// Flush is called at the end of each turn of the loop, after messages to the peers have left: send answers, wake readers.
	Flush()
}

// Committed is one committed entry.
type Committed struct {
	Index ids.Index
	Term  ids.Term
	Time  int64           // milliseconds since 1970, of the frame; 0 in an empty one
	Frame commitlog.Frame // valid only during the call; use Clone of bytes to keep
	Token any             // of Form, when this process life proposed the entry and has not abandoned it; else nil
}

// Outcome tells what is known about an abandoned token.
type Outcome uint8

const (
	// NotStored: the frame is not in the log and never will be.
	NotStored Outcome = iota + 1
	// Unknown: the frame may or may not be stored in the end.
	Unknown
)

func (o Outcome) String() string {
	switch o {
	case NotStored:
		return "not stored"
	case Unknown:
		return "unknown"
	}
	return fmt.Sprintf("Outcome(%d)", uint8(o))
}

// RoleKind is what a replica does in its group.
type RoleKind uint8

const (
	RoleFollower RoleKind = iota // follows, campaigns, or leads without having applied its own empty entry yet
	RoleMaster                   // leads, and has applied the empty entry of its term
	RoleParked                   // neither votes, acknowledges nor leads; Status.Parked tells why
)

func (k RoleKind) String() string {
	switch k {
	case RoleFollower:
		return "follower"
	case RoleMaster:
		return "master"
	case RoleParked:
		return "parked"
	}
	return fmt.Sprintf("RoleKind(%d)", uint8(k))
}

// Role is a role with the term it holds in.
type Role struct {
	Kind   RoleKind
	Term   ids.Term
	Master ids.ReplicaID // the master this replica knows, 0 when none
	Node   ids.NodeID    // where that one is
	Handed bool          // this replica leads because the master before it handed the mastership over
}
