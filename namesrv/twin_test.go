package namesrv

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// twinEvent is one event of the twin's history.
type twinEvent struct {
	kind    string // register, unregister, close
	addr    string
	id      ids.BrokerID
	term    ids.Term
	hasTerm bool
	conn    ConnID
}

// twin says what the table must show by looking at the whole history: each rule is one sentence. What it has found out about
// a part of the history stays true, so it remembers that; without it the time would grow exponentially.
type twin struct {
	events    []twinEvent
	acceptedM map[int]bool
	ownerM    map[int]ConnID
	aliveM    map[[2]int]bool
}

func newTwin() *twin {
	return &twin{acceptedM: map[int]bool{}, ownerM: map[int]ConnID{}, aliveM: map[[2]int]bool{}}
}

func remember[K comparable, V any](m map[K]V, k K, find func() V) V {
	v, ok := m[k]
	if !ok {
		v = find()
		m[k] = v
	}
	return v
}

func (h *twin) accepted(i int) bool {
	return remember(h.acceptedM, i, func() bool { return h.findAccepted(i) })
}
func (h *twin) owner(i int) ConnID {
	return remember(h.ownerM, i, func() ConnID { return h.findOwner(i) })
}
func (h *twin) alive(i, now int) bool {
	return remember(h.aliveM, [2]int{i, now}, func() bool { return h.findAlive(i, now) })
}

// accepted: a registration counts when no earlier one that counted, of its address or its place, had a higher term, and when
// it is not the late word of an older connection about another place of the same term.
func (h *twin) findAccepted(i int) bool {
	e := h.events[i]
	if e.kind != "register" {
		return false
	}
	for j := range i {
		o := h.events[j]
		if (o.addr == e.addr || o.id == e.id) && o.term > e.term && h.accepted(j) {
			return false
		}
		if o.addr == e.addr && o.id != e.id && o.term == e.term && h.alive(j, i) && e.conn < h.owner(j) {
			return false
		}
	}
	return true
}

// owner is the connection whose end removes registration i: its own, or the newer one over which the same was said before.
func (h *twin) findOwner(i int) ConnID {
	e := h.events[i]
	for j := i - 1; j >= 0; j-- {
		o := h.events[j]
		if o.addr == e.addr && o.id == e.id && h.alive(j, i) {
			if o.term == e.term {
				return max(e.conn, h.owner(j))
			}
			return e.conn
		}
	}
	return e.conn
}

// alive: a registration that counts stands until another that counts takes its address or its place, it is unregistered, or
// its connection ends.
func (h *twin) findAlive(i, now int) bool {
	if !h.accepted(i) {
		return false
	}
	e := h.events[i]
	for k := i + 1; k < now; k++ {
		o := h.events[k]
		switch o.kind {
		case "register":
			if (o.addr == e.addr || o.id == e.id) && h.accepted(k) {
				return false
			}
		case "unregister":
			if o.addr == e.addr && o.id == e.id &&
				(o.hasTerm && o.term > e.term || (!o.hasTerm || o.term == e.term) && o.conn >= h.owner(i)) {
				return false
			}
		case "close":
			if o.conn == h.owner(i) {
				return false
			}
		}
	}
	return true
}

func (h *twin) places() string {
	byID := map[ids.BrokerID]string{}
	for i := range h.events {
		if h.alive(i, len(h.events)) {
			byID[h.events[i].id] = h.events[i].addr
		}
	}
	var out []string
	for id := range ids.BrokerID(8) {
		if addr, ok := byID[id]; ok {
			out = append(out, fmt.Sprintf("g/%d=%s", id, addr))
		}
	}
	return fmt.Sprint(out)
}

func (e twinEvent) apply(r *Routes) {
	switch e.kind {
	case "register":
		reg := slave(e.addr, e.id, e.term, e.conn)
		_, _ = r.Register(t0, reg)
	case "unregister":
		r.Unregister(t0, Unregistration{Group: "g", Addr: e.addr, BrokerID: e.id, Term: e.term, HasTerm: e.hasTerm, Conn: e.conn})
	case "close":
		r.ConnClosed(t0, e.conn)
	}
}

// TestTwin runs random histories on the table and its twin, and checks the table's invariants and that no term goes back.
func TestTwin(t *testing.T) {
	t.Parallel()
	runs := 1500
	if testing.Short() {
		runs = 300
	}
	for seed := range uint64(runs) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		r := NewRoutes(time.Minute)
		h := newTwin()
		shown := map[ids.BrokerID]ids.Term{}
		for range 14 {
			e := twinEvent{
				kind: []string{"register", "register", "register", "unregister", "close"}[rnd.IntN(5)],
				addr: []string{"a:1", "b:1", "c:1"}[rnd.IntN(3)], id: ids.BrokerID(rnd.IntN(3)),
				term: ids.Term(1 + rnd.IntN(4)), hasTerm: rnd.IntN(3) > 0, conn: ConnID(1 + rnd.IntN(4)),
			}
			h.events = append(h.events, e)
			e.apply(r)
			if got, want := places(r), h.places(); got != want {
				t.Fatalf("seed %d: the table has %s, its twin %s, after\n%+v", seed, got, want, h.events)
			}
			r.check(t)
			for id, p := range placesOf(r) {
				if p.term < shown[id] {
					t.Fatalf("seed %d: place %d went back to term %d, after\n%+v", seed, id, p.term, h.events)
				}
				shown[id] = p.term
			}
		}
	}
}

func placesOf(r *Routes) map[ids.BrokerID]*place {
	if g := r.groups["g"]; g != nil {
		return g.places
	}
	return nil
}

// check tests the invariants that stand on Routes.
func (r *Routes) check(t *testing.T) {
	t.Helper()
	for name, g := range r.groups {
		if len(g.places) != len(g.addrs) {
			t.Fatalf("group %s: %d places, %d addresses", name, len(g.places), len(g.addrs))
		}
		for id, p := range g.places {
			if p.id != id || g.addrs[p.addr] != p {
				t.Fatalf("group %s: place %d and address %s disagree", name, id, p.addr)
			}
			if g.termOfAddr[p.addr] < p.term || g.termOfPlace[id] < p.term {
				t.Fatalf("group %s: the terms of place %d fell", name, id)
			}
		}
		shown := g.data
		if g.rebuild(); !reflect.DeepEqual(shown, g.data) {
			t.Fatalf("group %s: answers say %+v, the table %+v", name, shown, g.data)
		}
		if len(g.places) == 0 && len(g.topics) > 0 {
			t.Fatalf("group %s has topics but no address", name)
		}
		for topic := range g.topics {
			if !slices.Contains(r.byTopic[topic], g) {
				t.Fatalf("topic %s is not listed under group %s", topic, name)
			}
		}
	}
	for topic, list := range r.byTopic {
		for _, g := range list {
			if _, ok := g.topics[topic]; !ok {
				t.Fatalf("topic %s is listed under group %s, which lacks it", topic, g.name)
			}
		}
	}
}
