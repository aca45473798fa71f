package controller

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// mesh is three members without a network or clock: messages lie in a heap from which the test takes, repeats and loses them.
type mesh struct {
	t       *testing.T
	dirs    []string
	members []*member
	air     []letter
	votes   map[[2]uint64]uint64   // (voter, term) to the candidate it voted for, over all its lives
	hashes  map[uint64][32]byte    // index to the hash of the state there
	results map[requestID]struct{} // told to a proposer
	compact int
}

type letter struct {
	from uint64
	to   int
	outMessage
}

func newMesh(t *testing.T, compact int) *mesh {
	t.Helper()
	m := &mesh{t: t, votes: map[[2]uint64]uint64{}, hashes: map[uint64][32]byte{}, results: map[requestID]struct{}{}, compact: compact}
	var who membership
	for i := range 3 {
		who.Members = append(who.Members, identity{ID: fmt.Sprintf("c%d", i+1), RaftID: uint64(i + 1)})
	}
	for i := range 3 {
		m.dirs = append(m.dirs, t.TempDir())
		st, _, err := openStore(m.dirs[i], false, func() (identity, error) { return who.Members[i], nil })
		must(t, err)
		must(t, st.adopt(&who, NewState()))
		must(t, st.close())
		m.members = append(m.members, nil)
		m.open(i)
	}
	t.Cleanup(func() {
		for _, member := range m.members {
			must(t, member.store.close())
		}
	})
	return m
}

func (m *mesh) open(i int) {
	m.t.Helper()
	st, l, err := openStore(m.dirs[i], false, nil)
	must(m.t, err)
	st.db.NoSync = true // a process that ends loses nothing that it wrote
	m.members[i], err = newMember(st, l, &Options{ElectionTicks: 10, CompactEvery: m.compact})
	must(m.t, err)
}

// crash ends a member as kill -9 does: whatever advance did not write is gone.
func (m *mesh) crash(i int) {
	must(m.t, m.members[i].store.close())
	m.open(i)
}

// advance runs a member's turn and checks what it says.
func (m *mesh) advance(i int) {
	m.t.Helper()
	member := m.members[i]
	fx, err := member.advance()
	if err != nil {
		m.t.Fatalf("member %d failed: %v", i+1, err)
	}
	for _, out := range fx.messages {
		msg := &raftpb.Message{}
		must(m.t, proto.Unmarshal(out.data, msg))
		if msg.GetType() == raftpb.MsgVoteResp && !msg.GetReject() {
			key := [2]uint64{member.raftID, msg.GetTerm()}
			if to, voted := m.votes[key]; voted && to != msg.GetTo() {
				m.t.Fatalf("member %d voted for %d and %d in term %d", i+1, to, msg.GetTo(), msg.GetTerm())
			}
			m.votes[key] = msg.GetTo()
		}
		m.air = append(m.air, letter{member.raftID, int(out.to) - 1, out})
	}
	for _, r := range fx.results {
		m.results[r.id] = struct{}{}
	}
	hash := member.state.Hash()
	if h, seen := m.hashes[member.applied.Index]; seen && h != hash {
		m.t.Fatalf("states differ at index %d", member.applied.Index)
	}
	m.hashes[member.applied.Index] = hash
}

func (m *mesh) deliver(r *rand.Rand, lose, repeat float64) {
	i := r.IntN(len(m.air))
	l := m.air[i]
	if r.Float64() >= repeat {
		m.air[i] = m.air[len(m.air)-1]
		m.air = m.air[:len(m.air)-1]
	}
	lost := r.Float64() < lose
	if !lost {
		must(m.t, m.members[l.to].step(l.from, l.data))
		m.advance(l.to)
	}
	if l.snapshot {
		m.members[l.from-1].reportSnapshot(uint64(l.to+1), !lost)
		m.advance(int(l.from - 1))
	}
}

func (m *mesh) leader() int {
	for i, member := range m.members {
		if s := member.node.BasicStatus(); s.RaftState == raft.StateLeader && member.applied.Term == s.GetTerm() {
			return i
		}
	}
	return -1
}

// Loss, repetition, any order, crashes, and a log so short that snapshots are needed: no vote is given twice, states at equal
// positions are equal, and a healthy rest converges with everything that was told to a proposer.
func TestMembersUnderFaults(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 7))
			m := newMesh(t, 20)
			number := uint64(0)
			for range 6000 {
				switch p := r.IntN(100); {
				case p < 20:
					i := r.IntN(3)
					m.members[i].tick()
					m.advance(i)
				case p < 95 && len(m.air) > 0:
					m.deliver(r, 0.05, 0.1)
				case p < 99:
					if i := m.leader(); i >= 0 {
						c := randomCommand(r, m.members[i].state)
						number++
						if m.members[i].propose(requestID{m.members[i].raftID, number}, c) == nil {
							m.advance(i)
						}
					}
				case r.IntN(4) == 0:
					m.crash(r.IntN(3))
				}
				if len(m.air) > 300 { // old messages are lost, not kept for ever
					m.air = m.air[150:]
				}
			}
			// A healthy core converges.
			for range 20000 {
				if len(m.air) > 0 {
					m.deliver(r, 0, 0)
					continue
				}
				a, b, c := m.members[0], m.members[1], m.members[2]
				if m.leader() >= 0 && a.applied == b.applied && b.applied == c.applied {
					break
				}
				for i := range m.members {
					m.members[i].tick()
					m.advance(i)
				}
			}
			a := m.members[0]
			for i, b := range m.members {
				if a.applied != b.applied || a.state.Hash() != b.state.Hash() {
					t.Errorf("member 1 is at %+v, member %d at %+v", a.applied, i+1, b.applied)
				}
			}
			if first, _ := a.log.FirstIndex(); a.applied.Index < 60 || first < 10 {
				t.Errorf("too little happened: applied %d, log from %d", a.applied.Index, first)
			}
			if len(m.results) == 0 {
				t.Error("no proposer was told anything")
			}
			for i := range m.members { // and it is in the files
				want := m.members[i].state.Hash()
				applied := m.members[i].applied
				m.crash(i)
				if m.members[i].applied != applied || m.members[i].state.Hash() != want {
					t.Errorf("member %d comes back with another state", i+1)
				}
			}
		})
	}
}

