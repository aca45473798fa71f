package controller

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
)

func hexOf(b byte) hexID {
	var h hexID
	for i := range h {
		h[i] = b
	}
	return h
}

// foundedState has a cluster id and the nodes n1 to nN; node i has check code and session i.
func foundedState(t testing.TB, n int) *State {
	t.Helper()
	s := NewState()
	must(t, s.Apply(&foundCommand{Cluster: hexOf(0xcc)}))
	for i := 1; i <= n; i++ {
		must(t, s.Apply(&registerCommand{Node: ids.NodeID(fmt.Sprintf("n%d", i)), CheckCode: hexOf(byte(i)), Session: hexOf(byte(i))}))
	}
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func creation(name string, id byte, a, m int) *createGroupCommand {
	c := &createGroupCommand{ID: hexOf(id), Name: name, Answers: a, Members: m}
	for i := 1; i <= m; i++ {
		c.Nodes = append(c.Nodes, ids.NodeID(fmt.Sprintf("n%d", i)))
	}
	c.ensureDefaults()
	return c
}

// reportAll lets every node of g create its replica.
func reportAll(t testing.TB, s *State, name string) {
	t.Helper()
	g := s.groups[name]
	for i, r := range g.Replicas {
		must(t, s.Apply(&reportCommand{Node: r.Node, Session: s.nodes[r.Node].Session, Replicas: []replicaFacts{
			{Group: g.ID, Replica: r.ID, Incarnation: hexOf(byte(0x10 + i)), Starts: 1}}}))
	}
}

// The mode decides who votes and how many may be lost: V = min(M, 2A-1), and a majority of V is at most A.
func TestModes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ a, m, voters, minISR int }{
		{1, 1, 1, 1}, {1, 2, 1, 1}, {2, 2, 2, 1}, {1, 3, 1, 1}, {2, 3, 3, 2}, {3, 3, 3, 2},
		{2, 4, 3, 2}, {3, 4, 4, 3}, {4, 4, 4, 3}, {2, 5, 3, 2}, {3, 5, 5, 3}, {5, 5, 5, 4},
	} {
		s := foundedState(t, 5)
		must(t, s.Apply(creation("g", 1, test.a, test.m)))
		reportAll(t, s, "g")
		record := s.groups["g"].Record
		if len(record.Voters) != test.voters || len(record.Voters)+len(record.Learners) != test.m || int(record.MinISR) != test.minISR {
			t.Errorf("mode %d-%d: %d voters, %d learners, min ISR %d; want %+v", test.a, test.m, len(record.Voters), len(record.Learners), record.MinISR, test)
		}
		if test.voters/2+1 > test.a {
			t.Errorf("mode %d-%d: an answered send may be on fewer replicas than a majority", test.a, test.m)
		}
		must(t, s.Check())
	}
}

// Who votes is what the record of the epoch says, not what the mode would.
func TestDescribedVoters(t *testing.T) {
	t.Parallel()
	s := foundedState(t, 3)
	must(t, s.Apply(creation("g", 1, 2, 3)))
	g := s.groups["g"]
	voters := func() (out []uint64) {
		for _, r := range s.describe(g, nodeViews{}).GetReplicas() {
			if r.GetVoter() {
				out = append(out, r.GetReplicaId())
			}
		}
		return out
	}
	if got := voters(); len(got) != 0 {
		t.Errorf("before the first record %v vote", got)
	}
	reportAll(t, s, "g")
	if got := voters(); len(got) != 3 {
		t.Errorf("in epoch 1 %v vote", got)
	}
	record := g.Record.EpochRecord
	// A record that changes the members may make the first slot a learner.
	record.Learners, record.Voters = record.Voters[:1], record.Voters[1:]
	g.Record = issued(record)
	if got := voters(); !slices.Equal(got, []uint64{uint64(record.Voters[0].ID), uint64(record.Voters[1].ID)}) {
		t.Errorf("%v vote, the record names %v", got, record.Voters)
	}
}

