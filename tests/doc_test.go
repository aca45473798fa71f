// Package tests holds what is tested from outside: the built binary as a cluster of processes, used through the official Go
// client, the official Java client (tests/java) and our own, while members are killed and paused; and the conventions of this
// repository that a machine can check.
//
// Tests run in parallel, each with a cluster, a range of ports and a folder of its own. Read faults_test.go first, then
// cluster/cluster.go for what a test can do to a cluster.
package tests
