package broker

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func hb(client, model string, groups ...string) HeartbeatData {
	h := HeartbeatData{ClientID: client}
	for _, g := range groups {
		h.ConsumerDataSet = append(h.ConsumerDataSet, ConsumerData{GroupName: g, MessageModel: model,
			SubscriptionDataSet: []SubscriptionData{{Topic: "T", SubString: "*", SubVersion: 1}}})
	}
	return h
}

func TestPresenceTellsOfChangesOnly(t *testing.T) {
	t.Parallel()
	p := newPresence[int]()
	now := time.Unix(1000, 0)
	if got := p.heartbeat(1, clientInfo{}, hb("a", "CLUSTERING", "g"), now); !slices.Equal(got, []string{"g"}) {
		t.Fatalf("a first member changed %v, want g", got)
	}
	if got := p.heartbeat(1, clientInfo{}, hb("a", "CLUSTERING", "g"), now); len(got) != 0 {
		t.Fatalf("the same heartbeat again changed %v", got)
	}
	more := hb("a", "CLUSTERING", "g")
	more.ConsumerDataSet[0].SubscriptionDataSet = append(more.ConsumerDataSet[0].SubscriptionDataSet, SubscriptionData{Topic: "U", SubVersion: 1})
	if got := p.heartbeat(1, clientInfo{}, more, now); !slices.Equal(got, []string{"g"}) {
		t.Fatalf("a new topic changed %v, want g", got)
	}
	if got := p.heartbeat(2, clientInfo{}, hb("b", "CLUSTERING", "g"), now); !slices.Equal(got, []string{"g"}) {
		t.Fatalf("a second member changed %v, want g", got)
	}
	if got := p.members("g"); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("members %v, want a and b", got)
	}
	if got := p.closed(1); !slices.Equal(got, []string{"g"}) {
		t.Fatalf("a closed connection changed %v, want g", got)
	}
	if got := p.expire(now.Add(memberExpiry)); len(got) != 0 {
		t.Fatalf("a member expired at its limit: %v", got)
	}
	if got := p.expire(now.Add(memberExpiry + time.Millisecond)); !slices.Equal(got, []string{"g"}) {
		t.Fatalf("silence past the limit changed %v, want g", got)
	}
	if got := p.members("g"); got != nil {
		t.Fatalf("members %v, want none", got)
	}
}

func TestPresenceNeverPushesToBroadcastingGroups(t *testing.T) {
	t.Parallel()
	p := newPresence[int]()
	p.heartbeat(1, clientInfo{}, hb("a", "BROADCASTING", "g"), time.Unix(0, 0))
	p.heartbeat(2, clientInfo{}, hb("b", "CLUSTERING", "h"), time.Unix(0, 0))
	if got := p.listeners("g"); got != nil {
		t.Fatalf("a broadcasting group has listeners %v", got)
	}
	if got := p.listeners("h"); !slices.Equal(got, []int{2}) {
		t.Fatalf("listeners %v, want 2", got)
	}
}

// A member is served by its own filter, also while another one of its group has another: no message is passed over because of
// somebody else's subscription.
func TestPresenceKeepsEachMembersSubscription(t *testing.T) {
	t.Parallel()
	p := newPresence[int]()
	a, b := hb("a", "CLUSTERING", "g"), hb("b", "CLUSTERING", "g")
	a.ConsumerDataSet[0].SubscriptionDataSet[0] = SubscriptionData{Topic: "T", SubString: "red", SubVersion: 5}
	b.ConsumerDataSet[0].SubscriptionDataSet[0] = SubscriptionData{Topic: "T", SubString: "blue", SubVersion: 7}
	p.heartbeat(1, clientInfo{}, a, time.Unix(0, 0))
	p.heartbeat(2, clientInfo{}, b, time.Unix(0, 0))
	for conn, want := range map[int]string{1: "red", 2: "blue", 3: "blue"} {
		if s, known, found := p.subscription(conn, "g", "T"); !known || !found || s.SubString != want {
			t.Errorf("connection %d has the filter %q (%v, %v), want %q", conn, s.SubString, known, found, want)
		}
	}
	if _, known, _ := p.subscription(1, "other", "T"); known {
		t.Error("an unknown group is known")
	}
}

