package broker

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgermq/ledgermq/raftlog"
)

// counters are what a replica counts. Labels are groups only: their number is the operator's. What has names of topics and consumer groups
// is in groupmetrics.go, within bounds.
type counters struct {
	messagesIn, bytesIn           atomic.Int64 // applied here, by whichever master took them
	sendsOK, sendsFailed, unknown atomic.Int64 // answers given by this replica as master
	pulls, pullsHeld, pullsMissed atomic.Int64
	messagesOut, bytesOut         atomic.Int64
	forwarded                     atomic.Int64
	retries, deadLetters          atomic.Int64 // messages that consumers handed back to this replica as master
	offsetsBack                   atomic.Int64 // consumer offsets that were applied here and went back without a reset
	keptBack                      atomic.Int64 // pulls that stopped before a message of another member's
	frames                        atomic.Int64 // formed here
	scrubbed                      atomic.Int64 // bytes of the log that were read to find rot
	transactions                  transactionCounters
	answers                       answerTimes

	timersIn, timersFired, timersRecalled, timersRolled atomic.Int64         // applied here
	timersDropped                                       atomic.Int64         // fired by this master, without a topic to go to
	timerMismatches                                     atomic.Int64         // entries of the timer index that named no timer
	lateness                                            prometheus.Histogram // seconds from due to known as stored, of those that this master fired

	writes  prometheus.Histogram // seconds of a write with its sync
	commits prometheus.Histogram // seconds from forming a frame here to the answers
}

// open makes the histograms, with buckets from 0.1 ms to 3.3 s.
func (c *counters) open(group string) {
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "ledgermq", Subsystem: "replica", Name: name, Help: help,
			ConstLabels: prometheus.Labels{"group": group}, Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16)})
	}
	c.lateness = histogram("timer_lateness_seconds", "Time from when a timer was due until its message was known to be stored, by the master that fired it.")
	c.writes = histogram("write_seconds", "Time of each write of frames to the log, with its sync.")
	c.commits = histogram("commit_seconds", "Time from forming a frame as master until its sends are answered.")
}

// collector turns the state of a node's replicas into metrics.
type collector struct {
	n *Node

	ready, diskFull, controller                                     *prometheus.Desc
	peerConnected, peerConnects, peerDropped, peerRefused           *prometheus.Desc
	master, parked, poisoned, term, epoch, commit, applied, last    *prometheus.Desc
	endOffset, firstOffset, heard, held, topics, queues, groups     *prometheus.Desc
	behind, snapshotBehind, index                                   *prometheus.Desc
	messagesIn, bytesIn, sends, pulls, pullsHeld, bytesOut, forward *prometheus.Desc
	keptBack, offsetsBack, mixed, back                              *prometheus.Desc
	frames, connections                                             *prometheus.Desc
	scrubBytes, scrubbedAt, repairs, repairedBytes                  *prometheus.Desc
	transactions                                                    transactionMetrics
	consumers                                                       groupMetrics
	timersPending, timersBytes, timersNext, timers, timersDropped   *prometheus.Desc
	timersRecalled, timerMismatches                                 *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (n *Node) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(n, ch) }

// Collect implements prometheus.Collector: the node's replicas, and how far each is.
func (n *Node) Collect(ch chan<- prometheus.Metric) { n.metrics.collect(ch) }

