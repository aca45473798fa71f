package broker

import (
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/remoting"
)

// A pull is held for as long as it asks for, and never longer than maxSuspend, whatever number it has: one that is not held because its
// time has turned negative is sent again at once, for ever.
func TestPullSuspendBounds(t *testing.T) {
	t.Parallel()
	for millis, want := range map[int64]time.Duration{
		math.MinInt64: 0, -9223372036855: 0, -1: 0, 0: 0, 1: time.Millisecond, 15000: 15 * time.Second,
		maxSuspend.Milliseconds() + 1: maxSuspend, 9223372036855: maxSuspend, math.MaxInt64: maxSuspend,
	} {
		pull := remoting.NewRequest(remoting.PullMessage)
		for _, f := range [][2]string{{"consumerGroup", "cg"}, {"topic", "T"}, {"queueId", "0"}, {"queueOffset", "0"}, {"maxMsgNums", "32"}, {"sysFlag", "2"},
			{"commitOffset", "0"}, {"suspendTimeoutMillis", strconv.FormatInt(millis, 10)}, {"subVersion", "0"}} {
			pull.Set(f[0], f[1])
		}
		if p, err := parsePull(pull); err != nil || p.suspend != want {
			t.Errorf("%d ms: held for %v (%v), want %v", millis, p.suspend, err, want)
		}
	}
}
