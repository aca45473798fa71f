package broker

import (
	"sync"
	"sync/atomic"
	"testing"
)

// TestShare: what a caller has written before it called is seen by the time that it waits for, and many callers take few of them.
func TestShare(t *testing.T) {
	t.Parallel()
	const callers = 1000
	var s share
	var wrote, times, seen atomic.Int64
	begun, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	read := func() error {
		seen.Store(wrote.Load())
		times.Add(1)
		once.Do(func() { close(begun); <-goOn })
		return nil
	}
	var wg sync.WaitGroup
	call := func() {
		mine := wrote.Add(1)
		if err := s.do(read); err != nil || seen.Load() < mine {
			t.Errorf("%d was written and %d seen: %v", mine, seen.Load(), err)
		}
	}
	wg.Go(call)
	<-begun
	var waiting sync.WaitGroup
	for range callers {
		waiting.Add(1)
		wg.Go(func() { waiting.Done(); call() })
	}
	waiting.Wait()
	close(goOn)
	wg.Wait()
	if n := times.Load(); n >= callers { // all but a few came while the first was under way
		t.Errorf("%d callers had it done %d times", callers, n)
	}
}
