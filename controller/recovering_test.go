package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// testify tells a controller that waits for a recovery what the node has, until stop is called, and holds to what it is asked for.
func (n *fakeNode) testify(cluster []byte, controllers []string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		var held *pb.Recovery
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			turn, end := context.WithTimeout(ctx, 2*time.Second)
			if _, err := n.register(turn); errors.Is(err, ErrAwaitsRecovery) {
				t := &pb.Testimony{NodeId: n.id, CheckCode: n.code[:], ClusterId: cluster, Level: 2, Recovery: held, Controllers: controllers}
				for id, r := range n.replicas {
					t.Replicas = append(t.Replicas, &pb.ReplicaTestimony{GroupId: r.group, GroupName: r.name, ReplicaId: id, Slot: 1, Incarnation: r.incarnation[:], Starts: r.starts, EpochRecord: r.record})
				}
				if resp, err := n.client.Testify(turn, t); err == nil && resp.GetHoldTo() != nil {
					held = resp.GetHoldTo()
					n.client.HoldTo(held)
				}
			}
			end()
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	n.t.Cleanup(stop) // of a test that gives up
	return stop
}

// Two controllers that wait outbid each other only while both are executed, and the one that is executed then wins.
func TestRecoverRivals(t *testing.T) {
	t.Parallel()
	a, b := newRecovering(), newRecovering()
	var held *pb.Recovery
	hear := func(r *recovering) uint32 {
		t.Helper()
		hold, err := r.hear(time.Unix(1, 0), &pb.Testimony{NodeId: "n1", Recovery: held})
		must(t, err)
		if hold.GetNumber() > held.GetNumber() {
			held = hold
		}
		return held.GetNumber()
	}
	if n := hear(a); n != 0 {
		t.Fatalf("nobody asks, and the node holds to %d", n)
	}
	a.ask()
	b.ask()
	for want := range uint32(6) {
		if n := hear([]*recovering{a, b}[want%2]); n != want+1 {
			t.Fatalf("the node holds to %d, want %d", n, want+1)
		}
	}
	a.askNoMore()
	b.askNoMore()
	for range 3 {
		if n := hear(a) + hear(b); n != 12 {
			t.Fatalf("nobody asks any more, and the node holds to another one: %v", held)
		}
	}
	a.ask()
	for range 3 {
		if n := hear(a) + hear(b); n != 14 || string(held.GetToken()) != string(a.token[:]) {
			t.Fatalf("the one that asks does not win: %v", held)
		}
	}
	a.done = true
	a.askNoMore()
	if hear(a); !a.asks {
		t.Error("who is recovered lets the nodes go")
	}
}

// A controller with an empty folder becomes the first one of a cluster again, while none of the old ones answers. Those of before, which
// come back with their data, are believed by no node that has heard of it.
func TestRecoverServer(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	c.leader()
	n := newNode(t, c, "n1")
	n.mustRegister()
	if _, err := c.client().CreateGroup(ctxFor(t), request("g", 1, 1, "n1")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a record", func() error {
		n.mustBeat()
		for _, r := range n.replicas {
			if len(r.record) > 0 {
				return nil
			}
		}
		return errors.New("none yet")
	})
	members, err := c.client().Members(ctxFor(t))
	if err != nil {
		t.Fatal(err)
	}

	c.dirs["r1"] = t.TempDir()
	c.tune = func(o *Options) {
		if o.ID == "r1" {
			o.Bootstrap, o.Recover = false, true
		}
		o.Peers = nil
	}
	c.addrs["r1"] = "127.0.0.1:0"
	l := c.listen("r1")
	c.addrs = map[string]string{"c1": c.addrs["c1"], "r1": l.Addr().String()}
	r := c.startOn("r1", l)
	recovery := dial(t, []string{c.addrs["r1"]}, c.secret)
	ask := func(execute bool) error {
		_, err := recovery.Recover(ctxFor(t), &pb.RecoverRequest{Execute: execute})
		return err
	}
	refused := func(err error, kind error, want string) {
		t.Helper()
		if !errors.Is(err, kind) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	refused(ask(true), ErrNotNow, "no node of a cluster has testified yet")
	if err := r.Ready(); !errors.Is(err, errAwaitsRecovery) {
		t.Errorf("it is ready: %v", err)
	}

	n.client = dial(t, []string{c.addrs["r1"]}, c.secret) // it does not look elsewhere
	stop := n.testify(members.GetClusterId(), []string{c.addrs["c1"], c.addrs["r1"]})
	eventually(t, "a testimony", func() error {
		if err := ask(true); err == nil || !strings.Contains(err.Error(), "controller c1 at "+c.addrs["c1"]+", which node n1 knows, answers and has its data") {
			return fmt.Errorf("it says %v", err)
		}
		return nil
	})
	old, err := c.client().Members(ctxFor(t)) // and it goes on
	if err != nil || old.GetTerm() != members.GetTerm() {
		t.Fatalf("the old controller: %v, %v", old, err)
	}
	c.stop("c1")
	if err := ask(true); err != nil {
		t.Fatal(err)
	}
	stop()
	eventually(t, "a leader", func() error { return r.Ready() })
	refused(ask(true), ErrInvalid, "waits for no recovery")
	n.mustRegister()
	resp := n.mustBeat()
	if len(resp.GetReplicas()) != 1 || resp.GetReplicas()[0].GetEpoch() != 1000001 || resp.GetRecovery().GetNumber() != 1 || string(resp.GetClusterId()) != string(members.GetClusterId()) {
		t.Errorf("the node is told %v", resp)
	}
	n.lead["g"] = uint64(ids.MakeTerm(1, 9)) // the master of the epoch before still leads, and is no master of the new one
	n.mustBeat()
	if g, err := recovery.WaitGroup(ctxFor(t), "g"); err != nil {
		t.Errorf("the old master does not lead: %v, %v", g, err)
	}
	short, end := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer end()
	if g, err := recovery.WaitActive(short, "g", 1000001); err == nil || !strings.Contains(err.Error(), "has no master in epoch 1000001 yet") {
		t.Errorf("the old master was taken for one of the new epoch: %v, %v", g, err)
	}

	before := c.start("c1")
	eventually(t, "the old controller leads", func() error { return before.notLeader() })
	both := dial(t, []string{c.addrs["c1"], c.addrs["r1"]}, c.secret)
	both.HoldTo(resp.GetRecovery())
	check := n.code
	if _, err := both.RegisterNode(ctxFor(t), &pb.RegisterNodeRequest{NodeId: "n1", CheckCode: check[:]}); err != nil {
		t.Errorf("with both: %v", err)
	}
	only := dial(t, []string{c.addrs["c1"]}, c.secret, WithCallTimeout(500*time.Millisecond))
	only.HoldTo(resp.GetRecovery())
	eventually(t, "the old controller's refusal", func() error {
		_, err := only.RegisterNode(context.Background(), &pb.RegisterNodeRequest{NodeId: "n1", CheckCode: check[:]})
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "before recovery 1 of the controllers") {
			return fmt.Errorf("it says %v", err)
		}
		return nil
	})
	if err := only.believe(nil); err == nil {
		t.Error("the answer of a controller of before was believed")
	}
	if err := only.believe(&pb.Recovery{Number: 1, Token: make([]byte, 16)}); err == nil {
		t.Error("the answer of a controller of another recovery was believed")
	}
	if err := only.believe(&pb.Recovery{Number: 2, Token: make([]byte, 16)}); err != nil {
		t.Error(err)
	}
	r = c.restart("r1") // the flag means nothing any more
	eventually(t, "a leader", func() error { return r.Ready() })

	c.stop("c1") // and others are added as to any controller
	delete(c.addrs, "c1")
	c.join("r2")
	c.join("r3")
	must(t, c.change([]string{"r2", "r3"}, nil))
	c.has("r1", "r2", "r3")
	if st := c.agree(3); string(st[0].GetClusterId()) != string(members.GetClusterId()) {
		t.Errorf("the cluster is %x now", st[0].GetClusterId())
	}
	c.restart("r1")
	c.agree(3)
}

