package commitlog

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// Repair puts back what a log that is not open lost in its middle, from the bytes of another replica:
//
//	OpenRepair: walks from a good frame before the damage to its end ─▶ Need: the bytes that are wanted next ─▶ Put: those of the other
//	replica ─▶ … ─▶ Commit
//
// What is put in is exactly what was there: each frame must chain on to the good one before the damage, and a good one of this log
// must chain on to the last of them. A log whose damage reaches its end has no such frame, and is not repaired: its tail is lost.
//
// Nothing of the log is changed before Commit. Each segment that the damage touches is written anew beside the old file, from what is
// good of that one and from what came; it is whole and synced before it takes the old one's name. A crash before that leaves the
// damage, one after it less of it.
//
// A Repair is used by one goroutine.
type Repair struct {
	o     Options
	lock  io.Closer
	meta  metaRecord
	bases []ids.PhysicalOffset // of all segments, sorted
	at    ids.PhysicalOffset   // where the damage was seen

	// The walk: t is the last frame that is good, or was put in, and base the segment behind whose frames it goes on.
	t      Tail
	base   ids.PhysicalOffset
	old    vfs.File // nil while the segment is missing
	size   int64    // of what of old counts
	headOK bool     // old has the header that belongs there
	w      window

	out    vfs.File // the segment written anew, nil while none is
	outAt  int64    // end of what is in out and buf
	buf    []byte   // not yet written
	made   []ids.PhysicalOffset
	anchor ids.PhysicalOffset // a valid frame is there, the damage ends at or before it
	loose  bool               // t came from the other replica, and nothing of this log followed yet

	state repairState
	got   []byte // put, and not a whole frame yet
	put   int64  // bytes that came from the other replica
}

type repairState int

const (
	repairWalks repairState = iota
	repairNeeds
	repairDone
)

// ErrNoMatch is returned by Repair.Put when the bytes are not those that this log lost.
var ErrNoMatch = errors.New("commitlog: the bytes do not belong to this log")

// OpenRepair looks for the damage that was seen at an offset, that of a *DamageError or a *CorruptionError. It returns a *DamageError
// that is Lost when the damage reaches the end of the log, and the errors of Open.
func OpenRepair(o Options, at ids.PhysicalOffset) (*Repair, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	lock, err := o.FS.Lock(filepath.Join(o.Dir, lockName))
	if err != nil {
		return nil, fmt.Errorf("commitlog: repair: %w", err)
	}
	r := &Repair{o: o, lock: lock, at: at}
	if err := r.open(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Repair) open() error {
	o := &r.o
	m, err := loadMeta(o)
	if err != nil {
		return err
	}
	r.meta = m.cur
	if err := m.f.Close(); err != nil {
		return r.wrap(err)
	}
	if r.meta.making || r.meta.resetting {
		return fmt.Errorf("commitlog: repair: %s is being made: open it first", o.Dir)
	}
	names, err := o.FS.List(o.Dir)
	if err != nil {
		return r.wrap(err)
	}
	for _, name := range names {
		if base, is := parseName(name, logSuffix); is && base >= r.meta.front.base && (r.meta.TruncateTo == 0 || base <= o.base(r.meta.TruncateTo)) {
			r.bases = append(r.bases, base)
		}
	}
	slices.Sort(r.bases)
	if err := r.start(); err != nil {
		return err
	}
	return r.walk()
}

func (r *Repair) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("commitlog: repair: %w", err)
}

// start goes to a good frame before the damage: the first one of its segment, or of one before it, or the front.
func (r *Repair) start() error {
	front := r.meta.front
	for base := max(r.o.base(r.at), front.base); base > front.base; base -= ids.PhysicalOffset(r.o.SegmentSize) {
		if err := r.enter(base); err != nil {
			return err
		}
		h, ok := r.header()
		if !ok {
			continue
		}
		b, err := r.w.at(segmentHeaderSize, headerSize)
		if err != nil || len(b) < headerSize {
			continue
		}
		size, err := frameSize(b, r.o.maxFrame())
		if err != nil {
			continue
		}
		if b, err = r.w.at(segmentHeaderSize, size); err != nil {
			continue
		}
		if f, err := ParseFrame(b, h.seed); err == nil && f.Offset() == base+segmentHeaderSize && f.Offset() < r.at {
			r.t = Tail{Term: f.Term(), Index: f.Index() - 1, Offset: base + segmentHeaderSize, Chain: h.seed}
			r.headOK = true
			return nil
		}
	}
	r.t = front.prev
	r.t.Offset = front.base + segmentHeaderSize
	return r.enter(front.base)
}

