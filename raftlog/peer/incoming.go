package peer

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
)

const (
	// maxShaking bounds the connections that have not proven anything yet; over it new ones are closed at once.
	maxShaking = 64
)

type inboundKey struct {
	node    ids.NodeID
	channel channel
}

// inbound is one established connection from another node. Only its own goroutine reads from it and writes pongs to it.
type inbound struct {
	key     inboundKey
	process [16]byte
	conn    net.Conn
	heard   atomic.Int64 // when the last packet came, in ns

	replaced bool // guarded by Transport.mu: a newer connection of the same process took its place
}

// accept is the listener's goroutine.
func (t *Transport) accept() {
	for {
		conn, err := t.o.Listener.Accept()
		if err != nil {
			if t.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of file descriptors, mostly. It passes, or the operator reads why.
			t.refusals.event(t.o.Log.Error(), logEvery).Err(err).Msg("accepting a peer's connection failed")
			select {
			case <-t.ctx.Done():
				return
			case <-time.After(t.o.MinBackoff):
			}
			continue
		}
		t.mu.Lock()
		full := t.closed || len(t.shaking) >= maxShaking
		if !full {
			t.shaking[conn] = struct{}{}
			t.spawn(func() { t.serveConn(conn) })
		}
		t.mu.Unlock()
		if full {
			_ = conn.Close()
			t.refuse(&RefusedError{Addr: conn.RemoteAddr().String(), Reason: fmt.Sprintf("%d connections are already shaking hands", maxShaking)})
		}
	}
}

func (t *Transport) refuse(err *RefusedError) {
	t.refused.Add(1)
	t.refusals.event(t.o.Log.Error(), logEvery).Str("addr", err.Addr).Str("peer", string(err.Node)).Str("reason", err.Reason).Msg("a connection to the peer port was refused")
}

// serveConn is the goroutine of one accepted connection, from its handshake to its end.
func (t *Transport) serveConn(conn net.Conn) {
	in, err := t.shake(conn)
	t.mu.Lock()
	delete(t.shaking, conn)
	t.mu.Unlock()
	if err == nil {
		err = t.receive(in)
	}
	_ = conn.Close()
	if in != nil {
		t.mu.Lock()
		replaced := in.replaced
		if t.inbound[in.key] == in {
			delete(t.inbound, in.key)
		}
		t.mu.Unlock()
		if errors.Is(err, ErrWire) {
			t.broken.event(t.o.Log.Error(), logEvery).Str("addr", conn.RemoteAddr().String()).Str("peer", string(in.key.node)).Err(err).Msg("a peer broke the protocol, its connection was closed")
		}
		if !replaced {
			t.closedConn(in.key.node)
		}
		return
	}
	var refused *RefusedError
	if errors.As(err, &refused) && t.ctx.Err() == nil {
		t.refuse(refused)
	}
}

// shake returns the connection once it has proven who it is and has its place in t.inbound.
func (t *Transport) shake(conn net.Conn) (*inbound, error) {
	noDelay(conn)
	if err := conn.SetDeadline(time.Now().Add(t.o.HandshakeTimeout)); err != nil {
		return nil, fmt.Errorf("peer: handshake: %w", err)
	}
	var in *inbound
	_, err := shakeAcceptor(conn, t.o.Secret, t.o.Cluster, t.o.Node, t.features, func(h hello) status {
		var s status
		in, s = t.admit(h, conn)
		return s
	})
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err == nil {
		if r := (*t.peers.Load())[in.key.node]; r != nil {
			for _, p := range r.pipes() {
				p.wakeUp() // it lives: do not wait for the end of a back-off
			}
		}
	}
	return in, err
}

// admit gives a proven connection its place. A newer connection of the same process replaces the older one, which is most
// likely dead; one of another process waits until all of the first were silent for long enough.
func (t *Transport) admit(h hello, conn net.Conn) (*inbound, status) {
	if h.from == t.o.Node {
		return nil, statusTwice
	}
	if t.o.Allow != nil && !t.o.Allow(h.from) {
		return nil, statusAllowed
	}
	in := &inbound{key: inboundKey{h.from, h.channel}, process: h.process, conn: conn}
	now := time.Now()
	in.heard.Store(now.UnixNano())
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, statusAllowed
	}
	for _, c := range [2]channel{control, bulk} {
		old := t.inbound[inboundKey{h.from, c}]
		if old != nil && old.process != h.process && now.Sub(time.Unix(0, old.heard.Load())) < 4*t.o.PingEvery {
			return nil, statusTwice
		}
	}
	for _, c := range [2]channel{control, bulk} {
		key := inboundKey{h.from, c}
		if old := t.inbound[key]; old != nil && (c == h.channel || old.process != h.process) {
			old.replaced = old.process == h.process
			_ = old.conn.Close()
			delete(t.inbound, key)
		}
	}
	t.inbound[in.key] = in
	return in, statusOK
}

// receive reads packets until the connection ends.
func (t *Transport) receive(in *inbound) error {
	rd := newReader(in.conn)
	var envs []Envelope
	var pong []byte
	for {
		h, err := rd.next()
		if err != nil {
			return err
		}
		switch h.kind {
		case kindBatch:
			if envs, err = rd.batch(envs[:0], h); err != nil {
				return err
			}
			t.o.Receive(in.key.node, envs)
			clear(envs)
		case kindPing:
			pong = appendControl(pong[:0], kindPong)
			// The other side reads nothing but pongs: if it does not take one, it is gone.
			if err := in.conn.SetWriteDeadline(time.Now().Add(t.o.DeadAfter)); err != nil {
				return fmt.Errorf("peer: answering node %q: %w", in.key.node, err)
			}
			if _, err := in.conn.Write(pong); err != nil {
				return fmt.Errorf("peer: answering node %q: %w", in.key.node, err)
			}
		default:
			return wireError("a pong on a connection that only receives")
		}
		in.heard.Store(time.Now().UnixNano())
	}
}

// watch closes incoming connections that were silent for too long: their other end is gone without a word.
func (t *Transport) watch() {
	ticker := time.NewTicker(t.o.PingEvery)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-t.ctx.Done():
			return
		case now := <-ticker.C:
			paused := now.Sub(last) > t.o.DeadAfter/2
			last = now
			if paused {
				continue // this process was stopped, not the peers
			}
			t.mu.Lock()
			for _, in := range t.inbound {
				if now.Sub(time.Unix(0, in.heard.Load())) > t.o.DeadAfter {
					_ = in.conn.Close()
				}
			}
			t.mu.Unlock()
		}
	}
}
