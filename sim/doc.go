// Package sim runs real replicas on a virtual clock, network and disk.
//
// A World is a group of replicas: raftlog's step function and Writer over real commit logs on file systems in memory. Nothing
// in it runs by itself. A script (the stories in raftlog's tests) or the random schedule of Run decides what happens next:
// which message arrives, twice, late or never, when a write reaches the disk, which node loses its power in the middle of it.
//
// Run draws everything from one seed: the same seed gives the same trace. It has two phases. In the first, faults happen and
// every step is judged for safety (checker.go has the list). In the second, the faults stop and the group must elect, accept
// and catch up within a bounded time.
//
//	seed ─▶ Params ─▶ events (time, order) ─▶ World ─▶ Checker
//	                        ▲                  │
//	                        └── messages, writes, ticks
//
// # Guarantees
//
// A World is deterministic as long as nothing else in the process draws from crypto/rand while it runs: the Raft library draws
// its election timeouts there, and Run puts a source with the seed in its place. So one process runs one seed at a time.
//
// # Where to read first
//
// world.go for the machines, schedule.go for the events and faults.go for what goes wrong, checker.go for what is demanded, mutants.go for the rules that are
// broken on purpose to see that the checker notices.
package sim
