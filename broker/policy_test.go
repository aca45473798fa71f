package broker

import (
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
)

// The delays are RocketMQ's for each policy; without one the levels from the third on count.
func TestRetryPolicies(t *testing.T) {
	t.Parallel()
	ladder := state.RetryPolicy{Kind: state.RetryCustomized, Next: []int64{1, 2, 30, 40}}
	short := state.RetryPolicy{Kind: state.RetryCustomized, Next: []int64{7}}
	double := state.RetryPolicy{Kind: state.RetryExponential, Initial: 100, Max: 1000, Multiplier: 2}
	huge := state.RetryPolicy{Kind: state.RetryExponential, Initial: maxRetryDelay, Max: maxRetryDelay, Multiplier: 1000}
	for _, tt := range []struct {
		p          *state.RetryPolicy
		reconsumed int32
		want       time.Duration
	}{
		{&ladder, -1, 30}, {&ladder, 0, 30}, {&ladder, 1, 40}, {&ladder, 2, 40}, {&ladder, 1 << 30, 40}, {&short, 0, 7}, {&short, 5, 7},
		{&double, 0, 100}, {&double, 1, 200}, {&double, 3, 800}, {&double, 4, 1000}, {&double, 1 << 30, 1000},
		{&huge, 9, time.Duration(maxRetryDelay)},
	} {
		if got, policy := policyDelay(tt.p, tt.reconsumed); !policy || got != tt.want*time.Millisecond {
			t.Errorf("%+v after %d tries: %v, want %v", *tt.p, tt.reconsumed, got, tt.want*time.Millisecond)
		}
	}
	if _, policy := policyDelay(&state.RetryPolicy{}, 0); policy {
		t.Error("no policy is one")
	}
	now := time.UnixMilli(1_000_000)
	r := &Replica{node: &Node{o: NodeOptions{Clock: func() time.Time { return now }, TimerMaxDelay: time.Hour}}}
	for reconsumed, want := range map[int32]later{0: {1_010_000, 3}, 1: {1_030_000, 4}, 15: {8_200_000, 18}, 100: {8_200_000, 18}} {
		if got := r.nextTry(&state.SubscriptionGroup{}, reconsumed); got != want {
			t.Errorf("without a policy, after %d tries: %+v, want %+v", reconsumed, got, want)
		}
	}
	if got := r.nextTry(&state.SubscriptionGroup{RetryPolicy: huge}, 0); got != (later{due: 4_600_000}) {
		t.Errorf("a delay over the limit: %+v, want the limit", got)
	}
	for g, want := range map[*state.SubscriptionGroup][2]int32{{RetryMax: 16}: {16, 0}, {RetryMax: 0}: {0, 0}, {RetryMax: -1}: {16, 0}} {
		if got := [2]int32{retryMaximum(g, -1), retryMaximum(g, 0)}; got != want {
			t.Errorf("the maximum of %d is %v, want %v", g.RetryMax, got, want)
		}
	}
}
