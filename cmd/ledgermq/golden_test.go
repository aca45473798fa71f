package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/ledgermq/ledgermq/client"
	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

var update = flag.Bool("update", false, "write the golden files anew")

// sampleGroup has one replica of each kind: master, follower, and one that is silent.
func sampleGroup() *pb.Group {
	replica := func(id uint64, node string, live bool, role pb.Role, last uint64, end int64) *pb.Replica {
		return &pb.Replica{
			ReplicaId: id, Slot: uint32(id), NodeId: node, Voter: true, Live: live,
			PeerAddress: "10.0.0." + node[1:] + ":10950", ClientAddress: "10.0.0." + node[1:] + ":10911",
			Report: &pb.ReplicaReport{Role: role, Term: uint64(ids.MakeTerm(3, 1)), LastIndex: last, Commit: last, Applied: last, EndOffset: end},
		}
	}
	return &pb.Group{
		Name: "g1", GroupId: bytes.Repeat([]byte{0xab}, 16), State: pb.GroupState_GROUP_STATE_READY, Answers: 2, Members: 3, MinIsr: 2,
		PreferredNode: "n1",
		SegmentSize:   1 << 30, Epoch: 3, ActiveEpoch: 3, ModeVoters: 3,
		Changes: []*pb.Change{
			{Epoch: 2, Voters: []uint64{1, 2}, Reason: "replica 3 on node n3 answered nothing, or did not advance, for 1s", Millis: 1796000000000},
			{Epoch: 3, Voters: []uint64{1, 2, 3}, Reason: "replica 3 on node n3 has caught up", Millis: 1796000060000},
		},
		Master: &pb.Master{ReplicaId: 1, NodeId: "n1", Term: uint64(ids.MakeTerm(3, 1)), ClientAddress: "10.0.0.1:10911", Live: true},
		Replicas: []*pb.Replica{
			replica(1, "n1", true, pb.Role_ROLE_MASTER, 120, 9000), replica(2, "n2", true, pb.Role_ROLE_FOLLOWER, 120, 9000),
			replica(3, "n3", false, pb.Role_ROLE_FOLLOWER, 100, 7000),
		},
	}
}

// TestRoles holds what is said of a replica's role, or of why it is not known, and in the table that of which one is preferred.
func TestRoles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		do         func(*pb.Replica)
		role, text string
		vote       string
	}{
		{func(*pb.Replica) {}, "follower", "follower", "yes"},
		{func(r *pb.Replica) { r.Report.Role = pb.Role_ROLE_MASTER }, "master", "master", "yes"},
		{func(r *pb.Replica) { r.Report.Role = pb.Role_ROLE_PARKED }, "parked", "parked", "yes"},
		{func(r *pb.Replica) { r.Report.Role, r.Report.Term = pb.Role_ROLE_MASTER, r.Report.Term-1 }, "deposed", "deposed", "yes"},
		{func(r *pb.Replica) { r.Report.Role = pb.Role_ROLE_UNSPECIFIED }, "opening", "opening", "yes"},
		{func(r *pb.Replica) { r.Report, r.Incarnation = nil, []byte{1} }, "not reported yet", "not reported yet", "yes"},
		{func(r *pb.Replica) { r.Report, r.Voter, r.Learner = nil, false, true }, "not made yet", "not made yet", "no, learner"},
		{func(r *pb.Replica) { r.Live, r.SilentMillis = false, 4200 }, "silent", "silent 4s", "yes"},
		{func(r *pb.Replica) { r.Live, r.SilentMillis, r.Report = false, -1, nil }, "silent", "silent", "yes"},
		{func(r *pb.Replica) { r.Live, r.NotHeardYet = false, true }, "not heard yet", "not heard yet", "yes"},
		{func(r *pb.Replica) { r.NodeId = "n1" }, "follower", "follower", "yes, preferred"},
		{func(r *pb.Replica) { r.NodeId, r.Voter = "n1", false }, "follower", "follower", "no, preferred"},
		{func(r *pb.Replica) { r.NodeId, r.Leaving = "n1", true }, "follower", "follower", "yes, leaves"},
	} {
		g := sampleGroup()
		c.do(g.Replicas[1])
		v := viewGroup(g)
		r := v.Replicas[1]
		if r.Role != c.role || r.roleText() != c.text || r.vote() != c.vote {
			t.Errorf("role %q, in the table %q, vote %q; want %q, %q, %q", r.Role, r.roleText(), r.vote(), c.role, c.text, c.vote)
		}
	}
}

