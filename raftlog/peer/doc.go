// Package peer carries the Raft messages of all groups between the nodes of a cluster, and the log's frames beside them, over
// authenticated TCP. For each node that it sends to, a Transport dials two connections: control (votes, heartbeats,
// acknowledgements) and bulk (everything that appends to a log), so that a large append never delays a heartbeat. The node that
// dials sends, the node that accepts receives: each direction of a pair has its own two connections and its own owner.
//
//	Send ──▶ pipe: bounded queue ──▶ one packet of all that waits ──writev──▶ socket          on the caller, while the socket takes it
//	                                          └── the rest, when the socket is full ──▶ the pipe's goroutine
//	socket ──▶ one buffer ──▶ packet checked, frames checked (they alias the buffer) ──▶ Options.Receive      on the connection's goroutine
//
// It guarantees:
//   - Nothing is received from who does not prove the cluster's secret, the cluster id and a node id, over fresh random numbers
//     of both sides; a recorded handshake is worth nothing. Two processes with one node id are never both connected.
//   - An envelope is received whole and unchanged, or not at all; those of one channel in order, as long as one connection lasts.
//     Envelopes are lost when a connection breaks or a queue is full, and Raft repeats them. All appends of a group (MsgApp, with frames or without) use
//     the bulk channel, so that an append never overtakes an earlier one.
//   - Plain heartbeats wait up to 2 ms for those of other groups; all else leaves at once, unless a write is in progress.
//   - Send never blocks, and a peer that is slow, silent, paused or gone costs at most Options.MaxQueueBytes.
//   - Every length is bounded before anything is allocated for it, and a connection that breaks a rule is closed with one line
//     in the log; no other connection notices.
//
// It does not encrypt, and does not protect packets against someone who can alter them on their way: see docs/format/peer.md,
// which also draws the handshake and the packets. Nor does it know who lives where: Options.Receive has to compare the node that
// a message came from with the node that the group's epoch record names for Envelope.From.
//
// All methods of Transport may be called from any goroutine. Read first: envelope.go (what is carried), pipe.go (sending),
// incoming.go (receiving), handshake.go, wire.go (the bytes).
package peer
