package namesrv

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// The metrics of a name server. Labels come from fixed lists only, so that no client can add series.
var (
	descReady     = prometheus.NewDesc("ledgermq_namesrv_ready", "1 when the server answers that a topic does not exist.", nil, nil)
	descGroups    = prometheus.NewDesc("ledgermq_namesrv_groups", "Broker groups with an address.", nil, nil)
	descAddresses = prometheus.NewDesc("ledgermq_namesrv_addresses", "Registered broker addresses.", nil, nil)
	descTopics    = prometheus.NewDesc("ledgermq_namesrv_topics", "Topics with a route.", nil, nil)
	descRequests  = prometheus.NewDesc("ledgermq_namesrv_requests_total", "Requests answered, by request and response code.", []string{"request", "code"}, nil)
	descRemoved   = prometheus.NewDesc("ledgermq_namesrv_removed_total", "Broker addresses that left the routes, by reason.", []string{"reason"}, nil)
)

// collector reads Stats whenever metrics are asked for.
type collector struct{ s *Server }

func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descReady, descGroups, descAddresses, descTopics, descRequests, descRemoved} {
		out <- d
	}
}

func (c collector) Collect(out chan<- prometheus.Metric) {
	st := c.s.Stats()
	gauge := func(d *prometheus.Desc, v int) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v))
	}
	ready := 0
	if st.Ready {
		ready = 1
	}
	gauge(descReady, ready)
	gauge(descGroups, st.Groups)
	gauge(descAddresses, st.Addresses)
	gauge(descTopics, st.Topics)
	for k, n := range st.Requests {
		out <- prometheus.MustNewConstMetric(descRequests, prometheus.CounterValue, float64(n), k.Request, strconv.Itoa(int(k.Code)))
	}
	for reason, n := range st.Removed {
		out <- prometheus.MustNewConstMetric(descRemoved, prometheus.CounterValue, float64(n), reason)
	}
}

// Registry returns a registry with the server's metrics: a collector for another registry, and a gatherer by itself.
func (s *Server) Registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collector{s})
	return r
}
