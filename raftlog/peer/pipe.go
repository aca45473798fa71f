package peer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
)

const (
	// directBytes is the largest packet that a caller of Send writes itself: above it, copying into the socket's buffer takes
	// longer than waking the pipe's goroutine.
	directBytes = 256 << 10
	// directTurns is how many packets in a row a caller writes while others keep adding to the queue.
	directTurns = 4
	// lazyDelay is how long a plain heartbeat may wait for others: the groups of a node tick at different moments, and hundreds of
	// them would otherwise cost a write each. It is far below an election timeout, and anything urgent takes them along.
	lazyDelay = 2 * time.Millisecond
)

// pipe sends one channel to one node: a bounded queue in front of one connection at a time.
//
//	     ┌────────── dial fails: queue dropped, back-off ──────────┐
//	     ▼                                                         │
//	connecting ──handshake done──▶ link: idle ⇄ busy ──broken──▶ down
//
// A link is busy while someone writes to it: the caller of send that found it idle, or the pipe's own goroutine (run), to which a
// caller hands the link when the socket is full. Whoever makes it busy keeps it until the queue is empty.
type pipe struct {
	t       *Transport
	node    ids.NodeID
	addr    string
	channel channel
	limit   int           // of queued
	wake    chan struct{} // ends a back-off early; capacity 1
	lazy    chan struct{} // heartbeats wait, see lazyDelay; capacity 1

	mu     sync.Mutex // never held during I/O
	queue  []Envelope
	first  int // queue[:first] is taken
	queued int // bytes that queue[first:] costs. Invariant: queued ≤ limit, or one envelope waits alone
	link   *link
	armed  bool // run knows that heartbeats wait
	shutup bool // SetPeer replaced this pipe: nothing is queued any more

	dropped, connects                                   atomic.Uint64
	unfitLines, fullLines, refusedLines, unreachedLines limiter // each outage begins with a line
	olderLines                                          limiter
}

func newPipe(t *Transport, node ids.NodeID, addr string, c channel, limit int) *pipe {
	return &pipe{t: t, node: node, addr: addr, channel: c, limit: limit, wake: make(chan struct{}, 1), lazy: make(chan struct{}, 1)}
}

// send queues what of envs belongs to this channel, and writes it if nobody else is writing.
func (p *pipe) send(envs []Envelope) {
	var dropped int
	var wrong error
	urgent, arm := false, false
	p.mu.Lock()
	if p.shutup {
		p.mu.Unlock()
		return
	}
	for i := range envs {
		e := &envs[i]
		if e.channel() != p.channel {
			continue
		}
		if err := e.check(); err != nil {
			wrong, dropped = err, dropped+1
			continue
		}
		if cost := e.cost(); p.queued == 0 || p.queued+cost <= p.limit {
			p.push(*e, cost)
			urgent = urgent || !e.lazy()
		} else {
			dropped++
		}
	}
	l := p.link
	mine := l != nil && !l.busy && p.first < len(p.queue)
	if mine && !urgent {
		mine, arm = false, !p.armed
		p.armed = true
	}
	if mine {
		l.busy = true
	}
	p.mu.Unlock()
	if arm {
		select {
		case p.lazy <- struct{}{}:
		default: // run has not taken the last one yet
		}
	}
	if dropped > 0 {
		p.dropped.Add(uint64(dropped))
		p.logDropped(dropped, wrong)
	}
	if mine {
		p.writeDirect(l)
	}
}

func (p *pipe) logDropped(n int, wrong error) {
	if wrong != nil {
		p.unfitLines.event(p.t.o.Log.Error(), logEvery).Str("peer", string(p.node)).Err(wrong).Msg("a message that cannot travel was dropped: this is a bug")
		return
	}
	p.fullLines.event(p.t.o.Log.Warn(), logEvery).Str("peer", string(p.node)).Stringer("channel", p.channel).Int("messages", n).Int("limit", p.limit).
		Msg("the queue to a peer is full, messages were dropped")
}

func (p *pipe) push(e Envelope, cost int) {
	if p.first > 32 && p.first > len(p.queue)/2 {
		n := copy(p.queue, p.queue[p.first:])
		clear(p.queue[n:])
		p.queue, p.first = p.queue[:n], 0
	}
	p.queue = append(p.queue, e)
	p.queued += cost
}

// writeDirect writes on the goroutine of a caller of send, which made l busy. It never waits.
func (p *pipe) writeDirect(l *link) {
	for range directTurns {
		if !p.fill(l) {
			return
		}
		if l.size > directBytes {
			break
		}
		n, err := l.direct.write(l.rest)
		if err != nil {
			_ = l.conn.Close() // the reader notices, run ends the link
			return
		}
		l.advance(n)
		if l.size > 0 {
			break
		}
	}
	l.kick <- struct{}{} // never blocks: only the one who made l busy sends
}

