package broker

import (
	"sync/atomic"
	"time"
)

const (
	// maxGather bounds how long a frame waits for senders; it waits no longer than the frame before took, too.
	maxGather = time.Millisecond
	// maxGatherSkip bounds for how many frames nobody is waited for after senders did not come.
	maxGatherSkip = 63
)

// gathering decides how long the next frame waits for the senders of the last one.
//
// Most senders wait for an answer before they send again, and answers leave when the next frame is formed. Without this there are two
// halves of them: one waits for the disks, the other for the first. A frame costs the same syncs and Raft messages whatever is in it, so
// it is better to wait a moment for those who were just answered, and to have all of them in each frame: for 64 senders on two cores that
// makes 1.3 times as many messages a second with two thirds of the frames, and they wait two thirds as long.
//
//	frame ends: answered n, waiting w ──▶ as many as 7/8 of n+w wait ──▶ form        senders come back: the usual thing
//	                                 └──▶ time is over ──▶ form                      they do not: the next frames do not wait for them
//
// Its methods are called on the loop.
type gathering struct {
	answered int           // proposals of the frames that ended since the last one was formed
	took     time.Duration // of the last of these, from its forming to its end
	enough   int           // as many are waited for; 0: for nobody
	until    time.Time     // when that ends
	skip     int           // so many frames wait for nobody
	misses   int           // what skip begins with next time

	on    atomic.Bool // the loop can be woken
	timer *time.Timer // wakes it
}

// ended notes a frame whose proposals are about to be answered.
func (g *gathering) ended(proposals int, took time.Duration) {
	g.answered += proposals
	g.took = took
}

// want tells how many are to wait before a frame is formed: 0, now. waiting is how many do.
func (g *gathering) want(waiting int, now time.Time) int {
	if g.answered > 0 {
		enough := (g.answered + waiting) * 7 / 8
		g.answered = 0
		switch {
		case g.skip > 0:
			g.skip--
		case waiting < enough:
			g.enough, g.until = enough, now.Add(min(g.took, maxGather))
		}
	}
	switch {
	case g.enough == 0:
	case waiting >= g.enough:
		g.enough, g.misses = 0, 0
	case !now.Before(g.until):
		g.enough = 0
		g.misses = min(2*g.misses+1, maxGatherSkip)
		g.skip = g.misses
	}
	return g.enough
}

// gathers tells whether the next frame is not to be formed yet. The loop is woken when it is.
func (r *Replica) gathers() bool {
	g := &r.gathering
	if !g.on.Load() || r.office.handing.Load() { // what waits at the end of an office goes at once
		g.enough = 0
		return false
	}
	now := time.Now()
	waiting, _ := r.inbox.waiting()
	was := g.enough
	enough := g.want(waiting, now)
	if enough == 0 || !r.inbox.await(enough) {
		if g.enough = 0; was > 0 {
			g.timer.Stop()
		}
		return false
	}
	if was == 0 {
		if wait := g.until.Sub(now); g.timer == nil {
			g.timer = time.AfterFunc(wait, r.raft.Wake)
		} else {
			g.timer.Reset(wait)
		}
	}
	return true
}
