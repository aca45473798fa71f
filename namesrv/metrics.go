package namesrv

import (
	"maps"
	"sync"
)

// Stats is a snapshot of what a server counts.
type Stats struct {
	Ready                     bool
	Groups, Addresses, Topics int
	Requests                  map[RequestKey]uint64 // answered since the start
	Removed                   map[string]uint64     // addresses that left the routes, by reason
}

// RequestKey tells requests apart. Request is RocketMQ's name, "other" for codes that are not served: a stranger cannot make
// the map grow.
type RequestKey struct {
	Request string
	Code    int32 // of the response
}

// counters has its own lock, so that counting never waits for routes.
type counters struct {
	mu       sync.Mutex
	requests map[RequestKey]uint64
	removed  map[string]uint64
}

func newCounters() *counters {
	return &counters{requests: map[RequestKey]uint64{}, removed: map[string]uint64{}}
}

func (c *counters) answered(request string, code int32) {
	c.mu.Lock()
	c.requests[RequestKey{request, code}]++
	c.mu.Unlock()
}

func (c *counters) left(reason string) {
	c.mu.Lock()
	c.removed[reason]++
	c.mu.Unlock()
}

// Stats returns what the server has counted.
func (s *Server) Stats() Stats {
	st := Stats{Ready: s.Ready()}
	s.mu.RLock()
	st.Groups, st.Addresses, st.Topics = s.routes.Counts()
	s.mu.RUnlock()
	s.counters.mu.Lock()
	defer s.counters.mu.Unlock()
	st.Requests, st.Removed = maps.Clone(s.counters.requests), maps.Clone(s.counters.removed)
	return st
}
