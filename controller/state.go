package controller

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// State is what the controllers agree on: a pure state machine. Commands come in through Apply, nothing else changes it; it
// knows no clock, disk, network or randomness, so that equal commands give equal states on every member.
//
// It is kept as entries: one for the cluster, one for each node and group, each a JSON value under a key. The store writes
// those that a command changed, a snapshot and the hash take all of them in key order.
//
// A State is used by one goroutine at a time, or by many that only read.
//
// Invariants, tested by Check:
//  1. every replica id is below cluster.NextReplica and occurs once in all groups;
//  2. a group has as many replicas as its mode says and those that leave it, in the order of their slots, which are 1 to 5 at
//     most, each on another registered node;
//  3. Epoch is 0 until every replica has an incarnation; from then on Record is of that epoch and names only replicas
//     of the group with their incarnations;
//  4. Active is at most Epoch; Since begins with the voters of Active and has those of Epoch, and no set differs from the first
//     by more than one voter added and one removed;
//  5. a known master is a replica of its group, and its term's epoch was issued;
//  6. no group has the id of one that was removed.
type State struct {
	cluster     clusterEntry
	nodes       map[ids.NodeID]*nodeEntry
	controllers *controllersEntry // nil until the members change for the first time
	groups      map[string]*groupEntry
	byID        map[ids.GroupID]*groupEntry
	removed     map[hexID]*removedEntry

	changed map[string]bool // keys of entries that differ from what takeChanges last returned
}

// clusterEntry has the key "cluster".
type clusterEntry struct {
	Cluster     hexID         `json:"cluster"`           // zero: the cluster was not founded yet
	NextReplica ids.ReplicaID `json:"nextReplica"`       // the next replica id to give; never falls
	Level       Level         `json:"level,omitempty"`   // feature level; 0: 1. Never falls
	Namesrv     []string      `json:"namesrv,omitempty"` // that nodes register with; none: those of their configuration
	// Recovery counts how often the controllers were made anew from what the nodes had.
	Recovery uint32 `json:"recovery,omitempty"`
}

// nodeEntry has the key "node/" + ID.
type nodeEntry struct {
	ID        ids.NodeID `json:"id"`
	CheckCode hexID      `json:"checkCode"` // zero: it did not answer when the controllers were recovered, and has not come since
	Session   hexID      `json:"session"`   // of the process that speaks for the node
	Addresses addresses  `json:"addresses"`
}

// addresses are a node's last reported ones.
type addresses struct {
	Peer    string            `json:"peer,omitempty"`
	Metrics string            `json:"metrics,omitempty"`
	Clients map[string]string `json:"clients,omitempty"` // by group name
	Zone    string            `json:"zone,omitempty"`    // where the node is; "": it does not say
}

