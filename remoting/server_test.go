package remoting

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"
)

func TestOneWayGetsNoAnswer(t *testing.T) {
	t.Parallel()
	block := make(chan struct{})
	s := serve(t, ServerOptions{Logger: zerolog.Nop(), InFlightPerConn: 100_000, Workers: 1, WorkerQueue: 1, Handler: func(c *Conn, req *Command) {
		switch req.Code {
		case 1:
			panic("for a test")
		case 2:
			c.ReplyError(req, SystemError, "no")
		case 3:
			p := c.Pending(req)
			p.Answer(NewResponse(0, ""))
		case 4:
			p := c.Pending(req)
			p.AppendAnswer(NewResponse(0, ""))
			c.Flush()
		case 5:
			c.Async(req, func(_ *Command, p *Pending) {
				<-block
				p.Answer(NewResponse(0, ""))
			})
		default:
			echo(c, req)
		}
	}})
	for codec := range byte(2) {
		w := rawDial(t, s)
		for code := int32(1); code <= 9; code++ {
			req := request(code, code)
			req.Flag, req.Codec = FlagOneWay, codec
			if code == 9 {
				req.Body = make([]byte, 200_000) // over the bound: busy
			}
			w.write(req.AppendTo(nil))
			if code == 5 { // the pool is full with the third
				w.write(req.AppendTo(nil))
				w.write(req.AppendTo(nil))
			}
		}
		last := request(100, 77)
		last.Codec = codec
		w.write(last.AppendTo(nil))
		if resp := w.read(); resp.Code != 101 || resp.Opaque != 77 || resp.Codec != codec {
			t.Fatalf("a one-way request was answered: %+v", resp)
		}
	}
	close(block)
	eventually(t, "all requests are off the account", func() bool { n, _ := s.InFlight(); return n == 0 })
}

// Many requests of many callers are in flight; the answers come in another order than the requests.
func TestCorrelation(t *testing.T) {
	t.Parallel()
	type waiting struct {
		p     Pending
		value string
	}
	var mu sync.Mutex
	var all []waiting
	arrived := make(chan struct{}, 1)
	answer := func(r *rand.Rand) {
		mu.Lock()
		now := all
		all = nil
		mu.Unlock()
		r.Shuffle(len(now), func(i, j int) { now[i], now[j] = now[j], now[i] })
		conns := map[*Conn]bool{}
		var resp Command
		for i := range now {
			conns[now[i].p.Conn()] = true
			resp.Reset()
			resp.Set("value", now[i].value)
			now[i].p.AppendAnswer(&resp)
		}
		for c := range conns {
			c.Flush()
		}
	}
	s := serve(t, ServerOptions{Handler: func(c *Conn, req *Command) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, waiting{c.Pending(req), strings.Clone(req.GetOr("value", ""))})
		select {
		case arrived <- struct{}{}:
		default:
		}
	}})
	stop := make(chan struct{})
	var answerer, callers sync.WaitGroup
	answerer.Go(func() {
		r := rand.New(rand.NewPCG(1, 1))
		for {
			select {
			case <-stop:
				return
			case <-arrived:
				answer(r)
			}
		}
	})
	ctx := within(t)
	for i := range 4 {
		cl := dial(t, s, ClientOptions{Codec: byte(i % 2)})
		for g := range 32 {
			callers.Go(func() {
				for n := range 20 {
					req := NewRequest(1)
					want := strconv.Itoa(i) + "/" + strconv.Itoa(g) + "/" + strconv.Itoa(n)
					req.Set("value", want)
					resp, err := cl.Call(ctx, req)
					if err != nil || resp.GetOr("value", "") != want {
						t.Errorf("%s: %+v, %v", want, resp, err)
						return
					}
				}
			})
		}
	}
	callers.Wait()
	close(stop)
	answerer.Wait()
	if n, _ := s.InFlight(); n != 0 {
		t.Errorf("%d bytes are still in flight", n)
	}
}

