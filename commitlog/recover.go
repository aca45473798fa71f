package commitlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

const lockName = "lock"

// Open opens the log in o.Dir and recovers it:
//
//  1. A truncation, or a Reset, that a crash cut short is completed.
//  2. The frames are read from each segment's last checkpoint on, up to the first bytes that are no frame which follows.
//  3. Those bytes are a torn tail if they lie above the durable bound and no valid frame follows anywhere, but for those of a
//     batch that was not synced. Otherwise Open returns a *DamageError, and has changed nothing of the frames. So it does
//     when the log ends below the bound.
//  4. After a stop without a clean-stop mark all frames beyond the bound are written again in place, and zeros over the torn
//     tail: a disk that failed a sync keeps no mark of it, and its pages look clean. Then all of it is synced.
//  5. Meta, in both slots: one more start, the bound at the tail, no clean-stop mark.
//
// Errors are also vfs.ErrLocked (wrapped), ErrNotCreated, ErrMetaLost and *IdentityError. After any error nothing stays open.
//
// Before all that it returns a *LostTailError when a log with Options.Async may have lost what it acknowledged: see there.
//
// With Options.ReadOnly only steps 2 and 3 are done, and another process may write the log meanwhile: what it appends is read
// too, as far as it is seen, and a cut, which it notes in meta before it changes a byte, makes Open start afresh.
func Open(o Options) (*Log, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		l := &Log{o: o}
		err := l.open()
		if err == nil {
			return l, nil
		}
		l.poisoned("start", err)
		l.Close(false)
		if !o.ReadOnly || try == readOnlyTries || !l.overtaken() {
			return nil, err
		}
	}
}

const (
	// readOnlyTries bounds how often a read-only Open starts afresh. A fault that is there each time is one.
	readOnlyTries = 32
	// readOnlyRounds bounds how often a read-only Open goes on behind a tail that moves.
	readOnlyRounds = 16
)

// overtaken tells whether another process has written meta since l read it.
func (l *Log) overtaken() bool {
	m, _, err := readMeta(l.o.FS, l.o.Dir)
	return err == nil && m.seq != l.meta.cur.seq
}

// loadMeta opens the meta file and checks whose it is.
func loadMeta(o *Options) (metaFile, error) {
	path := filepath.Join(o.Dir, metaName)
	rec, next, err := readMeta(o.FS, o.Dir)
	var version errVersion
	switch {
	case errors.Is(err, os.ErrNotExist):
		names, err := o.FS.List(o.Dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return metaFile{}, fmt.Errorf("commitlog: open: %w", err)
		}
		for _, name := range names {
			if _, ok := parseName(name, logSuffix); ok {
				return metaFile{}, fmt.Errorf("%w: %s is absent", ErrMetaLost, path)
			}
		}
		return metaFile{}, fmt.Errorf("%w: %s is absent", ErrNotCreated, path)
	case errors.As(err, &version):
		return metaFile{}, &IdentityError{File: path, Field: "version", Want: strconv.Itoa(metaVersion), Have: strconv.Itoa(int(version))}
	case errors.Is(err, errSlot):
		return metaFile{}, fmt.Errorf("%w: neither slot of %s can be read", ErrMetaLost, path)
	case err != nil:
		return metaFile{}, fmt.Errorf("commitlog: open: %w", err)
	}
	if err := checkIdentity(o, path, rec.cluster, rec.group, rec.segmentSize); err != nil {
		return metaFile{cur: *rec}, err
	}
	open := o.FS.OpenReadWrite
	if o.ReadOnly {
		open = o.FS.Open
	}
	f, err := open(path)
	if err != nil {
		return metaFile{}, fmt.Errorf("commitlog: open: %w", err)
	}
	return metaFile{f: f, cur: *rec, next: next}, nil
}

func checkIdentity(o *Options, path string, cluster ids.ClusterID, group ids.GroupID, segmentSize int64) error {
	switch {
	case cluster != o.Cluster:
		return &IdentityError{File: path, Field: "cluster", Want: o.Cluster.String(), Have: cluster.String()}
	case group != o.Group:
		return &IdentityError{File: path, Field: "group", Want: o.Group.String(), Have: group.String()}
	case segmentSize != o.SegmentSize:
		return &IdentityError{File: path, Field: "segment size", Want: strconv.FormatInt(o.SegmentSize, 10), Have: strconv.FormatInt(segmentSize, 10)}
	}
	return nil
}

