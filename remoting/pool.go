package remoting

import (
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// pool runs jobs on at most `workers` goroutines, which live only while there are jobs. At most `bound` jobs wait.
type pool struct {
	workers, bound int
	log            zerolog.Logger

	mu      sync.Mutex
	closed  bool
	running int
	queue   []func()
	wg      sync.WaitGroup
}

func (p *pool) run(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return false
	case p.running < p.workers:
		p.running++
		p.wg.Add(1)
		go p.work(f)
	case len(p.queue) < p.bound:
		p.queue = append(p.queue, f)
	default:
		return false
	}
	return true
}

func (p *pool) work(f func()) {
	defer p.wg.Done()
	for {
		p.do(f)
		p.mu.Lock()
		if len(p.queue) == 0 {
			p.running--
			p.mu.Unlock()
			return
		}
		f = p.queue[0]
		p.queue[0] = nil
		p.queue = p.queue[1:]
		p.mu.Unlock()
	}
}

func (p *pool) do(f func()) {
	defer func() {
		if r := recover(); r != nil {
			p.log.Error().Str("panic", fmt.Sprint(r)).Str("stack", string(debug.Stack())).Msg("a job of the worker pool panicked")
		}
	}()
	f()
}

// close waits for the jobs that were accepted.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.wg.Wait()
}

// gate lets at most gateBurst lines into the log within gateEvery, and counts the others.
type gate struct {
	mu         sync.Mutex
	since      time.Time
	lines      int
	suppressed int
}

const (
	gateBurst = 20
	gateEvery = 10 * time.Second
)

func (g *gate) log(line func(suppressed int)) {
	g.mu.Lock()
	if now := time.Now(); now.Sub(g.since) > gateEvery {
		g.since, g.lines = now, 0
	}
	if g.lines == gateBurst {
		g.suppressed++
		g.mu.Unlock()
		return
	}
	g.lines++
	n := g.suppressed
	g.suppressed = 0
	g.mu.Unlock()
	line(n)
}
