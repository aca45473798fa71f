package controller

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

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// maxMessage bounds a message in either direction, in bytes.
const maxMessage = 64 << 20

// maxLearned bounds how many addresses a client learns from answers beside those that it was given.
const maxLearned = 16

// Client calls the controllers of a cluster: it tries every address, follows the leader, and repeats what no leader answered
// until the caller's context ends; only when all of them refuse the secret it gives up at once. A call without a deadline gets
// the call timeout. Every call can be repeated safely, so an ErrUnavailable may be followed by the same call again. A dead,
// stopped or black-holed controller costs a call at most its share of the time. Safe for use from any goroutine.
type Client struct {
	secret  []byte
	attempt time.Duration
	call    time.Duration
	session ids.UUID
	levels  Levels // that the node's program says it understands; tests play older ones
	beats   atomic.Uint64

	mu      sync.Mutex
	targets []*target // those given first, then those learned
	given   int       // how many of targets were given
	members []string  // addresses of the controllers, as one that leads told them last
	next    int       // index of the target to try first
	closed  bool

	held   *pb.Recovery // controllers of before it are not believed; nil: all are
	awaits *target      // that said last that it waits for a recovery
}

// target is one address and its lazily made connection.
type target struct {
	addr      string
	conn      *grpc.ClientConn
	handshake atomic.Pointer[error] // last handshake failure, nil after a success
}

// DialOption changes a Client.
type DialOption func(*Client)

// WithAttemptTimeout bounds the time that one controller gets before the next is tried. Default 1 s.
func WithAttemptTimeout(d time.Duration) DialOption { return func(c *Client) { c.attempt = d } }

// WithCallTimeout bounds calls whose context has no deadline. Default 5 s.
func WithCallTimeout(d time.Duration) DialOption { return func(c *Client) { c.call = d } }

// Dial makes a client of the controllers at addrs (host:port). It connects to none yet. The client tells the controllers a
// session of its own: RegisterNode and Heartbeat of one node must go through one Client.
func Dial(addrs []string, secret []byte, opts ...DialOption) (*Client, error) {
	if len(addrs) == 0 {
		return nil, refuse(ErrInvalid, "controller: no address given: want host:port of at least one controller")
	}
	c := &Client{secret: secret, attempt: time.Second, call: 5 * time.Second, session: ids.NewUUID(nil), levels: OwnLevels()}
	for _, o := range opts {
		o(c)
	}
	for _, a := range addrs {
		if _, _, err := net.SplitHostPort(a); err != nil {
			c.Close()
			return nil, refuse(ErrInvalid, "controller: address %q: want host:port", a)
		}
		if _, err := c.target(a); err != nil {
			c.Close()
			return nil, err
		}
	}
	c.given = len(c.targets)
	return c, nil
}

// target returns the target of addr, new if need be. The caller holds mu, or is Dial.
func (c *Client) target(addr string) (*target, error) {
	for _, t := range c.targets {
		if t.addr == addr {
			return t, nil
		}
	}
	t := &target{addr: addr}
	creds := &secretCredentials{secret: c.secret, failed: func(err error) {
		if err == nil {
			t.handshake.Store(nil)
		} else {
			t.handshake.Store(&err)
		}
	}}
	conn, err := dialPeer(addr, creds)
	if err != nil {
		return nil, refuse(ErrInvalid, "controller: address %q: %v", addr, err)
	}
	t.conn = conn
	c.targets = append(c.targets, t)
	return t, nil
}

// dialPeer makes a connection that looks its name up at each attempt, so that a failing DNS never empties an address list.
func dialPeer(addr string, creds *secretCredentials) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(creds),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
}

// Close ends the connections. Calls under way fail.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	var errs []error
	for _, t := range c.targets {
		errs = append(errs, t.conn.Close())
	}
	return errors.Join(errs...)
}

// Addresses returns the addresses of the controllers, as the leading one told them last; before that those that were given.
func (c *Client) Addresses() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.members) > 0 {
		return slices.Clone(c.members)
	}
	var out []string
	for _, t := range c.targets {
		out = append(out, t.addr)
	}
	return out
}

