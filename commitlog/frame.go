package commitlog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"iter"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// Layout of a frame and a pad marker. docs/format/commitlog.md has the picture.
const (
	frameMagic       = "LMQF"
	padMagic         = "LMQP"
	frameVersion     = 1
	flagEmpty        = 1
	headerSize       = 64
	EmptyFrameSize   = headerSize // of a frame without records, and of no other
	recordHeaderSize = 8
	padSize          = 16
	align            = 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// be is the byte order of all formats here.
var be = binary.BigEndian

func aligned(n int64) int64 { return (n + align - 1) &^ (align - 1) }

// Frame is one whole valid frame: its header and its records. It has no alignment padding: records are padded to 8 bytes each,
// so its size is a multiple of 8. The methods trust that the bytes came from ParseFrame, CheckFrame, a Builder or a Log.
type Frame []byte

// Term is the Raft term in which the frame was made.
func (f Frame) Term() ids.Term { return ids.Term(be.Uint64(f[16:])) }

// Index is the Raft index of the frame.
func (f Frame) Index() ids.Index { return ids.Index(be.Uint64(f[24:])) }

// Offset is where the frame starts in the log.
func (f Frame) Offset() ids.PhysicalOffset { return ids.PhysicalOffset(be.Uint64(f[32:])) }

// Size is the number of bytes of the frame, header included.
func (f Frame) Size() int { return len(f) }

// Time is the time of its records in milliseconds since 1970, 0 in an empty frame.
func (f Frame) Time() int64 { return int64(be.Uint64(f[40:])) }

// Chain is the chain value after this frame: its checksum.
func (f Frame) Chain() uint32 { return be.Uint32(f[60:]) }

// PrevChain is the chain value of the frame before.
func (f Frame) PrevChain() uint32 { return be.Uint32(f[48:]) }

// Empty tells whether the frame has no records.
func (f Frame) Empty() bool { return f[5]&flagEmpty != 0 }

// RecordCount is the number of records.
func (f Frame) RecordCount() int { return int(be.Uint32(f[12:])) }

// Ref is what a thin entry carries for the frame.
func (f Frame) Ref() Ref { return Ref{Offset: f.Offset(), Size: uint32(len(f)), CRC: f.Chain()} }

// Record is one record of a frame. The types belong to the layers above.
type Record struct {
	Type, Version uint8
	Flags         uint16
	Offset        ids.PhysicalOffset // of the body
	Body          []byte             // inside the frame's bytes
}

// Records yields the records in order.
func (f Frame) Records() iter.Seq[Record] {
	return func(yield func(Record) bool) {
		at := headerSize
		for range f.RecordCount() {
			n := int(be.Uint32(f[at+4:]))
			r := Record{Type: f[at], Version: f[at+1], Flags: be.Uint16(f[at+2:]), Offset: f.Offset() + ids.PhysicalOffset(at+recordHeaderSize)}
			r.Body = f[at+recordHeaderSize : at+recordHeaderSize+n : at+recordHeaderSize+n]
			if !yield(r) {
				return
			}
			at += recordHeaderSize + int(aligned(int64(n)))
		}
	}
}

// checksum returns the chain value of the frame in b, whose previous chain stands in its header.
func checksum(b []byte) uint32 {
	return crc32.Update(crc32.Update(be.Uint32(b[48:]), castagnoli, b[:60]), castagnoli, b[headerSize:])
}

// ParseFrame checks everything about the frame that b holds exactly: layout, records, checksum, and that it follows a frame
// whose chain value is prevChain. The error is a *CorruptionError. The frame shares b's bytes.
func ParseFrame(b []byte, prevChain uint32) (Frame, error) {
	f, err := CheckFrame(b)
	if err == nil && f.PrevChain() != prevChain {
		return nil, &CorruptionError{Offset: f.Offset(), Reason: fmt.Sprintf("follows chain %08x, not %08x", f.PrevChain(), prevChain)}
	}
	return f, err
}

// CheckFrame is ParseFrame with the previous chain value that the header names.
func CheckFrame(b []byte) (Frame, error) {
	size, err := frameSize(b, MaxFrame)
	if err != nil {
		return nil, err
	}
	f := Frame(b)
	bad := func(format string, args ...any) (Frame, error) {
		return nil, &CorruptionError{Offset: f.Offset(), Reason: fmt.Sprintf(format, args...)}
	}
	if size != len(b) {
		return bad("%d bytes, the header says %d", len(b), size)
	}
	if sum := checksum(b); sum != f.Chain() {
		return bad("checksum %08x, the header says %08x", sum, f.Chain())
	}
	// A frame with a good checksum and a bad inside comes from a faulty writer. It must not reach a reader that trusts lengths.
	if f[5]&^flagEmpty != 0 || be.Uint64(b[52:]) != 0 {
		return bad("unknown flags or reserved bytes")
	}
	if f.Empty() != (f.RecordCount() == 0) || f.Empty() != (size == headerSize) || f.Empty() && f.Time() != 0 || f.Time() < 0 {
		return bad("empty flag %v with %d records, %d bytes, time %d", f.Empty(), f.RecordCount(), size, f.Time())
	}
	if f.Offset() < 0 || f.Offset()%align != 0 || f.Index() == 0 {
		return bad("impossible offset or index %d", f.Index())
	}
	at := headerSize
	for i := range f.RecordCount() {
		if size-at < recordHeaderSize {
			return bad("record %d is cut off", i)
		}
		n := int64(be.Uint32(b[at+4:]))
		end := int64(at+recordHeaderSize) + aligned(n)
		if end > int64(size) {
			return bad("record %d of %d bytes passes the end", i, n)
		}
		for _, c := range b[int64(at+recordHeaderSize)+n : end] {
			if c != 0 {
				return bad("record %d is not padded with zeros", i)
			}
		}
		at = int(end)
	}
	if at != size {
		return bad("%d bytes after the last record", size-at)
	}
	return f, nil
}

// frameSize checks the fixed part of the header that b starts with and returns the size of the frame.
func frameSize(b []byte, maxFrame int) (int, error) {
	bad := func(format string, args ...any) (int, error) {
		return 0, &CorruptionError{Offset: -1, Reason: fmt.Sprintf(format, args...)}
	}
	if len(b) < headerSize {
		return bad("%d bytes are no header", len(b))
	}
	if string(b[:4]) != frameMagic {
		return bad("no magic")
	}
	if b[4] != frameVersion || be.Uint16(b[6:]) != headerSize {
		return bad("version %d with a header of %d bytes", b[4], be.Uint16(b[6:]))
	}
	size := int64(be.Uint32(b[8:]))
	if size < headerSize || size > int64(maxFrame) || size%align != 0 {
		return bad("size %d", size)
	}
	return int(size), nil
}

// putHeader fills in the header of the frame f and returns it.
func putHeader(f []byte, term ids.Term, index ids.Index, off ids.PhysicalOffset, time int64, records int, prevChain uint32) Frame {
	h := f[:headerSize]
	clear(h)
	copy(h, frameMagic)
	h[4] = frameVersion
	if records == 0 {
		h[5] = flagEmpty
	}
	be.PutUint16(h[6:], headerSize)
	be.PutUint32(h[8:], uint32(len(f)))
	be.PutUint32(h[12:], uint32(records))
	be.PutUint64(h[16:], uint64(term))
	be.PutUint64(h[24:], uint64(index))
	be.PutUint64(h[32:], uint64(off))
	be.PutUint64(h[40:], uint64(time))
	be.PutUint32(h[48:], prevChain)
	be.PutUint32(h[60:], checksum(f))
	return f
}

// putPad fills the 16 bytes of a pad marker at off.
func putPad(b []byte, off ids.PhysicalOffset, prevChain uint32) {
	copy(b, padMagic)
	be.PutUint64(b[8:], uint64(off))
	be.PutUint32(b[4:], crc32.Update(prevChain, castagnoli, b[8:padSize]))
}

// isPad tells whether b starts with the pad marker that belongs at off.
func isPad(b []byte, off ids.PhysicalOffset, prevChain uint32) bool {
	return len(b) >= padSize && string(b[:4]) == padMagic && be.Uint64(b[8:]) == uint64(off) &&
		be.Uint32(b[4:]) == crc32.Update(prevChain, castagnoli, b[8:padSize])
}

// RefSize is the size of an encoded Ref.
const RefSize = 16

// Ref names a frame: what a thin Raft entry carries.
type Ref struct {
	Offset ids.PhysicalOffset
	Size   uint32 // bytes, without alignment
	CRC    uint32 // the frame's chain value
}

// EncodeRef returns the 16 bytes of r.
func EncodeRef(r Ref) []byte { return AppendRef(make([]byte, 0, RefSize), r) }

// AppendRef appends the 16 bytes of r to dst.
func AppendRef(dst []byte, r Ref) []byte {
	dst = be.AppendUint64(dst, uint64(r.Offset))
	dst = be.AppendUint32(dst, r.Size)
	return be.AppendUint32(dst, r.CRC)
}

// DecodeRef is the reverse of EncodeRef. It returns an error when b has another length or names an impossible place.
func DecodeRef(b []byte) (Ref, error) {
	if len(b) != RefSize {
		return Ref{}, fmt.Errorf("commitlog: a reference of %d bytes, want %d", len(b), RefSize)
	}
	r := Ref{Offset: ids.PhysicalOffset(be.Uint64(b)), Size: be.Uint32(b[8:]), CRC: be.Uint32(b[12:])}
	if r.Offset < 0 || r.Offset%align != 0 || r.Size < headerSize || r.Size > MaxFrame {
		return Ref{}, fmt.Errorf("commitlog: impossible reference to %d bytes at offset %d", r.Size, r.Offset)
	}
	return r, nil
}

// Tail is the state of a log after one frame: all that the next frame depends on.
type Tail struct {
	Term   ids.Term
	Index  ids.Index
	Offset ids.PhysicalOffset // aligned end of the frame, exclusive
	Chain  uint32
	Time   int64 // the greatest time of any record so far, milliseconds
}

// After returns the tail after f.
func (t Tail) After(f Frame) Tail {
	return Tail{Term: f.Term(), Index: f.Index(), Offset: f.Offset() + ids.PhysicalOffset(aligned(int64(len(f)))), Chain: f.Chain(), Time: max(t.Time, f.Time())}
}

// startChain is the chain value before index 1.
func startChain(c ids.ClusterID, g ids.GroupID) uint32 {
	return crc32.Update(crc32.Checksum(c[:], castagnoli), castagnoli, g[:])
}