// TestWatchLines holds the lines of group watch: how it stands, who leads, what changed and why; and nothing of what was said before.
func TestWatchLines(t *testing.T) {
	t.Parallel()
	var before *watchView
	says := func(g *pb.Group, want string) {
		t.Helper()
		v := watchOf(viewGroup(g), "T")
		if line := v.text(before); line != want {
			t.Errorf("got  %s\nwant %s", line, want)
		}
		before = &v
	}
	g := sampleGroup()
	g.Replicas[2].Live = true
	says(g, "T g1 ready: master n1 in term 3.1, voters n1 n2 n3, mode 2-3, min ISR 2, epoch 3")
	g.Replicas[0].Live, g.Master.Live = false, false
	says(g, "T g1 electing: no master, last n1, voters n1 n2 n3, down n1, mode 2-3, min ISR 2, epoch 3")
	g.Epoch, g.Replicas[0].Voter = 4, false
	g.Changes = append(g.Changes, &pb.Change{Epoch: 4, Voters: []uint64{2, 3}, Reason: "replica 1 on node n1 is silent"})
	g.Changing = []string{"epoch 4 has no master yet", "replica 3 on node n3 is told of epoch 4"}
	says(g, "T g1 electing: no master, voters n2 n3 of 3, learners n1, down n1, mode 2-3, min ISR 2, epoch 4; "+
		"epoch 4 because replica 1 on node n1 is silent; under way: replica 3 on node n3 is told of epoch 4")
	g.ActiveEpoch, g.Changing = 4, nil
	g.Master = &pb.Master{ReplicaId: 2, NodeId: "n2", Term: uint64(ids.MakeTerm(4, 1)), Live: true}
	says(g, "T g1 degraded: master n2 in term 4.1, voters n2 n3 of 3, learners n1, down n1, mode 2-3, min ISR 2, epoch 4")
	g.Master.Live, g.Replicas[1].Live = false, false
	g.Stuck = "2 of the voters {2,3} are needed to elect a master; not there: [replica 2 on node n2]"
	says(g, "T g1 NO MASTER: no master, last n2, voters n2 n3 of 3, learners n1, down n1 n2, mode 2-3, min ISR 2, epoch 4; "+g.Stuck)
	g.Stuck, g.MinIsr, g.Epoch, g.ActiveEpoch, g.Replicas[1].Voter = "", 1, 5, 5, false
	g.Master = &pb.Master{ReplicaId: 3, NodeId: "n3", Term: uint64(ids.MakeTerm(5, 1)), Live: true}
	g.Changes = append(g.Changes, &pb.Change{Epoch: 5, Voters: []uint64{3}, Reason: "replica 2 on node n2 is silent"})
	says(g, "T g1 ONE COPY: master n3 in term 5.1, voters n3 of 3, learners n1 n2, down n1 n2, mode 2-3, min ISR 1, epoch 5; epoch 5 because replica 2 on node n2 is silent")
	g.Master.Live, g.Replicas[2].Live = false, false // nobody is there to say what it waits for
	says(g, "T g1 NO MASTER: no master, last n3, voters n3 of 3, learners n1 n2, down n1 n2 n3, mode 2-3, min ISR 1, epoch 5")
	// A master that is dead and was heard a moment ago does not lead in an epoch without it.
	g.Master.Live, g.Replicas[1].Live, g.Replicas[2].Live = true, true, true
	g.Epoch, g.Replicas[1].Voter, g.Replicas[2].Voter = 6, true, false
	says(g, "T g1 electing: no master, last n3, voters n2 of 3, learners n1 n3, down n1, mode 2-3, min ISR 1, epoch 6; epoch 6 because replica 2 on node n2 is silent")
}

