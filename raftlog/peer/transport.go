package peer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// Transport is one node's end of all connections to other nodes. New only makes it, Start listens and dials, Close ends and
// waits for everything that Start and SetPeer spawned.
type Transport struct {
	o       Options
	process [16]byte // of this life of the process, see hello
	// features is what this end understands: all, but in tests
	features features
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup // every goroutine of this package

	// peers is replaced as a whole, so that Send reads it without a lock.
	peers atomic.Pointer[map[ids.NodeID]*remote]

	mu      sync.Mutex // guards all below, and replacing peers
	started bool
	closed  bool
	inbound map[inboundKey]*inbound
	shaking map[net.Conn]struct{} // accepted, not yet through the handshake; at most maxShaking

	refusals, broken limiter
	refused          atomic.Uint64 // handshakes
}

// remote is a node to which this one sends.
type remote struct {
	addr          string
	control, bulk *pipe
	cancel        context.CancelFunc
}

func (r *remote) pipes() [2]*pipe { return [2]*pipe{r.control, r.bulk} }

// New makes a transport. It returns an error that lists all faults of o.
func New(o Options) (*Transport, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	t := &Transport{o: o, features: allFeatures, inbound: make(map[inboundKey]*inbound), shaking: make(map[net.Conn]struct{})}
	mustRandom(t.process[:])
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.peers.Store(&map[ids.NodeID]*remote{})
	return t, nil
}

// Start begins to accept and to dial. It may be called once.
func (t *Transport) Start() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.started || t.closed {
		return
	}
	t.started = true
	t.spawn(t.accept)
	t.spawn(t.watch)
	for _, r := range *t.peers.Load() {
		t.startRemote(r)
	}
}

// Close ends all connections and waits until the last call of Receive and Closed has returned: it must not be called from
// inside one. What waits to be sent is dropped. A second call does nothing.
func (t *Transport) Close() error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		t.wg.Wait()
		return nil
	}
	t.closed = true
	t.cancel()
	err := t.o.Listener.Close()
	for _, in := range t.inbound {
		_ = in.conn.Close()
	}
	for conn := range t.shaking {
		_ = conn.Close()
	}
	t.mu.Unlock()
	t.wg.Wait()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("peer: closing the listener: %w", err)
	}
	return nil
}

// spawn starts the only goroutines of this package. They end when t.ctx does.
func (t *Transport) spawn(f func()) {
	t.wg.Add(1)
	go func() {
		defer t.wg.Done()
		f()
	}()
}

// SetPeer says where node listens; "" removes it. It does not wait. What is already connected to another address of node is
// closed, and what waits for node is dropped. Only sending is affected: who may connect to this node is for Options.Allow.
func (t *Transport) SetPeer(node ids.NodeID, addr string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	old := (*t.peers.Load())[node]
	if (old == nil && addr == "") || (old != nil && old.addr == addr) {
		return
	}
	next := maps.Clone(*t.peers.Load())
	delete(next, node)
	if addr != "" {
		r := &remote{addr: addr}
		r.control = newPipe(t, node, addr, control, t.o.MaxQueueBytes/8)
		r.bulk = newPipe(t, node, addr, bulk, t.o.MaxQueueBytes-t.o.MaxQueueBytes/8)
		next[node] = r
		if t.started {
			t.startRemote(r)
		}
	}
	t.peers.Store(&next)
	if old != nil {
		for _, p := range old.pipes() {
			p.shut()
		}
		if old.cancel != nil {
			old.cancel()
		}
	}
}

func (t *Transport) startRemote(r *remote) {
	ctx, cancel := context.WithCancel(t.ctx)
	r.cancel = cancel
	for _, p := range r.pipes() {
		t.spawn(func() { p.run(ctx) })
	}
}

// Send hands envelopes to node. It never blocks and reports nothing: what cannot be delivered is dropped, and Raft repeats it.
// Messages to a node that SetPeer did not name, or over Options.MaxQueueBytes, are dropped at once; while a connection is being
// made they wait, and are dropped when that fails. The slice may be reused, but what the envelopes point to may not be changed
// afterwards.
func (t *Transport) Send(node ids.NodeID, envs []Envelope) {
	r := (*t.peers.Load())[node]
	if r == nil {
		return
	}
	var toControl, toBulk bool
	for i := range envs {
		if envs[i].channel() == bulk {
			toBulk = true
		} else {
			toControl = true
		}
	}
	if toControl {
		r.control.send(envs)
	}
	if toBulk {
		r.bulk.send(envs)
	}
}

// Stats are counters since New, and how each peer is.
type Stats struct {
	Refused uint64 // handshakes that failed here as acceptor
	Peers   map[ids.NodeID]PeerStats
}

// PeerStats is about sending to one node, since SetPeer gave its address.
type PeerStats struct {
	Dropped   uint64 // envelopes that were never sent: queue full, no connection, not fit for the wire
	Connects  uint64 // connections made, of both channels
	Connected bool   // both
}

// Stats returns a snapshot.
func (t *Transport) Stats() Stats {
	s := Stats{Refused: t.refused.Load(), Peers: make(map[ids.NodeID]PeerStats)}
	for node, r := range *t.peers.Load() {
		ps := PeerStats{Connected: true}
		for _, p := range r.pipes() {
			p.addStats(&ps)
		}
		s.Peers[node] = ps
	}
	return s
}

// closedConn reports an established connection that ended by itself.
func (t *Transport) closedConn(node ids.NodeID) {
	if t.o.Closed != nil && t.ctx.Err() == nil {
		t.o.Closed(node)
	}
}

// How often one kind of line is written at most: neither an attacker nor a peer that is away may fill the disk.
const (
	logEvery     = time.Second
	logRefused   = 10 * time.Second // of one pipe
	logUnreached = 30 * time.Second // of one pipe
)

// limiter lets one line through in a while and counts the rest.
type limiter struct {
	mu      sync.Mutex
	next    time.Time
	skipped int
}

// reset lets the next line through.
func (l *limiter) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next, l.skipped = time.Time{}, 0
}

// event returns e with the number of lines that were left out since the last one, or nil, which zerolog ignores.
func (l *limiter) event(e *zerolog.Event, every time.Duration) *zerolog.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Before(l.next) {
		l.skipped++
		return nil
	}
	l.next = now.Add(every)
	if l.skipped > 0 {
		e = e.Int("skipped", l.skipped)
		l.skipped = 0
	}
	return e
}
