package commitlog

import (
	"fmt"
	"sort"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// CutFront gives up the whole segments below base. What replaces them in memory and in meta is the front: the term, chain and
// time of the frame before. The files are kept as spare segments, up to Options.KeepSpare of them that nobody reads, or
// removed. The segment of the last synced frame is never given up; a base beyond it is an error.
func (l *Log) CutFront(base ids.PhysicalOffset) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if err := l.writable(); err != nil {
		return err
	}
	base = l.o.base(base)
	if base <= l.front.base {
		return nil
	}
	if err := l.settle(); err != nil {
		return err
	}
	if l.synced.Offset <= base+segmentHeaderSize {
		return fmt.Errorf("commitlog: cut to %d: nothing at or above it is synced", base)
	}
	n := int((base - l.front.base) / ids.PhysicalOffset(l.o.SegmentSize))
	prev, _, err := l.tailOf(l.segs[n-1].last)
	if err != nil {
		return err
	}
	at := sort.Search(len(l.epochs), func(i int) bool { return l.epochs[i].StartIndex > prev.Index }) - 1
	prev.Offset = 0
	fr := front{base: base, prev: prev, start: l.epochs[at]}
	if err := l.updateMeta(true, func(m *metaRecord) { m.front = fr }); err != nil {
		return err
	}

	l.mu.Lock()
	removed := append([]*segment(nil), l.segs[:n]...)
	l.segs = append([]*segment(nil), l.segs[n:]...)
	l.epochs = append([]TermStart(nil), l.epochs[at:]...)
	l.front = fr
	if l.recent.refs != nil {
		l.recent.first = max(l.recent.first, prev.Index+1)
	}
	l.cuts.Add(1)
	l.mu.Unlock()

	for _, s := range removed {
		// A file that somebody reads is not used again: raw reads are not verified.
		alone := s.refs.CompareAndSwap(1, 0)
		if err := l.giveUp(s, alone); err != nil {
			return l.poisoned("front cut", err)
		}
		if alone {
			s.file.Close()
		} else {
			s.release()
		}
	}
	if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
		return l.poisoned(opSync, err)
	}
	return nil
}

// giveUp removes the names of a cut segment, or makes it a spare one.
func (l *Log) giveUp(s *segment, mayKeep bool) error {
	if err := l.remove(l.segmentPath(s.base(), sidecarSuffix)); err != nil {
		return err
	}
	l.mu.RLock()
	keep := mayKeep && len(l.spares) < l.o.KeepSpare
	l.mu.RUnlock()
	if !keep {
		return l.remove(s.path)
	}
	spare := l.segmentPath(s.base(), spareSuffix)
	if err := l.o.FS.Rename(s.path, spare); err != nil {
		return err
	}
	l.mu.Lock()
	l.spares = append(l.spares, spare)
	l.mu.Unlock()
	return nil
}
