package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
)

// Server is one controller member: it answers nodes and tools, and takes part in the controllers' own Raft group.
// It is a prometheus.Collector and the shell around member: its goroutines are the loop, which alone drives the member, one
// link per other member, and those of gRPC; Close waits for all of them.
type Server struct {
	o        Options
	log      zerolog.Logger
	store    *store
	loaded   *loaded // until the loop has taken it over
	identity identity
	grpc     *grpc.Server
	creds    *secretCredentials

	membership atomic.Pointer[membership] // nil: the cluster is being founded
	member     atomic.Pointer[member]     // nil: likewise; handlers only read its state, under its lock
	view       atomic.Pointer[view]
	mismatches atomic.Uint64 // states of other members that differed at equal positions
	past       atomic.Bool   // said that the cluster was recovered without this one
	recovering *recovering   // nil: it does not wait for a recovery
	lead       *Leader

	// events reach the loop in order. Bound: eventQueue; senders wait for a place until their call ends.
	events chan func(*loop)

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	lifecycle sync.Mutex
	started   bool
	closed    bool
}

const eventQueue = 1024

// view is what the loop shows to the handlers.
type view struct {
	ready    bool   // leads, and has applied everything that earlier leaders answered
	leaderID string // "": not known
	term     uint64
	failure  string // why this member takes no part
	first    uint64 // first entry in the Raft log
}

// Open checks the options and the data folder, takes the folder's lock and loads the state. The server answers nobody before
// Start. Errors: what Options.Validate reports; *FolderError when the folder belongs to another member, is empty without
// Bootstrap or is in use by another process; *DamageError. The listener is closed when Open fails.
func Open(o Options) (s *Server, err error) {
	defer func() {
		if err != nil && o.Listener != nil {
			o.Listener.Close()
		}
	}()
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	st, l, err := openStore(o.Dir, o.Recover, func() (identity, error) {
		if !o.Bootstrap && !o.Join && !o.Recover {
			return identity{}, &FolderError{o.Dir, fmt.Sprintf("it has no controller data: give the folder that this member used before, or allow a new one with --%[1]sbootstrap, --%[1]sjoin or --%[1]srecover", o.FlagPrefix)}
		}
		return identity{ID: o.ID, RaftID: newRaftID()}, nil
	})
	if err != nil {
		return nil, err
	}
	if err := checkFolder(&o, l); err != nil {
		return nil, errors.Join(err, st.close())
	}
	s = &Server{
		o:        o,
		log:      o.Logger.With().Str("controller_id", o.ID).Logger(),
		store:    st,
		loaded:   l,
		identity: l.identity,
		creds:    &secretCredentials{secret: o.Secret, insecure: o.Insecure, logger: o.Logger},
		lead:     NewLeader(o.NodeSilence),
		events:   make(chan func(*loop), eventQueue),
	}
	s.o.Logger = s.log
	s.membership.Store(l.membership)
	if l.membership == nil && o.Recover {
		s.recovering = newRecovering()
	}
	s.view.Store(&view{})
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.grpc = grpc.NewServer(
		grpc.Creds(s.creds),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxConcurrentStreams(256),
		grpc.WaitForHandlers(true), // every handler watches the server's end
		grpc.UnaryInterceptor(boundCall))
	pb.RegisterControllerServer(s.grpc, &calls{s: s})
	pb.RegisterPeerServer(s.grpc, &peerCalls{s: s})
	return s, nil
}

// checkFolder tells whether the folder is the one that the options describe.
func checkFolder(o *Options, l *loaded) error {
	if l.identity.ID != o.ID {
		return &FolderError{o.Dir, fmt.Sprintf("it belongs to controller %s, not %s: give each member a folder of its own", l.identity.ID, o.ID)}
	}
	switch {
	case l.membership != nil:
	case l.recover && !o.Recover:
		return &FolderError{o.Dir, fmt.Sprintf("it was made for a recovery that did not come about: start it with --%srecover, or empty the folder", o.FlagPrefix)}
	case !l.recover && o.Recover:
		return &FolderError{o.Dir, "it is not empty: a recovery begins with an empty folder"}
	default:
		return nil
	}
	if e := l.state.controllers; e != nil {
		known := *l.membership
		known.Members, known.Changed = e.Members, true
		l.membership = &known
	} else if l.compacted.Index == 0 { // it was added, and its first snapshot has not come yet
		known := *l.membership
		known.Changed = true
		l.membership = &known
	}
	if err := l.membership.fits(l.identity, o); err != nil {
		return &FolderError{o.Dir, err.Error()}
	}
	return nil
}

// boundCall gives every call an end and turns its error into the one that travels.
func boundCall(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	resp, err := handler(ctx, req)
	return resp, toStatus(err)
}

// Start begins to answer. Call it once.
func (s *Server) Start() {
	s.lifecycle.Lock()
	defer s.lifecycle.Unlock()
	if s.started || s.closed {
		return
	}
	s.started = true
	s.wg.Go(func() {
		if err := s.grpc.Serve(s.o.Listener); err != nil && s.ctx.Err() == nil {
			s.log.Error().Err(err).Msg("the controller's listener ended")
		}
	})
	s.wg.Go(s.run)
}

