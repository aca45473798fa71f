package commitlog

import (
	"fmt"

	"github.com/ledgermq/ledgermq/internal/ids"
)

var zeros [1 << 20]byte

// Append writes frames behind the tail, with one vectored write per segment. They are durable after the next Sync; readers see
// them when Append returns. The frames must be whole and checked, and chain on to the tail: else ErrChain, and nothing was
// written. Any other error poisons the log.
//
// One frame behind a synced tail is one write. More than that, of frames or with a new segment, is a batch: a power cut before
// Sync may keep any part of it, so Append first notes durably in meta how far it reaches, and Sync takes that back. That costs
// two more syncs. Else one write of meta in 64 MiB keeps the durable bound near.
func (l *Log) Append(frames []Frame) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if err := l.writable(); err != nil {
		return err
	}
	t := l.tail // only the writer changes it
	synced, _ := l.Synced()
	writes := int(t.Index - synced)
	for _, f := range frames {
		if err := l.follows(t, f); err != nil {
			return err
		}
		if writes++; f.Offset() != t.Offset {
			writes++ // the pad marker and the header of a segment
		}
		t = t.After(f)
	}
	var err error
	switch {
	case writes > 1:
		err = l.markBatch(t.Offset)
	case t.Offset > ids.PhysicalOffset(l.bound.Load())+l.o.maxBehind():
		err = l.updateMeta(false, func(*metaRecord) {})
	}
	if err != nil {
		return err
	}
	var added []*segment
	seg, t := l.segs[len(l.segs)-1], l.tail
	bufs, from := l.bufs[:0], t.Offset
	flush := func() error {
		if len(bufs) == 0 {
			return nil
		}
		end := int64(from - seg.base())
		start := end
		for _, b := range bufs {
			end += int64(len(b))
		}
		seg.fill.claim(end)
		seg.dirty = true
		err := seg.file.WritevAt(bufs, start)
		clear(bufs)
		bufs = bufs[:0]
		return err
	}
	for _, f := range frames {
		if f.Offset() != t.Offset {
			putPad(l.pad[:], t.Offset, t.Chain)
			bufs = append(bufs, l.pad[:])
			err := flush()
			if err == nil {
				seg, err = l.roll(f.Offset()-segmentHeaderSize, t)
			}
			if err != nil {
				l.drop(added)
				return l.poisoned("write", err)
			}
			added = append(added, seg)
			from = f.Offset()
		}
		bufs = append(bufs, f)
		t = t.After(f)
	}
	err = flush()
	l.bufs = bufs[:0]
	if err != nil {
		l.drop(added)
		return l.poisoned("write", err)
	}
	l.publish(frames, added)
	return nil
}

// markBatch notes that all from the durable bound to end may be written in part only; wmu is held.
//
// Invariant: while more than one write is not synced, the newest slot of meta has the bound before the first of them and batchEnd
// at or behind the last one. Nothing behind that bound was reported as synced.
func (l *Log) markBatch(end ids.PhysicalOffset) error {
	if end <= l.batchEnd {
		return nil
	}
	end += l.o.window()
	if err := l.updateMeta(false, func(m *metaRecord) { m.batchEnd = end }); err != nil {
		return err
	}
	l.batchEnd = end
	return nil
}

// maxBehind bounds how far behind the durable bound a frame may end that is written: so much a start may have to read, search and
// write again.
func (o *Options) maxBehind() ids.PhysicalOffset {
	if o.maxFrame() < MaxFrame { // small segments
		return ids.PhysicalOffset(o.SegmentSize / 2)
	}
	return 64 << 20
}

// follows checks that f is the frame after t.
func (l *Log) follows(t Tail, f Frame) error {
	if len(f) < headerSize || len(f) > l.o.maxFrame() || len(f)%align != 0 {
		return fmt.Errorf("%w: %d bytes are no frame", ErrChain, len(f))
	}
	if f.Index() != t.Index+1 || f.PrevChain() != t.Chain || f.Term() < t.Term || !l.o.placed(t.Offset, f) {
		return fmt.Errorf("%w: index %d, term %v, offset %d, previous chain %08x after index %d, term %v, end %d, chain %08x",
			ErrChain, f.Index(), f.Term(), f.Offset(), f.PrevChain(), t.Index, t.Term, t.Offset, t.Chain)
	}
	return nil
}

// drop closes segments that were not published; wmu is held.
func (l *Log) drop(added []*segment) {
	for _, s := range added {
		s.release()
	}
}

// publish shows frames that were written to the readers.
func (l *Log) publish(frames []Frame, added []*segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range frames {
		seg := l.segs[len(l.segs)-1]
		if f.Offset() >= seg.base()+ids.PhysicalOffset(l.o.SegmentSize) {
			seg, added = added[0], added[1:]
			l.segs = append(l.segs, seg)
		}
		l.note(seg, f.Term(), f.Index(), f.Ref())
		l.tail = l.tail.After(f)
	}
}