// learn makes the controllers that an answer names those that are tried. What was given is never dropped: when all that was learned
// is gone, it is what is left.
func (c *Client) learn(members []*pb.Member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(members) == 0 {
		return
	}
	c.members = c.members[:0]
	for _, m := range members[:min(len(members), maxLearned)] {
		if _, _, err := net.SplitHostPort(m.GetAddress()); err != nil {
			continue
		}
		if _, err := c.target(m.GetAddress()); err == nil {
			c.members = append(c.members, m.GetAddress())
		}
	}
	for i := len(c.targets) - 1; i >= c.given; i-- {
		if t := c.targets[i]; !slices.Contains(c.members, t.addr) {
			_ = t.conn.Close() // a call under way on it fails, and is tried elsewhere
			c.targets = slices.Delete(c.targets, i, i+1)
		}
	}
	if c.next >= len(c.targets) {
		c.next = 0
	}
}

// round returns the targets in the order in which a round tries them.
func (c *Client) round() ([]*target, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	out := make([]*target, 0, len(c.targets))
	for i := range c.targets {
		out = append(out, c.targets[(c.next+i)%len(c.targets)])
	}
	return out, nil
}

// prefer makes t the first one of the next call.
func (c *Client) prefer(t *target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, other := range c.targets {
		if other == t {
			c.next = i
		}
	}
}

// follow returns the target of a leader hint, or nil when it is already among those tried or cannot be used.
func (c *Client) follow(hint string, tried map[*target]bool) *target {
	if hint == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.targets) >= c.given+maxLearned {
		return nil
	}
	t, err := c.target(hint)
	if err != nil || tried[t] {
		return nil
	}
	return t
}

// do runs fn against the leader.
func (c *Client) do(ctx context.Context, fn func(context.Context, pb.ControllerClient) error) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.call)
		defer cancel()
	}
	pause := 25 * time.Millisecond
	for {
		err := c.tryRound(ctx, fn)
		var unavailable *unavailableError
		if err == nil || !errors.As(err, &unavailable) || unavailable.secrets == len(unavailable.said) || unavailable.awaits {
			return err // also when every controller refuses the secret, or one waits for a recovery: asking again does not change it
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-timer.C:
		}
		pause = min(2*pause, 400*time.Millisecond)
	}
}

// ask runs one call against the leader and returns its answer.
func ask[Q, A any](ctx context.Context, c *Client, call func(pb.ControllerClient, context.Context, *Q, ...grpc.CallOption) (*A, error), req *Q) (answer *A, err error) {
	err = c.do(ctx, func(ctx context.Context, cc pb.ControllerClient) (err error) {
		answer, err = call(cc, ctx, req)
		return err
	})
	return answer, err
}

// tryRound tries every target once.
func (c *Client) tryRound(ctx context.Context, fn func(context.Context, pb.ControllerClient) error) error {
	queue, err := c.round()
	if err != nil {
		return err
	}
	fail := &unavailableError{}
	tried := map[*target]bool{}
	for len(queue) > 0 {
		t := queue[0]
		queue = queue[1:]
		if tried[t] {
			continue
		}
		tried[t] = true
		deadline, _ := ctx.Deadline()
		share := min(c.attempt, time.Until(deadline)/time.Duration(1+len(queue)))
		attempt, cancel := context.WithTimeout(ctx, share)
		err := fn(attempt, pb.NewControllerClient(t.conn))
		cancel()
		if err == nil {
			c.prefer(t)
			return nil
		}
		if refused := fromStatus(err); refused != nil {
			c.prefer(t)
			return refused
		}
		fail.add(t, err)
		if awaitsRecovery(err) {
			fail.awaits = true
			c.mu.Lock()
			c.awaits = t
			c.mu.Unlock()
		}
		if ctx.Err() != nil {
			break
		}
		if next := c.follow(leaderHint(err), tried); next != nil {
			queue = append([]*target{next}, queue...)
		}
	}
	// The next call starts behind the one that was tried first: a list of dead addresses with one good one always gets there.
	c.mu.Lock()
	if len(c.targets) > 0 {
		c.next = (c.next + 1) % len(c.targets)
	}
	c.mu.Unlock()
	return fail
}