// Close ends all calls, connections and goroutines, then releases the folder. It may be called without Start, and again.
func (s *Server) Close() error {
	s.lifecycle.Lock()
	defer s.lifecycle.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.cancel()
	s.grpc.Stop()
	s.o.Listener.Close()
	s.wg.Wait()
	return s.store.close()
}

// ID returns the member's id.
func (s *Server) ID() string { return s.identity.ID }

// Address returns the advertised address of this member.
func (s *Server) Address() string { return s.address(s.o.ID) }

// Ready tells whether a controller leads, as far as this member knows, and nothing keeps this one from taking part. The error
// says what is missing.
func (s *Server) Ready() error {
	v := s.view.Load()
	switch {
	case v.failure != "":
		return errors.New(v.failure)
	case s.awaits() != nil:
		return errAwaitsRecovery
	case s.membership.Load() == nil:
		return errors.New("the cluster is being founded: not every controller has answered yet")
	case v.leaderID == "":
		return errors.New("no controller leads")
	}
	return nil
}

// run founds the cluster if need be, then drives the member until the server closes.
func (s *Server) run() {
	if s.membership.Load() == nil {
		found := s.found
		if s.recovering != nil {
			found = func() error { return s.recover(s.recovering) }
		}
		if err := found(); err != nil {
			if s.ctx.Err() == nil {
				s.view.Store(&view{failure: err.Error()})
				s.log.Error().Err(err).Msg("the controller takes no part")
			}
			s.drain()
			return
		}
	}
	m, err := newMember(s.store, s.loaded, &s.o)
	if err != nil {
		s.view.Store(&view{failure: err.Error()})
		s.log.Error().Err(err).Msg("the controller takes no part")
		s.drain()
		return
	}
	s.loaded = nil
	s.member.Store(m)
	lp := newLoop(s, m)
	lp.followMembers()
	lp.run(s.ctx)
}

// drain answers what waits for a member that there will never be.
func (s *Server) drain() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.events:
		}
	}
}

func (s *Server) found() error {
	f := &founding{self: s.identity, newest: s.o.levels.Newest, o: &s.o, peers: sortedKeys(s.o.Peers), others: map[string]string{}, logger: s.log, every: 100 * time.Millisecond}
	conns := map[string]*grpc.ClientConn{}
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for id, addr := range s.o.Peers {
		if id == s.identity.ID {
			continue
		}
		conn, err := dialPeer(addr, &secretCredentials{secret: s.o.Secret})
		if err != nil {
			return err
		}
		f.others[id] = addr
		conns[addr] = conn
	}
	f.ask = func(ctx context.Context, addr string) (*pb.IdentifyResponse, error) {
		return pb.NewPeerClient(conns[addr]).Identify(ctx, &pb.IdentifyRequest{Id: s.identity.ID, RaftId: s.identity.RaftID})
	}
	m, err := f.run(s.ctx)
	if err != nil {
		return err
	}
	if err := s.store.adopt(m, NewState()); err != nil {
		return fmt.Errorf("writing the membership: %w", err)
	}
	s.loaded.membership = m
	if err := s.store.db.View(s.loaded.read); err != nil {
		return err
	}
	s.membership.Store(m)
	var names []string
	for _, i := range m.Members {
		names = append(names, i.ID)
	}
	s.log.Info().Str("controllers", strings.Join(names, ",")).Msg("membership of the controllers adopted")
	return nil
}

// post hands fn to the loop. It waits for a place in the queue until ctx or the server ends.
func (s *Server) post(ctx context.Context, fn func(*loop)) error {
	select {
	case s.events <- fn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ctx.Done():
		return ErrClosed
	}
}

// notLeader returns the error of a call that only a leader answers, or nil when this member leads.
func (s *Server) notLeader() error {
	v := s.view.Load()
	switch {
	case v.ready:
		return nil
	case v.failure != "":
		return fmt.Errorf("controller %s: %s", s.identity.ID, v.failure)
	case s.awaits() != nil:
		return errAwaitsRecovery
	case s.membership.Load() == nil:
		return fmt.Errorf("controller %s: the cluster is being founded: not every controller has answered yet", s.identity.ID)
	case v.leaderID == s.identity.ID:
		return fmt.Errorf("controller %s: it has just begun to lead", s.identity.ID)
	}
	return &notLeaderError{v.leaderID, s.address(v.leaderID)}
}

// propose runs a command through the Raft log and returns its result. An error that is no *RefusedError leaves open whether
// the command was or will be applied.
func (s *Server) propose(ctx context.Context, c Command) error {
	done := make(chan error, 1)
	if err := s.post(ctx, func(lp *loop) { lp.propose(c, done) }); err != nil {
		return err
	}
	return s.wait(ctx, done)
}

// confirm returns nil when this member led after confirm was called, and has applied all that was answered before that.
func (s *Server) confirm(ctx context.Context) error {
	if err := s.notLeader(); err != nil {
		return err
	}
	done := make(chan error, 1)
	if err := s.post(ctx, func(lp *loop) { lp.read(done) }); err != nil {
		return err
	}
	return s.wait(ctx, done)
}

func (s *Server) wait(ctx context.Context, done chan error) error {
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ctx.Done():
		return ErrClosed
	}
}
