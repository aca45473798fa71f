package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/remoting"
)

const (
	// awaitMaster is how long a forwarded request waits for a master to be known.
	awaitMaster = time.Second
	// forwardTimeout bounds a forwarded request in all.
	forwardTimeout = 2500 * time.Millisecond
	// prepareTimeout is how long a hand-over waits for the connection over which requests are passed on afterwards.
	prepareTimeout = 200 * time.Millisecond
)

// forwarder is the connection of a slave to the master of its group, over which it passes on what only a master may answer.
// Stock clients read routes every 30 s: until then their requests reach the new master through the old one. A request makes one
// hop, and is sent again only when it is certain that the first one who got it did not store it.
type forwarder struct {
	r       *Replica
	pending atomic.Int64 // requests that are being passed on

	mu      sync.Mutex
	addr    string
	client  *remoting.Client
	former  []*remoting.Client // to earlier masters, which still may answer what they were asked
	dialing chan struct{}      // not nil while one request dials for all that wait; closed when it has done so
}

func newForwarder(r *Replica) forwarder { return forwarder{r: r} }

func (f *forwarder) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.client != nil {
		f.client.Close()
		f.client = nil
	}
	for _, c := range f.former {
		c.Close()
	}
	f.former = nil
}

// retire keeps a connection for as long as a request may wait for its answer; mu is held. An earlier master says "not stored", or OK,
// of what reached it, and without that answer nobody would know.
func (f *forwarder) retire(c *remoting.Client) {
	f.former = append(f.former, c)
	time.AfterFunc(forwardTimeout, func() {
		c.Close()
		f.mu.Lock()
		defer f.mu.Unlock()
		f.former = slices.DeleteFunc(f.former, func(other *remoting.Client) bool { return other == c })
	})
}

// dial returns the connection to addr. Of many requests that need a new one, as in the moment of a hand-over, one makes it.
func (f *forwarder) dial(ctx context.Context, addr string) (*remoting.Client, error) {
	for {
		f.mu.Lock()
		if f.client != nil && f.addr == addr && !f.client.Closed() {
			defer f.mu.Unlock()
			return f.client, nil
		}
		other := f.dialing
		if other == nil {
			break
		}
		f.mu.Unlock()
		select {
		case <-other: // if it failed the next one of us tries
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", remoting.ErrNotSent, ctx.Err())
		}
	}
	done := make(chan struct{})
	f.dialing = done
	f.mu.Unlock()
	c, err := remoting.Dial(ctx, addr, remoting.ClientOptions{Logger: f.r.log})
	f.mu.Lock()
	if err == nil && f.r.ctx.Err() != nil { // nobody would close it
		c.Close()
		c, err = nil, fmt.Errorf("%w: %w", remoting.ErrNotSent, f.r.ctx.Err())
	}
	if err == nil {
		if f.client != nil {
			f.retire(f.client)
		}
		f.client, f.addr = c, addr
	}
	f.dialing = nil
	close(done)
	f.mu.Unlock()
	return c, err
}

// finish waits until nothing is being passed on any more, for as long as that may take at most. What still comes is refused.
func (f *forwarder) finish(ctx context.Context) {
	f.r.office.ending.Store(true)
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	for f.pending.Load() > 0 && f.r.pauseUntil(ctx) {
	}
}

// prepare connects to the replica that is about to become master, so that the first request to be passed on need not.
func (f *forwarder) prepare(to ids.ReplicaID) {
	addr := (*f.r.others.Load())[to].client
	if addr == "" {
		return
	}
	ctx, cancel := context.WithTimeout(f.r.ctx, prepareTimeout)
	defer cancel()
	if _, err := f.dial(ctx, addr); err != nil {
		f.r.log.Debug().Err(err).Msg("no connection yet to the replica that takes over")
	}
}

// masterAddr is the client address of the master that this replica knows; "" when none is known.
func (r *Replica) masterAddr() string {
	addr, _ := r.knownMaster()
	return addr
}

