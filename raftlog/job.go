package raftlog

import (
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// Job is work for the one writer of a log. Jobs are written in the order in which turns gave them out; several may share one
// sync. A job is completed when all of it is durable, but for the frames of a log with commitlog.Options.Async: those are written.
type Job struct {
	First  ids.Index         // of Frames[0]; when the log has this entry already, it and all after it are removed first
	Frames []commitlog.Frame // consecutive, to append
	Owner  *Owner            // not nil: to be saved in both slots of the meta file; a vote, a term or a record depends on it
	Commit ids.Index         // for the next write of the meta file; alone it needs none
	// Acks are the acknowledgements and votes that depend on this job. Whoever wrote it sends them at once, in the order of the
	// jobs, before or after the replica hears of it: what they say is true from then on.
	Acks []Outgoing

	responses []*pb.Message // of Raft to itself
	seal      bool
	cuts      int64 // of the replica when the job was given out
}

// Seals tells whether j writes the epoch record of a new epoch.
func (j *Job) Seals() bool { return j.seal }

// Writer writes jobs to a log. It has no goroutine: the shell and the simulation call it, one call at a time.
type Writer struct {
	log   *commitlog.Log
	owner Owner // as last saved, with the newest commit index
}

// NewWriter returns the writer of log. A replica was opened on the log before, so its meta file has an owner record; ErrOwner is
// returned when it cannot be read.
func NewWriter(log *commitlog.Log) (*Writer, error) {
	o, err := DecodeOwner(log.Meta().Owner)
	if err != nil {
		return nil, err
	}
	return &Writer{log: log, owner: o}, nil
}

// Write makes jobs durable. After an error it must not be called again: the log is poisoned. Their frames share syncs where that
// pays; in live traffic one frame is in flight, and has a sync to itself. The frames of a log with commitlog.Options.Async are only
// written, up to maxUnsynced of them: SyncBehind does the rest. Votes, terms and records are durable in any case.
func (w *Writer) Write(jobs []*Job) error {
	var owner *Owner
	commit := w.owner.Commit
	for _, j := range jobs {
		commit = max(commit, j.Commit)
		if j.Owner != nil {
			owner = j.Owner
		}
	}
	// Term and vote first: an entry never becomes durable under a term that the meta file does not know. The commit index
	// last: it may speak of entries in these jobs, and a crash in between would let a start apply the ones that they replace.
	if owner != nil {
		saved := w.owner.Commit
		w.owner = *owner
		w.owner.Commit = saved
		if err := w.log.SaveMeta(w.owner.Encode(), true); err != nil {
			return err
		}
	}
	var run []commitlog.Frame // of jobs that follow one another
	for _, j := range jobs {
		if len(j.Frames) == 0 {
			continue
		}
		if j.First <= w.log.Tail().Index+ids.Index(len(run)) {
			if err := w.store(run); err != nil {
				return err
			}
			run = nil
			if err := w.log.TruncateAfter(j.First - 1); err != nil {
				return err
			}
		}
		if len(run) == 0 {
			run = slices.Clip(j.Frames)
		} else {
			run = append(run, j.Frames...)
		}
	}
	if err := w.store(run); err != nil {
		return err
	}
	w.owner.Commit = commit
	return nil
}

// A batch of frames in the log costs three syncs, two of them for the meta file: see commitlog.Append.
const (
	minBatch      = 4       // frames; fewer are synced one by one
	maxBatchBytes = 4 << 20 // of one batch, or one frame: as much may have to be fetched again after a power cut
)

// maxUnsynced bounds the bytes of frames that are acknowledged and not durable: above it Write syncs. The loop that syncs behind the
// writer keeps well below.
const maxUnsynced = 32 << 20

// store appends and syncs frames.
func (w *Writer) store(frames []commitlog.Frame) error {
	for len(frames) > 0 {
		n := batchOf(frames, w.log.Async())
		if err := w.log.Append(frames[:n]); err != nil {
			return err
		}
		if !w.log.Async() || w.log.Unsynced() > maxUnsynced {
			if err := w.log.Sync(); err != nil {
				return err
			}
		}
		frames = frames[n:]
	}
	return nil
}

// batchOf tells how many of the first frames are appended at once.
func batchOf(frames []commitlog.Frame, async bool) int {
	n, bytes := 0, 0
	for n < len(frames) && (n == 0 || bytes+len(frames[n]) <= maxBatchBytes) {
		bytes += len(frames[n])
		n++
	}
	if n < minBatch && !async {
		return 1
	}
	return n
}

// Checkpoint renews the log's durable bound, with the owner record as it was last saved and the newest commit index.
func (w *Writer) Checkpoint() error { return w.log.Checkpoint(w.owner.Encode()) }
