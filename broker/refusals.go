package broker

import "github.com/ledgermq/ledgermq/remoting"

// refusals are the requests of RocketMQ's tools and brokers that make no sense here, with what to do instead. The codes are RocketMQ's; no
// handler uses them.
var refusals = map[int32]string{
	27:  "old segments are given up by themselves, see --retention-age; deleteExpiredCommitLog does it at once",
	43:  "replicas do not copy consumer offsets from each other: they are in the replicated log",
	45:  "replicas do not copy delay offsets from each other: they are in the replicated log",
	60:  "replicas do not copy timer checkpoints from each other: they are in the replicated log",
	205: "ask the name servers: they alone take writability out of routes",
	327: "ask the name servers: they alone take writability out of routes",
	354: "there is no RocksDB here: the queue index is written with each checkpoint, see dispatchBehindBytes of brokerStatus",
	355: "there is no RocksDB here: topics and groups are in the replicated log; exportMetadata exports them",
	401: "pop consumption is not there yet",
	402: "pop consumption is not there yet",
	513: "static topics are not there: a group keeps its queues through failovers, and a topic grows by updateTopic",
	902: "there is no broker container: start another process with `ledgermq broker`, and `ledgermq admin group create`",
	903: "there is no broker container: `ledgermq admin group remove-replica` takes a replica out of its group",
	905: "a broker id says who is master, never who may serve: nothing is to be told",
	906: "replicas find each other through the controllers",
	908: "there is no flush offset to reset: a replica acknowledges what it has durably, entry by entry",

	1001: "the sync-state set is an epoch record of the controllers, see `ledgermq admin group show`",
	1002: "ask a name server: it passes this on to the controllers",
	1003: "nodes register with the controllers by another protocol",
	1004: "ask a name server: it passes this on to the controllers",
	1005: "ask a name server: it passes this on to the controllers",
	1006: "ask a name server: it passes this on to the controllers",
	1008: "roles are told by the replicas' own log, not by requests",
	1009: "controllers have no settings to change while they run",
	1010: "ask a name server: it passes this on to the controllers",
	1011: "`ledgermq admin group remove-replica` takes a replica out of its group, `ledgermq admin node remove` forgets a node",
	1012: "replica ids are given by the controllers",
	1013: "replica ids are given by the controllers",

	2001: "reads of cold data are not throttled: they go to slaves, see suggestWhichBrokerId",
	2002: "reads of cold data are not throttled: they go to slaves, see suggestWhichBrokerId",
	2003: "reads of cold data are not throttled: they go to slaves, see suggestWhichBrokerId",
	2004: "the log is not mapped into memory: there is no read-ahead mode to set",

	3001: "access control is not there yet", 3002: "access control is not there yet", 3003: "access control is not there yet",
	3004: "access control is not there yet", 3005: "access control is not there yet", 3006: "access control is not there yet",
	3007: "access control is not there yet", 3008: "access control is not there yet", 3009: "access control is not there yet",
	3010: "access control is not there yet",

	5001: "there is one timer engine", 200056: "pop consumption is not there yet",
	200074: "lite topics are not there", 200075: "lite topics are not there", 200076: "lite topics are not there",
	200077: "lite topics are not there", 200078: "lite topics are not there", 200079: "lite topics are not there",
}

// unsupported is the answer to a request code that nobody serves here.
func unsupported(code int32) *refusal {
	if why := refusals[code]; why != "" {
		return refuse(remoting.RequestCodeNotSupported, "request code %d is not supported: %s", code, why)
	}
	return refuse(remoting.RequestCodeNotSupported, "request code %d is not supported", code)
}
