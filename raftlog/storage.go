package raftlog

import (
	"errors"
	"fmt"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// storage is raft.Storage over the commit log. Raft reads from it only what it knows to be durable, so a write in progress
// above that never shows. Entries are thin; the window serves those it still has.
//
// The library's own byte limits see the thin size, so Entries counts the frames and stops at limit.
type storage struct {
	log   *commitlog.Log
	w     *window
	hard  *pb.HardState
	conf  *pb.ConfState
	limit int64
	// newest is Config.Newest
	newest func(after ids.Index) (SnapshotID, bool)
}

var _ raft.Storage = (*storage)(nil)

// storageError is what a failed read becomes. The library panics with it, and Replica.guard turns that into a parked replica.
type storageError struct{ err error }

func (e storageError) Error() string { return e.err.Error() }
func (e storageError) Unwrap() error { return e.err }

func (s *storage) InitialState() (*pb.HardState, *pb.ConfState, error) { return s.hard, s.conf, nil }

func (s *storage) FirstIndex() (uint64, error) { return uint64(s.log.FirstIndex()), nil }

func (s *storage) LastIndex() (uint64, error) { return uint64(s.log.Tail().Index), nil }

func (s *storage) Term(i uint64) (uint64, error) {
	if c := s.w.at(ids.Index(i)); c != nil {
		return c.entry.GetTerm(), nil
	}
	t, err := s.log.TermOf(ids.Index(i))
	return uint64(t), s.translate(err)
}

// Entries returns entries from lo on, below hi, whose frames together have at most limit bytes; at least one.
func (s *storage) Entries(lo, hi, _ uint64) ([]*pb.Entry, error) {
	var (
		list  []*pb.Entry
		bytes int64
	)
	if ids.Index(lo) < s.log.FirstIndex() {
		return nil, raft.ErrCompacted
	}
	for i := lo; i < hi; i++ {
		var (
			e    *pb.Entry
			size int64
		)
		if c := s.w.at(ids.Index(i)); c != nil {
			e, size = c.entry, int64(len(c.frame))
		} else {
			term, err := s.log.TermOf(ids.Index(i))
			if err != nil {
				return nil, s.translate(err)
			}
			ref, err := s.log.RefOf(ids.Index(i))
			if err != nil {
				return nil, s.translate(err)
			}
			e, size = thinEntry(term, ids.Index(i), ref), int64(ref.Size)
		}
		if len(list) > 0 && bytes+size > s.limit {
			break
		}
		bytes += size
		list = append(list, e)
	}
	return list, nil
}

// Snapshot is what a member is offered that lacks what the log has given up; Raft asks again while there is none.
func (s *storage) Snapshot() (*pb.Snapshot, error) { return s.offerSnapshot() }

func (s *storage) translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, commitlog.ErrCompacted):
		return raft.ErrCompacted
	case errors.Is(err, commitlog.ErrUnavailable):
		return raft.ErrUnavailable
	}
	return storageError{fmt.Errorf("raftlog: read the log: %w", err)}
}

// thinEntry returns the entry of a frame. An empty frame follows from its place alone, so its entry has no data, as Raft makes
// the empty entry of a new term.
func thinEntry(term ids.Term, index ids.Index, ref commitlog.Ref) *pb.Entry {
	e := &pb.Entry{Type: pb.EntryNormal.Enum(), Term: new(uint64(term)), Index: new(uint64(index))}
	if ref.Size > commitlog.EmptyFrameSize {
		e.Data = commitlog.EncodeRef(ref)
	}
	return e
}
