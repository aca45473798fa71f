package client

import (
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
)

func zlibbed(s string) []byte {
	var out bytes.Buffer
	z := zlib.NewWriter(&out)
	_, _ = z.Write([]byte(s))
	_ = z.Close()
	return out.Bytes()
}

// sample is one of the name server's golden answers.
func sample(t testing.TB, name string) []byte {
	text, err := os.ReadFile("../namesrv/testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestDecodeRoute(t *testing.T) {
	t.Parallel()
	want := Route{Topic: "t", Groups: []GroupRoute{
		{GroupInfo: GroupInfo{Cluster: "c", Group: "g1", Term: 7, Replicas: []Replica{{0, "10.0.0.1:10911"}, {2, "10.0.0.2:10911"}}}, ReadQueues: 8, WriteQueues: 4, Perm: 6},
		{GroupInfo: GroupInfo{Cluster: "c", Group: "g2", Replicas: []Replica{{3, `h"ü:1`}}}, ReadQueues: 1, WriteQueues: 1, Perm: 4},
	}}
	for _, name := range []string{"route.json", "route-old.txt"} {
		got, err := decodeRoute("t", sample(t, name), "g1=7,g9=1,rubbish,g2=x")
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, name := range []string{"cluster.json", "cluster-old.txt"} {
		got, err := decodeCluster(sample(t, name), "g1=7")
		if err != nil || len(got.Groups) != 2 || !reflect.DeepEqual(got.Groups[0], want.Groups[0].GroupInfo) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, bad := range []string{``, `x`, `{"queueDatas":7}`, `{"brokerDatas":[{"brokerName":"g","brokerAddrs":{"m":"a"}}],"queueDatas":[{"brokerName":"g"}]}`} {
		if got, err := decodeRoute("t", []byte(bad), ""); !errors.Is(err, errBadAnswer) {
			t.Errorf("%s: %+v, %v", bad, got, err)
		}
	}
}

func FuzzDecodeRoute(f *testing.F) {
	for _, name := range []string{"route.json", "route-old.txt", "cluster.json", "cluster-old.txt"} {
		f.Add(sample(f, name), "g1=7")
	}
	f.Fuzz(func(t *testing.T, body []byte, terms string) {
		r, err := decodeRoute("t", body, terms)
		if err != nil && !errors.Is(err, errBadAnswer) {
			t.Fatalf("error of another kind: %v", err)
		}
		if err == nil {
			// Invariant: whatever a name server says, the choice of a queue stays inside the route.
			c := newRouteCache()
			c.put(time.Unix(0, 0), r)
			if at, ok := c.any(time.Unix(0, 0), "t", 5, ""); ok && at.queue < 0 {
				t.Fatalf("queue %d", at.queue)
			}
			if at, ok := c.ordered("t", "key"); ok && at.queue < 0 {
				t.Fatalf("queue %d", at.queue)
			}
		}
		if _, err := decodeCluster(body, terms); err != nil && !errors.Is(err, errBadAnswer) {
			t.Fatalf("error of another kind: %v", err)
		}
	})
}

var t0 = time.Unix(1_700_000_000, 0)

func oneGroup(group string, term ids.Term, queues int32, replicas ...Replica) GroupRoute {
	return GroupRoute{GroupInfo: GroupInfo{Group: group, Term: term, Replicas: replicas}, ReadQueues: queues, WriteQueues: queues, Perm: 6}
}

func TestCacheNeverGoesBack(t *testing.T) {
	t.Parallel()
	c := newRouteCache()
	put := func(term ids.Term, replicas ...Replica) {
		c.put(t0, Route{Topic: "t", Groups: []GroupRoute{oneGroup("g", term, 1, replicas...)}})
	}
	wantMaster := func(want string) {
		t.Helper()
		if got := c.group("g").info.Master(); got != want {
			t.Fatalf("the master is %q, want %q", got, want)
		}
	}
	put(5, Replica{0, "a"}, Replica{2, "b"})
	wantMaster("a")
	c.hint("g", "b", 6)
	wantMaster("b")
	if got := c.group("g").info.Replicas; len(got) != 1 {
		t.Fatalf("replicas %v: b's old place is still there", got)
	}
	put(5, Replica{0, "a"}, Replica{2, "b"}) // a name server that lags
	wantMaster("b")
	c.hint("g", "a", 5)
	wantMaster("b")
	put(6, Replica{1, "a"}) // nobody leads any more
	wantMaster("")
	put(7, Replica{0, "c"})
	wantMaster("c")
	put(0, Replica{0, "d"}) // a Java name server tells no terms
	wantMaster("d")
	c.hint("g", "a", 6)
	wantMaster("d")
}

func TestChoice(t *testing.T) {
	t.Parallel()
	c := newRouteCache()
	c.put(t0, Route{Topic: "t", Groups: []GroupRoute{
		oneGroup("a", 1, 4, Replica{0, "a:1"}), oneGroup("b", 1, 1, Replica{0, "b:1"}), oneGroup("c", 1, 1, Replica{2, "c:2"}),
	}})
	count := func(avoid string) map[string]int {
		n := map[string]int{}
		for turn := range uint64(80) {
			at, ok := c.any(t0, "t", turn, avoid)
			if !ok || at.addr == "" {
				t.Fatal("no choice")
			}
			n[fmt.Sprintf("%s/%d", at.group, at.queue)]++
		}
		return n
	}
	if n := count(""); n["b/0"] != 40 || n["a/0"] != 10 || n["a/3"] != 10 {
		t.Fatalf("groups do not share evenly: %v", n)
	}
	if n := count("a"); n["b/0"] != 80 {
		t.Fatalf("a group to be avoided: %v", n)
	}
	c.suspectAddr(t0, "b", "b:1")
	if n := count(""); n["b/0"] != 0 {
		t.Fatalf("a suspected broker: %v", n)
	}
	if n := count("a"); n["b/0"] != 40 || n["a/0"] != 10 {
		t.Fatalf("only poor ones are left: %v", n)
	}
	if _, ok := c.any(t0, "other", 0, ""); ok {
		t.Fatal("a choice without a route")
	}
}

func TestLayoutGrace(t *testing.T) {
	t.Parallel()
	c := newRouteCache()
	full := []GroupRoute{oneGroup("a", 1, 4, Replica{0, "a:1"}), oneGroup("b", 1, 4, Replica{0, "b:1"})}
	c.put(t0, Route{Topic: "t", Groups: full})
	home := map[string]target{}
	for i := range 50 {
		key := fmt.Sprint(i)
		home[key], _ = c.ordered("t", key)
	}
	// A name server that has just started knows only one group: keys stay.
	c.put(t0.Add(layoutGrace), Route{Topic: "t", Groups: full[:1]})
	for key, at := range home {
		if got, _ := c.ordered("t", key); got.group != at.group || got.queue != at.queue {
			t.Fatalf("key %s moved from %+v to %+v", key, at, got)
		}
	}
	if at, ok := c.any(t0, "t", 1, ""); !ok || at.group != "a" {
		t.Fatalf("a send without a key goes to %+v", at)
	}
	// A group that stays away for longer is gone for good.
	c.put(t0.Add(layoutGrace+1), Route{Topic: "t", Groups: full[:1]})
	for key := range home {
		if got, _ := c.ordered("t", key); got.group != "a" {
			t.Fatalf("key %s is still at %+v", key, got)
		}
	}
}
