package namesrv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/remoting"
)

// Options configure a name server.
type Options struct {
	Listener    net.Listener // of the remoting protocol; the server closes it
	ClusterID   string       // told to tools; "" means what brokers say
	Controllers []string     // host:port, told to tools until a broker has said who they are

	// Known asks the controller for the names of all groups. It is called until it returns no error and each of its groups
	// has registered a master: then the server is ready. nil means that there is no controller to ask, and the server is
	// ready after ReadyAfter.
	Known func(ctx context.Context) (groups []string, err error)

	// Cluster answers what RocketMQ's tools ask a controller. nil: such requests are refused.
	Cluster Cluster

	Expiry     time.Duration // a broker that is silent for longer is dropped; default 120 s
	ScanEvery  time.Duration // how often silent brokers are looked for; default 5 s
	ReadyAfter time.Duration // the server is ready after this in any case; default 35 s, a little more than brokers' 30 s
	AskEvery   time.Duration // pause between two calls of Known; default 250 ms. A call may take ten times as long

	Clock  func() time.Time // default time.Now
	Logger zerolog.Logger
}

// EnsureDefaults fills in what is zero.
func (o *Options) EnsureDefaults() {
	for _, d := range []struct {
		at    *time.Duration
		value time.Duration
	}{
		{&o.Expiry, 120 * time.Second}, {&o.ScanEvery, 5 * time.Second},
		{&o.ReadyAfter, 35 * time.Second}, {&o.AskEvery, 250 * time.Millisecond},
	} {
		if *d.at == 0 {
			*d.at = d.value
		}
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
}

// Validate reports all faults at once.
func (o *Options) Validate() error {
	var faults []error
	if o.Listener == nil {
		faults = append(faults, errors.New("no Listener is given"))
	}
	for name, d := range map[string]time.Duration{
		"Expiry": o.Expiry, "ScanEvery": o.ScanEvery, "ReadyAfter": o.ReadyAfter, "AskEvery": o.AskEvery,
	} {
		if d <= 0 {
			faults = append(faults, fmt.Errorf("%s is %v, it must be above zero", name, d))
		}
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(faults...)
}

// Server serves a table of routes over the remoting protocol.
type Server struct {
	o        Options
	remoting *remoting.Server
	counters *counters
	lastConn atomic.Uint64
	ready    atomic.Bool
	poke     chan struct{} // a registration came; holds one, more say nothing new

	mu     sync.RWMutex // guards routes; held for microseconds, never over I/O
	routes *Routes

	ctx  context.Context // ends with Close; set by Start
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// connState is what the server keeps of a connection, in its Value.
type connState struct {
	id         ConnID
	registered bool // used on the reader goroutine only
}

// New makes a server in memory. The error is that of Validate.
func New(o Options) (*Server, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("namesrv: options: %w", err)
	}
	s := &Server{o: o, routes: NewRoutes(o.Expiry), poke: make(chan struct{}, 1), counters: newCounters()}
	s.remoting = remoting.NewServer(remoting.ServerOptions{
		Listener: o.Listener, Handler: s.handle, Opened: s.opened, Closed: s.closed, Logger: o.Logger,
	})
	return s, nil
}

// Start begins to serve. It must be called once, before Close.
func (s *Server) Start() {
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.wg.Add(2)
	go s.expire(s.ctx)
	go s.becomeReady(s.ctx)
	s.remoting.Start()
}

// Close stops serving, ends the calls of controllers that are under way, and waits for all goroutines.
func (s *Server) Close() error {
	if s.stop != nil {
		s.stop()
	}
	err := s.remoting.Close()
	s.wg.Wait()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("namesrv: close: %w", err)
	}
	return nil
}

// Addr returns the address that the server listens on.
func (s *Server) Addr() net.Addr { return s.o.Listener.Addr() }

// Ready tells whether the server answers "no such topic". Before that it answers "not ready" for topics it does not know.
func (s *Server) Ready() bool { return s.ready.Load() }

func (s *Server) opened(c *remoting.Conn) {
	c.SetValue(&connState{id: ConnID(s.lastConn.Add(1))})
}

func (s *Server) closed(c *remoting.Conn) {
	state := c.Value().(*connState)
	if !state.registered {
		return // a client
	}
	s.mu.Lock()
	gone := s.routes.ConnClosed(s.o.Clock(), state.id)
	s.mu.Unlock()
	s.logGone(gone, leftClosed)
}

// Why an address leaves the routes; values of Stats.Removed.
const (
	leftClosed       = "closed"       // its connection ended
	leftSilent       = "silent"       // it expired
	leftUnregistered = "unregistered" // it said so
)

func (s *Server) logGone(gone []Removed, why string) {
	for _, r := range gone {
		s.counters.left(why)
		s.o.Logger.Info().Str("group", r.Group).Uint64("epoch", uint64(r.Term.Epoch())).Stringer("term", r.Term).
			Str("addr", r.Addr).Int64("brokerID", int64(r.BrokerID)).Str("why", why).Msg("a broker left the routes")
	}
}

// expire looks for silent brokers.
func (s *Server) expire(ctx context.Context) {
	defer s.wg.Done()
	tick := time.NewTicker(s.o.ScanEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		gone := s.routes.Expire(s.o.Clock())
		s.mu.Unlock()
		s.logGone(gone, leftSilent)
	}
}

// becomeReady ends when the server is ready.
func (s *Server) becomeReady(ctx context.Context) {
	defer s.wg.Done()
	deadline := time.NewTimer(s.o.ReadyAfter)
	defer deadline.Stop()
	for {
		if s.allRegistered(ctx) {
			s.ready.Store(true)
			s.o.Logger.Info().Msg("ready: every group that the controller knows has registered")
			return
		}
		pause := time.NewTimer(s.o.AskEvery)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-deadline.C:
			pause.Stop()
			s.ready.Store(true)
			s.o.Logger.Info().Dur("after", s.o.ReadyAfter).Msg("ready: the time for brokers to register is over")
			return
		case <-s.poke:
		case <-pause.C:
		}
		pause.Stop()
	}
}

// allRegistered asks the controller and compares. A registration without a master does not count: topics come from masters.
func (s *Server) allRegistered(ctx context.Context) bool {
	if s.o.Known == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, min(10*s.o.AskEvery, s.o.ReadyAfter))
	defer cancel()
	groups, err := s.o.Known(ctx)
	if err != nil {
		s.o.Logger.Debug().Err(err).Msg("the controller did not name its groups")
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, g := range groups {
		if !s.routes.HasMaster(g) {
			return false
		}
	}
	return true
}
