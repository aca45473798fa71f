package remoting

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// silent serves connections that are read and never answered.
func silent(t *testing.T) (*Server, chan Pending) {
	pending := make(chan Pending, 64)
	return serve(t, ServerOptions{Handler: func(c *Conn, req *Command) { pending <- c.Pending(req) }}), pending
}

func TestCallOutcomes(t *testing.T) {
	t.Parallel()
	s, pending := silent(t)
	reason := make(chan error, 1)
	cl := dial(t, s, ClientOptions{Closed: func(err error) { reason <- err }})

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := cl.Call(ctx, NewRequest(1)); !errors.Is(err, ErrNotSent) || !errors.Is(err, context.Canceled) {
		t.Errorf("a context that had ended: %v", err)
	}

	ctx, cancel = context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := cl.Call(ctx, NewRequest(1)); errors.Is(err, ErrNotSent) || !errors.Is(err, context.Canceled) {
			t.Errorf("a context that ended while waiting: %v", err)
		}
	})
	late := <-pending
	cancel()
	wg.Wait()
	late.Answer(NewResponse(9, "")) // is dropped
	wg.Go(func() {
		if resp, err := cl.Call(t.Context(), NewRequest(2)); err != nil || resp.Code != 3 {
			t.Errorf("after a late answer: %+v, %v", resp, err)
		}
	})
	p := <-pending
	p.Answer(NewResponse(3, ""))
	wg.Wait()

	for range 10 {
		wg.Go(func() {
			if _, err := cl.Call(t.Context(), NewRequest(1)); !errors.Is(err, ErrClosed) || errors.Is(err, ErrNotSent) {
				t.Errorf("closed while waiting: %v", err)
			}
		})
	}
	for range 10 {
		<-pending
	}
	s.Close()
	wg.Wait()
	<-reason
	if _, err := cl.Call(t.Context(), NewRequest(1)); !errors.Is(err, ErrNotSent) || errors.Is(err, ErrClosed) {
		t.Errorf("closed before: %v", err)
	}
	if err := cl.OneWay(NewRequest(1)); !errors.Is(err, ErrNotSent) || !cl.Closed() {
		t.Errorf("one-way after the end: %v", err)
	}
	if _, err := Dial(t.Context(), s.Addr().String(), ClientOptions{}); !errors.Is(err, ErrNotSent) {
		t.Errorf("a server that is gone: %v", err)
	}
}

func TestCloseWhileCalling(t *testing.T) {
	t.Parallel()
	s, pending := silent(t)
	cl := dial(t, s, ClientOptions{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := cl.Call(t.Context(), NewRequest(1)); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
	<-pending
	cl.Close()
	wg.Wait()
	cl.Close()
}

func TestOneWayArrives(t *testing.T) {
	t.Parallel()
	got := make(chan *Command, 1)
	s := serve(t, ServerOptions{Handler: func(c *Conn, req *Command) { got <- req.Clone() }})
	cl := dial(t, s, ClientOptions{Codec: CodecRocketMQ})
	if err := cl.OneWay(NewRequest(UpdateConsumerOffset)); err != nil {
		t.Fatal(err)
	}
	if req := <-got; !req.OneWay() || req.Code != UpdateConsumerOffset || req.Codec != CodecRocketMQ {
		t.Errorf("%+v", req)
	}
}

// A client whose server does not read refuses calls at its bound, and stays open.
func TestClientOutputBound(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cl, err := Dial(t.Context(), l.Addr().String(), ClientOptions{MaxOutput: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	req := NewRequest(1)
	req.Body = make([]byte, 1<<20)
	for range 100 {
		if err = cl.OneWay(req); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrNotSent) || !strings.Contains(err.Error(), "too many bytes") || cl.Closed() {
		t.Fatalf("%v, closed %v", err, cl.Closed())
	}
}

// A connection that is no socket is written by its goroutine.
func TestPipe(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	l := &oneConn{conn: far, done: make(chan struct{})}
	s := NewServer(ServerOptions{Listener: l, Handler: echo})
	s.Start()
	defer s.Close()
	cl, err := Dial(t.Context(), "", ClientOptions{Dialer: func(context.Context, string) (net.Conn, error) { return near, nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { alive(t, cl) })
	}
	wg.Wait()
}

// oneConn is a listener that has one connection.
type oneConn struct {
	conn net.Conn
	once sync.Once
	done chan struct{}
}

func (l *oneConn) Accept() (c net.Conn, err error) {
	l.once.Do(func() { c = l.conn })
	if c == nil {
		<-l.done
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l *oneConn) Close() error   { close(l.done); return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

func TestClientIdle(t *testing.T) {
	t.Parallel()
	s, _ := silent(t)
	reason := make(chan error, 1)
	start := time.Now()
	dial(t, s, ClientOptions{IdleTimeout: 50 * time.Millisecond, Closed: func(err error) { reason <- err }})
	if err := <-reason; !errors.Is(err, errIdle) || time.Since(start) < 50*time.Millisecond {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

func TestClientOptionFaults(t *testing.T) {
	t.Parallel()
	if _, err := Dial(t.Context(), "127.0.0.1:1", ClientOptions{Codec: 9, MaxOutput: -1}); err == nil ||
		!strings.Contains(err.Error(), "codec 9") || !strings.Contains(err.Error(), "MaxOutput") {
		t.Error(err)
	}
}
