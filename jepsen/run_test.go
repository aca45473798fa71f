package jepsen_test

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/jepsen"
	"github.com/ledgermq/ledgermq/tests/cluster"
)

func TestMain(m *testing.M) {
	code := m.Run()
	cluster.RemoveBinary()
	os.Exit(code)
}

// TestRun is a whole run, short: the master of two replicas is killed, among others, and nothing is wrong afterwards.
func TestRun(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts processes of the built binary, for half a minute: run it without -short")
	}
	binary, err := cluster.Binary()
	if err != nil {
		t.Fatal(err)
	}
	var history bytes.Buffer
	report, err := jepsen.Run(t.Context(), jepsen.Options{
		Binary: binary, Dir: t.TempDir(), Kind: "mixed", Mode: jepsen.Mode{Answers: 2, Members: 2}, Seed: 7, Duration: 4 * time.Second,
		Drivers: []jepsen.Driver{jepsen.Own()}, History: &history, Say: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	report.Write(&text)
	t.Log("\n" + text.String())
	if len(report.Violations) > 0 || report.Faults == 0 || report.Outcomes["own"][jepsen.OK] == 0 || report.Reads == 0 {
		t.Error("that is no good run")
	}
	// What the file says is what was judged, and a judge who is told of a lost message finds it.
	ops, err := jepsen.ReadHistory(&history)
	if err != nil {
		t.Fatal(err)
	}
	if found := jepsen.Judge(ops, "queue-own"); len(found) > 0 {
		t.Errorf("judged again: %v", found)
	}
	kept := slices.DeleteFunc(ops, func(op jepsen.Op) bool { return op.Kind == jepsen.Final && op.Queue == 1 })
	if found := jepsen.Judge(kept, "queue-own"); !slices.ContainsFunc(found, func(v jepsen.Violation) bool { return v.Class == jepsen.Lost }) {
		t.Errorf("without the last reads of a queue nothing is lost: %v", found)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"kill-22": "kill 2-2", "partition-23": "partition 2-3", "mixed-35": "mixed 3-5"} {
		kind, mode, err := jepsen.ParseName(name)
		if err != nil || kind+" "+mode.String() != want {
			t.Errorf("%s: %s %v, %v", name, kind, mode, err)
		}
	}
	for _, text := range []string{"", "22", "1-1", "3-2", "2-6", "2-2 "} {
		if _, err := jepsen.ParseMode(text); err == nil {
			t.Errorf("the mode %q is taken", text)
		}
	}
	for _, name := range []string{"", "kill", "kill-11", "kill-32", "kill-26", "burn-22", "kill-222", "kill-2-2"} {
		if _, _, err := jepsen.ParseName(name); err == nil {
			t.Errorf("%q is taken", name)
		}
	}
}

// TestSchedule holds that a seed is a schedule, another seed another one, and that each fault of a kind comes.
func TestSchedule(t *testing.T) {
	t.Parallel()
	for _, kind := range jepsen.Kinds() {
		a, b := jepsen.Schedule(1, kind, time.Minute), jepsen.Schedule(2, kind, time.Minute)
		if !slices.Equal(a, jepsen.Schedule(1, kind, time.Minute)) || slices.Equal(a, b) {
			t.Errorf("%s: the schedule does not follow from the seed", kind)
		}
		seen := map[string]bool{}
		for _, s := range jepsen.Schedule(3, kind, 10*time.Minute) {
			seen[s.Fault] = true
		}
		if want := map[string]int{"kill": 7, "pause": 5, "partition": 12, "mixed": 24}[kind]; len(seen) != want {
			t.Errorf("%s has %d faults, want %d: %v", kind, len(seen), want, seen)
		}
	}
}
