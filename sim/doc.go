// Package sim runs real replicas and the real decisions of the controllers on a virtual clock, network and disk.
//
// A World is a group of replicas: raftlog's step function and Writer over real commit logs on file systems in memory. The Worlds of
// a Site, one to three in a seed, share its machines: one that loses its power, is paused, is cut off or has a failing disk is so
// for all its replicas, and one heartbeat speaks for all of them. Nothing in a World runs by itself. A script (the stories in
// raftlog's tests), a Story or the random schedule of Run decides what happens next: which message arrives, twice, late or never,
// when a write reaches the disk, which machine loses its power in the middle of it.
//
// Around a World stand the controllers: the product's State, to which commands are applied, and the product's Leader, which decides
// from heartbeats. What is simulated is their log and the way to them: calls that are late or lost, a leader that is away, one that
// is new and knows nothing, one that does not know that another one leads. One agent for each node sends heartbeats and does what
// the answers want. In some seeds an adversary also issues epochs, any that the State lets through, and hands records out at
// random; in others it is alone.
//
// Run draws everything from one seed: the same seed gives the same trace. It has two phases. In the first, faults happen and
// every step is judged for safety (checker.go has the list). In the second, the faults stop and each group must be well within a
// bounded time, without a hand: as many voters as its mode has, one master, everything acknowledged on all replicas, damaged logs
// repaired, lost replicas followed by new ones.
//
//	seed ─▶ Params ─▶ events (time, order) ─▶ World ─▶ Checker
//	                     ▲      ▲               │ status
//	                     │      └── messages, writes, ticks
//	                     └── agents ◀──▶ controllers: State, Leader
//
// # Guarantees
//
// A World is deterministic as long as nothing else in the process draws from crypto/rand while it runs: the Raft library draws
// its election timeouts there, and Run puts a source with the seed in its place. So one process runs one seed at a time.
//
// # Where to read first
//
// world.go for the machines, schedule.go for the events, controllers.go and agent.go for who belongs to the group, faults.go for
// what goes wrong, lost.go for disks that lose what was promised and what a node does then, doomed.go for groups whose voters all
// lose something, checker.go and rules.go for what is
// demanded, heal.go for the second phase, stories.go, protocol.go and losses.go for what random seeds meet too rarely. mutants.go and mutants_test.go break rules on purpose to see that somebody notices.
package sim
