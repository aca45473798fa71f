package tests

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// scrape returns what the members of a role serve on /metrics.
func scrape(t *testing.T, c *cluster.Cluster, role string) string {
	t.Helper()
	members, err := c.Members()
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, m := range members {
		if m.Role != role {
			continue
		}
		resp, err := http.Get("http://" + c.At(m.Ports["http"]) + "/metrics")
		if err != nil {
			t.Fatalf("metrics of %s: %v", m.ID, err)
		}
		_, err = io.Copy(&all, resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("metrics of %s: status %d, %v", m.ID, resp.StatusCode, err)
		}
	}
	return all.String()
}

// TestMetricsOfThePage holds that what the operator's page tells to watch is there to be watched, and that the times of the disk
// and of the group are counted on every replica.
func TestMetricsOfThePage(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3, Groups: 1, Mode: "2-3"})
	ctx := within(t, time.Minute)
	for _, args := range [][]string{{"admin", "topic", "create", "Watched", "--queues", "1"}, {"admin", "consumer", "create", "watcher"}, {"produce", "Watched", "one", "two", "three"}, {"consume", "Watched", "--group", "watcher", "--count", "1"},
		{"admin", "topic", "create", "%DLQ%watcher", "--queues", "1"}, {"produce", "%DLQ%watcher", "dead"}, {"produce", "%RETRY%watcher", "again"}} {
		if out, err := c.Run(ctx, append(args, "--namesrv", c.Namesrv[0])...); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	brokers, controllers := scrape(t, c, "broker"), scrape(t, c, "controller")
	rows := regexp.MustCompile("(?m)^\\| `ledgermq_.*$").FindAllString(readRepoFile(t, "docs/operate.md"), -1)
	if len(rows) < 10 {
		t.Errorf("docs/operate.md has %d rows of metrics", len(rows))
	}
	for _, row := range rows {
		for _, name := range regexp.MustCompile(`\bledgermq_[a-z_]+`).FindAllString(row, -1) {
			if !regexp.MustCompile(`(?m)^` + name + `(_bucket)?[ {]`).MatchString(brokers + controllers) {
				t.Errorf("docs/operate.md tells to watch %s, which no member serves", name)
			}
		}
	}
	// The same holds for what the dashboard draws and the alerts look at.
	for _, file := range []string{"deploy/grafana-dashboard.json", "deploy/prometheus-alerts.yml"} {
		text := readRepoFile(t, file)
		var parsed any
		if err := yaml.Unmarshal([]byte(text), &parsed); err != nil { // JSON is YAML too
			t.Errorf("%s: %v", file, err)
		}
		names := regexp.MustCompile(`\bledgermq_[a-z_]+`).FindAllString(text, -1)
		if len(names) < 15 {
			t.Errorf("%s names %d metrics", file, len(names))
		}
		for _, name := range names {
			if !regexp.MustCompile(`(?m)^` + name + `[ {]`).MatchString(brokers + controllers) {
				t.Errorf("%s names %s, which no member serves", file, name)
			}
		}
	}
	counted := func(name string) int {
		return len(regexp.MustCompile(`(?m)^ledgermq_replica_`+name+`_seconds_count\{.*\} [1-9]`).FindAllString(brokers, -1))
	}
	eventually(t, 20*time.Second, "the times of writes on every replica", func() (bool, error) {
		brokers = scrape(t, c, "broker") // the third copy comes later than the answer
		return counted("write") == 3, nil
	})
	if n := counted("commit"); n < 1 { // masters count them, and another one may have been elected
		t.Error("commit times are counted by no replica")
	}
}
