package conformance

import (
	"maps"
	"slices"
)

// Both systems have one group of this name: so names of brokers need no translation.
const group = "g1"

// stored are the properties that a broker of RocketMQ adds to each message and ours does not.
var stored = map[string]string{"*.property.CLUSTER": "stored-properties", "*.property.TRACE_ON": "stored-properties"}

var (
	levels = with(stored, map[string]string{"level -1": "timer-bad"})
	timers = with(stored, map[string]string{"TIMER_DELAY_SEC -1": "timer-bad", "?.queue": "timer-exact"})
)

// A recall that was refused, and one of a message that never was: RocketMQ stores a marker and looks no further.
var recalled = map[string]string{"*.fields=nothing": "refusal-fields", "altered *=code 604": "recall-on", "handle: its time": "timer-exact",
	"an empty handle": "missing-fields", "without a handle": "missing-fields"}

// A transaction of RocketMQ that has ended can be ended again: so there are more messages in the queue.
var ends = with(stored, map[string]string{"rolled back.*=nothing": "tx-one-end", "rolled back after the commit=code 604": "tx-one-end",
	"committed after it was rolled back=code 604": "tx-one-end", "in the queue*": "tx-one-end", "*.queue": "tx-one-end",
	"ended with *": "tx-end-unknown"})

// timed are the places in a queue of messages that are due within a second of each other.
var timed = []string{"?.queue"}

// A broker of RocketMQ writes a half message again when it asks for its end.
var transactions = with(stored, map[string]string{"check of *.queue": "tx-checks", "*.property.WAIT": "tx-checks", "*.property.TRANSACTION_CHECK_TIMES": "tx-checks",
	"*.property.TRAN_PREPARED_QUEUE_OFFSET": "tx-checks"})

// RocketMQ adds nothing to the messages of a batch, and ours are traced too.
var packed = map[string]string{"batch?.property.MSG_REGION=DefaultRegion": "stored-properties"}

// The Go client gives messages of a batch no unique key.
var sent = with(stored, with(packed, map[string]string{"batch?.property.UNIQ_KEY=ID": "batch-unique-key"}))

var committed = with(stored, map[string]string{"*.property.WAIT": "tx-checks", "*.property.TRANSACTION_CHECK_TIMES": "tx-checks",
	"*.property.TRAN_PREPARED_QUEUE_OFFSET": "tx-checks"})

// A message that comes again, and in the end is dead.
var (
	again = with(stored, map[string]string{"*.property.WAIT=nothing": "stored-properties", "*dead letter*.property.DELAY=nothing": "dead-letter-origin",
		"*dead letter*.property.DLQ_ORIGIN_*": "dead-letter-origin"})
	tries = with(again, map[string]string{"*.property.ORIGIN_MESSAGE_ID": "origin-id",
		"a maximum below 0: dead letters=0": "retry-maximum"})
)

var policies = map[string]string{"customized: as the *": "retry-policy", "exponential: as the *": "retry-policy"}

// What operators ask, and how members of a group are told.
var (
	committedOffsets = map[string]string{"* of no topic=code 17": "no-such-queue", "* of queue 9=code 29": "no-such-queue", "* of *.fields=nothing": "no-such-queue",
		"committed -1": "limits", "committed by a group that is not there": "offset-group"}
	members = map[string]string{"heartbeat.fields": "heartbeat-v2", "negative maximum": "limits", "no body": "missing-fields"}
	mixed   = map[string]string{"A from [01]": "mixed-subscriptions", "B from [012]": "mixed-subscriptions"}
	shaped  = map[string]string{
		"all topics.body*apping*": "no-mappings",
		"name server: put":        "namesrv-values", "name server: get": "namesrv-values", "name server: get.fields": "namesrv-values",
		"name server: list": "namesrv-values", "name server: list.body*": "namesrv-values", "queue entries.body*=nothing": "computed-fields",
		"time spans.body*TimeStampStr string=nothing": "computed-fields", "runtime.body*": "runtime-keys",
		"consumers.body.connectionSet*subscriptions*": "own-fields", "progress*.committed bool": "own-fields", "progress*.minOffset float64": "own-fields",
		"progress*.oldestTimestamp float64": "own-fields",
	}
)

var resets = map[string]string{"to offset -5=MQBrokerException code 29": "limits", "clone of nothing=MQClientException code 1": "clone-nothing"}

