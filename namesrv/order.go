package namesrv

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// orderNamespace is the namespace of key-value configuration under which RocketMQ keeps how many queues an ordered topic has on each
// broker, so that producers choose queues in the same way while a broker is away. Here it follows from the topics that brokers register
// as ordered ones, and is never written.
const orderNamespace = "ORDER_TOPIC_CONFIG"

// OrderConf is the order configuration of a topic, group:queues joined by semicolons; "" when no group has it as an ordered one.
func (r *Routes) OrderConf(topic string) string {
	var conf []byte
	for _, g := range r.byTopic[topic] {
		t := g.topics[topic]
		if !t.Order {
			continue
		}
		if len(conf) > 0 {
			conf = append(conf, ';')
		}
		conf = append(append(conf, g.name...), ':')
		conf = strconv.AppendInt(conf, int64(t.WriteQueues), 10)
	}
	return string(conf)
}

// OrderConfs are the order configurations of all ordered topics.
func (r *Routes) OrderConfs() map[string]string {
	all := map[string]string{}
	for topic := range r.byTopic {
		if conf := r.OrderConf(topic); conf != "" {
			all[topic] = conf
		}
	}
	return all
}

// sameOrder compares two order configurations: tools write them in any order, with a semicolon at the end or not.
func sameOrder(a, b string) bool {
	parts := func(s string) []string {
		list := strings.FieldsFunc(s, func(c rune) bool { return c == ';' })
		slices.Sort(list)
		return list
	}
	return slices.Equal(parts(a), parts(b))
}

// ProtectGroup takes writability out of all routes of a group, or gives it back, until the other is asked for or this server ends; what the
// group registers meanwhile changes nothing of it. It returns how many topics the group has here, 0 for a group that is not known.
func (r *Routes) ProtectGroup(name string, protect bool) (topics int) {
	g := r.groups[name]
	if g == nil {
		return 0
	}
	g.protected = protect
	return len(g.topics)
}

// TopicsOf returns the names of the topics that a group of the cluster has and that pass is, sorted.
func (r *Routes) TopicsOf(cluster string, is func(TopicConfig) bool) []string {
	names := map[string]struct{}{}
	for _, g := range r.groups {
		if cluster != "" && g.cluster != cluster {
			continue
		}
		for name, t := range g.topics {
			if is(t) {
				names[name] = struct{}{}
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}
