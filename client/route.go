package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/laxjson"
)

// Route tells which broker groups have a topic. Groups are sorted by name.
type Route struct {
	Topic  string       `json:"topic"`
	Groups []GroupRoute `json:"groups"`
}

// GroupRoute is the share of one broker group in a topic.
type GroupRoute struct {
	GroupInfo
	ReadQueues  int32 `json:"readQueues"`
	WriteQueues int32 `json:"writeQueues"`
	Perm        int32 `json:"perm"` // 4 read, 2 write, 1 inherit
}

// GroupInfo tells where a broker group listens.
type GroupInfo struct {
	Cluster  string    `json:"cluster"`
	Group    string    `json:"group"` // RocketMQ's brokerName
	Term     ids.Term  `json:"term"`  // of its newest master; 0 when the name server does not tell
	Replicas []Replica `json:"replicas"`
}

// Replica is one address of a group. The master's BrokerID is 0.
type Replica struct {
	BrokerID ids.BrokerID `json:"brokerID"`
	Addr     string       `json:"addr"`
}

// Master returns the address of the group's master, "" when there is none.
func (g GroupInfo) Master() string { return g.Addr(ids.MasterBrokerID) }

// Addr returns the address of the replica with a wire id, "" when there is none.
func (g GroupInfo) Addr(id ids.BrokerID) string {
	for _, r := range g.Replicas {
		if r.BrokerID == id {
			return r.Addr
		}
	}
	return ""
}

// Cluster is the list of all broker groups, sorted by name.
type Cluster struct {
	Groups []GroupInfo `json:"groups"`
}

const (
	permWrite = 2
	permRead  = 4
)

// fieldTerms is the field of route answers that lists group=term.
const fieldTerms = "ledgermqTerms"

var errBadAnswer = errors.New("an answer that cannot be read")

type brokerDataJSON struct {
	Cluster string            `json:"cluster"`
	Group   string            `json:"brokerName"`
	Addrs   map[string]string `json:"brokerAddrs"`
}

func (b brokerDataJSON) info(terms map[string]ids.Term) (GroupInfo, error) {
	g := GroupInfo{Cluster: b.Cluster, Group: b.Group, Term: terms[b.Group]}
	for key, addr := range b.Addrs {
		id, err := strconv.ParseInt(key, 10, 64)
		if err != nil {
			return g, fmt.Errorf("%w: broker id %q", errBadAnswer, key)
		}
		g.Replicas = append(g.Replicas, Replica{BrokerID: ids.BrokerID(id), Addr: addr})
	}
	slices.SortFunc(g.Replicas, func(a, b Replica) int { return int(a.BrokerID - b.BrokerID) })
	return g, nil
}

// decodeRoute reads the answer to 105, in either dialect of JSON. terms is the value of fieldTerms.
func decodeRoute(topic string, body []byte, terms string) (Route, error) {
	var in struct {
		Queues []struct {
			Group       string `json:"brokerName"`
			ReadQueues  int32  `json:"readQueueNums"`
			WriteQueues int32  `json:"writeQueueNums"`
			Perm        int32  `json:"perm"`
		} `json:"queueDatas"`
		Brokers []brokerDataJSON `json:"brokerDatas"`
	}
	if err := decodeLax(body, &in); err != nil {
		return Route{}, err
	}
	byGroup := map[string]brokerDataJSON{}
	for _, b := range in.Brokers {
		byGroup[b.Group] = b
	}
	known := parseTerms(terms)
	route := Route{Topic: topic}
	for _, q := range in.Queues {
		b, ok := byGroup[q.Group]
		if !ok || q.ReadQueues < 0 || q.WriteQueues < 0 {
			continue // queues without a broker cannot be reached
		}
		info, err := b.info(known)
		if err != nil {
			return Route{}, err
		}
		route.Groups = append(route.Groups, GroupRoute{GroupInfo: info, ReadQueues: q.ReadQueues, WriteQueues: q.WriteQueues, Perm: q.Perm})
	}
	slices.SortFunc(route.Groups, func(a, b GroupRoute) int { return strings.Compare(a.Group, b.Group) })
	return route, nil
}

// decodeCluster reads the answer to 106.
func decodeCluster(body []byte, terms string) (Cluster, error) {
	var in struct {
		Brokers map[string]brokerDataJSON `json:"brokerAddrTable"`
	}
	if err := decodeLax(body, &in); err != nil {
		return Cluster{}, err
	}
	known := parseTerms(terms)
	var c Cluster
	for name, b := range in.Brokers {
		b.Group = name
		info, err := b.info(known)
		if err != nil {
			return Cluster{}, err
		}
		c.Groups = append(c.Groups, info)
	}
	slices.SortFunc(c.Groups, func(a, b GroupInfo) int { return strings.Compare(a.Group, b.Group) })
	return c, nil
}

func decodeLax(body []byte, into any) error {
	text, err := laxjson.Standard(body)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errBadAnswer, err)
	}
	return nil
}

// parseTerms reads group=term,group=term and skips what it cannot read.
func parseTerms(text string) map[string]ids.Term {
	terms := map[string]ids.Term{}
	for part := range strings.SplitSeq(text, ",") {
		if group, value, ok := strings.Cut(part, "="); ok {
			if n, err := strconv.ParseUint(value, 10, 64); err == nil {
				terms[group] = ids.Term(n)
			}
		}
	}
	return terms
}
