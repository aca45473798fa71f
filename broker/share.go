package broker

import "sync"

// share lets callers that want the same thing done at the same time have it done once. A caller that comes while it is being done may want what
// has just changed, so it waits for the next time, with all others that come until that begins. The zero value is ready.
type share struct {
	doing sync.Mutex
	mu    sync.Mutex
	next  *shared
}

// shared is one time that something is done.
type shared struct {
	done chan struct{}
	err  error
}

// do returns when f has run once, from begin to end, since it was called. All callers of one share give it the same f.
func (s *share) do(f func() error) error {
	s.mu.Lock()
	t, first := s.next, s.next == nil
	if first {
		t = &shared{done: make(chan struct{})}
		s.next = t
	}
	s.mu.Unlock()
	if !first {
		<-t.done
		return t.err
	}
	s.doing.Lock()
	defer s.doing.Unlock()
	s.mu.Lock()
	s.next = nil
	s.mu.Unlock()
	t.err = f()
	close(t.done)
	return t.err
}