// knownMaster is masterAddr with the term that goes with it.
func (r *Replica) knownMaster() (addr string, term ids.Term) {
	role := r.role.Load()
	if told := r.office.told.Load(); role.Kind == raftlog.RoleParked && told != nil {
		role = told
	}
	if role.Master == 0 || role.Master == r.id {
		return "", r.term()
	}
	return (*r.others.Load())[role.Master].client, role.Term
}

// Why a request is not forwarded: this replica leads now, or nobody does.
var (
	errBecameMaster = errors.New("this replica became master")
	errNoMaster     = errors.New("no master is known")
)

// waitMaster waits until a master is known.
func (r *Replica) waitMaster(ctx context.Context) (string, error) {
	t := time.NewTicker(100 * time.Millisecond) // the controller may tell the address of a master later than that it leads
	defer t.Stop()
	for {
		changed := r.office.changed()
		if r.isMaster() {
			return "", errBecameMaster
		}
		if a := r.masterAddr(); a != "" {
			return a, nil
		}
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
			return "", errNoMaster
		}
	}
}

// leads tells whether this replica was elected, whether it may take requests yet or not.
func (r *Replica) leads() bool { return r.role.Load().Master == r.id }

// awaitMastery waits while this replica leads without having applied the first entry of its term, or is giving up its office, and
// tells whether it is master.
func (r *Replica) awaitMastery() bool {
	ctx, cancel := context.WithTimeout(r.ctx, awaitMaster)
	defer cancel()
	for {
		changed := r.office.changed()
		if r.isMaster() || !r.leads() {
			return r.isMaster()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return r.isMaster()
		}
	}
}

// forward passes a request on from its handler call.
func (r *Replica) forward(c *remoting.Conn, req *remoting.Command) {
	if _, hop := req.Get(fieldForward); hop && !r.leads() {
		resp := remoting.NewResponse(remoting.ServiceNotAvailable, remarkNotStored)
		r.markMaster(resp)
		c.Reply(req, resp)
		return
	}
	c.Async(req, r.forwardPending)
}

// passOn forwards a request of which the answer was taken over already, from its handler call.
func (r *Replica) passOn(req *remoting.Command, pend remoting.Pending) {
	clone := req.Clone()
	if !r.srv.Go(func() { r.forwardPending(clone, &pend) }) {
		pend.AppendAnswer(remoting.NewResponse(remoting.SystemBusy, notStoredMark+"all workers are busy, try later"))
	}
}

func (r *Replica) forwardPending(req *remoting.Command, pend *remoting.Pending) {
	r.forwardOr(req, pend, nil)
}

// forwardOr passes a request on; when no master is known, without answers it, if it is given.
func (r *Replica) forwardOr(req *remoting.Command, pend *remoting.Pending, without func(*remoting.Command, *remoting.Pending)) {
	if _, hop := req.Get(fieldForward); hop {
		// The others know a new master by its first heartbeat, a moment before it may take anything.
		if r.awaitMastery() {
			r.serveHere(req, pend)
			return
		}
		resp := remoting.NewResponse(remoting.ServiceNotAvailable, remarkNotStored)
		r.markMaster(resp)
		pend.Answer(resp)
		return
	}
	r.forwarder.pending.Add(1)
	defer r.forwarder.pending.Add(-1)
	if r.office.ending.Load() { // looked at when it counts already: who waits for the count misses none
		resp := remoting.NewResponse(remoting.ServiceNotAvailable, remarkNotStored)
		r.markMaster(resp)
		pend.Answer(resp)
		return
	}
	ctx, cancel := context.WithTimeout(r.ctx, forwardTimeout)
	defer cancel()
	resp, err := r.tryForward(ctx, req, pend)
	switch {
	case errors.Is(err, errBecameMaster):
		r.serveHere(req, pend)
		return
	case without != nil && (errors.Is(err, errNoMaster) || errors.Is(err, remoting.ErrNotSent)):
		without(req, pend)
		return
	case err != nil:
		resp = remoting.NewResponse(remoting.ServiceNotAvailable, r.forwardRemark(err))
	}
	r.markMaster(resp)
	pend.Answer(resp)
}

