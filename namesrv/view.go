package namesrv

import (
	"maps"
	"slices"
	"strings"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// BrokerData is one broker group in an answer. Term is the newest term of a master of the group, 0 when there was none.
type BrokerData struct {
	Cluster string
	Group   string // brokerName
	Addrs   []BrokerAddr
	Zone    string
	Acting  bool
	Term    ids.Term
}

// BrokerAddr is a replica of a group, sorted by ID in answers.
type BrokerAddr struct {
	ID   ids.BrokerID
	Addr string
}

// permWrite is the bit of a topic's permission that lets producers send.
const permWrite = 2

// QueueData is the share of one broker group in a topic.
type QueueData struct {
	Group       string
	ReadQueues  int32
	WriteQueues int32
	Perm        int32
	SysFlag     int32
}

// TopicRoute is the answer to 105: Queues and Brokers are sorted by the name of the group.
type TopicRoute struct {
	Queues  []QueueData
	Brokers []BrokerData
	Order   string // how many queues each group has of an ordered topic
}

// Topic returns the route of a topic and false when no group with an address has it. A group whose master is away is there
// with its slaves: consumers can go on.
func (r *Routes) Topic(name string) (TopicRoute, bool) {
	list := r.byTopic[name]
	if len(list) == 0 {
		return TopicRoute{}, false
	}
	route := TopicRoute{Queues: make([]QueueData, 0, len(list)), Brokers: make([]BrokerData, 0, len(list))}
	for _, g := range list {
		t := g.topics[name]
		if g.protected {
			t.Perm &^= permWrite
		}
		route.Queues = append(route.Queues, QueueData{
			Group: g.name, ReadQueues: t.ReadQueues, WriteQueues: t.WriteQueues, Perm: t.Perm, SysFlag: t.SysFlag,
		})
		route.Brokers = append(route.Brokers, g.data)
	}
	route.Order = r.OrderConf(name)
	return route, true
}

// rebuild makes the group's part of answers anew, after each change. Answers share it, so it is replaced and never changed.
func (g *group) rebuild() {
	d := BrokerData{Cluster: g.cluster, Group: g.name, Zone: g.zone, Acting: g.acting, Term: g.termOfPlace[ids.MasterBrokerID]}
	d.Addrs = make([]BrokerAddr, 0, len(g.places))
	for _, id := range slices.Sorted(maps.Keys(g.places)) {
		d.Addrs = append(d.Addrs, BrokerAddr{ID: id, Addr: g.places[id].addr})
	}
	g.data = d
}

// Cluster is the answer to 106: all groups that have an address, sorted by name.
func (r *Routes) Cluster() []BrokerData {
	var all []BrokerData
	for _, g := range r.groups {
		if len(g.places) > 0 {
			all = append(all, g.data)
		}
	}
	slices.SortFunc(all, func(a, b BrokerData) int { return strings.Compare(a.Group, b.Group) })
	return all
}

// Topics returns the names of all topics, sorted.
func (r *Routes) Topics() []string { return slices.Sorted(maps.Keys(r.byTopic)) }

// HasMaster tells whether a master of the group is registered, and so its topics.
func (r *Routes) HasMaster(group string) bool {
	g := r.groups[group]
	return g != nil && g.places[ids.MasterBrokerID] != nil
}

// Controllers returns the cluster id and the addresses of the controllers as the last registration named them.
func (r *Routes) Controllers() (clusterID string, addrs []string) { return r.clusterID, r.controllers }

// Counts returns how many groups and addresses are registered and how many topics there are.
func (r *Routes) Counts() (groups, addrs, topics int) {
	for _, g := range r.groups {
		if len(g.places) > 0 {
			groups++
			addrs += len(g.places)
		}
	}
	return groups, addrs, len(r.byTopic)
}
