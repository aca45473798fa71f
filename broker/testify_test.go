package broker

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// What a node was told to want of a group is there at its next start. One that cannot be read is as if it had never been told.
func TestWishes(t *testing.T) {
	t.Parallel()
	n := &Node{o: NodeOptions{Dir: t.TempDir(), FS: vfs.OS}}
	id := ids.GroupID{1}
	dir := filepath.Join(n.o.Dir, "groups", id.String())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if w := n.loadWishes(dir); w != nil {
		t.Errorf("there is %v before", w)
	}
	want := &controllerpb.GroupWishes{Answers: 2, Members: 3, MinIsr: 1, PreferredNode: "n2", Replicas: []*controllerpb.WishedReplica{
		{ReplicaId: 1, Slot: 1, NodeId: "n1"}, {ReplicaId: 4, Slot: 2, NodeId: "n2", Learner: true}, {ReplicaId: 3, Slot: 3, NodeId: "n3", Leaving: true}}}
	h := &hosted{}
	n.keepWishes(id, h, &controllerpb.WantedReplica{Wishes: want})
	if got := n.loadWishes(dir); !proto.Equal(got, want) || !proto.Equal(h.wishes, want) {
		t.Errorf("it is %v, and %v", got, h.wishes)
	}
	file := filepath.Join(dir, wishesName)
	for text, known := range map[string]bool{`{"answers":2,"later":{}}`: true, `{"answers`: false, "": false} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := n.loadWishes(dir); (got.GetAnswers() == 2) != known {
			t.Errorf("%q is %v", text, got)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	n.keepWishes(id, h, &controllerpb.WantedReplica{Wishes: want, Lost: "given up"})
	if got := n.loadWishes(dir); got != nil {
		t.Errorf("what is wanted of a lost replica was written: %v", got)
	}
}

// What a node keeps of replicas that were taken out is told too; what cannot be read is not.
func TestRetiredTestimonies(t *testing.T) {
	t.Parallel()
	n := &Node{o: NodeOptions{ID: "n1", Dir: t.TempDir(), FS: vfs.OS}}
	if got := n.retiredTestimonies(); got != nil {
		t.Errorf("without a folder: %v", got)
	}
	lost := filepath.Join(n.o.Dir, LostFolder)
	group, inc := ids.NewUUID(nil), ids.NewUUID(nil)
	f := replicaFile{Version: replicaFileVersion, Cluster: ids.NewUUID(nil).String(), GroupID: group.String(), Group: "g", Replica: 3, Slot: 2, Incarnation: inc.String()}
	for _, name := range []string{"whole", "damaged", "empty"} {
		if err := vfs.MkdirDurable(vfs.OS, filepath.Join(lost, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.save(vfs.OS, filepath.Join(lost, "whole")), os.WriteFile(filepath.Join(lost, "damaged", "replica.json"), []byte("{"), 0o644)); err != nil {
		t.Fatal(err)
	}
	got := n.testimony().Retired
	if len(got) != 1 || got[0].ReplicaId != 3 || got[0].Slot != 2 || string(got[0].GroupId) != string(group[:]) || string(got[0].Incarnation) != string(inc[:]) {
		t.Errorf("it tells %v", got)
	}
}

// A node that holds to a recovery does so at its next start, and to none of before.
func TestHoldTo(t *testing.T) {
	t.Parallel()
	n := &Node{o: NodeOptions{ID: "n1", Dir: t.TempDir(), FS: vfs.OS}}
	var err error
	if n.file, err = loadNodeFile(n.o.FS, n.o.Dir, n.o.ID); err != nil {
		t.Fatal(err)
	}
	if n.ctl, err = controller.Dial([]string{"127.0.0.1:1"}, nil); err != nil {
		t.Fatal(err)
	}
	defer n.ctl.Close()
	first, second := ids.NewUUID(nil), ids.NewUUID(nil)
	for _, tt := range []struct {
		number uint32
		token  ids.UUID
		want   uint32
	}{{0, first, 0}, {2, first, 2}, {1, second, 2}, {2, second, 2}, {3, second, 3}} {
		if err := n.holdTo(&controllerpb.Recovery{Number: tt.number, Token: tt.token[:]}); err != nil {
			t.Fatal(err)
		}
		file, err := loadNodeFile(n.o.FS, n.o.Dir, n.o.ID)
		if err != nil {
			t.Fatal(err)
		}
		if r := file.recovery(); r.GetNumber() != tt.want || tt.want == 2 && string(r.GetToken()) != string(first[:]) {
			t.Errorf("after %d it holds to %v", tt.number, r)
		}
	}
	if err := n.holdTo(&controllerpb.Recovery{Number: 9}); err == nil {
		t.Error("a recovery without a token was taken")
	}
}
