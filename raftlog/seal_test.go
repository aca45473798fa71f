package raftlog

import (
	"bytes"
	"testing"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// Seal moves a log into a later epoch, as often as it is asked, and never back.
func TestSeal(t *testing.T) {
	t.Parallel()
	rec := goldenEpoch()
	first, later := rec, rec
	first.Epoch, later.Epoch = 3, 5
	o := commitlog.Options{FS: vfs.NewMem(), Dir: "log", Cluster: rec.Cluster, Group: rec.Group, SegmentSize: 16 << 20}
	owner := Owner{Replica: 101, Term: ids.MakeTerm(3, 7), Vote: 102, Commit: 9, Record: first.Encode()}
	if err := commitlog.Create(o, owner.Encode()); err != nil {
		t.Fatal(err)
	}
	l, err := commitlog.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(false)
	for _, step := range []struct {
		rec  EpochRecord
		term ids.Term
		vote ids.ReplicaID
		want EpochRecord
	}{
		{first, ids.MakeTerm(3, 7), 102, first},
		{later, ids.MakeTerm(5, 0), 0, later},
		{later, ids.MakeTerm(5, 0), 0, later},
		{first, ids.MakeTerm(5, 0), 0, later},
	} {
		if err := Seal(l, step.rec); err != nil {
			t.Fatal(err)
		}
		got, err := DecodeOwner(l.Meta().Owner)
		if err != nil || got.Term != step.term || got.Vote != step.vote || !bytes.Equal(got.Record, step.want.Encode()) || got.Replica != 101 || got.Commit != 9 {
			t.Errorf("after the seal of epoch %d: %+v, %v", step.rec.Epoch, got, err)
		}
	}
}