func newCollector(n *Node) *collector {
	node := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("ledgermq_node_"+name, help, labels, nil)
	}
	rep := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("ledgermq_replica_"+name, help, append([]string{"group"}, more...), nil)
	}
	return &collector{n: n, transactions: newTransactionMetrics(rep), consumers: newGroupMetrics(),
		ready:          node("ready", "1 when every replica of this node is open and knows a master."),
		diskFull:       node("disk_nearly_full", "1 while sends are refused because the disk is nearly full."),
		controller:     node("controller_silent_seconds", "Time since a controller answered the last heartbeat."),
		peerConnected:  node("peer_connected", "1 while both connections to another node that has replicas of the same groups are up.", "peer"),
		peerConnects:   node("peer_connects_total", "Connections to that node that were made, two at a time.", "peer"),
		peerDropped:    node("peer_dropped_total", "Messages of groups to that node that were dropped: the connection was down, or did not take them as fast as they came.", "peer"),
		peerRefused:    node("peer_refused_total", "Connections to the peer port of this node that were refused."),
		master:         rep("master", "1 while this replica leads its group."),
		parked:         rep("parked", "1 while this replica neither votes, acknowledges nor leads; its log says why."),
		poisoned:       rep("poisoned", "1 when a write, sync or checksum of this replica's log has failed."),
		term:           rep("term", "Raft term: epoch<<32 | election."),
		epoch:          rep("epoch", "Epoch of the membership in force here."),
		commit:         rep("commit_index", "Last entry known to be committed."),
		applied:        rep("applied_index", "Last entry applied to the state."),
		last:           rep("last_index", "Last entry in the log."),
		endOffset:      rep("end_offset_bytes", "Physical offset of the end of the log."),
		firstOffset:    rep("first_offset_bytes", "Physical offset of the first retained frame."),
		heard:          rep("voters_heard", "Voters heard within the last second, this one included."),
		behind:         rep("member_behind_entries", "Entries that a member lacks, as its master knows; absent on slaves.", "replica"),
		snapshotBehind: rep("checkpoint_behind_bytes", "Log that a start would have to replay."),
		index:          rep("index_bytes", "Size of the index's files, by what they hold: the places of queues, or the words of messages.", "of"),
		held:           rep("held_pulls", "Pulls that wait for a message."),
		topics:         rep("topics", "Topics of the group."),
		queues:         rep("queues", "Queues of the group that have or had a message."),
		groups:         rep("consumer_groups", "Consumer groups of the group."),
		connections:    rep("client_connections", "Open client connections."),
		messagesIn:     rep("messages_in_total", "Messages applied."),
		bytesIn:        rep("bytes_in_total", "Bytes of messages applied."),
		sends:          rep("sends_total", "Sends that this replica answered as master, by outcome.", "outcome"),
		pulls:          rep("pulls_total", "Pulls that found messages."),
		keptBack:       rep("pulls_kept_back_total", "Pulls that were refused since they would have passed over a message that another member of their group wants."),
		offsetsBack:    rep("offsets_back_total", "Consumer offsets that members committed below what was stored, so that their group gets messages again; resets do not count."),
		back:           rep("handed_back_total", "Messages that consumers handed back to this replica as master, by what became of them.", "as"),
		mixed:          rep("consumer_group_mixed", "1 for a consumer group whose members, as far as they are connected here, subscribe to different topics or tags; of at most 100 groups.", "consumer_group"),
		pullsHeld:      rep("pulls_held_total", "Pulls that had to wait."),
		bytesOut:       rep("bytes_out_total", "Bytes of messages handed to consumers."),
		forward:        rep("forwarded_total", "Requests passed on to the master."),
		scrubBytes:     rep("scrub_bytes_total", "Bytes of sealed segments that were read to find rot."),
		scrubbedAt:     rep("scrubbed_timestamp_seconds", "When the last scrub of all sealed segments ended, and found nothing bad; 0 before the first."),
		repairs:        rep("repairs_total", "Damages of this replica that were repaired from another one, since the process began."),
		repairedBytes:  rep("repaired_bytes_total", "Bytes that came from other replicas for repairs."),
		timersPending:  rep("timers_pending", "Delayed messages that wait for their time."),
		timersBytes:    rep("timers_pending_bytes", "Bytes of their records."),
		timersRecalled: rep("timers_recalled", "Recalled messages that the state still names, since their time has not come."),
		timersNext:     rep("timers_next_due_timestamp_seconds", "When the next delayed message is due; absent when none waits, and on slaves."),
		timers:         rep("timers_total", "What became of delayed messages, as applied here.", "event"),
		timersDropped:  rep("timers_dropped_total", "Delayed messages whose topic was gone when this master would have delivered them."),

		timerMismatches: rep("timer_index_mismatches_total", "Times at which the timer index named a place without that timer: it was rebuilt."),

		frames: rep("frames_formed_total", "Frames proposed by this replica as master."),
	}
}

func (c *collector) collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	truth := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	gauge(c.ready, truth(c.n.Ready() == nil))
	gauge(c.diskFull, truth(c.n.diskFull.Load()))
	if heard := c.n.heard.Load(); heard > 0 {
		gauge(c.controller, float64(c.n.o.Clock().UnixMilli()-heard)/1000)
	}
	for _, h := range c.n.hostedList() {
		ch <- prometheus.MustNewConstMetric(c.repairs, prometheus.CounterValue, float64(h.repairs), h.file.Group)
		ch <- prometheus.MustNewConstMetric(c.repairedBytes, prometheus.CounterValue, float64(h.repaired), h.file.Group)
		if h.r == nil {
			gauge(c.parked, truth(h.parked != ""), h.file.Group)
			continue
		}
		c.replica(ch, h.r, gauge, truth)
	}
	c.peers(ch, gauge, truth)
}

