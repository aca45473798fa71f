package raftlog

import (
	"sync"
	"time"
)

// When the writer renews the durable bound of the log.
const (
	checkpointBytes = 64 << 20               // after so many bytes of frames
	checkpointIdle  = 100 * time.Millisecond // after so long without a write
)

// When a log that flushes asynchronously is synced behind its writer: after the first frame that is not durable, or after so many bytes.
const (
	flushAfter = 100 * time.Millisecond
	flushBytes = 8 << 20
)

// fillBytes is after how many bytes of frames the space ahead is looked at again: half of what one step of it prepares.
const fillBytes = 512 << 10

// jobQueue holds the jobs that wait for the writer. Bound: a master gives out what Limits.Uncommitted allows, a follower what
// one master has in flight to it; while jobs wait Raft acknowledges nothing, so no more comes.
type jobQueue struct {
	wake chan struct{}
	mu   sync.Mutex
	jobs []*Job
}

func (q *jobQueue) put(jobs []*Job) {
	if len(jobs) == 0 {
		return
	}
	q.mu.Lock()
	q.jobs = append(q.jobs, jobs...)
	q.mu.Unlock()
	signal(q.wake)
}

func (q *jobQueue) take() []*Job {
	q.mu.Lock()
	defer q.mu.Unlock()
	jobs := q.jobs
	q.jobs = nil
	return jobs
}

// write is the log's one writer: it takes all jobs that wait and makes them durable, in order. The next ones gather meanwhile.
func (g *Group) write(w *Writer) {
	defer close(g.writer)
	idle := time.NewTimer(time.Hour)
	defer idle.Stop()
	var (
		failed error
		bytes  int64 // of frames since the last checkpoint
		eaten  int64 // of frames since the space ahead was looked at
		dirty  bool  // anything was written since the last checkpoint
	)
	checkpoint := func() {
		bytes, dirty = 0, false
		err := w.Checkpoint()
		switch {
		case err == nil:
		case g.cfg.Log.Poisoned() == nil:
			// Only a derived file could not be written, as on a full disk. The next start reads more of the log instead.
			g.cfg.Logger.Warn().Err(err).Msg("a checkpoint of the log could not be written")
		default:
			failed = err
			g.complete(nil, failed)
		}
	}
	for {
		stopping := false
		select {
		case <-g.queue.wake:
		case <-idle.C:
			if dirty && failed == nil {
				checkpoint()
			}
		case <-g.loop:
			stopping = true
		}
		if g.killed.Load() {
			return
		}
		if jobs := g.queue.take(); len(jobs) > 0 {
			began := time.Now()
			if failed == nil {
				if failed = w.Write(jobs); failed == nil {
					g.sendAcks(jobs)
				}
			}
			took := time.Since(began)
			g.complete(jobs, failed)
			before := bytes
			for _, j := range jobs {
				for _, f := range j.Frames {
					bytes += int64(len(f))
					eaten += int64(len(f))
				}
			}
			if g.cfg.Written != nil && bytes > before {
				g.cfg.Written(took)
			}
			dirty = true
			if unsynced := g.cfg.Log.Unsynced(); unsynced > 0 {
				signal(g.flush)
				if unsynced >= flushBytes {
					signal(g.flushNow)
				}
			}
			if eaten >= fillBytes {
				eaten = 0
				signal(g.fill)
			}
			if bytes >= checkpointBytes && failed == nil {
				checkpoint()
			}
			idle.Reset(checkpointIdle)
		}
		if stopping {
			if failed == nil {
				checkpoint()
			}
			return
		}
	}
}

// sendAcks sends what the written jobs allow to say. It does not wait for the loop: the master of this follower waits for it.
func (g *Group) sendAcks(jobs []*Job) {
	var acks []Outgoing
	for _, j := range jobs {
		acks = append(acks, j.Acks...)
	}
	g.send(acks)
}

func (g *Group) complete(jobs []*Job, err error) {
	g.mu.Lock()
	g.in.done = append(g.in.done, completion{jobs, err})
	g.mu.Unlock()
	signal(g.wake)
}

// syncBehind makes durable what the writer has written, when it does not do so itself.
func (g *Group) syncBehind() {
	wait := time.NewTimer(time.Hour)
	defer wait.Stop()
	for {
		select {
		case <-g.loop:
			return
		case <-g.flush:
		}
		wait.Reset(flushAfter)
		select {
		case <-g.loop:
			return
		case <-g.flushNow:
		case <-wait.C:
		}
		if err := g.cfg.Log.SyncBehind(); err != nil {
			g.complete(nil, err) // it is poisoned
			return
		}
	}
}

// fillAhead keeps zeros ahead of the writer.
func (g *Group) fillAhead() {
	defer close(g.filler)
	for {
		select {
		case <-g.loop:
			return
		case <-g.fill:
		}
		for more := true; more; {
			if g.status.Load().Role == RoleFollower {
				g.cfg.Log.Uncache(g.cfg.Limits.Cached)
			}
			var err error
			if more, err = g.cfg.Log.FillAhead(); err != nil {
				if poison := g.cfg.Log.Poisoned(); poison != nil {
					g.complete(nil, poison)
					return
				}
				// The writer goes on without: a disk that is really full fails the append, and says so there.
				g.cfg.Logger.Warn().Err(err).Msg("space ahead of the log could not be prepared")
				break
			}
			select {
			case <-g.loop:
				return
			default:
			}
		}
	}
}
