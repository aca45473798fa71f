package broker

import (
	"cmp"
	"slices"

	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// connectionJSON is RocketMQ's Connection.
type connectionJSON struct {
	ClientID   string `json:"clientId"`
	ClientAddr string `json:"clientAddr"`
	Language   string `json:"language"`
	Version    int32  `json:"version"`

	// Ours: what this very member of a consumer group subscribes to. RocketMQ's clients pass it over.
	Subscriptions map[string]string `json:"subscriptions,omitempty"`
}

// subscriptionJSON is RocketMQ's SubscriptionData as a broker shows it.
type subscriptionJSON struct {
	ClassFilterMode bool     `json:"classFilterMode"`
	CodeSet         []int32  `json:"codeSet"`
	ExpressionType  string   `json:"expressionType"`
	SubString       string   `json:"subString"`
	SubVersion      int64    `json:"subVersion"`
	TagsSet         []string `json:"tagsSet"`
	Topic           string   `json:"topic"`
}

func showSubscription(s SubscriptionData) subscriptionJSON {
	j := subscriptionJSON{Topic: s.Topic, SubString: s.SubString, SubVersion: s.SubVersion, ExpressionType: s.ExpressionType, TagsSet: []string{}, CodeSet: []int32{}}
	if j.ExpressionType == "" {
		j.ExpressionType = expressionTag
	}
	if j.ExpressionType == expressionTag {
		for _, tag := range parseTagFilter(s.SubString).tags {
			j.TagsSet = append(j.TagsSet, tag)
			j.CodeSet = append(j.CodeSet, int32(message.TagsCode(tag)))
		}
	}
	return j
}

// consumerConnections takes GET_CONSUMER_CONNECTION_LIST (203): the members of a group that are connected to this replica, and what they
// subscribe to. Where they differ it shows the newest version of each topic, as RocketMQ does.
func (r *Replica) consumerConnections(req *remoting.Command) (*remoting.Command, error) {
	group, err := req.MustString("consumerGroup")
	if err != nil {
		return nil, err
	}
	type answer struct {
		Connections   []connectionJSON            `json:"connectionSet"`
		ConsumeFrom   string                      `json:"consumeFromWhere"`
		ConsumeType   string                      `json:"consumeType"`
		MessageModel  string                      `json:"messageModel"`
		Subscriptions map[string]subscriptionJSON `json:"subscriptionTable"`
	}
	r.presenceMu.Lock()
	defer r.presenceMu.Unlock()
	g := r.presence.groups[group]
	if g == nil {
		return nil, refuse(remoting.ConsumerNotOnline, "consumer group %q has no member that is connected here", group)
	}
	a := answer{Connections: connectionsOf(g.members), ConsumeFrom: g.fromWhere, ConsumeType: g.consumeType, MessageModel: g.model,
		Subscriptions: map[string]subscriptionJSON{}}
	for _, m := range g.members {
		for topic, s := range m.subs {
			if old, have := a.Subscriptions[topic]; !have || old.SubVersion < s.SubVersion {
				a.Subscriptions[topic] = showSubscription(s)
			}
		}
	}
	return jsonAnswer(a)
}

// producerConnections takes GET_PRODUCER_CONNECTION_LIST (204).
func (r *Replica) producerConnections(req *remoting.Command) (*remoting.Command, error) {
	group, err := req.MustString("producerGroup")
	if err != nil {
		return nil, err
	}
	r.presenceMu.Lock()
	defer r.presenceMu.Unlock()
	members := r.presence.producers[group]
	if len(members) == 0 {
		return nil, refuse(remoting.SystemError, "producer group %q has no member that is connected here", group)
	}
	return jsonAnswer(struct {
		Connections []connectionJSON `json:"connectionSet"`
	}{connectionsOf(members)})
}

func connectionsOf(members map[*remoting.Conn]*member) []connectionJSON {
	all := make([]connectionJSON, 0, len(members))
	for c, m := range members {
		j := connectionJSON{ClientID: m.clientID, ClientAddr: c.RemoteAddr().String(), Language: remoting.LanguageName(m.language), Version: m.version}
		for topic, s := range m.subs {
			if j.Subscriptions == nil {
				j.Subscriptions = map[string]string{}
			}
			j.Subscriptions[topic] = filterName(s)
		}
		all = append(all, j)
	}
	slices.SortFunc(all, func(a, b connectionJSON) int {
		return cmp.Or(cmp.Compare(a.ClientID, b.ClientID), cmp.Compare(a.ClientAddr, b.ClientAddr))
	})
	return all
}

// memberConn returns the connection of a member of a group.
func (r *Replica) memberConn(group, client string) (*remoting.Conn, clientInfo, bool) {
	r.presenceMu.Lock()
	defer r.presenceMu.Unlock()
	if g := r.presence.groups[group]; g != nil {
		for c, m := range g.members {
			if m.clientID == client {
				return c, m.clientInfo, true
			}
		}
	}
	return nil, clientInfo{}, false
}
