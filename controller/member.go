package controller

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/rs/zerolog"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// member is one controller's part in the controllers' Raft group: etcd raft over the store, and the state that its entries
// make. It is a step function: events go in (tick, step, propose, readIndex), advance writes what must be durable and returns
// what is to be done. It has no goroutine, clock or socket; one goroutine at a time may call it.
//
//	tick, step, propose, readIndex ──▶ raft ──▶ advance: one transaction {vote, entries, state, applied} ──▶ effects
//
// The log holds commands, and changes of the members (members.go).
//
// Invariants:
//  1. what a message says (a vote, an acknowledgement) is in the file before effects hand the message out;
//  2. entries are applied in order, each once: the state in the file is the one after exactly the entries up to applied;
//  3. after a failed write or a state that cannot be, the member is failed: it takes no event and sends nothing any more.
type member struct {
	raftID  uint64
	conf    *raftpb.ConfState // whom raft counts, as of applied
	node    *raft.RawNode
	log     *memberLog
	store   *store
	logger  zerolog.Logger
	compact int // entries that the log gathers before its older half goes

	// stateMu lets other goroutines read state, applied and check while this one does not apply.
	stateMu sync.RWMutex
	state   *State
	applied position
	check   checkpoint // of the state, at the last multiple of checkEvery

	checks []checkpoint // the last few, to compare with those of others
	failed error        // not nil: see invariant 3
}

// checkpoint is the hash of the state at one applied index. Equal indexes must have equal hashes on all members.
type checkpoint struct {
	index uint64
	hash  [32]byte
}

// checkEvery is how many entries lie between two checkpoints.
const checkEvery = 64

// effects is what the shell does after advance.
type effects struct {
	messages []outMessage
	results  []result         // of commands applied now
	reads    []raft.ReadState // answers to readIndex: confirmed once applied reaches the index
	members  bool             // the members changed
	soft     *raft.SoftState  // not nil: leader or role changed
}

type outMessage struct {
	to       uint64
	snapshot bool   // its delivery is to be told with reportSnapshot
	data     []byte // raftpb.Message
}

// result is what became of one proposal. err is nil or a *RefusedError.
type result struct {
	id  requestID
	err error
}

// memberLog is raft's view of the log. What it holds is in the store too.
type memberLog struct {
	*raft.MemoryStorage
	snapshot func() (*raftpb.Snapshot, error)
}

// Snapshot makes a snapshot of the state as it is applied now.
func (l *memberLog) Snapshot() (*raftpb.Snapshot, error) { return l.snapshot() }

func newMember(st *store, l *loaded, o *Options) (*member, error) {
	m := &member{
		raftID:  l.identity.RaftID,
		store:   st,
		logger:  o.Logger,
		compact: o.CompactEvery,
		state:   l.state,
		applied: l.applied,
		log:     &memberLog{MemoryStorage: raft.NewMemoryStorage()},
	}
	if m.conf = l.conf; m.conf == nil {
		m.conf = &raftpb.ConfState{}
		for _, v := range l.membership.Members {
			if l.compacted.Index > 0 { // else it was added, and its first snapshot tells
				m.conf.Voters = append(m.conf.Voters, v.RaftID)
			}
		}
		slices.Sort(m.conf.Voters)
	}
	m.log.snapshot = m.makeSnapshot
	var err error
	if l.compacted.Index > 0 {
		err = m.log.ApplySnapshot(&raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{ConfState: m.conf, Index: &l.compacted.Index, Term: &l.compacted.Term}})
	}
	if err := errors.Join(err, m.log.SetHardState(l.hard), m.log.Append(l.log)); err != nil {
		return nil, fmt.Errorf("controller: loading the log: %w", err)
	}
	node, err := raft.NewRawNode(&raft.Config{
		ID:                        m.raftID,
		ElectionTick:              o.ElectionTicks,
		HeartbeatTick:             1,
		Storage:                   m.log,
		Applied:                   m.applied.Index,
		MaxSizePerMsg:             1 << 20,
		MaxCommittedSizePerReady:  4 << 20,
		MaxUncommittedEntriesSize: 16 << 20,
		MaxInflightMsgs:           64,
		CheckQuorum:               true,
		PreVote:                   true,
		StepDownOnRemoval:         true,
		ReadOnlyOption:            raft.ReadOnlySafe,
		DisableProposalForwarding: true,
		Logger:                    raftlog.RaftLogger(o.Logger),
	})
	if err != nil {
		return nil, fmt.Errorf("controller: %w", err)
	}
	m.node = node
	if isAlone(m.conf, m.raftID) {
		return m, node.Campaign() // nobody else could lead: no need to wait for the timeout
	}
	return m, nil
}

