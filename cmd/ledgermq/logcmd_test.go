package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// makeReplica makes a replica's folder of a node below dir, whose log has n frames, all of them committed; the first
// one has a message.
func makeReplica(t *testing.T, dir, node string, n int) (folder string) {
	t.Helper()
	cluster, group := ids.ClusterID{1}, ids.GroupID{2}
	folder = filepath.Join(dir, node, "groups", "ab")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(replicaJSON{Group: "g1", GroupID: ids.UUID(group).String(), Cluster: ids.UUID(cluster).String(), Replica: 1, SegmentSize: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	o := commitlog.Options{Dir: filepath.Join(folder, "log"), Cluster: cluster, Group: group, SegmentSize: 64 << 10, SmallSegments: true, FillAhead: -1}
	owner := raftlog.Owner{Commit: ids.Index(n)}.Encode()
	err = errors.Join(os.WriteFile(filepath.Join(folder, "replica.json"), text, 0o600), commitlog.Create(o, owner))
	if err != nil {
		t.Fatal(err)
	}
	l, err := commitlog.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		b := l.NewBuilder(l.Tail(), 1, 1)
		if _, _, ok := b.Reserve(state.RecordLeaseExtension, 1, 0, 8); !ok {
			t.Fatal("no room")
		}
		if i == 0 {
			if _, _, ok := b.Reserve(state.RecordMessage, 1, 0, 8); !ok {
				t.Fatal("no room")
			}
		}
		if err := l.Append([]commitlog.Frame{b.Finish()}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(true); err != nil {
		t.Fatal(err)
	}
	return folder
}

// TestLogVerifyLooksAtAll holds that a replica that cannot be opened leaves no other one unchecked.
func TestLogVerifyLooksAtAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Remove(filepath.Join(makeReplica(t, dir, "n1", 3), "log", "meta")); err != nil {
		t.Fatal(err)
	}
	makeReplica(t, dir, "n2", 5)
	makeReplica(t, dir, "n3", 4)
	verify := func() verifiedGroup {
		t.Helper()
		code, out, stderr := runTool(t, "log", "verify", dir, "--json")
		var groups []verifiedGroup
		if err := json.Unmarshal([]byte(out), &groups); err != nil || code != 1 || len(groups) != 1 || len(groups[0].Replicas) != 3 {
			t.Fatalf("exit code %d, %v: %s%s", code, err, out, stderr)
		}
		return groups[0]
	}
	g := verify()
	if g.Equal || !strings.Contains(g.Replicas[0].Fault, "meta") || !strings.HasPrefix(g.Fault, "n1: ") {
		t.Errorf("a replica without meta: %+v", g)
	}
	if g.From != 1 || g.To != 4 || g.Frames != 4 || g.Replicas[1].Last != 5 || g.Replicas[1].Fault != "" || g.Replicas[2].Fault != "" {
		t.Errorf("the others: %+v", g)
	}

	// Damage in another one, among the frames that are compared, is reported beside it.
	name := filepath.Join(dir, "n3", "groups", "ab", "log", fmt.Sprintf("%020d.log", 0))
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	data[4096+70] ^= 1
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	g = verify()
	if g.Replicas[0].Fault == "" || g.Replicas[1].Fault != "" || g.Replicas[2].Fault == "" {
		t.Errorf("two bad replicas: %+v", g)
	}
}

// TestLogVerifyPassesOverLost: a replica that was given up is not one of the group any more. Its folder can still be looked at.
func TestLogVerifyPassesOverLost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	damaged := makeReplica(t, dir, "n1", 3)
	lost := filepath.Join(dir, "n1", "lost")
	err := errors.Join(os.Remove(filepath.Join(damaged, "log", "meta")), os.MkdirAll(lost, 0o755), os.Rename(damaged, filepath.Join(lost, "ab-1")))
	if err != nil {
		t.Fatal(err)
	}
	makeReplica(t, dir, "n1", 4)
	makeReplica(t, dir, "n2", 4)
	if code, out, stderr := runTool(t, "log", "verify", dir); code != 0 || strings.Contains(out, "lost") {
		t.Errorf("exit code %d: %s%s", code, out, stderr)
	}
	if code, out, stderr := runTool(t, "log", "verify", lost+"/"); code != 1 || !strings.Contains(out+stderr, "meta") {
		t.Errorf("the lost one by its name: exit code %d: %s%s", code, out, stderr)
	}
}

// TestLogDump holds the names of records and what --from and --count mean.
func TestLogDump(t *testing.T) {
	t.Parallel()
	folder := makeReplica(t, t.TempDir(), "n1", 5)
	code, out, stderr := runTool(t, "log", "dump", folder, "--from", "2", "--count", "3", "--records")
	var frames []string
	for _, line := range strings.Split(out, "\n") {
		if f := strings.Fields(line); len(f) > 0 {
			frames = append(frames, f[0])
		}
	}
	if got := strings.Join(frames, " "); code != 0 || got != "2 lease-extension 3 lease-extension 4 lease-extension" {
		t.Errorf("exit code %d: %s%s", code, out, stderr)
	}
	for _, c := range []struct {
		args []string
		code int
		want string // on standard error
	}{
		{nil, 0, "5 frames, 6 records, 1 message\n"},
		{[]string{"--from", "5"}, 0, "1 frame, 1 record, 0 messages\n"},
		{[]string{"--from", "6"}, 2, "--from 6 is beyond the log, which has 1 to 5"},
	} {
		code, out, stderr := runTool(t, append([]string{"log", "dump", folder}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.want) || strings.Count(out, "messages 1 ") > 1 {
			t.Errorf("%v: exit code %d: %s%s", c.args, code, out, stderr)
		}
	}
}