// TestJSONOutputs compares every --json output, and cluster.json, with the golden file that docs/cli.md shows.
func TestJSONOutputs(t *testing.T) {
	t.Parallel()
	text := "hello"
	sample := sampleGroup()
	sample.Replicas[2].SilentMillis = 4200
	sample.Replicas[1].Report.Fetching = &pb.Fetching{What: "a state snapshot", Got: 120 << 20, Size: 400 << 20, BytesPerSecond: 30 << 20}
	sample.Replicas[1].Report.ScrubbedMillis = 1796000000000
	group := viewGroup(sample)
	for name, v := range map[string]any{
		"admin-cluster": clusterView{
			ClusterID:   "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd",
			Level:       2,
			Controllers: []controllerView{{ID: "c1", Address: "10.0.0.1:9878", Leader: true, Applied: 27, Levels: "1..3"}},
			Nodes:       []nodeView{{ID: "n1", Live: true, SilentMillis: 120, Replicas: 1, Peer: "10.0.0.1:10950", Metrics: "10.0.0.1:10960", Levels: "1..3"}},
			Groups:      []groupView{group},
		},
		"admin-cluster-upgrade": levelView{Before: 1, Level: 2},
		"admin-group-show":      group,
		"admin-rebalance":       []balanceView{{Group: "g1", Before: "n2", Master: "n1"}, {Group: "g2", Before: "n3", Master: "n3", Error: "group g2, replica 4 on node n2: it is not a voter of epoch 5: it may lack what was answered OK"}},
		"admin-topic-show":      []queueView{{Group: "g1", Queue: 0, Min: 0, Max: 42}},
		"admin-change":          []changeView{{Group: "g1", OK: true}, {Group: "g2", Error: "the broker group has no master"}},
		"admin-consumer":        consumerView{Group: "billing", Topic: "Orders", Members: []string{"10.0.0.9@7"}, Lag: new(int64(2)), Queues: []consumerQueueView{{Group: "g1", Queue: 0, Offset: 40, Max: 42, Lag: new(int64(2)), OldestMillis: new(int64(1500))}}, Subscriptions: map[string]map[string]string{"10.0.0.9@7": {"Orders": "red || blue"}}},
		"admin-consumer-list":   []consumerRow{{Name: "billing", Members: []string{"10.0.0.9@7"}, Topics: []string{"%RETRY%billing", "Orders"}, Lag: new(int64(2))}, {Name: "news", Members: []string{"10.0.0.8@1", "10.0.0.9@2"}, Topics: []string{}, Broadcasting: true}},
		"admin-consumer-delete": consumerGoing{Name: "billing", Topics: []string{"%RETRY%billing", "Orders"}, Lag: new(int64(2)), Retries: 3, DeadLetters: 1, DeletesTopics: true},
		"admin-reset":           []movedView{{Group: "g1", Queue: 0, Offset: 7}, {Group: "g1", Queue: 1, Offset: 5, Asked: new(int64(7))}},
		"admin-timer-show":      []client.Timers{{Group: "g1", Pending: 1204, Bytes: 301000, Recalled: 7, Next: 1796000000000, Fired: 1795999999000, Index: "whole", Dropped: 1}},
		"admin-tx-list":         []client.Transaction{sampleTransaction()},
		"admin-tx-resolve":      []resolvedView{{Transaction: sampleTransaction(), Decision: "commit", Error: "transaction 12 was rolled back before, and stays so (code 604)"}},
		"admin-route":           sampleRoute(),
		"produce":               receiptView{MessageID: "C0000202165E216FE9FF943AF3B20000", OffsetMessageID: "7F00000100002A9F0000000000001048", Group: "g1", Queue: 2, Offset: 41},
		"consume":               shownMessage{Topic: "Orders", Group: "g1", Queue: 2, Offset: 41, MessageID: "C0000202165E216FE9FF943AF3B20000", Keys: []string{"order-1"}, Tags: "paid", StoreTime: 1796000000000, Body: &text},
		"bench":                 benchResult{Messages: 300000, Calls: 300000, Seconds: 10, Rate: 30000, P50Micros: 2000, P99Micros: 5200, P999Micros: 9000, MaxMicros: 12000},
		"log-verify":            []verifiedGroup{{Group: "g1", Replicas: []verifiedReplica{{Node: "n1", Folder: "/data/n1/groups/ab", First: 1, Last: 120, Commit: 119}}, From: 1, To: 119, Frames: 119, Bytes: 8900, Equal: true}},
		"log-dump":              dumpedFrame{Index: 7, Term: "1.2", Offset: 4400, Size: 500, Time: 1796000000000, Chain: "0a1b2c3d", Records: 1, Messages: 1, Detail: []dumpedRecord{{Type: "message", Offset: 4472, Size: 133, Text: "Orders/2@41 C0000202165E216FE9FF943AF3B20000 5 bytes", Body: []byte("hello")}}},
		"version":               versionInfo{Version: "v0.1.0", Revision: "0123456789abcdef", Go: "go1.26.0", Platform: "linux/amd64", Protocol: protocolVersion, Levels: "1..3"},
		"dev-cluster-file":      clusterFile{Version: 1, ClusterID: "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd", Namesrv: []string{"127.0.0.1:9876"}, Members: []clusterMember{{ID: "n1", Role: "broker", PID: 4711, Running: true, Ports: map[string]int{"client:g1": 10911, "peer": 10927, "http": 10928}, Data: "/data/n1"}}},
		"admin-group-list":      []groupView{group},
		"admin-topic-list":      []string{"Orders"},
		"admin-group-watch":     watchOf(group, "2026-11-30T00:54:20Z"),
		"admin-topic-delete":    []client.TopicUse{{Group: "g1", Queues: 4, Messages: 1200, ConsumerGroups: []string{"billing", "shipping"}}},
		"admin-topic-spread":    []spreadView{{Topic: "Orders", changeView: changeView{Group: "g4", OK: true}}, {Topic: "Bills", changeView: changeView{Group: "g4", Error: "the broker group has no master"}}},
		"admin-controller-recover": viewRecovery(&pb.RecoverResponse{ClusterId: bytes.Repeat([]byte{0xcd}, 16), Recovery: 1, Nodes: []string{"n1", "n2"}, Groups: []*pb.RecoveredGroup{{
			Name: "g1", KnownEpoch: 4, Epoch: 1000001, Voters: []string{"n1", "n2", "n3"}, Heard: []string{"n1", "n2"}, Sure: true,
			Notes: []string{"replica 3 on node n3 is lost: node n3 was said to be stopped for ever when the controllers were recovered"}}}}),
		"admin-message":     viewMessage(sampleMessage()),
		"admin-trace":       sampleTrace(),
		"admin-dlq-resend":  []deadView{{ID: "g1/7", StoredAt: "2026-11-29T10:00:00.500Z", OriginTopic: "Orders", OriginID: "0A000001000078BF0000000000001000", Keys: "4711", Tries: 17, Size: 120, Result: "sent"}},
		"admin-node-remove": nodeRemovedView{Node: "n3"},
	} {
		got, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, '\n')
		file := filepath.Join("testdata", name+".json")
		if *update {
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
		}
		page, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(page), string(want)) {
			t.Errorf("docs/cli.md does not show %s", file)
		}
	}
}

