package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

func request(name string, a, m uint32, nodes ...string) *pb.CreateGroupRequest {
	return &pb.CreateGroupRequest{Name: name, Answers: a, Members: m, Nodes: nodes, SegmentSize: 64 << 10}
}

// A group is made as a broker node lives it, with one controller and with three.
func TestGroupLife(t *testing.T) {
	t.Parallel()
	for _, members := range []int{1, 3} {
		t.Run(string(rune('0'+members)), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, members, nil)
			ctx := ctxFor(t)
			var nodes []*fakeNode
			for _, id := range []string{"n1", "n2", "n3"} {
				n := newNode(t, c, id)
				n.mustRegister()
				n.mustBeat()
				nodes = append(nodes, n)
			}
			admin := c.client()
			made, err := admin.CreateGroup(ctx, request("g-1", 2, 3, "n2", "n1", "n3"))
			if err != nil {
				t.Fatal(err)
			}
			if made.GetState() != pb.GroupState_GROUP_STATE_PENDING || !slices.Equal(made.GetWaitingFor(), []string{"n2", "n1", "n3"}) {
				t.Fatalf("a new group is %v and waits for %v", made.GetState(), made.GetWaitingFor())
			}
			again, err := admin.CreateGroup(ctx, request("g-1", 2, 3, "n2", "n1", "n3"))
			if err != nil || string(again.GetGroupId()) != string(made.GetGroupId()) {
				t.Fatalf("the same creation again: %v, %v", again, err)
			}

			// Two nodes create their replicas; the third is dead, and named.
			eventually(t, "waiting for the third", func() error {
				nodes[0].mustBeat()
				nodes[1].mustBeat()
				groups, err := admin.ListGroups(ctx)
				if err != nil || len(groups) != 1 {
					return fmt.Errorf("groups %v, %v", groups, err)
				}
				if g := groups[0]; g.GetState() != pb.GroupState_GROUP_STATE_PENDING || !slices.Equal(g.GetWaitingFor(), []string{"n3"}) {
					return fmt.Errorf("the group is %v and waits for %v", g.GetState(), g.GetWaitingFor())
				}
				return nil
			})

			// It comes, and the group has its first epoch.
			var resp *pb.HeartbeatResponse
			eventually(t, "the first epoch", func() error {
				resp = nodes[2].mustBeat()
				if len(resp.GetReplicas()) != 1 || resp.GetReplicas()[0].GetEpoch() != 1 {
					return fmt.Errorf("wanted replicas: %v", resp.GetReplicas())
				}
				return nil
			})
			record, err := raftlog.DecodeEpochRecord(resp.GetReplicas()[0].GetEpochRecord())
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range nodes {
				id, r := onlyReplica(t, n)
				m, ok := record.Member(ids.ReplicaID(id))
				if !ok || m.Node != ids.NodeID(n.id) || m.Incarnation != ids.Incarnation(r.incarnation) {
					t.Errorf("the record has %+v for replica %d of %s", m, id, n.id)
				}
			}
			if len(record.Voters) != 3 || len(record.Learners) != 0 || record.A != 2 || record.MinISR != 2 {
				t.Errorf("record %+v", record)
			}

			// The first of the list is told to campaign, nobody else, and nobody once there is a master.
			for _, n := range nodes {
				n.mustBeat()
				n.mustBeat()
			}
			eventually(t, "the order to campaign", func() error {
				nodes[1].mustBeat()
				if nodes[1].campaign["g-1"] == 0 {
					return errors.New("it was not given")
				}
				return nil
			})
			if nodes[1].campaign["g-1"] == 0 || nodes[0].campaign["g-1"]+nodes[2].campaign["g-1"] > 0 {
				t.Errorf("told to campaign: n1 %d, n2 %d, n3 %d", nodes[0].campaign["g-1"], nodes[1].campaign["g-1"], nodes[2].campaign["g-1"])
			}
			nodes[1].lead["g-1"] = 1<<32 | 1
			stop := nodes[1].live()
			g, err := admin.WaitGroup(ctx, "g-1")
			if err != nil || g.GetMaster().GetNodeId() != "n2" || g.GetMaster().GetTerm() != 1<<32|1 || g.GetMaster().GetClientAddress() == "" {
				t.Fatalf("master %v, %v", g.GetMaster(), err)
			}

			stop()

			// The highest term wins, and there is no way back.
			nodes[0].lead["g-1"] = 1<<32 | 5
			first, _ := onlyReplica(t, nodes[0])
			eventually(t, "the master of the higher term", func() error {
				nodes[0].mustBeat()
				nodes[1].mustBeat()
				resp = nodes[2].mustBeat()
				if w := resp.GetReplicas()[0]; w.GetMasterReplicaId() != first || w.GetMasterTerm() != 1<<32|5 {
					return fmt.Errorf("master is replica %d of term %d", w.GetMasterReplicaId(), w.GetMasterTerm())
				}
				return nil
			})
			nodes[1].mustBeat()
			if w := nodes[2].mustBeat().GetReplicas()[0]; w.GetMasterReplicaId() != first {
				t.Errorf("the master went back to replica %d", w.GetMasterReplicaId())
			}
			if w := resp.GetReplicas()[0]; len(w.GetOthers()) != 2 || w.GetOthers()[0].GetPeerAddress() == "" || w.GetOthers()[0].GetClientAddress() == "" {
				t.Errorf("others %v", w.GetOthers())
			}

			// Everything is there after all controllers died.
			before, err := admin.GetGroup(ctx, "g-1")
			if err != nil {
				t.Fatal(err)
			}
			for id := range c.dirs {
				c.stop(id)
			}
			for id := range c.dirs {
				c.start(id)
			}
			after, err := admin.GetGroup(ctx, "g-1")
			if err != nil {
				t.Fatal(err)
			}
			if string(after.GetEpochRecord()) != string(before.GetEpochRecord()) || after.GetMaster().GetTerm() != 1<<32|5 {
				t.Errorf("after the restart: %v", after)
			}
			if after.GetMaster().GetLive() {
				t.Error("the master is live before any heartbeat")
			}
			nodes[0].live()
			if _, err := admin.WaitGroup(ctx, "g-1"); err != nil {
				t.Error(err)
			}
		})
	}
}

