package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/loopback"
)

// join starts a controller that waits to be added, with an empty folder.
func (c *cluster) join(id string) {
	c.t.Helper()
	l, err := net.Listen("tcp", loopback.Host()+":0")
	if err != nil {
		c.t.Fatal(err)
	}
	c.joinOn(id, l)
}

func (c *cluster) joinOn(id string, l net.Listener) {
	c.t.Helper()
	c.mu.Lock()
	others := maps.Clone(c.addrs)
	c.mu.Unlock()
	c.stop(id)
	c.dirs[id], c.addrs[id] = c.t.TempDir(), l.Addr().String()
	o := c.options(id, l)
	o.Bootstrap, o.Join, o.Peers = false, true, map[string]string{id: c.addrs[id]}
	for other, addr := range others {
		if other != id {
			o.Peers[other] = addr
		}
	}
	s, err := Open(o)
	must(c.t, err)
	s.Start()
	c.mu.Lock()
	c.up[id] = s
	c.mu.Unlock()
}

// TestSlowStranger adds a controller in the place of another one that says nothing when it is asked for the first time, and is there when it is asked again.
func TestSlowStranger(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	l, err := net.Listen("tcp", loopback.Host()+":0")
	must(t, err)
	client := c.client() // of c1 alone: only that one asks at the other address
	req := &pb.ChangeControllersRequest{Add: []*pb.Member{{Id: "c2", Address: l.Addr().String()}}, Remove: []string{"c1"}}
	done := make(chan error, 1)
	go func() {
		_, err := client.ChangeControllers(ctxFor(t), req)
		done <- err
	}()
	conn, err := l.Accept()
	must(t, err)
	_, _ = io.Copy(io.Discard, conn) // until who asked has given up
	conn.Close()
	c.joinOn("c2", l)
	must(t, <-done)
	c.has("c2")
}

func (c *cluster) change(add, remove []string) error {
	c.t.Helper()
	req := &pb.ChangeControllersRequest{Remove: remove}
	for _, id := range add {
		req.Add = append(req.Add, &pb.Member{Id: id, Address: c.addrs[id]})
	}
	_, err := c.client().ChangeControllers(ctxFor(c.t), req)
	return err
}

// has wants the members to be these, as each of them knows them.
func (c *cluster) has(want ...string) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("the members %v", want), func() error {
		for _, id := range want {
			c.mu.Lock()
			s := c.up[id]
			c.mu.Unlock()
			if err := s.Ready(); err != nil {
				return fmt.Errorf("%s: %w", id, err)
			}
			var have []string
			for _, m := range s.members() {
				have = append(have, m.GetId())
			}
			if !slices.Equal(have, want) {
				return fmt.Errorf("%s knows %v", id, have)
			}
		}
		return nil
	})
}

// Controllers are added and removed while nodes register: 1, 3, 5, each one replaced, 3, 1. What was answered is there at the end.
func TestMembersChange(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	c.leader()
	observer := dial(t, []string{c.addrs["c1"]}, c.secret) // knows only the first one
	ctx, stop := context.WithCancel(context.Background())
	var names []string
	ended := make(chan struct{})
	t.Cleanup(func() { stop(); <-ended }) // of a test that gives up
	go func() {
		defer close(ended)
		for i := 0; ctx.Err() == nil; i++ {
			name := fmt.Sprintf("n%d", i)
			code := ids.NewUUID(nil)
			if _, err := observer.RegisterNode(ctx, &pb.RegisterNodeRequest{NodeId: name, CheckCode: code[:]}); err == nil {
				names = append(names, name)
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Millisecond): // a pace, nothing waits for it
			}
		}
	}()
	// Whoever has heard of no member that is left cannot find them: so the observer hears of each change before the next one.
	has := func(want ...string) {
		t.Helper()
		c.has(want...)
		eventually(t, fmt.Sprintf("the observer knows %v", want), func() error {
			var addrs []string
			for _, id := range want {
				addrs = append(addrs, c.addrs[id])
			}
			if got := observer.Addresses(); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(addrs))) {
				return fmt.Errorf("it knows %v, want %v", got, addrs)
			}
			return nil
		})
	}
	c.join("c2")
	c.join("c3")
	must(t, c.change([]string{"c2", "c3"}, nil))
	has("c1", "c2", "c3")
	must(t, c.change([]string{"c2", "c3"}, nil)) // again
	c.join("c4")
	c.join("c5")
	must(t, c.change([]string{"c4", "c5"}, nil))
	has("c1", "c2", "c3", "c4", "c5")
	must(t, c.change(nil, []string{"c4", "c5"}))
	has("c1", "c2", "c3")
	must(t, c.change(nil, []string{"c4", "c5"})) // again
	for _, id := range []string{"c4", "c5"} {
		eventually(t, id+" knows that it was removed", func() error {
			if err := c.up[id].Ready(); err == nil || !strings.Contains(err.Error(), "was removed") {
				return fmt.Errorf("it says %v", err)
			}
			return nil
		})
		c.stop(id)
		delete(c.addrs, id)
	}
	// One after another by a new one, the last ones under their own names: a wiped folder is another member.
	c.join("c6")
	must(t, c.change([]string{"c6"}, []string{"c1"}))
	has("c2", "c3", "c6")
	c.stop("c1")
	// The observer was given this address and tries it again: no controller of another test may get it.
	accept(t, c.addrs["c1"], func(conn net.Conn) { conn.Close() })
	delete(c.addrs, "c1")
	for _, id := range []string{"c2", "c3"} {
		c.join(id)
		must(t, c.change([]string{id}, []string{id}))
		has("c2", "c3", "c6")
	}
	for _, id := range []string{"c2", "c3", "c6"} { // what a member knows is in its folder
		c.restart(id)
	}
	has("c2", "c3", "c6")
	must(t, c.change(nil, []string{"c2", "c3"}))
	has("c6")
	c.join("c7") // the only one is replaced
	must(t, c.change([]string{"c7"}, []string{"c6"}))
	has("c7")
	stop()
	<-ended
	nodes, err := observer.ListNodes(ctxFor(t))
	must(t, err)
	there := map[string]bool{}
	for _, n := range nodes {
		there[n.GetNodeId()] = true
	}
	for _, name := range names {
		if !there[name] {
			t.Errorf("node %s was registered, and is not there", name)
		}
	}
	if len(names) == 0 {
		t.Error("no node was registered")
	}
	if got := observer.Addresses(); !slices.Equal(got, []string{c.addrs["c7"]}) {
		t.Errorf("the client knows %v, want the only one that is left, %s", got, c.addrs["c7"])
	}
}

func TestMembersChangeRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	c.leader()
	other := newCluster(t, 1, nil)
	other.leader()
	refused := func(kind error, says string, add, remove []string) {
		t.Helper()
		if err := c.change(add, remove); !errors.Is(err, kind) || !strings.Contains(err.Error(), says) {
			t.Errorf("add %v remove %v: %v, want %q", add, remove, err, says)
		}
		c.has("c1", "c2", "c3")
	}
	refused(ErrNotFound, "there is no controller", nil, []string{"c9"})
	refused(ErrInvalid, "would be 2 controllers", nil, []string{"c3"})
	refused(ErrInvalid, "last controller", nil, []string{"c1", "c2", "c3"})
	c.join("c4")
	refused(ErrInvalid, "would be 4 controllers", []string{"c4"}, nil)
	free, err := net.Listen("tcp", loopback.Host()+":0")
	must(t, err)
	c.addrs["c5"] = free.Addr().String()
	free.Close()
	refused(ErrNotNow, "does not answer", []string{"c5"}, []string{"c3"})
	c.addrs["c5"] = c.addrs["c4"]
	refused(ErrInvalid, "is controller c4, not c5", []string{"c5"}, []string{"c3"})
	if err := c.change([]string{"c1"}, nil); err != nil {
		t.Errorf("a member as it is: %v", err)
	}
	if _, err := c.client().ChangeControllers(ctxFor(t), &pb.ChangeControllersRequest{Add: []*pb.Member{{Id: "c1", Address: other.addrs["c1"]}}}); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "belongs to another cluster") {
		t.Errorf("a controller of another cluster: %v", err)
	}
	// Two of three are gone: a majority of those that would be left must answer.
	delete(c.addrs, "c5")
	lead := c.leader().ID()
	var gone string
	for _, id := range []string{"c1", "c2", "c3"} {
		if id != lead {
			gone = id
		}
	}
	c.stop(gone)
	must(t, c.change([]string{"c4"}, []string{gone})) // who is gone can be replaced
}

// A list that has nobody in common with the members is refused.
func TestMembersDisagree(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	c.leader()
	c.join("c2")
	c.join("c3")
	must(t, c.change([]string{"c2", "c3"}, nil))
	c.has("c1", "c2", "c3")
	c.stop("c2")
	o := c.options("c2", c.listen("c2"))
	o.Peers = map[string]string{"c2": c.addrs["c2"], "x": "h:1", "y": "h:2"}
	if s, err := Open(o); err == nil || !strings.Contains(err.Error(), "the cluster's controllers are c1, c2, c3") {
		t.Errorf("%v", err)
		if s != nil {
			s.Close()
		}
	}
}

// A controller that was added may end before its first snapshot has come: it knows no later list of members than the one that it
// was added with, and starts again with the list that it was given.
func TestAddedAndNotThereYet(t *testing.T) {
	t.Parallel()
	who := &membership{}
	for i, id := range []string{"c1", "c2", "c3", "c4"} {
		who.Members = append(who.Members, identity{ID: id, RaftID: uint64(i + 1)})
	}
	o := &Options{ID: "c4", Join: true, Peers: map[string]string{"c1": "h:1", "c2": "h:2", "c4": "h:4"}} // c3 is dead
	l := &loaded{identity: who.Members[3], membership: who, state: NewState()}
	if err := checkFolder(o, l); err != nil {
		t.Error(err)
	}
	l = &loaded{identity: who.Members[3], membership: who, state: NewState(), compacted: firstPosition}
	if err := checkFolder(o, l); err == nil {
		t.Error("a founder started with another list than that of the founding")
	}
}