// open is Open on a fresh l. What it leaves open Close closes.
func (l *Log) open() (err error) {
	o := &l.o
	if !o.ReadOnly {
		if _, err := o.FS.Stat(o.Dir); errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%w: %s is absent", ErrNotCreated, o.Dir)
		}
		if l.lock, err = o.FS.Lock(filepath.Join(o.Dir, lockName)); err != nil {
			return fmt.Errorf("commitlog: open: %w", err)
		}
	}
	if l.meta, err = loadMeta(o); err != nil {
		return err
	}
	m := &l.meta.cur
	if m.making {
		return fmt.Errorf("%w: the creation of %s was cut short", ErrNotCreated, o.Dir)
	}
	r := recovery{l: l, reboot: o.BootID == "" || o.BootID != m.BootID}
	if o.Async && !o.ReadOnly && !o.AcceptLoss && !m.CleanStop && r.reboot {
		return &LostTailError{Dir: o.Dir, Before: m.BootID, At: o.BootID}
	}
	if !o.ReadOnly {
		if err := l.meta.keep(); err != nil {
			return fmt.Errorf("commitlog: open: %w", err)
		}
	}
	switch {
	case m.resetting && o.ReadOnly:
		return fmt.Errorf("%w: it begins anew at %d, which the next start for writing completes", ErrOvertaken, m.front.base)
	case m.resetting:
		if err := finishReset(o, &l.meta); err != nil {
			return err
		}
	}
	l.front, l.starts = m.front, m.Starts+1
	if l.front.prev.Index > 0 {
		l.epochs = append(l.epochs, l.front.start)
	}
	steps := []func() error{r.list, r.readSegments, r.judge}
	if !o.ReadOnly {
		steps = []func() error{r.list, r.finishTruncation, r.readSegments, r.judge, r.mend}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	l.synced = l.tail
	if o.ReadOnly {
		return nil
	}
	l.starts = m.Starts + 1
	return l.updateMeta(true, func(m *metaRecord) {
		m.Starts, m.CleanStop, m.BootID = l.starts, false, o.BootID
		m.TruncateTo, m.truncateEnd, m.batchEnd = 0, 0, 0 // completed above
	})
}

// recovery is the work of one Open.
type recovery struct {
	l       *Log
	bases   []ids.PhysicalOffset // of all segment files from the front on, sorted
	unclean bool
	reboot  bool    // the machine may have been started anew since the last Open
	end     scanEnd // why the frames end
	endBase ids.PhysicalOffset
	endPos  int64              // where, in the file of endBase
	cut     ids.PhysicalOffset // read-only, and a truncation waits for completion: the log ends here
}

func (r *recovery) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("commitlog: recovery: %w", err)
}

// list finds the segments, and removes what is left of work that was cut short.
func (r *recovery) list() error {
	l := r.l
	r.unclean = !l.meta.cur.CleanStop
	names, err := l.o.FS.List(l.o.Dir)
	if err != nil {
		return r.wrap(err)
	}
	var junk []string
	for _, name := range names {
		path := filepath.Join(l.o.Dir, name)
		base, isLog := parseName(name, logSuffix)
		sideBase, isSide := parseName(name, sidecarSuffix)
		_, isNext := parseName(name, nextSuffix)
		_, isSpare := parseName(name, spareSuffix)
		switch {
		case isLog && base >= l.front.base:
			r.bases = append(r.bases, base)
		case isLog, isSide && sideBase < l.front.base, isNext, filepath.Ext(name) == vfs.TempSuffix:
			junk = append(junk, path)
		case isSpare && len(l.spares) < l.o.KeepSpare && r.spare(path):
			l.spares = append(l.spares, path)
		case isSpare:
			junk = append(junk, path)
		}
	}
	slices.Sort(r.bases)
	if l.o.ReadOnly {
		if r.cut = l.meta.cur.TruncateTo; r.cut != 0 {
			r.bases = slices.DeleteFunc(r.bases, func(b ids.PhysicalOffset) bool { return b > l.o.base(r.cut) })
		}
		return nil
	}
	for _, path := range junk {
		if err := l.remove(path); err != nil {
			return r.wrap(err)
		}
	}
	l.dirDirty = len(junk) > 0
	return nil
}

// spare tells whether the file is good for use as a segment.
func (r *recovery) spare(path string) bool {
	st, err := r.l.o.FS.Stat(path)
	return err == nil && st.Size > 0 && st.Size <= r.l.o.SegmentSize
}

