// Package index is the index of one broker group: for each message queue, where its messages lie in the commit log, and for each
// word, which is a key, a unique id or a tag of a topic, which messages have it. The first is called the queue index, the second the
// key index; they lie in the same files and have one life.
//
// It is derived from the log and can always be deleted: Covered tells from where the log must be read again. Its files
// follow the log, not the queues: one file per sealed segment, and up to Options.MaxRuns for the active one, whatever the
// number of queues is. A message belongs to the segment that its physical offset lies in.
//
//	Add ──▶ active run (memory) ──Checkpoint──▶ run file ┐
//	                              ──Checkpoint──▶ run file ┼─ segment sealed ──▶ one file ──CutFront──▶ gone
//	                              ──Checkpoint──▶ run file ┘
//
// Guarantees:
//
//  1. Get answers from exactly the entries that were added, and are retained, and belong to no topic that was dropped since
//     Open. Find answers from those of dropped topics too: a topic's id is part of a word's hash, and is never used twice.
//  2. What Covered tells is on the disk: after a crash the entries below it are there, or Covered has gone down. Each page
//     of a file has a checksum; a damaged file is given up and reported, never read wrongly.
//  3. Nothing that happens to the files stops Open: what cannot be used is dropped and named in Problems.
//
// One goroutine calls Add. Checkpoint, CutFront, Drop, Rebuild and Close may run beside it and wait for each other; readers
// may be any. Get and Add hold a lock for the time of a map look-up and a copy; files are read without one.
//
// Cost (docs/format/index.md has all figures and how they were measured): a read of 32 entries takes 0.1 µs at the tail and
// 6 µs from a file, without an allocation. In memory a queue of the active or the newest run takes 84 bytes with one entry
// and 24 for each further one; nothing is kept for other queues. On disk an entry takes 20 bytes and each queue of a file
// 24. A word of a message takes 16 bytes in memory, 12 on disk.
//
// Read Get first, then slot in file.go; words.go has the key index; format.go draws the file.
package index

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// Index is an open queue index.
type Index struct {
	o Options

	// work serialises what changes files. It is held over I/O and taken before mu.
	work sync.Mutex

	mu      sync.RWMutex
	version *version                           // replaced as a whole
	active  *memRun                            // nil at first, and after a freeze until the next Add
	limit   ids.PhysicalOffset                 // active ends here: its segment's end, or where a slot begins
	added   ids.PhysicalOffset                 // what lies below was added since Open, or was there
	front   ids.PhysicalOffset                 // base of the first retained segment
	dropped map[ids.TopicID]ids.PhysicalOffset // nothing of the topic lies at or after it
	closed  bool

	wordsBefore uint32 // of the run before the active one

	problems []error // found by Open
}

// version is a set of slots. Whoever uses it holds a reference; with the last one its files lose theirs.
//
// Invariant: the slots' spans ascend and do not overlap.
type version struct {
	slots []slot
	refs  atomic.Int32
}

func newVersion(slots []slot) *version {
	v := &version{slots: slots}
	v.refs.Store(1)
	for _, s := range slots {
		if s.file != nil {
			s.file.ref()
		}
	}
	return v
}

func (v *version) unref() {
	if v.refs.Add(-1) > 0 {
		return
	}
	for _, s := range v.slots {
		if s.file != nil {
			s.file.unref()
		}
	}
}

// Open opens the index in o.Dir, or begins an empty one. Damaged, foreign and superfluous files are removed and named in
// Problems. It returns an error when the options are wrong or the folder cannot be used.
func Open(o Options) (*Index, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	x := &Index{o: o, front: o.base(o.FirstOffset), dropped: make(map[ids.TopicID]ids.PhysicalOffset)}
	if err := vfs.MkdirDurable(o.FS, o.Dir); err != nil {
		return nil, fmt.Errorf("queue index: %w", err)
	}
	names, err := o.FS.List(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("queue index: %w", err)
	}
	var found []*file
	for _, n := range names {
		f, err := x.load(n)
		if err != nil {
			x.problems = append(x.problems, err)
		}
		if f != nil {
			found = append(found, f)
		}
	}
	x.version = newVersion(x.choose(found))
	for _, f := range found {
		if f.refs.Load() == 0 {
			_ = f.f.Close() // a merged file has taken its place
			x.remove(f.name)
		}
	}
	x.added = x.covered()
	return x, nil
}

// load opens one file of the folder. What cannot be used is removed; err tells when that is worth a word.
func (x *Index) load(base string) (*file, error) {
	name := filepath.Join(x.o.Dir, base)
	from, to, ok := parseName(base, x.o.SegmentSize)
	if !ok {
		if strings.HasSuffix(base, tempSuffix) {
			x.remove(name)
		}
		return nil, nil
	}
	if to <= x.front {
		x.remove(name)
		return nil, nil
	}
	f, err := openFile(x.o.FS, name)
	if err != nil {
		x.remove(name)
		return nil, err
	}
	switch {
	case f.group != x.o.Group:
		err = fmt.Errorf("it is of group %v", f.group)
	case f.segmentSize != x.o.SegmentSize:
		err = fmt.Errorf("it is of segments of %d bytes", f.segmentSize)
	case f.from != from || f.to != to:
		err = fmt.Errorf("it covers %d to %d", f.from, f.to)
	case x.o.EndOffset > 0 && f.to > x.o.EndOffset:
		err = fmt.Errorf("it goes to %d, the log only to %d", f.to, x.o.EndOffset)
	default:
		return f, nil
	}
	_ = f.f.Close()
	x.remove(name)
	return nil, &CorruptionError{File: name, Err: err}
}