// What no frame is closes its connection with one log line; others go on.
func TestBadFrames(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		bytes  []byte
		reason string
	}{
		"over-long frame":  {[]byte{1, 0, 0, 0}, "over"},
		"negative length":  {[]byte{0xFF, 0xFF, 0xFF, 0xFF}, "over"},
		"TLS":              {[]byte{0x16, 3, 1, 2}, "TLS"},
		"HTTP":             {[]byte("GET / HTTP/1.1\r\n\r\n"), "over"},
		"length 3":         {[]byte{0, 0, 0, 3}, "no place"},
		"unknown codec":    {[]byte{0, 0, 0, 6, 7, 0, 0, 2, '{', '}'}, "unknown codec 7"},
		"header lies":      {[]byte{0, 0, 0, 6, 0, 0, 0, 3}, "header of 3 bytes"},
		"no JSON":          {jsonFrame("hello", ""), "no JSON object"},
		"binary lies":      {append([]byte{0, 0, 0, 25, 1, 0, 0, 21}, make([]byte, 13)...), "the remark runs past the end"},
		"after a good one": {append(request(7, 1).AppendTo(nil), 0, 0, 0, 0), "no place"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var l logs
			s := serve(t, ServerOptions{Handler: echo, Logger: l.logger()})
			other := dial(t, s, ClientOptions{})
			alive(t, other)
			w := rawDial(t, s)
			w.write(c.bytes)
			if name == "binary lies" { // the fixed part, with a remark of 4 GiB
				w.write([]byte{0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0})
			}
			if name == "after a good one" {
				if resp := w.read(); resp.Code != 8 || resp.Opaque != 1 {
					t.Fatalf("%+v", resp)
				}
			}
			w.closed()
			eventually(t, "the log has a line", func() bool { return l.count("\n") > 0 })
			alive(t, other)
			if l.count("\n") != 1 || l.count(c.reason) != 1 || l.count(w.LocalAddr().String()) != 1 {
				t.Errorf("log: %s", l.b.String())
			}
		})
	}
}

// Half a frame and then the end, at every place.
func TestHalfSentFrames(t *testing.T) {
	t.Parallel()
	var opened, closed, handled atomic.Int32
	s := serve(t, ServerOptions{Handler: func(*Conn, *Command) { handled.Add(1) },
		Opened: func(*Conn) { opened.Add(1) }, Closed: func(*Conn) { closed.Add(1) }})
	frame := golden(t, "request-json")
	for n := range frame {
		w := rawDial(t, s)
		w.write(frame[:n])
		w.Close()
	}
	eventually(t, "all connections have ended", func() bool { return closed.Load() == int32(len(frame)) })
	if opened.Load() != closed.Load() || handled.Load() != 0 || len(s.Conns()) != 0 {
		t.Errorf("%d opened, %d handled, %d left", opened.Load(), handled.Load(), len(s.Conns()))
	}
}

// Frames arrive byte by byte, and many in one write.
func TestSplitAndJoinedFrames(t *testing.T) {
	t.Parallel()
	s := serve(t, ServerOptions{Handler: echo})
	w := rawDial(t, s)
	for _, b := range golden(t, "request-json") {
		w.write([]byte{b})
	}
	if resp := w.read(); resp.Code != 311 || string(resp.Body) != "hello" {
		t.Fatalf("%+v", resp)
	}
	var joined []byte
	const n = 3000
	for i := range int32(n) {
		req := request(1, i)
		req.Body = bytes.Repeat([]byte{byte(i)}, int(i))
		joined = req.AppendTo(joined)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := w.Write(joined); err != nil {
			t.Error(err)
		}
	})
	for i := range int32(n) {
		if resp := w.read(); resp.Opaque != i || len(resp.Body) != int(i) || i > 0 && resp.Body[i-1] != byte(i) {
			t.Fatalf("%d: opaque %d, body of %d", i, resp.Opaque, len(resp.Body))
		}
	}
	wg.Wait()
}

func TestLongFrames(t *testing.T) {
	t.Parallel()
	s := serve(t, ServerOptions{Handler: echo})
	cl := dial(t, s, ClientOptions{})
	for _, size := range []int{fullBuffer - 200, fullBuffer, fullBuffer + 1, 1 << 20, 4 << 20, MaxFrame - 300} {
		req := NewRequest(1)
		req.Body = make([]byte, size)
		req.Body[0], req.Body[size-1] = 1, 2
		resp, err := cl.Call(within(t), req)
		if err != nil || !bytes.Equal(resp.Body, req.Body) {
			t.Fatalf("%d bytes: %v", size, err)
		}
	}
	req := NewRequest(1)
	req.Body = make([]byte, MaxFrame)
	if _, err := cl.Call(within(t), req); !errors.Is(err, ErrNotSent) {
		t.Fatalf("a frame over the bound: %v", err)
	}
	alive(t, cl)
	eventually(t, "nothing is reserved", func() bool { n, _ := s.InFlight(); return n == 0 })
}

