package client

import (
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// layoutGrace is how long a group that is missing in a new route keeps its queues in the layout for ordered sends. A name
// server that has just started does not know all groups yet; it does after 35 s at most.
const layoutGrace = 60 * time.Second

// suspectFor is how long a broker that did not answer is avoided where there is another one.
const suspectFor = 3 * time.Second

// routeCache is what the client knows of topics and groups: pure, with the time as an argument.
//
// Invariant: the term of a group never falls, and its addresses come from an answer of that term or of a server that tells
// no terms.
type routeCache struct {
	groups map[string]*groupView
	topics map[string]*topicView
}

type groupView struct {
	info    GroupInfo
	suspect map[string]time.Time // address → when it did not answer
}

type topicView struct {
	fetched time.Time
	current []string // names of the groups of the newest route, sorted
	layout  map[string]*share
}

// share is one group's part of a topic. It stays for layoutGrace after it was last in a route.
type share struct {
	read, write, perm int32
	seen              time.Time
}

func newRouteCache() *routeCache {
	return &routeCache{groups: map[string]*groupView{}, topics: map[string]*topicView{}}
}

func (c *routeCache) group(name string) *groupView {
	g := c.groups[name]
	if g == nil {
		g = &groupView{info: GroupInfo{Group: name}, suspect: map[string]time.Time{}}
		c.groups[name] = g
	}
	return g
}

// learn takes over what a name server says of a group, unless it is older than what is known.
func (c *routeCache) learn(info GroupInfo) {
	g := c.group(info.Group)
	if info.Term != 0 && info.Term < g.info.Term {
		return
	}
	term := max(info.Term, g.info.Term)
	g.info = info
	g.info.Term = term
}

// put takes over a route.
func (c *routeCache) put(now time.Time, r Route) {
	t := c.topics[r.Topic]
	if t == nil {
		t = &topicView{layout: map[string]*share{}}
		c.topics[r.Topic] = t
	}
	t.fetched, t.current = now, t.current[:0:0]
	for _, g := range r.Groups {
		c.learn(g.GroupInfo)
		t.current = append(t.current, g.Group)
		t.layout[g.Group] = &share{read: g.ReadQueues, write: g.WriteQueues, perm: g.Perm, seen: now}
	}
	for name, s := range t.layout {
		if now.Sub(s.seen) > layoutGrace {
			delete(t.layout, name)
		}
	}
}

// drop forgets a topic that was deleted.
func (c *routeCache) drop(topic string) { delete(c.topics, topic) }

// missing forgets a topic that no name server knows, unless it was there a moment ago: then all its brokers may be away, which
// looks the same there. What lives still tells whether the topic does.
func (c *routeCache) missing(now time.Time, topic string) {
	if t := c.topics[topic]; t != nil && now.Sub(t.fetched) > layoutGrace {
		delete(c.topics, topic)
	}
}

// moved tells whether the group has another master than the one at addr, of a higher term.
func (c *routeCache) moved(at target) bool {
	g := c.groups[at.group]
	return g != nil && g.info.Term > at.term && g.info.Master() != "" && g.info.Master() != at.addr
}

// hint takes over the master that a broker named in an answer.
func (c *routeCache) hint(group, addr string, term ids.Term) {
	g := c.group(group)
	if term < g.info.Term || addr == "" || term == 0 {
		return
	}
	replicas := slices.DeleteFunc(slices.Clone(g.info.Replicas), func(r Replica) bool {
		return r.BrokerID == ids.MasterBrokerID || r.Addr == addr
	})
	g.info.Replicas = slices.Insert(replicas, 0, Replica{BrokerID: ids.MasterBrokerID, Addr: addr})
	g.info.Term = term
	delete(g.suspect, addr)
}

// suspectAddr notes that a broker did not answer, trust that it did.
func (c *routeCache) suspectAddr(now time.Time, group, addr string) {
	c.group(group).suspect[addr] = now
}
func (c *routeCache) trust(group, addr string) { delete(c.group(group).suspect, addr) }

func (g *groupView) suspected(now time.Time) bool {
	at, ok := g.suspect[g.info.Master()]
	return ok && now.Sub(at) < suspectFor
}

// route returns the newest route of a topic.
func (c *routeCache) route(topic string) (Route, bool) {
	t := c.topics[topic]
	if t == nil {
		return Route{}, false
	}
	r := Route{Topic: topic}
	for _, name := range t.current {
		s := t.layout[name]
		info := c.groups[name].info
		info.Replicas = slices.Clone(info.Replicas)
		r.Groups = append(r.Groups, GroupRoute{GroupInfo: info, ReadQueues: s.read, WriteQueues: s.write, Perm: s.perm})
	}
	return r, true
}

// target is the queue that a send goes to.
type target struct {
	group string
	queue ids.QueueID
	addr  string   // of the master
	term  ids.Term // of the master
}

// any picks the turn-th of all writable queues with a master. Groups that are suspected, or named in avoid, are taken only
// when there are no others.
func (c *routeCache) any(now time.Time, topic string, turn uint64, avoid string) (target, bool) {
	t := c.topics[topic]
	if t == nil {
		return target{}, false
	}
	// A group is chosen first and a queue in it second, so that groups share evenly however many queues they have.
	var good, poor []string
	for _, name := range t.current {
		s, g := t.layout[name], c.groups[name]
		switch {
		case s.perm&permWrite == 0 || s.write < 1 || g.info.Master() == "":
		case name == avoid || g.suspected(now):
			poor = append(poor, name)
		default:
			good = append(good, name)
		}
	}
	if len(good) == 0 {
		good = poor
	}
	if len(good) == 0 {
		return target{}, false
	}
	name := good[turn%uint64(len(good))]
	queue := turn / uint64(len(good)) % uint64(t.layout[name].write)
	g := c.groups[name].info
	return target{group: name, queue: ids.QueueID(queue), addr: g.Master(), term: g.Term}, true
}

// writable tells whether the newest route of a topic has a queue to send to, be its master there or away. It is false only
// where a group says that it has the topic and takes no sends.
func (c *routeCache) writable(topic string) bool {
	t := c.topics[topic]
	return t == nil || len(t.current) == 0 || slices.ContainsFunc(t.current, func(name string) bool {
		s := t.layout[name]
		return s.perm&permWrite != 0 && s.write > 0
	})
}

// ordered picks the queue of a key. The address is "" while its master is away: the key never moves to another queue for
// that.
func (c *routeCache) ordered(topic, key string) (target, bool) {
	t := c.topics[topic]
	if t == nil {
		return target{}, false
	}
	type part struct {
		group string
		write int32
	}
	var parts []part
	var total uint64
	for name, s := range t.layout {
		if s.perm&permWrite != 0 && s.write > 0 {
			parts = append(parts, part{name, s.write})
			total += uint64(s.write)
		}
	}
	if total == 0 {
		return target{}, false
	}
	slices.SortFunc(parts, func(a, b part) int { return strings.Compare(a.group, b.group) })
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	n := h.Sum64() % total
	for _, p := range parts {
		if n < uint64(p.write) {
			g := c.group(p.group).info
			return target{group: p.group, queue: ids.QueueID(n), addr: g.Master(), term: g.Term}, true
		}
		n -= uint64(p.write)
	}
	return target{}, false
}