// enter goes to the segment at base.
func (r *Repair) enter(base ids.PhysicalOffset) error {
	if r.old != nil {
		_ = r.old.Close() // nothing was written through it
	}
	r.base, r.old, r.size, r.headOK, r.w = base, nil, 0, false, window{buf: r.w.buf}
	if _, there := slices.BinarySearch(r.bases, base); !there {
		return nil
	}
	f, err := r.o.FS.Open(r.path(base))
	if err != nil {
		return r.wrap(err)
	}
	r.old = f
	if r.size, err = f.Size(); err != nil {
		return r.wrap(err)
	}
	r.size = min(r.size, r.o.SegmentSize)
	if to := r.meta.TruncateTo; to != 0 && base == r.o.base(to) {
		r.size = min(r.size, int64(to-base))
	}
	r.w.f, r.w.limit = f, r.size
	h, ok := r.header()
	r.headOK = ok && h.seed == r.t.Chain
	return nil
}

// header reads the segment's header and tells whether it is one of this log and place.
func (r *Repair) header() (segmentHeader, bool) {
	if r.old == nil {
		return segmentHeader{}, false
	}
	b := make([]byte, segmentHeaderSize)
	n, err := readFull(r.old, b, 0)
	if err != nil {
		return segmentHeader{}, false
	}
	h, err := decodeSegmentHeader(b[:n])
	return h, err == nil && h.base == r.base && h.cluster == r.o.Cluster && h.group == r.o.Group && h.segmentSize == r.o.SegmentSize
}

func (r *Repair) path(base ids.PhysicalOffset) string {
	return filepath.Join(r.o.Dir, segmentName(base, logSuffix))
}

// pos is where in the segment the walk goes on.
func (r *Repair) pos() int64 { return int64(max(r.t.Offset-r.base, segmentHeaderSize)) }

// local returns the frame of this log that follows t, or why there is none.
func (r *Repair) local() (Frame, scanEnd) {
	if r.old == nil {
		return nil, scanEnd{reason: "the segment is missing"}
	}
	f, end, err := r.o.scanFrame(&r.w, r.base, r.pos(), r.t)
	if err != nil {
		return nil, scanEnd{reason: "cannot be read: " + err.Error()}
	}
	return f, end
}

