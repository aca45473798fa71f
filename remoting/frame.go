package remoting

import (
	"encoding/binary"
	"fmt"
)

// MaxFrame bounds a frame with its length field. MaxFields bounds the extension fields of one header.
const (
	MaxFrame  = 16 << 20
	MaxFields = 1024
)

// frameHead is the size of what stands before the header: length and codec with header length.
const frameHead = 8

// FrameError tells why bytes are not a frame. The connection they came from is closed.
type FrameError struct{ Reason string }

func (e *FrameError) Error() string { return "remoting: bad frame: " + e.Reason }

func badFrame(format string, args ...any) error {
	return &FrameError{Reason: fmt.Sprintf(format, args...)}
}

// frameSize reads as much of a frame's first 8 bytes as there is and checks it. It returns the size of the whole frame
// and of its header, 0 while it cannot be known.
func frameSize(b []byte) (size, header int, err error) {
	if len(b) < 4 {
		return 0, 0, nil
	}
	length := binary.BigEndian.Uint32(b)
	if length > MaxFrame-4 {
		if b[0] == 0x16 {
			return 0, 0, badFrame("it looks like TLS, which this port does not speak")
		}
		return 0, 0, badFrame("length %d is over %d", length, MaxFrame-4)
	}
	if length < 4 {
		return 0, 0, badFrame("length %d has no place for the header's length", length)
	}
	if len(b) < frameHead {
		return 4 + int(length), 0, nil
	}
	if codec := b[4]; codec != CodecJSON && codec != CodecRocketMQ {
		return 0, 0, badFrame("unknown codec %d", codec)
	}
	header = int(binary.BigEndian.Uint32(b[4:]) & 0xFFFFFF)
	if header > int(length)-4 {
		return 0, 0, badFrame("header of %d bytes in a frame of %d", header, length)
	}
	return 4 + int(length), header, nil
}

// Decode reads a whole frame, with its length field, as AppendTo makes it. The command's strings and body lie in frame,
// and escapes in a JSON header are resolved in place: frame belongs to the command from now on. The error is a
// *FrameError.
func Decode(frame []byte) (*Command, error) {
	c := new(Command)
	if err := c.DecodeFrom(frame); err != nil {
		return nil, err
	}
	return c, nil
}

// DecodeFrom is Decode into c, whose memory is used again.
func (c *Command) DecodeFrom(frame []byte) error {
	c.Reset()
	size, header, err := frameSize(frame)
	switch {
	case err != nil:
		return err
	case len(frame) < frameHead:
		return badFrame("%d bytes are less than the smallest frame", len(frame))
	case size != len(frame):
		return badFrame("it says %d bytes and has %d", size, len(frame))
	}
	return c.decodeHeader(frame, header)
}

// decodeHeader reads a frame whose head has been checked. The body may be cut off.
func (c *Command) decodeHeader(frame []byte, header int) error {
	c.Codec = frame[4]
	c.size = len(frame)
	h := frame[frameHead : frameHead+header]
	var reason string
	if c.Codec == CodecJSON {
		reason = c.decodeJSON(h)
	} else {
		reason = c.decodeBinary(h)
	}
	if reason != "" {
		return badFrame("header: %s", reason)
	}
	if body := frame[frameHead+header:]; len(body) > 0 {
		c.Body = body[:len(body):len(body)]
	}
	return nil
}

// AppendTo appends the whole frame, with its length field. A command that the binary codec cannot carry (a code or
// version over 16 bits, a key over 32767 bytes) goes as JSON.
//
// The result is no frame when it is over MaxFrame; connections check that.
func (c *Command) AppendTo(dst []byte) []byte {
	return c.appendAs(dst, envelope{opaque: c.Opaque, flag: c.Flag, version: c.Version, language: c.Language, codec: c.Codec})
}

// envelope is what a connection decides about a frame.
type envelope struct {
	opaque, flag, version int32
	language, codec       byte
}

func (c *Command) appendAs(dst []byte, e envelope) []byte {
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0)
	codec := e.codec
	if codec != CodecJSON && !c.fitsBinary(e) {
		codec = CodecJSON
	}
	if codec == CodecJSON {
		dst = c.appendJSON(dst, e)
	} else {
		dst = c.appendBinary(dst, e)
	}
	header := len(dst) - at - frameHead
	dst = append(dst, c.Body...)
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	binary.BigEndian.PutUint32(dst[at+4:], uint32(codec)<<24|uint32(header)&0xFFFFFF)
	return dst
}
