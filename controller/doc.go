// Package controller keeps what a LedgerMQ cluster wants: which nodes there are, which broker groups, who belongs to each
// (epoch records), and who is master of each. Raft inside a group decides what is safe; the controller decides what is wanted.
//
//	node, name server, tool              controller member (1, 3 or 5)
//	┌────────────┐  gRPC, secret proven  ┌───────────────────────────────────────────────────┐
//	│   Client   │──────────────────────▶│ Server (server.go, calls.go): gRPC, soft state     │
//	└────────────┘                       │   │ propose            ▲ applied                   │
//	                                     │   ▼                    │                           │
//	                                     │ member.go: etcd raft ──▶ state.go: commands in,    │
//	                                     │   step function          state out; pure           │
//	                                     │   ▼                                                │
//	                                     │ store.go: one bbolt file: log, vote, state, applied│
//	                                     └───────────────────────────────────────────────────┘
//
// It guarantees:
//
//  1. A replica id is given once and never again.
//  2. A group has its first epoch record only after every node of it has durably created its replica and told the
//     incarnation; the record names them. A creation is whole or it is not there.
//  3. What was answered survives the loss of any minority of the members, and the death of all of them.
//  4. State and applied index change in one transaction of one file; equal positions mean equal state hashes on all members.
//  5. A known master never goes back to one of a lower term.
//  6. A node id belongs to one check code until an operator removes the node, and at one time to one process.
//  7. A member whose data folder was lost is another member: it takes no part under the old identity. Members come and go by joint
//     changes in their own log (members.go); whoever is added votes only once it has caught up.
//  8. Every majority of an epoch's voters meets every majority of each set of voters since the last active epoch: whoever they elect
//     has all that was committed. Where the command is applied this is checked, so a decision from an old view costs time, never
//     a message.
//     An unclean election, which only an operator makes, or the loss of the power of all voters of an asynchronous group (async.go), begins anew: its one voter is what the next ones have to meet.
//  9. An epoch never has fewer voters than the group's min ISR, or than the one before while an unclean election left it below. They differ from those of the last active epoch by at most one
//     that is added and one that is removed.
//  10. A replica that is lost stays lost, unless an unclean election makes it the only voter. Its slot gets a new id only when no epoch since the last active one names the old one.
//  11. An order to hand over or to campaign is bound to a term: in another one it means nothing.
//  12. The cluster's feature level never falls, and nothing is proposed, applied or told that needs a higher one (feature.go).
//
// What must survive is in the replicated state. What nodes repeat five times a second, and more often while a replica misses its
// master or a voter (positions, roles, silences), is soft: the leader keeps it in memory, and a new leader learns it again within one
// heartbeat.
//
// Server, Client and Leader may be used from any goroutine; a State stands still while it is read. Read state.go first, then leader.go,
// which is what the Server and the simulation share, then membership.go (which voters an epoch may have), decide.go (which ones are
// wanted), renew.go (what follows a lost replica), and member.go.
// docs/format/controller.md shows the bytes on disk.
package controller
