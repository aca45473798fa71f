package commitlog

import (
	"errors"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// Verify reads the log in o.Dir without changing or locking anything, and checks every frame from the front to index to (0:
// to the tail), also those that a start would take on trust of a checkpoint. visit, which may be nil, sees each frame, valid
// during the call; its error ends the work and is returned. Damage is a *DamageError; ErrUnavailable means that the log ends
// before to, ErrOvertaken that its writer cut it meanwhile.
func Verify(o Options, to ids.Index, visit func(Frame) error) error {
	o.ReadOnly = true
	l, err := Open(o)
	if err != nil {
		return err
	}
	defer l.Close(false)
	tail := l.Tail().Index
	if to == 0 {
		to = tail
	}
	if to > tail {
		return ErrUnavailable
	}
	for f, err := range l.Frames(l.FirstIndex()) {
		var c *CorruptionError
		switch {
		case errors.As(err, &c):
			return &DamageError{File: c.File, Offset: c.Offset, Reason: c.Reason}
		case err != nil:
			return err
		case f.Index() > to:
			return nil
		}
		if visit != nil {
			if err := visit(f); err != nil {
				return err
			}
		}
	}
	return nil
}
