package conformance

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/rlog"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/jepsen"
	"github.com/ledgermq/ledgermq/tests/cluster"
	"github.com/ledgermq/ledgermq/tests/rocketmq"
)

const variable = "LEDGERMQ_TEST_CONFORMANCE"

// Two systems that run already, each with one group, called g1: for who writes cases. Then nothing is killed.
var (
	thereFlag = flag.String("there", "", "address of the name server of a running RocketMQ")
	hereFlag  = flag.String("here", "", "address of the name server of a running LedgerMQ")

	controllerFlag = flag.String("controller", "", "address of the controller of a running RocketMQ, which is replicated then")
)

// limit bounds one case on one system.
const limit = 3 * time.Minute

func TestMain(m *testing.M) {
	flag.Parse()
	rlog.SetLogLevel("fatal")
	code := m.Run()
	cluster.RemoveBinary()
	os.Exit(code)
}

// thisRun makes names new in a system that has seen another run.
var thisRun = strconv.FormatInt(time.Now().Unix(), 36)

// system is one of the two.
type system struct {
	name    string
	namesrv []string
	// controller is the address of a controller, of ours a name server's; "" of a RocketMQ without one.
	controller string
	dir        string
	failover   func(context.Context) error

	mu       sync.Mutex
	programs map[string]*program
}

func TestConformance(t *testing.T) {
	if os.Getenv(variable) == "" {
		t.Skipf("needs Maven and a JDK: run `make conformance`, which sets %s", variable)
	}
	rows := divergences(t)
	for _, c := range cases {
		for _, row := range c.Differ {
			if !rows[row] {
				t.Errorf("%v names the row %s, which docs/divergence.md does not have", c, row)
			}
		}
	}
	there, here := startBoth(t, false)
	// Cases of one client follow each other; those of different clients do not wait for each other. A failover is everybody's.
	t.Run("cases", func(t *testing.T) {
		for _, name := range []string{"go", "official", "current", "legacy", "mqadmin"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				for _, c := range cases {
					if c.Client == name && !c.Failover {
						t.Run(c.Name, func(t *testing.T) { runCase(t, c, there, here) })
					}
				}
			})
		}
	})
	t.Run("failovers", func(t *testing.T) {
		for _, c := range cases {
			if c.Failover {
				t.Run(c.String(), func(t *testing.T) { runCase(t, c, there, here) })
			}
		}
	})
}

// TestControllers has the cases for which RocketMQ has a controller and three brokers.
func TestControllers(t *testing.T) {
	if os.Getenv(variable) == "" {
		t.Skipf("needs Maven and a JDK: run `make conformance`, which sets %s", variable)
	}
	if testing.Short() {
		t.Skip("starts six JVMs: `make conformance` runs it, without -short")
	}
	there, here := startBoth(t, true)
	for _, c := range controllerCases {
		t.Run(c.String(), func(t *testing.T) { runCase(t, c, there, here) })
	}
}

var rowID = regexp.MustCompile("(?m)^\\| ([a-z0-9-]+) \\| |\\(id `([a-z0-9-]+)`\\)")