// An answer over the bound of a frame becomes an error answer.
func TestLongAnswer(t *testing.T) {
	t.Parallel()
	s := serve(t, ServerOptions{Handler: func(c *Conn, req *Command) {
		c.Reply(req, &Command{Body: make([]byte, MaxFrame)})
	}})
	cl := dial(t, s, ClientOptions{})
	if resp, err := cl.Call(within(t), NewRequest(1)); err != nil || resp.Code != SystemError || len(resp.Body) != 0 {
		t.Fatalf("%+v, %v", resp, err)
	}
}

func TestPanicInHandler(t *testing.T) {
	t.Parallel()
	var l logs
	var kept atomic.Pointer[Pending]
	s := serve(t, ServerOptions{Logger: l.logger(), Handler: func(c *Conn, req *Command) {
		switch req.Code {
		case 1:
			panic("ouch")
		case 2:
			p := c.Pending(req)
			kept.Store(&p)
			panic("after Pending")
		case 3:
			c.Async(req, func(*Command, *Pending) { panic("in the pool") })
		default:
			echo(c, req)
		}
	}})
	cl := dial(t, s, ClientOptions{})
	for code, text := range map[int32]string{1: "ouch", 3: "in the pool"} {
		resp, err := cl.Call(within(t), NewRequest(code))
		if err != nil || resp.Code != SystemError || !strings.Contains(resp.Remark, text) {
			t.Fatalf("%+v, %v", resp, err)
		}
		alive(t, cl)
	}
	eventually(t, "both are logged", func() bool { return l.count("handler panicked") == 1 && l.count("pool panicked") == 1 })
	// Nobody can know whether the pending answer will be given: the connection ends.
	if _, err := cl.Call(within(t), NewRequest(2)); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	kept.Load().Answer(NewResponse(0, ""))
	alive(t, dial(t, s, ClientOptions{}))
	if n, _ := s.InFlight(); n != 0 {
		t.Errorf("%d bytes are still in flight", n)
	}
}

func TestAsync(t *testing.T) {
	t.Parallel()
	block, started := make(chan struct{}), make(chan struct{}, 8)
	s := serve(t, ServerOptions{Workers: 1, WorkerQueue: 1, Handler: func(c *Conn, req *Command) {
		if req.Code == 7 {
			echo(c, req)
			return
		}
		c.Async(req, func(req *Command, p *Pending) {
			started <- struct{}{}
			<-block
			resp := NewResponse(0, "")
			resp.Set("value", req.GetOr("value", ""))
			resp.Body = req.Body
			p.Answer(resp)
		})
	}})
	w := rawDial(t, s)
	for i := range int32(3) {
		req := request(1, i)
		req.Set("value", strconv.Itoa(int(i)))
		req.Body = []byte{byte(i)}
		w.write(req.AppendTo(nil))
		if i == 0 {
			<-started
		}
	}
	resp := w.read() // one runs, one waits, this one has no place
	busyAnswer(t, resp)
	if resp.Opaque != 2 {
		t.Fatalf("%+v", resp)
	}
	alive(t, dial(t, s, ClientOptions{})) // a blocked worker blocks no connection
	close(block)
	for i := range int32(2) {
		resp := w.read()
		if v, _ := resp.Get("value"); resp.Opaque != i || v != strconv.Itoa(int(i)) || resp.Body[0] != byte(i) {
			t.Fatalf("%+v", resp)
		}
	}
}