// finishTruncation completes a TruncateAfter.
func (r *recovery) finishTruncation() error {
	l := r.l
	to, end := l.meta.cur.TruncateTo, l.meta.cur.truncateEnd
	if to == 0 {
		return nil
	}
	keep := l.o.base(to)
	for len(r.bases) > 0 && r.bases[len(r.bases)-1] > keep {
		base := r.bases[len(r.bases)-1]
		r.bases = r.bases[:len(r.bases)-1]
		if err := l.removeSegment(base); err != nil {
			return r.wrap(err)
		}
	}
	if err := l.remove(l.segmentPath(keep, sidecarSuffix)); err != nil {
		return r.wrap(err)
	}
	if len(r.bases) == 0 || r.bases[len(r.bases)-1] != keep {
		return &DamageError{File: l.segmentPath(keep, logSuffix), Offset: keep, Reason: "the segment is missing"}
	}
	f, err := l.o.FS.OpenReadWrite(l.segmentPath(keep, logSuffix))
	if err != nil {
		return r.wrap(err)
	}
	seg := newSegment(segmentHeader{base: keep}, f.Name(), f)
	defer seg.release()
	// Zeros that are there may be those of a sync that failed: they are written again.
	size, err := f.Size()
	for at, last := int64(to-keep), min(int64(end-keep), size); err == nil && at < last; at += int64(len(zeros)) {
		_, err = f.WriteAt(zeros[:min(last-at, int64(len(zeros)))], at)
	}
	if err == nil {
		err = f.SyncData()
	}
	if err == nil {
		err = l.o.FS.SyncDir(l.o.Dir)
	}
	return r.wrap(err)
}

// readSegments reads frames from the front on and builds the tables, until the bytes are no frame.
func (r *recovery) readSegments() error {
	l := r.l
	t := l.front.prev
	t.Offset = l.front.base + segmentHeaderSize
	l.tail = t
	return r.readFrom(l.front.base)
}

// readFrom is readSegments from the segment at base on, which follows those that were read.
func (r *recovery) readFrom(base ids.PhysicalOffset) error {
	l := r.l
	for ; ; base += ids.PhysicalOffset(l.o.SegmentSize) {
		// Not by position: beside a read-only log the node may have given up segments that were read already.
		if _, there := slices.BinarySearch(r.bases, base); !there {
			r.stop(base, 0, scanEnd{reason: "the segment is missing", nothing: true})
			return nil
		}
		more, err := r.readSegment(base)
		if err != nil || !more {
			return err
		}
	}
}

// stop notes that the frames end at pos of the segment at base.
func (r *recovery) stop(base ids.PhysicalOffset, pos int64, end scanEnd) {
	r.endBase, r.endPos, r.end = base, pos, end
}

// readSegment reads one; more tells that it ends in a pad marker.
func (r *recovery) readSegment(base ids.PhysicalOffset) (more bool, err error) {
	l := r.l
	path := l.segmentPath(base, logSuffix)
	open := l.o.FS.OpenReadWrite
	if l.o.ReadOnly {
		open = l.o.FS.Open
	}
	f, err := open(path)
	if err != nil {
		return false, r.wrap(err)
	}
	keep := false
	defer func() {
		if !keep {
			f.Close()
		}
	}()
	size, err := f.Size()
	if err != nil {
		return false, r.wrap(err)
	}
	block := make([]byte, segmentHeaderSize)
	n, err := readFull(f, block, 0)
	if err != nil {
		return false, r.wrap(err)
	}
	h, err := decodeSegmentHeader(block[:n])
	var id *IdentityError
	var corrupt *CorruptionError
	switch {
	case errors.As(err, &id):
		id.File = path
		return false, id
	case errors.As(err, &corrupt):
		r.stop(base, 0, scanEnd{reason: corrupt.Reason})
		return false, nil
	case h.base != base || h.seed != l.tail.Chain:
		r.stop(base, 0, scanEnd{reason: fmt.Sprintf("segment header: base %d, chain %08x, want chain %08x", h.base, h.seed, l.tail.Chain)})
		return false, nil
	}
	if err := checkIdentity(&l.o, path, h.cluster, h.group, h.segmentSize); err != nil {
		return false, err
	}
	keep = true
	seg := newSegment(h, path, f)
	seg.first, seg.last = l.tail.Index+1, l.tail.Index
	seg.fill.done = size
	if h.recycled {
		seg.fill.done = l.o.SegmentSize
	}
	l.segs = append(l.segs, seg)
	if err := r.useSidecar(seg); err != nil {
		return false, err
	}
	return r.readFrames(seg, size)
}

