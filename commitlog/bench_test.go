package commitlog

import (
	"fmt"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// disk returns options of a log on the machine's file system.
func disk(b testing.TB, segment int64) Options {
	return Options{Dir: b.TempDir() + "/log", Cluster: testCluster, Group: testGroup, SegmentSize: segment, FillAhead: maxFillAhead}
}

// BenchmarkAppendSync: what does one group commit cost, and what do zeros ahead of the writer save?
//
// Expected: one pwritev and one fdatasync, no read; 2 or 3 allocations of a few hundred bytes; into zeros about 0.2 ms for 64 KiB
// and 0.4 ms for 256 KiB on an NVMe disk, 1.7 times that when the file grows. CPU: 20 µs for 256 KiB, all of it the copy
// into the page cache.
func BenchmarkAppendSync(b *testing.B) {
	for _, fill := range []bool{true, false} {
		for _, size := range []int{4 << 10, 64 << 10, 256 << 10} {
			b.Run(fmt.Sprintf("fill=%v/size=%d", fill, size), func(b *testing.B) {
				o := disk(b, 256<<20)
				if !fill {
					o.FillAhead = -1
				}
				l := mustCreate(b, o)
				defer l.Close(false)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				frames := make([]Frame, 1)
				for b.Loop() {
					b.StopTimer()
					for more := fill; more; {
						var err error
						more, err = l.FillAhead()
						check(b, err)
					}
					bld := l.NewBuilder(l.Tail(), 1, 1)
					bld.Reserve(1, 1, 0, size-headerSize-recordHeaderSize)
					frames[0] = bld.Finish()
					b.StartTimer()
					check(b, l.Append(frames))
					check(b, l.Sync())
					b.StopTimer()
					Release(frames[0])
					if segs := l.Segments(); len(segs) > 2 {
						check(b, l.CutFront(segs[len(segs)-1].Base-1))
					}
					b.StartTimer()
				}
			})
		}
	}
}

// BenchmarkBuild: what does forming a frame of 64 records of 1 KiB cost, checksum included?
//
// Expected: memory bandwidth: clearing, and CRC-32C with the processor's own instruction; under 15 µs, no allocation but the
// builder.
func BenchmarkBuild(b *testing.B) {
	l := mustCreate(b, disk(b, 16<<20))
	defer l.Close(false)
	b.SetBytes(64 << 10)
	b.ReportAllocs()
	for b.Loop() {
		bld := l.NewBuilder(l.Tail(), 1, 1)
		for range 64 {
			bld.Reserve(1, 1, 0, 1024)
		}
		Release(bld.Finish())
	}
}

// BenchmarkReadAt: what does a consumer's read of 32 KiB from the page cache cost?
//
// Expected: one pread: 5 µs, of which the locks are 0.1 µs; no allocation.
func BenchmarkReadAt(b *testing.B) {
	l := mustCreate(b, disk(b, 16<<20))
	defer l.Close(false)
	grow(b, l, 1, 100, 64<<10)
	p := make([]byte, 32<<10)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			check(b, l.ReadAt(p, ids.PhysicalOffset(segmentHeaderSize+i%100*(64<<10))))
		}
	})
}

// BenchmarkRefOf: what does the reference of an old frame cost, when a follower is served from far behind?
//
// Expected: one or two reads of a header, 2 µs, and one small allocation.
func BenchmarkRefOf(b *testing.B) {
	l := mustCreate(b, disk(b, 64<<20))
	defer l.Close(false)
	grow(b, l, 1, 3*recentFrames, 100)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := l.RefOf(ids.Index(1 + i%(2*recentFrames-1))); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen: how long does a start after a kill -9 take, with all of 316 MiB behind the last checkpoint, and with none?
//
// Expected: with none, the zeros ahead are searched for later frames: a few 10 ms; with all, 316 MiB are read and checked, of
// which at most 64 MiB, those above the durable bound, are written again and synced: about the disk's write speed.
func BenchmarkOpen(b *testing.B) {
	for _, checkpoint := range []bool{true, false} {
		b.Run(fmt.Sprintf("checkpoint=%v", checkpoint), func(b *testing.B) {
			o := disk(b, 1<<30)
			l := mustCreate(b, o)
			for l.Tail().Offset < 316<<20 { // 60 MiB behind the last renewal of the bound
				grow(b, l, 1, 1, 256<<10)
				check(b, l.Sync())
			}
			if checkpoint {
				check(b, l.Checkpoint(nil))
			}
			check(b, l.Close(false))
			meta, err := readMetaFile(o)
			check(b, err)
			for b.Loop() {
				l := mustOpen(b, o)
				b.StopTimer()
				check(b, l.Close(false))
				check(b, writeMetaFile(o, meta)) // the bound of before
				b.StartTimer()
			}
		})
	}
}
