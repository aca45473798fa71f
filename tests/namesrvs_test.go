package tests

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// otherNamesrvs is the walk-through in which the name servers change. The new one runs beside dev, at a port of the cluster's range:
// 10.0.0.1 is that of dev, 10.0.0.2 the new one.
func otherNamesrvs(t *testing.T, steps []step) {
	c := start(t, cluster.Options{Groups: 1})
	next := c.Addr(160)
	here := func(text string) string {
		return regexp.MustCompile(`10\.0\.0\.(\d):9876`).ReplaceAllStringFunc(text, func(a string) string {
			if a[7] == '1' {
				return c.Namesrv[0]
			}
			return next
		})
	}
	w := &walker{t: t, c: c, dir: t.TempDir(), load: startOwnLoad(t, c, "Walk", 2)}
	w.env = append(w.shellEnv(), "LEDGERMQ_NAMESRV="+strings.Join(c.Namesrv, ","))
	w.walk.marks = map[string]func(*walker, []string){
		`a second name server is started: (.*)`: func(w *walker, args []string) {
			health := c.Addr(161)
			one := *w
			one.dir = t.TempDir()
			serve(&one, here(args[0])+" --http "+health, health)
		},
		`the first name server is stopped`: func(w *walker, _ []string) {
			c.Namesrv = []string{next}
			w.must(c.Interrupt(t.Context(), "ns1"))
		},
	}
	w.load.awaitMore(t, 100, time.Minute)
	for _, bad := range []struct{ args, says string }{
		{"add " + c.Namesrv[0], "set the whole list first"},
		{"add 127.0.0.1:1", "no name server answers at 127.0.0.1:1"},
		{"remove 127.0.0.1:1", "set the whole list first"},
		{"set 127.0.0.1", "not HOST:PORT"},
		{"set " + c.Namesrv[0] + " " + c.Namesrv[0], "named twice"},
	} {
		if _, err := c.Admin(within(t, 30*time.Second), append([]string{"namesrv"}, strings.Fields(bad.args)...)...); err == nil || !strings.Contains(err.Error(), bad.says) {
			t.Errorf("admin namesrv %s: %v, want %q", bad.args, err, bad.says)
		}
	}
	translate(steps, here)
	w.steps(steps)
	for _, bad := range []struct{ args, says string }{
		{"remove 127.0.0.1:1", "there is no name server"},
		{"remove " + next, "last name server"},
	} {
		if _, err := c.Admin(within(t, 30*time.Second), append([]string{"namesrv"}, strings.Fields(bad.args)...)...); err == nil || !strings.Contains(err.Error(), bad.says) {
			t.Errorf("admin namesrv %s: %v, want %q", bad.args, err, bad.says)
		}
	}
	w.load.check(t, c)
}
