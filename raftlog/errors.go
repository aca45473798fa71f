package raftlog

import (
	"errors"
	"fmt"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// Errors of the calls on a Group. All of them leave the group as it is.
var (
	// ErrClosed is returned after Close, and by a ReadIndex that Close cut off.
	ErrClosed = errors.New("raftlog: the group is closed")

	// ErrStaleEpoch is returned by Adopt for a record of a lower epoch than the one in force.
	ErrStaleEpoch = errors.New("raftlog: the record is of an older epoch")

	// ErrEpochConflict is returned by Adopt for a record of the epoch in force with another hash. One of the two was not
	// issued by this cluster's controller: an operator must look.
	ErrEpochConflict = errors.New("raftlog: another record of the same epoch is in force")

	// ErrTransfer is wrapped by the error of a hand-over of the mastership that did not come about: nobody took it in time, or the
	// one that was to is not a voter.
	ErrTransfer = errors.New("raftlog: the mastership was not handed over")

	// ErrForeignRecord is returned by Adopt for a record of another cluster or group.
	ErrForeignRecord = errors.New("raftlog: the record is of another group")
)

// NotMasterError is returned by ReadIndex and given by Transfer on a replica that is not master, or that stopped to be one meanwhile.
type NotMasterError struct {
	Master ids.ReplicaID // the master this replica knows, 0 when none
	Term   ids.Term      // the term this replica is in
}

func (e *NotMasterError) Error() string {
	if e.Master == 0 {
		return fmt.Sprintf("raftlog: not master, none is known in term %s", e.Term)
	}
	return fmt.Sprintf("raftlog: not master, replica %d is in term %s", e.Master, e.Term)
}

// IdentityError is returned by Start when the log belongs to another replica or another incarnation than the caller says.
type IdentityError struct{ Reason string }

func (e *IdentityError) Error() string { return "raftlog: " + e.Reason }

// ParkedError tells why a replica neither votes, acknowledges nor leads. Calls on it return it, Status carries its parts.
type ParkedError struct {
	Reason string // one line for an operator
	Err    error  // what happened below, may be nil
	Lost   bool   // the identity is lost for ever: this replica acknowledged what it no longer has
}

func (e *ParkedError) Error() string {
	if e.Err == nil {
		return "raftlog: parked: " + e.Reason
	}
	return fmt.Sprintf("raftlog: parked: %s: %v", e.Reason, e.Err)
}

func (e *ParkedError) Unwrap() error { return e.Err }
