package broker

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/remoting"
)

// What the earlier master was asked it still answers when the connection to the next one stands: that it stored nothing, or that it did.
func TestEarlierMasterAnswers(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan struct{}), make(chan struct{})
	serve := func(h remoting.Handler) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := remoting.NewServer(remoting.ServerOptions{Listener: l, Handler: h})
		s.Start()
		t.Cleanup(func() { s.Close() })
		return l.Addr().String()
	}
	earlier := serve(func(c *remoting.Conn, req *remoting.Command) {
		c.Async(req, func(_ *remoting.Command, p *remoting.Pending) {
			close(asked)
			select {
			case <-answer:
			case <-t.Context().Done():
			}
			p.Answer(remoting.NewResponse(remoting.ServiceNotAvailable, remarkNotStored))
		})
	})
	next := serve(func(c *remoting.Conn, req *remoting.Command) {
		c.Reply(req, remoting.NewResponse(remoting.Success, ""))
	})
	r := &Replica{}
	r.ctx, r.stop = context.WithCancel(context.Background())
	f := &forwarder{r: r}
	t.Cleanup(func() { r.stop(); f.close() })
	first, err := f.dial(t.Context(), earlier)
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		resp *remoting.Command
		err  error
	}
	got := make(chan result, 1)
	go func() {
		resp, err := first.Call(t.Context(), remoting.NewRequest(remoting.SendMessage))
		got <- result{resp, err}
	}()
	<-asked
	if _, err := f.dial(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	close(answer)
	if g := <-got; g.err != nil || g.resp.Remark != remarkNotStored {
		t.Fatalf("the earlier master's answer: %+v, %v", g.resp, g.err)
	}
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for late := time.After(4 * forwardTimeout); !first.Closed(); { // when no request waits any more
		select {
		case <-poll.C:
		case <-late:
			t.Fatal("the connection to the earlier master stays")
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.client == nil || f.client.Closed() {
		t.Error("the connection to the next master is closed")
	}
}
