// Package broker is the message service of one node: the replicas that it hosts, and what RocketMQ's clients ask of them.
//
//	request ──▶ handle (reader of the connection) ──┬─ pull, heartbeat, list: answered at once, or held
//	                                                ├─ send: record encoded ──▶ inbox ──▶ Form ──▶ raftlog ──▶ Apply ──▶ answer
//	                                                └─ what waits for a quorum: worker pool ──▶ commands, ReadIndex ──▶ answer
//	Apply ──▶ state (topics, groups, offsets, locks) and index ──▶ held pulls are woken, name servers are told
//
// Guarantees:
//
//  1. A send is answered OK only when its entry is committed and on as many voters as the group's mode says. Every other answer
//     says [NOT_STORED] or [UNKNOWN]; a request is never carried out twice by the broker.
//  2. Nothing is delivered before it is committed, and only a master that a quorum has just confirmed says that an offset does
//     not exist.
//  3. Topics, groups, consumer offsets and queue locks are commands in the group's log: a failover loses none that was answered.
//     One-way offset commits wait up to 200 ms in memory. Presence, who is connected, is in memory only.
//  4. A hand-over of the mastership fails no request: what came before is answered by the old master, the rest waits for the new one.
//  5. A replica that is damaged does not take part before it has what is bad from another one, exactly as it was. One that was wiped or
//     restored from a backup does not open: it is parked, and says why. When the controller wants another one in its place, its folder is
//     kept aside and the new one begins empty.
//
// A Node and its Replicas may be used from any goroutine. Each replica has one loop goroutine, raftlog's, which alone forms
// and applies; readers of connections only encode and enqueue.
//
// Read first: replica.go (what a replica is), proposal.go and apply.go (the way of a send), handle.go (the request codes),
// handover.go (a planned change of masters), catchup.go, repair.go and scrub.go (what a replica gets from another one), then node.go and reconcile.go (what the controller wants of a node).
package broker
