// Package timer is the timer index of one broker group: when which delayed message of the commit log is due.
//
// It is derived from the log and can always be deleted: Covered tells from where the log must be read again. It knows nothing of
// what has become of a timer. Its callers do, by two bounds that only rise, see Bounds, and by what was recalled; what lies behind
// the bounds is dead here and goes away in time.
//
//	Add ──▶ set in memory ──Checkpoint──▶ run file ┐
//	                                      run file ┼─ neighbours of like size are merged ──▶ run file ──all behind Low──▶ gone
//	                                      run file ┘
//
// A run has all timers of one span of the log that were alive when it was written, ordered by due time. So a timer takes memory until
// the next checkpoint only, and 24 bytes of disk from then on, however far away its time is. A look for what is due next costs a
// search in each run; there are as many as the logarithm of the number of timers.
//
// Guarantees:
//
//  1. Next, Scan, Find, Below and Count answer from exactly the entries that were added and are alive by the given bounds.
//  2. What lies below Covered is on the disk: after a crash its living entries are there, or Covered has gone down.
//  3. Each page of a run has a checksum. A damaged file is given up by Open, and reported by whatever meets it later, never read wrongly.
//
// Add may run beside everything else. Checkpoint, CutFront, Reset and Close wait for each other. Readers, which may be any, see the index of
// one moment and hold nobody up while they read files.
//
// Read Scan first, then run.go, which draws the file.
package timer

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// Pos is the place of a timer in the order in which timers fire: by due time, and by place in the log among equal ones.
type Pos struct {
	Due    int64              // milliseconds since 1970
	Offset ids.PhysicalOffset // of the RocketMQ record
}

// Compare is negative when p fires before o.
func (p Pos) Compare(o Pos) int {
	return cmp.Or(cmp.Compare(p.Due, o.Due), cmp.Compare(p.Offset, o.Offset))
}

// Entry is one timer.
type Entry struct {
	Pos
	Size uint32 // bytes of the RocketMQ record
	Key  uint32 // hash of its unique key
}

// Bounds tell which entries are alive: those that come after After and lie at or behind Low.
type Bounds struct {
	After Pos
	Low   ids.PhysicalOffset
}

// Alive tells whether e is neither fired nor rolled.
func (b Bounds) Alive(p Pos) bool { return p.Compare(b.After) > 0 && p.Offset >= b.Low }

// Options says where an index lives.
type Options struct {
	FS    vfs.FS
	Dir   string
	Group ids.GroupID
	// FirstOffset is where the log begins, EndOffset where it ends: a file that goes further is of another log.
	FirstOffset, EndOffset ids.PhysicalOffset
}

// ErrClosed is returned after Close.
var ErrClosed = errors.New("timer: the index is closed")

// Index is an open timer index.
type Index struct {
	o Options

	// work serialises what changes files. It is held over I/O and taken before mu.
	work sync.Mutex

	mu       sync.RWMutex // never held over I/O of readers
	runs     []*run       // their spans ascend and do not overlap; a slice is not changed once a reader may have it
	front    ids.PhysicalOffset
	closed   bool
	problems []error

	memMu sync.Mutex
	mem   set // what was added behind the last run
}