// divergences returns the ids of docs/divergence.md.
func divergences(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(cluster.Root(), "docs", "divergence.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[string]bool)
	for _, m := range rowID.FindAllStringSubmatch(string(text), -1) {
		rows[m[1]+m[2]] = true
	}
	return rows
}

// TestDivergencesHaveRows needs no RocketMQ: the ids that cases name stand in docs/divergence.md.
func TestDivergencesHaveRows(t *testing.T) {
	rows := divergences(t)
	seen := make(map[string]bool)
	for _, c := range slices.Concat(cases, controllerCases) {
		if seen[c.String()] {
			t.Errorf("two cases are called %v", c)
		}
		seen[c.String()] = true
		for key, row := range c.Differ {
			if !rows[row] {
				t.Errorf("%v: %s names the row %s, which docs/divergence.md does not have", c, key, row)
			}
		}
	}
}

// startBoth starts the two systems. A replicated RocketMQ has three brokers, as ours, and a controller.
func startBoth(t *testing.T, replicated bool) (there, here *system) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background()) // of the programs: they end after the cases
	dir := t.TempDir()
	there = &system{name: "RocketMQ", dir: filepath.Join(dir, "there"), programs: make(map[string]*program)}
	here = &system{name: "LedgerMQ", dir: filepath.Join(dir, "here"), programs: make(map[string]*program)}
	t.Cleanup(func() {
		for _, s := range []*system{there, here} {
			for _, p := range s.programs {
				p.close()
			}
		}
		cancel()
	})
	if *thereFlag != "" && *hereFlag != "" {
		there.namesrv, here.namesrv = []string{*thereFlag}, []string{*hereFlag}
		none := func(context.Context) error { return nil }
		there.failover, here.failover = none, none
		there.controller, here.controller = *controllerFlag, *hereFlag
		return there, here
	}
	var wg sync.WaitGroup
	var failed [2]error
	wg.Go(func() {
		r, err := rocketmq.Start(ctx, rocketmq.Options{Dir: filepath.Join(dir, "rocketmq"), Group: group, Replicated: replicated, Ready: 5 * time.Minute, Broker: map[string]string{
			// What it has switched off and we always have; and what waits for minutes waits for seconds.
			"recallMessageEnable": "true", "traceTopicEnable": "true", "transactionCheckInterval": "3000",
			// A machine with other things to do is no reason to refuse a request.
			"waitTimeMillsInSendQueue": "60000", "waitTimeMillsInPullQueue": "60000", "waitTimeMillsInHeartbeatQueue": "60000",
			"waitTimeMillsInTransactionQueue": "60000", "osPageCacheBusyTimeOutMills": "60000",
		}})
		if failed[0] = err; err != nil {
			return
		}
		there.namesrv, there.controller = r.Namesrv, r.Controller
		there.failover = func(context.Context) error { return nil }
		t.Cleanup(func() {
			if err := r.Stop(); err != nil {
				t.Log(err)
			}
		})
	})
	wg.Go(func() {
		c, err := cluster.Start(ctx, cluster.Options{Dir: filepath.Join(dir, "ledgermq"), Groups: 1, Ready: 2 * time.Minute})
		if failed[1] = err; err != nil {
			return
		}
		here.namesrv, here.controller = c.Namesrv, c.Namesrv[0]
		here.failover = func(ctx context.Context) error { return killMaster(ctx, t, c) }
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("our logs:\n%s", c.Logs())
			}
			if err := c.Stop(); err != nil {
				t.Errorf("stopping our cluster: %v", err)
			}
			if trouble := c.Trouble(); trouble != "" {
				t.Errorf("a member wrote of what must never happen:\n%s", trouble)
			}
		})
	})
	wg.Wait()
	for _, err := range failed {
		if err != nil {
			t.Fatal(err)
		}
	}
	return there, here
}

// killMaster kills our group's master, waits until another replica is, and starts the killed one again.
func killMaster(ctx context.Context, t *testing.T, c *cluster.Cluster) error {
	k, err := client.New(c.Namesrv)
	if err != nil {
		return err
	}
	defer k.Close()
	master := func() (string, error) {
		now, err := k.Cluster(ctx)
		if err != nil {
			return "", err
		}
		for _, g := range now.Groups {
			if g.Group == group {
				return g.Master(), nil
			}
		}
		return "", nil
	}
	old := ""
	if err := jepsen.Await(ctx, "a master of ours", func() (bool, error) {
		old, err = master()
		return old != "", err
	}); err != nil {
		return err
	}
	members, err := c.Members()
	if err != nil {
		return err
	}
	node := ""
	for _, m := range members {
		if port, ok := m.Ports["client:"+group]; ok && strings.HasSuffix(old, fmt.Sprintf(":%d", port)) {
			node = m.ID
		}
	}
	if err := c.Kill(ctx, node); err != nil {
		return err
	}
	now := ""
	if err := jepsen.Await(ctx, "another master of ours", func() (bool, error) {
		now, err = master()
		return now != "" && now != old, err
	}); err != nil {
		return err
	}
	t.Logf("%s at %s was killed, %s is master", node, old, now)
	return c.Restart(ctx, node)
}