func TestPushAndValues(t *testing.T) {
	t.Parallel()
	opened := make(chan *Conn, 1)
	drained := make(chan struct{}, 100)
	s := serve(t, ServerOptions{Handler: echo, Opened: func(c *Conn) { c.SetValue("mine"); opened <- c },
		Drained: func(*Conn) { drained <- struct{}{} }})
	got := make(chan *Command, 1)
	cl := dial(t, s, ClientOptions{Codec: CodecRocketMQ, Handler: func(_ *Conn, req *Command) { got <- req.Clone() }})
	c := <-opened
	if c.Value() != "mine" || c.RemoteAddr() != cl.Conn().LocalAddr() || c.LocalAddr() != cl.Conn().RemoteAddr() || cl.Conn().Value() != nil {
		t.Errorf("%v %v %v", c.Value(), c.RemoteAddr(), c.LocalAddr())
	}
	alive(t, cl)
	<-drained
	cmd := NewRequest(NotifyConsumerIDsChanged)
	cmd.Set("consumerGroup", "g")
	if err := c.Push(cmd); err != nil {
		t.Fatal(err)
	}
	push := <-got
	if push.Code != 40 || !push.OneWay() || push.Response() || push.Codec != CodecRocketMQ || push.GetOr("consumerGroup", "") != "g" {
		t.Errorf("%+v", push)
	}
	cl.Close()
	eventually(t, "it is closed", c.Closed)
	if err := c.Push(cmd); !errors.Is(err, ErrNotSent) {
		t.Error(err)
	}
}

func TestIPv6(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("this machine has no IPv6: %v", err)
	}
	opened := make(chan netip.AddrPort, 1)
	s := NewServer(ServerOptions{Listener: l, Handler: echo, Opened: func(c *Conn) { opened <- c.RemoteAddr() }})
	s.Start()
	t.Cleanup(func() { s.Close() })
	alive(t, dial(t, s, ClientOptions{}))
	if a := <-opened; a.Addr() != netip.IPv6Loopback() || a.Port() == 0 {
		t.Error(a)
	}
}

func TestMaxConns(t *testing.T) {
	t.Parallel()
	var l logs
	s := serve(t, ServerOptions{MaxConns: 2, Handler: echo, Logger: l.logger()})
	a, b := dial(t, s, ClientOptions{}), dial(t, s, ClientOptions{})
	alive(t, a)
	alive(t, b)
	rawDial(t, s).closed()
	alive(t, a)
	a.Close()
	eventually(t, "there is place again", func() bool { return len(s.Conns()) == 1 })
	alive(t, dial(t, s, ClientOptions{}))
	if l.count("too many connections") != 1 {
		t.Error(l.b.String())
	}
}

// Close ends connections in any state, and waits for jobs.
func TestServerClose(t *testing.T) {
	t.Parallel()
	var closed, jobs atomic.Int32
	pending := make(chan Pending, 1)
	started := make(chan struct{})
	block := make(chan struct{})
	s := serve(t, ServerOptions{Closed: func(*Conn) { closed.Add(1) }, Handler: func(c *Conn, req *Command) {
		switch req.Code {
		case 1:
			pending <- c.Pending(req)
		case 2:
			c.Async(req, func(_ *Command, p *Pending) {
				close(started)
				<-block
				p.Answer(NewResponse(0, ""))
				jobs.Add(1)
			})
		case 3:
			c.Reply(req, &Command{Body: make([]byte, 8<<20)})
		}
	}})
	for code := int32(1); code <= 3; code++ { // a pending answer, a job, a reader that does not read
		rawDial(t, s).write(request(code, 1).AppendTo(nil))
	}
	rawDial(t, s).write([]byte{0, 0})
	p := <-pending
	<-started
	eventually(t, "output waits", func() bool { _, n := s.InFlight(); return n > 0 })
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { s.Close() })
	}
	eventually(t, "the connections have ended", func() bool { return closed.Load() == 4 })
	close(block)
	wg.Wait()
	p.Answer(NewResponse(0, ""))
	if requests, output := s.InFlight(); requests != 0 || output != 0 || jobs.Load() != 1 {
		t.Errorf("%d and %d bytes are left, %d jobs ran", requests, output, jobs.Load())
	}
	if s.Go(func() {}) {
		t.Error("a closed server takes jobs")
	}
}

func TestServerOptionFaults(t *testing.T) {
	t.Parallel()
	o := ServerOptions{MaxOutput: -1, Workers: -2}
	o.EnsureDefaults()
	err := o.Validate()
	for _, part := range []string{"Listener", "Handler", "MaxOutput", "Workers"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s is not in: %v", part, err)
		}
	}
}