// Open opens the index in o.Dir, or begins an empty one. Files that cannot be used are removed and named in Problems.
func Open(o Options) (*Index, error) {
	if err := vfs.MkdirDurable(o.FS, o.Dir); err != nil {
		return nil, fmt.Errorf("timer index: %w", err)
	}
	names, err := o.FS.List(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("timer index: %w", err)
	}
	x := &Index{o: o, front: o.FirstOffset}
	var found []*run
	for _, base := range names {
		name := filepath.Join(o.Dir, base)
		from, to, ok := parseName(base)
		if !ok {
			if strings.HasSuffix(base, vfs.TempSuffix) {
				_ = o.FS.Remove(name)
			}
			continue
		}
		r, err := openRun(o.FS, name)
		switch {
		case err != nil:
		case r.group != o.Group:
			err = fmt.Errorf("it is of group %v", r.group)
		case r.from != from || r.to != to:
			err = fmt.Errorf("it covers %d to %d", r.from, r.to)
		case o.EndOffset > 0 && r.to > o.EndOffset:
			err = fmt.Errorf("it goes to %d, the log only to %d", r.to, o.EndOffset)
		}
		if err == nil && r.to > o.FirstOffset {
			found = append(found, r)
			continue
		}
		if r != nil {
			_ = r.f.Close()
		}
		if err != nil {
			x.problems = append(x.problems, &CorruptionError{File: name, Err: err})
		}
		_ = o.FS.Remove(name) // if that fails the next Open tries again
	}
	x.choose(found)
	return x, nil
}

// choose keeps of found what covers the log from its front on without a hole; of overlapping runs the longer one, which was merged from
// the others. The rest is removed.
func (x *Index) choose(found []*run) {
	slices.SortFunc(found, func(a, b *run) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to)) })
	for _, r := range found {
		if r.from <= x.covered() && r.to > x.covered() && (len(x.runs) == 0 || r.from == x.covered()) {
			x.runs = append(x.runs, r)
			continue
		}
		x.drop(r)
	}
}

// drop removes the file of a run that the index does not have any more. Who reads it reads on.
func (x *Index) drop(r *run) {
	_ = x.o.FS.Remove(r.name)
	r.free()
}

// view returns the runs of a moment, and calls mem with what memory has besides. The caller frees the runs after its last read.
func (x *Index) view(mem func(s *set, covered ids.PhysicalOffset)) ([]*run, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.closed {
		return nil, ErrClosed
	}
	x.memMu.Lock()
	mem(&x.mem, x.covered()) // what a checkpoint has just taken to a run may still be there
	x.memMu.Unlock()
	for _, r := range x.runs {
		r.users.Add(1)
	}
	return x.runs, nil
}

func free(runs []*run) {
	for _, r := range runs {
		r.free()
	}
}

// Problems tells which files Open could not use, and why.
func (x *Index) Problems() []error { return slices.Clone(x.problems) }

// Covered returns the physical offset below which every living timer of the log is on the disk. Reading the log from there on and adding
// its timers makes the index whole.
func (x *Index) Covered() ids.PhysicalOffset {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.covered()
}

func (x *Index) covered() ids.PhysicalOffset {
	if n := len(x.runs); n > 0 {
		return x.runs[n-1].to
	}
	return x.front
}

// Add takes in a timer. One that is there already is left alone, so the log may be read again from any place.
func (x *Index) Add(e Entry) {
	x.memMu.Lock()
	x.mem.add(e)
	x.memMu.Unlock()
}

// InMemory is the number of entries that no run has yet.
func (x *Index) InMemory() int {
	x.memMu.Lock()
	defer x.memMu.Unlock()
	return x.mem.n
}

// Next returns the living entry that is due first.
func (x *Index) Next(b Bounds) (Entry, bool, error) {
	list, err := x.Scan(b, maxDue, 1)
	if err != nil || len(list) == 0 {
		return Entry{}, false, err
	}
	return list[0], true, nil
}

// maxDue is above every due time.
const maxDue = 1<<63 - 1

// Scan returns the first living entries that are due at or before until, at most limit of them, in their order.
func (x *Index) Scan(b Bounds, until int64, limit int) ([]Entry, error) {
	var all []Entry
	runs, err := x.view(func(s *set, covered ids.PhysicalOffset) { all = s.from(b, covered, until, limit, nil) })
	if err != nil {
		return nil, err
	}
	defer free(runs)
	for _, r := range runs {
		before := len(all)
		if before > 0 && before == limit {
			until = all[limit-1].Due // they are in their order
		}
		if all, err = r.scan(b, until, limit, all); err != nil {
			return nil, err
		}
		if len(all) > before && before > 0 {
			all = firsts(all, limit)
		}
	}
	return firsts(all, limit), nil
}

