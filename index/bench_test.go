package index

import (
	"runtime"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
)

func benchIndex(b *testing.B, segment int64) *Index {
	b.Helper()
	x, err := Open(Options{Dir: b.TempDir(), SegmentSize: segment})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = x.Close() })
	return x
}

// BenchmarkAdd answers: what does a message cost in the index? Expected: a map look-up and an append, 100 ns. There is no
// checkpoint in it.
func BenchmarkAdd(b *testing.B) {
	x := benchIndex(b, 4<<30)
	at := ids.PhysicalOffset(4096)
	i := 0
	b.ReportAllocs()
	defer measure(b)()
	for b.Loop() {
		if err := x.Add(Key{1, ids.QueueID(i % 64)}, ids.QueueOffset(i/64), Entry{Offset: at, Size: 1100}); err != nil {
			b.Fatal(err)
		}
		i++
		at += 1200
	}
}

// BenchmarkGet answers: what does a pull of 32 cost? Expected: 0.1 µs from memory; 3 to 5 µs from a file in the page cache:
// one page of its directory and one or two of entries are read and checked.
func BenchmarkGet(b *testing.B) {
	const queues, messages = 64, 200_000
	x := benchIndex(b, 64<<20)
	end := fill100k(b, x, queues, messages)
	tail := ids.QueueOffset(messages/queues) - 64
	if err := x.Checkpoint(end - 1200*60_000); err != nil {
		b.Fatal(err)
	}
	dst := make([]Entry, 0, 32)
	for name, from := range map[string]ids.QueueOffset{"tail": tail, "sealed": 100} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			defer measure(b)()
			i := 0
			for b.Loop() {
				got, err := x.Get(Key{ids.TopicID(1 + i%queues), 0}, from, 32, dst)
				if err != nil || len(got) != 32 {
					b.Fatal(len(got), err)
				}
				i++
			}
		})
	}
}

// BenchmarkSparseGet answers: what does a pull cost in one of 100,000 queues that has a message in every second run?
// Expected: a directory page for each run or segment that is looked at.
func BenchmarkSparseGet(b *testing.B) {
	const queues = 100_000
	x := benchIndex(b, 256<<20)
	fill100k(b, x, queues, 1_000_000)
	dst := make([]Entry, 0, 32)
	b.ReportAllocs()
	defer measure(b)()
	i := 0
	for b.Loop() {
		q := i * 31 % queues
		got, err := x.Get(Key{ids.TopicID(1 + q%100), ids.QueueID(q / 100)}, 0, 32, dst)
		if err != nil || len(got) != 10 {
			b.Fatal(len(got), err)
		}
		i++
	}
}

// BenchmarkCheckpoint answers: what does it cost to spill the 55,000 messages of 64 MiB that are spread over 100,000 queues?
// Expected: a sort of the keys, 20 + 24 bytes a message to write, two syncs. It also tells the memory of the active run.
func BenchmarkCheckpoint(b *testing.B) {
	const queues, messages = 100_000, 55_000
	x := benchIndex(b, 4<<30)
	at, i := ids.PhysicalOffset(4096), 0
	var bytes int64
	var cpu time.Duration
	n := 0
	b.ReportAllocs()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for b.Loop() {
		b.StopTimer()
		before := heap()
		for range messages {
			q := i * 7919 % queues
			if err := x.Add(Key{ids.TopicID(1 + q%100), ids.QueueID(q / 100)}, ids.QueueOffset(i/queues), Entry{Offset: at, Size: 1100}); err != nil {
				b.Fatal(err)
			}
			i++
			at += 1200
		}
		bytes = heap() - before
		b.StartTimer()
		start := cpuTime()
		if err := x.Checkpoint(at); err != nil {
			b.Fatal(err)
		}
		cpu += cpuTime() - start
		n++
	}
	b.ReportMetric(float64(cpu.Microseconds())/float64(n)/1000, "ms-CPU/op")
	b.ReportMetric(float64(bytes)/messages, "B/queue-with-1-entry")
}

// BenchmarkFind answers: what does a look-up of a word cost that one message has, and one of the newest 64 of a million messages, in 1 GiB of log?
// Expected from a file: three pages, so 4 µs, and one more for the million.
func BenchmarkFind(b *testing.B) {
	const messages = 1_000_000
	x := benchIndex(b, 1<<30)
	at := ids.PhysicalOffset(4096)
	for i := range messages {
		if err := x.Add(Key{1, 0}, ids.QueueOffset(i), Entry{Offset: at, Size: 900}, Hash(1, WordUnique, []byte{byte(i), byte(i >> 8), byte(i >> 16)}), 7); err != nil {
			b.Fatal(err)
		}
		if i%64_000 == 0 {
			if err := x.Checkpoint(at + 900); err != nil {
				b.Fatal(err)
			}
		}
		at += 1000
	}
	if err := x.Checkpoint(1 << 30); err != nil {
		b.Fatal(err)
	}
	for name, want := range map[string]int{"one": 1, "newest64": 64} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			defer measure(b)()
			i := 0
			for b.Loop() {
				n, hash := 0, uint64(7)
				if want == 1 {
					v := i * 7919 % messages
					hash = Hash(1, WordUnique, []byte{byte(v), byte(v >> 8), byte(v >> 16)})
				}
				if err := x.Find(hash, 0, 1<<40, func(ids.PhysicalOffset) bool { n++; return n < 64 }); err != nil || n != want {
					b.Fatal(n, err)
				}
				i++
			}
		})
	}
	all, words := x.Bytes()
	b.Logf("%d bytes of files, %d of them words", all, words)
}

// measure reports the processor time of the loop that follows, for a machine that is shared.
func measure(b *testing.B) (done func()) {
	runtime.LockOSThread()
	start := cpuTime()
	return func() {
		b.ReportMetric(float64(cpuTime()-start)/float64(b.N), "ns-CPU/op")
		runtime.UnlockOSThread()
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkMerge answers: what does it cost to seal a segment of 1 GiB? Expected: each entry is read and written once, so 20
// MiB each way.
func BenchmarkMerge(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		x := benchIndex(b, 1<<30)
		fill100k(b, x, 100_000, 894_000)
		runtime.LockOSThread()
		start := cpuTime()
		b.StartTimer()
		if err := x.Checkpoint(1 << 30); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64((cpuTime() - start).Milliseconds()), "ms-CPU")
		runtime.UnlockOSThread()
	}
}