// walk follows the frames of this log until bytes are needed, or nothing is left to do.
func (r *Repair) walk() error {
	r.state = repairWalks
	for r.state == repairWalks {
		var err error
		switch f, end := r.local(); {
		case !r.headOK && r.out == nil:
			err = r.damage("no header of this segment", true)
			if r.state == repairNeeds {
				r.state = repairWalks // the frames may be good: the loop looks, now with a header
			}
		case f != nil && r.out == nil && r.base > r.o.base(r.at):
			r.state = repairDone // it is good again
		case f != nil:
			r.loose = false
			err = r.take(f)
		case end.pad && r.pos() > segmentHeaderSize:
			r.loose = false
			err = r.roll()
		default:
			err = r.damage(end.reason, false)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// damage decides about a place where no frame of this log follows, or whose segment has no header: something is needed when a valid frame
// comes later, else the log ends here.
func (r *Repair) damage(reason string, header bool) error {
	off := r.base + ids.PhysicalOffset(r.pos())
	m := &r.meta
	below := r.t.Index < m.BoundIndex || r.t.Offset < m.BoundOffset && r.t.Index > 0
	fail := func(lost bool, format string, args ...any) error {
		return &DamageError{File: r.path(r.base), Offset: off, Reason: fmt.Sprintf(format, args...), Lost: lost}
	}
	if off >= r.anchor && !(m.CleanStop && r.t.Index == m.BoundIndex) {
		beyond := m.batchEnd
		if below || r.o.Async && r.o.BootID != "" && r.o.BootID == m.BootID { // as in recovery.judge
			beyond = 0
		}
		found, err := r.later(beyond)
		if err != nil {
			return err
		}
		switch {
		case found != off || found == 0:
			r.anchor = found
		case header: // all that is lacking
			return r.begin()
		case r.loose:
			return fmt.Errorf("%w: the frame at offset %d does not follow what came for index %d", ErrNoMatch, off, r.t.Index)
		default:
			return fail(false, "a valid frame does not follow index %d: %s", r.t.Index, reason)
		}
	}
	switch {
	case off < r.anchor:
		r.state = repairNeeds
		if r.out == nil {
			return r.begin()
		}
		return nil
	case r.loose:
		return fmt.Errorf("%w: none of its frames follows what came for index %d", ErrNoMatch, r.t.Index)
	case below:
		return fail(true, "lost tail: the log ends with index %d, the durable bound is index %d: %s, and no frame follows", r.t.Index, m.BoundIndex, reason)
	case header && r.base == m.front.base: // a start demands it
		return fail(true, "lost tail: %s, and no frame follows", reason)
	}
	r.state = repairDone
	return r.finish(true)
}

// later returns the offset of a valid frame behind where the walk is, one that ends behind beyond; 0 when there is none.
func (r *Repair) later(beyond ids.PhysicalOffset) (ids.PhysicalOffset, error) {
	var unread error
	pos := r.pos()
	to := max(r.meta.BoundOffset+r.o.maxBehind(), r.meta.batchEnd, r.base+ids.PhysicalOffset(pos+4*int64(r.o.maxFrame())))
	if r.meta.TruncateTo != 0 {
		to = min(to, r.meta.TruncateTo)
	}
	for _, base := range r.bases {
		if base < r.base || base >= to {
			continue
		}
		from := int64(0)
		if base == r.base {
			from = pos
		}
		f, err := r.o.FS.Open(r.path(base))
		if err != nil {
			return 0, r.wrap(err)
		}
		size, err := f.Size()
		var off ids.PhysicalOffset
		var found bool
		if err == nil {
			off, found, err = r.o.findLater(f, base, from, min(size, int64(to-base)), r.t.Index, beyond)
		}
		_ = f.Close()
		if found {
			return off, nil
		}
		unread = errors.Join(unread, err) // what cannot be read is damage too: a later segment may be good
	}
	return 0, r.wrap(unread)
}

// begin makes the file that takes the place of the segment, with all that is good of it so far.
func (r *Repair) begin() error {
	f, err := r.o.FS.Create(r.path(r.base) + vfs.TempSuffix)
	if err != nil {
		return r.wrap(err)
	}
	r.out, r.outAt, r.buf = f, 0, r.buf[:0]
	if !r.headOK {
		h := segmentHeader{cluster: r.o.Cluster, group: r.o.Group, segmentSize: r.o.SegmentSize, base: r.base, seed: r.t.Chain,
			// Other than any that a start gives: those count from 1.
			generation: r.meta.Starts<<32 | 1<<31 | uint64(int64(r.base)/r.o.SegmentSize)&(1<<31-1)}
		if err := r.write(h.encode()); err != nil {
			return err
		}
	}
	return r.copyOld(r.pos())
}

// copyOld copies what of the old file follows the end of the new one, up to an end.
func (r *Repair) copyOld(end int64) error {
	b := make([]byte, min(windowSize, r.o.SegmentSize))
	for r.outAt < end {
		n, err := readFull(r.old, b[:min(int64(len(b)), end-r.outAt)], r.outAt)
		if err != nil {
			return r.wrap(err)
		}
		if n == 0 {
			return nil
		}
		if err := r.write(b[:n]); err != nil {
			return err
		}
	}
	return nil
}

// write adds b to the new file.
func (r *Repair) write(b []byte) error {
	r.buf = append(r.buf, b...)
	r.outAt += int64(len(b))
	if len(r.buf) < windowSize {
		return nil
	}
	return r.flush()
}

func (r *Repair) flush() error {
	_, err := r.out.WriteAt(r.buf, r.outAt-int64(len(r.buf)))
	r.buf = r.buf[:0]
	return r.wrap(err)
}

// take goes on behind f, which follows t.
func (r *Repair) take(f Frame) error {
	r.t = r.t.After(f)
	if r.out == nil {
		return nil
	}
	return r.write(f)
}

// roll goes on in the next segment.
func (r *Repair) roll() error {
	if r.out != nil {
		var pad [padSize]byte
		putPad(pad[:], r.t.Offset, r.t.Chain)
		if err := r.write(pad[:]); err != nil {
			return err
		}
		if err := r.finish(false); err != nil {
			return err
		}
	}
	return r.enter(r.base + ids.PhysicalOffset(r.o.SegmentSize))
}

// finish makes the new file whole and durable, under its temporary name; rest takes over what follows the last frame of the old one.
func (r *Repair) finish(rest bool) error {
	if r.out == nil {
		return nil
	}
	if rest && r.old != nil {
		size, err := r.old.Size()
		if err != nil {
			return r.wrap(err)
		}
		if err := r.copyOld(size); err != nil {
			return err
		}
	}
	err := r.flush()
	if err == nil {
		err = r.wrap(r.out.SyncData())
	}
	err = errors.Join(err, r.out.Close())
	r.out = nil
	r.made = append(r.made, r.base)
	return err
}

// Damaged tells whether anything is to be repaired.
func (r *Repair) Damaged() bool { return r.state != repairDone || len(r.made) > 0 }

// Need returns where the bytes begin that Put wants next, and the index of the frame that they begin with, or go on with. ok is false
// when nothing is needed any more.
func (r *Repair) Need() (index ids.Index, from ids.PhysicalOffset, ok bool) {
	return r.t.Index + 1, r.base + ids.PhysicalOffset(r.pos()) + ids.PhysicalOffset(len(r.got)), r.state == repairNeeds
}

// Fetched is how many bytes Put has taken.
func (r *Repair) Fetched() int64 { return r.put }

// Put takes bytes of another replica's log from Need's place on, as its ReadRaw gave them. After ErrNoMatch, and any other error, the
// Repair is of no use any more: what came before may be of another history too.
func (r *Repair) Put(b []byte) error {
	no := func(reason string) error {
		return fmt.Errorf("%w: at offset %d, after index %d: %s", ErrNoMatch, r.base+ids.PhysicalOffset(r.pos()), r.t.Index, reason)
	}
	if r.state != repairNeeds {
		return no("nothing is needed")
	}
	r.got = append(r.got, b...)
	r.put += int64(len(b))
	for r.state == repairNeeds {
		off := r.base + ids.PhysicalOffset(r.pos())
		if r.pos() > segmentHeaderSize && isPad(r.got, off, r.t.Chain) {
			r.got, r.loose = r.got[:0], true // what follows is in the next segment
			if err := r.roll(); err != nil {
				return err
			}
			if err := r.walk(); err != nil {
				return err
			}
			continue
		}
		if len(r.got) < headerSize {
			if len(r.got) >= 4 && string(r.got[:4]) != frameMagic && string(r.got[:4]) != padMagic {
				return no("no frame")
			}
			return nil
		}
		size, err := frameSize(r.got, r.o.maxFrame())
		if err != nil {
			return no(err.(*CorruptionError).Reason)
		}
		if len(r.got) < size {
			return nil
		}
		f, err := ParseFrame(r.got[:size], r.t.Chain)
		if err != nil {
			return no(err.(*CorruptionError).Reason)
		}
		if f.Offset() != off || f.Index() != r.t.Index+1 || f.Term() < r.t.Term || !r.o.placed(r.t.Offset, f) {
			return no(fmt.Sprintf("frame of index %d, term %v, offset %d", f.Index(), f.Term(), f.Offset()))
		}
		r.loose = true
		if err := r.take(f); err != nil {
			return err
		}
		r.got = r.got[:copy(r.got, r.got[size:])] // f is gone
		if err := r.walk(); err != nil {
			return err
		}
		if r.base+ids.PhysicalOffset(r.pos()) != off+ids.PhysicalOffset(size) {
			r.got = r.got[:0] // the walk went over good frames: what is needed now is somewhere else
		}
	}
	return nil
}

// Commit puts the new files in the place of the old ones. The log can be opened when it returns nil.
func (r *Repair) Commit() error {
	if r.state != repairDone {
		return fmt.Errorf("commitlog: repair: entry %d is still lacking", r.t.Index+1)
	}
	for _, base := range r.made {
		if err := r.o.FS.Rename(r.path(base)+vfs.TempSuffix, r.path(base)); err != nil {
			return r.wrap(err)
		}
	}
	r.made = nil
	return r.wrap(r.o.FS.SyncDir(r.o.Dir))
}

// ReadRaw is that of Log for one that is not open, and may be damaged: not even where its frames end is known.
func ReadRaw(o Options, p []byte, off ids.PhysicalOffset) (int, error) {
	o.EnsureDefaults()
	base := o.base(off)
	if off < base+segmentHeaderSize {
		return 0, ErrUnavailable
	}
	f, err := o.FS.Open(filepath.Join(o.Dir, segmentName(base, logSuffix)))
	if err != nil {
		return 0, fmt.Errorf("commitlog: read raw: %w", err)
	}
	defer f.Close()
	n, err := readFull(f, p, int64(off-base))
	if n == 0 && err == nil {
		err = ErrUnavailable
	}
	return n, err
}

// ReadMeta returns the meta of a log that need not be open.
func ReadMeta(o Options) (Meta, error) {
	o.EnsureDefaults()
	m, err := loadMeta(&o)
	if err != nil {
		return Meta{}, err
	}
	return m.cur.Meta, m.f.Close()
}

// Close ends the use of r and gives the log free. What was not committed is removed.
func (r *Repair) Close() error {
	var errs []error
	if r.old != nil {
		errs = append(errs, r.old.Close())
		r.old = nil
	}
	if r.out != nil {
		errs = append(errs, r.out.Close())
		r.out = nil
		r.made = append(r.made, r.base)
	}
	for _, base := range r.made {
		if err := r.o.FS.Remove(r.path(base) + vfs.TempSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err) // the next start removes it otherwise
		}
	}
	r.made = nil
	if r.lock != nil {
		errs = append(errs, r.lock.Close())
		r.lock = nil
	}
	return errors.Join(errs...)
}
