package remoting

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

const (
	flushAt   = 256 << 10 // output of one turn of the reader that is written before the turn ends
	keepOut   = 1 << 20   // capacity up to which an output buffer goes back to the pool
	writePart = 256 << 10 // written at a time by the goroutine, so that a slow but living reader is seen to live
)

// Conn is one connection, of a server or of a client. All methods may be called from any goroutine.
type Conn struct {
	nc     net.Conn
	raw    syscall.RawConn // nil when the connection is no socket of the system
	remote netip.AddrPort
	local  netip.AddrPort
	limits *limits
	log    zerolog.Logger
	server *Server // nil on the client's side

	handle   func(*Conn, *Command) // requests
	response func(*Command)        // responses; nil: dropped
	drained  func(*Conn)           // after the last whole frame of a read; may be nil

	req   Command // of the reader
	taken bool    // the handler has called Pending for req

	value  atomic.Pointer[any]
	codec  atomic.Uint32 // of the peer's last request
	active atomic.Int64  // ns since start at the last byte read or written
	start  time.Time

	inFlight atomic.Int64 // changed under mu only

	mu      sync.Mutex
	closed  bool
	reason  error
	out     *outBuffer              // appended, not yet taken by a writer; nil when there is nothing
	queued  int64                   // bytes of out and what a writer has taken and not yet written
	writing bool                    // somebody owns sending and rest
	wg      sync.WaitGroup          // the goroutine that writes while the socket is full
	calls   map[int32]chan *Command // requests to a server's peer that wait for their answers, by opaque; see Call

	// Invariant: only who set writing touches these.
	sending *outBuffer // what is being written
	rest    []byte     // what of it is not yet written
	try     tryWriter
}

// outBuffer is output of one connection. The buffers are shared by all, so that a connection without output has none.
type outBuffer struct{ b []byte }

var outBuffers = sync.Pool{New: func() any { return new(outBuffer) }}

func (o *outBuffer) release() {
	if cap(o.b) <= keepOut {
		o.b = o.b[:0]
		outBuffers.Put(o)
	}
}

func newConn(nc net.Conn, l *limits, log zerolog.Logger) *Conn {
	c := &Conn{nc: nc, limits: l, start: time.Now()}
	c.remote, c.local = addrPort(nc.RemoteAddr()), addrPort(nc.LocalAddr())
	c.log = log
	if s, ok := nc.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			c.raw = raw
			c.try.init()
		}
	}
	return c
}

