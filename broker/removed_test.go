package broker

import (
	"math/rand/v2"
	"testing"

	"github.com/ledgermq/ledgermq/controller/controllerpb"
)

// twoLogs draws two logs, as the term of each entry, that have a beginning in common and nothing after it.
func twoLogs(r *rand.Rand) (a, b []uint64, common int) {
	term := uint64(1)
	for range r.IntN(12) {
		term += uint64(r.IntN(3))
		a = append(a, term)
	}
	b = append(b, a...)
	common = len(a)
	// What follows differs: two masters never have one term, and a log does not go back to an older one.
	grow := func(log []uint64, odd uint64) []uint64 {
		t := (term + 2) * 2
		for range r.IntN(6) {
			t += 2 * uint64(r.IntN(2))
			log = append(log, t+odd)
		}
		return log
	}
	return grow(a, 0), grow(b, 1), common
}

func startsOf(log []uint64) (out []*controllerpb.TermStart) {
	for i, t := range log {
		if i == 0 || log[i-1] != t {
			out = append(out, &controllerpb.TermStart{Term: t, Start: uint64(i + 1)})
		}
	}
	return out
}

func TestLastCommonTwin(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		a, b, common := twoLogs(r)
		if got := lastCommon(startsOf(a), startsOf(b), uint64(len(a)), uint64(len(b))); got != uint64(common) {
			t.Fatalf("logs of the terms %v and %v: %d entries in common, want %d", a, b, got, common)
		}
		if got := lastCommon(startsOf(a), startsOf(a), uint64(len(a)), uint64(len(a))); got != uint64(len(a)) {
			t.Fatalf("a log of the terms %v and itself: %d", a, got)
		}
	}
}
