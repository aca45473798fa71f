package raftlog

import (
	"fmt"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// transfer is a hand-over of the mastership that is under way:
//
//	coming to rest ──nothing formed or read waits──▶ asked ──another one leads──▶ done
//	      └──transferPatience is over──▶ failed ◀──not taken for an election timeout──┘
//
// Until it has come to rest frames are formed as ever, so that what the state machine has taken is answered in this mastership;
// who wants a short hand-over takes nothing more before it calls Transfer. From then on nothing is formed: Raft would drop it.
type transfer struct {
	to    ids.ReplicaID
	began int64 // tick
	asked bool  // Raft waits until the other one has the last entry, and tells it to campaign
	done  func(error)
}

// transferPatience is how long a hand-over may take in all, in election timeouts.
const transferPatience = 3

// Transfer hands the mastership to another voter, without an interval in which nobody leads for longer than an election. done is
// called once, from the loop goroutine: with nil when another one leads, else with an error that wraps ErrTransfer or is a
// *NotMasterError or *ParkedError; then this replica is master as before, if it still is. It must not block.
func (r *Replica) Transfer(to ids.ReplicaID, done func(error)) {
	refuse := func(format string, args ...any) {
		done(fmt.Errorf("%w: "+format, append([]any{ErrTransfer}, args...)...))
	}
	voter := false
	for _, m := range r.record.Voters {
		voter = voter || m.ID == to
	}
	switch {
	case !r.isMaster():
		done(r.notMaster())
	case to == r.cfg.Replica:
		refuse("replica %d is the master", to)
	case !voter:
		refuse("replica %d is not a voter of epoch %d", to, r.record.Epoch)
	case r.transfer != nil:
		refuse("one to replica %d is under way", r.transfer.to)
	default:
		r.transfer = &transfer{to: to, began: r.ticks, done: done}
		r.form.wanted = true // the state machine is asked once more at least
	}
}

// Leave tells that this process ends soon: from now on the replica takes no mastership that another one hands over. It still
// votes, acknowledges and, when nobody else does, campaigns.
func (r *Replica) Leave() { r.leaving = true }

// handOver asks Raft for the transfer once nothing is undecided: no send then ends as unknown.
func (r *Replica) handOver() {
	t := r.transfer
	if t == nil || t.asked || !r.isMaster() || r.form.wanted || len(r.form.waiting)+len(r.form.unacked) > 0 || !r.reads.idle() {
		return
	}
	t.asked = true
	r.logger.Info().Uint32("epoch", uint32(r.record.Epoch)).Stringer("term", r.owner.Term).Uint64("to", uint64(t.to)).Msg("handing the mastership over")
	r.rn.TransferLeader(uint64(t.to))
}

// transferring tells whether no frame may be formed because Raft would drop it.
func (r *Replica) transferring() bool { return r.transfer != nil && r.transfer.asked }

// endTransfer tells how a hand-over ended, once it has. Tick and Turn call it, after the role was told.
func (r *Replica) endTransfer() {
	t := r.transfer
	if t == nil {
		return
	}
	var err error
	switch {
	case r.rn == nil || r.seal.active():
		err = r.notMaster()
	case !r.leading && r.lead != 0:
	case r.leading && t.asked && r.rn.BasicStatus().LeadTransferee == 0:
		err = fmt.Errorf("%w: replica %d did not take it", ErrTransfer, t.to)
	case r.ticks-t.began < int64(transferPatience*r.cfg.ElectionTick):
		return
	case t.asked:
		err = fmt.Errorf("%w: nobody leads since replica %d was to", ErrTransfer, t.to)
	default:
		err = fmt.Errorf("%w: what was under way did not end", ErrTransfer)
	}
	r.transfer = nil
	t.done(err)
}
