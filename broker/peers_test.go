package broker

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/raftlog"
)

// Who is asked for what a damaged replica lacks. Frames are proven, so anybody may have them; a state is not, so it comes from the members of
// the newest record only: replica 9 was left behind by an unclean election, and may have another history.
func TestWhoIsAsked(t *testing.T) {
	t.Parallel()
	record := func(epoch ids.Epoch, members ...ids.ReplicaID) raftlog.EpochRecord {
		r := raftlog.EpochRecord{Cluster: ids.ClusterID{1}, Group: ids.GroupID{2}, Epoch: epoch, A: 1, MinISR: 1, SegmentSize: 16 << 20}
		for _, id := range members {
			r.Voters = append(r.Voters, raftlog.Member{ID: id, Slot: ids.Slot(id), Node: ids.NodeID(fmt.Sprintf("n%d", id)), Incarnation: ids.Incarnation{byte(id)}})
		}
		return r
	}
	own := record(3, 1, 2)
	owner := raftlog.Owner{Replica: 1, Incarnation: ids.Incarnation{1}, Record: own.Encode()}
	o := commitlog.Options{FS: vfs.OS, Dir: filepath.Join(t.TempDir(), "log"), Cluster: own.Cluster, Group: own.Group, SegmentSize: own.SegmentSize}
	if err := commitlog.Create(o, owner.Encode()); err != nil {
		t.Fatal(err)
	}
	n := &Node{o: NodeOptions{ID: "n1"}}
	told := &controllerpb.WantedReplica{Others: []*controllerpb.GroupReplica{{ReplicaId: 9, NodeId: "n9"}, {ReplicaId: 4, NodeId: "n4"}}}
	older, newer := record(2, 1, 9), record(5, 1, 4)
	frames, state := &commitlog.DamageError{}, &noStateError{err: errors.New("no state")}
	for _, c := range []struct {
		fault  error
		heard  bool
		record *raftlog.EpochRecord
		want   string
	}{
		{frames, false, nil, "[{2 n2}]"},
		{frames, true, nil, "[{9 n9} {4 n4} {2 n2}]"},
		{frames, true, &newer, "[{9 n9} {4 n4} {2 n2}]"},
		{state, false, nil, "[{2 n2}]"},
		{state, true, nil, "[{2 n2}]"},
		{state, true, &older, "[{2 n2}]"},
		{state, true, &newer, "[{4 n4}]"},
	} {
		p := &repair{n: n, log: o, fault: c.fault, fetcher: &fetcher{id: 1}}
		if c.heard {
			p.learn(told, c.record)
		}
		got, err := p.peers()
		if err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("%T, heard %v, record %v: %v (%v), want %s", c.fault, c.heard, c.record, got, err, c.want)
		}
	}
	// When none of them can help, the operator is told what can be done.
	p := &repair{n: n, log: o, fault: frames, file: replicaFile{Group: "g1"}}
	p.fetcher = newFetcher(n, n.log, own.Group, 1, "", t.Context())
	err := p.each([]otherPeer{{2, "n2"}, {4, "n4"}}, func(otherPeer) error { return commitlog.ErrNoMatch })
	if err == nil || !strings.Contains(err.Error(), "admin group replace g1 --replica 1 --give-up") {
		t.Errorf("it says %v", err)
	}
}
