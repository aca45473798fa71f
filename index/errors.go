package index

import (
	"errors"
	"fmt"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// ErrClosed is returned by every method after Close.
var ErrClosed = errors.New("the index is closed")

// CorruptionError tells that a file of the index is damaged. The index has given the file up: Covered and Missing tell what
// must be read again from the log, and the answers are the same afterwards.
type CorruptionError struct {
	File string
	Page int64 // the damaged page; 0 when the file as a whole is meant
	Err  error
}

func (e *CorruptionError) Error() string {
	return fmt.Sprintf("queue index %s, page %d: %v", e.File, e.Page, e.Err)
}

func (e *CorruptionError) Unwrap() error { return e.Err }

// DensityError is returned by Add for an entry that does not follow the one before it in its queue, and by Checkpoint when
// two files contradict each other. The log and the index are not of one life: the index must be deleted.
type DensityError struct {
	Key        Key
	Want, Have ids.QueueOffset
}

func (e *DensityError) Error() string {
	return fmt.Sprintf("queue %v: an entry for offset %d, but the next one is %d", e.Key, e.Have, e.Want)
}
