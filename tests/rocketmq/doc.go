// Package rocketmq runs Apache RocketMQ itself on this machine, the real thing to compare with: the released jars that Maven fetches for
// tests/java/server, as processes of their own, with small heaps and small files.
//
// What it guarantees: everything listens on 127.0.0.1 only, on a range of ports of its own; everything is written below Options.Dir; Stop
// ends every process that Start made, and no other one, and none outlives the program that started it. Methods of one Cluster may be
// called from any goroutine, but two that act on the same process must not overlap.
//
// Read cluster.go first, then process.go.
package rocketmq
