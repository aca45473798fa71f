package client

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ledgermq/ledgermq/remoting"
)

// conns holds one connection per address. A connection that has ended is replaced when the address is used next.
type conns struct {
	o *options

	mu     sync.Mutex
	byAddr map[string]*conn
	closed bool

	ctx  context.Context // ends with close
	stop context.CancelFunc
	wg   sync.WaitGroup // dials
}

// conn is a connection, or an attempt to make one: all who want the address wait for the same attempt.
type conn struct {
	ready  chan struct{} // closed when client or err is set
	client *remoting.Client
	err    error
}

func newConns(o *options) *conns {
	p := &conns{o: o, byAddr: map[string]*conn{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// errNotSent wraps what went wrong before a request left this process.
var errNotSent = errors.New("not sent")

// call asks addr and waits for the answer. The error is errNotSent when the request certainly was not sent; with any other
// error the server may have got it.
func (p *conns) call(ctx context.Context, addr string, req *remoting.Command) (*remoting.Command, error) {
	for try := 0; ; try++ {
		cl, fresh, err := p.get(ctx, addr)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", errNotSent, addr, err)
		}
		resp, err := cl.Call(ctx, req)
		switch {
		case err == nil:
			return resp, nil
		case !errors.Is(err, remoting.ErrNotSent):
			return nil, fmt.Errorf("%s: %w", addr, err)
		case fresh || try > 0 || !cl.Closed():
			return nil, fmt.Errorf("%w: %s: %w", errNotSent, addr, err)
		}
		// The connection had ended while nobody used it. A new one is worth one try.
	}
}

// oneWay sends what nobody answers. The error is errNotSent.
func (p *conns) oneWay(ctx context.Context, addr string, req *remoting.Command) error {
	for try := 0; ; try++ {
		cl, fresh, err := p.get(ctx, addr)
		if err != nil {
			return fmt.Errorf("%w: %s: %w", errNotSent, addr, err)
		}
		if err = cl.OneWay(req); err == nil {
			return nil
		}
		if fresh || try > 0 || !cl.Closed() {
			return fmt.Errorf("%w: %s: %w", errNotSent, addr, err)
		}
	}
}

// get returns the open connection to addr, or makes it.
func (p *conns) get(ctx context.Context, addr string) (cl *remoting.Client, fresh bool, err error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, false, ErrClosed
	}
	e := p.byAddr[addr]
	if e != nil && e.over() {
		e = nil
	}
	if e == nil {
		e = &conn{ready: make(chan struct{})}
		p.byAddr[addr] = e
		p.wg.Add(1)
		go p.dial(addr, e)
		fresh = true
	}
	p.mu.Unlock()
	select {
	case <-e.ready:
		return e.client, fresh, e.err
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
}

// over tells whether e has failed or ended.
func (e *conn) over() bool {
	select {
	case <-e.ready:
		return e.err != nil || e.client.Closed()
	default:
		return false
	}
}

// dial makes the connection. It has its own time, because more than one may wait for it.
func (p *conns) dial(addr string, e *conn) {
	defer p.wg.Done()
	ctx, cancel := context.WithTimeout(p.ctx, p.o.dialTimeout)
	defer cancel()
	e.client, e.err = remoting.Dial(ctx, addr, remoting.ClientOptions{Dialer: p.o.dial, Logger: p.o.logger})
	close(e.ready)
}

// close ends all connections and waits for their goroutines.
func (p *conns) close() {
	p.mu.Lock()
	p.closed = true
	all := p.byAddr
	p.byAddr = map[string]*conn{}
	p.mu.Unlock()
	p.stop()
	p.wg.Wait()
	for _, e := range all {
		if e.client != nil {
			e.client.Close()
		}
	}
}
