package raftlog

// Hooks for tests in package raftlog_test, among them the mutants: each breaks one rule of Replica on purpose.

// SkipGate lets r step messages of a higher epoch without adopting its record.
func SkipGate(r *Replica) { r.hooks.skipGate = true }

// KeepTerm lets r seal an epoch without raising its term.
func KeepTerm(r *Replica) { r.hooks.keepTerm = true }
