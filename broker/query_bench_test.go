package broker

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
)

// BenchmarkIndexMessage answers: what does the key index add to the way of a message of 1 KiB, on each replica, between its commit and its answer?
// Expected with the six properties that a Java client sends: 0.1 µs to find unique id, tag and key, 0.06 µs to hash their 60 bytes, and three entries at
// 0.03 µs each, since each goes to a place of its own in the chains' heads: 0.25 µs more than the queue index alone, no allocation for each message but the
// list of words, 48 bytes.
func BenchmarkIndexMessage(b *testing.B) {
	for _, with := range []bool{false, true} {
		b.Run(fmt.Sprintf("words=%v", with), func(b *testing.B) {
			idx, err := index.Open(index.Options{Dir: b.TempDir(), SegmentSize: 4 << 30})
			if err != nil {
				b.Fatal(err)
			}
			defer idx.Close()
			records := make([][]byte, 256) // as many as a frame has
			for i := range records {
				r := message.Record{Topic: "orders", Body: make([]byte, 1024), Properties: fmt.Sprintf("MSG_REGION\x01DefaultRegion\x02UNIQ_KEY\x017F0000010001D1B3A5C80A1B2C3D%04X\x02"+
					"CLUSTER\x01DefaultCluster\x02WAIT\x01true\x02TAGS\x01paid\x02KEYS\x01order-20261130-%06d\x02", i, i)}
				records[i] = r.AppendTo(nil)
			}
			var words []uint64
			at := ids.PhysicalOffset(4096)
			i := 0
			b.ReportAllocs()
			runtime.LockOSThread() // the machine may be shared: its clock tells little, the thread's processor time does
			defer runtime.UnlockOSThread()
			start, paused := cpuTime(), time.Duration(0)
			for b.Loop() {
				if i%55_000 == 54_999 { // each 64 MiB of log
					b.StopTimer()
					began := cpuTime()
					if err := idx.Checkpoint(at); err != nil {
						b.Fatal(err)
					}
					paused += cpuTime() - began
					b.StartTimer()
				}
				rec := records[i%len(records)]
				if with {
					words = wordsOf(words[:0], 1, rec)
				}
				if err := idx.Add(index.Key{Topic: 1, Queue: ids.QueueID(i % 8)}, ids.QueueOffset(i/8), index.Entry{Offset: at, Size: uint32(len(rec))}, words...); err != nil {
					b.Fatal(err)
				}
				i++
				at += 1200
			}
			b.ReportMetric(float64(cpuTime()-start-paused)/float64(b.N), "ns-CPU/op")
		})
	}
}
