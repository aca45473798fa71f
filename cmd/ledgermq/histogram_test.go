package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestHistogramAgainstSorting compares quantiles with those of the sorted durations: never below, and at most 1.6 % above.
func TestHistogramAgainstSorting(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	var all []time.Duration
	parts := make([]histogram, 4)
	for i := range 20000 {
		d := time.Duration(1+r.ExpFloat64()*float64(3*time.Millisecond)).Truncate(time.Microsecond) << r.IntN(6)
		all = append(all, d)
		parts[i%len(parts)].add(d)
	}
	var h histogram
	for i := range parts {
		h.merge(&parts[i])
	}
	slices.Sort(all)
	for _, q := range []float64{0, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[min(int(q*float64(len(all))), len(all)-1)]
		got := h.quantile(q)
		if got < want || got > want+want*16/1000+time.Microsecond {
			t.Errorf("quantile %v: got %v, want %v", q, got, want)
		}
	}
	if h.max != all[len(all)-1] || h.count != uint64(len(all)) {
		t.Errorf("max %v of %d, want %v of %d", h.max, h.count, all[len(all)-1], len(all))
	}
}

func TestHistogramBuckets(t *testing.T) {
	t.Parallel()
	last := -1
	for us := uint64(0); us < 1<<22; us += 1 + us/200 {
		b := bucketOf(us)
		if b < last || upper(b) < time.Duration(us)*time.Microsecond {
			t.Fatalf("%d µs is in bucket %d, which ends at %v; the one before was %d", us, b, upper(b), last)
		}
		last = b
	}
}
