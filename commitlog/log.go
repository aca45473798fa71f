package commitlog

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// TermStart tells where a term starts in the log.
type TermStart struct {
	Term        ids.Term
	StartIndex  ids.Index
	StartOffset ids.PhysicalOffset
}

// SegmentInfo describes one segment.
type SegmentInfo struct {
	Base                  ids.PhysicalOffset
	FirstIndex, LastIndex ids.Index // LastIndex is FirstIndex-1 while it has no frame
	Size                  int64     // bytes up to the end of its last frame, header block included
	Sealed                bool      // a later segment exists
}

// Log is an open commit log.
//
// Invariants, held whenever mu is free:
//  1. segs is never empty; their bases are front.base, +SegmentSize, …; every one but the last has a frame.
//  2. tail is the last frame of the last segment that has one, or the front.
//  3. synced.Index <= tail.Index, and the durable bound in meta <= synced.
//     Nothing is written maxBehind or more behind that bound but a batch, and that within batchEnd.
//  4. epochs is sorted; its first entry covers FirstIndex-1 when that is not 0.
type Log struct {
	o    Options
	lock io.Closer

	wmu      sync.Mutex // serialises the writer; held over I/O, never taken by readers
	dirDirty bool       // names changed since the last SyncDir
	bufs     [][]byte   // scratch of Append
	pad      [padSize]byte
	made     uint32             // segments made since Open
	starts   uint64             // Meta.Starts
	batchEnd ids.PhysicalOffset // that of meta, while Append has more to sync than one write; else 0
	behind   chan struct{}      // of the last SyncBehind; closed when it has ended
	closed   bool

	nextMu sync.Mutex // serialises makers and removers of the segment behind the last one; taken after wmu

	metaMu sync.Mutex // serialises writers of meta; taken after wmu
	meta   metaFile
	bound  atomic.Int64 // BoundOffset of the newest slot

	mu     sync.RWMutex // guards what follows; never held over I/O
	segs   []*segment
	epochs []TermStart
	front  front
	tail   Tail
	synced Tail
	recent recent
	next   *segment // prepared by FillAhead
	spares []string // paths of spare segments
	gone   bool     // closed, for readers

	cuts   atomic.Uint64        // truncations and front cuts: a reader that saw garbage looks whether it raced with one
	walked atomic.Pointer[spot] // where a walk ended last; its segment is compared, not held
	poison atomic.Pointer[PoisonedError]

	syncFailed atomic.Bool // whatever poisoned first

	uncached ids.PhysicalOffset // where Uncache ended; its caller's alone
}

// Create makes an empty log in o.Dir, durably; owner is the first Meta.Owner. It returns ErrExists when there is one, and
// ErrMetaLost when there are segments without a meta file. A Create that a crash cut short may be repeated.
func Create(o Options, owner []byte) error {
	o.EnsureDefaults()
	if err := errors.Join(o.Validate(), checkOwner(owner)); err != nil {
		return err
	}
	if err := vfs.MkdirDurable(o.FS, o.Dir); err != nil {
		return fmt.Errorf("commitlog: create: %w", err)
	}
	lock, err := o.FS.Lock(filepath.Join(o.Dir, lockName))
	if err != nil {
		return fmt.Errorf("commitlog: create: %w", err)
	}
	defer lock.Close()
	m, err := loadMeta(&o)
	switch {
	case err == nil && !m.cur.making:
		m.f.Close()
		return ErrExists
	case err == nil:
		m.f.Close()
	case !errors.Is(err, ErrNotCreated):
		return err
	}
	return create(&o, owner)
}