// fill takes what waits and makes it one packet in l.rest. It returns false, and gives l up, when nothing waits. What the other end
// does not understand is dropped.
func (p *pipe) fill(l *link) bool {
	clear(l.batch)
	l.batch = l.batch[:0]
	p.mu.Lock()
	if p.link != l || (p.first == len(p.queue) && !l.pingDue) {
		l.busy = false
		p.mu.Unlock()
		return false
	}
	ping := l.pingDue
	l.pingDue = false
	head, frames, strange := 0, 0, 0
	for p.first < len(p.queue) && len(l.batch) < maxPacketEnvelopes {
		e := &p.queue[p.first]
		if e.needs()&^l.features != 0 {
			p.queued -= e.cost()
			*e = Envelope{}
			p.first++
			strange++
			continue
		}
		size, cost := envelopeSize(e), e.cost()
		bytes := cost - envelopeOverhead - len(e.Record)
		if len(l.batch) > 0 && (head+size > maxPacketHead || frames+bytes > packetTarget) {
			break
		}
		head, frames = head+size, frames+bytes
		p.queued -= cost
		l.batch = append(l.batch, *e)
		*e = Envelope{}
		p.first++
	}
	if p.first == len(p.queue) {
		p.queue, p.first = p.queue[:0], 0
	}
	empty := len(l.batch) == 0 && !ping // then nothing waits
	if empty {
		l.busy = false
	}
	p.mu.Unlock()
	if strange > 0 {
		p.dropped.Add(uint64(strange))
		p.olderLines.event(p.t.o.Log.Warn(), logUnreached).Str("peer", string(p.node)).Int("messages", strange).
			Msg("a peer of an older version is not sent what it does not understand: a replica that lacks what its group has given up cannot catch up there")
	}
	if empty {
		return false
	}
	l.build(ping)
	return true
}

// writeAll writes on the pipe's own goroutine, which has l: first the rest of a caller's packet, then all that waits. It waits
// for the socket as long as the peer takes something every DeadAfter.
func (p *pipe) writeAll(l *link) error {
	for {
		for l.size > 0 {
			if err := l.conn.SetWriteDeadline(time.Now().Add(p.t.o.DeadAfter)); err != nil {
				return fmt.Errorf("peer: writing to node %q: %w", p.node, err)
			}
			n, err := l.rest.WriteTo(l.conn) // consumes rest
			l.size -= int(n)
			if err != nil && (n == 0 || !errors.Is(err, os.ErrDeadlineExceeded)) {
				return fmt.Errorf("peer: writing to node %q: %w", p.node, err)
			}
		}
		// A deadline that passed would make the next direct write fail.
		if err := l.conn.SetWriteDeadline(time.Time{}); err != nil {
			return fmt.Errorf("peer: writing to node %q: %w", p.node, err)
		}
		if !p.fill(l) {
			return nil
		}
	}
}

// run owns the pipe: it dials, and serves one link after the other until ctx ends.
func (p *pipe) run(ctx context.Context) {
	o := &p.t.o
	backoff := o.MinBackoff
	for ctx.Err() == nil {
		l, err := p.connect(ctx)
		if err == nil {
			begin := time.Now()
			err = p.serve(ctx, l)
			if time.Since(begin) > o.MaxBackoff {
				backoff = o.MinBackoff
			}
			if ctx.Err() == nil {
				o.Log.Info().Str("peer", string(p.node)).Str("addr", p.addr).Stringer("channel", p.channel).Err(err).Msg("connection to a peer is down")
				p.t.closedConn(p.node)
			}
		} else if ctx.Err() == nil {
			p.dropWaiting()
			p.logFailure(err)
		}
		p.pause(ctx, backoff)
		backoff = min(2*backoff, o.MaxBackoff)
	}
	p.shut()
}

// pause waits for d, with a quarter of randomness so that nodes that started together do not dial together, or until the peer
// was heard, but then for MinBackoff still: two nodes that break each other's connections must not spin.
func (p *pipe) pause(ctx context.Context, d time.Duration) {
	wait := func(d time.Duration, wake <-chan struct{}) (woken bool) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-wake:
			return true
		case <-timer.C:
		}
		return false
	}
	if wait(d-d/8+rand.N(d/4+1), p.wake) {
		wait(p.t.o.MinBackoff, nil)
	}
}

func (p *pipe) logFailure(err error) {
	var refused *RefusedError
	if errors.As(err, &refused) {
		p.refusedLines.event(p.t.o.Log.Error(), logRefused).Str("peer", string(p.node)).Str("addr", p.addr).Str("reason", refused.Reason).Msg("a peer cannot be used")
		return
	}
	p.unreachedLines.event(p.t.o.Log.Info(), logUnreached).Str("peer", string(p.node)).Str("addr", p.addr).Err(err).Msg("a peer cannot be reached, trying again")
}

