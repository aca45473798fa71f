package commitlog

import (
	"fmt"
	"hash/crc32"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

const (
	sidecarMagic   = "LMQX"
	sidecarVersion = 1
	sidecarFixed   = 88
)

// sidecar is what a start needs of a segment instead of reading it: how far it was at a checkpoint, and the tables up to
// there. It is derived: a bad one is ignored and the segment read.
type sidecar struct {
	base       ids.PhysicalOffset
	generation uint64
	first      ids.Index
	tail       Tail  // after the last frame that it covers
	last       int64 // position of that frame
	terms      []TermStart
	sparse     sparse
}

func (s *sidecar) encode() []byte {
	b := make([]byte, 0, sidecarFixed+24*len(s.terms)+8*len(s.sparse)+4)
	b = append(b, sidecarMagic...)
	b = append(b, sidecarVersion, 0, 0, 0)
	b = be.AppendUint64(b, uint64(s.base))
	b = be.AppendUint64(b, s.generation)
	b = be.AppendUint64(b, uint64(s.first))
	b = be.AppendUint64(b, uint64(s.tail.Term))
	b = be.AppendUint64(b, uint64(s.tail.Index))
	b = be.AppendUint64(b, uint64(s.tail.Offset))
	b = be.AppendUint64(b, uint64(s.tail.Time))
	b = be.AppendUint64(b, uint64(s.last))
	b = be.AppendUint32(b, s.tail.Chain)
	b = be.AppendUint32(b, 0)
	b = be.AppendUint32(b, uint32(len(s.terms)))
	b = be.AppendUint32(b, uint32(len(s.sparse)))
	for _, t := range s.terms {
		b = be.AppendUint64(b, uint64(t.Term))
		b = be.AppendUint64(b, uint64(t.StartIndex))
		b = be.AppendUint64(b, uint64(t.StartOffset))
	}
	for _, e := range s.sparse {
		b = be.AppendUint32(b, e.delta)
		b = be.AppendUint32(b, e.pos)
	}
	return be.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeSidecar is the reverse of encode. It checks all that the tables' users rely on.
func decodeSidecar(b []byte) (*sidecar, error) {
	bad := func(format string, args ...any) (*sidecar, error) {
		return nil, fmt.Errorf("commitlog: sidecar: "+format, args...)
	}
	if len(b) < sidecarFixed+4 || string(b[:4]) != sidecarMagic || b[4] != sidecarVersion || b[5]|b[6]|b[7] != 0 {
		return bad("no magic, or of another version")
	}
	if crc32.Checksum(b[:len(b)-4], castagnoli) != be.Uint32(b[len(b)-4:]) {
		return bad("checksum")
	}
	at := func(i int) uint64 { return be.Uint64(b[8*i:]) }
	s := &sidecar{
		base: ids.PhysicalOffset(at(1)), generation: at(2), first: ids.Index(at(3)),
		tail: Tail{Term: ids.Term(at(4)), Index: ids.Index(at(5)), Offset: ids.PhysicalOffset(at(6)), Time: int64(at(7)), Chain: be.Uint32(b[72:])},
		last: int64(at(8)),
	}
	terms, entries := int64(be.Uint32(b[80:])), int64(be.Uint32(b[84:]))
	if int64(len(b)) != sidecarFixed+24*terms+8*entries+4 || be.Uint32(b[76:]) != 0 {
		return bad("%d bytes with %d terms and %d entries", len(b), terms, entries)
	}
	end := int64(s.tail.Offset - s.base)
	frames := int64(s.tail.Index) - int64(s.first) + 1
	if s.base < 0 || s.tail.Offset < s.base || end > ids.MaxSegmentSize || s.first == 0 || frames < 1 || frames > end/headerSize ||
		s.last < segmentHeaderSize || s.last%align != 0 || s.last > end-headerSize || entries == 0 || s.tail.Time < 0 {
		return bad("impossible tail")
	}
	b = b[sidecarFixed:]
	for i := range terms {
		t := TermStart{ids.Term(be.Uint64(b)), ids.Index(be.Uint64(b[8:])), ids.PhysicalOffset(be.Uint64(b[16:]))}
		b = b[24:]
		if t.StartIndex < s.first || t.StartIndex > s.tail.Index || t.StartOffset < s.base || t.StartOffset >= s.tail.Offset || t.Term > s.tail.Term ||
			i > 0 && (t.Term <= s.terms[i-1].Term || t.StartIndex <= s.terms[i-1].StartIndex) {
			return bad("impossible term")
		}
		s.terms = append(s.terms, t)
	}
	for i := range entries {
		e := sparseEntry{be.Uint32(b), be.Uint32(b[4:])}
		b = b[8:]
		if i == 0 && (e.delta != 0 || e.pos != segmentHeaderSize/align) || i > 0 && (e.delta <= s.sparse[i-1].delta || e.pos <= s.sparse[i-1].pos) ||
			int64(e.delta) >= frames || int64(e.pos)*align > s.last {
			return bad("impossible entry")
		}
		s.sparse = append(s.sparse, e)
	}
	return s, nil
}

// Checkpoint syncs, renews the durable bound with owner (nil: the one before), and writes the sidecars, so that the next
// start reads only what comes after. It should be called about every 64 MiB. A failure to write a sidecar is returned and
// does not poison the log.
func (l *Log) Checkpoint(owner []byte) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if err := l.writable(); err != nil {
		return err
	}
	if err := l.sync(); err != nil {
		return err
	}
	if err := l.SaveMeta(owner, false); err != nil {
		return err
	}
	return l.writeSidecars()
}

// writeSidecars writes those that are behind; wmu is held and all is synced.
// Invariant: a sidecar never covers more than the durable bound of the newest meta.
func (l *Log) writeSidecars() error {
	for _, s := range l.segs {
		if s.last < s.first || s.sidecar == s.last {
			continue
		}
		t, last, err := l.tailOf(s.last)
		if err != nil {
			return err
		}
		l.mu.RLock()
		sc := sidecar{base: s.base(), generation: s.header.generation, first: s.first, tail: t, last: int64(last.Offset - s.base()), sparse: s.sparse}
		for _, e := range l.epochs {
			if e.StartIndex >= s.first && e.StartIndex <= s.last {
				sc.terms = append(sc.terms, e)
			}
		}
		l.mu.RUnlock()
		if err := vfs.WriteFileAtomic(l.o.FS, l.segmentPath(s.base(), sidecarSuffix), sc.encode()); err != nil {
			return fmt.Errorf("commitlog: checkpoint: %w", err)
		}
		s.sidecar = s.last
	}
	return nil
}

// tailOf returns the tail after frame i, which is in the log, and the frame's reference.
func (l *Log) tailOf(i ids.Index) (Tail, Ref, error) {
	f, err := l.ReadFrame(i, nil)
	if err != nil {
		return Tail{}, Ref{}, err
	}
	t := Tail{}.After(f)
	ref := f.Ref()
	// Only records carry a time: go back to the last frame that has some. Empty frames come from elections; they are few.
	for f.Empty() {
		if i--; i <= l.front.prev.Index {
			t.Time = l.front.prev.Time
			return t, ref, nil
		}
		if f, err = l.ReadFrame(i, f); err != nil {
			return Tail{}, Ref{}, err
		}
	}
	t.Time = f.Time()
	return t, ref, nil
}
