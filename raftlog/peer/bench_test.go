package peer

import (
	"bytes"
	"fmt"
	"io"
	"sync/atomic"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// BenchmarkTransport answers: what does one envelope cost over loopback, both ends in this process, while up to `window` are on
// their way? Expected: 64 KiB are two copies through the kernel and one checksum pass, so below 40 µs and, beside the receiver's
// buffer, one allocation; a heartbeat that shares its packet with others below 1 µs.
func BenchmarkTransport(b *testing.B) {
	for _, c := range []struct {
		name         string
		frame, batch int
		window       int64
	}{
		{"heartbeat", 0, 1, 1},
		{"heartbeats/batch=16", 0, 16, 256},
		{"frame=64KiB/window=1", 64 << 10, 1, 1},
		{"frame=64KiB/window=8", 64 << 10, 1, 8},
		{"frame=4KiB/window=8", 4 << 10, 1, 8},
		{"frame=1MiB/window=2", 1 << 20, 1, 2},
	} {
		b.Run(c.name, func(b *testing.B) {
			var received, packets atomic.Int64
			wake := make(chan struct{}, 1)
			to := newNode(b, "n2", func(o *Options) {
				o.Receive = func(_ ids.NodeID, envs []Envelope) {
					received.Add(int64(len(envs)))
					packets.Add(1)
					select {
					case wake <- struct{}{}:
					default:
					}
				}
			})
			from := newNode(b, "n1", nil)
			connect(b, from, to)
			var envs []Envelope
			for i := range uint64(c.batch) {
				if c.frame == 0 {
					envs = append(envs, heartbeat(1, 2, i))
				} else {
					envs = append(envs, appendOf(1, 2, i, c.frame))
				}
			}
			b.ReportAllocs()
			b.SetBytes(int64(c.frame))
			sent := int64(0)
			for b.Loop() {
				from.Send("n2", envs)
				sent++
				for sent*int64(c.batch)-received.Load() >= c.window*int64(c.batch) {
					<-wake
				}
			}
			for received.Load() < sent*int64(c.batch) {
				<-wake
			}
			b.StopTimer()
			if n := from.Stats().Peers["n2"].Dropped; n > 0 {
				b.Fatalf("%d dropped", n)
			}
			b.ReportMetric(float64(sent*int64(c.batch))/b.Elapsed().Seconds(), "envelopes/s")
			b.ReportMetric(float64(received.Load())/float64(packets.Load()), "envelopes/packet")
		})
	}
}

// BenchmarkCodec is the share of encoding and decoding in that, without a socket.
func BenchmarkCodec(b *testing.B) {
	for _, c := range []struct {
		name string
		envs []Envelope
	}{
		{"heartbeat", []Envelope{heartbeat(1, 2, 3)}},
		{"frame=64KiB", []Envelope{appendOf(1, 2, 3, 64<<10)}},
	} {
		p := packetOf(c.envs...)
		b.Run(fmt.Sprintf("encode/%s", c.name), func(b *testing.B) {
			b.ReportAllocs()
			var buf []byte
			for b.Loop() {
				buf = appendBatch(buf[:0], c.envs)
			}
		})
		b.Run(fmt.Sprintf("decode/%s", c.name), func(b *testing.B) {
			b.ReportAllocs()
			var dst []Envelope
			src := bytes.NewReader(p)
			rd := newReader(src)
			for b.Loop() {
				src.Reset(p)
				h, err := rd.next()
				if err != nil {
					b.Fatal(err)
				}
				if dst, err = rd.batch(dst[:0], h); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestAllocations holds what the hot path may cost.
func TestAllocations(t *testing.T) {
	for _, c := range []struct {
		name string
		env  Envelope
	}{
		{"heartbeat", heartbeat(1, 2, 3)},
		{"append", appendOf(1, 2, 3, 4096)},
	} {
		p := newPipe(newQuietTransport(t), "n2", "", c.env.channel(), 1<<20)
		l := &link{features: allFeatures}
		p.link = l
		envs := []Envelope{c.env}
		l.busy = true
		p.send(envs)
		p.fill(l)
		if n := testing.AllocsPerRun(100, func() {
			p.send(envs)
			if !p.fill(l) {
				t.Fatal("nothing to send")
			}
		}); n != 0 {
			t.Errorf("sending a %s costs %v allocations, want 0", c.name, n)
		}
		packet := packetOf(c.env)
		dst := make([]Envelope, 0, 1)
		src := bytes.NewReader(packet)
		rd := newReader(src)
		want := 1.0 // the message, with all that it points to
		if len(c.env.Frames) > 0 {
			want++ // the frames' buffer
		}
		if n := testing.AllocsPerRun(100, func() {
			src.Reset(packet)
			h, err := rd.next()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := rd.batch(dst, h); err != nil {
				t.Fatal(err)
			}
		}); n > want {
			t.Errorf("receiving a %s costs %v allocations, want %v", c.name, n, want)
		}
	}
}

// BenchmarkBareTCP is what the machine allows: the same bytes, one write and one read into a new buffer, nothing else. Compare it
// with BenchmarkTransport of the same run.
func BenchmarkBareTCP(b *testing.B) {
	for _, size := range []int{120, 64 << 10} {
		b.Run(fmt.Sprintf("%dB/window=1", size), func(b *testing.B) {
			l := listen(b)
			out := dialRaw(b, l.Addr().String())
			in, err := l.Accept()
			if err != nil {
				b.Fatal(err)
			}
			_ = l.Close()
			wake := make(chan error, 1)
			go func() {
				for {
					buf := make([]byte, size)
					_, err := io.ReadFull(in, buf)
					wake <- err
					if err != nil {
						_ = in.Close()
						return
					}
				}
			}()
			buf := make([]byte, size)
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				if _, err := out.Write(buf); err != nil {
					b.Fatal(err)
				}
				if err := <-wake; err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			_ = out.Close()
			<-wake
		})
	}
}
