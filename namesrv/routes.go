package namesrv

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// Bounds of a table. They keep a broken or hostile broker from filling the memory; no sane cluster comes near.
const (
	MaxGroups           = 65536 // broker groups in the table
	MaxAddressesOfGroup = 256   // addresses, and likewise places, remembered in one group, gone ones included
	MaxTopicsOfGroup    = 1 << 20
)

// ForgetAfter is how long the terms of a group are remembered after its last address went. Until then a late registration of
// a lower term is still refused.
const ForgetAfter = 24 * time.Hour

// ConnID numbers the connections of a server in the order in which it accepted them, from 1. Of two connections of one
// broker the greater one is the newer one.
type ConnID uint64

// Registration is the event "a broker says that it serves". Zero Timeout means the table's own.
type Registration struct {
	Cluster  string
	Group    string // brokerName
	Addr     string // host:port for clients
	BrokerID ids.BrokerID
	Term     ids.Term
	HAAddr   string // kept and given to slaves of Java brokers
	Zone     string
	Acting   bool // enableActingMaster, passed on in routes
	Timeout  time.Duration
	Version  DataVersion
	Topics   []TopicConfig // counts only when BrokerID is the master's
	Whole    bool          // Topics is all there is: topics that it lacks are gone. Java brokers also send parts
	Conn     ConnID

	ClusterID   string   // of the cluster as the controller drew it; "" when the broker did not say
	Controllers []string // addresses of the controllers; nil when the broker did not say
}

// Unregistration is the event "a broker says that it goes". HasTerm is false for brokers that do not send a term.
type Unregistration struct {
	Group    string
	Addr     string
	BrokerID ids.BrokerID
	Term     ids.Term
	HasTerm  bool
	Conn     ConnID
}

// Registered is the effect of a registration.
type Registered struct {
	New        bool   // the address was not in this place before
	MasterAddr string // of the group as now known; "" when there is none
	HAAddr     string // of that master
	Term       ids.Term
}

// Removed tells of an address that left the table.
type Removed struct {
	Group    string
	Addr     string
	BrokerID ids.BrokerID
	Term     ids.Term
}

// ErrFull is returned when a registration would pass one of the bounds.
var ErrFull = errors.New("the table of brokers is full")

// ErrPart is returned for a registration of one topic by a broker whose whole registration has not come yet.
var ErrPart = errors.New("one topic of a broker that has not registered")

// StaleError is returned for a registration that a newer one has overtaken.
type StaleError struct {
	Group      string
	Addr       string
	Term       ids.Term
	Newest     ids.Term // of the address or the place
	MasterAddr string   // as now known
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("broker %s of group %s registers with term %s (%d), but term %s (%d) is known; if the group was made anew under its old name, restart the name servers",
		e.Addr, e.Group, e.Term, uint64(e.Term), e.Newest, uint64(e.Newest))
}

// Routes is the table of broker groups and topics. See the package comment for what it guarantees.
//
// Invariant: inside a group an address is in at most one place, and a place has at most one address.
// Invariant: the term of a place, and of an address, never falls while the group is remembered, also when nobody is there.
// Invariant: a topic is listed under a group exactly if the group's table has it, and a group without addresses has no table.
type Routes struct {
	expiry  time.Duration
	groups  map[string]*group
	byTopic map[string][]*group // sorted by name

	clusterID   string
	controllers []string
}

type group struct {
	name      string
	cluster   string
	zone      string
	acting    bool
	protected bool // an operator took writability out of its routes
	places    map[ids.BrokerID]*place
	addrs     map[string]*place // the same places by address

	// Terms outlive what they came with, so that a late event of a lower term finds them.
	termOfPlace map[ids.BrokerID]ids.Term
	termOfAddr  map[string]ids.Term

	data BrokerData // what answers say of the group; see rebuild

	topics       map[string]TopicConfig
	topicVersion DataVersion
	topicTerm    ids.Term
	gone         time.Time // when the last address went
}

// place is one registered address.
type place struct {
	id      ids.BrokerID
	addr    string
	haAddr  string
	term    ids.Term
	version DataVersion
	conn    ConnID // newest connection that registered it
	seen    time.Time
	timeout time.Duration
}

// NewRoutes returns an empty table in which an address expires when it is silent for longer than expiry.
func NewRoutes(expiry time.Duration) *Routes {
	return &Routes{expiry: expiry, groups: map[string]*group{}, byTopic: map[string][]*group{}}
}

