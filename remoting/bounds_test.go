package remoting

import (
	"bytes"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func busyAnswer(t *testing.T, resp *Command) {
	t.Helper()
	if resp.Code != SystemBusy || !strings.HasPrefix(resp.Remark, "[REJECTREQUEST]") {
		t.Fatalf("%+v", resp)
	}
}

func TestBusyPerConnection(t *testing.T) {
	t.Parallel()
	pending := make(chan Pending, 16)
	var handled atomic.Int32
	s := serve(t, ServerOptions{InFlightPerConn: 10_000, Handler: func(c *Conn, req *Command) {
		handled.Add(1)
		pending <- c.Pending(req)
	}})
	w, other := rawDial(t, s), rawDial(t, s)
	req := request(1, 1)
	req.Body = make([]byte, 4000)
	for i := range int32(3) { // two have place
		req.Opaque = i
		w.write(req.AppendTo(nil))
	}
	resp := w.read()
	busyAnswer(t, resp)
	if resp.Opaque != 2 || handled.Load() != 2 {
		t.Fatalf("request %d was refused, %d handled", resp.Opaque, handled.Load())
	}
	other.write(request(1, 9).AppendTo(nil)) // another connection has its own bound
	for range 3 {
		p := <-pending
		p.Answer(NewResponse(0, ""))
	}
	w.read()
	w.read()
	if resp := other.read(); resp.Opaque != 9 || resp.Code != 0 {
		t.Fatalf("%+v", resp)
	}
	w.write(req.AppendTo(nil)) // there is place again
	p := <-pending
	p.Answer(NewResponse(5, ""))
	if resp := w.read(); resp.Code != 5 {
		t.Fatalf("%+v", resp)
	}
	if n, _ := s.InFlight(); n != 0 {
		t.Fatalf("%d bytes are still in flight", n)
	}
}

// A request that waits counts until it is answered or its connection closes.
func TestBusyTotal(t *testing.T) {
	t.Parallel()
	pending := make(chan Pending, 16)
	s := serve(t, ServerOptions{InFlightTotal: 10_000, Handler: func(c *Conn, req *Command) { pending <- c.Pending(req) }})
	a, b := rawDial(t, s), rawDial(t, s)
	req := request(1, 1)
	req.Body = make([]byte, 4000)
	frame := req.AppendTo(nil)
	a.write(frame)
	first := <-pending
	b.write(frame)
	second := <-pending
	b.write(frame)
	busyAnswer(t, b.read())
	a.Close()
	eventually(t, "the closed connection is off the account", func() bool { n, _ := s.InFlight(); return n < 5000 })
	first.Answer(NewResponse(0, "")) // to nobody, and not counted again
	b.write(frame)
	third := <-pending
	second.Answer(NewResponse(0, ""))
	third.Answer(NewResponse(0, ""))
	if n, _ := s.InFlight(); n != 0 {
		t.Fatalf("%d bytes are still in flight", n)
	}
}

// A frame that is too long for the memory that is left is answered with busy, skipped, and the connection goes on.
func TestBusyLongFrame(t *testing.T) {
	t.Parallel()
	s := serve(t, ServerOptions{InFlightTotal: 1 << 20, Handler: echo})
	w := rawDial(t, s)
	for i := range int32(3) {
		req := request(1, i)
		req.Body = make([]byte, 8<<20)
		w.write(append(req.AppendTo(nil), request(7, 100+i).AppendTo(nil)...))
		resp := w.read()
		busyAnswer(t, resp)
		if resp.Opaque != i {
			t.Fatalf("%+v", resp)
		}
		if resp := w.read(); resp.Code != 8 || resp.Opaque != 100+i {
			t.Fatalf("%+v", resp)
		}
	}
	if n, _ := s.InFlight(); n > 1<<20 {
		t.Fatalf("%d bytes are counted", n)
	}
}

// A client that does not read is cut off at its bound; the one beside it is served all the time.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	var l logs
	const bound = 8 << 20
	s := serve(t, ServerOptions{MaxOutput: bound, Logger: l.logger(), Handler: func(c *Conn, req *Command) {
		if req.Code == 7 {
			echo(c, req)
			return
		}
		c.Reply(req, &Command{Body: make([]byte, 1<<20)})
	}})
	other := dial(t, s, ClientOptions{})
	slow := rawDial(t, s)
	eventually(t, "both connections are accepted", func() bool { return len(s.Conns()) == 2 })
	for i := range int32(1000) {
		if _, err := slow.Write(request(1, i).AppendTo(nil)); err != nil {
			break
		}
		alive(t, other)
		if _, output := s.InFlight(); output > bound+2<<20 {
			t.Fatalf("%d bytes wait for a connection whose bound is %d", output, bound)
		}
		if len(s.Conns()) == 1 {
			break
		}
	}
	eventually(t, "the slow reader is cut off", func() bool { return len(s.Conns()) == 1 && l.count("too slowly") == 1 })
	alive(t, other)
	// The other client may have its answer before the server has counted it off.
	eventually(t, "no output is counted", func() bool { _, output := s.InFlight(); return output == 0 })
}

