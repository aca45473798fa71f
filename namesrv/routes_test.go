package namesrv

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
)

var t0 = time.Unix(1_700_000_000, 0)

func master(addr string, term ids.Term, conn ConnID, topics ...string) Registration {
	r := Registration{Cluster: "c", Group: "g", Addr: addr, Term: term, Conn: conn, Whole: true, Version: DataVersion{StateVersion: int64(term), Counter: 1}}
	for _, name := range topics {
		r.Topics = append(r.Topics, TopicConfig{Name: name, ReadQueues: 4, WriteQueues: 4, Perm: 6})
	}
	return r
}

func slave(addr string, id ids.BrokerID, term ids.Term, conn ConnID) Registration {
	return Registration{Cluster: "c", Group: "g", Addr: addr, BrokerID: id, Term: term, Conn: conn, Whole: true}
}

func mustRegister(t *testing.T, r *Routes, at time.Duration, reg Registration) Registered {
	t.Helper()
	done, err := r.Register(t0.Add(at), reg)
	if err != nil {
		t.Fatalf("register %s as %d in term %d: %v", reg.Addr, reg.BrokerID, reg.Term, err)
	}
	return done
}

// places returns the table as "id=addr" in order.
func places(r *Routes) string {
	var out []string
	for _, b := range r.Cluster() {
		for _, a := range b.Addrs {
			out = append(out, fmt.Sprintf("%s/%d=%s", b.Group, a.ID, a.Addr))
		}
	}
	return fmt.Sprint(out)
}

func wantPlaces(t *testing.T, r *Routes, want string) {
	t.Helper()
	if got := places(r); got != want {
		t.Fatalf("the table has %s, want %s", got, want)
	}
}

func TestFailoverStory(t *testing.T) {
	t.Parallel()
	r := NewRoutes(120 * time.Second)
	mustRegister(t, r, 0, master("a:1", 5, 1, "orders"))
	mustRegister(t, r, 0, slave("b:1", 2, 5, 2))
	mustRegister(t, r, 0, slave("c:1", 3, 5, 3))
	wantPlaces(t, r, "[g/0=a:1 g/2=b:1 g/3=c:1]")

	// b wins term 6: its slot goes, a's address goes with place 0.
	done := mustRegister(t, r, time.Second, master("b:1", 6, 2, "orders"))
	if !done.New || done.MasterAddr != "b:1" || done.Term != 6 {
		t.Fatalf("registration of the new master: %+v", done)
	}
	wantPlaces(t, r, "[g/0=b:1 g/3=c:1]")

	// What a still says of term 5 changes nothing.
	_, err := r.Register(t0, master("a:1", 5, 1, "orders", "ghost"))
	var stale *StaleError
	if !errors.As(err, &stale) || stale.Newest != 6 || stale.MasterAddr != "b:1" {
		t.Fatalf("late registration: %v", err)
	}
	if r.Unregister(t0, Unregistration{Group: "g", Addr: "a:1", Term: 5, HasTerm: true, Conn: 1}) || len(r.ConnClosed(t0, 1)) != 0 {
		t.Fatal("the old master's end removed something")
	}
	wantPlaces(t, r, "[g/0=b:1 g/3=c:1]")

	// a comes back as a slave, and b moves to another address with a higher term.
	if done := mustRegister(t, r, 2*time.Second, slave("a:1", 1, 6, 4)); done.MasterAddr != "b:1" {
		t.Fatalf("a slave learns of master %q", done.MasterAddr)
	}
	mustRegister(t, r, 3*time.Second, master("b:2", 7, 5, "orders"))
	wantPlaces(t, r, "[g/0=b:2 g/1=a:1 g/3=c:1]")
	route, ok := r.Topic("orders")
	if !ok || len(route.Brokers) != 1 || route.Brokers[0].Term != 7 {
		t.Fatalf("route of orders: %+v", route)
	}

	// Its connection ends: the group stays readable, without a master, and the term is not forgotten.
	if gone := r.ConnClosed(t0, 5); len(gone) != 1 || gone[0].Addr != "b:2" {
		t.Fatalf("close removed %+v", gone)
	}
	wantPlaces(t, r, "[g/1=a:1 g/3=c:1]")
	if route, ok := r.Topic("orders"); !ok || route.Brokers[0].Term != 7 {
		t.Fatalf("route without a master: %+v, %v", route, ok)
	}
	if _, err := r.Register(t0, master("b:1", 6, 2, "orders")); !errors.As(err, &stale) {
		t.Fatalf("term 6 came back after term 7: %v", err)
	}
}

func TestSlaveTermsDoNotShutOutTheMaster(t *testing.T) {
	t.Parallel()
	r := NewRoutes(time.Minute)
	// A replica that is cut off may have campaigned into a higher term than that of the living master.
	mustRegister(t, r, 0, slave("c:1", 3, 9, 1))
	mustRegister(t, r, 0, master("a:1", 5, 2, "orders"))
	wantPlaces(t, r, "[g/0=a:1 g/3=c:1]")
}

