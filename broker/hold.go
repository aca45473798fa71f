package broker

import (
	"slices"
	"sync"
	"time"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/remoting"
)

// maxHeld bounds the pulls that wait in one replica; one more is answered at once, as if its time were over.
const maxHeld = 100_000

// heldPull is a pull that found nothing and waits. On a slave it may be beyond the end that the slave knows; it is woken when the
// queue reaches it.
type heldPull struct {
	req      pullRequest // owns its strings
	key      index.Key
	pending  remoting.Pending
	conn     *remoting.Conn
	deadline time.Time
	moved    bool // the client shall ask again at once, from offset: a filter has passed over messages, or the group was reset
}

// holds are the pulls that wait for a message in their queue. They are woken by arrival; the deadline only ends the wait.
//
// Invariant: n is the number of pulls in byQueue.
type holds struct {
	mu      sync.Mutex
	byQueue map[index.Key][]*heldPull
	n       int
	next    time.Time // no deadline of byQueue is before it
}

func newHolds() holds { return holds{byQueue: map[index.Key][]*heldPull{}} }

// add keeps p, or returns false at the bound. The caller looks at the queue again afterwards: a message may have come between
// its look and this call.
func (h *holds) add(p *heldPull) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n >= maxHeld {
		return false
	}
	if h.n == 0 || p.deadline.Before(h.next) {
		h.next = p.deadline
	}
	h.byQueue[p.key] = append(h.byQueue[p.key], p)
	h.n++
	return true
}

// count is the number of pulls that wait.
func (h *holds) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}

// waiting tells whether anybody waits on a queue.
func (h *holds) waiting(k index.Key) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.byQueue[k]) > 0
}

// take removes the pulls of a queue that can go on now that it ends at end.
func (h *holds) take(k index.Key, end ids.QueueOffset) []*heldPull {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.remove(k, func(p *heldPull) bool { return p.req.offset < end })
}

// ofGroup removes the pulls of a group in a queue.
func (h *holds) ofGroup(k index.Key, group string) []*heldPull {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.remove(k, func(p *heldPull) bool { return p.req.group == group })
}

// expired removes the pulls whose time is over. It looks at them only when one may be.
func (h *holds) expired(now time.Time) []*heldPull {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n == 0 || now.Before(h.next) {
		return nil
	}
	var out []*heldPull
	next := now.Add(maxSuspend)
	for k := range h.byQueue {
		out = append(out, h.remove(k, func(p *heldPull) bool {
			if now.Before(p.deadline) {
				if p.deadline.Before(next) {
					next = p.deadline
				}
				return false
			}
			return true
		})...)
	}
	h.next = next
	return out
}

// ofConn removes the pulls of a connection that closed.
func (h *holds) ofConn(c *remoting.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k := range h.byQueue {
		h.remove(k, func(p *heldPull) bool { return p.conn == c })
	}
}

// all removes every pull.
func (h *holds) all() []*heldPull {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []*heldPull
	for k := range h.byQueue {
		out = append(out, h.remove(k, func(*heldPull) bool { return true })...)
	}
	return out
}

// withdraw removes p and tells whether it still waited: who removes a pull answers it.
func (h *holds) withdraw(p *heldPull, k index.Key) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.remove(k, func(o *heldPull) bool { return o == p })) > 0
}

func (h *holds) remove(k index.Key, which func(*heldPull) bool) (out []*heldPull) {
	list := h.byQueue[k]
	list = slices.DeleteFunc(list, func(p *heldPull) bool {
		if which(p) {
			out = append(out, p)
			return true
		}
		return false
	})
	if len(list) == 0 {
		delete(h.byQueue, k)
	} else {
		h.byQueue[k] = list
	}
	h.n -= len(out)
	return out
}
