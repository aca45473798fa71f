package tests

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/tests/cluster"
)

// metric returns the lines of a member's metrics that begin with a name.
func metric(t *testing.T, c *cluster.Cluster, id, name string) (lines []string) {
	t.Helper()
	m, err := c.Member(id)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get("http://" + c.At(m.Ports["http"]) + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, name) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// removed returns the rows of the reports of what an unclean election removed on a node, by message id.
func removed(t *testing.T, c *cluster.Cluster, node string) map[string][]string {
	t.Helper()
	var reports []string
	eventually(t, time.Minute, "the report of "+node, func() (bool, error) {
		var err error
		reports, err = filepath.Glob(filepath.Join(c.Dir, node, "lost", "*", "removed.txt"))
		return len(reports) == 1, err
	})
	text, err := os.ReadFile(reports[0])
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[string][]string)
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(strings.TrimSpace(line), "\t"); !strings.HasPrefix(line, "#") {
			rows[cells[3]] = cells
		}
	}
	return rows
}

// Mode 2-3 with a min ISR of two loses two nodes, one after the other, and the third one lacks what those two took together. Sends stop
// until an operator lets it go on alone; what is lost by that is listed on the nodes that had it, when they are back.
func TestUncleanElection(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 1})
	l := startOwnLoad(t, c, "Unclean", senders)
	l.awaitMore(t, 200, 60*time.Second)
	elect := func(args ...string) (string, error) {
		return c.Admin(within(t, 20*time.Second), append([]string{"group", "elect-unclean", "g1"}, args...)...)
	}
	_, err := elect("--replica", "2", "--stopped", "1,3", "--yes")
	refused(t, err, 1, "is master: nothing need be lost")
	kill(t, c, "n3")
	voters(t, c, "n1", "n2")
	cl, err := client.New(c.Namesrv)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	var only client.Receipt
	eventually(t, 30*time.Second, "a message that n3 lacks", func() (bool, error) {
		only, err = cl.Producer().Send(t.Context(), client.Message{Topic: "Unclean", Body: []byte("only:0"), Keys: []string{"order-7", "order-8"}})
		return err == nil, nil
	})
	l.awaitMore(t, 100, 60*time.Second)
	kill(t, c, "n1", "n2")
	l.awaitStop(t, time.Minute)
	restart(t, c, "n3")
	for _, bad := range []struct {
		says string
		args []string
	}{
		{"--stopped 1", []string{"--replica", "3", "--yes"}},
		{"--stopped 2", []string{"--replica", "3", "--stopped", "1", "--yes"}},
		{"was not heard", []string{"--replica", "1", "--stopped", "2", "--yes"}},
		{"not stopped", []string{"--replica", "3", "--stopped", "1,2,3", "--yes"}},
		{"no replica 9", []string{"--replica", "9", "--stopped", "1,2", "--yes"}},
	} {
		eventually(t, time.Minute, bad.says, func() (bool, error) {
			_, err := elect(bad.args...)
			if err == nil {
				return false, fmt.Errorf("%v was taken", bad.args)
			}
			return strings.Contains(err.Error(), bad.says) || bad.says == "not stopped" && strings.Contains(err.Error(), "is to be elected"), nil
		})
	}
	if _, err := c.Admin(within(t, 20*time.Second), "elect", "g1", "--node", "n3"); err == nil {
		t.Error("an election that may lose something was taken")
	}
	var said string
	eventually(t, time.Minute, "what it costs", func() (bool, error) {
		if said, err = elect("--replica", "3", "--stopped", "1,2"); err == nil {
			return false, errors.New("it was done without --yes")
		}
		return strings.Contains(err.Error(), "nothing was changed"), nil
	})
	for _, want := range []string{"May be lost:", "everything after entry", "replica 1 on node n1 gives up its id", "replica 2 on node n2 gives up its id"} {
		if !strings.Contains(said, want) {
			t.Errorf("the plan does not say %q:\n%s", want, said)
		}
	}
	if g := groups(t, c)[0]; g.Epoch != 2 {
		t.Errorf("a plan made epoch %d", g.Epoch)
	}
	shown, err := elect("--replica", "3", "--stopped", "1", "--stopped", "2", "--reason", "the site burnt", "--yes")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(shown, "NOTE: UNCLEAN ELECTION in epoch 3") || !strings.Contains(shown, "the site burnt") {
		t.Errorf("group show says\n%s", shown)
	}
	voters(t, c, "n3")
	l.awaitMore(t, 100, 60*time.Second)
	if lines := metric(t, c, "c1", "ledgermq_controller_group_unclean_elections_total"); len(lines) != 1 || !strings.HasSuffix(lines[0], " 1") {
		t.Errorf("the metrics say %v", lines)
	}

	restart(t, c, "n1", "n2")
	voters(t, c, "n1", "n2", "n3")
	if a, b := replicaOn(t, c, "n1"), replicaOn(t, c, "n2"); a < 4 || b < 4 {
		t.Errorf("n1 and n2 have the replicas %d and %d again", a, b)
	}
	acked := l.end()
	acked["only:0"] = true
	found := readEverywhere(t, c, "Unclean")
	var lost []string
	for body := range acked {
		if found[body] == 0 {
			lost = append(lost, body)
		}
	}
	if !slices.Contains(lost, "only:0") || len(lost) < 100 {
		t.Errorf("%d messages are lost, among them not what only n1 and n2 had", len(lost))
	}
	one, two := removed(t, c, "n1"), removed(t, c, "n2")
	if len(one) < len(lost) || len(two) < len(lost)-senders {
		t.Errorf("%d messages are lost, the reports list %d and %d", len(lost), len(one), len(two))
	}
	row := one[only.OffsetMessageID]
	want := []string{"Unclean", fmt.Sprint(only.Queue), fmt.Sprint(only.Offset), only.OffsetMessageID, only.MessageID, "order-7 order-8"}
	if len(row) != 8 || !slices.Equal(row[:6], want) {
		t.Errorf("the report of n1 has %q, want %q", row, want)
	}
	// Its body can be had, as the report says.
	folders, err := filepath.Glob(filepath.Join(c.Dir, "n1", "lost", "*"))
	if err != nil || len(folders) != 1 {
		t.Fatalf("what was given up on n1: %v, %v", folders, err)
	}
	dump, err := c.Run(within(t, time.Minute), "log", "dump", folders[0], "--records", "--json")
	if body := base64.StdEncoding.EncodeToString([]byte("only:0")); err != nil || !strings.Contains(dump, body) {
		t.Errorf("the dump of %s has not the body %s: %v", folders[0], body, err)
	}
}

// lostSite is the walk-through in which some of what was answered OK is lost, so that its load is not checked at the end.
func lostSite(t *testing.T, steps []step) {
	c := start(t, cluster.Options{Nodes: 4, Groups: 1, Mode: "2-3"})
	w := &walker{t: t, c: c, dir: c.Dir, load: startOwnLoad(t, c, "Site", 2)}
	w.env = append(w.shellEnv(), "LEDGERMQ_NAMESRV="+strings.Join(c.Namesrv, ","))
	w.load.awaitMore(t, 100, time.Minute)
	w.steps(steps)
	w.load.end()
	if found := readEverywhere(t, c, "Site"); len(found) < 300 {
		t.Errorf("%d messages are there", len(found))
	}
}
