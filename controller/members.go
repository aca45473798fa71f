package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
)

// This file has how the controllers' own members change. It goes through their log, as joint changes of etcd's Raft:
//
//	empty folder, --join ──waits──▶ learner ──has caught up──▶ voter        in one step with those that leave
//
// A member is its random identity, not its name: a wiped folder, also under the old name, is another member. Who is added learns
// first, so that one that cannot be reached, or that lacks the log, never counts. An entry of the log that changes the members carries the
// whole new list; the state keeps it, and with it the addresses: from the first change on they count, and the options' list does not.

// controllersEntry has the key "controllers". It is absent until the members change for the first time.
type controllersEntry struct {
	Members []identity `json:"members"`           // by id
	Removed []identity `json:"removed,omitempty"` // the last ones, oldest first
}

const (
	keyControllers = "controllers"
	maxRemoved     = 32
)

// confMark begins the value of an entry of the log that changes the members: no command begins like it.
const confMark = 0xCC

func (e *controllersEntry) clone() controllersEntry {
	return controllersEntry{slices.Clone(e.Members), slices.Clone(e.Removed)}
}

func (e *controllersEntry) find(raftID uint64) *identity {
	for i := range e.Members {
		if e.Members[i].RaftID == raftID {
			return &e.Members[i]
		}
	}
	return nil
}

func (e *controllersEntry) sort() {
	slices.SortFunc(e.Members, func(a, b identity) int { return cmp.Or(strings.Compare(a.ID, b.ID), cmp.Compare(a.RaftID, b.RaftID)) })
}

func (e *controllersEntry) names() string {
	var out []string
	for _, i := range e.Members {
		if !i.Learner {
			out = append(out, i.ID)
		}
	}
	return strings.Join(out, ", ")
}

// learn is the entry in which those that are to be added learn.
func (e *controllersEntry) learn(add []identity) (next controllersEntry, changed bool) {
	next = e.clone()
	for _, a := range add {
		if next.find(a.RaftID) == nil {
			a.Learner = true
			next.Members = append(next.Members, a)
			changed = true
		}
	}
	next.sort()
	return next, changed
}

// plan is the entry after a change: those of add vote, those of remove are gone, and so are learners that nobody asks for. It is nil
// when all is as it should be.
func (e *controllersEntry) plan(add []identity, remove []string) (*controllersEntry, error) {
	next := controllersEntry{Removed: slices.Clone(e.Removed)}
	added := func(raftID uint64) *identity {
		for i := range add {
			if add[i].RaftID == raftID {
				return &add[i]
			}
		}
		return nil
	}
	changed := false
	for _, m := range e.Members {
		a := added(m.RaftID)
		switch {
		case a == nil && (m.Learner || slices.Contains(remove, m.ID)):
			next.Removed = append(next.Removed, m)
			changed = true
		case a == nil:
			next.Members = append(next.Members, m)
		default:
			changed = changed || m.Learner || m.Address != a.Address
			next.Members = append(next.Members, *a)
		}
	}
	for _, a := range add {
		if e.find(a.RaftID) == nil {
			next.Members = append(next.Members, a)
			changed = true
		}
	}
	for _, id := range remove {
		known := func(i identity) bool { return i.ID == id }
		if !slices.ContainsFunc(e.Members, known) && !slices.ContainsFunc(e.Removed, known) {
			return nil, refuse(ErrNotFound, "there is no controller %q: the members are %s", cut(id), e.names())
		}
	}
	next.sort()
	next.Removed = next.Removed[max(0, len(next.Removed)-maxRemoved):]
	for i, m := range next.Members {
		for _, o := range next.Members[:i] {
			if o.ID == m.ID {
				return nil, refuse(ErrExists, "controller %s is a member already, with another data folder: `ledgermq admin controller replace %s --with %s=%s` puts this one in its place", m.ID, m.ID, m.ID, m.Address)
			}
			if o.Address != "" && o.Address == m.Address {
				return nil, refuse(ErrInvalid, "controllers %s and %s have the same address %s", o.ID, m.ID, m.Address)
			}
		}
	}
	switch n := len(next.Members); {
	case !changed:
		return nil, nil
	case n == 0:
		return nil, refuse(ErrInvalid, "the last controller cannot be removed: add others first")
	case n != 1 && n != 3 && n != 5:
		return nil, refuse(ErrInvalid, "there would be %d controllers: want 1, 3 or 5, so add or remove two at once, or replace", n)
	}
	return &next, nil
}

