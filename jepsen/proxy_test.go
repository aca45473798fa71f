package jepsen

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"
)

// echo listens and sends back what it gets, until the test ends.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

// proxied is a network that has a proxy from "a" to the echo "b".
func proxied(t *testing.T) (n *Network, addr string) {
	t.Helper()
	return proxiedOn(t, "127.0.0.1:0")
}

func proxiedOn(t *testing.T, listen string) (n *Network, addr string) {
	t.Helper()
	n = NewNetwork(func(_, _ netip.AddrPort) string { return "a" })
	addr, err := n.Proxy(listen, "b", echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n, addr
}

type line struct {
	net.Conn
	in *bufio.Reader
}

func dial(t *testing.T, addr string) line {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return line{c, bufio.NewReader(c)}
}

func (l line) say(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(l, text+"\n"); err != nil {
		t.Fatal(err)
	}
}

func (l line) hear(t *testing.T, want string) {
	t.Helper()
	l.SetReadDeadline(time.Now().Add(20 * time.Second))
	if got, err := l.in.ReadString('\n'); err != nil || got != want+"\n" {
		t.Fatalf("heard %q, %v, want %q", got, err, want)
	}
}

// silent demands that nothing comes for a moment: a cut that lets something through is seen at least sometimes.
func (l line) silent(t *testing.T) {
	t.Helper()
	l.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if got, err := l.in.Peek(1); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("heard %q, %v through a cut", got, err)
	}
}

func TestProxyCuts(t *testing.T) {
	t.Parallel()
	for _, cut := range []struct{ from, to string }{{"a", "b"}, {"b", "a"}} {
		n, addr := proxied(t)
		c := dial(t, addr)
		c.say(t, "one")
		c.hear(t, "one")
		n.Set(cut.from, cut.to, Rule{Cut: true})
		c.say(t, "two")
		c.silent(t)
		late := dial(t, addr) // its connection is held too
		late.say(t, "three")
		late.silent(t)
		n.Heal()
		c.hear(t, "two")
		late.hear(t, "three")
	}
}

func TestProxyDelays(t *testing.T) {
	t.Parallel()
	n, addr := proxied(t)
	c := dial(t, addr)
	c.say(t, "one")
	c.hear(t, "one")
	n.Set("a", "b", Rule{Delay: 100 * time.Millisecond})
	began := time.Now()
	c.say(t, "two")
	c.hear(t, "two")
	if took := time.Since(began); took < 100*time.Millisecond {
		t.Errorf("a delay of 100 ms took %v", took)
	}
	n.Set("a", "b", Rule{Bandwidth: 1000})
	began = time.Now()
	text := string(make([]byte, 199))
	c.say(t, text)
	c.hear(t, text)
	if took := time.Since(began); took < 190*time.Millisecond {
		t.Errorf("200 bytes at 1000 bytes/s took %v", took)
	}
}

func TestProxyResets(t *testing.T) {
	t.Parallel()
	n, addr := proxied(t)
	c := dial(t, addr)
	c.say(t, "one")
	c.hear(t, "one")
	n.Reset("b", "a")
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.in.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) {
		t.Errorf("got %v, want a reset", err)
	}
	c = dial(t, addr)
	c.say(t, "two")
	c.hear(t, "two")
}

// TestProxyPassesTheEnd holds that an end in order arrives as one, in the other direction too.
func TestProxyPassesTheEnd(t *testing.T) {
	t.Parallel()
	_, addr := proxied(t)
	c := dial(t, addr)
	c.say(t, "last")
	c.Conn.(*net.TCPConn).CloseWrite()
	c.hear(t, "last")
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end", err)
	}
}

// TestProxyDown holds that nobody answers for a node that is down.
func TestProxyDown(t *testing.T) {
	t.Parallel()
	n, addr := proxiedOn(t, "127.0.0.4:0") // where nobody else listens: the port is free meanwhile
	dial(t, addr)
	n.Down("b")
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Error("a node that is down was reached")
	}
	if err := n.Up("b"); err != nil {
		t.Fatal(err)
	}
	c := dial(t, addr)
	c.say(t, "again")
	c.hear(t, "again")
}

// TestOwner holds that a connection is told by the process that dialed it.
func TestOwner(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.3:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var d net.Dialer
	c, err := d.DialContext(context.Background(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	local, remote := c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
	if got := ownerOf(local, remote, map[string]int{"parent": os.Getppid(), "me": os.Getpid()}); got != "me" {
		t.Errorf("the dialer is %q", got)
	}
	if got := ownerOf(local, remote, map[string]int{"parent": os.Getppid()}); got != "" {
		t.Errorf("a stranger is %q", got)
	}
	if got := ownerOf(remote, netip.MustParseAddrPort("127.0.0.1:1"), map[string]int{"me": os.Getpid()}); got != "" {
		t.Errorf("a connection that is not there is of %q", got)
	}
}
