package raftlog_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/raftlog/peer"
)

// TestWriterSharesSyncs: a frame that is alone has a sync to itself and costs no write of the meta file; from four on frames that
// wait share one, across jobs, up to a bound in bytes.
func TestWriterSharesSyncs(t *testing.T) {
	t.Parallel()
	var syncs, metas int
	fs := vfs.Inject(vfs.NewMem(), func(op vfs.Op, name string, _ int64, _ int) error {
		switch {
		case op == vfs.OpSync && strings.HasSuffix(name, "meta"):
			metas++
		case op == vfs.OpSync:
			syncs++
		}
		return nil
	})
	o := commitlog.Options{FS: fs, Dir: "log", Cluster: ids.ClusterID{1}, Group: ids.GroupID{2}, SegmentSize: 64 << 20}
	owner := raftlog.Owner{Replica: 1, Incarnation: ids.Incarnation{1}}
	if err := commitlog.Create(o, owner.Encode()); err != nil {
		t.Fatal(err)
	}
	log, err := commitlog.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close(false)
	w, err := raftlog.NewWriter(log)
	if err != nil {
		t.Fatal(err)
	}
	var frames []commitlog.Frame // that the log must hold
	// job makes a job of frames that follow entry after.
	job := func(after ids.Index, term ids.Term, sizes ...int) *raftlog.Job {
		frames = frames[:after:after]
		tail := commitlog.Tail{Offset: log.FirstOffset()}
		if after > 0 {
			tail = tail.After(frames[after-1])
		} else {
			tail.Chain = log.Tail().Chain
		}
		j := &raftlog.Job{First: after + 1}
		for _, n := range sizes {
			b := log.NewBuilder(tail, term, 1)
			if _, _, ok := b.Reserve(1, 1, 0, n); !ok {
				t.Fatalf("%d bytes do not fit", n)
			}
			f := b.Finish()
			j.Frames, tail = append(j.Frames, f), tail.After(f)
		}
		frames = append(frames, j.Frames...)
		return j
	}
	last := func() ids.Index { return ids.Index(len(frames)) }
	for _, c := range []struct {
		name string
		jobs func() []*raftlog.Job
		want string
	}{
		{"one", func() []*raftlog.Job { return []*raftlog.Job{job(0, 1, 100)} }, "1 syncs, 0 of meta"},
		{"three", func() []*raftlog.Job { return []*raftlog.Job{job(1, 1, 100, 100, 100)} }, "3 syncs, 0 of meta"},
		{"four", func() []*raftlog.Job { return []*raftlog.Job{job(4, 1, 100, 100, 100, 100)} }, "1 syncs, 2 of meta"},
		{"six jobs", func() (jobs []*raftlog.Job) {
			for range 5 {
				jobs = append(jobs, job(last(), 1, 100))
			}
			return append(jobs, &raftlog.Job{Commit: 3})
		}, "1 syncs, 2 of meta"},
		{"10 MiB", func() []*raftlog.Job {
			const m = 500 << 10
			return []*raftlog.Job{job(last(), 1, m, m, m, m, m, m, m, m, m, m, m, m, m, m, m, m, m, m, m, m)}
		}, "3 syncs, 6 of meta"},
		{"large ones", func() []*raftlog.Job { return []*raftlog.Job{job(last(), 1, 3<<20, 3<<20, 3<<20, 3<<20)} }, "4 syncs, 0 of meta"},
		// The second job replaces frames of the first: sync, four writes of meta and a sync for the truncation, sync.
		{"two masters", func() []*raftlog.Job {
			a := job(last(), 2, 100, 100, 100, 100, 100)
			return []*raftlog.Job{a, job(last()-2, 3, 10, 10, 10, 10)}
		}, "3 syncs, 8 of meta"},
	} {
		jobs := c.jobs()
		syncs, metas = 0, 0
		if err := w.Write(jobs); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%d syncs, %d of meta", syncs, metas); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if synced, _ := log.Synced(); synced != last() || log.Tail().Index != last() {
			t.Fatalf("%s: synced %d, tail %d, want %d", c.name, synced, log.Tail().Index, last())
		}
	}
	for _, want := range frames {
		if f, err := log.ReadFrame(want.Index(), nil); err != nil || !bytes.Equal(f, want) {
			t.Fatalf("frame %d: %v", want.Index(), err)
		}
	}
}

// TestFailedSyncBehindAnother: a read poisons the log of a replica that acknowledges before it syncs, and the sync that is under way fails
// after that. The replica is lost, as if the sync had failed first.
func TestFailedSyncBehindAnother(t *testing.T) {
	t.Parallel()
	var slow, bad atomic.Bool
	began, end := make(chan struct{}), make(chan struct{})
	fs := vfs.Inject(vfs.NewMem(), func(op vfs.Op, name string, _ int64, _ int) error {
		switch {
		case op == vfs.OpSync && strings.HasSuffix(name, ".log") && slow.Load():
			began <- struct{}{}
			<-end
			return errors.New("injected")
		case op == vfs.OpRead && bad.Load():
			return errors.New("injected")
		}
		return nil
	})
	o := commitlog.Options{FS: fs, Dir: "log", Cluster: ids.ClusterID{1}, Group: ids.GroupID{2}, SegmentSize: 64 << 20, Async: true, BootID: "a"}
	owner := raftlog.Owner{Replica: 1, Incarnation: ids.Incarnation{1}}
	if err := commitlog.Create(o, owner.Encode()); err != nil {
		t.Fatal(err)
	}
	log, err := commitlog.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close(false)
	r, err := raftlog.OpenReplica(raftlog.Config{Cluster: o.Cluster, Group: o.Group, Replica: 1, Incarnation: ids.Incarnation{1}, Log: log, SM: newRecorder(),
		Send: func(ids.NodeID, []peer.Envelope) {}})
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Append([]commitlog.Frame{log.EmptyFrame(log.Tail(), 1, 1)}); err != nil {
		t.Fatal(err)
	}
	slow.Store(true)
	done := make(chan error)
	go func() { done <- log.SyncBehind() }()
	<-began
	bad.Store(true)
	if _, err := log.ReadFrame(1, nil); err == nil {
		t.Fatal("it was read")
	}
	r.Tick()
	if p := r.Parked(); p == nil || p.Lost {
		t.Fatalf("after the bad read: %+v", p)
	}
	close(end)
	if err := <-done; err == nil {
		t.Fatal("it was synced")
	}
	r.Tick()
	if p := r.Parked(); !p.Lost || !strings.Contains(p.Reason, "may be lost") {
		t.Errorf("after the failed sync: %+v", p)
	}
}
