package broker

import (
	"context"
	"errors"
	"testing"

	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// repairing is a node with a replica that is being repaired.
func repairing(t *testing.T) (*Node, *hosted, *repair) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	id := ids.GroupID{7}
	h := &hosted{file: replicaFile{Group: "g", Replica: 4, Cluster: ids.NewUUID(nil).String()}}
	n := &Node{o: NodeOptions{FS: vfs.OS, Dir: t.TempDir()}, log: zerolog.Nop(), ctx: ctx, replicas: map[ids.GroupID]*hosted{id: h}}
	t.Cleanup(func() {
		stop()
		n.wg.Wait()
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	p, err := n.newRepair(h, id, &noStateError{err: errors.New("it has no state")})
	if err != nil {
		t.Fatal(err)
	}
	return n, h, p
}

// A replica is given up at the moment at which its repair has succeeded, and before it is opened again: it stays closed, and nothing is busy
// with it any more, so that it can be retired.
func TestGivenUpBeforeItIsReopened(t *testing.T) {
	t.Parallel()
	n, h, p := repairing(t)
	n.giveUp(p.gid, p, "wiped")
	p.reopen()
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.repair != nil || h.opening || h.r != nil || h.parked != "wiped" || h.file.Lost != "wiped" || h.repairs != 0 {
		t.Errorf("the repair has not ended: %+v", h)
	}
}

// The other way round the repair has ended, and there is nothing to give up: the replica that opens is told by the next answer of a
// controller, and is closed as an open one is. Else it would be open and count as lost.
func TestReopenedBeforeItIsGivenUp(t *testing.T) {
	t.Parallel()
	n, h, p := repairing(t)
	h.file.Reviving = true // so that nothing is opened here
	p.reopen()
	n.giveUp(p.gid, p, "wiped")
	n.mu.Lock()
	if h.repair != nil || h.parked != "" || h.file.Lost != "" || h.repairs != 1 {
		t.Errorf("a replica that is repaired and may be open counts as lost: %+v", h)
	}
	h.opening = true
	n.mu.Unlock()
	n.reconcileReplica(ids.ClusterID{1}, p.gid, &controllerpb.WantedReplica{GroupName: "g", ReplicaId: 4, Lost: "wiped"})
	n.mu.Lock()
	h.opening = false
	n.mu.Unlock()
	n.reconcileReplica(ids.ClusterID{1}, p.gid, &controllerpb.WantedReplica{GroupName: "g", ReplicaId: 4, Lost: "wiped"})
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.parked != "wiped" || h.file.Lost != "wiped" {
		t.Errorf("it was not told: %+v", h)
	}
}