func sampleTransaction() client.Transaction {
	return client.Transaction{Group: "g1", Number: 12, Offset: 4379, ProducerGroup: "billing", StoredMillis: 1796000000000, Checks: 15, CheckedMillis: 1796000426000, GaveUp: true,
		Topic: "Orders", Queue: 2, MessageID: "C0000202165E216FE9FF943AF3B20000", Keys: "order-1", Tags: "paid", BornHost: "10.0.0.9:40312", BornMillis: 1795999999990, Bytes: 5}
}

func sampleRoute() client.Route {
	return client.Route{Topic: "Orders", Groups: []client.GroupRoute{{
		GroupInfo: client.GroupInfo{Cluster: "DefaultCluster", Group: "g1", Term: ids.MakeTerm(1, 2), Replicas: []client.Replica{
			{BrokerID: 0, Addr: "10.0.0.1:10911"}, {BrokerID: 2, Addr: "10.0.0.2:10911"},
		}},
		ReadQueues: 4, WriteQueues: 4, Perm: 6,
	}}}
}

// TestMessageOutput holds what consume prints of bodies that are text and of those that are not.
func TestMessageOutput(t *testing.T) {
	t.Parallel()
	tool := &tool{}
	m := client.Message{Topic: "T", Group: "g1", Queue: 1, Offset: 2, StoreTime: time.UnixMilli(5), Body: []byte{0xff, 0xfe}}
	var out bytes.Buffer
	if err := tool.printMessage(&out, m, true); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), `"bodyBytes":"//4="`) || strings.Contains(out.String(), `"body":`) {
		t.Errorf("bytes that are no text: %s", out.String())
	}
	out.Reset()
	m.Body = []byte("äöü")
	if err := tool.printMessage(&out, m, false); err != nil {
		t.Fatal(err)
	}
	if out.String() != "g1/1@2 äöü\n" {
		t.Errorf("text: %q", out.String())
	}
}