var dashboard = map[string]string{"dead letter's origin": "origin-id"}

// javaAgain is again of the Java client, which says in each message whether its answer waits for the disk.
var javaAgain = with(stored, map[string]string{"*.property.ORIGIN_MESSAGE_ID": "origin-id", "*.property.WAIT": "stored-properties",
	"*dead letter*.property.DELAY=nothing": "dead-letter-origin", "*dead letter*.property.DLQ_ORIGIN_*": "dead-letter-origin"})

// checks are what a message of RocketMQ has when it was asked for more than once.
var checks = []string{"*.property.WAIT", "*.property.TRANSACTION_CHECK_TIMES", "*.property.TRAN_PREPARED_QUEUE_OFFSET"}

// What a group that is away had pulled before it was moved back, and the remark to a group that is not there.
var moved = map[string]string{
	"consumerProgress *: Consume Inflight Total":                                                                "in-flight",
	`resetOffsetByTime -g G-CASE-g-none *: DESC=consumer group "G-CASE-g-none" does not exist in group g1`:      "remarks",
	`skipAccumulatedMessage -g G-CASE-g-none *: DESC=consumer group "G-CASE-g-none" does not exist in group g1`: "remarks",
}

// moves are the commands that move a group which is away; pause, in their middle, is where ours gets another master.
func moves(pause ...string) []string {
	progress := "consumerProgress -g GROUP -t TOPIC"
	return slices.Concat([]string{
		"updateTopic -c DefaultCluster -t TOPIC -r 1 -w 1", "await topicRoute -t TOPIC", "send TOPIC 4", "mark", "send TOPIC 2",
		"consume TOPIC GROUP 6", "consume TOPIC GROUP-2 6", progress, "consumerProgress -g GROUP",
		"resetOffsetByTime -g GROUP -t TOPIC -s MARK", progress,
	}, pause, []string{
		progress,
		"cloneGroupOffset -s GROUP -d GROUP-2 -t TOPIC -o true", "consumerProgress -g GROUP-2 -t TOPIC",
		"skipAccumulatedMessage -g GROUP -t TOPIC", progress,
		"resetOffsetByTime -g GROUP -t TOPIC -s 0", progress,
		"resetOffsetByTime -g GROUP -t TOPIC -s now", progress,
		"resetOffsetByTime -g GROUP -t TOPIC-none -s 0", "resetOffsetByTime -g GROUP-none -t TOPIC -s 0",
		"skipAccumulatedMessage -g GROUP-none -t TOPIC", "cloneGroupOffset -s GROUP-none -d GROUP-2 -t TOPIC -o true",
		"consumerProgress -g GROUP-none", "consumerProgress -g GROUP-2 -t TOPIC",
	})
}

func with(a, b map[string]string) map[string]string {
	c := maps.Clone(a)
	maps.Copy(c, b)
	return c
}

