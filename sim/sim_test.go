package sim

import (
	"flag"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

var (
	seeds  = flag.Int("seeds", 30, "how many seeds to run")
	first  = flag.Uint64("first", 1, "the first seed")
	lines  = flag.Bool("lines", false, "print each line of the trace")
	mutant = flag.String("mutant", "", "break one rule on purpose")
	quiet  = flag.Bool("quiet", false, "no line for each seed")
	rules  = flag.String("rules", "", "build and run the mutants of the rules whose names match")
	hunt   = flag.Bool("hunt", false, "find what kills the mutant that this is")
)

// TestSeeds runs seeds one after the other: crypto/rand is one for the whole process.
func TestSeeds(t *testing.T) {
	var out io.Writer
	if *lines {
		out = os.Stdout
	}
	begun := time.Now()
	var sum Result
	var groups int
	for seed := *first; seed < *first+uint64(*seeds); seed++ {
		res := Run(seed, Options{Mutant: Mutant(*mutant), Trace: out})
		if res.Err != nil {
			t.Fatalf("seed %d, %s\n%v\nat virtual %d ms, trace %016x\nrepeat with: make sim SEEDS=1 FIRST=%d", seed, res.Params, res.Err, res.Virtual/1000, res.Trace, seed)
		}
		if testing.Verbose() && !*quiet {
			t.Logf("seed %d modes %v trace %016x events %d entries %d ops %d acked %d unknown %d not stored %d reads %d masters %d crashes %d epochs %d leaders %d healed %d virtual %d ms",
				seed, res.Params.Groups, res.Trace, res.Events, res.Entries, res.Ops, res.Acked, res.Unknown, res.NotStored, res.Reads, res.Masters, res.Crashes, res.Epochs, res.Leaders, res.Healed/1000, res.Virtual/1000)
		}
		groups += len(res.Params.Groups)
		sum.Events += res.Events
		sum.Acked += res.Acked
		sum.Masters += res.Masters
		sum.Crashes += res.Crashes
		sum.Epochs += res.Epochs
		sum.Leaders += res.Leaders
		sum.Stale += res.Stale
		sum.Reads += res.Reads
		sum.Cuts += res.Cuts
		sum.Installs += res.Installs
		sum.Heirs += res.Heirs
		sum.Flips += res.Flips
		sum.Repairs += res.Repairs
		sum.Fulls += res.Fulls
		sum.Uncleans += res.Uncleans
		sum.Dropped += res.Dropped
		sum.Virtual += res.Virtual
		sum.Healed = max(sum.Healed, res.Healed)
	}
	took := time.Since(begun)
	t.Logf("%d seeds with %d groups in %v, %.0f seeds a minute, %.0f s simulated in 1 s: %d events, %d operations acknowledged, %d reads, %d masters, %d crashes, %d epochs, %d leaders of the controllers, %d of them stale for a while, %d fronts given up, %d replicas begun anew, %d in the place of lost ones, %d bits flipped, %d logs repaired from another replica, %d full disks, %d unclean elections because of asynchronous flush, which lost %d acknowledged operations that no voter had synced; well again after %d virtual ms at most",
		*seeds, groups, took.Round(time.Millisecond), float64(*seeds)/took.Minutes(), float64(sum.Virtual)/1e6/took.Seconds(),
		sum.Events, sum.Acked, sum.Reads, sum.Masters, sum.Crashes, sum.Epochs, sum.Leaders, sum.Stale, sum.Cuts, sum.Installs, sum.Heirs, sum.Flips, sum.Repairs, sum.Fulls, sum.Uncleans, sum.Dropped, sum.Healed/1000)
	happened := map[string]int{"operations acknowledged": sum.Acked}
	if *seeds >= 100 && *mutant == "" { // the rarest of these come 15 times then
		happened["reads"], happened["crashes"], happened["stale leaders of the controllers"] = sum.Reads, sum.Crashes, sum.Stale
		happened["fronts given up"], happened["replicas begun anew"], happened["replicas in the place of lost ones"] = sum.Cuts, sum.Installs, sum.Heirs
		happened["bits flipped"], happened["logs repaired"], happened["full disks"] = sum.Flips, sum.Repairs, sum.Fulls
	}
	if *seeds >= 300 && *mutant == "" { // 3 in 100
		happened["unclean elections"] = sum.Uncleans
	}
	for what, n := range happened {
		if n == 0 {
			t.Errorf("no %s in %d seeds: the schedules do not get there any more", what, *seeds)
		}
	}
}

// storySeeds is how often a story is told, with other delays each time.
const storySeeds = 3

// TestStories runs the written schedules.
func TestStories(t *testing.T) {
	var out io.Writer
	if *lines {
		out = os.Stdout
	}
	for _, st := range Stories {
		t.Run(st.Name, func(t *testing.T) {
			for seed := uint64(1); seed <= storySeeds; seed++ {
				if res := Tell(st, seed, Options{Trace: out}); res.Err != nil {
					t.Errorf("seed %d: %v\nat virtual %d ms\nsee it with: go test ./sim -run 'TestStories/%s' -args -lines", seed, res.Err, res.Virtual/1000, strings.ReplaceAll(st.Name, " ", "_"))
				}
			}
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
