package raftlog

import (
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// watch is what a master observes of a member: whether it does its part. The controller decides what follows from it.
type watch struct {
	closed    bool      // the connection to its node was closed and it was not heard since
	advanced  int64     // last tick in which it was not behind, or its match grew
	seen      ids.Index // match at the last tick
	caughtTo  int64     // last tick in which it lagged
	leadSince int64     // tick in which the present leadership began to watch it; 0: it does not
}

// commitMemory is how many ticks back a member may lag and still count as caught up: a member in the middle of its work never
// has what was committed just now.
const commitMemory = 4

// watchMembers is one tick of a master's observation.
func (r *Replica) watchMembers() {
	if r.leading {
		r.masterHeard = r.ticks // when it leads no more it begins to miss a master
	}
	old := r.commits[r.ticks%commitMemory]
	r.commits[r.ticks%commitMemory] = r.commit
	for _, m := range r.members {
		w := &m.watch
		switch {
		case !r.leading || !m.current:
			w.leadSince = 0
			continue
		case w.leadSince == 0: // the leadership, or the member's place in it, is new: nothing is known yet
			w.leadSince, w.advanced, w.caughtTo, w.seen = r.ticks, r.ticks, r.ticks, m.match
			continue
		}
		if m.match > w.seen || m.match >= r.tail.Index {
			w.advanced = r.ticks
		}
		if m.match < old || m.match == 0 || m.heard < 0 || r.ticks-m.heard > commitMemory {
			w.caughtTo = r.ticks
		}
		w.seen = m.match
	}
}

// since is the time that has passed since a tick.
func (r *Replica) since(tick int64) time.Duration { return time.Duration(r.ticks-tick) * r.cfg.Tick }

// stalled is for how long m has answered nothing, or was behind and did not advance. A moment is not counted.
func (r *Replica) stalled(m *member) time.Duration {
	if m.leadSince == 0 {
		return 0
	}
	d := r.since(min(max(m.heard, m.leadSince), m.advanced))
	if d < commitMemory*r.cfg.Tick {
		return 0
	}
	return d
}

// caughtUp is for how long m has had what was committed commitMemory ticks before.
func (r *Replica) caughtUp(m *member) time.Duration {
	if m.leadSince == 0 {
		return 0
	}
	return r.since(m.caughtTo)
}
