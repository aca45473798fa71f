package main

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgermq/ledgermq/namesrv"
)

// namesrvCollector turns what a name server counts into metrics.
type namesrvCollector struct {
	server *namesrv.Server

	ready, groups, addresses, topics, requests, removed *prometheus.Desc
}

func newNamesrvCollector(s *namesrv.Server) *namesrvCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("ledgermq_namesrv_"+name, help, labels, nil)
	}
	return &namesrvCollector{
		server:    s,
		ready:     desc("ready", "1 when every known group has registered, or the wait for them is over."),
		groups:    desc("groups", "Broker groups in the routes."),
		addresses: desc("addresses", "Broker addresses in the routes."),
		topics:    desc("topics", "Topics in the routes."),
		requests:  desc("requests_total", "Requests answered, by RocketMQ's name and response code.", "request", "code"),
		removed:   desc("removed_addresses_total", "Addresses that left the routes, by reason.", "reason"),
	}
}

func (c *namesrvCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

func (c *namesrvCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.server.Stats()
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	ready := 0.0
	if s.Ready {
		ready = 1
	}
	gauge(c.ready, ready)
	gauge(c.groups, float64(s.Groups))
	gauge(c.addresses, float64(s.Addresses))
	gauge(c.topics, float64(s.Topics))
	for key, n := range s.Requests {
		ch <- prometheus.MustNewConstMetric(c.requests, prometheus.CounterValue, float64(n), key.Request, strconv.Itoa(int(key.Code)))
	}
	for reason, n := range s.Removed {
		ch <- prometheus.MustNewConstMetric(c.removed, prometheus.CounterValue, float64(n), reason)
	}
}
