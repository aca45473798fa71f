package remoting

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A server asks a client over the client's own connection; an answer that does not come, and a connection that ends, are told apart.
func TestConnCall(t *testing.T) {
	t.Parallel()
	conns := make(chan *Conn, 1)
	s := serve(t, ServerOptions{Handler: func(c *Conn, req *Command) {
		c.Reply(req, NewResponse(Success, ""))
		conns <- c
	}})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	asked := make(chan struct{}, maxCalls)
	cl, err := Dial(ctx, s.Addr().String(), ClientOptions{Codec: CodecRocketMQ, Handler: func(c *Conn, req *Command) {
		if req.Code == GetConsumerRunningInfo {
			resp := NewResponse(Success, "")
			resp.Body = append([]byte("for "), req.GetOr("clientId", "")...)
			c.Reply(req, resp)
			return
		}
		asked <- struct{}{}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, err := cl.Call(ctx, NewRequest(HeartBeat)); err != nil {
		t.Fatal(err)
	}
	c := <-conns
	req := NewRequest(GetConsumerRunningInfo)
	req.Set("clientId", "c1")
	resp, err := c.Call(ctx, req)
	if err != nil || string(resp.Body) != "for c1" {
		t.Fatalf("the client answers %v, %v", resp, err)
	}
	short, done := context.WithTimeout(ctx, 50*time.Millisecond)
	defer done()
	if _, err := c.Call(short, NewRequest(ConsumeMessageDirectly)); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrNotSent) {
		t.Errorf("an answer that does not come: %v", err)
	}
	<-asked
	ends := make(chan error, maxCalls)
	for range maxCalls {
		go func() {
			_, err := c.Call(ctx, NewRequest(ConsumeMessageDirectly))
			ends <- err
		}()
	}
	for range maxCalls {
		<-asked
	}
	if _, err := c.Call(ctx, NewRequest(ConsumeMessageDirectly)); !errors.Is(err, ErrNotSent) {
		t.Errorf("one call over the bound: %v", err)
	}
	cl.Close()
	for range maxCalls {
		if err := <-ends; !errors.Is(err, ErrClosed) {
			t.Errorf("a call whose connection ended: %v", err)
		}
	}
	if _, err := c.Call(ctx, NewRequest(ConsumeMessageDirectly)); !errors.Is(err, ErrNotSent) {
		t.Errorf("a call on a closed connection: %v", err)
	}
}
