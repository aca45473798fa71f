package controller

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics gathers what a member tells now.
func metrics(t *testing.T, s *Server) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	must(t, registry.Register(s))
	families, err := registry.Gather()
	must(t, err)
	out := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		out[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	return out
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	s := c.leader()
	for _, id := range []string{"n1", "n2", "n3"} {
		newNode(t, c, id).mustRegister()
	}
	n := newNode(t, c, "n4")
	n.mustRegister()
	for name, nodes := range map[string][]string{"pending": {"n1", "n4"}, "ready": {"n4"}} {
		if _, err := c.client().CreateGroup(ctxFor(t), request(name, 1, uint32(len(nodes)), nodes...)); err != nil {
			t.Fatal(err)
		}
	}
	stop := n.live()
	want := func(values map[string]float64) {
		t.Helper()
		eventually(t, "metrics", func() error {
			got := metrics(t, s)
			for name, v := range values {
				if got["ledgermq_controller_"+name] != v {
					return fmt.Errorf("%s is %v, want %v", name, got["ledgermq_controller_"+name], v)
				}
			}
			return nil
		})
	}
	want(map[string]float64{"leader": 1, "failed": 0, "state_mismatches_total": 0,
		"groups": 2, "groups_pending": 1, "groups_without_master": 1, "nodes": 4, "nodes_silent": 3, "replicas_lost": 0, "groups_degraded": 0, "groups_one_copy": 0, "group_epoch": 1, "group_voters": 1})
	n.mu.Lock()
	n.lead["ready"] = 1<<32 | 1
	n.mu.Unlock()
	want(map[string]float64{"groups_without_master": 0})
	n5 := newNode(t, c, "n5")
	n5.mustRegister()
	defer n5.live()()
	if _, err := c.client().CreateGroup(ctxFor(t), request("pair", 2, 2, "n4", "n5")); err != nil {
		t.Fatal(err)
	}
	cmd := &issueEpochCommand{Epoch: 1}
	eventually(t, "the pair is ready", func() (err error) {
		s.readState(func(st *State) {
			pair := st.groups["pair"]
			if pair.Epoch == 0 {
				err = fmt.Errorf("it waits for %v", pair.waitingFor())
			}
			cmd.Group, cmd.Voters = pair.ID, voterSet{pair.Replicas[0].ID}
		})
		return err
	})
	must(t, s.propose(ctxFor(t), cmd))
	want(map[string]float64{"groups_degraded": 1, "groups_one_copy": 1, "group_epoch": 2})
	stop()
	want(map[string]float64{"groups_without_master": 2, "nodes_silent": 4})
	if got := metrics(t, s); got["ledgermq_controller_term"] < 1 || got["ledgermq_controller_applied_index"] < 5 {
		t.Errorf("%v", got)
	}
}

// A controller that has just begun to lead calls nobody silent, and no group masterless, before the nodes had time to report.
func TestNotHeardYet(t *testing.T) {
	t.Parallel()
	var now atomic.Int64 // the clock of every controller here: it stands still unless it is told to go on
	now.Store(time.Now().UnixNano())
	c := newCluster(t, 1, func(o *Options) { o.Clock = func() time.Time { return time.Unix(0, now.Load()) } })
	c.leader()
	n1, n2 := newNode(t, c, "n1"), newNode(t, c, "n2")
	n1.mustRegister()
	n2.mustRegister()
	if _, err := c.client().CreateGroup(ctxFor(t), request("g1", 2, 2, "n1", "n2")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a master", func() error {
		n1.mustBeat()
		n2.mustBeat()
		n1.mu.Lock()
		n1.lead["g1"] = 1<<32 | 1
		n1.mu.Unlock()
		if g, err := c.client().GetGroup(ctxFor(t), "g1"); err != nil || !g.GetMaster().GetLive() {
			return fmt.Errorf("%v, %v", g, err)
		}
		return nil
	})
	want := func(when string, s *Server, node, master [2]bool, silent, masterless float64) {
		t.Helper()
		nodes, err := c.client().ListNodes(ctxFor(t))
		must(t, err)
		g, err := c.client().GetGroup(ctxFor(t), "g1")
		must(t, err)
		r := g.GetReplicas()[0]
		if got := [2]bool{nodes[0].GetLive(), nodes[0].GetNotHeardYet()}; got != node || got != [2]bool{r.GetLive(), r.GetNotHeardYet()} {
			t.Errorf("%s: n1 is live, not heard yet: %v, replica %v; want %v", when, got, r, node)
		}
		if got := [2]bool{g.GetMaster().GetLive(), g.GetMaster().GetNotHeardYet()}; got != master {
			t.Errorf("%s: the master is live, not heard yet: %v, want %v", when, got, master)
		}
		m := metrics(t, s)
		if m["ledgermq_controller_nodes_silent"] != silent || m["ledgermq_controller_groups_without_master"] != masterless {
			t.Errorf("%s: %v nodes silent, want %v; %v groups without a master, want %v", when,
				m["ledgermq_controller_nodes_silent"], silent, m["ledgermq_controller_groups_without_master"], masterless)
		}
	}
	c.restart("c1")
	s := c.leader()
	want("at first", s, [2]bool{false, true}, [2]bool{false, true}, 0, 0)
	n1.mustBeat()
	want("with one report", s, [2]bool{true, false}, [2]bool{true, false}, 0, 0)
	n1.mu.Lock()
	delete(n1.lead, "g1")
	n1.mu.Unlock()
	n1.mustBeat()
	want("when n1 leads no more", s, [2]bool{true, false}, [2]bool{false, true}, 0, 0) // n2 may lead
	now.Add(int64(hearing * s.o.NodeSilence))
	want("later", s, [2]bool{false, false}, [2]bool{false, false}, 2, 1)
}