// TestGroupStates holds what an operator is told about a group that is not whole.
func TestGroupStates(t *testing.T) {
	t.Parallel()
	g := sampleGroup()
	v := viewGroup(g)
	if v.State != "degraded" || len(v.Notes) != 2 || v.Notes[0] != "2 voters of 3 alive" || !strings.Contains(v.Notes[1], "from index 101 on") {
		t.Errorf("a silent replica: %s %q", v.State, v.Notes)
	}
	if v.Replicas[2].BehindBytes != 2000 || v.Replicas[2].Role != "silent" {
		t.Errorf("it is %d bytes behind and %s, want 2000 and silent", v.Replicas[2].BehindBytes, v.Replicas[2].Role)
	}
	g.Replicas[2].Live = true
	if v = viewGroup(g); v.State != "ready" || len(v.Notes) != 0 {
		t.Errorf("all alive: %s %q", v.State, v.Notes)
	}
	g.Replicas[1].Voter = false
	if v = viewGroup(g); v.State != "degraded" || v.Notes[1] != "the SyncStateSet has 2 of 3 voters" {
		t.Errorf("all alive, one voter less: %s %q", v.State, v.Notes)
	}
	g.Replicas[2].Voter = false
	if v = viewGroup(g); v.State != "degraded" || !strings.HasPrefix(v.Notes[1], "ONE COPY") {
		t.Errorf("all alive, one voter: %s %q", v.State, v.Notes)
	}
	g.Replicas[1].Voter, g.Replicas[2].Voter = true, true
	g.Replicas[1].Report.Parked = "lost tail"
	if v = viewGroup(g); v.State != "degraded" || !strings.Contains(v.Notes[1], "is parked: lost tail") {
		t.Errorf("a parked one: %s %q", v.State, v.Notes)
	}
	g.Master.Live, g.Master.NotHeardYet = false, true
	g.Replicas[0].Live, g.Replicas[0].NotHeardYet, g.Replicas[0].Report = false, true, nil
	if v = viewGroup(g); v.State != "not heard yet" || v.Replicas[0].Role != "not heard yet" || strings.Contains(fmt.Sprint(v.Notes), "n1") {
		t.Errorf("under a new controller: %s %q, replica %s", v.State, v.Notes, v.Replicas[0].Role)
	}
	g.Master.NotHeardYet, g.Replicas[0].NotHeardYet = false, false
	v = viewGroup(g)
	if v.State != "no master" || v.Replicas[0].Role != "silent" || v.Notes[1] != "the last master was n1, in term 3.1" ||
		v.Notes[2] != "replica on n1 is silent; retention keeps what it lacks" {
		t.Errorf("a dead master: %s %q, replica %s", v.State, v.Notes, v.Replicas[0].Role)
	}
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 0, 1, ' ', 0)
	writeGroups(w, []groupView{v})
	w.Flush()
	if got := strings.Fields(strings.Split(out.String(), "\n")[1]); !slices.Equal(got, strings.Fields("g1 2-3 2 3 no master - - - n1! n2 n3")) {
		t.Errorf("a dead master is named: %q", got)
	}
	g.State = pb.GroupState_GROUP_STATE_PENDING
	g.WaitingFor = []string{"n2"}
	if v = viewGroup(g); v.State != "pending" || v.WaitingFor[0] != "n2" {
		t.Errorf("while it is created: %s %q", v.State, v.WaitingFor)
	}
}
