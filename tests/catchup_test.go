package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// A server's disk is wiped after its group has given up the front of its log: nobody has the log from its beginning. The new replica
// gets the state, and the log from the front on; it votes, everything can be read from it, and the logs are equal.
func TestWipedBehindTheFront(t *testing.T) {
	t.Parallel()
	few := []string{"--broker-retention-bytes", fmt.Sprint(1 << 20), "--broker-drain", "0s"}
	g := startGuide(t, few...)
	ctx := within(t, 5*time.Minute)
	eventually(t, time.Minute, "the group", func() (bool, error) {
		_, err := g.run(ctx, "admin", "group", "create", "g1", "--mode", "2-3", "--on", "n1,n2,n3", "--segment-size", fmt.Sprint(16<<20))
		return err == nil, nil
	})
	cl, err := client.New([]string{g.addr(1, 0), g.addr(2, 0), g.addr(3, 0)})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	p := cl.Producer()
	send := func(topic string, body []byte) error {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		_, err := p.Send(ctx, client.Message{Topic: topic, Body: body})
		return err
	}
	const beginning = "00000000000000000000.log"
	begins := func(i int) string {
		logs, err := filepath.Glob(filepath.Join(g.dir, fmt.Sprintf("s%d", i), "broker", "groups", "*", "log", "*.log"))
		if err != nil || len(logs) == 0 {
			return beginning
		}
		return filepath.Base(logs[0])
	}
	large := bytes.Repeat([]byte("x"), 3<<20)
	for sent := 0; sent < 60; { // two checkpoints, of 64 MiB each, and more
		if err := send("Large", large); err != nil {
			t.Logf("send %d: %v", sent, err)
			continue
		}
		sent++
	}
	eventually(t, time.Minute, "the front of the log to be given up", func() (bool, error) {
		return begins(1) > beginning && begins(2) > beginning && begins(3) > beginning, nil
	})
	type replica struct {
		Node   string `json:"node"`
		ID     uint64 `json:"replica"`
		Client string `json:"client"`
		Voter  bool   `json:"voter"`
		Live   bool   `json:"live"`
	}
	replicas := func() (list []replica) {
		var groups []struct {
			Replicas []replica `json:"replicas"`
		}
		out, err := g.run(ctx, "admin", "group", "list", "--json")
		if err == nil {
			err = json.Unmarshal([]byte(out), &groups)
		}
		if err != nil || len(groups) != 1 {
			return nil // the controllers elect
		}
		return groups[0].Replicas
	}
	const small = 100
	for round, victim := range []int{1, 3} {
		node := fmt.Sprintf("n%d", victim)
		var old uint64
		eventually(t, time.Minute, "three voters", func() (bool, error) {
			voters := 0
			for _, r := range replicas() {
				if r.Voter && r.Live {
					voters++
				}
				if r.Node == node {
					old = r.ID
				}
			}
			return voters == 3, nil
		})
		g.stop(t, victim)
		if err := os.RemoveAll(filepath.Join(g.dir, fmt.Sprintf("s%d", victim), "broker", "groups")); err != nil {
			t.Fatal(err)
		}
		g.start(t, victim, few...)
		for i := range small {
			eventually(t, 30*time.Second, "a send", func() (bool, error) {
				return send("Small", fmt.Appendf(nil, "%d in round %d", i, round)) == nil, nil
			})
		}
		eventually(t, 2*time.Minute, "the new replica to vote", func() (bool, error) {
			for _, r := range replicas() {
				if r.Node == node {
					return r.ID > old && r.Voter && r.Live, nil
				}
			}
			return false, nil
		})
		if begins(victim) == beginning {
			t.Errorf("the log of %s goes back to the beginning", node)
		}
	}
	route, err := cl.Route(ctx, "Small")
	if err != nil || len(route.Groups) != 1 {
		t.Fatalf("the route of Small: %+v, %v", route, err)
	}
	found := 0
	for q := range route.Groups[0].ReadQueues {
		ref := client.QueueRef{Group: "g1", Topic: "Small", Queue: ids.QueueID(q)}
		high, err := cl.MaxOffset(ctx, ref)
		if err != nil {
			t.Fatal(err)
		}
		var first []byte
		for i, r := range replicas() {
			ref.Broker = r.Client
			raw := readQueue(t, ctx, cl, ref, high)
			if i == 0 {
				first = raw
				found += int(high)
			} else if !bytes.Equal(raw, first) {
				t.Errorf("%v: %s has other bytes (%d and %d)", ref, r.Node, len(raw), len(first))
			}
		}
	}
	if found < 2*small {
		t.Errorf("%d messages, %d were sent", found, 2*small)
	}
	for i := 1; i <= 3; i++ {
		g.stop(t, i)
	}
	out, err := g.run(ctx, "log", "verify", g.dir)
	if err != nil || !strings.Contains(out, "g1") {
		t.Errorf("log verify: %v\n%s", err, out)
	}
}
