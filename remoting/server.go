package remoting

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

// Handler takes one request, on the connection's reader goroutine. It must not block: what may block goes to Conn.Async.
// req, its strings and its body are valid until it returns; Clone makes a copy to keep. It answers with Conn.Reply, or
// takes the answer over with Conn.Pending.
type Handler func(c *Conn, req *Command)

// ServerOptions configure a server. Zero means the default.
type ServerOptions struct {
	Listener net.Listener // the server closes it
	Handler  Handler
	Opened   func(*Conn) // on the reader goroutine, before the first request; may be nil
	Closed   func(*Conn) // on the reader goroutine, after the last request; may be nil
	Drained  func(*Conn) // after the last whole frame of each read, before its answers are written; may be nil

	InFlightPerConn int64         // bytes; default 32 MiB
	InFlightTotal   int64         // bytes; default 512 MiB
	MaxOutput       int64         // bytes of answers that wait for one connection's socket; default 32 MiB
	OutputTotal     int64         // bytes, for all connections; default 512 MiB
	MaxConns        int           // further connections are closed at once; default 16384
	Workers         int           // goroutines of Go; default 16
	WorkerQueue     int           // jobs that wait for a worker; default 1024
	IdleTimeout     time.Duration // without a byte in either direction; default 120 s

	Logger zerolog.Logger
}

// EnsureDefaults fills in what is zero.
func (o *ServerOptions) EnsureDefaults() {
	def(&o.InFlightPerConn, 32<<20)
	def(&o.InFlightTotal, 512<<20)
	def(&o.MaxOutput, 32<<20)
	def(&o.OutputTotal, 512<<20)
	def(&o.MaxConns, 16384)
	def(&o.Workers, 16)
	def(&o.WorkerQueue, 1024)
	def(&o.IdleTimeout, 120*time.Second)
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Validate reports all faults at once.
func (o *ServerOptions) Validate() error {
	var faults []error
	if o.Listener == nil {
		faults = append(faults, errors.New("the Listener is missing"))
	}
	if o.Handler == nil {
		faults = append(faults, errors.New("the Handler is missing"))
	}
	faults = positive(faults, "InFlightPerConn", o.InFlightPerConn)
	faults = positive(faults, "InFlightTotal", o.InFlightTotal)
	faults = positive(faults, "MaxOutput", o.MaxOutput)
	faults = positive(faults, "OutputTotal", o.OutputTotal)
	faults = positive(faults, "MaxConns", int64(o.MaxConns))
	faults = positive(faults, "Workers", int64(o.Workers))
	faults = positive(faults, "WorkerQueue", int64(o.WorkerQueue))
	faults = positive(faults, "IdleTimeout", int64(o.IdleTimeout))
	return errors.Join(faults...)
}

// Server accepts connections and runs their readers.
type Server struct {
	o      ServerOptions
	limits limits
	pool   pool
	gate   gate
	wg     sync.WaitGroup // the accept loop and the readers
	stop   chan struct{}

	mu     sync.Mutex
	closed bool
	conns  map[*Conn]struct{}
}

// NewServer makes a server; Start begins to accept. It panics when Validate refuses the options: they come from code.
func NewServer(o ServerOptions) *Server {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		panic("remoting: server options: " + err.Error())
	}
	s := &Server{o: o, stop: make(chan struct{}), conns: map[*Conn]struct{}{}}
	s.limits.inFlightPerConn, s.limits.inFlightTotal = o.InFlightPerConn, o.InFlightTotal
	s.limits.outputPerConn, s.limits.outputTotal = o.MaxOutput, o.OutputTotal
	s.limits.idle = o.IdleTimeout
	s.pool = pool{workers: o.Workers, bound: o.WorkerQueue, log: o.Logger}
	return s
}

// Start begins to accept.
func (s *Server) Start() {
	s.wg.Add(1)
	go s.accept()
}

// Addr returns the address of the listener.
func (s *Server) Addr() net.Addr { return s.o.Listener.Addr() }

// Go runs f in the bounded worker pool. It returns false, and f never runs, when the pool is full or the server is closed.
// A panic in f is logged.
func (s *Server) Go(f func()) bool { return s.pool.run(f) }

// Conns returns the open connections, in no order.
func (s *Server) Conns() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Conn, 0, len(s.conns))
	for c := range s.conns {
		all = append(all, c)
	}
	return all
}

// Close stops to accept, closes all connections and waits for their goroutines and for the jobs of Go. Answers that were
// appended are written as far as the sockets take them at once.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.wg.Wait()
		return nil
	}
	s.closed = true
	close(s.stop)
	s.mu.Unlock()
	err := s.o.Listener.Close()
	for _, c := range s.Conns() {
		c.Flush()
		c.Close()
	}
	s.wg.Wait()
	s.pool.close()
	return err
}

func (s *Server) accept() {
	defer s.wg.Done()
	for {
		nc, err := s.o.Listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || s.isClosed() {
				return
			}
			// Out of file descriptors, or a peer that went away before it was accepted: others must still get in.
			s.gate.log(func(suppressed int) {
				s.o.Logger.Warn().Err(err).Int("suppressed", suppressed).Msg("accepting a connection failed")
			})
			if !errors.Is(err, syscall.ECONNABORTED) {
				t := time.NewTimer(50 * time.Millisecond)
				select {
				case <-t.C:
				case <-s.stop:
					t.Stop()
					return
				}
			}
			continue
		}
		s.open(nc)
	}
}

func (s *Server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

func (s *Server) open(nc net.Conn) {
	c := newConn(nc, &s.limits, s.o.Logger)
	c.server, c.handle, c.drained, c.response = s, s.o.Handler, s.o.Drained, c.answered
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.conns) >= s.o.MaxConns {
		if !s.closed {
			s.gate.log(func(suppressed int) {
				s.o.Logger.Warn().Stringer("remote", c.remote).Int("limit", s.o.MaxConns).Int("suppressed", suppressed).
					Msg("too many connections: one was closed at once")
			})
		}
		nc.Close()
		return
	}
	s.conns[c] = struct{}{}
	s.wg.Add(1)
	go s.serve(c)
}

// serve is the reader goroutine of one connection.
func (s *Server) serve(c *Conn) {
	defer s.wg.Done()
	if s.o.Opened != nil {
		s.o.Opened(c)
	}
	rd := reader{c: c}
	err := rd.run()
	c.fail(err)
	c.wg.Wait()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	if s.o.Closed != nil {
		s.o.Closed(c)
	}
	s.logEnd(c)
}

// logEnd writes one line for an end that the peer or its network is to blame for.
func (s *Server) logEnd(c *Conn) {
	var frame *FrameError
	switch {
	case errors.As(c.reason, &frame), errors.Is(c.reason, errSlowReader), errors.Is(c.reason, errHandler):
		s.gate.log(func(suppressed int) {
			s.o.Logger.Warn().Err(c.reason).Stringer("remote", c.remote).Int("suppressed", suppressed).Msg("a connection was closed")
		})
	case errors.Is(c.reason, io.EOF), errors.Is(c.reason, ErrClosed):
	default:
		s.o.Logger.Debug().Err(c.reason).Stringer("remote", c.remote).Msg("a connection ended")
	}
}
