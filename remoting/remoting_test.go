package remoting

import (
	"context"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