// What must not come from the wire is refused, and a log that lost its end is noticed instead of a panic.
func TestRefusedMessages(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 100)
	a := m.members[0]
	message := func(typ raftpb.MessageType, from, to, term, commit uint64) []byte {
		b, err := proto.Marshal(&raftpb.Message{Type: &typ, From: &from, To: &to, Term: &term, Commit: &commit})
		must(t, err)
		return b
	}
	for _, test := range []struct {
		name string
		from uint64
		data []byte
	}{
		{"garbage", 2, []byte("\xff\xff")},
		{"another member's name", 2, message(raftpb.MsgVote, 3, 1, 2, 0)},
		{"for another member", 2, message(raftpb.MsgVote, 2, 3, 2, 0)},
		{"itself", 1, message(raftpb.MsgVote, 1, 1, 2, 0)},
		{"a proposal", 2, message(raftpb.MsgProp, 2, 1, 0, 0)},
		{"a local message", 2, message(raftpb.MsgHup, 2, 1, 0, 0)},
		{"a read", 2, message(raftpb.MsgReadIndex, 2, 1, 0, 0)},
		{"a transfer", 2, message(raftpb.MsgTransferLeader, 2, 1, 0, 0)},
		{"a snapshot without state", 2, message(raftpb.MsgSnap, 2, 1, 2, 0)},
	} {
		if err := a.step(test.from, test.data); err == nil {
			t.Errorf("%s was taken", test.name)
		}
	}
	if a.failed != nil {
		t.Fatal(a.failed)
	}
	if err := a.step(2, message(raftpb.MsgHeartbeat, 2, 1, 2, 50)); err == nil || a.failed == nil {
		t.Errorf("a commit index behind the end of the log: %v", err)
	}
	if _, err := a.advance(); err == nil {
		t.Error("a failed member goes on")
	}
}

// A member whose file cannot be written says so, sends nothing more, and does not take the process with it.
func TestFailedWrite(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 100)
	a := m.members[0]
	must(t, a.store.close())
	typ, from, to, term := raftpb.MsgTimeoutNow, uint64(2), uint64(1), uint64(1)
	order, err := proto.Marshal(&raftpb.Message{Type: &typ, From: &from, To: &to, Term: &term})
	must(t, err)
	must(t, a.step(2, order)) // its own vote must be written now
	fx, err := a.advance()
	if err == nil || len(fx.messages) > 0 {
		t.Errorf("after a failed write: %d messages, error %v", len(fx.messages), err)
	}
	if err := a.propose(requestID{}, &foundCommand{Cluster: hexOf(1)}); err == nil {
		t.Error("a failed member takes proposals")
	}
	m.open(0)
}

// An entry of a newer version stops the member: it would compute another state.
func TestUnknownCommandStops(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	st, l, err := openStore(dir, false, func() (identity, error) { return identity{ID: "c1", RaftID: 7}, nil })
	must(t, err)
	must(t, st.adopt(&membership{Members: []identity{{ID: "c1", RaftID: 7}}}, NewState()))
	must(t, st.db.View(l.read))
	m, err := newMember(st, l, &Options{ElectionTicks: 10, CompactEvery: 100})
	must(t, err)
	_, err = m.advance()
	must(t, err)
	data := encodeCommand(requestID{}, &foundCommand{Cluster: hexOf(1)})
	data[1] = 200
	must(t, m.node.Propose(data))
	if _, err := m.advance(); err == nil || m.failed == nil {
		t.Errorf("an unknown command: %v", err)
	}
	must(t, st.close())
	st, l, err = openStore(dir, false, nil)
	must(t, err)
	must(t, st.close())
	if l.applied.Index > l.hard.GetCommit() || l.state.Hash() != NewState().Hash() {
		t.Errorf("applied %+v although the command is unknown", l.applied)
	}
}

// Raft keeps a snapshot that it asked for until its turn writes the message, and applies more before that. What the snapshot says of its
// place must stay true.
func TestSnapshotKeepsItsPlace(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 1000)
	for range 200 {
		for i := range m.members {
			m.members[i].tick()
			m.advance(i)
		}
		for len(m.air) > 0 {
			l := m.air[0]
			m.air = m.air[1:]
			must(t, m.members[l.to].step(l.from, l.data))
			m.advance(l.to)
		}
		if m.leader() >= 0 {
			break
		}
	}
	leader := m.members[m.leader()]
	snap, err := leader.makeSnapshot()
	must(t, err)
	at, data := snap.GetMetadata().GetIndex(), snap.GetData()
	must(t, leader.propose(requestID{leader.raftID, 1}, randomCommand(rand.New(rand.NewPCG(1, 1)), leader.state)))
	m.advance(m.leader())
	for len(m.air) > 0 {
		l := m.air[0]
		m.air = m.air[1:]
		must(t, m.members[l.to].step(l.from, l.data))
		m.advance(l.to)
	}
	if leader.applied.Index <= at {
		t.Fatalf("nothing was applied after index %d", at)
	}
	if now := snap.GetMetadata().GetIndex(); now != at || !bytes.Equal(snap.GetData(), data) {
		t.Errorf("the snapshot of index %d says %d now", at, now)
	}
}
