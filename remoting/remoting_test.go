package remoting

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"
)

// The official client leaves goroutines of its own behind when it is shut down; ours must not.
func TestMain(m *testing.M) {
	const official = "github.com/apache/rocketmq-client-go/v2/internal.(*rmqClient).Start.func1."
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/patrickmn/go-cache.(*janitor).Run"),
		goleak.IgnoreAnyFunction(official+"1"), goleak.IgnoreAnyFunction(official+"2"), goleak.IgnoreAnyFunction(official+"3"),
		goleak.IgnoreAnyFunction(official+"4"), goleak.IgnoreAnyFunction(official+"5"))
}

// serve starts a server with these options on a free port and closes it with the test.
func serve(t testing.TB, o ServerOptions) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.Listener = l
	s := NewServer(o)
	s.Start()
	t.Cleanup(func() { s.Close() })
	return s
}

// InFlight returns the bytes of requests that wait for an answer, and of output that waits for a socket.
func (s *Server) InFlight() (requests, output int64) {
	return s.limits.inFlight.Load(), s.limits.output.Load()
}

func dial(t testing.TB, s *Server, o ClientOptions) *Client {
	t.Helper()
	cl, err := Dial(t.Context(), s.Addr().String(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until cond holds, and fails after a long while.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
		<-tick.C
	}
}

// logs collects what a server logs.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), part)
}

func (l *logs) logger() zerolog.Logger { return zerolog.New(l) }

// wire is a connection without a client: it writes and reads frames as they are.
type wire struct {
	net.Conn
	t testing.TB
}

func rawDial(t testing.TB, s *Server) wire {
	t.Helper()
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return wire{c, t}
}

func (w wire) write(b []byte) {
	w.t.Helper()
	if _, err := w.Write(b); err != nil {
		w.t.Fatal(err)
	}
}

func (w wire) read() *Command {
	w.t.Helper()
	head := make([]byte, 4)
	if _, err := io.ReadFull(w, head); err != nil {
		w.t.Fatal(err)
	}
	frame := append(head, make([]byte, binary.BigEndian.Uint32(head))...)
	if _, err := io.ReadFull(w, frame[4:]); err != nil {
		w.t.Fatal(err)
	}
	c, err := Decode(frame)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// closed waits until the server has closed the connection.
func (w wire) closed() {
	w.t.Helper()
	var timeout net.Error
	if n, err := io.Copy(io.Discard, w); errors.As(err, &timeout) && timeout.Timeout() {
		w.t.Fatalf("the server does not close the connection (%d bytes, %v)", n, err)
	}
}

func request(code, opaque int32) *Command {
	return &Command{Code: code, Opaque: opaque, Language: LangJava, Version: 475}
}

// alive fails when the server does not answer on this connection.
func alive(t testing.TB, cl *Client) {
	t.Helper()
	if resp, err := cl.Call(within(t), NewRequest(7)); err != nil || resp.Code != 8 {
		t.Fatalf("another connection noticed: %+v, %v", resp, err)
	}
}

// echo answers with the request's own code + 1, fields and body.
func echo(c *Conn, req *Command) {
	resp := NewResponse(req.Code+1, req.Remark)
	for k, v := range req.Fields() {
		resp.Set(k, v)
	}
	resp.Body = req.Body
	c.Reply(req, resp)
}

func TestCallBothCodecs(t *testing.T) {
	t.Parallel()
	s := serve(t, ServerOptions{Handler: echo})
	for _, codec := range []byte{CodecJSON, CodecRocketMQ} {
		cl := dial(t, s, ClientOptions{Codec: codec})
		req := NewRequest(SendMessageV2)
		req.Set("i", "KEYS\x01k\"1\"\x02TAGS\x01\\a\n\x02")
		req.Set("b", "täg\U0001F600")
		req.Body = []byte("body")
		resp, err := cl.Call(within(t), req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Code != SendMessageV2+1 || resp.Codec != codec || resp.Version != Version || resp.Language != LangGo || !resp.Response() {
			t.Fatalf("%+v", resp)
		}
		for k, want := range req.Fields() {
			if got, _ := resp.Get(k); got != want {
				t.Fatalf("field %s: %q, want %q", k, got, want)
			}
		}
		if string(resp.Body) != "body" {
			t.Fatalf("body %q", resp.Body)
		}
	}
}
