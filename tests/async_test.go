package tests

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/tests/cluster"
)

// reboot makes the logs of a node that does not run tell of another boot of the machine, as after a loss of power. What was written is
// all there; the node cannot know that.
func reboot(t *testing.T, c *cluster.Cluster, node string) {
	t.Helper()
	changeMeta(t, c, node, func([]byte) {})
}

// changeMeta is reboot, with more to change in each slot: see the meta file in docs/format/commitlog.md.
func changeMeta(t *testing.T, c *cluster.Cluster, node string, change func(slot []byte)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(c.Dir, node, "groups", "*", "log", "meta"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no log of %s in %s: %v", node, c.Dir, err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for slot := range slices.Chunk(b, 4096) {
			copy(slot[152:], "another boot of the machine that this node is on")
			change(slot)
			binary.BigEndian.PutUint32(slot[4092:], crc32.Checksum(slot[:4092], crc32.MakeTable(crc32.Castagnoli)))
		}
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A group that flushes asynchronously: killed processes lose nothing and keep their identities; a replica whose machine lost its power is
// followed by a new one.
func TestAsyncFlush(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 1, Args: []string{"--flush", "async"}})
	l := startOwnLoad(t, c, "Async", senders)
	l.awaitMore(t, 500, 60*time.Second)
	all := []string{"n1", "n2", "n3"}
	ids := map[string]uint64{}
	for _, n := range all {
		ids[n] = replicaOn(t, c, n)
	}
	kill(t, c, all...)
	restart(t, c, all...)
	voters(t, c, all...)
	l.awaitMore(t, 200, 60*time.Second)
	for _, n := range all {
		if id := replicaOn(t, c, n); id != ids[n] {
			t.Errorf("after a kill the replica of %s has id %d, it had %d", n, id, ids[n])
		}
	}
	kill(t, c, "n2")
	voters(t, c, "n1", "n3")
	reboot(t, c, "n2")
	restart(t, c, "n2")
	voters(t, c, all...)
	if id := replicaOn(t, c, "n2"); id <= ids["n2"] {
		t.Errorf("the replica of %s has id %d, the lost one had %d", "n2", id, ids["n2"])
	}
	l.awaitMore(t, 100, 60*time.Second)
	l.check(t, c)
}

// framesOf reads the log of the one group of a node that does not run.
func framesOf(t *testing.T, c *cluster.Cluster, node string) (file string, frames []commitlog.Frame) {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(c.Dir, node, "groups", "*"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("%d groups on %s: %v", len(dirs), node, err)
	}
	var f struct {
		Cluster     string `json:"cluster"`
		GroupID     string `json:"groupID"`
		SegmentSize int64  `json:"segmentSize"`
	}
	b, err := os.ReadFile(filepath.Join(dirs[0], "replica.json"))
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err != nil {
		t.Fatal(err)
	}
	clusterID, err1 := ids.ParseUUID(f.Cluster)
	group, err2 := ids.ParseUUID(f.GroupID)
	l, err := commitlog.Open(commitlog.Options{Dir: filepath.Join(dirs[0], "log"), Cluster: ids.ClusterID(clusterID), Group: ids.GroupID(group),
		SegmentSize: f.SegmentSize, Async: true, ReadOnly: true})
	if err := errors.Join(err1, err2, err); err != nil {
		t.Fatal(err)
	}
	defer l.Close(false)
	for frame, err := range l.Frames(l.FirstIndex()) {
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, slices.Clone(frame))
	}
	return filepath.Join(dirs[0], "log", fmt.Sprintf("%020d.log", 0)), frames
}

// losePower takes the last frames from a node that does not run, as a loss of power does while they are not synced: all of them, or only the
// first of them, so that a hole is there. It returns the frames that are kept.
func losePower(t *testing.T, c *cluster.Cluster, node string, lose int, hole bool) []commitlog.Frame {
	t.Helper()
	name, frames := framesOf(t, c, node)
	kept, gone := frames[:len(frames)-lose], frames[len(frames)-lose:]
	first, last := gone[0], gone[lose-1]
	if first.Term() != last.Term() || first.Term() != kept[len(kept)-1].Term() {
		t.Fatalf("%s: the last %d frames are of several terms: the load was too short", node, lose)
	}
	size := first.Size()
	if !hole {
		size = int(last.Offset()-first.Offset()) + last.Size()
	}
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(make([]byte, size), int64(first.Offset()))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	changeMeta(t, c, node, func(slot []byte) {
		if binary.BigEndian.Uint64(slot[72:]) > uint64(first.Offset()) { // the durable bound was nearer than that
			binary.BigEndian.PutUint64(slot[64:], uint64(first.Index()-1))
			binary.BigEndian.PutUint64(slot[72:], uint64(first.Offset()))
		}
		binary.BigEndian.PutUint64(slot[216:], uint64(last.Offset())+uint64(last.Size())) // of the batch that was not synced
	})
	return kept
}

