package raftlog_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/raftlog"
)

// BenchmarkGroup answers: what does the replicated log cost per message of 1 KiB with 64 senders that each wait for their answer,
// all three replicas in this process on real files, without sockets? Expected: three syncs a frame, the messages per frame share
// them; beside the disk some 10 µs of processor time a frame and replica in the library, and one copy and one checksum a message
// and replica.
func BenchmarkGroup(b *testing.B) {
	dir := b.TempDir() // before the cluster: what is registered first is cleaned up last
	c := newCluster(b, nil)
	body := make([]byte, 1024)
	machines := make(map[ids.ReplicaID]*echo)
	var groups []*raftlog.Group
	for _, m := range c.record.Voters {
		o := commitlog.Options{FS: vfs.OS, Dir: dir + "/" + string(m.Node), Cluster: c.record.Cluster, Group: c.record.Group, SegmentSize: 64 << 20}
		owner := raftlog.Owner{Replica: m.ID, Incarnation: m.Incarnation}
		if err := commitlog.Create(o, owner.Encode()); err != nil {
			b.Fatal(err)
		}
		log, err := commitlog.Open(o)
		if err != nil {
			b.Fatal(err)
		}
		n := c.nodes[m.Node]
		sm := &echo{body: body}
		cfg := raftlog.Config{Record: &c.record, Replica: m.ID, Incarnation: m.Incarnation, Log: log, SM: sm}
		cfg.Send = n.sender()
		g, err := raftlog.Start(cfg)
		if err != nil {
			b.Fatal(err)
		}
		sm.wake = g.Wake
		machines[m.ID] = sm
		c.mu.Lock()
		n.g, n.log = g, log
		c.mu.Unlock()
		groups = append(groups, g)
	}
	groups[0].Campaign()
	m := c.master(b)
	sm := machines[m.self.ID]
	start := m.g.Status().Applied
	b.SetBytes(1024)
	b.ReportAllocs()
	b.ResetTimer()
	const senders = 64
	var wg sync.WaitGroup
	for s := range senders {
		n := b.N / senders
		if s < b.N%senders {
			n++
		}
		wg.Go(func() {
			done := make(chan struct{}, 1)
			for range n {
				sm.send(done)
				<-done
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	frames := float64(m.g.Status().Applied - start)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	b.ReportMetric(float64(b.N)/frames, "msg/frame")
}

// echo is a state machine that stores what waits and answers it.
type echo struct {
	body []byte
	wake func()

	mu      sync.Mutex
	waiting []chan struct{}
	formed  []batch // of the loop alone
}

type batch struct {
	index ids.Index
	done  []chan struct{}
}

func (e *echo) send(done chan struct{}) {
	e.mu.Lock()
	e.waiting = append(e.waiting, done)
	e.mu.Unlock()
	e.wake()
}

func (e *echo) Form(b *commitlog.Builder) any {
	e.mu.Lock()
	list := e.waiting
	e.waiting = nil
	e.mu.Unlock()
	if len(list) == 0 {
		return nil
	}
	for k := range list {
		body, _, ok := b.Reserve(1, 1, 0, len(e.body))
		if !ok { // the segment is full: the rest goes into the next frame
			e.mu.Lock()
			e.waiting = append(list[k:len(list):len(list)], e.waiting...)
			e.mu.Unlock()
			list = list[:k]
			break
		}
		copy(body, e.body)
	}
	e.formed = append(e.formed, batch{b.Index(), list})
	return &e.formed
}

func (e *echo) Apply(raftlog.Committed) error { return nil }
func (e *echo) Acked(upTo ids.Index) {
	for len(e.formed) > 0 && e.formed[0].index <= upTo {
		for _, done := range e.formed[0].done {
			done <- struct{}{}
		}
		e.formed = e.formed[1:]
	}
}
func (e *echo) Abandon(any, raftlog.Outcome) {}
func (e *echo) Role(raftlog.Role)            {}
func (e *echo) Flush()                       {}

// BenchmarkWriter answers: what does a follower's disk cost per frame of 16 KiB when several wait, as they do while it catches up?
// Expected: below four frames one sync each; from four on three syncs for all of them, so that 64 frames cost 20 times less than
// one by one.
func BenchmarkWriter(b *testing.B) {
	for _, n := range []int{1, 3, 4, 16, 64} {
		b.Run(fmt.Sprintf("frames=%d", n), func(b *testing.B) {
			o := commitlog.Options{Dir: b.TempDir() + "/log", Cluster: ids.ClusterID{1}, Group: ids.GroupID{2}, SegmentSize: 64 << 20}
			owner := raftlog.Owner{Replica: 1, Incarnation: ids.Incarnation{1}}
			if err := commitlog.Create(o, owner.Encode()); err != nil {
				b.Fatal(err)
			}
			log, err := commitlog.Open(o)
			if err != nil {
				b.Fatal(err)
			}
			defer log.Close(false)
			w, err := raftlog.NewWriter(log)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(n) * 16 << 10)
			for b.Loop() {
				b.StopTimer()
				for more := true; more; {
					if more, err = log.FillAhead(); err != nil {
						b.Fatal(err)
					}
				}
				tail := log.Tail()
				j := &raftlog.Job{First: tail.Index + 1}
				for range n {
					bld := log.NewBuilder(tail, 1, 1)
					bld.Reserve(1, 1, 0, 16<<10)
					f := bld.Finish()
					j.Frames, tail = append(j.Frames, f), tail.After(f)
				}
				b.StartTimer()
				if err := w.Write([]*raftlog.Job{j}); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if segs := log.Segments(); len(segs) > 2 {
					if err := log.CutFront(segs[len(segs)-1].Base - 1); err != nil {
						b.Fatal(err)
					}
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "frames/s")
		})
	}
}
