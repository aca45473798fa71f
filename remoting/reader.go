package remoting

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"
)

const (
	firstBuffer = 8 << 10   // read buffer of a new connection
	fullBuffer  = 256 << 10 // it grows up to this while reads fill it, and beyond for one longer frame only
)

// reader takes frames off a connection. Frames are handled where they lie in its buffer.
//
//	buf: | handled | whole frames and a part | free |
//	     0         r                         w      len
type reader struct {
	c        *Conn
	buf      []byte
	r, w     int
	reserved int64 // bytes of buf over fullBuffer, counted in limits.inFlight
	skip     int   // bytes of a refused frame that are still to come
}

// run reads until the connection ends and returns why.
func (rd *reader) run() error {
	rd.buf = make([]byte, firstBuffer)
	defer func() { rd.c.limits.inFlight.Add(-rd.reserved) }()
	rd.c.touch()
	if err := rd.c.nc.SetReadDeadline(time.Now().Add(rd.c.limits.idle)); err != nil {
		return err
	}
	for {
		err := rd.frames()
		if rd.c.drained != nil {
			rd.c.drained(rd.c)
		}
		rd.c.Flush()
		if err != nil {
			return err
		}
		if err := rd.fill(); err != nil {
			return err
		}
	}
}

// frames handles the whole frames in the buffer and makes room for the next.
func (rd *reader) frames() error {
	for {
		have := rd.buf[rd.r:rd.w]
		if rd.skip > 0 {
			n := min(rd.skip, len(have))
			rd.skip -= n
			rd.r += n
			if rd.skip > 0 {
				rd.r, rd.w = 0, 0
				return nil
			}
			continue
		}
		size, header, err := frameSize(have)
		if err != nil {
			return err
		}
		if size == 0 || size > len(have) {
			return rd.room(size, header)
		}
		err = rd.c.dispatch(have[:size:size], header)
		spoil(have[:size])
		if err != nil {
			return err
		}
		rd.r += size
	}
}

// room makes the buffer ready for the next read: the begun frame moves to the front, and the buffer grows, but only
// when it is full. So a length that lies costs what was really sent, not what it claims.
func (rd *reader) room(size, header int) error {
	if rd.r == rd.w {
		rd.r, rd.w = 0, 0
		if len(rd.buf) > fullBuffer {
			rd.buf = make([]byte, fullBuffer)
			rd.c.limits.inFlight.Add(-rd.reserved)
			rd.reserved = 0
		}
	}
	if rd.w < len(rd.buf) {
		if rd.r > 0 && size > len(rd.buf)-rd.r {
			rd.w = copy(rd.buf, rd.buf[rd.r:rd.w])
			rd.r = 0
		}
		return nil
	}
	if rd.r > 0 {
		rd.w = copy(rd.buf, rd.buf[rd.r:rd.w])
		rd.r = 0
		if len(rd.buf) >= fullBuffer {
			return nil
		}
	}
	grown := min(2*len(rd.buf), max(size, fullBuffer))
	if extra := int64(grown - max(len(rd.buf), fullBuffer)); extra > 0 {
		if rd.c.limits.inFlight.Add(extra) > rd.c.limits.inFlightTotal {
			rd.c.limits.inFlight.Add(-extra)
			return rd.refuse(size, header)
		}
		rd.reserved += extra
	}
	rd.buf = append(make([]byte, 0, grown), rd.buf...)[:grown]
	return nil
}

// refuse answers a long frame that there is no memory for, and skips the rest of it.
func (rd *reader) refuse(size, header int) error {
	have := rd.buf[rd.r:rd.w]
	if frameHead+header > len(have) {
		return badFrame("no memory for a header of %d bytes", header)
	}
	c := rd.c
	c.req.Reset()
	if err := c.req.decodeHeader(have[:frameHead+header:frameHead+header], header); err != nil {
		return err
	}
	if !c.req.Response() {
		c.busy(&c.req)
	}
	rd.skip = size - len(have)
	rd.r, rd.w = 0, 0
	return nil
}

// fill reads once. It returns errIdle after the idle timeout without a byte in either direction.
func (rd *reader) fill() error {
	c := rd.c
	for {
		n, err := c.nc.Read(rd.buf[rd.w:])
		if n > 0 {
			c.touch()
			rd.w += n
			if rd.w == len(rd.buf) && len(rd.buf) < fullBuffer {
				rd.buf = append(make([]byte, 0, 2*len(rd.buf)), rd.buf...)[:2*len(rd.buf)]
			}
			return nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			if err == nil {
				err = io.ErrNoProgress
			}
			if errors.Is(err, io.EOF) && (rd.w > rd.r || rd.skip > 0) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		left := c.limits.idle - (time.Since(c.start) - time.Duration(c.active.Load()))
		if left <= 0 {
			return errIdle
		}
		if rd.r == rd.w && len(rd.buf) > firstBuffer && left < c.limits.idle/2 {
			rd.buf, rd.r, rd.w = make([]byte, firstBuffer), 0, 0 // quiet for long: it needs no large buffer now
		}
		if err := c.nc.SetReadDeadline(time.Now().Add(left)); err != nil {
			return err
		}
	}
}

// dispatch decodes one frame and hands it to its taker.
func (c *Conn) dispatch(frame []byte, header int) error {
	req := &c.req
	req.Reset()
	if err := req.decodeHeader(frame, header); err != nil {
		return err
	}
	if req.Response() {
		if c.response != nil {
			c.response(req)
		}
		return nil
	}
	c.codec.Store(uint32(req.Codec))
	cost := c.cost(req)
	if c.inFlight.Load()+cost > c.limits.inFlightPerConn || c.limits.inFlight.Load()+cost > c.limits.inFlightTotal {
		c.busy(req)
		return nil
	}
	c.taken = false
	return c.call(req)
}

func (c *Conn) busy(req *Command) {
	c.ReplyError(req, SystemBusy, busyRemark+" too many requests wait for an answer, try later")
}

// call runs the handler. A panic is answered with SYSTEM_ERROR; when the handler had already taken the pending answer,
// nobody can know whether it will still be given, and the connection ends.
func (c *Conn) call(req *Command) (err error) {
	defer func() {
		if p := recover(); p != nil {
			c.log.Error().Int32("code", req.Code).Stringer("remote", c.remote).Str("panic", fmt.Sprint(p)).
				Str("stack", string(debug.Stack())).Msg("a request handler panicked")
			if c.taken {
				err = errHandler
				return
			}
			c.ReplyError(req, SystemError, fmt.Sprintf("internal error: %v", p))
		}
	}()
	c.handle(c, req)
	return nil
}
