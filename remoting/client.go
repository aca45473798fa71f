package remoting

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// ClientOptions configure a client connection. Zero means the default.
type ClientOptions struct {
	Dialer      func(ctx context.Context, addr string) (net.Conn, error) // default TCP
	Codec       byte                                                     // CodecJSON or CodecRocketMQ; default JSON
	Handler     Handler                                                  // requests from the server, as in a server; nil: they are dropped
	Closed      func(error)                                              // after the connection has ended, with the reason; may be nil
	MaxOutput   int64                                                    // bytes of requests that wait for the socket; over it Call returns ErrNotSent; default 64 MiB
	IdleTimeout time.Duration                                            // without a byte in either direction; default 120 s
	Logger      zerolog.Logger
}

// EnsureDefaults fills in what is zero.
func (o *ClientOptions) EnsureDefaults() {
	def(&o.MaxOutput, 64<<20)
	def(&o.IdleTimeout, 120*time.Second)
	if o.Dialer == nil {
		o.Dialer = func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		}
	}
}

// Validate reports all faults at once.
func (o *ClientOptions) Validate() error {
	var faults []error
	if o.Codec > CodecRocketMQ {
		faults = append(faults, fmt.Errorf("codec %d is unknown", o.Codec))
	}
	faults = positive(faults, "MaxOutput", o.MaxOutput)
	faults = positive(faults, "IdleTimeout", int64(o.IdleTimeout))
	return errors.Join(faults...)
}

// Client is one connection to a server. Any number of goroutines may call at a time.
type Client struct {
	o      ClientOptions
	c      *Conn
	limits limits
	done   chan struct{} // closed when the reader has ended

	mu      sync.Mutex
	closed  bool
	waiting map[int32]chan *Command // by opaque; each channel has place for the one answer
}

// Dial connects to addr, host:port.
func Dial(ctx context.Context, addr string, o ClientOptions) (*Client, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("remoting: client options: %w", err)
	}
	nc, err := o.Dialer(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	cl := &Client{o: o, done: make(chan struct{}), waiting: map[int32]chan *Command{}}
	const none = 1 << 62
	cl.limits.inFlightPerConn, cl.limits.inFlightTotal = none, none
	// The client looks at MaxOutput before it appends, so that a full connection refuses a call and stays open.
	cl.limits.outputPerConn, cl.limits.outputTotal = none, none
	cl.limits.idle = o.IdleTimeout
	cl.c = newConn(nc, &cl.limits, o.Logger)
	cl.c.codec.Store(uint32(o.Codec))
	cl.c.response = cl.answer
	cl.c.handle = o.Handler
	if o.Handler == nil {
		cl.c.handle = func(*Conn, *Command) {}
	}
	go cl.read()
	return cl, nil
}

func (cl *Client) read() {
	defer close(cl.done)
	rd := reader{c: cl.c}
	cl.c.fail(rd.run())
	cl.c.wg.Wait()
	cl.mu.Lock()
	cl.closed = true
	for opaque, ch := range cl.waiting {
		delete(cl.waiting, opaque)
		close(ch)
	}
	cl.mu.Unlock()
	if cl.o.Closed != nil {
		cl.o.Closed(cl.c.reason)
	}
}

// answer takes a response on the reader goroutine. One that nobody waits for is dropped.
func (cl *Client) answer(resp *Command) {
	cl.mu.Lock()
	ch, ok := cl.waiting[resp.Opaque]
	delete(cl.waiting, resp.Opaque)
	cl.mu.Unlock()
	if ok {
		ch <- resp.Clone()
	}
}

// Call sends req and waits for its response, which belongs to the caller; its code says how the request went. Opaque,
// flag, codec, version and language are set here; req is not changed and can be used again when Call returns.
//
// The error is ErrNotSent when nothing was sent (connection closed before, output full, frame too long, ctx ended before),
// ErrClosed when the connection ended while Call waited, and wraps ctx.Err() when ctx ended then: in both the outcome is
// unknown.
func (cl *Client) Call(ctx context.Context, req *Command) (*Command, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	opaque := nextOpaque()
	ch := make(chan *Command, 1)
	cl.mu.Lock()
	if cl.closed {
		cl.mu.Unlock()
		return nil, ErrNotSent
	}
	cl.waiting[opaque] = ch
	cl.mu.Unlock()
	if err := cl.send(req, opaque, 0); err != nil {
		cl.forget(opaque)
		return nil, err
	}
	select {
	case resp, ok := <-ch:
		if !ok {
			return nil, ErrClosed
		}
		return resp, nil
	case <-ctx.Done():
		cl.forget(opaque)
		return nil, fmt.Errorf("remoting: no answer from %s: %w", cl.c.remote, ctx.Err())
	}
}

func (cl *Client) forget(opaque int32) {
	cl.mu.Lock()
	delete(cl.waiting, opaque)
	cl.mu.Unlock()
}

// OneWay sends req without waiting; no answer comes. The error is ErrNotSent as with Call.
func (cl *Client) OneWay(req *Command) error { return cl.send(req, nextOpaque(), FlagOneWay) }

func (cl *Client) send(req *Command, opaque, flag int32) error {
	e := envelope{opaque: opaque, flag: flag, version: Version, language: LangGo, codec: cl.o.Codec}
	cl.c.mu.Lock()
	if cl.c.queued > cl.o.MaxOutput {
		cl.c.mu.Unlock()
		return fmt.Errorf("%w: too many bytes wait for %s", ErrNotSent, cl.c.remote)
	}
	if !cl.c.appendUnlock(req, e) {
		return ErrNotSent // closed, or the frame is over MaxFrame
	}
	cl.c.Flush()
	return nil
}

// Conn returns the connection, for its addresses and Value.
func (cl *Client) Conn() *Conn { return cl.c }

// Closed tells whether the connection has ended: further calls return ErrNotSent.
func (cl *Client) Closed() bool { return cl.c.Closed() }

// Close ends the connection and waits for its goroutines. Calls that wait return ErrClosed. It must not be called from the
// client's Handler or Closed function.
func (cl *Client) Close() {
	cl.c.Close()
	<-cl.done
}
