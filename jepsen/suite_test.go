package jepsen_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/jepsen"
	"github.com/ledgermq/ledgermq/tests/cluster"
	"github.com/ledgermq/ledgermq/tests/goclient"
)

var (
	names    = flag.String("names", "", "run these, comma separated, such as kill-22")
	seed     = flag.Uint64("seed", 1, "of the faults")
	duration = flag.Duration("duration", 15*time.Second, "of the faults of each run")
	kept     = flag.String("keep", "", "folder for the data, logs and histories of runs that find something; default: they are removed")
)

// TestSuite runs the workloads over our client and over the official Go client at once. `make jepsen` calls it.
func TestSuite(t *testing.T) {
	if *names == "" {
		t.Skip("takes minutes: `make jepsen` runs it")
	}
	binary, err := cluster.Binary()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(*names, ",") {
		t.Run(name, func(t *testing.T) {
			kind, mode, err := jepsen.ParseName(name)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			if *kept != "" {
				dir = filepath.Join(*kept, name)
				if err := os.RemoveAll(dir); err != nil { // what an earlier run found
					t.Fatal(err)
				}
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			history, err := os.Create(filepath.Join(dir, "history.jsonl"))
			if err != nil {
				t.Fatal(err)
			}
			defer history.Close()
			drivers := []jepsen.Driver{jepsen.Own(), goclient.New()}
			report, err := jepsen.Run(t.Context(), jepsen.Options{
				Binary: binary, Dir: dir, Kind: kind, Mode: mode, Seed: *seed, Duration: *duration,
				Drivers: drivers, History: history, Say: t.Logf,
			})
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			report.Write(&text)
			t.Log("\n" + text.String())
			happened := map[string]int{"faults": report.Faults, "reads": report.Reads, "messages": report.Messages, "ends of transactions": report.Ended,
				"timers": report.Timers, "recalls": report.Recalled, "consumer offsets that were answered": report.Acks,
				"consumer offsets that counted": report.Counted, "resets": report.Resets, "questions for consumer offsets": report.Asks}
			for _, d := range drivers {
				happened["sends of client "+d.Name()] = report.Outcomes[d.Name()][jepsen.OK]
			}
			for what, n := range happened {
				if n == 0 {
					t.Errorf("no %s were OK: the verdict says nothing of them", what)
				}
			}
			if len(report.Violations) > 0 {
				t.Error("the cluster did what it must not do")
			}
			if *kept != "" && !t.Failed() {
				os.RemoveAll(dir)
			}
		})
	}
}
