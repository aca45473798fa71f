package peer

import (
	"net"
	"sync/atomic"
)

// link is one established connection. All but heard belongs to who made it busy.
type link struct {
	conn     net.Conn
	features features // of the other end; fixed
	direct   *direct
	head     []byte // headers and heads, reused
	batch    []Envelope
	rest     net.Buffers // what of the packet is not written yet
	size     int         // bytes of rest
	space    [][]byte    // rest's array, reused

	busy    bool // guarded by pipe.mu
	pingDue bool // guarded by pipe.mu

	kick  chan struct{} // busy and rest go over to run; capacity 1
	gone  chan struct{} // closed by the reader when the connection ended
	err   error         // why; read after gone
	heard atomic.Int64  // when the last pong came, in ns
}

// build makes l.rest of l.batch: the header and heads, then the frames where they lie.
func (l *link) build(ping bool) {
	l.head = l.head[:0]
	if ping {
		l.head = appendControl(l.head, kindPing)
	}
	if len(l.batch) > 0 {
		l.head = appendBatch(l.head, l.batch)
	}
	l.space = append(l.space[:0], l.head)
	l.size = len(l.head)
	for i := range l.batch {
		for _, f := range l.batch[i].Frames {
			l.space = append(l.space, f)
			l.size += len(f)
		}
	}
	l.rest = l.space
}

// advance drops the first n bytes of l.rest.
func (l *link) advance(n int) {
	l.size -= n
	for n > 0 {
		if n < len(l.rest[0]) {
			l.rest[0] = l.rest[0][n:]
			return
		}
		n -= len(l.rest[0])
		l.rest[0] = nil
		l.rest = l.rest[1:]
	}
}

// noDelay turns off Nagle's algorithm: a packet is always all that waits.
func noDelay(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetNoDelay(true)
	}
}
