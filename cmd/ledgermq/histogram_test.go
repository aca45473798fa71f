package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/client"
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

// TestBenchTellsOutcomes holds that a run tells sends that were not stored from those of which nobody knows.
func TestBenchTellsOutcomes(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	tool := &tool{streams: streams{out: &out, err: io.Discard}}
	outcomes := []error{nil, &client.SendError{Outcome: client.ErrNotStored}, &client.SendError{Outcome: client.ErrUnknown},
		&client.SendError{Outcome: client.ErrUnknown}, errors.New("of a pull"), errDone}
	step := func(context.Context) (int, error) {
		err := outcomes[0]
		outcomes = outcomes[1:]
		return 2, err
	}
	b := &bench{tool: tool, duration: time.Minute}
	r := b.run(t.Context(), []benchStep{step})
	if r.Messages != 2 || r.Calls != 1 || r.Errors != 4 || r.NotStored != 1 || r.Unknown != 2 {
		t.Errorf("got %+v", r)
	}
	c := cli.NewContext(cli.NewApp(), flag.NewFlagSet("", flag.ContinueOnError), nil)
	if err := tool.printBench(c, r); err != nil || !strings.Contains(out.String(), "4 errors (1 not stored, 2 unknown)") {
		t.Errorf("%v: %s", err, out.String())
	}
}