// Until the record names a folder it may be made again. From then on another folder, none, or an older copy is a lost identity.
func TestLostIdentities(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		fact replicaFacts
		lost string
	}{
		{"the same", replicaFacts{Incarnation: hexOf(0x10), Starts: 7}, ""},
		{"more starts", replicaFacts{Incarnation: hexOf(0x10), Starts: 9}, ""},
		{"nothing told", replicaFacts{}, ""},
		{"unreadable log", replicaFacts{Incarnation: hexOf(0x10)}, ""},
		{"wiped", replicaFacts{Missing: true}, "wiped"},
		{"made again", replicaFacts{Incarnation: hexOf(0x77), Starts: 1}, "another incarnation"},
		{"restored backup", replicaFacts{Incarnation: hexOf(0x10), Starts: 6}, "restored backup"},
	} {
		s := foundedState(t, 3)
		must(t, s.Apply(creation("g", 1, 2, 3)))
		g := s.groups["g"]
		report := func(f replicaFacts) {
			t.Helper()
			f.Group, f.Replica = g.ID, 1
			must(t, s.Apply(&reportCommand{Node: "n1", Session: hexOf(1), Replicas: []replicaFacts{f}}))
		}
		report(replicaFacts{Incarnation: hexOf(0x55), Starts: 9}) // made, then wiped, before the record
		report(replicaFacts{Missing: true})
		reportAll(t, s, "g")
		report(replicaFacts{Incarnation: hexOf(0x10), Starts: 7})
		report(test.fact)
		if got := g.replica(1).Lost; (got == "") != (test.lost == "") || !strings.Contains(got, test.lost) {
			t.Errorf("%s: lost %q, want %q", test.name, got, test.lost)
		}
		report(replicaFacts{Incarnation: hexOf(0x10), Starts: 20})
		if test.lost != "" && g.replica(1).Lost == "" {
			t.Errorf("%s: a lost identity came back", test.name)
		}
		must(t, s.Apply(&reportCommand{Node: "n1", Session: hexOf(1), Masters: []masterFacts{{g.ID, 1, 1<<32 | 9}}}))
		if test.lost != "" && g.Master.Replica != 0 {
			t.Errorf("%s: a lost replica became master", test.name)
		}
		must(t, s.Check())
	}
}

// A node has a bounded number of replicas, so that all that can be news of them at once fits into one command.
func TestReplicasOfANode(t *testing.T) {
	t.Parallel()
	s := foundedState(t, 3)
	create := func(n int, nodes ...ids.NodeID) error {
		c := creation(fmt.Sprintf("%0100d", n), 1, 1, len(nodes))
		c.Nodes = nodes
		binary.BigEndian.PutUint32(c.ID[:], uint32(n))
		return s.Apply(c)
	}
	for n := range maxReplicas {
		must(t, create(n, "n1"))
	}
	err := create(maxReplicas, "n2", "n1")
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "node n1 has 1000 replicas") {
		t.Fatalf("one more replica on a full node: %v", err)
	}
	must(t, create(maxReplicas, "n2", "n3"))
	must(t, s.Check())

	// The longest names, addresses and numbers.
	longest := &reportCommand{Node: ids.NodeID(strings.Repeat("n", 64)), Session: hexOf(1), Addresses: &addresses{Clients: map[string]string{}}}
	address := strings.Repeat("a", 249) + ":10911"
	longest.Addresses.Peer, longest.Addresses.Metrics = address, address
	for n := range maxReplicas {
		longest.Addresses.Clients[fmt.Sprintf("%0100d", n)] = address
		longest.Replicas = append(longest.Replicas, replicaFacts{hexOf(1), math.MaxUint64, hexOf(2), true, math.MaxUint64, true, math.MaxUint32})
		longest.Masters = append(longest.Masters, masterFacts{hexOf(1), math.MaxUint64, math.MaxUint64})
	}
	if n := len(encodeCommand(requestID{}, longest)); n > maxCommand {
		t.Errorf("a report of %d replicas has %d bytes, a command at most %d", maxReplicas, n, maxCommand)
	}
}

