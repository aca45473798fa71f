package tests

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// moreControllers is the walk-through in which controllers come and go. Those that dev does not start run beside it, at ports of the
// cluster's range: 10.0.0.N is that of cN.
func moreControllers(t *testing.T, steps []step) {
	c := start(t, cluster.Options{Groups: 1})
	first, err := c.Member("c1")
	if err != nil {
		t.Fatal(err)
	}
	port := func(n string) int {
		if n == "1" {
			return first.Ports["grpc"]
		}
		return c.Base + 150 + 2*int(n[0]-'0')
	}
	here := func(text string) string {
		return regexp.MustCompile(`10\.0\.0\.(\d):9878`).ReplaceAllStringFunc(text, func(a string) string { return c.At(port(a[7:8])) })
	}
	w := &walker{t: t, c: c, dir: t.TempDir(), load: startOwnLoad(t, c, "Controllers", 2)}
	w.env = append(w.shellEnv(), "LEDGERMQ_NAMESRV="+strings.Join(c.Namesrv, ","))
	w.walk.marks = map[string]func(*walker, []string){
		`c(\d)(?: and c(\d))? waits? to be added(?:: .*)?`: func(w *walker, args []string) {
			for _, n := range args {
				if n == "" {
					continue
				}
				peers := fmt.Sprintf("c1=10.0.0.1:9878,c%s=10.0.0.%s:9878", n, n)
				if n == "4" {
					peers = "c2=10.0.0.2:9878,c4=10.0.0.4:9878"
				}
				health := c.At(port(n) + 1)
				one := *w
				one.dir = filepath.Join(t.TempDir())
				serve(&one, here(fmt.Sprintf("ledgermq controller --id c%s --listen 10.0.0.%s:9878 --peers %s --join --data %s --http %s", n, n, peers, filepath.Join(one.dir, "data"), health)), health)
			}
		},
	}
	w.load.awaitMore(t, 100, time.Minute)
	translate(steps, here)
	w.steps(steps)
	for _, bad := range []struct{ args, says string }{
		{"add c9", "ID=HOST:PORT"},
		{"remove c9", "there is no controller"},
		{"remove c2", "last controller"},
		{"add c2=" + here("10.0.0.4:9878"), "is controller c4, not c2"},
		{"replace c9 --with c4=" + here("10.0.0.4:9878"), "there is no controller"},
	} {
		if _, err := c.Admin(within(t, 30*time.Second), append([]string{"controller"}, strings.Fields(bad.args)...)...); err == nil || !strings.Contains(err.Error(), bad.says) {
			t.Errorf("admin controller %s: %v, want %q", bad.args, err, bad.says)
		}
	}
	w.load.check(t, c)
}
