package sim

import "github.com/ledgermq/ledgermq/raftlog"

// Mutant breaks one rule on purpose, to see that the checker notices.
type Mutant string

// The mutants.
const (
	NoMutant      Mutant = ""
	AckBeforeSync Mutant = "ack-before-sync" // a replica hears that a write is durable before it has begun
	VoteNotSynced Mutant = "vote-not-synced" // term and vote never reach the meta file
	SealNotSynced Mutant = "seal-not-synced" // the epoch record never reaches the meta file
)

// Mutants lists all of them. That the gate is kept, and that reads ask a quorum, is shown by stories in raftlog's tests: random
// schedules meet those cases too rarely.
var Mutants = []Mutant{AckBeforeSync, VoteNotSynced, SealNotSynced}

// tamper changes jobs on their way to the disk.
func (m Mutant) tamper(jobs []*raftlog.Job) {
	for _, j := range jobs {
		if j.Owner == nil {
			continue
		}
		switch {
		case m == VoteNotSynced && !j.Seals(), m == SealNotSynced && j.Seals():
			j.Owner = nil
		}
	}
}
