package raftlog

import (
	"encoding/binary"

	"go.etcd.io/raft/v3"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// reads confirms that this replica is still master, for all that wait at once.
//
//	waiting ──startReads──▶ round ──a quorum answered──▶ due ──applied──▶ done
//
// Those that come while a round is under way wait for the next one: a round answers only for what came before it.
type reads struct {
	waiting []*readWaiter
	round   []*readWaiter
	id      uint64 // of the round under way, or of the last one
	due     []dueRead
}

// readWaiter is one call that waits. done is called once, from the loop goroutine, and must not block.
type readWaiter struct {
	done func(i ids.Index, err error)
}

type dueRead struct {
	index   ids.Index
	waiters []*readWaiter
}

// ReadIndex asks for an index that was committed when the question came, confirmed by a quorum of this epoch and applied here.
// done gets it, or a *NotMasterError or *ParkedError.
func (r *Replica) ReadIndex(done func(i ids.Index, err error)) {
	if !r.leading || r.rn == nil || r.seal.active() {
		done(0, r.notMaster())
		return
	}
	r.reads.waiting = append(r.reads.waiting, &readWaiter{done})
}

// idle tells whether nobody waits.
func (q *reads) idle() bool { return len(q.waiting)+len(q.round)+len(q.due) == 0 }

// startReads begins a round when none is under way. Raft repeats its question with each heartbeat.
func (r *Replica) startReads() {
	if len(r.reads.waiting) == 0 || len(r.reads.round) > 0 || !r.leading || r.rn == nil || r.seal.active() {
		return
	}
	r.reads.round, r.reads.waiting = r.reads.waiting, nil
	r.reads.id++
	r.rn.ReadIndex(binary.BigEndian.AppendUint64(nil, r.reads.id))
}

func (q *reads) confirmed(s raft.ReadState) {
	if len(s.RequestCtx) != 8 || binary.BigEndian.Uint64(s.RequestCtx) != q.id || len(q.round) == 0 {
		return
	}
	q.due = append(q.due, dueRead{ids.Index(s.Index), q.round})
	q.round = nil
}

// applied answers what waits for entries up to i. Rounds end in order, so due is sorted.
func (q *reads) applied(i ids.Index) {
	for len(q.due) > 0 && q.due[0].index <= i {
		for _, w := range q.due[0].waiters {
			w.done(i, nil)
		}
		q.due = q.due[1:]
	}
}

// fail answers all that waits.
func (q *reads) fail(err error) {
	for _, list := range [2][]*readWaiter{q.waiting, q.round} {
		for _, w := range list {
			w.done(0, err)
		}
	}
	for _, d := range q.due {
		for _, w := range d.waiters {
			w.done(0, err)
		}
	}
	q.waiting, q.round, q.due = nil, nil, nil
}
