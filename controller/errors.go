package controller

import (
	"errors"
	"fmt"
)

// The ways in which a controller refuses. They are matched with errors.Is; the text of the error is one line that names the
// thing and the mend.
var (
	// ErrInvalid: the request makes no sense, now or later.
	ErrInvalid = errors.New("invalid request")
	// ErrNotFound: there is no such group.
	ErrNotFound = errors.New("not found")
	// ErrExists: a group of that name exists with other parameters.
	ErrExists = errors.New("exists already")
	// ErrStale: what the request was meant for has changed meanwhile.
	ErrStale = errors.New("changed meanwhile")
	// ErrNotNow: the request makes sense, but not as things are; the text says what is in the way.
	ErrNotNow = errors.New("not possible now")
	// ErrNodeConflict: the node id is taken by another node or by another process of this node, or the node belongs to another
	// cluster.
	ErrNodeConflict = errors.New("node identity conflict")
	// ErrUnregistered: this process must call RegisterNode (again) before its heartbeats are taken.
	ErrUnregistered = errors.New("node process is not registered")
	// ErrUnavailable: no controller that leads could be reached in time. What was asked may or may not have been done; every
	// call can be repeated safely.
	ErrUnavailable = errors.New("no controller available")
	// ErrAwaitsRecovery: no controller leads, and one waits for a recovery: nodes testify to it.
	ErrAwaitsRecovery = errors.New("a controller waits for a recovery")
	// ErrSecret: the other side did not prove the cluster secret.
	ErrSecret = errors.New("cluster secret refused")

	// ErrClosed is returned by a Server or Client after Close.
	ErrClosed = errors.New("controller: closed")
)

// RefusedError is a refusal by the state machine or by a call's checks.
type RefusedError struct {
	Kind error  // ErrInvalid, ErrNotFound, ErrExists, ErrStale, ErrNotNow, ErrNodeConflict or ErrUnregistered
	Text string // one line: the thing and the mend
}

func (e *RefusedError) Error() string { return e.Text }

// Unwrap returns the kind, for errors.Is.
func (e *RefusedError) Unwrap() error { return e.Kind }

func refuse(kind error, format string, args ...any) error {
	return &RefusedError{Kind: kind, Text: fmt.Sprintf(format, args...)}
}

// DamageError says that the member's file holds something that cannot be what was written. The member does not start; its
// folder is left as it is. With other members alive, start this one again with an empty folder once replacing is supported,
// or restore nothing: an old copy of the file would forget votes.
type DamageError struct {
	File   string
	Place  string // bucket and key
	Reason string
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("controller file %s is damaged at %s: %s", e.File, e.Place, e.Reason)
}

// FolderError says that the data folder is not the one that the options describe.
type FolderError struct {
	Dir    string
	Reason string // with the mend
}

func (e *FolderError) Error() string {
	return fmt.Sprintf("controller data folder %s: %s", e.Dir, e.Reason)
}