// unavailableError is ErrUnavailable with what each address said.
type unavailableError struct {
	said    []string
	secrets int  // how many of them refused the secret
	awaits  bool // one of them waits for a recovery
}

func (e *unavailableError) add(t *target, err error) {
	if h := t.handshake.Load(); h != nil && errors.Is(*h, ErrSecret) {
		e.secrets++
	}
	e.said = append(e.said, t.addr+": "+t.reason(err))
}

// reason says in words for people why a call failed: what the member answered, else what became of the connection.
func (t *target) reason(err error) string {
	text := status.Convert(err).Message()
	if h := t.handshake.Load(); h != nil {
		text = (*h).Error()
	} else if status.Code(err) == codes.DeadlineExceeded {
		text = "no answer in time"
	} else if status.Code(err) == codes.Unimplemented {
		text = "its program is older and does not know this request: start the new program there"
	} else if _, cause, dialing := strings.Cut(text, t.addr+": "); dialing && strings.Contains(text, "dial") {
		text = strings.TrimPrefix(strings.TrimSuffix(cause, `"`), "connect: ")
	}
	return strings.ReplaceAll(text, "\n", " ")
}

func (e *unavailableError) Error() string {
	return fmt.Sprintf("%v: %s", ErrUnavailable, strings.Join(e.said, "; "))
}

func (e *unavailableError) Is(target error) bool {
	return target == ErrUnavailable || e.secrets > 0 && target == ErrSecret || e.awaits && target == ErrAwaitsRecovery
}

// HoldTo makes the client believe only controllers of this recovery, or of a later one.
func (c *Client) HoldTo(r *pb.Recovery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = r
}

func (c *Client) holds() *pb.Recovery {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}

// believe refuses the answer of a controller of before the recovery that the client holds to: another one may know better.
func (c *Client) believe(r *pb.Recovery) error {
	held := c.holds()
	if r.GetNumber() > held.GetNumber() || r.GetNumber() == held.GetNumber() && string(r.GetToken()) == string(held.GetToken()) {
		return nil
	}
	return fmt.Errorf("it is a controller of before recovery %d of the controllers: stop it and empty its folder", held.GetNumber())
}

// Testify tells the controller that waits for a recovery what is durable on a node. Call it after ErrAwaitsRecovery.
func (c *Client) Testify(ctx context.Context, t *pb.Testimony) (*pb.TestifyResponse, error) {
	c.mu.Lock()
	to := c.awaits
	c.mu.Unlock()
	if to == nil {
		return nil, ErrUnavailable
	}
	t.Levels = c.levels.Wire()
	return pb.NewControllerClient(to.conn).Testify(ctx, t)
}

// Recover asks a controller that waits for a recovery what would become of it, or executes it. Errors: ErrInvalid, ErrNotNow.
func (c *Client) Recover(ctx context.Context, req *pb.RecoverRequest) (*pb.RecoverResponse, error) {
	return ask(ctx, c, pb.ControllerClient.Recover, req)
}

