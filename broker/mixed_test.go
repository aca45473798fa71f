package broker

import (
	"slices"
	"testing"
	"time"
)

func TestWantedBesides(t *testing.T) {
	t.Parallel()
	p := newPresence[int]()
	join := func(conn int, client, model string, subs ...string) {
		h := hb(client, model, "g")
		h.ConsumerDataSet[0].SubscriptionDataSet = nil
		for i := 0; i+1 < len(subs); i += 2 {
			h.ConsumerDataSet[0].SubscriptionDataSet = append(h.ConsumerDataSet[0].SubscriptionDataSet, SubscriptionData{Topic: subs[i], SubString: subs[i+1], SubVersion: int64(conn)})
		}
		p.heartbeat(conn, clientInfo{}, h, time.Unix(0, 0))
	}
	besides := func(conn int, own string) []string {
		f := parseTagFilter(own)
		w := p.wantedBesides(conn, "g", "T", &f)
		if w == nil {
			return nil
		}
		if w.all() {
			return []string{"*"}
		}
		return w.tags
	}
	join(1, "a", "CLUSTERING", "T", "x")
	join(2, "b", "CLUSTERING", "T", " x || x ")
	if len(p.mixed) != 0 {
		t.Fatalf("equal filters differ in %v", p.mixed)
	}
	join(3, "c", "CLUSTERING", "T", "x || y || z")
	if got := p.mixed["g"]; !slices.Equal(got, []string{"T"}) {
		t.Fatalf("the group differs in %v, want T", got)
	}
	for _, tt := range []struct {
		conn int
		own  string
		want []string
	}{{1, "x", []string{"y", "z"}}, {3, "x || y || z", nil}, {9, "z", []string{"x", "y"}}, {9, "*", nil}} {
		if got := besides(tt.conn, tt.own); !slices.Equal(got, tt.want) {
			t.Errorf("besides %q of connection %d others want %v, want %v", tt.own, tt.conn, got, tt.want)
		}
	}
	join(4, "d", "CLUSTERING", "T", "*", "U", "*")
	if got := p.mixed["g"]; !slices.Equal(got, []string{"T", "U"}) {
		t.Fatalf("the group differs in %v, want T and U", got)
	}
	if got := besides(1, "x"); !slices.Equal(got, []string{"*"}) {
		t.Errorf("besides x others want %v, want all", got)
	}
	p.closed(4)
	p.closed(3)
	if len(p.mixed) != 0 || besides(1, "x") != nil {
		t.Errorf("after the others left the group differs in %v", p.mixed)
	}
	join(5, "e", "BROADCASTING", "T", "y")
	if len(p.mixed) != 0 {
		t.Errorf("members of a broadcasting group have their own progress, but differ in %v", p.mixed)
	}
}
