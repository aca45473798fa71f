package state

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Every integer is big-endian and of fixed size; a string is its length in 4 bytes and its bytes. The same few shapes
// serve commands and snapshots.

var (
	errShort    = errors.New("it ends too early")
	errTrailing = errors.New("bytes follow its end")
	errOrder    = errors.New("its entries are not in strictly ascending order")
)

func putString(dst []byte, s string) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(s)))
	return append(dst, s...)
}

func putBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, 1)
	}
	return append(dst, 0)
}

func put32[T ~int32 | ~uint32](dst []byte, v T) []byte {
	return binary.BigEndian.AppendUint32(dst, uint32(v))
}

func put64[T ~int64 | ~uint64](dst []byte, v T) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(v))
}

// decoder reads the shapes. After the first fault it answers zeros and keeps the fault.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

func (d *decoder) take(n int) []byte {
	if d.err != nil || n > len(d.b) {
		d.fail(errShort)
		return nil
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) u8() uint8 {
	if p := d.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (d *decoder) flag() bool {
	v := d.u8()
	if v > 1 {
		d.fail(fmt.Errorf("a yes or no is %d", v))
	}
	return v == 1
}

func (d *decoder) u32() uint32 {
	if p := d.take(4); p != nil {
		return binary.BigEndian.Uint32(p)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if p := d.take(8); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

func (d *decoder) str() string {
	n := d.u32()
	if uint64(n) > uint64(len(d.b)) {
		d.fail(errShort)
		return ""
	}
	return string(d.take(int(n)))
}

// count reads a number of entries of at least size bytes each. What cannot fit is refused before anything is allocated.
func (d *decoder) count(size int) int {
	n := d.u32()
	if uint64(n)*uint64(size) > uint64(len(d.b)) {
		d.fail(errShort)
		return 0
	}
	return int(n)
}

// end tells whether all went well and nothing is left.
func (d *decoder) end() error {
	if d.err == nil && len(d.b) > 0 {
		d.fail(errTrailing)
	}
	return d.err
}
