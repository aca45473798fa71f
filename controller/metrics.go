package controller

import (
	"github.com/prometheus/client_golang/prometheus"
)

var (
	descLeader     = desc("leader", "1 while this controller leads.")
	descTerm       = desc("term", "Term of the controllers' own Raft group.")
	descApplied    = desc("applied_index", "Index up to which this controller has applied its log.")
	descFailed     = desc("failed", "1 when this controller takes no part any more.")
	descMismatches = desc("state_mismatches_total", "States of other controllers that differed from this one's at the same index.")

	// From the leader only.
	descGroups        = desc("groups", "Broker groups.")
	descPending       = desc("groups_pending", "Broker groups that wait for a node to create its replica.")
	descWithoutMaster = desc("groups_without_master", "Broker groups with an epoch whose master is not heard although every replica had the chance to report.")
	descDegraded      = desc("groups_degraded", "Broker groups whose SyncStateSet has fewer voters than their mode asks for.")
	descOneCopy       = desc("groups_one_copy", "Degraded broker groups in which an answered send is on one disk only, though the mode asks for more.")
	descEpoch         = groupDesc("group_epoch", "Newest epoch of a broker group: one more with each change of its SyncStateSet.")
	descVoters        = groupDesc("group_voters", "Voters in the newest epoch of a broker group.")
	descUnclean       = prometheus.NewDesc("ledgermq_controller_group_unclean_elections_total", "Elections of a broker group in which what only other replicas had was given up: by an operator, or by the controllers in a group that flushes asynchronously.", []string{"group"}, nil)
	descLost          = desc("replicas_lost", "Replicas whose identity was given up.")
	descNodes         = desc("nodes", "Registered nodes.")
	descSilent        = desc("nodes_silent", "Registered nodes that are not heard, although they had the chance to report.")
)

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("ledgermq_controller_"+name, help, nil, nil)
}

func groupDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("ledgermq_controller_"+name, help, []string{"group"}, nil)
}

// Describe lists the metrics of a controller.
func (s *Server) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descLeader, descTerm, descApplied, descFailed, descMismatches,
		descGroups, descPending, descWithoutMaster, descDegraded, descOneCopy, descEpoch, descVoters, descUnclean, descLost, descNodes, descSilent} {
		ch <- d
	}
}

// Collect measures now. Groups and nodes are told by the leader only, so that a sum over the members counts them once.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	flag := func(d *prometheus.Desc, b bool) {
		if b {
			gauge(d, 1)
		} else {
			gauge(d, 0)
		}
	}
	v := s.view.Load()
	flag(descLeader, v.ready)
	flag(descFailed, v.failure != "")
	gauge(descTerm, float64(v.term))
	ch <- prometheus.MustNewConstMetric(descMismatches, prometheus.CounterValue, float64(s.mismatches.Load()))
	m := s.member.Load()
	if m == nil {
		return
	}
	nodes := s.lead.nodesAt(s.o.Clock())
	m.stateMu.RLock()
	defer m.stateMu.RUnlock()
	gauge(descApplied, float64(m.applied.Index))
	if !v.ready {
		return
	}
	var pending, withoutMaster, degraded, oneCopy, lost, silent int
	for _, g := range m.state.groups {
		if g.Epoch == 0 {
			pending++
		} else if !g.masterLive(nodes) && !g.unheard(nodes) {
			withoutMaster++
		}
		if n := len(g.voters()); g.Epoch > 0 {
			if n < g.modeVoters() {
				degraded++
			}
			if n == 1 && g.Answers > 1 {
				oneCopy++
			}
			ch <- prometheus.MustNewConstMetric(descEpoch, prometheus.GaugeValue, float64(g.Epoch), g.Name)
			ch <- prometheus.MustNewConstMetric(descVoters, prometheus.GaugeValue, float64(n), g.Name)
			ch <- prometheus.MustNewConstMetric(descUnclean, prometheus.CounterValue, float64(g.UncleanCount), g.Name)
		}
		for _, r := range g.Replicas {
			if r.Lost != "" {
				lost++
			}
		}
	}
	for id := range m.state.nodes {
		if n := nodes.of(id); !n.live && !n.early {
			silent++
		}
	}
	gauge(descGroups, float64(len(m.state.groups)))
	gauge(descPending, float64(pending))
	gauge(descWithoutMaster, float64(withoutMaster))
	gauge(descDegraded, float64(degraded))
	gauge(descOneCopy, float64(oneCopy))
	gauge(descLost, float64(lost))
	gauge(descNodes, float64(len(m.state.nodes)))
	gauge(descSilent, float64(silent))
}
