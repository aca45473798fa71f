package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// removedGroup runs the removal of a broker group under the load of official clients that choose no queue: no send fails, and every message
// that was answered OK is consumed, those of the group that goes too.
func removedGroup(t *testing.T, steps []step) {
	c := start(t, cluster.Options{Groups: 2})
	w := &walker{t: t, c: c, dir: c.Dir, load: startLoad(t, c, "Walk", 2)}
	w.env = append(w.shellEnv(), "LEDGERMQ_NAMESRV="+strings.Join(c.Namesrv, ","))
	w.walk.marks = map[string]func(*walker, []string){
		`(\S+) has no replica of g2 any more`: func(w *walker, a []string) {
			eventually(w.t, time.Minute, a[0]+" moves its replica of g2 away", func() (bool, error) {
				here, err := os.ReadDir(filepath.Join(c.Dir, a[0], "groups"))
				lost, e := os.ReadDir(filepath.Join(c.Dir, a[0], "lost"))
				if err != nil {
					return false, fmt.Errorf("the folders of %s: %w", a[0], err)
				}
				return e == nil && len(here) == 1 && len(lost) == 1, nil
			})
		},
	}
	got := &bodies{}
	consume(t, c, "Walk", "readers", func(m *primitive.MessageExt) consumer.ConsumeResult {
		got.add(m)
		return consumer.ConsumeSuccess
	})
	firstLeads(w.t, w.c, "g1", "n1")
	firstLeads(w.t, w.c, "g2", "n2")
	w.load.awaitMore(t, 200, time.Minute)
	w.steps(steps)
	acked := w.load.end()
	w.load.noneFailed(t)
	t.Logf("%d sends answered OK, longest gap %d ms", len(acked), w.load.gap.Load())
	eventually(t, 2*time.Minute, "every acknowledged message", func() (bool, error) { return got.has(acked), nil })
}