// Masters: the highest term wins; other nodes' replicas, unissued epochs and unknown ids never do.
func TestMasterReports(t *testing.T) {
	t.Parallel()
	s := foundedState(t, 3)
	must(t, s.Apply(creation("g", 1, 2, 3)))
	g := s.groups["g"]
	say := func(node ids.NodeID, session byte, replica ids.ReplicaID, term ids.Term) {
		t.Helper()
		must(t, s.Apply(&reportCommand{Node: node, Session: hexOf(session), Masters: []masterFacts{{g.ID, replica, term}}}))
	}
	want := func(replica ids.ReplicaID, term ids.Term) {
		t.Helper()
		if g.Master != (masterEntry{replica, term}) {
			t.Fatalf("master %+v, want replica %d of term %v", g.Master, replica, term)
		}
	}
	say("n1", 1, 1, 1<<32|1)
	want(0, 0) // still pending
	reportAll(t, s, "g")
	say("n1", 1, 2, 1<<32|1) // the replica of n2
	say("n1", 1, 9, 1<<32|1)
	say("n1", 1, 1, 7)       // no epoch
	say("n1", 1, 1, 2<<32|1) // an epoch that was never issued
	want(0, 0)
	say("n1", 1, 1, 1<<32|3)
	want(1, 1<<32|3)
	say("n2", 2, 2, 1<<32|2)
	say("n2", 2, 2, 1<<32|3)
	want(1, 1<<32|3)
	say("n2", 2, 2, 1<<32|4)
	want(2, 1<<32|4)
	if err := s.Apply(&reportCommand{Node: "n3", Session: hexOf(9)}); !errors.Is(err, ErrUnregistered) {
		t.Errorf("a report of another process: %v", err)
	}
	must(t, s.Check())
}

func TestRegistration(t *testing.T) {
	t.Parallel()
	s := NewState()
	if err := s.Apply(&registerCommand{Node: "n1", CheckCode: hexOf(1), Session: hexOf(1)}); !errors.Is(err, ErrInvalid) {
		t.Errorf("before the founding: %v", err)
	}
	s = foundedState(t, 1)
	must(t, s.Apply(&foundCommand{Cluster: hexOf(0xdd)}))
	if s.cluster.Cluster != hexOf(0xcc) {
		t.Error("the cluster was founded twice")
	}
	for _, test := range []struct {
		cmd  registerCommand
		kind error
	}{
		{registerCommand{Node: "n1", CheckCode: hexOf(1), Session: hexOf(1)}, nil},                                 // again
		{registerCommand{Node: "n1", CheckCode: hexOf(2), Session: hexOf(3)}, ErrNodeConflict},                     // another node
		{registerCommand{Node: "n1", CheckCode: hexOf(1), Session: hexOf(3)}, ErrNodeConflict},                     // did not see session 1
		{registerCommand{Node: "n1", CheckCode: hexOf(1), Session: hexOf(3), Replaces: hexOf(1)}, nil},             // a new process
		{registerCommand{Node: "n1", CheckCode: hexOf(1), Session: hexOf(4), Replaces: hexOf(1)}, ErrNodeConflict}, // came second
		{registerCommand{Node: "n 1", CheckCode: hexOf(1), Session: hexOf(3)}, ErrInvalid},
		{registerCommand{Node: "n2", Session: hexOf(3)}, ErrInvalid},
	} {
		if err := s.Apply(&test.cmd); !errors.Is(err, test.kind) {
			t.Errorf("register %+v: %v, want %v", test.cmd, err, test.kind)
		}
	}
}

// Random commands: the invariants hold, replica ids are never given twice, a refused command changes nothing, and equal
// commands make equal states, also through a snapshot and through the entries that changed.
func TestRandomCommands(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 1))
		a, b := NewState(), NewState()
		stored := map[string][]byte{}
		given := map[ids.ReplicaID]string{}
		masters := map[string]ids.Term{}
		for step := range 400 {
			c := randomCommand(r, a)
			before := a.Hash()
			err := a.Apply(c)
			if _, c2, decodeErr := decodeCommand(encodeCommand(requestID{}, c)); decodeErr != nil {
				t.Fatalf("seed %d step %d: %v", seed, step, decodeErr)
			} else if err2 := b.Apply(c2); fmt.Sprint(err) != fmt.Sprint(err2) {
				t.Fatalf("seed %d step %d: %v and %v", seed, step, err, err2)
			}
			if err != nil && a.Hash() != before {
				t.Fatalf("seed %d step %d: %T was refused (%v) and changed the state", seed, step, c, err)
			}
			if err := a.Check(); err != nil {
				t.Fatalf("seed %d step %d after %T: %v", seed, step, c, err)
			}
			for name, g := range a.groups {
				if g.Master.Term < masters[name] {
					t.Fatalf("seed %d step %d: the master of %s went back", seed, step, name)
				}
				masters[name] = g.Master.Term
				for _, rep := range g.Replicas {
					if given[rep.ID] != "" && given[rep.ID] != name {
						t.Fatalf("seed %d: replica id %d was given to %s and %s", seed, rep.ID, given[rep.ID], name)
					}
					given[rep.ID] = name
				}
			}
			for _, e := range a.takeChanges() {
				stored[e.key] = e.value
			}
			if step%50 == 0 {
				if b, err = decodeSnapshot(encodeSnapshot(b)); err != nil {
					t.Fatal(err)
				}
			}
			if a.Hash() != b.Hash() {
				t.Fatalf("seed %d step %d: states differ after %T", seed, step, c)
			}
		}
		var all []entry
		for _, k := range sortedKeys(stored) {
			all = append(all, entry{k, stored[k]})
		}
		fromStore, err := stateOf(all)
		if err != nil || fromStore.Hash() != a.Hash() {
			t.Fatalf("seed %d: the entries that changed make another state: %v", seed, err)
		}
		if len(a.groups) == 0 {
			t.Fatalf("seed %d made no group", seed)
		}
	}
}