// tryForward passes a request on. As long as nothing of it was sent, because the master that this replica knows is dead, or was
// refused because it is master no more, it waits for the next one. The error is errBecameMaster, errNoMaster, or one of the link.
func (r *Replica) tryForward(ctx context.Context, req *remoting.Command, pend *remoting.Pending) (*remoting.Command, error) {
	wait, cancel := context.WithTimeout(ctx, awaitMaster)
	defer cancel()
	for {
		addr, err := r.waitMaster(wait)
		if err != nil {
			return nil, err
		}
		resp, err := r.forwarder.call(ctx, addr, req, pend)
		again := errors.Is(err, remoting.ErrNotSent)
		if err == nil {
			// A master that gave up its office meanwhile says so, and has stored nothing.
			if again = resp.Code == remoting.ServiceNotAvailable && strings.HasPrefix(resp.Remark, notStoredMark); !again {
				r.counters.forwarded.Add(1)
				return resp, nil
			}
		}
		if !again || !r.pauseUntil(wait) {
			return resp, err
		}
	}
}

// pauseUntil waits a little before the next try; false when ctx is over.
func (r *Replica) pauseUntil(ctx context.Context) bool {
	t := time.NewTimer(20 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func (r *Replica) forwardRemark(err error) string {
	switch {
	case errors.Is(err, errNoMaster):
		return fmt.Sprintf("[NOT_STORED] group %s has no master at the moment: ask again", r.group)
	case errors.Is(err, remoting.ErrNotSent):
		return fmt.Sprintf("[NOT_STORED] the master could not be reached: %v", err)
	}
	return fmt.Sprintf("[UNKNOWN] the link to the master broke before it answered: %v", err)
}

// markMaster tells our own clients whom to ask next time.
func (r *Replica) markMaster(resp *remoting.Command) {
	addr, term := r.knownMaster()
	if addr != "" {
		resp.Set(fieldMaster, addr)
	}
	resp.SetInt64(fieldTerm, int64(term))
}

func (f *forwarder) call(ctx context.Context, addr string, req *remoting.Command, pend *remoting.Pending) (*remoting.Command, error) {
	cl, err := f.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	f.mark(req, pend)
	if pend.OneWay() {
		if err := cl.OneWay(req); err != nil {
			return nil, err
		}
		return remoting.NewResponse(remoting.Success, ""), nil
	}
	return cl.Call(ctx, req)
}

func (f *forwarder) mark(req *remoting.Command, pend *remoting.Pending) {
	req.SetInt64(fieldForward, int64(f.r.term()))
	if c := pend.Conn(); c != nil {
		req.Set(fieldClient, c.RemoteAddr().String())
	}
}

// oneWay sends a request of this replica's own to the master. It is lost when none is known: nobody waits for it, and it holds up
// no worker.
func (f *forwarder) oneWay(req *remoting.Command) {
	addr := f.r.masterAddr()
	if addr == "" {
		return
	}
	ctx, cancel := context.WithTimeout(f.r.ctx, forwardTimeout)
	defer cancel()
	if cl, err := f.dial(ctx, addr); err == nil {
		req.SetInt64(fieldForward, int64(f.r.term()))
		if err := cl.OneWay(req); err != nil {
			f.r.log.Debug().Err(err).Msg("a consumer offset could not be passed on to the master")
		}
	}
}

// serveHere answers a request that waited for a master and met it here.
func (r *Replica) serveHere(req *remoting.Command, pend *remoting.Pending) {
	switch req.Code {
	case remoting.SendMessage, remoting.SendMessageV2, remoting.SendBatchMessage:
		r.sendSlowly(req, pend)
	case remoting.UpdateConsumerOffset:
		r.updateOffset(req, pend)
	default:
		r.slow(req.Code)(req, pend) // nothing else is forwarded
	}
}

// checkedName clones a name out of a request after checking it.
func checkedName(name string, valid func(string) error) (string, error) {
	if err := valid(name); err != nil {
		return "", err
	}
	return strings.Clone(name), nil
}