func runCase(t *testing.T, c Case, there, here *system) {
	if c.Long && testing.Short() {
		t.Skip("takes half a minute: `make conformance` runs it, without -short")
	}
	var lines [2][]Line
	var failed [2]error
	var wg sync.WaitGroup
	for i, s := range []*system{there, here} {
		wg.Go(func() { lines[i], failed[i] = s.run(t.Context(), c) })
	}
	wg.Wait()
	for i, s := range []*system{there, here} {
		if failed[i] != nil {
			t.Errorf("%s: %v", s.name, failed[i])
		}
	}
	differences, unused := compare(c, lines[0], lines[1])
	for _, d := range differences {
		if d.Row == "" {
			t.Errorf("differs, and docs/divergence.md does not say so: %v", d)
		} else {
			t.Logf("differs by %s: %v", d.Row, d)
		}
	}
	unused = slices.DeleteFunc(unused, func(key string) bool { return slices.Contains(c.Vary, key) })
	if len(unused) > 0 && !t.Failed() {
		t.Errorf("does not differ any more: %s", strings.Join(unused, ", "))
	}
	if len(lines[0]) == 0 && !t.Failed() {
		t.Error("the case prints nothing")
	}
	if t.Failed() {
		t.Logf("RocketMQ printed:\n%s\nLedgerMQ printed:\n%s", text(lines[0]), text(lines[1]))
	}
}

func text(lines []Line) string {
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "    %s: %s\n", l.Key, l.Value)
	}
	return b.String()
}

func (s *system) run(ctx context.Context, c Case) ([]Line, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %v", limit))
	defer cancel()
	e := &Env{Context: ctx, Namesrv: s.namesrv, Failover: c.Failover, ID: strings.NewReplacer("/", "-", " ", "-").Replace(c.String()) + "-" + thisRun}
	e.Pause = func() error {
		if !c.Failover {
			return fmt.Errorf("%v pauses and is not marked as a case with a failover", c)
		}
		return s.failover(ctx)
	}
	if c.Go != nil {
		defer e.close()
		err := c.Go(e)
		return e.lines, err
	}
	p, err := s.program(c.Client)
	if err != nil {
		return nil, err
	}
	own := strings.NewReplacer("TOPIC", e.Topic(), "GROUP", e.Group("g"))
	var commands []string
	for _, command := range c.Commands {
		commands = append(commands, own.Replace(command))
	}
	err = p.run(e, c.Name, commands)
	return e.lines, err
}

// program returns the running program of a client.
func (s *system) program(client string) (*program, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.programs[client]; p != nil {
		return p, nil
	}
	p, err := startProgram(context.Background(), client, filepath.Join(s.dir, client), s.namesrv, s.controller)
	if err == nil {
		s.programs[client] = p
	}
	return p, err
}

func TestCompare(t *testing.T) {
	c := Case{Differ: map[string]string{"code": "x", "gone": "y", "p*": "z", "value=2": "v", "other=3": "w"}}
	there := []Line{{"code", "1"}, {"same", "a"}, {"same", "b"}, {"order", "a"}, {"order", "b"}, {"only", "1"}, {"props", "1"}, {"value", "1"}, {"other", "1"}}
	here := []Line{{"code", "2"}, {"same", "a"}, {"same", "b"}, {"order", "b"}, {"order", "a"}, {"props", "2"}, {"value", "2"}, {"other", "2"}}
	differences, unused := compare(c, there, here)
	var got []string
	for _, d := range differences {
		got = append(got, d.Key+" "+d.Row)
	}
	if want := []string{"code x", "only ", "order ", "other ", "props z", "value v"}; !slices.Equal(got, want) {
		t.Errorf("differences %q, want %q", got, want)
	}
	if want := []string{"gone", "other=3"}; !slices.Equal(unused, want) {
		t.Errorf("unused %q, want %q", unused, want)
	}
}