// cases are all that is done to both systems. What a case may print otherwise has the id of a row in docs/divergence.md.
var cases = []Case{
	{Client: "go", Name: "empty requests", Go: emptyRequests, Differ: map[string]string{
		"request *=code 3": "not-served", "request 35": "missing-fields", "request 46": "missing-fields", "request 200": "missing-fields",
		"request 215": "missing-fields", "request 25": "missing-fields", "request 1007": "epochs-always",
	}},
	{Client: "go", Name: "unknown requests", Go: unknownRequests},
	{Client: "go", Name: "sends", Go: sends, Differ: map[string]string{"*.fields=nothing": "refusal-fields", "no body": "empty-body"}},
	{Client: "go", Name: "routes", Go: routes, Differ: map[string]string{"*.fields": "own-fields", "route without a topic": "missing-fields"}},
	{Client: "go", Name: "offsets", Go: offsets, Differ: committedOffsets},
	{Client: "go", Name: "offsets through a failover", Go: offsets, Failover: true, Differ: committedOffsets},
	{Client: "go", Name: "topics", Go: topics, Differ: map[string]string{
		"an empty name": "missing-fields", "deleted without a name": "missing-fields", "no queues": "limits", "perm 9": "limits",
		"queues below 0": "limits", "the cluster's topic": "system-topics",
	}},
	{Client: "go", Name: "groups", Go: groups, Differ: members},
	{Client: "go", Name: "groups through a failover", Go: groups, Failover: true, Differ: members},
	{Client: "go", Name: "mixed subscriptions", Go: mixedSubscriptions, Differ: mixed},
	{Client: "go", Name: "mixed subscriptions through a failover", Go: mixedSubscriptions, Failover: true, Differ: mixed},
	{Client: "go", Name: "shapes", Go: shapes, Differ: shaped},
	{Client: "go", Name: "shapes through a failover", Go: shapes, Failover: true, Differ: shaped},

	{Client: "go", Name: "tries", Go: sendBacks, Differ: tries},
	{Client: "go", Name: "tries through a failover", Go: sendBacks, Failover: true, Differ: tries},
	{Client: "go", Name: "retry policies", Long: true, Go: retryPolicies, Differ: policies},
	{Client: "go", Name: "retry policies through a failover", Long: true, Failover: true, Go: retryPolicies, Differ: policies},
	{Client: "go", Name: "delays", Go: delays, Differ: map[string]string{
		"level -1*": "timer-bad", "level x=code 13": "timer-bad", "level 1.5=code 13": "timer-bad", "level 9999999999=code 13": "timer-bad",
		"milliseconds -1*": "timer-bad", "milliseconds 9223372036854775807*": "timer-bad", "seconds -1*": "timer-bad",
		"seconds 9223372036854775807*": "timer-bad", "at -1*": "timer-bad",
	}},
	{Client: "go", Name: "recalls", Go: recalls, Differ: recalled},
	{Client: "go", Name: "recalls through a failover", Go: recalls, Failover: true, Differ: recalled},
	{Client: "go", Name: "ends of transactions", Go: transactionEnds, Differ: ends},
	{Client: "go", Name: "ends of transactions through a failover", Go: transactionEnds, Failover: true, Differ: ends},
	{Client: "go", Name: "half messages", Go: halfMessages, Differ: map[string]string{"to a retry topic=code 13": "tx-refused", "with *=code 13": "tx-refused"}},

	{Client: "official", Name: "sends", Go: officialSends, Differ: sent},
	{Client: "official", Name: "sends through a failover", Go: officialSends, Failover: true, Differ: sent},
	{Client: "official", Name: "pushes", Long: true, Go: officialPushes, Differ: again},
	{Client: "official", Name: "pushes through a failover", Long: true, Go: officialPushes, Failover: true, Differ: again},
	{Client: "official", Name: "orderly", Go: officialOrderly},
	{Client: "official", Name: "orderly through a failover", Go: officialOrderly, Failover: true},
	{Client: "official", Name: "delays", Go: officialDelays, Differ: stored},
	{Client: "official", Name: "delays through a failover", Go: officialDelays, Failover: true, Differ: stored},
	{Client: "official", Name: "transactions", Go: officialTransactions, Differ: committed, Vary: checks},
	{Client: "official", Name: "transactions through a failover", Go: officialTransactions, Failover: true, Differ: committed, Vary: checks},
	{Client: "official", Name: "survival", Go: officialSurvival},
	{Client: "official", Name: "survival through a failover", Go: officialSurvival, Failover: true},

	{Client: "current", Name: "send"},
	{Client: "current", Name: "properties", Differ: with(stored, packed)},
	{Client: "current", Name: "compressed", Differ: stored},
	{Client: "current", Name: "batch", Differ: map[string]string{"result": "batch-transaction"}},
	{Client: "current", Name: "auto-create"},
	{Client: "current", Name: "pull", Differ: map[string]string{"32 at most": "pull-size"}},
	{Client: "current", Name: "tags"},
	{Client: "current", Name: "offsets", Differ: map[string]string{"* consumed by a new group": "fresh-queue"}},
	{Client: "current", Name: "push", Differ: stored},
	{Client: "current", Name: "orderly"},
	{Client: "current", Name: "orderly through a failover", Failover: true},
	{Client: "current", Name: "broadcast"},
	{Client: "current", Name: "broadcast through a failover", Failover: true},
	{Client: "current", Name: "queries"},
	{Client: "current", Name: "levels", Differ: levels},
	{Client: "current", Name: "levels through a failover", Failover: true, Long: true, Differ: levels},
	{Client: "current", Name: "timers", Differ: timers, Vary: timed},
	{Client: "current", Name: "timers through a failover", Failover: true, Differ: timers, Vary: timed},
	{Client: "current", Name: "transactions", Differ: transactions, Vary: checks},
	{Client: "current", Name: "transactions through a failover", Failover: true, Differ: transactions, Vary: checks},
	{Client: "current", Name: "queries through a failover", Failover: true},
	{Client: "current", Name: "recalls"},
	{Client: "current", Name: "recalls through a failover", Failover: true},
	{Client: "current", Name: "retries", Long: true, Differ: javaAgain},
	{Client: "current", Name: "retries through a failover", Failover: true, Long: true, Differ: javaAgain},
	{Client: "current", Name: "traces"},
	{Client: "current", Name: "traces through a failover", Failover: true},
	{Client: "current", Name: "survival", Long: true},
	{Client: "current", Name: "survival through a failover", Failover: true, Long: true},

	{Client: "legacy", Name: "send"},
	{Client: "legacy", Name: "properties", Differ: with(stored, packed)},
	{Client: "legacy", Name: "batch"},
	{Client: "legacy", Name: "pull", Differ: map[string]string{"32 at most": "pull-size"}},
	{Client: "legacy", Name: "push", Differ: stored},
	{Client: "legacy", Name: "queries"},
	{Client: "legacy", Name: "transactions", Differ: transactions, Vary: checks},
	{Client: "legacy", Name: "transactions through a failover", Failover: true, Differ: transactions, Vary: checks},
	{Client: "legacy", Name: "orderly through a failover", Failover: true},
	{Client: "legacy", Name: "levels", Differ: levels},
	{Client: "legacy", Name: "levels through a failover", Failover: true, Long: true, Differ: levels},
	{Client: "legacy", Name: "retries", Long: true, Differ: javaAgain},
	{Client: "legacy", Name: "retries through a failover", Failover: true, Long: true, Differ: javaAgain},
	{Client: "legacy", Name: "traces"},
	{Client: "legacy", Name: "traces through a failover", Failover: true},
	{Client: "legacy", Name: "survival through a failover", Failover: true, Long: true},

	{Client: "mqadmin", Name: "dashboard", Differ: dashboard},
	{Client: "mqadmin", Name: "dashboard through a failover", Failover: true, Differ: with(dashboard, map[string]string{
		"group's gets=MQClientException code 1": "own-counts", "who had it.group": "store-host",
	})},
	{Client: "mqadmin", Name: "resets of a group that is away", Differ: resets},
	{Client: "mqadmin", Name: "resets of a group that is away through a failover", Failover: true, Differ: resets},
	{Client: "mqadmin", Name: "resets of a group that consumes", Long: true},
	{Client: "mqadmin", Name: "resets of a group that consumes through a failover", Failover: true, Long: true},
	{Client: "mqadmin", Name: "skips of a group that consumes"},
	{Client: "mqadmin", Name: "skips of a group that consumes through a failover", Failover: true},
	{Client: "mqadmin", Name: "topics", Commands: []string{
		"updateTopic -c DefaultCluster -t TOPIC -r 3 -w 3", "await topicRoute -t TOPIC", "topicClusterList -t TOPIC",
		"updateTopicPerm -c DefaultCluster -t TOPIC -p 4", "topicRoute -t TOPIC", "deleteTopic -c DefaultCluster -t TOPIC", "topicRoute -t TOPIC",
	}},
	{Client: "mqadmin", Name: "offsets", Long: true, Commands: moves(), Differ: moved},
	{Client: "mqadmin", Name: "offsets through a failover", Failover: true, Long: true, Commands: moves("pause"), Differ: moved},
	{Client: "mqadmin", Name: "groups", Commands: []string{"updateSubGroup -c DefaultCluster -g GROUP -r 3"}},
	{Client: "mqadmin", Name: "messages", Commands: []string{
		"updateTopic -c DefaultCluster -t TOPIC -r 1 -w 1", "await topicRoute -t TOPIC", "sendMessage -t TOPIC -p hello -k key -c tag -b g1 -i 0",
		"printMsg -t TOPIC -d false",
	}},
	// It changes what everybody has to do with: so it is run alone.
	{Client: "mqadmin", Name: "write protection through a failover", Failover: true},
}

// controllerCases are done to a RocketMQ of three brokers with a controller, and to ours, where a name server passes on what a controller is
// asked.
var controllerCases = []Case{
	{Client: "mqadmin", Name: "controllers", Differ: map[string]string{"epoch of the new master": "epoch-voters", "elected=taken": "elect-body"}},
}