func (a addresses) equal(b addresses) bool {
	if a.Peer != b.Peer || a.Metrics != b.Metrics || a.Zone != b.Zone || len(a.Clients) != len(b.Clients) {
		return false
	}
	for k, v := range a.Clients {
		if w, ok := b.Clients[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// groupEntry has the key "group/" + Name.
type groupEntry struct {
	Name        string         `json:"name"`
	ID          hexID          `json:"id"`
	Answers     int            `json:"answers"` // A of mode A-M
	Members     int            `json:"members"` // M: its replicas, without those that leave it
	MinISR      int            `json:"minISR"`  // in force as soon as there are as many voters
	SegmentSize int64          `json:"segmentSize"`
	Async       bool           `json:"async,omitempty"`  // replicas acknowledge before they sync
	Replicas    []replicaEntry `json:"replicas"`         // by slot
	Epoch       ids.Epoch      `json:"epoch"`            // 0: pending
	After       ids.Epoch      `json:"after,omitempty"`  // its first epoch comes after this one, the newest of a removed group of its name
	Record      *issuedRecord  `json:"record,omitempty"` // nil: pending
	Active      ids.Epoch      `json:"active"`           // last epoch in which a master committed an entry of its own; epoch 1 counts
	Since       []voterSet     `json:"since,omitempty"`  // the voters of that epoch, then the other sets issued since, each once
	Changes     []change       `json:"changes,omitempty"`
	Recovered   ids.Epoch      `json:"recovered,omitempty"` // that began with a recovery of the controllers; until it is active no other voters follow
	// The last unclean elections, and how many there were.
	Uncleans     []uncleanElection `json:"uncleans,omitempty"`
	UncleanCount uint64            `json:"uncleanCount,omitempty"`

	Master    masterEntry `json:"master"`
	Preferred ids.NodeID  `json:"preferred,omitempty"` // node of the master that is wanted; "": of the lowest slot that may vote
}

type replicaEntry struct {
	ID          ids.ReplicaID `json:"id"`
	Slot        ids.Slot      `json:"slot"`
	Node        ids.NodeID    `json:"node"`
	Incarnation hexID         `json:"incarnation"`       // zero: not created yet
	Starts      uint64        `json:"starts"`            // greatest start counter reported
	Lost        string        `json:"lost,omitempty"`    // why the id was given up for ever
	Revived     ids.Epoch     `json:"revived,omitempty"` // the unclean election that it won though it was lost; what it said before does not count
	Heir        ids.NodeID    `json:"heir,omitempty"`    // node of the replica that follows it in its slot; "": the same
	Learner     bool          `json:"learner,omitempty"` // asynchronous until an operator says otherwise: never made a voter
	Leaving     bool          `json:"leaving,omitempty"` // an operator took it out of the group: it goes as soon as it can be done without
}

type masterEntry struct {
	Replica ids.ReplicaID `json:"replica"` // 0: never had one
	Term    ids.Term      `json:"term"`
}

// hexID is an id of 16 bytes, written as 32 hexadecimal digits.
type hexID [16]byte

func (h hexID) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(h[:])), nil }

func (h *hexID) UnmarshalText(b []byte) error {
	u, err := ids.ParseUUID(string(b))
	*h = hexID(u)
	return err
}

func (h hexID) isZero() bool { return h == hexID{} }

// issuedRecord is an epoch record with its bytes. In JSON it is those, in hexadecimal digits. It never changes.
type issuedRecord struct {
	raftlog.EpochRecord
	encoded []byte
}

func issued(r raftlog.EpochRecord) *issuedRecord { return &issuedRecord{r, r.Encode()} }

// bytes returns the encoded record, nil when there is none yet.
func (r *issuedRecord) bytes() []byte {
	if r == nil {
		return nil
	}
	return r.encoded
}

// MarshalText returns the bytes in hexadecimal digits.
func (r *issuedRecord) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, r.encoded), nil }

// UnmarshalText reads what MarshalText wrote.
func (r *issuedRecord) UnmarshalText(b []byte) (err error) {
	if r.encoded, err = hex.DecodeString(string(b)); err == nil {
		r.EpochRecord, err = raftlog.DecodeEpochRecord(r.encoded)
	}
	return err
}

// NewState returns the state before the first command.
func NewState() *State {
	s := &State{
		cluster: clusterEntry{NextReplica: 1},
		nodes:   map[ids.NodeID]*nodeEntry{},
		groups:  map[string]*groupEntry{},
		byID:    map[ids.GroupID]*groupEntry{},
		removed: map[hexID]*removedEntry{},
		changed: map[string]bool{},
	}
	s.touch(keyCluster)
	return s
}

const (
	keyCluster     = "cluster"
	keyNodePrefix  = "node/"
	keyGroupPrefix = "group/"
)

func (s *State) touch(key string)         { s.changed[key] = true }
func (s *State) touchNode(n *nodeEntry)   { s.touch(keyNodePrefix + string(n.ID)) }
func (s *State) touchGroup(g *groupEntry) { s.touch(keyGroupPrefix + g.Name) }

// entry is one key and its value, nil among changes when the entry was removed.
type entry struct {
	key   string
	value []byte
}

// value returns the JSON of the entry with that key.
func (s *State) value(key string) []byte {
	var v any
	switch {
	case key == keyCluster:
		v = s.cluster
	case key == keyControllers:
		v = s.controllers
	case strings.HasPrefix(key, keyNodePrefix):
		v = s.nodes[ids.NodeID(key[len(keyNodePrefix):])]
	case strings.HasPrefix(key, keyRemovedPrefix):
		var id hexID
		if err := id.UnmarshalText([]byte(key[len(keyRemovedPrefix):])); err != nil {
			panic(fmt.Sprintf("controller: %q is no key of a removed group: %v", key, err))
		}
		v = s.removed[id]
	default:
		v = s.groups[key[len(keyGroupPrefix):]]
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("controller: an entry of the state cannot be encoded: %v", err))
	}
	return b
}

// takeChanges returns the entries that changed since the last call, in key order.
func (s *State) takeChanges() []entry {
	var out []entry
	for _, key := range sortedKeys(s.changed) {
		if id, node := strings.CutPrefix(key, keyNodePrefix); node && s.nodes[ids.NodeID(id)] == nil {
			out = append(out, entry{key: key}) // removed
			continue
		}
		if name, group := strings.CutPrefix(key, keyGroupPrefix); group && s.groups[name] == nil {
			out = append(out, entry{key: key})
			continue
		}
		out = append(out, entry{key, s.value(key)})
	}
	clear(s.changed)
	return out
}

