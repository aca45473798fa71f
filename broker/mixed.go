package broker

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/remoting"
)

// Members of one group share its queues and its progress. So a member whose filter is narrower than another one's would pass over messages
// that the other wants, for the whole group. RocketMQ does that. Here a pull stops before such a message and is refused there, until the
// members agree, or a member that wants it has the queue: it waits, and is not lost. A group whose filter is widened member by member goes
// on all the time, since those who want all are never stopped.
//
// What counts are the members that are connected to the replica that serves the pull; clients connect to all.

// mixture is in what the subscriptions of a group's members differ: topics, in order.
func (g *consumerGroup[C]) mixture() []string {
	if g.model == modelBroadcasting || len(g.members) < 2 {
		return nil
	}
	type seen struct {
		filter  string
		members int
		differs bool
	}
	topics, members := map[string]*seen{}, 0
	for _, m := range g.members {
		members++
		for topic, s := range m.subs {
			f := filterName(s)
			if t := topics[topic]; t == nil {
				topics[topic] = &seen{filter: f, members: 1}
			} else {
				t.members++
				t.differs = t.differs || t.filter != f
			}
		}
	}
	var list []string
	for topic, t := range topics {
		if t.differs || t.members < members {
			list = append(list, topic)
		}
	}
	slices.Sort(list)
	return list
}

// filterName is the same for filters that let the same messages pass.
func filterName(s SubscriptionData) string {
	if s.ExpressionType != "" && s.ExpressionType != expressionTag {
		return s.ExpressionType + " " + s.SubString
	}
	f := parseTagFilter(s.SubString)
	if f.all() {
		return "*"
	}
	slices.Sort(f.tags)
	return strings.Join(slices.Compact(f.tags), " || ")
}

// remix notes how a group's members differ now.
func (p *presence[C]) remix(group string) {
	if g := p.groups[group]; g != nil {
		if m := g.mixture(); len(m) > 0 {
			p.mixed[group] = m
			return
		}
	}
	delete(p.mixed, group)
}

// wantedBesides returns what other members of the group want of a topic that own does not let pass; nil: nothing.
func (p *presence[C]) wantedBesides(c C, group, topic string, own *tagFilter) *tagFilter {
	if own.all() || !slices.Contains(p.mixed[group], topic) {
		return nil
	}
	g := p.groups[group]
	self := ""
	if m := g.members[c]; m != nil {
		self = m.clientID
	}
	var more []string
	for _, m := range g.members {
		s, subscribed := m.subs[topic]
		if !subscribed || m.clientID == self || s.ExpressionType != "" && s.ExpressionType != expressionTag {
			continue
		}
		f := parseTagFilter(s.SubString)
		if f.all() {
			return &tagFilter{}
		}
		for _, t := range f.tags {
			if !slices.Contains(own.tags, t) {
				more = append(more, t)
			}
		}
	}
	if len(more) == 0 {
		return nil
	}
	slices.Sort(more)
	f := parseTagFilter(strings.Join(slices.Compact(more), "||"))
	return &f
}

// wantedBesides fills in p.others.
func (r *Replica) wantedBesides(p *pullRequest) *tagFilter {
	if r.mixedGroups.Load() == 0 {
		return nil
	}
	r.presenceMu.Lock()
	defer r.presenceMu.Unlock()
	return r.presence.wantedBesides(p.conn, p.group, p.topic, &p.filter)
}

// keptBack tells whether the message of an entry, which is none for the pull, must not be passed over. s.body is as it was afterwards.
func (r *Replica) keptBack(e index.Entry, p *pullRequest, at ids.QueueOffset, s *pullScratch) (bool, error) {
	if p.others == nil || !p.others.mayMatch(e.TagsCode) {
		return false, nil
	}
	before := len(s.body)
	q := *p
	q.filter = *p.others
	n, err := r.read([]index.Entry{e}, &q, at, s)
	s.body = s.body[:before]
	return n > 0, err
}

// keepBack is the answer of a pull that would have to pass over a message.
func (r *Replica) keepBack(p *pullRequest, f *found) {
	r.counters.keptBack.Add(1)
	f.code = remoting.SystemError
	f.remark = fmt.Sprintf("the message at %d of queue %d of topic %s is for another member of consumer group %s, whose members subscribe to different tags: it is not passed over, give all members the same subscription", f.next, p.queue, p.topic, p.group)
}

// noteMixed tells of groups whose members began to differ, or agree again. groups are those in which something changed.
func (r *Replica) noteMixed(groups []string) {
	type change struct {
		group   string
		topics  []string
		members map[string]string
	}
	var changes []change
	r.presenceMu.Lock()
	for _, g := range groups {
		now := r.presence.mixed[g]
		if slices.Equal(now, r.mixedTold[g]) {
			continue
		}
		c := change{group: g, topics: slices.Clone(now)}
		if len(now) > 0 {
			r.mixedTold[g] = c.topics
			c.members = r.presence.groups[g].filters()
		} else {
			delete(r.mixedTold, g)
		}
		changes = append(changes, c)
	}
	r.mixedGroups.Store(int64(len(r.presence.mixed)))
	r.presenceMu.Unlock()
	for _, c := range changes {
		if len(c.topics) == 0 {
			r.log.Info().Str("consumer_group", c.group).Msg("the members of a consumer group subscribe to the same again")
			continue
		}
		e := r.log.Warn().Str("consumer_group", c.group).Strs("topics", c.topics)
		for _, id := range slices.Sorted(maps.Keys(c.members))[:min(len(c.members), maxTellFilters)] {
			e = e.Str("member "+id, c.members[id])
		}
		e.Msg("the members of a consumer group subscribe to different topics or tags: what one wants and another does not is kept back in the queues of the other")
	}
}

// maxTellFilters is how many members a line of the log shows.
const maxTellFilters = 10

// filters are what each member subscribes to, in one line.
func (g *consumerGroup[C]) filters() map[string]string {
	all := map[string]string{}
	for _, m := range g.members {
		var list []string
		for topic, s := range m.subs {
			list = append(list, topic+": "+filterName(s))
		}
		slices.Sort(list)
		all[m.clientID] = strings.Join(list, ", ")
	}
	return all
}

// collectMixed gives the groups whose members differ to a metric: a few, so that its labels stay few.
func (r *Replica) collectMixed(d *prometheus.Desc, gauge func(*prometheus.Desc, float64, ...string)) {
	const most = 100
	r.presenceMu.Lock()
	groups := slices.Sorted(maps.Keys(r.presence.mixed))
	r.presenceMu.Unlock()
	for _, g := range groups[:min(len(groups), most)] {
		gauge(d, 1, r.group, g)
	}
}
