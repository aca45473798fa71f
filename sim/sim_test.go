package sim

import (
	"flag"
	"io"
	"os"
	"testing"
	"time"
)

var (
	seeds  = flag.Int("seeds", 30, "how many seeds to run")
	first  = flag.Uint64("first", 1, "the first seed")
	lines  = flag.Bool("lines", false, "print each line of the trace")
	mutant = flag.String("mutant", "", "break one rule on purpose")
)

// TestSeeds runs seeds one after the other: crypto/rand is one for the whole process.
func TestSeeds(t *testing.T) {
	var out io.Writer
	if *lines {
		out = os.Stdout
	}
	begun := time.Now()
	var sum Result
	for seed := *first; seed < *first+uint64(*seeds); seed++ {
		res := Run(seed, Options{Mutant: Mutant(*mutant), Trace: out})
		if res.Err != nil {
			t.Fatalf("seed %d, %s\n%v\nat virtual %d ms, trace %016x\nrepeat with: make sim SEEDS=1 FIRST=%d", seed, res.Params, res.Err, res.Virtual/1000, res.Trace, seed)
		}
		if testing.Verbose() {
			t.Logf("seed %d trace %016x events %d entries %d ops %d acked %d unknown %d not stored %d reads %d masters %d crashes %d epochs %d virtual %d ms",
				seed, res.Trace, res.Events, res.Entries, res.Ops, res.Acked, res.Unknown, res.NotStored, res.Reads, res.Masters, res.Crashes, res.Epochs, res.Virtual/1000)
		}
		sum.Events += res.Events
		sum.Acked += res.Acked
		sum.Masters += res.Masters
		sum.Crashes += res.Crashes
		sum.Epochs += res.Epochs
		sum.Reads += res.Reads
	}
	t.Logf("%d seeds in %v: %d events, %d operations acknowledged, %d reads, %d masters, %d crashes, %d epochs", *seeds, time.Since(begun).Round(time.Millisecond),
		sum.Events, sum.Acked, sum.Reads, sum.Masters, sum.Crashes, sum.Epochs)
	if sum.Acked == 0 {
		t.Error("nothing was acknowledged")
	}
}

// TestMutants breaks one rule at a time and demands that the checker notices within some seeds.
func TestMutants(t *testing.T) {
	for _, m := range Mutants {
		t.Run(string(m), func(t *testing.T) {
			for seed := uint64(1); seed <= 20; seed++ {
				if res := Run(seed, Options{Mutant: m}); res.Err != nil {
					t.Logf("seed %d: %v", seed, res.Err)
					return
				}
			}
			t.Error("not noticed in 20 seeds")
		})
	}
}

// TestSameSeedSameTrace runs seeds twice.
func TestSameSeedSameTrace(t *testing.T) {
	for seed := uint64(1); seed <= 3; seed++ {
		a, b := Run(seed, Options{}), Run(seed, Options{})
		if a.Trace != b.Trace || a.Events != b.Events {
			t.Errorf("seed %d: trace %016x with %d events, then %016x with %d", seed, a.Trace, a.Events, b.Trace, b.Events)
		}
	}
}