// messagesOf counts the messages of a topic, by their bodies.
func messagesOf(t *testing.T, frames []commitlog.Frame, topic string) map[string]int {
	t.Helper()
	found := map[string]int{}
	for _, f := range frames {
		for rec := range f.Records() {
			if rec.Type != state.RecordMessage {
				continue
			}
			m, _, err := message.Decode(rec.Body[state.MessagePrefixSize:])
			if err != nil {
				t.Fatal(err)
			}
			if m.Topic == topic {
				found[string(m.Body)]++
			}
		}
	}
	return found
}

// unclean counts the unclean elections of the group, and returns why it has no master.
func unclean(t *testing.T, c *cluster.Cluster) (n int, stuck string) {
	t.Helper()
	var list []struct {
		Uncleans int    `json:"uncleanElections"`
		Stuck    string `json:"stuck"`
	}
	if err := c.AdminJSON(within(t, 20*time.Second), &list, "group", "list"); err != nil || len(list) != 1 {
		t.Fatalf("%d groups: %v", len(list), err)
	}
	return list[0].Uncleans, list[0].Stuck
}

// startLost starts nodes whose replicas may be lost: such a node is not ready, but it runs.
func startLost(t *testing.T, c *cluster.Cluster, nodes ...string) {
	t.Helper()
	for _, n := range nodes {
		_, _ = c.Run(within(t, time.Minute), "dev", "start", n, "--data", c.Dir, "--timeout", "1s")
	}
}

// All machines of a group that flushes asynchronously lose their power, and each replica another part of its end. When all have told what
// they have, the longest log goes on by itself, with exactly what it has; an intact replica that has all is waited for; and for
// one that never comes back an operator decides.
func TestPowerLossOfAll(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 1, Args: []string{"--flush", "async"}})
	all := []string{"n1", "n2", "n3"}
	for round, r := range []struct {
		lose  map[string]int // frames of each that lost its power
		hole  string         // this one lost the first of them only
		last  string         // the group waits for this one, which is started last
		never bool           // it is not started, and an operator says so
	}{
		{map[string]int{"n1": 40, "n2": 20, "n3": 30}, "n2", "n1", false},
		{map[string]int{"n1": 20, "n2": 30}, "n1", "n3", false},
		{map[string]int{"n1": 20, "n2": 30, "n3": 10}, "", "n3", true},
	} {
		topic := fmt.Sprintf("Async%d", round)
		l := startOwnLoad(t, c, topic, senders)
		l.awaitMore(t, 500, 60*time.Second)
		kill(t, c, all...)
		acked := l.end()
		var longest []commitlog.Frame
		for _, n := range all {
			_, kept := framesOf(t, c, n)
			if r.lose[n] > 0 {
				kept = losePower(t, c, n, r.lose[n], n == r.hole)
			}
			if (n != r.last || !r.never) && len(kept) > len(longest) {
				longest = kept
			}
		}
		startLost(t, c, slices.DeleteFunc(slices.Clone(all), func(n string) bool { return n == r.last })...)
		eventually(t, 30*time.Second, "the group waits for "+r.last, func() (bool, error) {
			n, stuck := unclean(t, c)
			if n != round {
				return false, fmt.Errorf("%d unclean elections while %s is silent", n, r.last)
			}
			return strings.Contains(stuck, "on node "+r.last+" is silent"), nil
		})
		if r.never {
			var winner string
			for _, n := range []string{"n1", "n2"} {
				if _, kept := framesOf(t, c, n); len(kept) == len(longest) {
					winner = fmt.Sprint(replicaOn(t, c, n))
				}
			}
			if out, err := c.Admin(within(t, 30*time.Second), "group", "elect-unclean", "g1", "--replica", winner, "--stopped", fmt.Sprint(replicaOn(t, c, r.last)), "--yes"); err != nil {
				t.Fatalf("elect-unclean: %v\n%s", err, out)
			}
		}
		if !r.never {
			startLost(t, c, r.last)
		}
		eventually(t, 60*time.Second, "an unclean election", func() (bool, error) {
			n, _ := unclean(t, c)
			return n > round, nil
		})
		if r.never {
			startLost(t, c, r.last)
		}
		voters(t, c, all...)
		if n, _ := unclean(t, c); n != round+1 {
			t.Errorf("round %d: %d unclean elections", round, n)
		}
		want, got := messagesOf(t, longest, topic), readEverywhere(t, c, topic)
		lost := 0
		for body := range acked {
			if got[body] == 0 {
				lost++
			}
		}
		t.Logf("round %d: %d sends answered OK, %d of them lost; %d messages in the longest log", round, len(acked), lost, len(want))
		if !maps.Equal(got, want) {
			t.Errorf("round %d: %d messages are there, the longest log had %d", round, len(got), len(want))
		}
		if len(r.lose) < len(all) && lost > 0 {
			t.Errorf("round %d: %d messages that were answered OK are lost, and one replica was intact", round, lost)
		}
		by := "because of asynchronous flush"
		if r.never {
			by = "by an operator"
		}
		out, err := c.Admin(within(t, 20*time.Second), "group", "show", "g1")
		if err != nil || !strings.Contains(out, "UNCLEAN election of replica") || !strings.Contains(out, by) {
			t.Errorf("round %d: group show does not tell of the election: %v\n%s", round, err, out)
		}
	}
}