// A slow reader under its bound gets every byte, in order, through the goroutine that waits for its socket.
func TestSlowButLivingReader(t *testing.T) {
	t.Parallel()
	s := serve(t, ServerOptions{Handler: func(c *Conn, req *Command) {
		c.Reply(req, &Command{Body: bytes.Repeat([]byte{byte(req.Opaque)}, 1<<20)})
	}})
	w := rawDial(t, s)
	for i := range int32(20) {
		w.write(request(1, i).AppendTo(nil))
	}
	eventually(t, "output waits", func() bool { _, n := s.InFlight(); return n > 1<<20 })
	for i := range int32(20) {
		resp := w.read()
		if resp.Opaque != i || len(resp.Body) != 1<<20 || bytes.Count(resp.Body, []byte{byte(i)}) != 1<<20 {
			t.Fatalf("answer %d: %d, %d bytes", i, resp.Opaque, len(resp.Body))
		}
	}
	eventually(t, "no output is counted", func() bool { _, n := s.InFlight(); return n == 0 })
}

func TestOutputTotal(t *testing.T) {
	t.Parallel()
	s := serve(t, ServerOptions{OutputTotal: 16 << 20, Handler: func(c *Conn, req *Command) {
		c.Reply(req, &Command{Body: make([]byte, 1<<20)})
	}})
	for range 4 {
		w := rawDial(t, s)
		for i := range int32(20) {
			if _, err := w.Write(request(1, i).AppendTo(nil)); err != nil {
				break
			}
		}
	}
	eventually(t, "somebody is cut off", func() bool { return len(s.Conns()) < 4 })
	if _, n := s.InFlight(); n > 17<<20 {
		t.Errorf("%d bytes wait", n)
	}
}

// Not parallel: beside the other tests the bytes that keep a connection alive could come too late.
func TestIdleConnections(t *testing.T) {
	const idle = 3 * time.Second // longer than a machine under load may hold up the bytes that keep a connection alive
	var closed atomic.Int32
	s := serve(t, ServerOptions{IdleTimeout: idle, Handler: echo, Closed: func(*Conn) { closed.Add(1) }})
	start := time.Now()
	silent, half := rawDial(t, s), rawDial(t, s)
	half.write(golden(t, "request-json")[:20])
	pushed, busy := rawDial(t, s), rawDial(t, s)
	eventually(t, "all are there", func() bool { return len(s.Conns()) == 4 })
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // what keeps the two others alive: bytes from one, bytes to the other
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			busy.write(request(7, 1).AppendTo(nil))
			for _, c := range s.Conns() {
				if c.RemoteAddr().String() == pushed.LocalAddr().String() {
					if err := c.Push(NewRequest(NotifyConsumerIDsChanged)); err != nil {
						t.Error(err)
					}
				}
			}
		}
	})
	silent.closed()
	half.closed()
	if d := time.Since(start); d < idle {
		t.Errorf("closed after %v", d)
	}
	eventually(t, "two have ended", func() bool { return closed.Load() == 2 })
	eventually(t, "the others outlive the timeout", func() bool { return time.Since(start) > 2*idle })
	if n := closed.Load(); n != 2 {
		t.Errorf("%d connections were closed", n)
	}
	close(stop)
	wg.Wait()
}
