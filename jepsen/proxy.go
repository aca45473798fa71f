package jepsen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Rule is what a Network does to the bytes that go from one node to another. The zero value lets them pass.
type Rule struct {
	Cut       bool          // hold everything, new connections too, until the rule is lifted
	Delay     time.Duration // keep each piece back for so long
	Bandwidth int           // bytes per second; 0: as they come
}

// way is a direction between two nodes.
type way struct{ from, to string }

// Network is all proxies of a cluster and the rules that they follow. A connection that is cut loses nothing: as over a cable
// that was pulled and put back, what was held arrives afterwards, unless one end has given up.
//
//	dialer ──▶ Proxy of the listener: whose process dials? ──▶ one copier per direction, each under the rule of its way ──▶ listener
type Network struct {
	who func(local, remote netip.AddrPort) string // names the dialer of a connection

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex
	rules   map[way]Rule
	changed chan struct{} // closed when the rules change
	pairs   map[*pair]bool
	proxies []*proxy
}

// proxy listens for one address of a node.
type proxy struct {
	to, target string
	addr       string
	l          net.Listener // nil while the node is down
}

// pair is a dialed connection and its other half.
type pair struct {
	way  way // of the dialer
	near net.Conn
	far  net.Conn // nil while it is not made
}

// NewNetwork makes a network without proxies. who names the node whose process owns the socket at local that is connected to
// remote.
func NewNetwork(who func(local, remote netip.AddrPort) string) *Network {
	n := &Network{who: who, rules: map[way]Rule{}, changed: make(chan struct{}), pairs: map[*pair]bool{}}
	n.ctx, n.stop = context.WithCancel(context.Background())
	return n
}

// Proxy listens at addr (port 0: any) for connections to the node to, which listens at target, and returns its address.
func (n *Network) Proxy(addr, to, target string) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := &proxy{to: to, target: target, addr: addr}
	if err := n.listen(p); err != nil {
		return "", err
	}
	n.proxies = append(n.proxies, p)
	return p.addr, nil
}

// listen begins to accept connections. The caller holds mu.
func (n *Network) listen(p *proxy) error {
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		return fmt.Errorf("a proxy to %s: %w", p.to, err)
	}
	p.l, p.addr = l, l.Addr().String()
	n.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			n.wg.Go(func() { n.serve(conn.(*net.TCPConn), p.to, p.target) })
		}
	})
	return nil
}

// Down makes new connections to a node fail, as they do when no process listens there.
func (n *Network) Down(node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.proxies {
		if p.to == node && p.l != nil {
			p.l.Close()
			p.l = nil
		}
	}
}

// Up undoes Down.
func (n *Network) Up(node string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var failed []error
	for _, p := range n.proxies {
		if p.to == node && p.l == nil && n.ctx.Err() == nil {
			failed = append(failed, n.listen(p))
		}
	}
	return errors.Join(failed...)
}

// Set puts a rule on the way from one node to another.
func (n *Network) Set(from, to string, r Rule) {
	n.change(func() { n.rules[way{from, to}] = r })
}

// Isolate cuts a node from the others in both directions.
func (n *Network) Isolate(node string, others ...string) {
	n.change(func() {
		for _, other := range slices.DeleteFunc(slices.Clone(others), func(o string) bool { return o == node }) {
			n.rules[way{node, other}] = Rule{Cut: true}
			n.rules[way{other, node}] = Rule{Cut: true}
		}
	})
}

// Heal lifts all rules.
func (n *Network) Heal() {
	n.change(func() { clear(n.rules) })
}

func (n *Network) change(how func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	how()
	close(n.changed)
	n.changed = make(chan struct{})
}

// Reset breaks every connection between two nodes at once, whichever of them dialed.
func (n *Network) Reset(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for p := range n.pairs {
		if p.way == (way{a, b}) || p.way == (way{b, a}) {
			p.reset()
		}
	}
}

// Close ends the proxies and all connections, and waits.
func (n *Network) Close() {
	n.stop()
	n.mu.Lock()
	for _, p := range n.proxies {
		if p.l != nil {
			p.l.Close()
		}
	}
	for p := range n.pairs {
		p.reset()
	}
	n.mu.Unlock()
	n.wg.Wait()
}

// reset closes both halves with a reset rather than an orderly end. The caller holds the network's mu.
func (p *pair) reset() {
	for _, c := range []net.Conn{p.near, p.far} {
		if tcp, ok := c.(*net.TCPConn); ok {
			tcp.SetLinger(0)
			tcp.Close()
		}
	}
}

// serve is the life of one connection.
func (n *Network) serve(near *net.TCPConn, to, target string) {
	from := n.who(near.RemoteAddr().(*net.TCPAddr).AddrPort(), near.LocalAddr().(*net.TCPAddr).AddrPort())
	p := &pair{way: way{from, to}, near: near}
	n.mu.Lock()
	n.pairs[p] = true
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		p.reset() // of what ended in order only the descriptors are left
		delete(n.pairs, p)
	}()
	back := way{to, from}
	if n.pass(p.way) != nil || n.pass(back) != nil { // a connection needs both
		return
	}
	var d net.Dialer
	far, err := d.DialContext(n.ctx, "tcp", target)
	if err != nil {
		return
	}
	n.mu.Lock()
	p.far = far
	n.mu.Unlock()
	if n.ctx.Err() != nil {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { n.copy(far.(*net.TCPConn), near, p.way, p) })
	both.Go(func() { n.copy(near, far.(*net.TCPConn), back, p) })
	both.Wait()
}

// pass waits until nothing cuts a way. The error is that the network is closed.
func (n *Network) pass(w way) error {
	for {
		n.mu.Lock()
		rule, changed := n.rules[w], n.changed
		n.mu.Unlock()
		if !rule.Cut {
			return n.ctx.Err()
		}
		select {
		case <-changed:
		case <-n.ctx.Done():
			return n.ctx.Err()
		}
	}
}

func (n *Network) rule(w way) Rule {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rules[w]
}

// copyBytes is the largest piece that is carried at once; under a bandwidth it is smaller, so that the flow is even.
const (
	copyBytes  = 32 << 10
	copyPieces = 20 // per second
)

// copy carries one direction to its end: an orderly one is passed on, any other one breaks both halves.
func (n *Network) copy(to, from *net.TCPConn, w way, p *pair) {
	buf := make([]byte, copyBytes)
	for {
		piece := buf
		if b := n.rule(w).Bandwidth; b > 0 {
			piece = buf[:min(len(buf), max(1, b/copyPieces))]
		}
		k, err := from.Read(piece)
		if n.pass(w) != nil {
			return
		}
		if r := n.rule(w); k > 0 {
			wait := r.Delay
			if r.Bandwidth > 0 {
				wait += time.Duration(k) * time.Second / time.Duration(r.Bandwidth)
			}
			if !pause(n.ctx, wait) {
				return
			}
			if n.pass(w) != nil { // what was delayed when the way was cut is held too
				return
			}
			if _, err := to.Write(piece[:k]); err != nil {
				n.mu.Lock()
				p.reset()
				n.mu.Unlock()
				return
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			to.CloseWrite()
			return
		default:
			n.mu.Lock()
			p.reset()
			n.mu.Unlock()
			return
		}
	}
}

// pause waits d, or less when ctx ends. It tells whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
