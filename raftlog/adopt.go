package raftlog

import (
	"encoding/hex"
	"fmt"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog/peer"
)

// seal is the state of a replica on its way into a higher epoch:
//
//	none ──Adopt──▶ draining: nothing is stepped; jobs of the old epoch end, their acknowledgements leave
//	     ──no job outstanding──▶ writing: the record and the floor of its terms, both slots of the meta file
//	     ──durable──▶ none: a new RawNode, and what was kept is stepped
//
// The entries of the old epoch stay: the new one may commit them.
type seal struct {
	next    *EpochRecord
	encoded []byte
	writing bool
	// campaign: Campaign was called meanwhile, and is done in the new epoch
	campaign bool
	backlog  []peer.Envelope // messages that came meanwhile, at most maxBacklog and maxBacklogBytes, more are dropped
	bytes    int             // of the frames in backlog
}

// maxBacklog bounds the messages kept while a record is being written. Raft repeats what is dropped.
const (
	maxBacklog      = 64
	maxBacklogBytes = 8 << 20
)

func (s *seal) active() bool { return s.next != nil }

func (s *seal) keep(env peer.Envelope) {
	n := 0
	for _, f := range env.Frames {
		n += len(f)
	}
	if len(s.backlog) < maxBacklog && (n == 0 || s.bytes+n <= maxBacklogBytes) {
		s.backlog = append(s.backlog, env)
		s.bytes += n
	}
}

// Adopt begins to move the replica into the epoch of rec. It returns nil also when that epoch is in force already. Errors:
// ErrEpochRecord, ErrForeignRecord, ErrStaleEpoch, ErrEpochConflict, *ParkedError.
func (r *Replica) Adopt(rec EpochRecord) error {
	if r.parked != nil {
		return r.parked
	}
	if err := rec.Validate(); err != nil {
		return err
	}
	if err := r.comparable(rec); err != nil || rec.Epoch == r.record.Epoch {
		return err
	}
	if r.seal.active() && (rec.Epoch <= r.seal.next.Epoch || r.seal.writing) {
		// A newer one than the one being written comes again: the controller repeats it, and peers attach it.
		return nil
	}
	r.guard(func() {
		r.drain()
		r.seal = seal{next: &rec, encoded: rec.Encode(), backlog: r.seal.backlog, bytes: r.seal.bytes, campaign: r.seal.campaign}
		r.reads.fail(r.notMaster())
		r.form.inflight = r.form.inflight[:0]
		r.lead, r.leading = 0, false
		r.forgetFlows()
		r.logger.Info().Uint32("epoch", uint32(rec.Epoch)).Uint32("from", uint32(r.record.Epoch)).Msg("adopting a new epoch")
		r.continueSeal()
	})
	return nil
}

// comparable tells whether rec may be compared with the record in force, and is not older.
func (r *Replica) comparable(rec EpochRecord) error {
	def(&r.cfg.Cluster, rec.Cluster)
	switch {
	case rec.Group != r.cfg.Group || rec.Cluster != r.cfg.Cluster:
		return fmt.Errorf("%w: group %s in cluster %s", ErrForeignRecord, rec.Group, rec.Cluster)
	case rec.Epoch < r.record.Epoch:
		return fmt.Errorf("%w: %d, in force is %d", ErrStaleEpoch, rec.Epoch, r.record.Epoch)
	case rec.Epoch == r.record.Epoch && rec.Hash() != r.hash:
		h := rec.Hash()
		r.logger.Error().Uint32("epoch", uint32(rec.Epoch)).Str("hash", hex.EncodeToString(r.hash[:])).Str("other", hex.EncodeToString(h[:])).
			Msg("two records of one epoch: the other one is refused")
		return fmt.Errorf("%w: epoch %d", ErrEpochConflict, rec.Epoch)
	}
	return nil
}

// gate holds a message of a higher epoch back until its record is adopted. Without the record it is dropped: its sender attaches
// it until this replica shows the epoch.
func (r *Replica) gate(env peer.Envelope) {
	if r.seal.active() && env.Epoch <= r.seal.next.Epoch {
		r.seal.keep(env)
		return
	}
	if env.Record == nil {
		return
	}
	rec, err := DecodeEpochRecord(env.Record)
	if err != nil {
		r.refuse(env, err.Error())
		return
	}
	if rec.Epoch < env.Epoch {
		r.refuse(env, fmt.Sprintf("it is of epoch %d and carries the record of %d", env.Epoch, rec.Epoch))
		return
	}
	if err := r.Adopt(rec); err != nil {
		r.refuse(env, err.Error())
		return
	}
	if r.seal.active() {
		r.seal.keep(env)
	}
}

// continueSeal writes the record when the last job of the old epoch has ended.
func (r *Replica) continueSeal() {
	if !r.seal.active() || r.seal.writing || r.outstanding > 0 {
		return
	}
	r.seal.writing = true
	o := r.owner
	if !r.hooks.keepTerm {
		o.Term, o.Vote = max(o.Term, ids.MakeTerm(r.seal.next.Epoch, 0)), 0
	}
	o.Commit, o.Record = r.commit, r.seal.encoded
	r.owner = o
	r.emit(&Job{Owner: &o, Commit: r.commit, seal: true})
}

// sealed begins the life in the new epoch.
func (r *Replica) sealed() {
	s := r.seal
	r.seal = seal{}
	r.install(*s.next, s.encoded)
	r.order = nil
	r.boot()
	if s.campaign {
		r.Campaign()
	}
	for _, env := range s.backlog {
		r.Receive(env)
	}
}

// Seal moves the replica of a log that nobody else uses into the epoch of rec, as Adopt does for one that runs: the record and the floor
// of its terms are durable when nil is returned. It changes nothing when the log is in that epoch or a later one.
func Seal(log *commitlog.Log, rec EpochRecord) error {
	o, err := DecodeOwner(log.Meta().Owner)
	if err != nil {
		return err
	}
	if len(o.Record) > 0 {
		before, err := DecodeEpochRecord(o.Record)
		if err != nil || before.Epoch >= rec.Epoch {
			return err
		}
	}
	o.Term, o.Vote, o.Record = max(o.Term, ids.MakeTerm(rec.Epoch, 0)), 0, rec.Encode()
	return log.SaveMeta(o.Encode(), true)
}
