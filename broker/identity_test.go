package broker

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// A list of controllers is good when it has one that the node was ever told of, under whatever name.
func TestControllersOfANode(t *testing.T) {
	t.Parallel()
	var f nodeFile
	want := func(given, all string) {
		t.Helper()
		got, err := f.controllers(strings.Fields(given))
		if all == "" && (err == nil || !strings.Contains(err.Error(), "has none of those that this node knows")) || all != "" && (err != nil || strings.Join(got, " ") != all) {
			t.Errorf("given %s: %v %v, want %q", given, got, err, all)
		}
	}
	want("127.0.0.1:1", "127.0.0.1:1")
	if !f.tell([]string{"127.0.0.1:1"}) || f.tell([]string{"127.0.0.1:1"}) {
		t.Error("news are told wrong")
	}
	want("localhost:1", "localhost:1 127.0.0.1:1")
	want("127.0.0.1:9", "")
	want("no.such.host.invalid:1", "")
	f.tell([]string{"127.0.0.1:2", "127.0.0.1:3"})
	want("127.0.0.1:1", "127.0.0.1:1 127.0.0.1:2 127.0.0.1:3") // only old
	want("127.0.0.1:4", "")
	for i := range 3 * maxFormer {
		f.tell([]string{"h:" + strings.Repeat("1", i+1)})
	}
	if len(f.FormerControllers) != maxFormer || slices.Contains(f.FormerControllers, f.Controllers[0]) {
		t.Errorf("%d former controllers", len(f.FormerControllers))
	}
}

// A folder whose replica.json cannot be read at a start, which may be mended, stays where it is, and is not told as missing. So does one
// of another version.
func TestUnreadableReplicaFile(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{ damaged":      "replica.json is damaged",
		`{"version": 2}`: "replica.json has format version 2, this program knows 1",
	} {
		keepsReplicaFile(t, text, want)
	}
}

// keepsReplicaFile holds that a replica is parked because of want when its replica.json has this text, and that the file stays.
func keepsReplicaFile(t *testing.T, text, want string) {
	t.Helper()
	id := ids.GroupID{7}
	dir := t.TempDir()
	folder := filepath.Join(dir, "groups", id.String())
	if err := vfs.MkdirDurable(vfs.OS, folder); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "replica.json")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	n := &Node{o: NodeOptions{FS: vfs.OS, Dir: dir}, log: zerolog.Nop(), ctx: context.Background(), replicas: map[ids.GroupID]*hosted{}}
	n.loadKnown()
	inc := ids.NewUUID(nil)
	for range 2 {
		n.reconcileReplica(ids.ClusterID{1}, id, &controllerpb.WantedReplica{GroupName: "g", ReplicaId: 4, Incarnation: inc[:], Starts: 1})
		if h := n.replicas[id]; h == nil || h.missing || !strings.Contains(h.parked, want) {
			t.Fatalf("the replica is %+v, want it parked for its file: %s", h, want)
		}
		if kept, err := os.ReadFile(file); err != nil || string(kept) != text {
			t.Fatalf("the file has %q, %v", kept, err)
		}
	}
}

// TestAnswersForAnotherReplica: what a controller says of the replica that was here before, or of the one that comes, is not for the one
// that is here.
func TestAnswersForAnotherReplica(t *testing.T) {
	t.Parallel()
	id := ids.GroupID{7}
	dir := t.TempDir()
	if err := vfs.MkdirDurable(vfs.OS, filepath.Join(dir, "groups", id.String())); err != nil {
		t.Fatal(err)
	}
	h := &hosted{file: replicaFile{Group: "g", Replica: 7}}
	n := &Node{o: NodeOptions{FS: vfs.OS, Dir: dir}, log: zerolog.Nop(), ctx: context.Background(), replicas: map[ids.GroupID]*hosted{id: h}}
	inc := ids.NewUUID(nil)
	n.reconcileReplica(ids.ClusterID{1}, id, &controllerpb.WantedReplica{GroupName: "g", ReplicaId: 4, Incarnation: inc[:], Starts: 9, Lost: "wiped"})
	if n.replicas[id] != h || h.parked != "" || h.file.Lost != "" {
		t.Fatalf("replica 7 was told what became of replica 4: parked %q, lost %q", h.parked, h.file.Lost)
	}
	h.parked = "it cannot be opened"
	// Replica 9 was here, and the folder of replica 7 was brought back: it goes, and 9 is reported as missing.
	n.reconcileReplica(ids.ClusterID{1}, id, &controllerpb.WantedReplica{GroupName: "g", ReplicaId: 9, Incarnation: inc[:]})
	if n.replicas[id] != nil {
		t.Fatal("replica 7 is here though replica 9 has followed it")
	}
	n.reconcileReplica(ids.ClusterID{1}, id, &controllerpb.WantedReplica{GroupName: "g", ReplicaId: 9, Incarnation: inc[:]})
	if h := n.replicas[id]; h == nil || !h.missing || h.file.Replica != 9 {
		t.Fatalf("replica 9 has no folder: %+v", h)
	}
}