// note enters one frame into the tables; mu is held, or the log is not shared yet.
func (l *Log) note(seg *segment, term ids.Term, index ids.Index, ref Ref) {
	pos := int64(ref.Offset - seg.base())
	seg.sparse.add(uint32(index-seg.first), pos)
	seg.last = index
	seg.end = pos + aligned(int64(ref.Size))
	if n := len(l.epochs); n == 0 || l.epochs[n-1].Term != term {
		l.epochs = append(l.epochs, TermStart{Term: term, StartIndex: index, StartOffset: ref.Offset})
	}
	l.recent.put(index, ref)
}

// window is how far ahead of the writer a batch is marked: with Options.Async nearly every append is a part of one, and shall not wait
// for a mark of its own.
func (o *Options) window() ids.PhysicalOffset {
	if o.Async {
		return o.maxBehind()
	}
	return 0
}

// Sync makes durable what Append wrote: the segments that it touched, the directory when a segment was added, and the durable
// bound when it was a batch. When it fails the log is poisoned and the sync never repeated.
func (l *Log) Sync() error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if err := l.writable(); err != nil {
		return err
	}
	return l.sync()
}

// SyncBehind makes durable what was written when it is called, like Sync, while Append goes on. A background loop of the caller's
// calls it, one at a time, on a log with Options.Async.
func (l *Log) SyncBehind() error {
	l.wmu.Lock()
	if err := l.writable(); err != nil {
		l.wmu.Unlock()
		return err
	}
	t := l.tail
	if synced, _ := l.Synced(); synced == t.Index {
		l.wmu.Unlock()
		return nil
	}
	var segs []*segment
	for _, s := range l.segs {
		if s.dirty {
			s.dirty = false
			s.hold() // the list does not change while wmu is held
			segs = append(segs, s)
		}
	}
	dir := l.dirDirty
	l.dirDirty = false
	done := make(chan struct{})
	l.behind = done
	l.wmu.Unlock()
	defer close(done)

	var err error
	for _, s := range segs {
		if err == nil {
			err = s.file.SyncData()
		}
		s.release()
	}
	if err == nil && dir {
		err = l.o.FS.SyncDir(l.o.Dir)
	}
	if err != nil {
		return l.poisoned(opSync, err)
	}
	l.mu.Lock()
	l.synced = t // nothing is cut while this runs: see settle
	l.mu.Unlock()
	return nil
}

// settle waits for a SyncBehind that runs; wmu is held, so that no other one begins.
func (l *Log) settle() error {
	if l.behind != nil {
		<-l.behind
		l.behind = nil
	}
	return l.Poisoned()
}

func (l *Log) sync() error {
	if err := l.settle(); err != nil {
		return err
	}
	if err := l.syncWritten(); err != nil {
		return err
	}
	if l.batchEnd == 0 || l.o.Async { // the mark of a log that is synced later stays: the next batch begins at once
		return nil
	}
	// The mark goes before anybody hears that the batch is durable: from then on a bad frame in it is damage.
	l.batchEnd = 0
	return l.updateMeta(false, func(*metaRecord) {})
}

// syncWritten makes durable all that was written; wmu is held, and no SyncBehind runs.
func (l *Log) syncWritten() error {
	// Segments are synced from the front, and the directory before the last one, but nothing depends on that order: synced
	// moves only when all of it succeeded.
	for _, s := range l.segs {
		if !s.dirty {
			continue
		}
		if err := s.file.SyncData(); err != nil {
			return l.poisoned(opSync, err)
		}
		s.dirty = false
	}
	if l.dirDirty {
		if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
			return l.poisoned(opSync, err)
		}
		l.dirDirty = false
	}
	l.mu.Lock()
	l.synced = l.tail
	l.mu.Unlock()
	return nil
}

// recent knows the references of the last frames, which are those that replication asks for.
type recent struct {
	refs        []Ref     // by index modulo recentFrames; allocated with the first frame
	first, last ids.Index // known are [first, last]; none when first > last or refs is nil
}

const recentFrames = 4096

func (r *recent) put(i ids.Index, ref Ref) {
	if r.refs == nil {
		r.refs, r.last = make([]Ref, recentFrames), i-1
		r.first = i
	}
	if i != r.last+1 { // recovery skips what a sidecar knows
		r.first = i
	}
	r.refs[i%recentFrames] = ref
	r.last = i
	if r.last-r.first >= recentFrames {
		r.first = r.last - recentFrames + 1
	}
}

func (r *recent) get(i ids.Index) (Ref, bool) {
	if r.refs == nil || i < r.first || i > r.last {
		return Ref{}, false
	}
	return r.refs[i%recentFrames], true
}

// cut forgets frames after i.
func (r *recent) cut(i ids.Index) {
	if r.refs == nil {
		return
	}
	if i < r.first {
		r.refs = nil
		return
	}
	r.last = min(r.last, i)
}
