package remoting

import (
	"context"
	"fmt"
)

// maxCalls bounds the requests to one peer that wait for its answers; one more is not sent.
const maxCalls = 64

// Call sends a request to the peer of a server's connection, in the codec that it used last, and waits for its answer, which belongs to
// the caller. Opaque, flag, codec, version and language are set by the connection; req is not changed.
//
// The error is ErrNotSent when nothing was sent (closed, too long, or maxCalls wait already), ErrClosed when the connection ended
// meanwhile, and wraps ctx.Err() when ctx ended: in both the peer may have carried it out.
func (c *Conn) Call(ctx context.Context, req *Command) (*Command, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	e := envelope{opaque: nextOpaque(), version: Version, language: LangGo, codec: byte(c.codec.Load())}
	ch := make(chan *Command, 1)
	c.mu.Lock()
	if c.closed || len(c.calls) >= maxCalls {
		c.mu.Unlock()
		return nil, fmt.Errorf("%w: %s is closed or leaves %d requests without an answer", ErrNotSent, c.remote, maxCalls)
	}
	if c.calls == nil {
		c.calls = map[int32]chan *Command{}
	}
	c.calls[e.opaque] = ch
	if !c.appendUnlock(req, e) {
		c.forgetCall(e.opaque)
		return nil, ErrNotSent
	}
	c.Flush()
	select {
	case resp, ok := <-ch:
		if !ok {
			return nil, ErrClosed
		}
		return resp, nil
	case <-ctx.Done():
		c.forgetCall(e.opaque)
		return nil, fmt.Errorf("remoting: no answer from %s: %w", c.remote, ctx.Err())
	}
}

func (c *Conn) forgetCall(opaque int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, opaque)
}

// answered takes the answer to a Call on the reader goroutine. One that nobody waits for is dropped.
func (c *Conn) answered(resp *Command) {
	c.mu.Lock()
	ch, ok := c.calls[resp.Opaque]
	delete(c.calls, resp.Opaque)
	c.mu.Unlock()
	if ok {
		ch <- resp.Clone()
	}
}

// endCalls tells those who wait that no answer comes any more. mu is held, closed is set.
func (c *Conn) endCalls() {
	for opaque, ch := range c.calls {
		delete(c.calls, opaque)
		close(ch)
	}
}