// entries returns all entries in key order.
func (s *State) entries() []entry {
	keys := []string{keyCluster}
	if s.controllers != nil {
		keys = append(keys, keyControllers)
	}
	for id := range s.nodes {
		keys = append(keys, keyNodePrefix+string(id))
	}
	for name := range s.groups {
		keys = append(keys, keyGroupPrefix+name)
	}
	for _, e := range s.removed {
		keys = append(keys, e.key())
	}
	sort.Strings(keys)
	out := make([]entry, 0, len(keys))
	for _, k := range keys {
		out = append(out, entry{k, s.value(k)})
	}
	return out
}

// Hash returns the SHA-256 of all entries. Equal states have equal hashes.
func (s *State) Hash() [sha256.Size]byte {
	h := sha256.New()
	var n [4]byte
	for _, e := range s.entries() {
		for _, part := range [][]byte{[]byte(e.key), e.value} {
			binary.BigEndian.PutUint32(n[:], uint32(len(part)))
			h.Write(n[:])
			h.Write(part)
		}
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// stateOf builds a state from all its entries. It accepts exactly what entries returns, and checks the invariants.
func stateOf(all []entry) (*State, error) {
	s := NewState()
	seenCluster := false
	for _, e := range all { // before what may be of a form that is not known here
		if e.key == keyCluster {
			if err := OwnLevels().Check(levelOf(e.value)); err != nil {
				return nil, err
			}
		}
	}
	for _, e := range all {
		var err error
		switch {
		case e.key == keyCluster:
			seenCluster = true
			err = strictJSON(e.value, &s.cluster)
		case e.key == keyControllers:
			s.controllers = &controllersEntry{}
			err = strictJSON(e.value, s.controllers)
		case strings.HasPrefix(e.key, keyNodePrefix):
			n := &nodeEntry{}
			if err = strictJSON(e.value, n); err == nil && keyNodePrefix+string(n.ID) != e.key {
				err = errors.New("it is the entry of another node")
			}
			s.nodes[n.ID] = n
		case strings.HasPrefix(e.key, keyGroupPrefix):
			g := &groupEntry{}
			if err = strictJSON(e.value, g); err == nil && keyGroupPrefix+g.Name != e.key {
				err = errors.New("it is the entry of another group")
			}
			s.groups[g.Name] = g
			s.byID[ids.GroupID(g.ID)] = g
		case strings.HasPrefix(e.key, keyRemovedPrefix):
			r := &removedEntry{}
			if err = strictJSON(e.value, r); err == nil && r.key() != e.key {
				err = errors.New("it is the entry of another group")
			}
			s.removed[r.ID] = r
		default:
			err = errors.New("unknown kind of entry")
		}
		if err != nil {
			return nil, fmt.Errorf("entry %q: %w", e.key, err)
		}
	}
	if !seenCluster {
		return nil, errors.New("the cluster's entry is missing")
	}
	if err := s.Check(); err != nil {
		return nil, err
	}
	clear(s.changed)
	return s, nil
}

// strictJSON decodes b into v and refuses everything that v would not be encoded as.
func strictJSON(b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return err
	}
	again, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if !bytes.Equal(b, again) {
		return errors.New("not in canonical form, or of a newer version")
	}
	return nil
}

// Check tests the invariants of State and returns the first that is broken.
func (s *State) Check() error {
	seen := map[ids.ReplicaID]string{}
	for _, name := range sortedKeys(s.groups) {
		g := s.groups[name]
		if err := s.checkGroup(g, seen); err != nil {
			return fmt.Errorf("group %s: %w", name, err)
		}
	}
	return s.checkRemoved()
}

func (s *State) checkGroup(g *groupEntry, seen map[ids.ReplicaID]string) error {
	if n := g.staying(); n != g.Members {
		return fmt.Errorf("%d replicas in mode %d-%d", n, g.Answers, g.Members)
	}
	nodes := map[ids.NodeID]bool{}
	for i, r := range g.Replicas {
		switch {
		case r.ID == 0 || r.ID >= s.cluster.NextReplica:
			return fmt.Errorf("replica id %d was never given", r.ID)
		case seen[r.ID] != "":
			return fmt.Errorf("replica id %d is also in group %s", r.ID, seen[r.ID])
		case r.Slot < 1 || r.Slot > raftlog.MaxVoters || i > 0 && r.Slot <= g.Replicas[i-1].Slot:
			return fmt.Errorf("replica %d has slot %d at place %d", r.ID, r.Slot, i)
		case s.nodes[r.Node] == nil || nodes[r.Node]:
			return fmt.Errorf("replica %d is on node %q, which is unknown or taken", r.ID, r.Node)
		case r.Heir != "" && r.Lost == "":
			return fmt.Errorf("replica %d has an heir on node %s and is not lost", r.ID, r.Heir)
		}
		seen[r.ID] = g.Name
		nodes[r.Node] = true
	}
	if g.Epoch == 0 {
		if g.Record != nil || g.Master != (masterEntry{}) || g.Active != 0 || len(g.Since) > 0 || len(g.Changes) > 0 || g.UncleanCount > 0 {
			return errors.New("it has a record, a master or a history before its first epoch")
		}
		return nil
	}
	record := g.Record
	if record == nil {
		return fmt.Errorf("the record of epoch %d is missing", g.Epoch)
	}
	if g.Epoch <= g.After || record.Epoch != g.Epoch || record.Group != ids.GroupID(g.ID) || record.Cluster != ids.ClusterID(s.cluster.Cluster) {
		return errors.New("its record is of another epoch, group or cluster, or of an epoch before its first")
	}
	for _, m := range slices.Concat(record.Voters, record.Learners) {
		r := g.replica(m.ID)
		if r == nil || r.Slot != m.Slot || r.Node != m.Node || r.Incarnation != hexID(m.Incarnation) {
			return fmt.Errorf("its record names replica %d otherwise than the group does", m.ID)
		}
	}
	if err := errors.Join(g.checkSince(), g.checkUncleans()); err != nil {
		return err
	}
	if m := g.Master; m.Replica != 0 && (g.replica(m.Replica) == nil || m.Term.Epoch() < 1 || m.Term.Epoch() > g.Epoch) {
		return fmt.Errorf("its master %d of term %v cannot be", m.Replica, m.Term)
	}
	return nil
}

// checkSince tests that the history is one that issue and activate make.
func (g *groupEntry) checkSince() error {
	current := g.voters()
	if g.Active < 1 || g.Active > g.Epoch || len(g.Since) == 0 || len(g.Changes) > maxChanges {
		return fmt.Errorf("epoch %d, active %d, %d sets and %d changes since then cannot be", g.Epoch, g.Active, len(g.Since), len(g.Changes))
	}
	if g.Recovered > g.Epoch || g.Active < g.Recovered && len(g.Since) != 1 {
		return fmt.Errorf("epoch %d, recovered in %d, with the history %v cannot be", g.Epoch, g.Recovered, g.Since)
	}
	if g.Active == g.Epoch && (len(g.Since) != 1 || !slices.Equal(g.Since[0], current)) {
		return fmt.Errorf("epoch %d is active with voters %v, but the history has %v", g.Epoch, current, g.Since)
	}
	for i, v := range g.Since {
		for j, id := range v {
			if g.replica(id) == nil || j > 0 && v[j-1] >= id {
				return fmt.Errorf("its history has the voters %v", v)
			}
		}
		if len(v) == 0 || !oneApart(g.Since[0], v) || slices.ContainsFunc(g.Since[:i], func(w voterSet) bool { return slices.Equal(v, w) }) {
			return fmt.Errorf("its history has the voters %v after %v", v, g.Since[0])
		}
	}
	if !slices.ContainsFunc(g.Since, func(v voterSet) bool { return slices.Equal(v, current) }) {
		return fmt.Errorf("the voters %v of epoch %d are not in its history", current, g.Epoch)
	}
	return nil
}

// replica returns the replica with that id, or nil.
func (g *groupEntry) replica(id ids.ReplicaID) *replicaEntry {
	for i := range g.Replicas {
		if g.Replicas[i].ID == id {
			return &g.Replicas[i]
		}
	}
	return nil
}

// waitingFor returns the nodes that have not yet created their replica.
func (g *groupEntry) waitingFor() []string {
	var out []string
	for _, r := range g.Replicas {
		if r.Incarnation.isZero() {
			out = append(out, string(r.Node))
		}
	}
	return out
}

// CheckMode returns an error when there is no mode A-M: M replicas, of which A have a message before its producer is answered.
func CheckMode(answers, members int) error {
	if answers < 1 || members < answers || members > raftlog.MaxVoters {
		return fmt.Errorf("mode %d-%d cannot be: A-M means M replicas, A copies before an answer, 1 <= A <= M <= %d, for example 2-3", answers, members, raftlog.MaxVoters)
	}
	return nil
}

// Voters is V of mode A-M: the number of replicas that vote when all are well and none is kept a learner. A majority of V is A or
// fewer.
func Voters(answers, members int) int { return min(members, 2*answers-1) }