// RegisterNode makes this process the one that speaks for the node. While another process of the node is alive it is refused
// with ErrNodeConflict; after a kill it takes at most the node silence (1 s) until the new process is taken.
// The request's session and levels are filled in.
func (c *Client) RegisterNode(ctx context.Context, req *pb.RegisterNodeRequest) (*pb.RegisterNodeResponse, error) {
	req.Session, req.Levels, req.Recovery = c.session[:], c.levels.Wire(), c.holds()
	var resp *pb.RegisterNodeResponse
	err := c.do(ctx, func(ctx context.Context, cc pb.ControllerClient) (err error) {
		if resp, err = cc.RegisterNode(ctx, req); err == nil {
			err = c.believe(resp.GetRecovery())
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("register node %s: %w", req.GetNodeId(), err)
	}
	c.learn(resp.GetControllers())
	return resp, nil
}

// Heartbeat reports a node's replicas and brings what the controller wants of it. Give it a deadline of about a second: a
// report that waits for a leader grows old. ErrUnregistered: call RegisterNode, then go on. The request's session,
// sequence and levels are filled in, so one request value must not be used by two calls at once.
func (c *Client) Heartbeat(ctx context.Context, req *pb.HeartbeatRequest) (*pb.HeartbeatResponse, error) {
	req.Session, req.Levels, req.Recovery = c.session[:], c.levels.Wire(), c.holds()
	req.Sequence = c.beats.Add(1)
	var resp *pb.HeartbeatResponse
	err := c.do(ctx, func(ctx context.Context, cc pb.ControllerClient) (err error) {
		if resp, err = cc.Heartbeat(ctx, req); err == nil {
			err = c.believe(resp.GetRecovery())
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("heartbeat of node %s: %w", req.GetNodeId(), err)
	}
	c.learn(resp.GetControllers())
	return resp, nil
}

// CreateGroup makes a broker group. It returns when the creation is durable; the group is ready when its nodes have created
// their replicas (see WaitGroup). The same request again returns the same group. Errors: ErrInvalid, ErrExists.
func (c *Client) CreateGroup(ctx context.Context, req *pb.CreateGroupRequest) (*pb.Group, error) {
	return ask(ctx, c, pb.ControllerClient.CreateGroup, req)
}

// SetMode changes the mode, the min ISR and the replicas of a group. It returns when that is durable; WaitShape waits until it is done.
// Errors: ErrNotFound, ErrInvalid, ErrNotNow.
func (c *Client) SetMode(ctx context.Context, req *pb.SetModeRequest) (*pb.Group, error) {
	return ask(ctx, c, pb.ControllerClient.SetMode, req)
}

// KeepLearner keeps a replica a learner, or lets it vote again. Errors: ErrNotFound, ErrInvalid.
func (c *Client) KeepLearner(ctx context.Context, req *pb.KeepLearnerRequest) (*pb.Group, error) {
	return ask(ctx, c, pb.ControllerClient.KeepLearner, req)
}

// Prefer names the node whose replica is to be the group's master when several may be. Errors: ErrNotFound, ErrInvalid.
func (c *Client) Prefer(ctx context.Context, group, node string) (*pb.Group, error) {
	return ask(ctx, c, pb.ControllerClient.Prefer, &pb.PreferRequest{Group: group, NodeId: node})
}

// RemoveGroup removes a group that has never been ready. Errors: ErrNotFound, ErrInvalid.
func (c *Client) RemoveGroup(ctx context.Context, name string) error {
	_, err := ask(ctx, c, pb.ControllerClient.RemoveGroup, &pb.RemoveGroupRequest{Name: name})
	return err
}

// WaitRemoved polls until the controllers know the group no more, or ctx ends. Since a new group may have got its name by then, id is its id.
func (c *Client) WaitRemoved(ctx context.Context, name string, id []byte) error {
	_, err := c.pollGroup(ctx, name, func(g *pb.Group) bool { return string(g.GetGroupId()) != string(id) })
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("group %s is frozen, and removed by itself when the controllers hear of it: %w", name, err)
	}
	return nil
}

// RemoveNode forgets a node that has no replica and does not run. Errors: ErrNotFound, ErrInvalid, ErrNotNow.
func (c *Client) RemoveNode(ctx context.Context, node string) error {
	began := time.Now()
	for {
		_, err := ask(ctx, c, pb.ControllerClient.RemoveNode, &pb.RemoveNodeRequest{NodeId: node})
		if !errors.Is(err, ErrNotNow) || time.Since(began) > removeAgain {
			return err
		}
		timer := time.NewTimer(100 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// removeAgain is for how long a node that has just ended may still count as live.
const removeAgain = 2 * time.Second

// WaitShape polls GetGroup until nothing is left to be done in the group and it has a live master, or ctx ends; then it returns the
// last answer and an error that says what is left.
func (c *Client) WaitShape(ctx context.Context, name string) (*pb.Group, error) {
	g, err := c.pollGroup(ctx, name, func(g *pb.Group) bool { return len(g.GetChanging()) == 0 && g.GetMaster().GetLive() })
	if g != nil && err != nil {
		left := strings.Join(g.GetChanging(), "; ")
		if left == "" {
			left = "no master"
		}
		err = fmt.Errorf("group %s is not there yet, and goes on by itself: %s: %w", name, left, context.Cause(ctx))
	}
	return g, err
}

// pollGroup asks for a group until it is as wanted, or ctx ends: then it returns the last answer, nil when there was none, and an error.
func (c *Client) pollGroup(ctx context.Context, name string, wanted func(*pb.Group) bool) (*pb.Group, error) {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	var last *pb.Group
	for {
		g, err := c.GetGroup(ctx, name)
		switch {
		case err == nil && wanted(g):
			return g, nil
		case err == nil:
			last = g
		case !errors.Is(err, ErrUnavailable) || last == nil && ctx.Err() != nil:
			return nil, err
		}
		select {
		case <-ctx.Done():
			if last != nil {
				err = ctx.Err()
			}
			return last, err
		case <-ticker.C:
		}
	}
}

// ReplaceReplica gives the place of a replica to a new, empty one, on node or, when that is empty, on the same node. It returns when
// that is durable; the new one learns and becomes a voter by itself. Errors: ErrNotFound, ErrInvalid, ErrNotNow.
func (c *Client) ReplaceReplica(ctx context.Context, req *pb.ReplaceReplicaRequest) (*pb.Group, error) {
	return ask(ctx, c, pb.ControllerClient.ReplaceReplica, req)
}

// electAgain is after how long an election that did not come about is ordered again, electPatience for how long one that is not possible
// now is tried: after a change of the membership it takes a moment until the replicas are known to have caught up.
const (
	electAgain    = 1500 * time.Millisecond
	electPatience = 3 * time.Second
)

// Elect makes the replica on node the master of the group: the present master hands over, which costs no send. It returns when that
// one leads. Errors: ErrNotFound; ErrInvalid and ErrNotNow say why that replica cannot lead, those of ctx that it does not yet.
func (c *Client) Elect(ctx context.Context, group, node string) (*pb.Group, error) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	var ordered time.Time
	for began := time.Now(); ; {
		var g *pb.Group
		var err error
		if ordered.IsZero() || time.Since(ordered) > electAgain {
			if g, err = ask(ctx, c, pb.ControllerClient.Elect, &pb.ElectRequest{Group: group, NodeId: node}); err == nil {
				ordered = time.Now()
			}
		} else {
			g, err = c.GetGroup(ctx, group)
		}
		switch m := g.GetMaster(); {
		case errors.Is(err, ErrNotNow) && time.Since(began) < electPatience:
		case err != nil:
			return nil, err
		case m.GetLive() && m.GetNodeId() == node:
			return g, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("group %s: node %s did not become master, %s is: %w", group, node, g.GetMaster().GetNodeId(), context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// Upgrade raises the cluster's feature level to the newest one that the leading controller understands, and returns the one before and
// the one now. ErrNotNow: somebody does not understand it; the text says who.
func (c *Client) Upgrade(ctx context.Context) (before, now Level, err error) {
	resp, err := ask(ctx, c, pb.ControllerClient.Upgrade, &pb.UpgradeRequest{})
	return Level(resp.GetBefore()), Level(resp.GetLevel()), err
}

// ChangeNamesrv changes the list of name servers that the controllers keep, and returns it; none when no list is kept.
func (c *Client) ChangeNamesrv(ctx context.Context, req *pb.ChangeNamesrvRequest) ([]string, error) {
	resp, err := ask(ctx, c, pb.ControllerClient.ChangeNamesrv, req)
	return resp.GetNamesrv(), err
}

// ChangeControllers adds and removes controllers; see `ledgermq admin controller`. It goes on until it is done, refused, or ctx ends.
func (c *Client) ChangeControllers(ctx context.Context, req *pb.ChangeControllersRequest) (*pb.MembersResponse, error) {
	for {
		resp, err := ask(ctx, c, pb.ControllerClient.ChangeControllers, req)
		if !errors.Is(err, ErrNotNow) || !strings.HasPrefix(err.Error(), underWay) {
			c.learn(resp.GetMembers())
			return resp, err
		}
		if ctx.Err() != nil {
			return nil, err
		}
	}
}

// ElectUnclean says what it would cost to let a replica go on alone that may lack what was answered OK: with epoch 0. With the epoch
// of that answer it does it, and returns when that is durable. Errors: ErrNotFound, ErrInvalid, ErrNotNow, ErrStale.
func (c *Client) ElectUnclean(ctx context.Context, req *pb.ElectUncleanRequest) (*pb.ElectUncleanResponse, error) {
	return ask(ctx, c, pb.ControllerClient.ElectUnclean, req)
}

// GetGroup returns one group, or ErrNotFound.
func (c *Client) GetGroup(ctx context.Context, name string) (*pb.Group, error) {
	return ask(ctx, c, pb.ControllerClient.GetGroup, &pb.GetGroupRequest{Name: name})
}

// WaitGroup polls GetGroup until the group is ready and has a live master, or ctx ends; then it returns the last answer and
// an error that says what the group waits for.
func (c *Client) WaitGroup(ctx context.Context, name string) (*pb.Group, error) {
	g, err := c.pollGroup(ctx, name, func(g *pb.Group) bool {
		return g.GetState() == pb.GroupState_GROUP_STATE_READY && g.GetMaster().GetLive()
	})
	switch {
	case g == nil || err == nil:
		return g, err
	case g.GetState() == pb.GroupState_GROUP_STATE_PENDING:
		return g, fmt.Errorf("group %s waits for node %s: %w", name, strings.Join(g.GetWaitingFor(), ", "), err)
	}
	return g, fmt.Errorf("group %s has no master yet: %w", name, err)
}

// WaitActive waits until a master leads the group in that epoch or a later one.
func (c *Client) WaitActive(ctx context.Context, name string, epoch uint32) (*pb.Group, error) {
	g, err := c.pollGroup(ctx, name, func(g *pb.Group) bool { return g.GetActiveEpoch() >= epoch && g.GetMaster().GetLive() })
	if g == nil || err == nil {
		return g, err
	}
	return g, fmt.Errorf("group %s has no master in epoch %d yet: %w", name, epoch, err)
}

// ListGroups returns all groups by name.
func (c *Client) ListGroups(ctx context.Context) ([]*pb.Group, error) {
	resp, err := ask(ctx, c, pb.ControllerClient.ListGroups, &pb.ListGroupsRequest{})
	return resp.GetGroups(), err
}

// ListNodes returns all nodes by id.
func (c *Client) ListNodes(ctx context.Context) ([]*pb.Node, error) {
	resp, err := ask(ctx, c, pb.ControllerClient.ListNodes, &pb.ListNodesRequest{})
	return resp.GetNodes(), err
}

// Members returns the cluster id and its controllers.
func (c *Client) Members(ctx context.Context) (*pb.MembersResponse, error) {
	resp, err := ask(ctx, c, pb.ControllerClient.Members, &pb.MembersRequest{})
	if err != nil {
		return nil, err
	}
	c.learn(resp.GetMembers())
	return resp, nil
}

// MemberStatus is what one controller says about itself.
type MemberStatus struct {
	Address string
	Status  *pb.StatusResponse // nil when Err is set
	Err     error
}

// Status asks every known controller about itself, all at once, in the order of Addresses. It needs no leader.
func (c *Client) Status(ctx context.Context) ([]MemberStatus, error) {
	c.mu.Lock()
	var targets []*target
	for _, t := range c.targets {
		if len(c.members) == 0 || slices.Contains(c.members, t.addr) {
			targets = append(targets, t)
		}
	}
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return nil, ErrClosed
	}
	out := make([]MemberStatus, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, c.attempt)
			defer cancel()
			st, err := pb.NewControllerClient(t.conn).Status(ctx, &pb.StatusRequest{})
			out[i] = MemberStatus{Address: t.addr, Status: st}
			if err != nil {
				out[i] = MemberStatus{Address: t.addr, Err: errors.New(t.reason(err))}
			}
		})
	}
	wg.Wait()
	return out, nil
}