// readFrames reads those of seg that follow the tail, up to limit in the file; more as readSegment.
func (r *recovery) readFrames(seg *segment, limit int64) (more bool, err error) {
	l, base := r.l, seg.base()
	if r.cut != 0 {
		limit = min(limit, int64(r.cut-base))
	}
	t, end, err := l.o.scanSegment(seg.file, base, l.tail, limit, func(f Frame) error {
		l.note(seg, f.Term(), f.Index(), f.Ref())
		l.tail = l.tail.After(f)
		return nil
	})
	if err != nil {
		return false, r.wrap(err)
	}
	if end.pad && seg.last >= seg.first {
		return true, nil
	}
	r.stop(base, max(int64(t.Offset-base), segmentHeaderSize), end)
	return false, nil
}

// useSidecar takes the tables of seg's sidecar and moves the tail to its checkpoint, when it can be trusted: it is of this
// life of the file, within the durable bound, and its last frame is where it says.
func (r *recovery) useSidecar(seg *segment) error {
	l := r.l
	b, err := vfs.ReadFile(l.o.FS, l.segmentPath(seg.base(), sidecarSuffix))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return r.wrap(err)
	}
	s, err := decodeSidecar(b)
	if err != nil || s.base != seg.base() || s.generation != seg.header.generation || s.first != seg.first ||
		r.cut != 0 || s.tail.Offset > l.meta.cur.BoundOffset || s.tail.Index > l.meta.cur.BoundIndex || s.tail.Term < l.tail.Term {
		return nil
	}
	ref := Ref{Offset: s.base + ids.PhysicalOffset(s.last), Size: uint32(int64(s.tail.Offset-s.base) - s.last), CRC: s.tail.Chain}
	if int(ref.Size) > l.o.maxFrame() {
		return nil
	}
	f, err := l.readRef(seg, s.tail.Index, ref, nil)
	var corrupt *CorruptionError
	if errors.As(err, &corrupt) || err == nil && f.Term() != s.tail.Term {
		return nil // the scan finds out what is wrong
	}
	if err != nil {
		return r.wrap(err)
	}
	l.tail = s.tail
	seg.last, seg.end, seg.sparse, seg.sidecar = s.tail.Index, int64(s.tail.Offset-s.base), s.sparse, s.tail.Index
	l.epochs = append(l.epochs, s.terms...)
	return nil
}

// judge decides whether what follows the frames is nothing, a torn tail, or damage.
func (r *recovery) judge() error {
	l := r.l
	m := &l.meta.cur
	damage := func(reason string) *DamageError {
		return &DamageError{File: l.segmentPath(r.endBase, logSuffix), Offset: r.endBase + ids.PhysicalOffset(r.endPos), Reason: reason}
	}
	// below tells that the log lacks what is durable, and whether it simply ends too early: then no repair can know what was there.
	below := func(reason string) error {
		d := damage(reason)
		if r.end.nothing {
			_, found, err := r.later(0)
			if err != nil {
				return err
			}
			d.Lost = !found
		}
		return d
	}
	if len(l.segs) == 0 {
		return below(r.end.reason)
	}
	if l.tail.Index < m.BoundIndex || l.tail.Offset < m.BoundOffset && l.tail.Index > 0 {
		return below(fmt.Sprintf("lost tail: the log ends with index %d, offset %d, below the durable bound of index %d, offset %d: %s",
			l.tail.Index, l.tail.Offset, m.BoundIndex, m.BoundOffset, r.end.reason))
	}
	if r.cut != 0 || m.CleanStop && l.tail.Index == m.BoundIndex {
		return nil // nothing was ever written behind, or it does not count
	}
	r.unclean = true
	beyond := m.batchEnd
	if l.o.ReadOnly || l.o.Async && !r.reboot {
		// The end of a process tears no more than the last write. A batch of a log that is synced later may be long, and was
		// acknowledged: no bad frame in it may pass for a torn one.
		beyond = 0
	}
	for round := 1; ; round++ {
		off, found, err := r.later(beyond)
		if err != nil || !found {
			return err
		}
		if l.o.ReadOnly {
			// The frames ended where a buffer was filled; what was found may be the next one, written since.
			last := l.tail.Index
			if err := r.goOn(); err != nil {
				return err
			}
			if l.tail.Index > last {
				if round < readOnlyRounds {
					continue
				}
				return nil // somebody writes without a pause; a bad place would not have moved
			}
			if beyond < m.batchEnd {
				beyond = m.batchEnd
				continue
			}
		}
		return damage(fmt.Sprintf("%s, but a valid frame follows at offset %d", r.end.reason, off))
	}
}

