// Package raftlog is a replicated log: etcd's Raft over a commit log that is the only log there is.
//
// One Group is one replica of one broker group. It proposes frames that its state machine forms, copies them to the other
// members, and applies what is committed, in order. Membership never changes through the log: it is an immutable EpochRecord
// that the controller issues, and the term of the log is epoch<<32 | n.
//
// # What it guarantees
//
//  1. A frame that Apply was called with is on a majority of the epoch's voters, each after a sync, and is never taken back.
//  2. A token of Form is settled exactly once: by Acked at or above its index, or by Abandon.
//  3. No vote and no acknowledgement leaves before what it depends on is durable here: entries after a sync, term, vote and
//     epoch record after both slots of the meta file are synced. Entries of a log with commitlog.Options.Async are
//     acknowledged when they are written; a replica that may have lost some of them is lost.
//  4. A replica joins an epoch by writing its record and the floor of its terms durably, and steps no message of that epoch
//     before (seal and gate).
//  5. A hand-over of the mastership, Transfer, ends what was formed before it begins: no token of it ends as unknown.
//  6. A replica that cannot prove what it holds parks: it neither votes, acknowledges nor leads, and Status tells why.
//
// # Shape
//
// Inside is a step function, Replica: events in (a tick, a message, a finished write), effects out (messages with their frames,
// write jobs, calls of the StateMachine). It has no goroutine, no clock and no socket, so the simulation runs it as it is.
// Around it is a thin shell, Group:
//
//	transport ─Receive─▶ ┌────────────────┐ ─Send──▶ transport
//	broker ─────Wake───▶ │ loop: Replica  │ ─Form, Apply, Acked, Flush─▶ StateMachine
//	ticker ────────────▶ └──────┬─────────┘
//	                       jobs │ ▲ done
//	                            ▼ │
//	                     ┌────────────────┐
//	                     │ writer         │ frames, synced one by one or in batches; acknowledgements; checkpoints
//	                     └────────────────┘
//
// One turn of the loop drains all inputs, applies what is committed, forms and proposes the next frame, sends, and lets the
// state machine answer. A MsgApp leaves before the local sync.
//
// Raft's entries are thin: an entry carries a commitlog.Ref, the frame travels beside it. The library's byte limits see only
// the thin size, so this package bounds frame bytes itself; see Limits.
//
// # Concurrency
//
// All methods of Group may be called from any goroutine; all methods of StateMachine are called from the group's one loop
// goroutine. A Replica is not safe for concurrent use.
//
// # Where to read first
//
// group.go for the use, replica.go for the events, ready.go for what Raft wants, adopt.go for epochs, transfer.go for hand-overs, offer.go
// for members that lack what was given up, job.go and
// shell.go for durability.
package raftlog
