package peer

import (
	"fmt"
	"io"
)

// readBuffer is the size of a connection's buffer, in bytes. It takes many heartbeats in one read. Of a large packet it takes the
// head and the first bytes of the frames, which are copied, so it is not larger; the others go where they stay.
const readBuffer = 8 << 10

// reader cuts the bytes of one connection into packets. Its own buffer is used again and again; only frames get a buffer of
// their own, one for all frames of a packet and exactly as large, which belongs to who receives them.
//
//	next ──▶ header: everything in it is checked ──▶ batch: head is checked, frames are read and checked
//
// Nothing is allocated for a length before that length was bounded, and nothing for frames before the whole head was found good.
type reader struct {
	conn io.Reader
	b    []byte
	r, w int // b[r:w] is read but not consumed
}

func newReader(conn io.Reader) *reader { return &reader{conn: conn, b: make([]byte, readBuffer)} }

// next returns the header of the next packet, which follows the last one whole: after a batch the caller calls batch.
func (rd *reader) next() (header, error) {
	if rd.r == rd.w && len(rd.b) > readBuffer {
		rd.b = make([]byte, readBuffer) // the last head was a large one
	}
	if err := rd.fill(headerSize); err != nil {
		return header{}, err
	}
	h, err := parseHeader(rd.b[rd.r:rd.w])
	if err != nil || h.kind == kindBatch {
		return h, err
	}
	if err := checkPacketCRC(rd.b[rd.r : rd.r+headerSize]); err != nil {
		return h, err
	}
	rd.r += headerSize
	return h, nil
}

// batch reads the rest of the packet with header h and appends its envelopes to dst: all of them, or none and an error.
func (rd *reader) batch(dst []Envelope, h header) ([]Envelope, error) {
	if err := rd.fill(headerSize + h.head); err != nil {
		return dst, err
	}
	packet := rd.b[rd.r : rd.r+headerSize+h.head]
	n, err := checkHead(h, packet)
	if err != nil {
		return dst, err
	}
	rd.r += len(packet)
	var frames []byte
	if h.frames > 0 {
		frames = make([]byte, h.frames)
		got := copy(frames, rd.b[rd.r:rd.w])
		rd.r += got
		if _, err := io.ReadFull(rd.conn, frames[got:]); err != nil {
			return dst, cutOffError(err)
		}
	}
	// packet is still whole: nothing has been read into rd.b since.
	return decodeBatch(dst, h, n, packet[headerSize:], frames)
}

// fill reads until n bytes wait in rd.b.
func (rd *reader) fill(n int) error {
	if rd.r == rd.w {
		rd.r, rd.w = 0, 0
	}
	if len(rd.b)-rd.r < n {
		b := rd.b
		if len(b) < n {
			b = make([]byte, n)
		}
		rd.r, rd.w = 0, copy(b, rd.b[rd.r:rd.w])
		rd.b = b
	}
	for rd.w-rd.r < n {
		got, err := rd.conn.Read(rd.b[rd.w:])
		rd.w += got
		if got == 0 && err != nil {
			if rd.w > rd.r {
				return cutOffError(err)
			}
			return err
		}
	}
	return nil
}

// cutOffError is about an end in the middle of a packet.
func cutOffError(err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("peer: a packet was cut off: %w", err)
}