// firsts sorts entries and keeps the first ones.
func firsts(all []Entry, limit int) []Entry {
	slices.SortFunc(all, func(a, b Entry) int { return a.Compare(b.Pos) })
	return all[:min(len(all), limit)]
}

// Find returns the living entries that are due at that very time and have that hash, in their order.
func (x *Index) Find(b Bounds, due int64, key uint32) ([]Entry, error) {
	const step = 4096
	var found []Entry
	at := b
	if before := (Pos{Due: due - 1, Offset: maxOffset}); at.After.Compare(before) < 0 {
		at.After = before
	}
	for {
		list, err := x.Scan(at, due, step)
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			if e.Key == key {
				found = append(found, e)
			}
		}
		if len(list) < step {
			return found, nil
		}
		at.After = list[len(list)-1].Pos
	}
}

const maxOffset = ids.PhysicalOffset(1<<63 - 1)

// Below returns the living entries that lie below to in the log, by their place in it; of more than limit the first ones. It reads all
// runs, so who wants many asks for many at once.
func (x *Index) Below(b Bounds, to ids.PhysicalOffset, limit int) ([]Entry, error) {
	var all []Entry
	shrink := func() {
		slices.SortFunc(all, func(a, b Entry) int { return cmp.Compare(a.Offset, b.Offset) })
		if all = all[:min(len(all), limit)]; len(all) == limit {
			to = all[limit-1].Offset // what lies behind is none of the first ones
		}
	}
	err := x.each(b, to, func(e Entry) {
		if e.Offset >= to {
			return
		}
		if all = append(all, e); len(all) >= 2*limit {
			shrink()
		}
	})
	if err != nil {
		return nil, err
	}
	shrink()
	return all, nil
}

// each calls f with each living entry that lies below to in the log.
func (x *Index) each(b Bounds, to ids.PhysicalOffset, f func(Entry)) error {
	take := func(e Entry) {
		if e.Offset < to && b.Alive(e.Pos) {
			f(e)
		}
	}
	var inMem []Entry // f may take its time
	runs, err := x.view(func(s *set, covered ids.PhysicalOffset) {
		s.each(func(e Entry) {
			if e.Offset >= covered && e.Offset < to {
				inMem = append(inMem, e)
			}
		})
	})
	if err != nil {
		return err
	}
	defer free(runs)
	for _, e := range inMem {
		take(e)
	}
	for _, r := range runs {
		if r.from >= to || r.to <= b.Low {
			continue
		}
		if err := r.each(take); err != nil {
			return err
		}
	}
	return nil
}

// Count returns how many living entries lie below to in the log and are not left out.
func (x *Index) Count(b Bounds, to ids.PhysicalOffset, leaveOut func(Pos) bool) (n uint64, err error) {
	err = x.each(b, to, func(e Entry) {
		if !leaveOut(e.Pos) {
			n++
		}
	})
	return n, err
}

// Reset forgets what lies below end: the log is read again from its front to there. What lies behind, and may be added meanwhile, stays.
func (x *Index) Reset(end ids.PhysicalOffset) {
	x.work.Lock()
	defer x.work.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range x.runs {
		x.drop(r)
	}
	x.runs = nil
	x.memMu.Lock()
	x.mem.keepFrom(end)
	x.memMu.Unlock()
}

// Close gives up the files. It does not make a checkpoint.
func (x *Index) Close() error {
	x.work.Lock()
	defer x.work.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return ErrClosed
	}
	x.closed = true
	free(x.runs)
	x.runs = nil
	return nil
}

// CorruptionError is a file of the index that cannot be used.
type CorruptionError struct {
	File string
	Err  error
}

func (e *CorruptionError) Error() string { return fmt.Sprintf("timer index: %s: %v", e.File, e.Err) }
func (e *CorruptionError) Unwrap() error { return e.Err }