// create writes meta with the mark of an unfinished creation, the first segment, and meta without the mark, in this order: a
// log with a zero-length file in it is never taken for a whole one.
func create(o *Options, owner []byte) error {
	fail := func(err error) error { return fmt.Errorf("commitlog: create: %w", err) }
	path := filepath.Join(o.Dir, metaName)
	rec := metaRecord{cluster: o.Cluster, group: o.Group, segmentSize: o.SegmentSize, making: true, seq: 1}
	rec.BoundOffset, rec.CleanStop, rec.Owner = segmentHeaderSize, true, owner
	rec.front.prev.Chain = startChain(o.Cluster, o.Group)
	if err := vfs.WriteFileAtomic(o.FS, path, append(rec.encode(), make([]byte, metaSlot)...)); err != nil {
		return fail(err)
	}
	h := segmentHeader{cluster: o.Cluster, group: o.Group, segmentSize: o.SegmentSize, seed: rec.front.prev.Chain}
	if err := vfs.WriteFileAtomic(o.FS, filepath.Join(o.Dir, segmentName(0, logSuffix)), h.encode()); err != nil {
		return fail(err)
	}
	f, err := o.FS.OpenReadWrite(path)
	if err != nil {
		return fail(err)
	}
	m := metaFile{f: f, cur: rec, next: 1}
	rec.making = false
	if err := errors.Join(m.write(rec, true), f.Close()); err != nil {
		return fail(err)
	}
	return nil
}

func checkOwner(owner []byte) error {
	if len(owner) > MaxOwner {
		return fmt.Errorf("commitlog: owner data of %d bytes, more than %d", len(owner), MaxOwner)
	}
	return nil
}

// poisoned notes the first failure and returns it.
func (l *Log) poisoned(op string, err error) error {
	if op == opSync {
		l.syncFailed.Store(true)
	}
	l.poison.CompareAndSwap(nil, &PoisonedError{Op: op, Err: err})
	return l.poison.Load()
}

// Poisoned returns the *PoisonedError of the first failed write, sync, read or checksum, or nil.
func (l *Log) Poisoned() error {
	if p := l.poison.Load(); p != nil {
		return p
	}
	return nil
}

// SyncFailed tells whether a sync failed: what was written and not synced may be lost though it can still be read. Another failure may
// have poisoned the log before.
func (l *Log) SyncFailed() bool { return l.syncFailed.Load() }

// writable tells why nothing may be changed; wmu is held.
func (l *Log) writable() error {
	switch {
	case l.closed:
		return ErrClosed
	case l.o.ReadOnly:
		return ErrReadOnly
	}
	return l.Poisoned()
}

// Meta returns what is stored. Owner is shared: do not change it.
func (l *Log) Meta() Meta {
	l.metaMu.Lock()
	defer l.metaMu.Unlock()
	return l.meta.cur.Meta
}

// SaveMeta stores owner (nil: the one before) and renews the durable bound to what is synced. It is durable when nil is
// returned: in one slot, or in both, one after the other, for what a vote or an answer depends on. It does not wait for
// Append or Sync.
func (l *Log) SaveMeta(owner []byte, bothSlots bool) error {
	if err := checkOwner(owner); err != nil {
		return err
	}
	return l.updateMeta(bothSlots, func(m *metaRecord) {
		if owner != nil {
			m.Owner = append([]byte(nil), owner...)
		}
	})
}

// updateMeta changes meta by change, after the bound was renewed.
func (l *Log) updateMeta(bothSlots bool, change func(*metaRecord)) error {
	if err := l.Poisoned(); err != nil {
		return err
	}
	return l.writeMeta(bothSlots, change)
}

// writeMeta is updateMeta for a log that may be poisoned.
func (l *Log) writeMeta(bothSlots bool, change func(*metaRecord)) error {
	l.metaMu.Lock()
	defer l.metaMu.Unlock()
	if l.o.ReadOnly {
		return ErrReadOnly
	}
	if l.meta.f == nil {
		return ErrClosed
	}
	m := l.meta.cur
	l.mu.RLock()
	m.BoundIndex, m.BoundOffset = l.synced.Index, l.synced.Offset
	l.mu.RUnlock()
	change(&m)
	if m.batchEnd <= m.BoundOffset {
		m.batchEnd = 0
	}
	if err := l.meta.write(m, bothSlots); err != nil {
		return l.poisoned("meta write", err)
	}
	l.bound.Store(int64(m.BoundOffset))
	return nil
}

// Tail returns the last appended frame's tail; it may not be synced yet.
func (l *Log) Tail() Tail {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.tail
}

// Synced returns the last index that is durable and the end of its frame.
func (l *Log) Synced() (ids.Index, ids.PhysicalOffset) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.synced.Index, l.synced.Offset
}

// Unsynced returns how many bytes of frames are written and not durable.
func (l *Log) Unsynced() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return int64(l.tail.Offset - l.synced.Offset)
}

