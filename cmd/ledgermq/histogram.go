package main

import (
	"math/bits"
	"time"
)

// histogram counts durations in buckets of about 1.6 % width, from 1 µs to over an hour, in a fixed 16 KiB. It has one writer.
type histogram struct {
	buckets [64 * 32]uint64
	count   uint64
	sum     time.Duration
	max     time.Duration
}

// subBits is how finely a power of two is divided: 2^6.
const subBits = 6

func (h *histogram) add(d time.Duration) {
	if d < 0 {
		d = 0
	}
	h.buckets[bucketOf(uint64(d.Microseconds()))]++
	h.count++
	h.sum += d
	h.max = max(h.max, d)
}

func bucketOf(us uint64) int {
	if us < 1<<subBits {
		return int(us)
	}
	shift := bits.Len64(us) - subBits - 1
	return min((shift+1)<<subBits+int(us>>shift)-1<<subBits, 64*32-1)
}

// upper is the largest duration that bucket b holds.
func upper(b int) time.Duration {
	if b < 1<<subBits {
		return time.Duration(b) * time.Microsecond
	}
	shift := b>>subBits - 1
	us := (uint64(b&(1<<subBits-1))|1<<subBits)<<shift + 1<<shift - 1
	return time.Duration(us) * time.Microsecond
}

func (h *histogram) merge(o *histogram) {
	for i, n := range o.buckets {
		h.buckets[i] += n
	}
	h.count += o.count
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

// quantile returns the duration that the share q of all are not above. 0 when there are none.
func (h *histogram) quantile(q float64) time.Duration {
	want := uint64(q * float64(h.count))
	var seen uint64
	for b, n := range h.buckets {
		seen += n
		if n > 0 && seen > want {
			return min(upper(b), h.max)
		}
	}
	return h.max
}
