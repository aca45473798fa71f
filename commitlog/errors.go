package commitlog

import (
	"errors"
	"fmt"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// Expected answers of a log.
var (
	// ErrCompacted is returned for an index or offset that a front cut gave up.
	ErrCompacted = errors.New("commitlog: below the front of the log")
	// ErrUnavailable is returned for an index or offset above the tail.
	ErrUnavailable = errors.New("commitlog: above the tail of the log")
	// ErrClosed is returned by everything after Close.
	ErrClosed = errors.New("commitlog: closed")
	// ErrReadOnly is returned by a change of a log that was opened with Options.ReadOnly.
	ErrReadOnly = errors.New("commitlog: opened read-only")
	// ErrOvertaken is returned by reads of a log that was opened with Options.ReadOnly when the bytes are not what they were
	// and another process has changed the log since, by a cut for instance. Open it again.
	ErrOvertaken = errors.New("commitlog: changed by another process since it was opened")
)

// Answers of Open and Create.
var (
	// ErrExists is returned by Create when the folder holds a log.
	ErrExists = errors.New("commitlog: a log exists here")
	// ErrNotCreated is returned by Open when the folder holds no log, or one whose Create was cut short: Create may run again.
	ErrNotCreated = errors.New("commitlog: no log here")
	// ErrMetaLost is returned when segments exist and neither slot of the meta file can be read: the identity is lost.
	ErrMetaLost = errors.New("commitlog: the meta file is lost")
)

// ErrChain is returned by Append, before anything is written, when a frame does not follow the one before it.
var ErrChain = errors.New("commitlog: frame does not chain on to the tail")

// CorruptionError tells that bytes which should be a frame are none, or cannot be read.
type CorruptionError struct {
	File   string             // "" when the bytes did not come from a file
	Offset ids.PhysicalOffset // where the frame starts, or claims to; -1 when unknown
	Reason string
	Err    error // of the read that failed; nil when the bytes were read
}

func (e *CorruptionError) Error() string {
	if e.File == "" {
		return fmt.Sprintf("commitlog: bad frame at offset %d: %s", e.Offset, e.Reason)
	}
	return fmt.Sprintf("commitlog: bad frame at offset %d (%s): %s", e.Offset, e.File, e.Reason)
}
func (e *CorruptionError) Unwrap() error { return e.Err }

// DamageError is returned by Open when the log lacks, or cannot prove, something that was durable once. The replica parks and
// waits for repair; nothing that could help the repair was changed.
type DamageError struct {
	File   string
	Offset ids.PhysicalOffset
	Reason string
	Lost   bool // nothing is where the frames end, nor behind: the log ends below its durable bound
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("commitlog: damage at offset %d (%s): %s", e.Offset, e.File, e.Reason)
}

// LostTailError is returned by Open of a log with Options.Async that was not stopped cleanly and last opened in another boot of the
// machine: what was acknowledged and not synced may be gone, and nothing here tells. Nothing was changed, so that each Open says so.
type LostTailError struct {
	Dir        string
	Before, At string // the boots; "" when not known
}

func (e *LostTailError) Error() string {
	known := func(boot string) string {
		if boot == "" {
			return "an unknown one"
		}
		return boot
	}
	return fmt.Sprintf("commitlog: %s flushes asynchronously, was not stopped cleanly in boot %s of its machine, and this is %s: what it acknowledged last may be lost",
		e.Dir, known(e.Before), known(e.At))
}

// IdentityLost tells whether an error of Open means that the log cannot prove that it holds all that was acknowledged from it: no
// repair can make that good, since nobody knows what is missing.
func IdentityLost(err error) bool {
	var tail *LostTailError
	var damage *DamageError
	return errors.Is(err, ErrMetaLost) || errors.As(err, &tail) || errors.As(err, &damage) && damage.Lost
}

// IdentityError is returned by Open when the files belong to another cluster, group, format version or segment size.
type IdentityError struct {
	File       string
	Field      string // cluster, group, version, segment size
	Want, Have string
}

func (e *IdentityError) Error() string {
	return fmt.Sprintf("commitlog: %s has %s %s, want %s", e.File, e.Field, e.Have, e.Want)
}

// PoisonedError wraps the first failed write, sync, read or checksum of a log. After it every change fails at once; reads
// go on. Nothing is retried: after a failed sync the kernel may hold pages as clean that the disk never got.
type PoisonedError struct {
	Op  string // write, sync, read, meta, …
	Err error
}

func (e *PoisonedError) Error() string {
	return "commitlog: poisoned by a failed " + e.Op + ": " + e.Err.Error()
}
func (e *PoisonedError) Unwrap() error { return e.Err }

const (
	opSync = "sync"
	opRead = "read"
)