func onlyReplica(t *testing.T, n *fakeNode) (uint64, *fakeReplica) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, r := range n.replicas {
		return id, r
	}
	t.Fatalf("node %s has no replica", n.id)
	return 0, nil
}

// Every refusal is one line that names the thing.
func TestBadCreations(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	for _, id := range []string{"n1", "n2"} {
		newNode(t, c, id).mustRegister()
	}
	admin := c.client()
	if _, err := admin.CreateGroup(ctxFor(t), request("taken", 1, 1, "n1")); err != nil {
		t.Fatal(err)
	}
	with := func(r *pb.CreateGroupRequest, change func(*pb.CreateGroupRequest)) *pb.CreateGroupRequest {
		change(r)
		return r
	}
	for _, test := range []struct {
		req  *pb.CreateGroupRequest
		kind error
		says string
	}{
		{request("", 2, 2, "n1", "n2"), ErrInvalid, "1 to 100"},
		{request(strings.Repeat("g", 101), 2, 2, "n1", "n2"), ErrInvalid, "1 to 100"},
		{request("a b", 2, 2, "n1", "n2"), ErrInvalid, `"a b"`},
		{request("g", 0, 3, "n1", "n2"), ErrInvalid, "mode 0-3"},
		{request("g", 3, 2, "n1", "n2"), ErrInvalid, "mode 3-2"},
		{request("g", 2, 6, "n1", "n2"), ErrInvalid, "mode 2-6"},
		{request("g", 4294967295, 4294967295), ErrInvalid, "cannot be"},
		{request("g", 2, 3, "n1", "n2"), ErrInvalid, "needs 3 nodes, 2 were given"},
		{request("g", 2, 3, "n1", "n2", "n3"), ErrInvalid, "the cluster has 2"},
		{request("g", 2, 2, "n1", "n9"), ErrInvalid, "node n9 is not known"},
		{request("g", 2, 2, "n1", "n1"), ErrInvalid, "n1 is named twice"},
		{request("g", 2, 2, "n1", ""), ErrInvalid, `node id ""`},
		{with(request("g", 2, 2, "n1", "n2"), func(r *pb.CreateGroupRequest) { r.MinIsr = 3 }), ErrInvalid, "min ISR 3"},
		{with(request("g", 2, 2, "n1", "n2"), func(r *pb.CreateGroupRequest) { r.SegmentSize = 1000000 }), ErrInvalid, "segment size 1000000"},
		{with(request("g", 2, 2, "n1", "n2"), func(r *pb.CreateGroupRequest) { r.SegmentSize = -1 }), ErrInvalid, "segment size -1"},
		{with(request("g", 2, 2, "n1", "n2"), func(r *pb.CreateGroupRequest) { r.SegmentSize = 8 << 30 }), ErrInvalid, "segment size"},
		{request("taken", 1, 1, "n2"), ErrExists, "mode 1-1 on n1"},
	} {
		_, err := admin.CreateGroup(ctxFor(t), test.req)
		if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("creating %v: %v; want %q", test.req, err, test.says)
		}
	}
	if _, err := admin.GetGroup(ctxFor(t), "nothing"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a group that is not there: %v", err)
	}
	groups, err := admin.ListGroups(ctxFor(t))
	if err != nil || len(groups) != 1 {
		t.Errorf("groups after refusals: %v, %v", groups, err)
	}
}
