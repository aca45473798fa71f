// Package cluster runs the built ledgermq binary as a cluster of processes on this machine and breaks it on request: kill -9,
// pause, restart, by member id. The black-box tests and the benchmark stand on it; package jepsen's tests take only the binary. It
// knows of LedgerMQ only what an operator knows: the command line, DIR/cluster.json and the public clients.
//
// What it guarantees: Stop ends every process that Start or Restart made, and no other one; each cluster has a range of ports of
// its own; on Linux all end with this program when it ends without Stop. Methods of one Cluster may be called from any goroutine, but two that act on the same member must not overlap.
//
// Read cluster.go first, then members.go.
package cluster