// confChange is what raft is to do to get from e to next.
func (e *controllersEntry) confChange(next *controllersEntry) *raftpb.ConfChangeV2 {
	cc := &raftpb.ConfChangeV2{}
	single := func(typ raftpb.ConfChangeType, id uint64) {
		cc.Changes = append(cc.Changes, &raftpb.ConfChangeSingle{Type: typ.Enum(), NodeId: &id})
	}
	for _, m := range next.Members {
		old := e.find(m.RaftID)
		switch {
		case m.Learner && old == nil:
			single(raftpb.ConfChangeAddLearnerNode, m.RaftID)
		case !m.Learner && (old == nil || *old != m):
			single(raftpb.ConfChangeAddNode, m.RaftID) // of one that votes already: only its address is new
		}
	}
	for _, m := range e.Members {
		if next.find(m.RaftID) == nil {
			single(raftpb.ConfChangeRemoveNode, m.RaftID)
		}
	}
	b, err := json.Marshal(next)
	if err != nil {
		panic(fmt.Sprintf("controller: the members cannot be encoded: %v", err))
	}
	cc.Context = b
	return cc
}

// applyConf applies an entry that changes the members. It has no way to fail but a bug: what it says was checked when it was
// proposed, and raft lets only one be under way.
func (m *member) applyConf(e *raftpb.Entry) error {
	cc := &raftpb.ConfChangeV2{}
	if err := proto.Unmarshal(e.GetData(), cc); err != nil {
		return err
	}
	var next controllersEntry
	if len(cc.GetContext()) > 0 {
		if err := strictJSON(cc.GetContext(), &next); err != nil {
			return err
		}
		m.state.controllers = &next
		m.state.touch(keyControllers)
	}
	m.conf = m.node.ApplyConfChange(cc)
	return nil
}

// controllersNow are the members as the state has them, or as they were founded.
func (s *Server) controllersNow(st *State) controllersEntry {
	if st.controllers != nil {
		return st.controllers.clone()
	}
	var e controllersEntry
	for _, i := range s.membership.Load().Members {
		i.Address = s.o.Peers[i.ID]
		e.Members = append(e.Members, i)
	}
	return e
}

// address is where a member is.
func (s *Server) address(id string) string {
	if m := s.membership.Load(); m != nil {
		for _, i := range m.Members {
			if i.ID == id && i.Address != "" && !i.Learner {
				return i.Address
			}
		}
	}
	return s.o.Peers[id]
}

// errHandsOver: whoever asks goes on with the next leader.
var errHandsOver = errors.New("this controller is to go and hands over: ask the next leader")

// ChangeControllers adds and removes members. Each try goes as far as it comes; the same call again goes on.
func (c *calls) ChangeControllers(ctx context.Context, req *pb.ChangeControllersRequest) (*pb.MembersResponse, error) {
	s := c.s
	if err := s.confirm(ctx); err != nil {
		return nil, err
	}
	var err error
	s.readState(func(st *State) { err = st.need(2, "a change of the controllers") })
	if err != nil {
		return nil, err
	}
	add, err := s.strangers(ctx, req.GetAdd())
	if err != nil {
		return nil, err
	}
	// Not for longer than a client gives one controller.
	ctx, cancel := context.WithTimeout(ctx, 700*time.Millisecond)
	defer cancel()
	for {
		wait := make(chan error, 1)
		if err := s.post(ctx, func(lp *loop) { wait <- lp.changeMembers(add, req.GetRemove()) }); err != nil {
			return nil, err
		}
		err := s.wait(ctx, wait)
		if err == nil {
			return c.Members(ctx, &pb.MembersRequest{})
		}
		if !errors.Is(err, errNotYet) {
			return nil, err
		}
		timer := time.NewTimer(20 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		case <-s.ctx.Done():
			timer.Stop()
			return nil, ErrClosed
		}
	}
}

// strangerAnswers is how long one of those that are to be added is waited for at a time.
const strangerAnswers = 500 * time.Millisecond