// connect dials and shakes hands.
func (p *pipe) connect(ctx context.Context) (*link, error) {
	o := &p.t.o
	dialCtx, cancel := context.WithTimeout(ctx, o.DialTimeout)
	defer cancel()
	conn, err := o.Dial(dialCtx, p.addr)
	if err != nil {
		return nil, fmt.Errorf("peer: dialing node %q: %w", p.node, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	noDelay(conn)
	err = conn.SetDeadline(time.Now().Add(o.HandshakeTimeout))
	var f features
	if err == nil {
		f, err = shakeDialer(conn, o.Secret, hello{channel: p.channel, cluster: o.Cluster, process: p.t.process, from: o.Node, to: p.node})
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	l := &link{conn: conn, features: f, direct: newDirect(conn), busy: true, kick: make(chan struct{}, 1), gone: make(chan struct{})}
	l.heard.Store(time.Now().UnixNano())
	return l, nil
}

// serve owns l from its first byte to its end and returns why it ended.
func (p *pipe) serve(ctx context.Context, l *link) error {
	o := &p.t.o
	defer func() {
		p.mu.Lock()
		p.link = nil
		p.mu.Unlock()
		_ = l.conn.Close()
		<-l.gone
	}()
	stop := context.AfterFunc(ctx, func() { _ = l.conn.Close() })
	defer stop()
	p.t.spawn(func() { p.readPongs(l) })
	p.connects.Add(1)
	p.refusedLines.reset()
	p.unreachedLines.reset()
	select {
	case <-p.wake: // it was for this attempt
	default:
	}
	p.mu.Lock()
	p.link = l // busy: what already waits is ours to write
	p.mu.Unlock()
	o.Log.Info().Str("peer", string(p.node)).Str("addr", p.addr).Stringer("channel", p.channel).Msg("connected to a peer")
	if err := p.writeAll(l); err != nil {
		return err
	}
	ticker := time.NewTicker(o.PingEvery)
	defer ticker.Stop()
	delay := time.NewTimer(lazyDelay) // the first turn is for what was armed before this link
	defer delay.Stop()
	last := time.Now()
	for {
		select {
		case <-l.gone:
			return l.err
		case <-p.lazy:
			delay.Reset(lazyDelay)
		case <-delay.C:
			if err := p.writeLazy(l); err != nil {
				return err
			}
		case <-l.kick:
			if err := p.writeAll(l); err != nil {
				return err
			}
		case now := <-ticker.C:
			// After a pause of this process every peer looks silent: they get one more turn.
			paused := now.Sub(last) > o.DeadAfter/2
			last = now
			if silent := now.Sub(time.Unix(0, l.heard.Load())); silent > o.DeadAfter && !paused {
				return fmt.Errorf("peer: node %q gave no sign of life for %v", p.node, silent.Round(time.Millisecond))
			}
			if err := p.ping(l); err != nil {
				return err
			}
		}
	}
}

// writeLazy writes the heartbeats that have waited, unless somebody is writing and takes them along.
func (p *pipe) writeLazy(l *link) error {
	p.mu.Lock()
	p.armed = false
	mine := !l.busy && p.first < len(p.queue)
	if mine {
		l.busy = true
	}
	p.mu.Unlock()
	if !mine {
		return nil
	}
	return p.writeAll(l)
}

// ping asks for a pong, with the next packet when someone is writing.
func (p *pipe) ping(l *link) error {
	p.mu.Lock()
	l.pingDue = true
	mine := !l.busy
	if mine {
		l.busy = true
	}
	p.mu.Unlock()
	if !mine {
		return nil
	}
	return p.writeAll(l)
}

// readPongs is the only reader of an outgoing connection. It ends with it.
func (p *pipe) readPongs(l *link) {
	defer close(l.gone)
	rd := &reader{conn: l.conn, b: make([]byte, headerSize)} // pongs are all that comes
	for {
		h, err := rd.next()
		if err != nil {
			l.err = fmt.Errorf("peer: connection to node %q: %w", p.node, err)
			return
		}
		if h.kind != kindPong {
			l.err = wireError("node %q sent something else than a pong", p.node)
			return
		}
		l.heard.Store(time.Now().UnixNano())
	}
}

// dropWaiting empties the queue after an attempt to connect failed: old messages would only delay the next ones.
func (p *pipe) dropWaiting() {
	p.mu.Lock()
	n := len(p.queue) - p.first
	p.queue, p.first, p.queued = nil, 0, 0
	p.mu.Unlock()
	p.dropped.Add(uint64(n))
}

// shut makes the pipe refuse everything from now on.
func (p *pipe) shut() {
	p.mu.Lock()
	p.shutup = true
	p.mu.Unlock()
	p.dropWaiting()
}

func (p *pipe) addStats(s *PeerStats) {
	p.mu.Lock()
	s.Connected = s.Connected && p.link != nil
	p.mu.Unlock()
	s.Dropped += p.dropped.Load()
	s.Connects += p.connects.Load()
}

// wakeUp ends a back-off.
func (p *pipe) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