func randomCommand(r *rand.Rand, s *State) Command {
	node := ids.NodeID(fmt.Sprintf("n%d", r.IntN(6)))
	switch r.IntN(10) {
	case 0:
		if r.IntN(3) == 0 {
			return &raiseLevelCommand{Level(r.IntN(int(NewestLevel) + 1))}
		}
		return &foundCommand{Cluster: hexOf(byte(r.IntN(3)))}
	case 1, 2:
		c := &registerCommand{Node: node, CheckCode: hexOf(byte(r.IntN(8)/7 + 1)), Session: hexOf(byte(r.IntN(4)))}
		if n := s.nodes[node]; n != nil && r.IntN(2) == 0 {
			c.Replaces = n.Session
		}
		return c
	case 3:
		m := r.IntN(5) + 1
		c := creation(fmt.Sprintf("g%d", r.IntN(8)), byte(r.IntN(250)), r.IntN(m)+1, m)
		c.MinISR = r.IntN(4)
		return c
	}
	if names := sortedKeys(s.groups); len(names) > 0 && r.IntN(3) == 0 {
		return randomMembership(r, s.groups[names[r.IntN(len(names))]])
	}
	c := &reportCommand{Node: node, Session: hexOf(byte(r.IntN(4)))}
	if n := s.nodes[node]; n != nil && r.IntN(4) > 0 {
		c.Session = n.Session
	}
	if r.IntN(3) == 0 {
		c.Addresses = &addresses{Peer: fmt.Sprintf("h:%d", r.IntN(3)), Clients: map[string]string{"g1": "h:1", "g0": "h:2"}}
	}
	for _, name := range sortedKeys(s.groups) {
		g := s.groups[name]
		for _, rep := range g.Replicas {
			if r.IntN(3) == 0 {
				c.Replicas = append(c.Replicas, replicaFacts{Group: g.ID, Replica: rep.ID, Incarnation: hexOf(byte(r.IntN(20) / 18)), Missing: r.IntN(40) == 0, Starts: uint64(r.IntN(5))})
			}
			if r.IntN(4) == 0 {
				c.Masters = append(c.Masters, masterFacts{Group: g.ID, Replica: rep.ID, Term: ids.MakeTerm(ids.Epoch(r.IntN(3)), uint32(r.IntN(9)))})
			}
		}
	}
	return c
}

// randomMembership is a command that changes who belongs to g, or is refused.
func randomMembership(r *rand.Rand, g *groupEntry) Command {
	id := g.Replicas[r.IntN(len(g.Replicas))].ID
	switch r.IntN(9) {
	case 0:
		return &uncleanCommand{Group: g.ID, Epoch: g.Epoch, Winner: id, Last: 7, Terms: []termStart{{1, 1}}, Millis: 1}
	case 1, 2, 3:
		return &giveUpCommand{Group: g.ID, Replica: id, Heir: ids.NodeID([]string{"", "n1", "n5"}[r.IntN(3)])}
	case 4, 5, 6:
		return &renewCommand{Group: g.ID, Replica: id, Epoch: g.Epoch}
	}
	next := g.voters().without(id)
	if r.IntN(2) == 0 {
		next = next.with(id)
	}
	return &issueEpochCommand{Group: g.ID, Epoch: g.Epoch, Voters: next, Reason: "random"}
}