// later looks for a valid frame behind where the frames end, and behind beyond. The frames of a batch that was being written do
// not count: a power cut may have kept any of them, and none was reported as synced. But one that ends behind the batch tells
// that the batch was synced, and that this meta is not the newest.
//
// It looks as far as there may be frames, and a little behind the bad place: a used file is full of old bytes.
func (r *recovery) later(beyond ids.PhysicalOffset) (off ids.PhysicalOffset, found bool, err error) {
	l, m := r.l, &r.l.meta.cur
	to := max(m.BoundOffset+l.o.maxBehind(), m.batchEnd, r.endBase+ids.PhysicalOffset(r.endPos+4*int64(l.o.maxFrame())))
	for _, base := range r.bases {
		if base < r.endBase || base >= to {
			continue
		}
		pos := int64(0)
		if base == r.endBase {
			pos = r.endPos
		}
		f, err := l.o.FS.Open(l.segmentPath(base, logSuffix))
		if err != nil {
			return 0, false, r.wrap(err)
		}
		size, err := f.Size()
		if err == nil {
			off, found, err = l.o.findLater(f, base, pos, min(size, int64(to-base)), l.tail.Index, beyond)
		}
		if err = errors.Join(err, f.Close()); err != nil || found {
			return off, found, r.wrap(err)
		}
	}
	return 0, false, nil
}

// goOn reads from the tail on once more, for a read-only log.
func (r *recovery) goOn() error {
	l := r.l
	names, err := l.o.FS.List(l.o.Dir)
	if err != nil {
		return r.wrap(err)
	}
	r.bases = nil
	for _, name := range names {
		if base, ok := parseName(name, logSuffix); ok && base >= l.front.base {
			r.bases = append(r.bases, base)
		}
	}
	slices.Sort(r.bases)
	seg := l.segs[len(l.segs)-1]
	if seg.base() != r.endBase { // that one had no good header
		return r.readFrom(r.endBase)
	}
	size, err := seg.file.Size()
	if err != nil {
		return r.wrap(err)
	}
	more, err := r.readFrames(seg, size)
	if err != nil || !more {
		return err
	}
	return r.readFrom(r.endBase + ids.PhysicalOffset(l.o.SegmentSize))
}

// mend removes the torn tail, writes again what may not be on the disk, and syncs.
func (r *recovery) mend() error {
	l := r.l
	// The last segment may have no frame: its header was written, and the frame was not.
	for n := len(l.segs); n > 1 && l.segs[n-1].last < l.segs[n-1].first; n = len(l.segs) {
		l.segs[n-1].release()
		l.segs = l.segs[:n-1]
	}
	seg := l.segs[len(l.segs)-1]
	for _, base := range r.bases {
		if base > seg.base() {
			if err := l.removeSegment(base); err != nil {
				return r.wrap(err)
			}
			l.dirDirty = true
		}
	}
	if r.unclean {
		if err := r.rewrite(); err != nil {
			return r.wrap(err)
		}
		to := l.o.SegmentSize
		if seg.header.recycled {
			// Bytes of the file's former life are no harm. What a torn write left is erased as far as one frame, or the batch,
			// reaches.
			to = min(to, max(seg.end+int64(2*l.o.maxFrame()), int64(l.meta.cur.batchEnd-seg.base())))
		}
		if err := l.erase(seg, seg.end, to); err != nil {
			return r.wrap(err)
		}
		l.dirDirty = true
	}
	seg.dirty = true
	seg.fill.done = max(seg.fill.done, seg.end)
	return l.sync()
}

// rewrite writes again, in place, everything beyond the durable bound.
func (r *recovery) rewrite() error {
	l := r.l
	bound := l.meta.cur.BoundOffset
	buf := make([]byte, min(windowSize, l.o.SegmentSize))
	for i, s := range l.segs {
		end := s.end
		if i < len(l.segs)-1 {
			end += padSize
		}
		from := max(int64(bound-s.base()), 0)
		if from <= segmentHeaderSize {
			from = 0
		}
		for from < end {
			n, err := readFull(s.file, buf[:min(int64(len(buf)), end-from)], from)
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
			if _, err := s.file.WriteAt(buf[:n], from); err != nil {
				return err
			}
			s.dirty = true
			from += int64(n)
		}
	}
	return nil
}
