package commitlog

import (
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// fillStep is the unit of zero-filling: a writer that runs into the filler waits for one step.
func (o *Options) fillStep() int64 { return min(1<<20, o.SegmentSize/16) }

// FillAhead writes and syncs one step of at most 1 MiB of zeros ahead of the writer, in the active segment or in a prepared
// next one; more tells that it should be called again now. A background loop of the caller's calls it, one at a time: after
// Append, and until more is false. A failed write is returned and harms nothing; a failed sync poisons the log, since it
// may be the writer's bytes that were lost.
func (l *Log) FillAhead() (more bool, err error) {
	if l.o.FillAhead < 0 || l.o.ReadOnly {
		return false, nil
	}
	if err := l.Poisoned(); err != nil {
		return false, err
	}
	l.mu.RLock()
	if l.gone {
		l.mu.RUnlock()
		return false, ErrClosed
	}
	seg, next := l.segs[len(l.segs)-1], l.next
	end := seg.end
	seg.hold()
	if next != nil {
		next.hold()
	}
	l.mu.RUnlock()
	defer seg.release()
	if next != nil {
		defer next.release()
	}

	target := end + l.o.FillAhead
	did, err := l.fillStep(seg, end, min(target, l.o.SegmentSize))
	if did || err != nil || target <= l.o.SegmentSize {
		return did, err
	}
	if next == nil {
		return l.prepare(seg)
	}
	return l.fillStep(next, segmentHeaderSize, min(target-l.o.SegmentSize, l.o.SegmentSize))
}

// fillStep writes zeros into seg, whose writer is at end, when less than target is filled.
func (l *Log) fillStep(seg *segment, end, target int64) (bool, error) {
	f, step := &seg.fill, l.o.fillStep()
	f.mu.Lock()
	from := f.done
	if from > segmentHeaderSize && from-end < step && end > segmentHeaderSize {
		// The writer is at our heels: leave it room, so that it need not wait for this step.
		from = (end + 2*step - 1) / step * step
	}
	if f.busy || from >= target {
		f.mu.Unlock()
		return false, nil
	}
	f.busy, f.from, f.to = true, from, min((from/step+1)*step, l.o.SegmentSize)
	f.mu.Unlock()

	_, err := seg.file.WriteAt(zeros[:f.to-from], from)
	if err == nil {
		if err = seg.file.SyncData(); err != nil {
			err = l.poisoned(opSync, err)
		}
	}

	f.mu.Lock()
	f.busy = false
	if err == nil {
		f.done = max(f.done, f.to)
	}
	f.free.Broadcast()
	f.mu.Unlock()
	return err == nil, err
}

// prepare makes the file of the segment after seg, under a name that recovery does not take for a segment.
func (l *Log) prepare(seg *segment) (bool, error) {
	l.nextMu.Lock()
	defer l.nextMu.Unlock()
	l.mu.RLock()
	stale := l.gone || l.segs[len(l.segs)-1] != seg || l.next != nil // the writer went on meanwhile
	l.mu.RUnlock()
	if stale {
		return true, nil
	}
	base := seg.base() + ids.PhysicalOffset(l.o.SegmentSize)
	file, recycled, err := l.newFile(base, nextSuffix)
	if err != nil {
		return false, err
	}
	s := newSegment(segmentHeader{base: base, recycled: recycled}, l.segmentPath(base, nextSuffix), file)
	if recycled {
		s.fill.done = l.o.SegmentSize
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		s.release()
		return false, ErrClosed
	}
	l.next = s
	return true, nil
}

// newFile makes the file of a segment, of a spare one when there is one.
func (l *Log) newFile(base ids.PhysicalOffset, suffix string) (f vfs.File, recycled bool, err error) {
	path := l.segmentPath(base, suffix)
	l.mu.Lock()
	var spare string
	if n := len(l.spares); n > 0 {
		spare, l.spares = l.spares[n-1], l.spares[:n-1]
	}
	l.mu.Unlock()
	if spare == "" {
		f, err = l.o.FS.Create(path)
		return f, false, err
	}
	if err := l.o.FS.Rename(spare, path); err != nil {
		return nil, false, err
	}
	// The name that the file had must be gone for good before it is used: else a power cut could bring it back with frames of
	// a batch in it that are taken for valid when the file is used again.
	if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
		return nil, false, l.poisoned(opSync, err)
	}
	f, err = l.o.FS.OpenReadWrite(path)
	return f, true, err
}

// roll starts the segment at base, behind t; wmu is held. Its header is written, not synced.
func (l *Log) roll(base ids.PhysicalOffset, t Tail) (*segment, error) {
	path := l.segmentPath(base, logSuffix)
	l.nextMu.Lock()
	defer l.nextMu.Unlock()
	l.mu.Lock()
	s := l.next
	l.next = nil
	l.mu.Unlock()
	if s != nil {
		if err := l.o.FS.Rename(s.path, path); err != nil {
			s.release()
			return nil, err
		}
	} else {
		file, recycled, err := l.newFile(base, logSuffix)
		if err != nil {
			return nil, err
		}
		s = newSegment(segmentHeader{recycled: recycled}, path, file)
		if recycled {
			s.fill.done = l.o.SegmentSize
		}
	}
	l.dirDirty = true
	l.made++
	s.path = path
	s.header = segmentHeader{
		cluster: l.o.Cluster, group: l.o.Group, segmentSize: l.o.SegmentSize, base: base, seed: t.Chain,
		generation: l.starts<<32 | uint64(l.made), recycled: s.header.recycled,
	}
	s.first, s.last, s.dirty = t.Index+1, t.Index, true
	if _, err := s.file.WriteAt(s.header.encode(), 0); err != nil {
		s.release()
		return nil, err
	}
	return s, nil
}