// strangers asks those that are to be added who they are.
func (s *Server) strangers(ctx context.Context, list []*pb.Member) (add []identity, err error) {
	token := s.membership.Load().Token
	for _, m := range list {
		if !memberName.MatchString(m.GetId()) || !validAddress(m.GetAddress()) {
			return nil, refuse(ErrInvalid, "controller %q at %q: want an id of 1 to 64 of A-Z a-z 0-9 _ . - and host:port", cut(m.GetId()), cut(m.GetAddress()))
		}
		conn, err := dialPeer(m.GetAddress(), &secretCredentials{secret: s.o.Secret})
		if err != nil {
			return nil, refuse(ErrInvalid, "controller %s at %s: %v", m.GetId(), m.GetAddress(), err)
		}
		askCtx, cancel := context.WithTimeout(ctx, strangerAnswers)
		who, err := pb.NewPeerClient(conn).Identify(askCtx, &pb.IdentifyRequest{Id: s.identity.ID, RaftId: s.identity.RaftID})
		cancel()
		conn.Close()
		switch {
		case status.Code(err) == codes.DeadlineExceeded: // who is slow may answer next time
			return nil, notYet("controller %s has not answered at %s within %v: look whether it runs and is reached", m.GetId(), m.GetAddress(), strangerAnswers)
		case err != nil:
			return nil, refuse(ErrNotNow, "controller %s does not answer at %s: start it there with an empty folder and --join: %v", m.GetId(), m.GetAddress(), err)
		case who.GetId() != m.GetId():
			return nil, refuse(ErrInvalid, "at %s is controller %s, not %s", m.GetAddress(), cut(who.GetId()), m.GetId())
		case who.GetMembership() != nil && membershipOf(who.GetMembership()).Token != token:
			return nil, refuse(ErrInvalid, "controller %s at %s belongs to another cluster: start it with an empty folder and --join", m.GetId(), m.GetAddress())
		case !LevelsOf(who.GetLevels()).has(s.levelNow()):
			return nil, refuse(ErrInvalid, "controller %s at %s understands the feature levels %v, the cluster has %d: start a program of the others' version", m.GetId(), m.GetAddress(), LevelsOf(who.GetLevels()), s.levelNow())
		}
		add = append(add, identity{ID: m.GetId(), RaftID: who.GetRaftId(), Address: m.GetAddress()})
	}
	return add, nil
}

func (s *Server) levelNow() (l Level) {
	s.readState(func(st *State) { l = st.level() })
	return l
}

// errNotYet: a step was taken, and the next one has to wait.
var errNotYet = errors.New("under way")

// underWay begins the text of a step that has to wait: who asked asks again.
const underWay = "the change of the controllers is under way: "

func notYet(format string, args ...any) error {
	return refuse(fmt.Errorf("%w: %w", ErrNotNow, errNotYet), underWay+format, args...)
}

// changeMembers takes the next step. nil: all is as it should be.
func (lp *loop) changeMembers(add []identity, remove []string) error {
	m := lp.member
	if err := lp.leads(); err != nil {
		return err
	}
	now := lp.server.controllersNow(m.state)
	next, err := now.plan(add, remove)
	if err != nil || next == nil && len(m.conf.GetVotersOutgoing()) == 0 {
		return err
	}
	if len(m.conf.GetVotersOutgoing()) > 0 {
		return notYet("it is half way: a majority of the old and of the new ones has to answer")
	}
	status := m.node.Status()
	if learn, changed := now.learn(add); changed {
		return lp.proposeConf(now.confChange(&learn))
	}
	for _, a := range add {
		p := status.Progress[a.RaftID]
		if p.State != tracker.StateReplicate || p.Match+checkEvery < status.GetCommit() {
			return notYet("controller %s at %s learns, and has not caught up: look whether it runs and reaches the others", a.ID, a.Address)
		}
	}
	active := 0
	var heir uint64
	for _, i := range next.Members {
		p := status.Progress[i.RaftID]
		if i.RaftID == m.raftID || p.RecentActive {
			active++
		}
		if i.RaftID != m.raftID && p.RecentActive && !p.IsLearner && (heir == 0 || p.Match > status.Progress[heir].Match) {
			heir = i.RaftID
		}
	}
	if active < majority(len(next.Members)) {
		return notYet("only %d of the %d controllers that would be left answer, and they could decide nothing: start the others first", active, len(next.Members))
	}
	// Who goes must not lead meanwhile: it would stop before the others know that they are without it.
	if self := now.find(m.raftID); next.find(m.raftID) == nil && self != nil {
		if heir != 0 {
			m.guard("hand over", func() { m.node.TransferLeader(heir) })
			return errHandsOver
		}
		next.Members = append(next.Members, *self)
		next.sort()
		next.Removed = slices.DeleteFunc(next.Removed, func(i identity) bool { return i.RaftID == m.raftID })
	}
	return lp.proposeConf(now.confChange(next))
}

