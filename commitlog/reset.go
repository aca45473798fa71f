package commitlog

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// Front is where a log begins, with all that its first frame depends on: what a replica needs to continue the log of another one
// from there.
type Front struct {
	Base  ids.PhysicalOffset // of the first segment
	Prev  Tail               // the last frame that was given up; its Offset is 0
	Start TermStart          // of Prev's term
}

// Front returns where the log begins. Prev.Index is 0 while nothing was given up.
func (l *Log) Front() Front {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return Front{Base: l.front.base, Prev: l.front.prev, Start: l.front.start}
}

// Check tells why f cannot be the front of a log with segments of that size.
func (f Front) Check(segmentSize int64) error {
	bad := func(what string, value any) error {
		return fmt.Errorf("commitlog: not the front of a log: %s %v", what, value)
	}
	switch {
	case segmentSize <= 0 || f.Base <= 0 || int64(f.Base)%segmentSize != 0:
		return bad("base", f.Base)
	case f.Prev.Index == 0 || uint64(f.Prev.Index) > uint64(f.Base):
		return bad("index", f.Prev.Index)
	case f.Prev.Offset != 0 || f.Prev.Time < 0:
		return bad("time or offset of the frame before", f.Prev)
	case f.Start.Term != f.Prev.Term || f.Start.StartIndex == 0 || f.Start.StartIndex > f.Prev.Index ||
		f.Start.StartOffset < 0 || f.Start.StartOffset >= f.Base:
		return bad("start of the term", f.Start)
	}
	return nil
}

// Reset gives up everything in the log of o.Dir and makes it an empty one that begins at f, durably. Meta.Owner and Meta.Starts
// stay. The log must not be open. The switch is the first write of meta: a crash before it leaves the old log, one after it the new
// one, which Open then completes.
//
//	meta, both slots: front f, bound at f, mark of a reset ─▶ all segments removed ─▶ an empty one at f ─▶ meta, both slots: no mark
//
// The errors are those of Open; a front that cannot be one changes nothing.
func Reset(o Options, f Front) error {
	o.EnsureDefaults()
	if err := errors.Join(o.Validate(), f.Check(o.SegmentSize)); err != nil {
		return err
	}
	lock, err := o.FS.Lock(filepath.Join(o.Dir, lockName))
	if err != nil {
		return fmt.Errorf("commitlog: reset: %w", err)
	}
	defer lock.Close()
	m, err := loadMeta(&o)
	if err != nil {
		return err
	}
	defer m.f.Close()
	if m.cur.making {
		return fmt.Errorf("%w: the creation of %s was cut short", ErrNotCreated, o.Dir)
	}
	if err := m.keep(); err != nil {
		return fmt.Errorf("commitlog: reset: %w", err)
	}
	rec := m.cur
	rec.front = front{base: f.Base, prev: f.Prev, start: f.Start}
	rec.BoundIndex, rec.BoundOffset, rec.CleanStop = f.Prev.Index, f.Base+segmentHeaderSize, true
	rec.TruncateTo, rec.truncateEnd, rec.batchEnd = 0, 0, 0
	rec.resetting = true
	if err := m.write(rec, true); err != nil {
		return fmt.Errorf("commitlog: reset: %w", err)
	}
	return finishReset(&o, &m)
}

// finishReset completes a Reset whose mark is in meta. It may be repeated.
func finishReset(o *Options, m *metaFile) error {
	fail := func(err error) error { return fmt.Errorf("commitlog: reset: %w", err) }
	names, err := o.FS.List(o.Dir)
	if err != nil {
		return fail(err)
	}
	for _, name := range names {
		for _, suffix := range []string{logSuffix, sidecarSuffix, nextSuffix, spareSuffix} {
			if _, is := parseName(name, suffix); is {
				if err := o.FS.Remove(filepath.Join(o.Dir, name)); err != nil {
					return fail(err)
				}
			}
		}
	}
	if err := o.FS.SyncDir(o.Dir); err != nil {
		return fail(err)
	}
	rec := m.cur
	h := segmentHeader{cluster: rec.cluster, group: rec.group, segmentSize: rec.segmentSize, base: rec.front.base,
		generation: rec.Starts << 32, seed: rec.front.prev.Chain}
	if err := vfs.WriteFileAtomic(o.FS, filepath.Join(o.Dir, segmentName(h.base, logSuffix)), h.encode()); err != nil {
		return fail(err)
	}
	rec.resetting = false
	if err := m.write(rec, true); err != nil {
		return fail(err)
	}
	return nil
}
