package remoting

import (
	"encoding/binary"
	"math"
)

// binaryFixed is the size of a binary header without remark and fields: code 2, language 1, version 2, opaque 4, flag 4,
// remark length 4, fields length 4.
const binaryFixed = 21

// fitsBinary tells whether the 16-bit places of the binary header hold what c has.
func (c *Command) fitsBinary(e envelope) bool {
	if c.Code != int32(int16(c.Code)) || e.version != int32(int16(e.version)) {
		return false
	}
	for i := range c.fields {
		if len(c.fields[i].key) > math.MaxInt16 {
			return false
		}
	}
	return true
}

func (c *Command) appendBinary(dst []byte, e envelope) []byte {
	b := binary.BigEndian
	dst = b.AppendUint16(dst, uint16(c.Code))
	dst = append(dst, e.language)
	dst = b.AppendUint16(dst, uint16(e.version))
	dst = b.AppendUint32(dst, uint32(e.opaque))
	dst = b.AppendUint32(dst, uint32(e.flag))
	dst = b.AppendUint32(dst, uint32(len(c.Remark)))
	dst = append(dst, c.Remark...)
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	for i := range c.fields {
		f := &c.fields[i]
		dst = b.AppendUint16(dst, uint16(len(f.key)))
		dst = append(dst, f.key...)
		dst = b.AppendUint32(dst, uint32(len(f.value)))
		dst = append(dst, f.value...)
	}
	b.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst
}

// decodeBinary reads a binary header and returns what is wrong with it. A field with an empty value is absent: RocketMQ
// reads a string of length 0 as null.
func (c *Command) decodeBinary(h []byte) (fault string) {
	if len(h) < binaryFixed {
		return "shorter than the fixed part"
	}
	b := binary.BigEndian
	c.Code = int32(int16(b.Uint16(h)))
	c.Language = h[2]
	c.Version = int32(int16(b.Uint16(h[3:])))
	c.Opaque = int32(b.Uint32(h[5:]))
	c.Flag = int32(b.Uint32(h[9:]))
	n := b.Uint32(h[13:])
	h = h[17:]
	if uint64(n)+4 > uint64(len(h)) {
		return "the remark runs past the end"
	}
	c.Remark = alias(h[:n])
	h = h[n:]
	if uint64(b.Uint32(h)) != uint64(len(h)-4) {
		return "the fields do not end with the header"
	}
	h = h[4:]
	for len(h) > 0 {
		if len(h) < 2 {
			return "a key's length is cut off"
		}
		n := int(b.Uint16(h))
		h = h[2:]
		if n > math.MaxInt16 || n+4 > len(h) {
			return "a key runs past the end"
		}
		key := alias(h[:n])
		n32 := b.Uint32(h[n:])
		h = h[n+4:]
		if uint64(n32) > uint64(len(h)) {
			return "a value runs past the end"
		}
		if n32 > 0 && key != "" {
			if len(c.fields) == MaxFields {
				return "too many fields"
			}
			c.fields = append(c.fields, field{key, alias(h[:n32])})
		}
		h = h[n32:]
	}
	return ""
}
