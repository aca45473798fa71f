package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Client talks to one cluster. It keeps one connection per address and the routes of the topics in use.
type Client struct {
	o       options
	namesrv []string
	conns   *conns
	turn    atomic.Uint64 // next queue for sends without a key
	server  atomic.Uint32 // index of the name server that answered last

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu       sync.Mutex // guards what follows; never held over I/O
	cache    *routeCache
	fetching map[string]*fetch // by topic: one question at a time, all who wait share the answer
	closed   bool
}

// New makes a client of the cluster with these name servers, each host:port; one string may hold several, separated by ; or
// comma. It connects to nothing yet. Close it after use.
func New(namesrv []string, opts ...Option) (*Client, error) {
	var addrs []string
	for _, text := range namesrv {
		for _, a := range strings.FieldsFunc(text, func(r rune) bool { return r == ';' || r == ',' || r == ' ' }) {
			if !slices.Contains(addrs, a) {
				addrs = append(addrs, a)
			}
		}
	}
	if len(addrs) == 0 {
		return nil, errors.New("client: no address of a name server is given")
	}
	o := defaults()
	for _, opt := range opts {
		opt(&o)
	}
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("client: options: %w", err)
	}
	c := &Client{o: o, namesrv: addrs, cache: newRouteCache(), fetching: map[string]*fetch{}}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.conns = newConns(&c.o)
	c.wg.Add(1)
	go c.refresh()
	return c, nil
}

// Close ends all calls, with ErrClosed or an unknown outcome, and waits for the client's goroutines. Consumers must have been
// closed before.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stop()
	c.conns.close()
	c.wg.Wait()
}

// refresh asks for the routes in use again from time to time.
func (c *Client) refresh() {
	defer c.wg.Done()
	tick := time.NewTicker(c.o.routeEvery)
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		c.mu.Lock()
		topics := make([]string, 0, len(c.cache.topics))
		for topic := range c.cache.topics {
			topics = append(topics, topic)
		}
		c.mu.Unlock()
		for _, topic := range topics {
			if _, err := c.fetchRoute(c.ctx, topic); err != nil && c.ctx.Err() == nil {
				c.o.logger.Debug().Err(err).Str("topic", topic).Msg("the route was not refreshed")
			}
		}
	}
}

// within returns a context that also ends with the client.
func (c *Client) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.ctx, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// pause waits d, or less when ctx ends. It tells whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// backoff is the pause before another try; it doubles.
type backoff struct{ next, longest time.Duration }

func (c *Client) newBackoff() backoff { return backoff{c.o.minBackoff, c.o.maxBackoff} }

func (b *backoff) pause(ctx context.Context) bool {
	d := b.next
	b.next = min(2*b.next, b.longest)
	return pause(ctx, d)
}