// makeSnapshot is called by raft inside step and tick. Raft keeps what it returns until the message is written, when more may be
// applied.
func (m *member) makeSnapshot() (*raftpb.Snapshot, error) {
	at := m.applied
	return &raftpb.Snapshot{
		Data: encodeSnapshot(m.state),
		Metadata: &raftpb.SnapshotMetadata{
			ConfState: m.conf,
			Index:     &at.Index,
			Term:      &at.Term,
		},
	}, nil
}

// guard turns a panic of the library into the failure of this member: it means that the log cannot be what raft was told, and
// another process part (a name server, a broker) must not die of it.
func (m *member) guard(what string, fn func()) {
	if m.failed != nil {
		return
	}
	defer func() {
		if r := recover(); r != nil {
			m.fail(fmt.Errorf("%s: %v", what, r))
			m.logger.Error().Str("stack", string(debug.Stack())).Msg("the controller's own state cannot be")
		}
	}()
	fn()
}

func (m *member) fail(err error) {
	if m.failed == nil {
		m.failed = fmt.Errorf("controller takes no part any more: %w", err)
		m.logger.Error().Err(err).Msg("the controller takes no part any more: find out why, then start it again")
	}
}

func (m *member) tick() { m.guard("tick", m.node.Tick) }

// step takes one message of another member. It refuses what must not come from the wire, and what would mean that this
// member lost a part of its log.
func (m *member) step(from uint64, data []byte) error {
	msg := &raftpb.Message{}
	if err := proto.Unmarshal(data, msg); err != nil {
		return fmt.Errorf("controller: a Raft message that cannot be read: %w", err)
	}
	if msg.GetFrom() != from || msg.GetTo() != m.raftID || from == m.raftID {
		return fmt.Errorf("controller: a Raft message from %x to %x came from %x", msg.GetFrom(), msg.GetTo(), from)
	}
	switch msg.GetType() {
	case raftpb.MsgApp, raftpb.MsgAppResp, raftpb.MsgVote, raftpb.MsgVoteResp, raftpb.MsgPreVote, raftpb.MsgPreVoteResp,
		raftpb.MsgHeartbeatResp, raftpb.MsgTimeoutNow:
	case raftpb.MsgHeartbeat:
		if last, _ := m.log.LastIndex(); msg.GetCommit() > last && msg.GetTerm() >= m.node.BasicStatus().GetTerm() {
			// The leader bounds this by what this member acknowledged, and that was in the file before.
			m.fail(fmt.Errorf("the leader counts on entry %d, but this member's log ends at %d: its data folder was replaced by an older one", msg.GetCommit(), last))
			return m.failed
		}
	case raftpb.MsgSnap:
		meta := msg.GetSnapshot().GetMetadata()
		if !confHas(meta.GetConfState(), m.raftID) {
			return errors.New("controller: a snapshot of members without this one was refused")
		}
		if _, err := decodeSnapshot(msg.GetSnapshot().GetData()); err != nil {
			return fmt.Errorf("a snapshot was refused: %w", err)
		}
	default:
		return fmt.Errorf("controller: a Raft message of type %v must not come from another member", msg.GetType())
	}
	m.guard("step", func() {
		// Errors say that a message is of no use now, for example a late answer.
		_ = m.node.Step(msg)
	})
	return nil
}

// propose offers a command. Its result is in the effects of a later advance, if the member still leads then.
func (m *member) propose(id requestID, c Command) error {
	if err := m.state.allows(c); err != nil {
		return err
	}
	data := encodeCommand(id, c)
	if len(data) > maxCommand {
		return refuse(ErrInvalid, "a command of %d bytes is too large: at most %d", len(data), maxCommand)
	}
	err := m.failed
	m.guard("propose", func() { err = m.node.Propose(data) })
	return errors.Join(err, m.failed)
}

// readIndex asks for a confirmation that this member leads now. It comes back among effects.reads under the same number.
func (m *member) readIndex(number uint64) {
	m.guard("read index", func() { m.node.ReadIndex(binary.BigEndian.AppendUint64(nil, number)) })
}

func (m *member) reportUnreachable(id uint64) {
	m.guard("report", func() { m.node.ReportUnreachable(id) })
}

func (m *member) reportSnapshot(id uint64, ok bool) {
	status := raft.SnapshotFinish
	if !ok {
		status = raft.SnapshotFailure
	}
	m.guard("report", func() { m.node.ReportSnapshot(id, status) })
}

// advance does all work that is ready. An error means that the member failed.
func (m *member) advance() (effects, error) {
	var fx effects
	m.guard("advance", func() {
		for m.failed == nil && m.node.HasReady() {
			m.handle(m.node.Ready(), &fx)
		}
	})
	if m.failed != nil {
		return effects{}, m.failed
	}
	return fx, nil
}