// A folder that waits for a recovery is good for nothing else, and one that is in use is not for a recovery.
func TestRecoverFolder(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(o *Options) { o.Bootstrap, o.Recover = false, true })
	c.stop("c1")
	for _, tt := range []struct {
		bootstrap, join, recover bool
		peers                    map[string]string
		says                     string
	}{
		{bootstrap: true, says: "it was made for a recovery that did not come about"},
		{says: "it was made for a recovery that did not come about"},
		{recover: true, bootstrap: true, says: "goes with neither"},
		{recover: true, peers: map[string]string{"c1": c.addrs["c1"], "c2": "127.0.0.1:2", "c3": "127.0.0.1:3"}, says: "begins with one controller"},
		{recover: true},
	} {
		o := c.options("c1", c.listen("c1"))
		o.Bootstrap, o.Join, o.Recover = tt.bootstrap, tt.join, tt.recover
		if tt.peers != nil {
			o.Peers = tt.peers
		}
		s, err := Open(o)
		if err == nil {
			err = errors.Join(s.Close(), errors.New("opened"))
		}
		if want := tt.says; want == "" && err.Error() != "opened" || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
	c.dirs["c1"], c.tune = t.TempDir(), nil
	st, _, err := openStore(c.dirs["c1"], false, func() (identity, error) { return identity{ID: "c1", RaftID: newRaftID()}, nil })
	must(t, err)
	must(t, st.close())
	o := c.options("c1", c.listen("c1"))
	o.Bootstrap, o.Recover = false, true
	if _, err := Open(o); err == nil || !strings.Contains(err.Error(), "a recovery begins with an empty folder") {
		t.Errorf("a folder that is not empty: %v", err)
	}
}

// A node that has promised to hold to another recovery makes the next one have a greater number; what no node says is refused.
func TestTestimonies(t *testing.T) {
	t.Parallel()
	r := newRecovering()
	now := time.Now()
	code := ids.NewUUID(nil)
	say := func(node string, number uint32, token hexID) {
		if _, err := r.hear(now, &pb.Testimony{NodeId: node, CheckCode: code[:], Recovery: &pb.Recovery{Number: number, Token: token[:]}}); err != nil {
			t.Fatal(err)
		}
	}
	say("n1", 4, hexOf(1))
	number, list := r.fresh(now, time.Time{})
	if number != 5 || len(r.waitsFor(list, list)) != 1 {
		t.Errorf("number %d, waits for %v", number, r.waitsFor(list, list))
	}
	say("n1", 5, r.token)
	if number, list = r.fresh(now, time.Time{}); number != 5 || len(r.waitsFor(list, list)) != 0 {
		t.Errorf("number %d, waits for %v", number, r.waitsFor(list, list))
	}
	if _, list = r.fresh(now.Add(testimonyAge), time.Time{}); len(list) != 0 {
		t.Error("an old testimony counts")
	}
	for _, bad := range []*pb.Testimony{
		{NodeId: "", CheckCode: code[:]}, {NodeId: "n1"}, {NodeId: "n1", CheckCode: code[:], ClusterId: []byte{1}},
		{NodeId: "n1", CheckCode: code[:], PeerAddress: "x"}, {NodeId: "n1", CheckCode: code[:], Replicas: []*pb.ReplicaTestimony{{}}},
	} {
		if checkTestimony(bad) == nil {
			t.Errorf("%v was taken", bad)
		}
	}
}