func addrPort(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	p := t.AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

// RemoteAddr returns the peer's address; an IPv4 peer has an IPv4 address also on a socket that listens on IPv6.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }

// LocalAddr returns the address that the peer connected to.
func (c *Conn) LocalAddr() netip.AddrPort { return c.local }

// Value returns what SetValue stored last, nil before.
func (c *Conn) Value() any {
	if v := c.value.Load(); v != nil {
		return *v
	}
	return nil
}

// SetValue stores the owner's state of this connection.
func (c *Conn) SetValue(v any) { c.value.Store(&v) }

// Close ends the connection. The reader ends soon after; Close does not wait for it.
func (c *Conn) Close() { c.fail(ErrClosed) }

// Closed tells whether the connection has ended.
func (c *Conn) Closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// fail ends the connection for this reason; the first one counts.
func (c *Conn) fail(reason error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed, c.reason = true, reason
	c.out = nil
	c.limits.output.Add(-c.queued)
	c.limits.inFlight.Add(-c.inFlight.Load())
	c.inFlight.Store(0)
	c.queued = 0
	c.endCalls()
	c.mu.Unlock()
	c.nc.Close()
}

func (c *Conn) touch() { c.active.Store(int64(time.Since(c.start))) }

// answerEnvelope is what every answer carries.
func answerEnvelope(opaque int32, codec byte) envelope {
	return envelope{opaque: opaque, flag: FlagResponse, version: Version, language: LangGo, codec: codec}
}

// appendUnlock adds a frame to the output. It returns false when the connection is closed, or closes it when its output is
// over the bound. An answer over MaxFrame becomes SYSTEM_ERROR.
//
// mu is held by the caller, and released here.
func (c *Conn) appendUnlock(cmd *Command, e envelope) bool {
	if c.closed {
		c.mu.Unlock()
		return false
	}
	out := c.output()
	before := len(out.b)
	out.b = cmd.appendAs(out.b, e)
	if len(out.b)-before > MaxFrame {
		out.b = out.b[:before]
		if e.flag&FlagResponse == 0 {
			c.mu.Unlock()
			return false
		}
		out.b = NewResponse(SystemError, "the answer is longer than a frame").appendAs(out.b, e)
	}
	return c.appendedUnlock(len(out.b) - before)
}

// output returns the buffer to append to. mu is held.
func (c *Conn) output() *outBuffer {
	if c.out == nil {
		c.out = outBuffers.Get().(*outBuffer)
	}
	return c.out
}

// appendedUnlock counts n bytes that were appended, and ends a connection that is over a bound.
func (c *Conn) appendedUnlock(n int) bool {
	c.queued += int64(n)
	over := c.queued > c.limits.outputPerConn
	// Under mu: fail takes queued off the total, and must find these bytes in it.
	over = c.limits.output.Add(int64(n)) > c.limits.outputTotal || over
	c.mu.Unlock()
	if over {
		c.fail(errSlowReader)
	}
	return !over
}

// Reply answers req from inside its handler call, or later with a Clone of it. A one-way request gets no answer. Inside
// the handler the write waits for the end of the reader's turn, so that the answers to requests that came together leave
// together.
//
// It takes what it needs of resp: resp can be used again when Reply returns. Opaque, flag, codec, version and language
// are set by the connection.
func (c *Conn) Reply(req *Command, resp *Command) {
	if req.OneWay() {
		return
	}
	c.mu.Lock()
	full := c.out != nil && len(c.out.b) >= flushAt
	ok := c.appendUnlock(resp, answerEnvelope(req.Opaque, req.Codec))
	if ok && (full || req != &c.req) {
		c.Flush()
	}
}

// ReplyError answers req with a code and a remark.
func (c *Conn) ReplyError(req *Command, code int32, remark string) {
	c.Reply(req, &Command{Code: code, Remark: remark})
}

// Push sends a one-way request to the peer, in the codec that it used last. The error is ErrNotSent when the connection is
// closed. Opaque, flag, codec, version and language are set by the connection.
func (c *Conn) Push(cmd *Command) error {
	e := envelope{opaque: nextOpaque(), flag: FlagOneWay, version: Version, language: LangGo, codec: byte(c.codec.Load())}
	c.mu.Lock()
	if !c.appendUnlock(cmd, e) {
		return ErrNotSent
	}
	c.Flush()
	return nil
}

var opaques atomic.Int32

func nextOpaque() int32 { return opaques.Add(1) }

// Flush writes what AppendAnswer left. It does not wait: when the socket is full a goroutine of the connection goes on, and
// when somebody else is writing already, he takes the rest.
func (c *Conn) Flush() {
	c.mu.Lock()
	if c.writing || c.closed || c.out == nil {
		c.mu.Unlock()
		return
	}
	c.writing = true
	c.takeOut()
	c.mu.Unlock()
	if c.raw == nil || !c.writeNow() {
		c.writeInBackground()
	}
}

// takeOut makes the output what is written. mu is held, writing is set.
func (c *Conn) takeOut() {
	c.sending, c.out = c.out, nil
	c.rest = c.sending.b
}

// written notes n bytes of rest as done and takes what has been appended since. It returns false when there is nothing
// more to write; writing is given up then.
func (c *Conn) written(n int) bool {
	c.rest = c.rest[n:]
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		c.writing = false
		return false
	}
	c.queued -= int64(n)
	c.limits.output.Add(-int64(n))
	if len(c.rest) > 0 {
		return true
	}
	c.sending.release()
	c.sending = nil
	if c.out == nil {
		c.writing = false
		return false
	}
	c.takeOut()
	return true
}

// writeNow writes as much as the socket takes. It returns false when the socket is full and rest is not empty.
func (c *Conn) writeNow() bool {
	for {
		n, err := c.try.write(c.raw, c.rest)
		if err != nil {
			c.fail(err)
		}
		full := n < len(c.rest)
		if !c.written(n) {
			c.touch()
			return true
		}
		if full {
			return false
		}
	}
}

func (c *Conn) writeInBackground() {
	c.mu.Lock()
	if c.closed {
		c.writing = false
		c.mu.Unlock()
		return
	}
	c.wg.Add(1)
	c.mu.Unlock()
	go func() {
		defer c.wg.Done()
		for {
			n, err := c.nc.Write(c.rest[:min(len(c.rest), writePart)])
			if err != nil {
				c.fail(err)
			}
			c.touch()
			if !c.written(n) {
				return
			}
		}
	}()
}
