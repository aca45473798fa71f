package commitlog

import (
	"bytes"
	"errors"
	"os"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// TruncateAfter removes all frames after index i, durably: when nil is returned they can never come back. It works in this
// order, and Open goes on wherever a crash stopped it:
//
//	meta, both slots: bound lowered, TruncateTo set ─▶ later segments removed, zeros over the rest ─▶ sync ─▶ meta, both slots: TruncateTo 0
//
// An i at or above the tail changes nothing. It returns ErrCompacted when i itself was given up by a front cut.
func (l *Log) TruncateAfter(i ids.Index) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if err := l.writable(); err != nil {
		return err
	}
	if i >= l.tail.Index {
		return nil
	}
	if i < l.front.prev.Index || i == l.front.prev.Index && l.front.base > 0 {
		return ErrCompacted
	}
	if err := l.settle(); err != nil {
		return err
	}
	if l.synced.Index < l.tail.Index { // what stays must be whole, and its segment have its name, when a crash comes
		if err := l.sync(); err != nil {
			return err
		}
	}
	t := l.front.prev
	t.Offset = segmentHeaderSize
	if i > 0 {
		var err error
		if t, _, err = l.tailOf(i); err != nil {
			return err
		}
	}
	l.nextMu.Lock() // or a segment that the filler prepares meanwhile would lose its name
	defer l.nextMu.Unlock()
	seg, removed, erase := l.cutTail(t)
	if err := l.updateMeta(true, func(m *metaRecord) { m.TruncateTo, m.truncateEnd = t.Offset, erase }); err != nil {
		return err
	}
	for _, s := range removed {
		s.release()
		if err := l.removeSegment(s.base()); err != nil {
			return l.poisoned("truncation", err)
		}
	}
	if seg.sidecar > i {
		if err := l.remove(l.segmentPath(seg.base(), sidecarSuffix)); err != nil {
			return l.poisoned("truncation", err)
		}
		seg.sidecar = 0
	}
	from, to := int64(t.Offset-seg.base()), int64(erase-seg.base())
	seg.fill.claim(to)
	seg.dirty, l.dirDirty = true, true
	for at := from; at < to; at += int64(len(zeros)) {
		if _, err := seg.file.WriteAt(zeros[:min(to-at, int64(len(zeros)))], at); err != nil {
			return l.poisoned("truncation", err)
		}
	}
	if err := l.sync(); err != nil {
		return err
	}
	return l.updateMeta(true, func(m *metaRecord) { m.TruncateTo, m.truncateEnd = 0, 0 })
}

// cutTail makes t the tail in memory, before a byte on the disk changes, so that no reader takes the change for damage. It
// returns the segment that holds t, those after it, and the end of what was written in the former.
func (l *Log) cutTail(t Tail) (seg *segment, removed []*segment, erase ids.PhysicalOffset) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := int((t.Offset-l.front.base)/ids.PhysicalOffset(l.o.SegmentSize)) + 1
	removed = append(removed, l.segs[n:]...)
	l.segs = l.segs[:n:n]
	if l.next != nil && len(removed) > 0 {
		removed = append(removed, l.next)
		l.next = nil
	}
	seg = l.segs[n-1]
	erase = seg.base() + ids.PhysicalOffset(seg.end)
	if len(removed) > 0 {
		erase += padSize
	}
	seg.last, seg.end = t.Index, int64(t.Offset-seg.base())
	if t.Index < seg.first {
		seg.sparse = nil
	} else {
		seg.sparse = seg.sparse[:len(seg.sparse):len(seg.sparse)]
		seg.sparse.cut(uint32(t.Index - seg.first))
	}
	for n := len(l.epochs); n > 0 && l.epochs[n-1].StartIndex > t.Index; n-- {
		l.epochs = l.epochs[: n-1 : n-1]
	}
	l.recent.cut(t.Index)
	l.tail = t
	if l.synced.Index > t.Index {
		l.synced = t
	}
	l.cuts.Add(1)
	return seg, removed, erase
}

// removeSegment removes the files of a segment, under whichever name.
func (l *Log) removeSegment(base ids.PhysicalOffset) error {
	return errors.Join(l.remove(l.segmentPath(base, sidecarSuffix)), l.remove(l.segmentPath(base, nextSuffix)), l.remove(l.segmentPath(base, logSuffix)))
}

// remove is FS.Remove that does not mind an absent file.
func (l *Log) remove(path string) error {
	err := l.o.FS.Remove(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// erase writes zeros over what is not zero in [from, to) of seg, as far as the file goes.
func (l *Log) erase(seg *segment, from, to int64) error {
	size, err := seg.file.Size()
	if err != nil {
		return err
	}
	to = min(to, size)
	buf := make([]byte, min(windowSize, max(to-from, 0)))
	for at := from; at < to; at += int64(len(buf)) {
		n, err := readFull(seg.file, buf[:min(int64(len(buf)), to-at)], at)
		if err != nil {
			return err
		}
		if bytes.Equal(buf[:n], zeros[:n]) {
			continue
		}
		if _, err := seg.file.WriteAt(zeros[:n], at); err != nil {
			return err
		}
	}
	return nil
}