// peers gives the connections to the nodes that this one shares a group with. The transport knows others too: it forgets no node.
func (c *collector) peers(ch chan<- prometheus.Metric, gauge func(*prometheus.Desc, float64, ...string), truth func(bool) float64) {
	t := c.n.transport.Load()
	if t == nil {
		return
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	stats := t.Stats()
	count(c.peerRefused, stats.Refused)
	for _, r := range c.n.open() {
		st := r.raft.Status()
		for _, list := range [2][]raftlog.MemberStatus{st.Voters, st.Learners} {
			for _, m := range list {
				p, known := stats.Peers[m.Node]
				if !known {
					continue
				}
				delete(stats.Peers, m.Node) // another group may have it too
				gauge(c.peerConnected, truth(p.Connected), string(m.Node))
				count(c.peerConnects, p.Connects, string(m.Node))
				count(c.peerDropped, p.Dropped, string(m.Node))
			}
		}
	}
}

func (c *collector) replica(ch chan<- prometheus.Metric, r *Replica, gauge func(*prometheus.Desc, float64, ...string), truth func(bool) float64) {
	st, g := r.raft.Status(), r.group
	gauge(c.master, truth(st.Role == raftlog.RoleMaster), g)
	gauge(c.parked, truth(st.Parked != "" && st.Epoch > 0), g)
	gauge(c.poisoned, truth(st.Poisoned != nil), g)
	gauge(c.term, float64(st.Term), g)
	gauge(c.epoch, float64(st.Epoch), g)
	gauge(c.commit, float64(st.Commit), g)
	gauge(c.applied, float64(st.Applied), g)
	gauge(c.last, float64(st.Last), g)
	gauge(c.endOffset, float64(st.End), g)
	gauge(c.firstOffset, float64(r.clog.FirstOffset()), g)
	gauge(c.heard, float64(st.Heard), g)
	if st.Role == raftlog.RoleMaster {
		for _, list := range [2][]raftlog.MemberStatus{st.Voters, st.Learners} {
			for _, m := range list {
				if m.ID != r.id {
					gauge(c.behind, float64(max(0, int64(st.Last)-int64(m.Match))), g, string(m.Node))
				}
			}
		}
	}
	gauge(c.snapshotBehind, float64(r.appliedEnd.Load()-r.checkpoint.offset.Load()), g)
	all, words := r.idx.Bytes()
	gauge(c.index, float64(all-words), g, "queues")
	gauge(c.index, float64(words), g, "words")
	gauge(c.held, float64(r.holds.count()), g)
	gauge(c.topics, float64(len(r.st.Topics())), g)
	gauge(c.queues, float64(r.st.Queues()), g)
	gauge(c.groups, float64(len(r.st.Groups())), g)
	gauge(c.connections, float64(len(r.srv.Conns())), g)
	count := func(d *prometheus.Desc, v *atomic.Int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v.Load()), append([]string{g}, labels...)...)
	}
	count(c.messagesIn, &r.counters.messagesIn)
	count(c.bytesIn, &r.counters.bytesIn)
	count(c.sends, &r.counters.sendsOK, "ok")
	count(c.sends, &r.counters.sendsFailed, "not_stored")
	count(c.sends, &r.counters.unknown, "unknown")
	count(c.pulls, &r.counters.pulls)
	count(c.pullsHeld, &r.counters.pullsHeld)
	count(c.keptBack, &r.counters.keptBack)
	count(c.offsetsBack, &r.counters.offsetsBack)
	count(c.back, &r.counters.retries, "retry")
	count(c.back, &r.counters.deadLetters, "dead_letter")
	r.collectMixed(c.mixed, gauge)
	count(c.bytesOut, &r.counters.bytesOut)
	count(c.forward, &r.counters.forwarded)
	count(c.frames, &r.counters.frames)
	count(c.scrubBytes, &r.counters.scrubbed)
	pending, waiting, recalled := r.st.TimersPending()
	gauge(c.timersPending, float64(pending), g)
	gauge(c.timersBytes, float64(waiting), g)
	gauge(c.timersRecalled, float64(recalled), g)
	if st.Role == raftlog.RoleMaster {
		if next, some := r.nextTimer(); some {
			gauge(c.timersNext, float64(next)/1000, g)
		}
	}
	count(c.timers, &r.counters.timersIn, "sent")
	count(c.timers, &r.counters.timersFired, "fired")
	count(c.timers, &r.counters.timersRecalled, "recalled")
	count(c.timers, &r.counters.timersRolled, "rolled")
	count(c.timersDropped, &r.counters.timersDropped)
	count(c.timerMismatches, &r.counters.timerMismatches)
	r.counters.lateness.Collect(ch)
	gauge(c.scrubbedAt, float64(r.scrubbed.Load().Finished)/1000, g)
	c.transactions.collect(ch, r)
	c.consumers.collect(ch, r)
	r.counters.writes.Collect(ch)
	r.counters.commits.Collect(ch)
}