func TestOneTermTwoRoles(t *testing.T) {
	t.Parallel()
	// In term 7 b stood for election as a follower, led, and stepped down. Its connections tell the order.
	r := NewRoutes(time.Minute)
	mustRegister(t, r, 0, master("b:1", 7, 2))
	var stale *StaleError
	if _, err := r.Register(t0, slave("b:1", 2, 7, 1)); !errors.As(err, &stale) {
		t.Fatalf("a late packet of an older connection was taken: %v", err)
	}
	wantPlaces(t, r, "[g/0=b:1]")
	mustRegister(t, r, 0, slave("b:1", 2, 7, 2))
	wantPlaces(t, r, "[g/2=b:1]")
}

func TestReconnectSurvivesTheOldConnectionsEnd(t *testing.T) {
	t.Parallel()
	r := NewRoutes(time.Minute)
	mustRegister(t, r, 0, master("a:1", 5, 1, "orders"))
	mustRegister(t, r, 0, master("a:1", 5, 2, "orders"))
	mustRegister(t, r, 0, master("a:1", 5, 1, "orders")) // late
	r.ConnClosed(t0, 1)
	if r.Unregister(t0, Unregistration{Group: "g", Addr: "a:1", Conn: 1}) {
		t.Fatal("an unregistration over the older connection was taken")
	}
	wantPlaces(t, r, "[g/0=a:1]")
	if !r.Unregister(t0, Unregistration{Group: "g", Addr: "a:1", Conn: 2}) {
		t.Fatal("an unregistration over the newest connection was not taken")
	}
	wantPlaces(t, r, "[]")
}

func TestTopicsComeFromMasters(t *testing.T) {
	t.Parallel()
	r := NewRoutes(time.Minute)
	reg := slave("b:1", 2, 5, 1)
	reg.Topics = []TopicConfig{{Name: "ghost"}, {Name: "ghost2"}}
	mustRegister(t, r, 0, reg)
	if r.Topics() != nil {
		t.Fatalf("a slave brought topics: %v", r.Topics())
	}

	// Ours send the whole table: what is missing is gone. A lower counter of the term is a late packet.
	first := master("a:1", 5, 2, "x", "y")
	second := master("a:1", 5, 2, "y", "z")
	second.Version.Counter = 2
	mustRegister(t, r, 0, first)
	mustRegister(t, r, 0, second)
	mustRegister(t, r, 0, first)
	if got := fmt.Sprint(r.Topics()); got != "[y z]" {
		t.Fatalf("topics %s, want [y z]", got)
	}
	// A new term begins anew, also with a lower counter.
	third := master("a:1", 6, 2, "x")
	mustRegister(t, r, 0, third)
	if got := fmt.Sprint(r.Topics()); got != "[x]" {
		t.Fatalf("topics %s, want [x]", got)
	}
	// 216 holds until the master says otherwise.
	r.DeleteTopic("x", "other")
	if got := fmt.Sprint(r.Topics()); got != "[x]" {
		t.Fatalf("deleting in another cluster: topics %s", got)
	}
	r.DeleteTopic("x", "c")
	if r.Topics() != nil {
		t.Fatalf("after the deletion: %v", r.Topics())
	}
	mustRegister(t, r, 0, third)
	if got := fmt.Sprint(r.Topics()); got != "[x]" {
		t.Fatalf("topics %s, want [x]", got)
	}
}

func TestJavaBrokerSendsParts(t *testing.T) {
	t.Parallel()
	r := NewRoutes(time.Minute)
	part := master("a:1", 0, 1, "new")
	part.Whole = false
	if _, err := r.Register(t0, part); !errors.Is(err, ErrPart) {
		t.Fatalf("one topic of an unknown broker: %v, want ErrPart", err)
	}
	wantPlaces(t, r, "[]")
	all := master("a:1", 0, 1, "x", "y")
	all.Whole = false
	mustRegister(t, r, 0, all)
	mustRegister(t, r, 0, part)
	if got := fmt.Sprint(r.Topics()); got != "[new x y]" {
		t.Fatalf("topics %s, want [new x y]", got)
	}
	// Without terms the last address of a place wins.
	moved := master("a:2", 0, 2, "x", "y")
	moved.Whole = false
	mustRegister(t, r, 0, moved)
	wantPlaces(t, r, "[g/0=a:2]")
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	r := NewRoutes(120 * time.Second)
	mustRegister(t, r, 0, master("a:1", 5, 1, "x"))
	quick := slave("b:1", 2, 5, 2)
	quick.Timeout = 10 * time.Second
	mustRegister(t, r, 0, quick)
	if gone := r.Expire(t0.Add(10 * time.Second)); len(gone) != 0 {
		t.Fatalf("expired in time: %+v", gone)
	}
	if gone := r.Expire(t0.Add(11 * time.Second)); len(gone) != 1 || gone[0].Addr != "b:1" {
		t.Fatalf("expired after its own 10 s: %+v", gone)
	}
	if !r.Touch(t0.Add(100*time.Second), "a:1") || r.Touch(t0, "b:1") {
		t.Fatal("touch")
	}
	if gone := r.Expire(t0.Add(200 * time.Second)); len(gone) != 0 {
		t.Fatalf("expired though it was touched: %+v", gone)
	}
	if gone := r.Expire(t0.Add(221 * time.Second)); len(gone) != 1 {
		t.Fatalf("not expired: %+v", gone)
	}
	if _, ok := r.Topic("x"); ok {
		t.Fatal("a topic without an address has a route")
	}
	// The term is kept for a day.
	var stale *StaleError
	if _, err := r.Register(t0.Add(ForgetAfter), master("a:1", 4, 3, "x")); !errors.As(err, &stale) {
		t.Fatalf("a lower term after expiry: %v", err)
	}
	r.Expire(t0.Add(221*time.Second + ForgetAfter + 1))
	mustRegister(t, r, 0, master("a:1", 4, 3, "x"))
}