// Register applies a registration. It returns *StaleError, ErrPart or ErrFull when the table stays as it was.
func (r *Routes) Register(now time.Time, reg Registration) (Registered, error) {
	g := r.groups[reg.Group]
	if g == nil {
		if len(r.groups) >= MaxGroups {
			return Registered{}, fmt.Errorf("%w: %d groups", ErrFull, MaxGroups)
		}
		g = newGroup(reg.Group)
	}
	if newest, stale := g.stale(reg); stale {
		return Registered{}, &StaleError{Group: reg.Group, Addr: reg.Addr, Term: reg.Term, Newest: newest, MasterAddr: g.masterAddr()}
	}
	if len(reg.Topics) > MaxTopicsOfGroup {
		return Registered{}, fmt.Errorf("%w: %d topics", ErrFull, len(reg.Topics))
	}
	old := g.places[reg.BrokerID]
	if old == nil && !reg.Whole && len(reg.Topics) == 1 {
		return Registered{}, ErrPart
	}
	if !makeRoom(g.termOfAddr, g.addrs, reg.Addr) || !makeRoom(g.termOfPlace, g.places, reg.BrokerID) {
		return Registered{}, fmt.Errorf("%w: %d addresses in group %s", ErrFull, MaxAddressesOfGroup, reg.Group)
	}
	r.groups[reg.Group] = g

	// A slave that became master leaves its slot, and a master that follows leaves place 0.
	if other := g.addrs[reg.Addr]; other != nil && other.id != reg.BrokerID {
		g.drop(other)
	}
	if old != nil && old.addr != reg.Addr {
		g.drop(old)
		old = nil
	}
	p := old
	if p == nil {
		p = &place{id: reg.BrokerID, addr: reg.Addr}
		g.places[p.id], g.addrs[p.addr] = p, p
	}
	p.seen = now
	if reg.Term > p.term || reg.Conn >= p.conn { // else it is a late packet: the broker lives, that is all it says
		p.term, p.conn, p.version, p.haAddr = reg.Term, reg.Conn, reg.Version, reg.HAAddr
		if p.timeout = reg.Timeout; p.timeout <= 0 {
			p.timeout = r.expiry
		}
	}
	g.termOfAddr[reg.Addr] = reg.Term
	g.termOfPlace[reg.BrokerID] = reg.Term
	if reg.BrokerID == ids.MasterBrokerID || g.cluster == "" {
		g.cluster, g.zone, g.acting = reg.Cluster, reg.Zone, reg.Acting
	}
	if reg.BrokerID == ids.MasterBrokerID {
		r.setTopics(g, reg)
	}
	g.rebuild()
	if reg.ClusterID != "" {
		r.clusterID = reg.ClusterID
	}
	if len(reg.Controllers) > 0 {
		r.controllers = slices.Clone(reg.Controllers)
	}
	done := Registered{New: old == nil, Term: g.termOfPlace[ids.MasterBrokerID]}
	if m := g.places[ids.MasterBrokerID]; m != nil {
		done.MasterAddr, done.HAAddr = m.addr, m.haAddr
	}
	return done, nil
}

func newGroup(name string) *group {
	return &group{
		name: name, places: map[ids.BrokerID]*place{}, addrs: map[string]*place{},
		termOfPlace: map[ids.BrokerID]ids.Term{}, termOfAddr: map[string]ids.Term{}, topics: map[string]TopicConfig{},
	}
}

// stale tells whether something newer than reg is known, and the newest term of reg's address and place.
func (g *group) stale(reg Registration) (ids.Term, bool) {
	newest := max(g.termOfAddr[reg.Addr], g.termOfPlace[reg.BrokerID])
	if reg.Term < newest {
		return newest, true
	}
	// A replica may lead and follow in one term (it stands for election, leads, steps down). Then the order of its
	// connections decides: what an older one still delivers about another role is late.
	p := g.addrs[reg.Addr]
	return newest, p != nil && p.id != reg.BrokerID && p.term == reg.Term && reg.Conn < p.conn
}

// setTopics takes over the topic table of a master.
func (r *Routes) setTopics(g *group, reg Registration) {
	if reg.Whole && reg.Term == g.topicTerm && reg.Version.olderThan(g.topicVersion) {
		return // a late packet of this master; it says nothing new
	}
	if reg.Whole && reg.Term == g.topicTerm && reg.Version == g.topicVersion && len(reg.Topics) == len(g.topics) {
		return // the usual one, twice a minute from each master
	}
	if reg.Whole {
		keep := make(map[string]struct{}, len(reg.Topics))
		for _, t := range reg.Topics {
			keep[t.Name] = struct{}{}
		}
		for name := range g.topics {
			if _, ok := keep[name]; !ok {
				r.removeTopic(g, name)
			}
		}
	}
	for _, t := range reg.Topics {
		if _, known := g.topics[t.Name]; !known {
			if len(g.topics) >= MaxTopicsOfGroup {
				break
			}
			r.listTopic(g, t.Name)
		}
		g.topics[t.Name] = t
	}
	g.topicVersion, g.topicTerm = reg.Version, reg.Term
}

