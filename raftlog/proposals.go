package raftlog

import (
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// proposals are the tokens that a replica owes an outcome, and what limits the forming of frames.
//
// A token is known by the index and term of its entry. It stays good while nobody else leads, also when this replica loses its
// leadership for want of a quorum, or moves to another epoch, and wins again.
type proposals struct {
	wanted   bool      // the state machine may have something to form
	inflight []formed  // formed in this leadership and not applied, oldest first
	waiting  []pending // formed, not applied, by index; also of a former leadership
	unacked  []pending // applied, not yet known on K voters, by index
}

type formed struct {
	index ids.Index
	bytes int64
}

type pending struct {
	index ids.Index
	term  ids.Term
	token any
	tick  int64
}

func (p *proposals) bytes() (n int64) {
	for _, f := range p.inflight {
		n += f.bytes
	}
	return n
}

// applied tells that entry i was applied, and returns what was pending for it; its token is nil when nothing was.
func (p *proposals) applied(sm StateMachine, i ids.Index, term ids.Term) (own pending) {
	for len(p.inflight) > 0 && p.inflight[0].index <= i {
		p.inflight = p.inflight[1:]
	}
	for len(p.waiting) > 0 && p.waiting[0].index <= i {
		w := p.waiting[0]
		p.waiting = p.waiting[1:]
		if w.index == i && w.term == term {
			own = w
		} else if w.token != nil {
			// Another entry is committed in its place.
			sm.Abandon(w.token, NotStored)
		}
	}
	return own
}

// keep holds the token of an applied entry until it is acknowledged.
func (p *proposals) keep(own pending) {
	if own.token != nil {
		p.unacked = append(p.unacked, own)
	}
}

func (p *proposals) ackedTo(i ids.Index) {
	for len(p.unacked) > 0 && p.unacked[0].index <= i {
		p.unacked = p.unacked[1:]
	}
}

// truncate settles the tokens of entries that another master's log has replaced. They are unknown, not "not stored": a member that
// is away may hold one, and lead with it later.
//
// Invariant: waiting is in the order of indexes, also when this replica leads again after the truncation.
func (p *proposals) truncate(sm StateMachine, from ids.Index) {
	n := len(p.waiting)
	for n > 0 && p.waiting[n-1].index >= from {
		n--
	}
	for _, w := range p.waiting[n:] {
		if w.token != nil {
			sm.Abandon(w.token, Unknown)
		}
	}
	p.waiting = p.waiting[:n]
}

// abandonAll settles every token as unknown.
func (p *proposals) abandonAll(sm StateMachine) {
	for _, list := range [2][]pending{p.unacked, p.waiting} {
		for _, w := range list {
			if w.token != nil {
				sm.Abandon(w.token, Unknown)
			}
		}
	}
	p.unacked, p.waiting, p.inflight = nil, nil, nil
}

// expire settles the tokens that were formed more than limit ticks ago. An entry without token stays in waiting, so that a
// later token at its index is told from it.
func (p *proposals) expire(sm StateMachine, now, limit int64) {
	for k := range p.waiting {
		w := &p.waiting[k]
		if now-w.tick < limit {
			break
		}
		if w.token != nil {
			sm.Abandon(w.token, Unknown)
			w.token = nil
		}
	}
	for len(p.unacked) > 0 && now-p.unacked[0].tick >= limit {
		sm.Abandon(p.unacked[0].token, Unknown)
		p.unacked = p.unacked[1:]
	}
}

// mayForm tells whether the next frame is to be formed now.
func (r *Replica) mayForm() bool { return r.form.wanted && r.couldForm() }

// couldForm tells whether a frame would be formed if something waited.
func (r *Replica) couldForm() bool {
	return r.isMaster() && !r.transferring() && len(r.form.inflight) < r.cfg.MaxInflightFrames && r.form.bytes() < r.cfg.Limits.Uncommitted
}

// propose lets the state machine form one frame and proposes it. It returns false when there was nothing to form.
func (r *Replica) propose() bool {
	term := r.owner.Term
	b := r.log.NewBuilder(r.tail, term, max(r.now, r.maxTime))
	token := r.sm.Form(b)
	if b.Count() == 0 {
		r.form.wanted = false
		b.Abandon()
		if token != nil {
			r.sm.Abandon(token, NotStored)
		}
		return false
	}
	f := b.Finish()
	key := entryKey{f.Index(), term}
	r.staged[key] = f
	r.form.waiting = append(r.form.waiting, pending{f.Index(), term, token, r.ticks}) // first: a panic below must not lose it
	if err := r.rn.Propose(commitlog.EncodeRef(f.Ref())); err != nil {
		delete(r.staged, key)
		r.form.waiting = r.form.waiting[:len(r.form.waiting)-1]
		if token != nil {
			r.sm.Abandon(token, NotStored)
		}
		return false
	}
	r.form.inflight = append(r.form.inflight, formed{f.Index(), int64(len(f))})
	return true
}

// settle tells the state machine up to where entries are applied here and durable on K voters.
func (r *Replica) settle() {
	if !r.ackDirty || !r.isMaster() {
		return
	}
	r.ackDirty = false
	i := min(r.kthMatch(), r.applied)
	if i <= r.acked {
		return
	}
	r.acked = i
	r.form.ackedTo(i)
	r.sm.Acked(i)
}