func TestBounds(t *testing.T) {
	t.Parallel()
	r := NewRoutes(time.Minute)
	for i := range MaxAddressesOfGroup {
		mustRegister(t, r, 0, slave(fmt.Sprintf("a:%d", i), ids.BrokerID(i), ids.Term(i), 1))
	}
	if _, err := r.Register(t0, slave("b:1", 1000, 5, 1)); !errors.Is(err, ErrFull) {
		t.Fatalf("one address too many: %v", err)
	}
	// Of those that went the lowest term makes room.
	for _, i := range []int{7, 3} {
		r.Unregister(t0, Unregistration{Group: "g", Addr: fmt.Sprintf("a:%d", i), BrokerID: ids.BrokerID(i), Conn: 1})
	}
	mustRegister(t, r, 0, slave("b:1", 1000, 5, 1))
	g := r.groups["g"]
	if _, ok := g.termOfAddr["a:3"]; ok || g.termOfAddr["a:7"] != 7 || len(g.termOfAddr) != MaxAddressesOfGroup || len(g.termOfPlace) != MaxAddressesOfGroup {
		t.Fatal("the wrong address was forgotten")
	}
}

// TestPermutations plays a failover in every order in which the network can deliver it. a leads term 5 and stops; b, a slave,
// leads term 6; a comes back as its slave.
func TestPermutations(t *testing.T) {
	t.Parallel()
	type event struct {
		name string
		do   func(*Routes)
	}
	register := func(reg Registration) func(*Routes) {
		return func(r *Routes) { _, _ = r.Register(t0, reg) }
	}
	story := []event{
		{"a leads 5", register(master("a:1", 5, 1, "x"))},
		{"b follows in 5", register(slave("b:1", 2, 5, 2))},
		{"a unregisters with 5", func(r *Routes) {
			r.Unregister(t0, Unregistration{Group: "g", Addr: "a:1", Term: 5, HasTerm: true, Conn: 1})
		}},
		{"b's place of 5 unregisters", func(r *Routes) {
			r.Unregister(t0, Unregistration{Group: "g", Addr: "b:1", BrokerID: 2, Term: 5, HasTerm: true, Conn: 2})
		}},
		{"a's connection ends", func(r *Routes) { r.ConnClosed(t0, 1) }},
		{"b leads 6", register(master("b:1", 6, 2, "x"))},
		{"a follows in 6", register(slave("a:1", 1, 6, 3))},
	}
	runs := 0
	var play func(order []int, rest []int)
	play = func(order, rest []int) {
		if len(rest) > 0 {
			for i := range rest {
				next := slices.Concat(rest[:i], rest[i+1:])
				play(append(slices.Clone(order), rest[i]), next)
			}
			return
		}
		runs++
		r := NewRoutes(time.Minute)
		var newest, shown ids.Term
		slaveA := false
		for n, i := range order {
			story[i].do(r)
			if story[i].name == "b leads 6" {
				newest = 6
			}
			slaveA = slaveA || story[i].name == "a follows in 6"
			var now ids.Term
			addrs := map[ids.BrokerID]string{}
			for _, b := range r.Cluster() {
				for _, a := range b.Addrs {
					addrs[a.ID] = a.Addr
					if a.ID == 0 {
						now = b.Term
					}
				}
			}
			fail := func(what string) {
				var names []string
				for _, i := range order[:n+1] {
					names = append(names, story[i].name)
				}
				t.Fatalf("%s\nafter %q\nthe table has %s", what, names, places(r))
			}
			switch {
			case now != 0 && now < shown:
				fail("the master's term went back")
			case newest == 6 && (addrs[0] != "b:1" || now != 6):
				fail("the master of term 6 is hidden")
			case newest == 6 && addrs[2] != "":
				fail("the new master's old place is still there")
			case slaveA && addrs[1] != "a:1":
				fail("a's new place was removed by what a said before")
			case slaveA && addrs[0] == "a:1":
				fail("a leads though it said in a higher term that it follows")
			}
			shown = max(shown, now)
		}
	}
	play(nil, []int{0, 1, 2, 3, 4, 5, 6})
	if runs != 5040 {
		t.Fatalf("%d orders were played, want 5040", runs)
	}
}