// TestPresenceAgainstATwin compares with a plain list of facts under random events.
func TestPresenceAgainstATwin(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := newPresence[int]()
		type fact struct {
			conn  int
			group string
		}
		twin, makers := map[fact]time.Time{}, map[fact]time.Time{}
		now := time.Unix(0, 0)
		for step := range 300 {
			conn, group := r.IntN(5), fmt.Sprintf("g%d", r.IntN(4))
			switch r.IntN(5) {
			case 0, 1:
				h := hb(fmt.Sprintf("c%d", conn), "CLUSTERING", group)
				h.ConsumerDataSet[0].SubscriptionDataSet[0].SubString = []string{"*", "a", "a || b", "b||a"}[r.IntN(4)]
				h.ConsumerDataSet[0].SubscriptionDataSet[0].SubVersion = int64(step)
				if maker := fmt.Sprintf("g%d", r.IntN(4)); r.IntN(2) == 0 {
					h.ProducerDataSet = []ProducerData{{maker}}
					makers[fact{conn, maker}] = now
				}
				p.heartbeat(conn, clientInfo{}, h, now)
				twin[fact{conn, group}] = now
			case 2:
				if maker := fmt.Sprintf("g%d", r.IntN(4)); r.IntN(2) == 0 {
					p.unregister(conn, maker, "")
					delete(makers, fact{conn, maker})
				}
				p.unregister(conn, "", group)
				delete(twin, fact{conn, group})
			case 3:
				p.closed(conn)
				for _, m := range []map[fact]time.Time{twin, makers} {
					maps.DeleteFunc(m, func(f fact, _ time.Time) bool { return f.conn == conn })
				}
			default:
				now = now.Add(time.Duration(r.IntN(60)) * time.Second)
				p.expire(now)
				for _, m := range []map[fact]time.Time{twin, makers} {
					maps.DeleteFunc(m, func(_ fact, seen time.Time) bool { return now.Sub(seen) > memberExpiry })
				}
			}
			for _, g := range p.producers {
				for c, m := range g {
					if m.clientID != fmt.Sprintf("c%d", c) {
						t.Fatalf("seed %d step %d: producer %d is client %s", seed, step, c, m.clientID)
					}
				}
			}
			for c := range 5 {
				for g := range 4 {
					group := fmt.Sprintf("g%d", g)
					if _, want := makers[fact{c, group}]; want != (p.producers[group][c] != nil) {
						t.Fatalf("seed %d step %d: connection %d is a producer of %s: %v, want %v", seed, step, c, group, !want, want)
					}
				}
			}
			for g := range 4 {
				group := fmt.Sprintf("g%d", g)
				var want []string
				for f := range twin {
					if f.group == group {
						want = append(want, fmt.Sprintf("c%d", f.conn))
					}
				}
				slices.Sort(want)
				if got := p.members(group); !slices.Equal(got, want) {
					t.Fatalf("seed %d step %d: members of %s are %v, want %v", seed, step, group, got, want)
				}
			}
			p.check(t)
		}
	}
}

// check tests the invariants of presence.
func (p *presence[C]) check(t *testing.T) {
	t.Helper()
	of := map[C]int{}
	for name, g := range p.groups {
		if len(g.members) == 0 {
			t.Fatalf("group %s is empty", name)
		}
		for c := range g.members {
			of[c]++
			if !p.conns[c][name] {
				t.Fatalf("connection %v does not know its group %s", c, name)
			}
		}
	}
	for name, g := range p.groups {
		if want := g.mixture(); !slices.Equal(p.mixed[name], want) {
			t.Fatalf("group %s is noted as mixed in %v, and is in %v", name, p.mixed[name], want)
		}
	}
	for name := range p.mixed {
		if p.groups[name] == nil {
			t.Fatalf("group %s is noted as mixed, and is gone", name)
		}
	}
	made := map[C]int{}
	for name, g := range p.producers {
		if len(g) == 0 {
			t.Fatalf("producer group %s is empty", name)
		}
		for c := range g {
			made[c]++
			if !p.producing[c][name] {
				t.Fatalf("connection %v does not know its producer group %s", c, name)
			}
		}
	}
	for c, groups := range p.producing {
		if len(groups) == 0 || len(groups) != made[c] {
			t.Fatalf("connection %v has %d producer groups, is in %d", c, len(groups), made[c])
		}
	}
	for c, groups := range p.conns {
		if len(groups) == 0 || len(groups) != of[c] {
			t.Fatalf("connection %v is in %d groups, has members in %d", c, len(groups), of[c])
		}
	}
}