func (lp *loop) proposeConf(cc *raftpb.ConfChangeV2) error {
	m := lp.member
	err := m.failed
	m.guard("change of the members", func() { err = m.node.ProposeConfChange(cc) })
	if err = errors.Join(err, m.failed); err != nil {
		return err
	}
	return notYet("it was proposed")
}

// remember the members that the state has now, and connect to them.
func (lp *loop) followMembers() {
	s, m := lp.server, lp.member
	if e := m.state.controllers; e != nil {
		known := *s.membership.Load()
		known.Members, known.Changed = e.clone().Members, true
		s.membership.Store(&known)
		s.log.Info().Str("controllers", e.names()).Msg("the members of the controllers")
		if s.wasRemoved(m.raftID) {
			m.fail(errRemoved)
		}
	}
	lp.connect()
}

var errRemoved = errors.New("this controller was removed from the cluster: stop it; with an empty folder and --join it can be added again")

// connect makes the links be those of the members.
func (lp *loop) connect() {
	s := lp.server
	want := map[uint64]identity{}
	list := s.membership.Load().Members
	if e := lp.member.state.controllers; e != nil {
		for _, i := range e.Removed { // a change that is half way needs those that go too
			if confHas(lp.member.conf, i.RaftID) {
				list = append(slices.Clone(list), i)
			}
		}
	}
	for _, i := range list {
		if i.Address == "" {
			i.Address = s.o.Peers[i.ID]
		}
		if i.RaftID != s.identity.RaftID {
			want[i.RaftID] = i
		}
	}
	for raftID, l := range lp.links {
		if i, ok := want[raftID]; !ok || i.Address != l.address {
			l.stop()
			delete(lp.links, raftID)
		}
	}
	for raftID, i := range want {
		if lp.links[raftID] != nil {
			continue
		}
		conn, err := dialPeer(i.Address, &secretCredentials{secret: s.o.Secret})
		if err != nil {
			s.log.Error().Err(err).Str("controller", i.ID).Str("address", i.Address).Msg("the address of a controller cannot be used")
			continue
		}
		ctx, stop := context.WithCancel(s.ctx)
		l := &link{to: i, address: i.Address, conn: conn, queue: make(chan outMessage, linkQueue), server: s, up: true, stop: stop}
		lp.links[raftID] = l
		s.wg.Go(func() {
			l.run(ctx)
			conn.Close()
		})
	}
}

// wasRemoved tells whether the members have removed that identity, and need its votes no more.
func (s *Server) wasRemoved(raftID uint64) (yes bool) {
	m := s.member.Load()
	if m == nil {
		return false
	}
	s.readState(func(st *State) {
		yes = st.controllers != nil && !confHas(m.conf, raftID) &&
			slices.ContainsFunc(st.controllers.Removed, func(i identity) bool { return i.RaftID == raftID })
	})
	return yes
}

// isAlone tells whether the member is the only voter.
func isAlone(conf *raftpb.ConfState, self uint64) bool {
	return len(conf.GetVoters()) == 1 && conf.GetVoters()[0] == self && len(conf.GetVotersOutgoing()) == 0
}

// confHas tells whether conf has the member.
func confHas(conf *raftpb.ConfState, id uint64) bool {
	return slices.Contains(conf.GetVoters(), id) || slices.Contains(conf.GetLearners(), id) ||
		slices.Contains(conf.GetVotersOutgoing(), id) || slices.Contains(conf.GetLearnersNext(), id)
}
