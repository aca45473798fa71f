package broker

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestLeast holds least against a sort of all.
func TestLeast(t *testing.T) {
	t.Parallel()
	for range 2000 {
		all := make([]int, rand.IntN(60))
		l := least[int]{n: 1 + rand.IntN(20), compare: func(a, b *int) int { return cmp.Compare(*a, *b) }}
		for i := range all {
			all[i] = rand.IntN(40)
			l.add(all[i])
		}
		slices.Sort(all)
		if want, got := all[:min(len(all), l.n)], l.sorted(); !slices.Equal(got, want) {
			t.Fatalf("the %d smallest are %v, want %v", l.n, got, want)
		}
	}
}