func (m *member) handle(rd raft.Ready, fx *effects) {
	b := batch{hard: rd.HardState, entries: rd.Entries}
	var snapshotState *State
	if !raft.IsEmptySnap(rd.Snapshot) {
		state, err := decodeSnapshot(rd.Snapshot.GetData())
		if err != nil {
			m.fail(err)
			return
		}
		snapshotState = state
		p := position{rd.Snapshot.GetMetadata().GetIndex(), rd.Snapshot.GetMetadata().GetTerm()}
		b.snapshot, b.applied = &p, &p
		b.changes = state.entries()
		b.conf = rd.Snapshot.GetMetadata().GetConfState()
		fx.members = true
	}
	if snapshotState != nil || len(rd.CommittedEntries) > 0 {
		if !m.apply(snapshotState, b.snapshot, rd.CommittedEntries, &b, fx) {
			return
		}
	}
	m.planCompaction(&b)
	if !b.empty() {
		if err := m.store.write(&b); err != nil {
			m.fail(fmt.Errorf("writing %s: %w", storeFile, err))
			return
		}
	}
	if err := m.keep(rd, &b); err != nil {
		m.fail(err)
		return
	}
	for _, msg := range rd.Messages {
		data, err := proto.Marshal(msg)
		if err != nil {
			m.fail(err)
			return
		}
		fx.messages = append(fx.messages, outMessage{msg.GetTo(), msg.GetType() == raftpb.MsgSnap, data})
	}
	fx.reads = append(fx.reads, rd.ReadStates...)
	if rd.SoftState != nil {
		fx.soft = rd.SoftState
	}
	m.node.Advance(rd)
}

// keep brings raft's view of the log up to what was written.
func (m *member) keep(rd raft.Ready, b *batch) error {
	if b.snapshot != nil {
		if err := m.log.ApplySnapshot(rd.Snapshot); err != nil {
			return err
		}
	}
	if err := m.log.Append(rd.Entries); err != nil {
		return err
	}
	if !raft.IsEmptyHardState(rd.HardState) {
		if err := m.log.SetHardState(rd.HardState); err != nil {
			return err
		}
	}
	if b.compact != nil {
		return m.log.Compact(b.compact.Index)
	}
	return nil
}

// apply changes the state by what is committed. It tells false when the member failed.
func (m *member) apply(from *State, at *position, committed []*raftpb.Entry, b *batch, fx *effects) bool {
	m.stateMu.Lock()
	defer m.stateMu.Unlock()
	if from != nil {
		m.state, m.applied, m.conf = from, *at, b.conf
	}
	for _, e := range committed {
		if e.GetIndex() != m.applied.Index+1 {
			m.fail(fmt.Errorf("entry %d is to be applied after %d", e.GetIndex(), m.applied.Index))
			return false
		}
		if e.GetType() == raftpb.EntryConfChangeV2 {
			if err := m.applyConf(e); err != nil {
				m.fail(fmt.Errorf("entry %d changes the members: %w", e.GetIndex(), err))
				return false
			}
			b.conf, fx.members = m.conf, true
		} else if len(e.GetData()) > 0 { // a new leader's first entry is empty
			id, c, err := decodeCommand(e.GetData())
			if err != nil {
				m.fail(fmt.Errorf("entry %d: %w", e.GetIndex(), err))
				return false
			}
			fx.results = append(fx.results, result{id, m.state.Apply(c)})
		}
		m.applied = position{e.GetIndex(), e.GetTerm()}
		if m.applied.Index%checkEvery == 0 {
			m.check = checkpoint{m.applied.Index, m.state.Hash()}
			m.checks = append(m.checks, m.check)
			m.checks = m.checks[max(0, len(m.checks)-8):]
		}
	}
	changes := m.state.takeChanges()
	if from != nil {
		changes = m.state.entries()
	}
	b.changes = changes
	applied := m.applied
	b.applied = &applied
	return true
}

// planCompaction drops the older half of a log that has grown enough. Members further behind get a snapshot.
func (m *member) planCompaction(b *batch) {
	if b.applied == nil || b.snapshot != nil {
		return
	}
	first, _ := m.log.FirstIndex()
	if m.applied.Index < first || m.applied.Index-first < uint64(m.compact) {
		return
	}
	to := m.applied.Index - uint64(m.compact/2)
	// An entry of this very turn is not in raft's view yet, but it is not that old either: compact >= 2.
	term, err := m.log.Term(to)
	if err != nil {
		return
	}
	b.compact = &position{to, term}
}

// compare checks another member's checkpoint against this one's. It tells false when the states differ.
func (m *member) compare(index uint64, hash []byte) bool {
	for _, c := range m.checks {
		if c.index == index {
			return string(c.hash[:]) == string(hash)
		}
	}
	return true
}

// newRaftID draws an identity.
func newRaftID() uint64 {
	for {
		u := ids.NewUUID(nil)
		if id := binary.BigEndian.Uint64(u[:]) >> 1; id != 0 { // the library reserves the greatest values
			return id
		}
	}
}
