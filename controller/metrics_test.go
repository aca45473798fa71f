package controller

import (
	"fmt"
	"testing"

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
		"groups": 2, "groups_pending": 1, "groups_without_master": 1, "nodes": 4, "nodes_silent": 3, "replicas_lost": 0})
	n.mu.Lock()
	n.lead["ready"] = 1<<32 | 1
	n.mu.Unlock()
	want(map[string]float64{"groups_without_master": 0})
	stop()
	want(map[string]float64{"groups_without_master": 1, "nodes_silent": 4})
	if got := metrics(t, s); got["ledgermq_controller_term"] < 1 || got["ledgermq_controller_applied_index"] < 5 {
		t.Errorf("%v", got)
	}
}
