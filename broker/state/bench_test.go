package state

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// big returns a state with one topic per 1000 queues, a message in each queue, an offset in each and a lock on each tenth.
func big(tb testing.TB, queues int) *State {
	tb.Helper()
	s := New()
	for t := range queues / 1000 {
		apply(tb, s, 1, RecordTopicPut, AppendTopicPut(nil, Put, Topic{Name: fmt.Sprintf("topic-%d", t), ReadQueues: 1000, WriteQueues: 1000, Perm: 6}))
		id := ids.TopicID(t + 1)
		var offsets []ConsumerOffset
		var keys []index.Key
		for q := range ids.QueueID(1000) {
			apply(tb, s, 1, RecordMessage, message(index.Key{Topic: id, Queue: q}, 0, 0, 8))
			offsets = append(offsets, ConsumerOffset{"group", id, q, 1})
			if q%10 == 0 {
				keys = append(keys, index.Key{Topic: id, Queue: q})
			}
		}
		apply(tb, s, 1, RecordOffsets, AppendOffsets(nil, offsets))
		apply(tb, s, 1, RecordLock, AppendLock(nil, "group", "client", keys))
	}
	return s
}

// BenchmarkApplyMessage answers: what does a message cost in the state machine? Expected: two map look-ups, about 100 ns, no
// allocation.
func BenchmarkApplyMessage(b *testing.B) {
	const queues = 100_000
	s := big(b, queues)
	body := message(index.Key{}, 0, 0, 1024)
	r := record(RecordMessage, 4096, body)
	b.ReportAllocs()
	i := 0
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := cpuTime()
	defer func() { b.ReportMetric(float64(cpuTime()-start)/float64(b.N), "ns-CPU/op") }()
	for b.Loop() {
		q := i * 7919 % queues
		MessagePrefix{Key: index.Key{Topic: ids.TopicID(q/1000 + 1), Queue: ids.QueueID(q % 1000)}, QueueOffset: ids.QueueOffset(1 + i/queues)}.Put(body)
		if _, err := s.Apply(1, 1, r); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

// BenchmarkSnapshot answers: for how long does a snapshot keep Apply waiting? A clone is taken and written in the
// background while messages are applied; the longest single Apply and the clone itself are the stall. Expected: below 1 ms
// for 100,000 queues; what is shared is copied part by part.
func BenchmarkSnapshot(b *testing.B) {
	for _, queues := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprintf("queues=%d", queues), func(b *testing.B) {
			before := heap()
			s := big(b, queues)
			perQueue := float64(heap()-before) / float64(queues)
			body := message(index.Key{}, 0, 0, 1024)
			r := record(RecordMessage, 4096, body)
			next := make([]ids.QueueOffset, queues)
			for i := range next {
				next[i] = 1
			}
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			const messages = 65_536 // in 64 MiB
			var clones, applies []time.Duration
			var writing time.Duration
			n := 0
			for b.Loop() {
				start := cpuTime()
				c := s.Clone()
				clones = append(clones, cpuTime()-start)
				done := make(chan time.Duration)
				go func() {
					runtime.LockOSThread()
					defer runtime.UnlockOSThread()
					start := cpuTime()
					_ = c.Snapshot(io.Discard)
					done <- cpuTime() - start
				}()
				for range messages {
					q := n * 7919 % queues
					n++
					MessagePrefix{Key: index.Key{Topic: ids.TopicID(q/1000 + 1), Queue: ids.QueueID(q % 1000)}, QueueOffset: next[q]}.Put(body)
					next[q]++
					start := cpuTime()
					if _, err := s.Apply(1, 1, r); err != nil {
						b.Fatal(err)
					}
					applies = append(applies, cpuTime()-start)
				}
				writing += <-done
			}
			slices.Sort(applies)
			at := func(p float64) float64 {
				return float64(applies[int(p*float64(len(applies)-1))].Nanoseconds()) / 1000
			}
			b.ReportMetric(perQueue, "B/queue")
			b.ReportMetric(float64(slices.Max(clones).Nanoseconds())/1000, "µs-clone-max")
			b.ReportMetric(at(0.5), "µs-apply-p50")
			b.ReportMetric(at(0.99), "µs-apply-p99")
			b.ReportMetric(at(0.9999), "µs-apply-p99.99")
			b.ReportMetric(at(1), "µs-apply-max")
			b.ReportMetric(float64(writing.Milliseconds())/float64(len(clones)), "ms-CPU/snapshot")
		})
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkHash answers: what does it cost to compare replicas? Expected: the time of a snapshot plus SHA-256.
func BenchmarkHash(b *testing.B) {
	s := big(b, 100_000)
	b.ReportAllocs()
	for b.Loop() {
		s.Hash()
	}
}
