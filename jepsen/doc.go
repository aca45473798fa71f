// Package jepsen runs the built binary as real processes, loads it through a client while nodes are killed, paused and cut off from
// each other, and judges what the clients saw. It knows of LedgerMQ what an operator knows: the command line, the public clients and
// what docs/guarantees.md promises.
//
//	Run ─▶ Cluster: processes, each dialed through a Proxy ◀── nemesis: a seed's faults, one after the other
//	    ─▶ workloads: queue, log, transactions, timers, offsets, over a Driver ──▶ History: one Op per call
//	    ─▶ heal, read every queue on every replica, verify the logs ──▶ Judge: the violations
//
// What it guarantees:
//   - Judge is pure. The same history gives the same violations, and a history file can be judged again.
//   - The faults follow from the seed. What the processes do meanwhile does not: a seed repeats the attack, not the run.
//   - Every process that it starts has ended when Cluster.Close returns; when this process is killed they end by themselves.
//   - An outcome that a client calls unknown is never held against the cluster: the message may be there or not, once.
//
// The nodes find each other, the controller and the name server through proxies, which tell by the process that owns a
// connection who dials. That needs /proc and the whole of 127.0.0.0/8: Linux.
//
// A Recorder and a Proxy may be used from any goroutine; a Cluster has one caller at a time, beside Members and the clients.
//
// Read first: history.go (what is recorded), judge.go (what is wrong), cluster.go, nemesis.go, then run.go.
package jepsen
