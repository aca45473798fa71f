package jepsen

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// What is seen of processes from outside: whether something holds by now, and what their logs say.

// Await calls holds every 50 ms until it returns true or an error, or until ctx ends.
func Await(ctx context.Context, what string, holds func() (bool, error)) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := holds()
		if err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited in vain for %s: %w", what, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// shownOfLog is how much of a log a report shows.
const shownOfLog = 4000

// LogEnds returns the end of each log of a folder, for the report of what failed.
func LogEnds(folder string) string {
	return excerpts(folder, func(text string) []string { return []string{text[max(0, len(text)-shownOfLog):]} })
}

// LogTrouble returns what the logs of a folder say of panics and, when the binary was built with the race detector, of data races.
func LogTrouble(folder string) string {
	return excerpts(folder, func(text string) (found []string) {
		for _, mark := range []string{"WARNING: DATA RACE", "panic: ", "fatal error: "} {
			if i := strings.Index(text, mark); i >= 0 {
				found = append(found, text[i:min(len(text), i+shownOfLog)])
			}
		}
		return found
	})
}

// excerpts puts together what choose takes from each log, under the log's name. A log that cannot be read has nothing.
func excerpts(folder string, choose func(text string) []string) string {
	var all strings.Builder
	logs, _ := filepath.Glob(filepath.Join(folder, "*.log"))
	for _, name := range logs {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		for _, part := range choose(string(text)) {
			fmt.Fprintf(&all, "--- %s\n%s\n", filepath.Base(name), part)
		}
	}
	return all.String()
}