// named is a heartbeat with producer and consumer groups from first on.
func named(first, producers, consumers int) *HeartbeatData {
	h := &HeartbeatData{ClientID: "a"}
	for i := range producers {
		h.ProducerDataSet = append(h.ProducerDataSet, ProducerData{fmt.Sprintf("p%d", first+i)})
	}
	for i := range consumers {
		h.ConsumerDataSet = append(h.ConsumerDataSet, ConsumerData{GroupName: fmt.Sprintf("c%d", first+i)})
	}
	return h
}

// A connection has at most maxListed groups of a kind, however many heartbeats name them; those that it has it may name again.
func TestPresenceBoundsAConnection(t *testing.T) {
	t.Parallel()
	for kind, of := range map[string]func(first, n int) *HeartbeatData{
		"producers": func(first, n int) *HeartbeatData { return named(first, n, 0) },
		"consumers": func(first, n int) *HeartbeatData { return named(first, 0, n) },
	} {
		p := newPresence[int]()
		say := func(c int, h *HeartbeatData, want bool) {
			t.Helper()
			err := p.fits(c, h)
			if (err == nil) != want {
				t.Errorf("%s: it fits: %v, want %v", kind, err, want)
			}
			if err == nil {
				p.heartbeat(c, clientInfo{}, *h, time.Unix(0, 0))
			}
			p.check(t)
		}
		say(1, of(0, maxListed-1), true)
		say(1, of(0, maxListed-1), true)
		say(1, of(maxListed-2, 3), false)
		twice := of(maxListed-1, 1)
		twice.ProducerDataSet = append(twice.ProducerDataSet, twice.ProducerDataSet...)
		twice.ConsumerDataSet = append(twice.ConsumerDataSet, twice.ConsumerDataSet...)
		say(1, twice, true)
		say(1, of(maxListed, 1), false)
		say(2, of(maxListed, 1), true)
		p.unregister(1, "p7", "c7")
		say(1, of(maxListed, 1), true)
		p.closed(1)
		p.closed(2)
		if len(p.producers) != 0 || len(p.groups) != 0 || len(p.producing) != 0 || len(p.conns) != 0 {
			t.Errorf("%s: %d producer groups and %d consumer groups of nobody", kind, len(p.producers), len(p.groups))
		}
	}
}

// BenchmarkPresenceClosed answers: what does it cost to forget a connection with one producer group while others have 100,000? Expected: a
// heartbeat and a few look-ups in maps, a microsecond, whatever the others have.
func BenchmarkPresenceClosed(b *testing.B) {
	p := newPresence[int]()
	for c := range 100 {
		p.heartbeat(c+1, clientInfo{}, *named(c*1000, 1000, 0), time.Unix(0, 0))
	}
	h := named(0, 1, 0)
	for b.Loop() {
		p.heartbeat(0, clientInfo{}, *h, time.Unix(0, 0))
		p.closed(0)
	}
}

func TestTagFilter(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string][]string{"": nil, " * ": nil, "||": nil, "a": {"a"}, "a || b": {"a", "b"}, " a||b ||": {"a", "b"}} {
		if f := parseTagFilter(expr); !slices.Equal(f.tags, want) {
			t.Errorf("%q has the tags %q, want %q", expr, f.tags, want)
		}
	}
}
