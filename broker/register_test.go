package broker

import (
	"testing"
	"time"
)

// TestLasting: one refused registration is no news, refusals that last are told after a round, and once a minute.
func TestLasting(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_800_000_000_000)
	var l lasting
	said := 0
	for _, step := range []struct {
		after time.Duration
		bad   bool
		want  int // times said in all
	}{
		{0, true, 0}, {9 * time.Second, true, 0}, {time.Second, true, 1}, {50 * time.Second, true, 1}, {10 * time.Second, true, 2},
		{time.Second, false, 2}, {time.Hour, true, 2}, {10 * time.Second, true, 3},
	} {
		now = now.Add(step.after)
		if l.note(now, step.bad) {
			said++
		}
		if said != step.want {
			t.Fatalf("after %v, bad %t: said %d times, want %d", step.after, step.bad, said, step.want)
		}
	}
}
