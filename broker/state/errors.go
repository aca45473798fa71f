package state

import (
	"errors"
	"fmt"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// ErrNoSnapshot is returned by LoadNewest when no generation can be used. It is no fault while the log reaches back to
// its start; after the first front cut the replica must not start empty.
var ErrNoSnapshot = errors.New("no usable state snapshot")

// UnknownCommandError is returned by Apply for a record of a type, version or flag that this program does not know. The
// replica stops: to skip it would make it differ from the others without a sign. The mend is a newer program.
type UnknownCommandError struct {
	Type, Version uint8
	Flags         uint16
	Offset        ids.PhysicalOffset
}

func (e *UnknownCommandError) Error() string {
	return fmt.Sprintf("the record at %d has type %d, version %d, flags %#x, which this program does not know: a newer one is needed",
		e.Offset, e.Type, e.Version, e.Flags)
}

// CommandError is returned by Apply for a record whose body does not follow the format of its type.
type CommandError struct {
	Type   uint8
	Offset ids.PhysicalOffset
	Err    error
}

func (e *CommandError) Error() string {
	return fmt.Sprintf("the command of type %d at %d cannot be applied: %v", e.Type, e.Offset, e.Err)
}

func (e *CommandError) Unwrap() error { return e.Err }

// DensityError is returned by Apply for a message whose queue offset is not the next one of its queue.
type DensityError struct {
	Key        index.Key
	Want, Have ids.QueueOffset
	Offset     ids.PhysicalOffset
}

func (e *DensityError) Error() string {
	return fmt.Sprintf("the message at %d has offset %d in queue %v, but the next one is %d", e.Offset, e.Have, e.Key, e.Want)
}

// SnapshotError is returned by Load and by LoadNewest for bytes that are no snapshot of this program.
type SnapshotError struct {
	File string // empty in Load
	Err  error
}

func (e *SnapshotError) Error() string {
	if e.File == "" {
		return fmt.Sprintf("state snapshot: %v", e.Err)
	}
	return fmt.Sprintf("state snapshot %s: %v", e.File, e.Err)
}

func (e *SnapshotError) Unwrap() error { return e.Err }
