package broker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/controller/controllerpb"
)

// A node tells of the nodes that it shares a group with whether it reaches them, while they are out of the voters too, and of no other.
func TestPeerMetrics(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	node := c.master("g1")
	away := c.besides(node)
	const connected = "ledgermq_node_peer_connected"
	peers := func(want map[string]float64) {
		t.Helper()
		eventually(t, 20*time.Second, func() error {
			have := map[string]float64{}
			for name, v := range c.series(node) {
				if strings.HasPrefix(name, connected) {
					have[name] = v
				}
			}
			if fmt.Sprint(have) != fmt.Sprint(want) {
				return fmt.Errorf("%v, want %v", have, want)
			}
			return nil
		})
	}
	want := map[string]float64{}
	for id := range c.nodes {
		if id != node {
			want[fmt.Sprintf("%s{peer=%q}", connected, id)] = 1
		}
	}
	peers(want)
	lost := fmt.Sprintf("{peer=%q}", away)
	if n := c.series(node)["ledgermq_node_peer_connects_total"+lost]; n < 2 {
		t.Errorf("%v connections were made to a node that is connected by two", n)
	}

	c.stop(away)
	c.masterOfTheRest("g1")
	want[connected+lost] = 0
	peers(want)
	eventually(t, 20*time.Second, func() error {
		if n, there := c.series(node)["ledgermq_node_peer_dropped_total"+lost]; n == 0 {
			return fmt.Errorf("%v messages to it were dropped (%v)", n, there)
		}
		return nil
	})

	cl, err := controller.Dial([]string{c.ctlAt}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	eventually(t, 20*time.Second, func() error {
		_, err := cl.SetMode(t.Context(), &controllerpb.SetModeRequest{Group: "g1", Answers: 2, Members: 2})
		return err
	})
	delete(want, connected+lost)
	peers(want)
	if _, there := c.series(node)["ledgermq_node_peer_dropped_total"+lost]; there {
		t.Error("what was dropped for a node that left the group is told still")
	}
}
