package controller

import "errors"

// Server is one controller member: it answers nodes and tools, and takes part in the controllers' own Raft group.
// It is a prometheus.Collector.
type Server struct{}

// Open checks the options and the data folder, takes the folder's lock and loads the state. The server answers nobody before
// Start. Errors: what Options.Validate reports, *FolderError when the folder belongs to another member, is empty without
// Bootstrap or is in use by another process, *DamageError.
func Open(o Options) (*Server, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return nil, errors.New("controller: the member behind this API is not there yet")
}

// Start begins to answer. Call it once.
func (s *Server) Start() {}

// Close ends all calls, connections and goroutines, then releases the folder. It may be called without Start, and again.
func (s *Server) Close() error { return nil }