// choose returns the files that count, as slots: where spans overlap the longer one, which was merged from the others.
func (x *Index) choose(found []*file) []slot {
	slices.SortFunc(found, func(a, b *file) int {
		if a.from != b.from {
			return int(min(1, max(-1, a.from-b.from)))
		}
		return int(min(1, max(-1, b.to-a.to)))
	})
	var slots []slot
	end := ids.PhysicalOffset(-1)
	for _, f := range found {
		if f.from >= end && f.to > f.from {
			slots = append(slots, slot{file: f})
			end = f.to
		}
	}
	return slots
}

// remove removes a file that is of no more use. If that fails the next Open tries again.
func (x *Index) remove(name string) { _ = x.o.FS.Remove(name) }

// Problems tells which files Open could not use, and why. Each is worth an error line in the log of the node.
func (x *Index) Problems() []error { return slices.Clone(x.problems) }

// setSlots makes slots the present version. x.mu is held.
func (x *Index) setSlots(slots []slot) {
	old := x.version
	x.version = newVersion(slots)
	old.unref()
}

// insert puts s in the place of all slots inside its span. x.mu is held.
func (x *Index) insert(s slot) {
	from, to := s.span()
	old := x.version.slots
	slots := make([]slot, 0, len(old)+1)
	i := 0
	for ; i < len(old); i++ {
		if f, _ := old[i].span(); f >= from {
			break
		}
		slots = append(slots, old[i])
	}
	slots = append(slots, s)
	for ; i < len(old); i++ {
		if _, t := old[i].span(); t > to {
			slots = append(slots, old[i])
		}
	}
	x.setSlots(slots)
}

// Covered returns the physical offset below which everything that the log retains is indexed durably. Reading the log from
// there on and adding its messages makes the index whole.
func (x *Index) Covered() ids.PhysicalOffset {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.covered()
}

func (x *Index) covered() ids.PhysicalOffset {
	at := x.front
	for _, s := range x.version.slots {
		if s.file == nil {
			continue
		}
		from, to := s.span()
		if from > at {
			break
		}
		at = max(at, to)
	}
	return at
}

// Span is a part of the log: From inclusive, To exclusive.
type Span struct{ From, To ids.PhysicalOffset }

// Missing returns the holes in what was indexed: files that Open had to drop while later ones are whole, or that were found
// damaged since, or that have no words because an older program wrote them. Rebuild fills one. After Open, reading the log from Covered on fills those of that moment too; one that is
// found later is filled by Rebuild alone, since Add has passed it.
func (x *Index) Missing() []Span {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var holes []Span
	at := x.front
	hole := func(from, to ids.PhysicalOffset) {
		for at < from {
			end := min(from, x.o.end(at))
			holes = append(holes, Span{at, end})
			at = end
		}
		at = max(at, to)
	}
	for _, s := range x.version.slots {
		from, to := s.span()
		if s.file != nil && !s.file.worded {
			hole(from, from)
			hole(to, to)
			continue
		}
		hole(from, to)
	}
	if x.active != nil {
		hole(x.active.from, x.added)
	}
	hole(x.added, x.added)
	return holes
}

// Add appends an entry to a queue. Entries come in the order of physical offsets; one that is there already is left alone,
// so the log may be read again from any place at or before Covered. hashes are those of the message's words; one that is there
// twice counts once, and their order may change. It returns a *DensityError when qo does not follow the entry before it in the
// queue, as far as that one is in memory.
func (x *Index) Add(k Key, qo ids.QueueOffset, e Entry, hashes ...uint64) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return ErrClosed
	}
	if e.Offset < x.added {
		return nil
	}
	if x.active == nil || e.Offset >= x.limit {
		if x.advance(e.Offset); x.added > e.Offset {
			return nil
		}
	}
	if err := x.active.add(k, qo, e, x.newest); err != nil {
		return err
	}
	x.active.words.add(uint32(e.Offset-x.o.base(e.Offset)), hashes)
	x.added = e.end()
	return nil
}

// newest returns the queue offset after the last entry of k in the newest run, if that is in memory.
func (x *Index) newest(k Key) (ids.QueueOffset, bool) {
	slots := x.version.slots
	if len(slots) == 0 {
		return 0, false
	}
	m := slots[len(slots)-1].mem
	if m == nil || m.to != x.active.from {
		return 0, false
	}
	r, ok := m.lookup(k)
	return r.next(), ok
}

// advance takes note that nothing more will be added below to. Afterwards to lies in the active run, or a slot that covers
// it was found and x.added is beyond it. Spans without a message get an empty run, so that they count as covered. x.mu is
// held.
func (x *Index) advance(to ids.PhysicalOffset) {
	if x.active != nil {
		if to < x.limit {
			x.added = max(x.added, to)
			return
		}
		x.added = x.limit
		x.freeze()
	}
	for x.added <= to {
		end := x.o.end(x.added)
		skip := false
		for _, s := range x.version.slots {
			from, t := s.span()
			if t <= x.added {
				continue
			}
			if skip = from <= x.added; skip {
				x.added = t
			}
			end = min(end, from)
			break
		}
		if skip {
			continue
		}
		x.active, x.limit = newMemRun(x.added, x.wordsBefore), end
		if to < end {
			x.added = to
			return
		}
		x.added = end
		x.freeze()
	}
}

// freeze makes the active run a slot that ends at x.added. x.mu is held.
func (x *Index) freeze() {
	m := x.active
	x.active = nil
	if m == nil || m.from == x.added {
		return
	}
	m.to, x.wordsBefore = x.added, m.words.n
	x.insert(slot{mem: m})
}

// Close gives up the files. It does not make a checkpoint. Readers that are at work end first; later calls get ErrClosed.
func (x *Index) Close() error {
	x.work.Lock()
	defer x.work.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return ErrClosed
	}
	x.closed = true
	x.active = nil
	x.setSlots(nil)
	return nil
}
