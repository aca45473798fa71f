package broker

import (
	"path/filepath"
	"testing"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// A lost replica tells what it has only if it could go on with it: a state ahead of the log would pass over what comes next.
func TestGoesWith(t *testing.T) {
	t.Parallel()
	group := ids.GroupID{7}
	for _, c := range []struct {
		name          string
		own, received ids.Index // of the state snapshot; 0: none
		first, last   ids.Index
		good          bool
	}{
		{"no snapshot, the whole log", 0, 0, 1, 90, true},
		{"no snapshot, an empty log", 0, 0, 1, 0, true},
		{"a snapshot within the log", 50, 0, 1, 90, true},
		{"a snapshot of the log's end", 90, 0, 1, 90, true},
		{"a snapshot ahead of the log", 91, 0, 1, 90, false},
		{"no snapshot, and the log has no front", 0, 0, 40, 90, false},
		{"a snapshot that reaches the front", 39, 0, 40, 90, true},
		{"a snapshot that does not", 38, 0, 40, 90, false},
		{"one from another replica", 0, 60, 40, 90, true},
		{"one from another replica, in place of an old one", 20, 60, 40, 90, true},
		{"one from another replica, ahead of the log", 0, 95, 40, 90, false},
	} {
		fs := vfs.NewMem()
		if c.own > 0 {
			if _, err := state.WriteSnapshot(fs, "r", state.SnapshotMeta{Group: group, Index: c.own, Term: 1, Offset: 4096}, state.New()); err != nil {
				t.Fatal(err)
			}
		}
		if c.received > 0 {
			if _, err := state.WriteSnapshot(fs, "other", state.SnapshotMeta{Group: group, Index: c.received, Term: 1, Offset: 4096}, state.New()); err != nil {
				t.Fatal(err)
			}
			names, err := fs.List("other")
			if err != nil || len(names) != 1 {
				t.Fatal(names, err)
			}
			b, err := vfs.ReadFile(fs, filepath.Join("other", names[0]))
			if err == nil {
				err = vfs.MkdirDurable(fs, "r")
			}
			if err == nil {
				err = vfs.WriteFileAtomic(fs, filepath.Join("r", receivedName), b)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := goesWith(fs, "r", group, c.first, c.last); (err == nil) != c.good {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