// Async tells whether the log was opened with Options.Async.
func (l *Log) Async() bool { return l.o.Async }

// FirstIndex returns the index of the first frame that can be read, or would be the first.
func (l *Log) FirstIndex() ids.Index {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.front.prev.Index + 1
}

// FirstOffset returns where that frame starts.
func (l *Log) FirstOffset() ids.PhysicalOffset {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.front.base + segmentHeaderSize
}

// Epochs returns the epoch table: the start of each term from that of FirstIndex-1 on.
func (l *Log) Epochs() []TermStart {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return append([]TermStart(nil), l.epochs...)
}

// Segments lists the segments from the front to the tail.
func (l *Log) Segments() []SegmentInfo {
	l.mu.RLock()
	defer l.mu.RUnlock()
	infos := make([]SegmentInfo, len(l.segs))
	for i, s := range l.segs {
		infos[i] = SegmentInfo{Base: s.base(), FirstIndex: s.first, LastIndex: s.last, Size: s.end, Sealed: i < len(l.segs)-1}
	}
	return infos
}

// TermOf returns the term of frame i. It returns ErrCompacted below FirstIndex-1 and ErrUnavailable above the tail. The term
// of index 0 is 0.
func (l *Log) TermOf(i ids.Index) (ids.Term, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	switch {
	case i < l.front.prev.Index:
		return 0, ErrCompacted
	case i > l.tail.Index:
		return 0, ErrUnavailable
	case i == l.front.prev.Index:
		return l.front.prev.Term, nil
	}
	at := sort.Search(len(l.epochs), func(n int) bool { return l.epochs[n].StartIndex > i }) - 1
	return l.epochs[at].Term, nil
}

// KeepBound notes durably in meta, for a log that a read poisoned, how far it is synced: the bound of the newest slot may be far behind,
// and damage at the end of the frames would pass for a torn tail. What a log with Options.Async wrote was acknowledged, so it is synced
// first. Nobody can tell what is missing after an error, which is one of a log that is poisoned by anything else too.
func (l *Log) KeepBound() error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if l.closed {
		return ErrClosed
	}
	return l.keepBound()
}

func (l *Log) keepBound() error {
	_ = l.settle() // what failed is seen below
	switch p := l.poison.Load(); {
	case p != nil && p.Op != opRead:
		return p
	case l.o.ReadOnly:
		return ErrReadOnly
	case l.o.Async && l.SyncFailed():
		return fmt.Errorf("%w, and a sync failed", p)
	}
	if l.o.Async {
		if err := l.syncWritten(); err != nil {
			return err
		}
	}
	if synced, _ := l.Synced(); synced <= l.Meta().BoundIndex { // a truncation that was cut short has lowered it in memory only
		return nil
	}
	return l.writeMeta(false, func(*metaRecord) {})
}

// Close ends the use of the log. clean makes everything durable and marks a clean stop, so that the next start need not write
// anything again; without it, and when the log is poisoned, the files stay as a kill -9 would leave them, but for KeepBound.
func (l *Log) Close(clean bool) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if l.closed {
		return ErrClosed
	}
	_ = l.settle() // a failure poisoned the log
	var err error
	if p := l.poison.Load(); p != nil && p.Op == opRead && !l.o.ReadOnly {
		err = l.keepBound()
	}
	if clean && !l.o.ReadOnly {
		e := l.Poisoned()
		if e == nil {
			e = l.sync()
		}
		if e == nil {
			e = l.writeSidecars()
		}
		if e == nil {
			e = l.updateMeta(true, func(m *metaRecord) { m.CleanStop = true })
		}
		err = errors.Join(err, e)
	}
	l.closed = true
	l.mu.Lock()
	l.gone = true
	segs, next := l.segs, l.next
	l.segs, l.next = nil, nil
	l.mu.Unlock()
	for _, s := range segs {
		s.release()
	}
	if next != nil {
		next.release()
	}
	l.metaMu.Lock()
	defer l.metaMu.Unlock()
	if l.meta.f != nil {
		err = errors.Join(err, l.meta.f.Close())
		l.meta.f = nil
	}
	if l.lock != nil {
		err = errors.Join(err, l.lock.Close())
	}
	return err
}
