package broker

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgermq/ledgermq/broker/state"
)

// transactionCounters are what a replica counts of transactions: those that came to an end by records applied here, and checks that it
// sent as master.
type transactionCounters struct {
	halves, committed, rolledBack, checks atomic.Int64
}

// count takes what a record changed.
func (c *transactionCounters) count(e *state.Effect) {
	switch {
	case e.Kind == state.EffectHalf:
		c.halves.Add(1)
	case e.Kind == state.EffectTransactionEnded && e.Decision == state.Committed:
		c.committed.Add(1)
	case e.Kind == state.EffectTransactionEnded:
		c.rolledBack.Add(1)
	}
}

type transactionMetrics struct {
	pending, gaveUp, oldest, halves, ended, checks *prometheus.Desc
}

func newTransactionMetrics(rep func(name, help string, labels ...string) *prometheus.Desc) transactionMetrics {
	return transactionMetrics{
		pending: rep("transactions_pending", "Transactions that have neither been committed nor rolled back."),
		gaveUp:  rep("transactions_given_up", "Pending transactions whose producers were asked 15 times in vain: an operator has to end them."),
		oldest:  rep("transaction_oldest_pending_seconds", "Age of the oldest pending transaction; absent when none is pending, and on slaves."),
		halves:  rep("half_messages_total", "Half messages applied."),
		ended:   rep("transactions_ended_total", "Ends of transactions applied, by decision.", "decision"),
		checks:  rep("transaction_checks_total", "Producers that this replica as master asked for the state of a transaction."),
	}
}

func (m *transactionMetrics) collect(ch chan<- prometheus.Metric, r *Replica) {
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, r.group)
	}
	count := func(d *prometheus.Desc, v *atomic.Int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v.Load()), append([]string{r.group}, labels...)...)
	}
	pending, gaveUp := r.st.PendingTransactions()
	gauge(m.pending, float64(pending))
	gauge(m.gaveUp, float64(gaveUp))
	if pending > 0 && r.isMaster() {
		now, oldest := r.now().UnixMilli(), int64(0)
		r.st.EachTransaction(func(x state.Transaction) {
			if oldest == 0 || x.Stored < oldest {
				oldest = x.Stored
			}
		})
		if oldest != 0 { // else the last one ended just now
			gauge(m.oldest, float64(max(0, now-oldest))/1000)
		}
	}
	c := &r.counters.transactions
	count(m.halves, &c.halves)
	count(m.ended, &c.committed, "commit")
	count(m.ended, &c.rolledBack, "rollback")
	count(m.checks, &c.checks)
}