func (r *Routes) listTopic(g *group, topic string) {
	list := r.byTopic[topic]
	at, found := slices.BinarySearchFunc(list, g.name, func(h *group, name string) int { return strings.Compare(h.name, name) })
	if !found {
		r.byTopic[topic] = slices.Insert(list, at, g)
	}
}

func (r *Routes) removeTopic(g *group, topic string) {
	delete(g.topics, topic)
	list := slices.DeleteFunc(r.byTopic[topic], func(h *group) bool { return h == g })
	if len(list) == 0 {
		delete(r.byTopic, topic)
		return
	}
	r.byTopic[topic] = list
}

// Unregister applies an unregistration and tells whether an address left the table. One that is older than what is known
// changes nothing.
func (r *Routes) Unregister(now time.Time, u Unregistration) bool {
	g := r.groups[u.Group]
	if g == nil {
		return false
	}
	p := g.addrs[u.Addr]
	if p == nil || p.id != u.BrokerID {
		return false
	}
	term := u.Term
	if !u.HasTerm {
		term = p.term
	}
	if term < p.term || term == p.term && u.Conn < p.conn {
		return false
	}
	r.leave(now, g, p)
	return true
}

// ConnClosed applies the end of a connection: the addresses that it was the newest one to register leave the table.
func (r *Routes) ConnClosed(now time.Time, conn ConnID) []Removed {
	return r.leaveIf(now, func(p *place) bool { return p.conn == conn })
}

// Expire removes the addresses that have been silent for longer than their time, and forgets groups that have been without
// an address for ForgetAfter.
func (r *Routes) Expire(now time.Time) []Removed {
	for name, g := range r.groups {
		if len(g.places) == 0 && now.Sub(g.gone) > ForgetAfter {
			delete(r.groups, name)
		}
	}
	return r.leaveIf(now, func(p *place) bool { return now.Sub(p.seen) > p.timeout })
}

func (r *Routes) leaveIf(now time.Time, leaves func(*place) bool) []Removed {
	var gone []Removed
	for _, g := range r.groups {
		for _, p := range g.places {
			if leaves(p) {
				gone = append(gone, Removed{Group: g.name, Addr: p.addr, BrokerID: p.id, Term: p.term})
				r.leave(now, g, p)
			}
		}
	}
	slices.SortFunc(gone, func(a, b Removed) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Addr, b.Addr))
	})
	return gone
}

// leave takes a place out of the table. With the last one the group's topics go, its terms stay.
func (r *Routes) leave(now time.Time, g *group, p *place) {
	g.drop(p)
	g.rebuild()
	if len(g.places) > 0 {
		return
	}
	g.gone = now
	for topic := range g.topics {
		r.removeTopic(g, topic)
	}
	g.topicVersion, g.topicTerm = DataVersion{}, 0
}

func (g *group) drop(p *place) {
	delete(g.places, p.id)
	delete(g.addrs, p.addr)
}

func (g *group) masterAddr() string {
	if m := g.places[ids.MasterBrokerID]; m != nil {
		return m.addr
	}
	return ""
}

// makeRoom tells whether key may get a term. When all room is taken, the lowest term of a key that nobody lives under is
// forgotten first.
func makeRoom[K cmp.Ordered](terms map[K]ids.Term, live map[K]*place, key K) bool {
	if _, known := terms[key]; known || len(terms) < MaxAddressesOfGroup {
		return true
	}
	var victim K
	found := false
	for k, term := range terms {
		if live[k] != nil {
			continue
		}
		if !found || term < terms[victim] || term == terms[victim] && k < victim {
			victim, found = k, true
		}
	}
	if found {
		delete(terms, victim)
	}
	return found
}

// Touch notes that the broker at addr lives. It returns false when the table does not have that address.
func (r *Routes) Touch(now time.Time, addr string) bool {
	// Heartbeats carry no reliable group, so all groups are asked; there are few and an address is in one.
	found := false
	for _, g := range r.groups {
		if p := g.addrs[addr]; p != nil {
			p.seen, found = now, true
		}
	}
	return found
}

// Version returns the data version that the broker at addr registered last.
func (r *Routes) Version(group, addr string) (DataVersion, bool) {
	if g := r.groups[group]; g != nil {
		if p := g.addrs[addr]; p != nil {
			return p.version, true
		}
	}
	return DataVersion{}, false
}

// DeleteTopic removes a topic from all groups of cluster, or of every cluster when it is "". A master that still has the
// topic brings it back with its next registration.
func (r *Routes) DeleteTopic(topic, cluster string) {
	for _, g := range slices.Clone(r.byTopic[topic]) {
		if cluster == "" || g.cluster == cluster {
			r.removeTopic(g, topic)
		}
	}
}
