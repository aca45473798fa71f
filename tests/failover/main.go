// Command failover measures what it costs whoever sends when the master of a group is lost, or another replica, or a replica comes
// back: it loads a cluster, breaks it, and tells the longest time from one OK to the next one.
//
// The question: what does a failover cost, by mode, by what happens, and by client? Expected, from the times in docs/guarantees.md: a
// killed master is missed after 300 ms, a silent one after a second at most, and an election takes some milliseconds; a client of ours
// then needs a route, 100 ms at most, and gives up on a master that is silent after 500 ms. A stock client that has one group looks at
// its routes every 30 s; with three groups it sends to another one at once. A hand-over and a change of the voters are elections
// without anybody to miss.
//
// The cluster is one of package jepsen: a process per node and a controller apart, which dial each other through proxies on this machine.
// Everything shares its processors, so a figure has what the machine adds; "peace" is the longest time without an OK while nothing
// was broken. Times decide nothing here: where one is above its limit the table has a "!". It fails when a message that was
// answered OK is lost, when sends fail that must not, and when the cluster does not get well.
//
// Read main first, then column and fault. It runs alone; nothing calls it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/ledgermq/ledgermq/jepsen"
	"github.com/ledgermq/ledgermq/tests/cluster"
)

func main() {
	rounds := flag.Int("rounds", 3, "how often each thing is broken")
	clients := flag.String("clients", "own", "comma separated columns: own, go, java; go and java are the official ones with their defaults. own*3 is with three groups")
	modes := flag.String("modes", "2-2,2-3", "comma separated modes")
	only := flag.String("only", "", "comma separated ways to break it, such as SIGTERM,kill -9; all when empty")
	flag.DurationVar(&sendPause, "pause", sendPause, "how long each of the senders waits after a send; a 16th of it is how exact a time is")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := measureAll(ctx, strings.Split(*modes, ","), strings.Split(*clients, ","), *only, *rounds)
	cluster.RemoveBinary()
	if err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		os.Exit(1)
	}
}

// fault breaks a cluster. Cluster.Heal undoes it.
type fault struct {
	name   string
	do     func(c *jepsen.Cluster, master, slave string) error
	moves  bool                     // the mastership
	spares bool                     // no send may fail
	limits map[string]time.Duration // for our client, by mode
	joins  bool                     // the return is measured too
}

const anyMode = ""

var faults = []fault{
	{name: "kill -9", moves: true, limits: map[string]time.Duration{"2-2": 900 * time.Millisecond, "2-3": 600 * time.Millisecond},
		do: func(c *jepsen.Cluster, master, _ string) error { return c.Kill(master) }},
	{name: "SIGSTOP", moves: true, limits: map[string]time.Duration{anyMode: 1200 * time.Millisecond},
		do: func(c *jepsen.Cluster, master, _ string) error { return c.Pause(master) }},
	{name: "cut off from the others", moves: true, limits: map[string]time.Duration{anyMode: 1200 * time.Millisecond},
		do: func(c *jepsen.Cluster, master, _ string) error {
			c.Net.Isolate(master, c.Everybody()...)
			return nil
		}},
	{name: "SIGTERM", moves: true, spares: true, limits: map[string]time.Duration{anyMode: 50 * time.Millisecond},
		do: func(c *jepsen.Cluster, master, _ string) error { return c.Terminate(master) }},
	{name: "a slave gets kill -9", joins: true, limits: map[string]time.Duration{"2-2": 900 * time.Millisecond, "2-3": joinLimit},
		do: func(c *jepsen.Cluster, _, slave string) error { return c.Kill(slave) }},
}

// joinLimit is for a change of the voters while all live, or while the one that leaves is not needed.
const joinLimit = 20 * time.Millisecond

// tooLong is a gap whose cause is to be found: the reasons of the sends that failed and the ends of the logs are printed. Stock clients with
// one group wait so long for their next look at the routes.
const tooLong = 2500 * time.Millisecond

const joining = "that slave votes again"

// joinedWithin is how long before a cluster is called healthy its last voter joined, at most. Earlier a process was started.
const joinedWithin = 2500 * time.Millisecond

func (f fault) limit(mode string) time.Duration { return max(f.limits[anyMode], f.limits[mode]) }

// column is a kind of client with so many groups.
type column struct {
	client string
	groups int
}

func (c column) String() string {
	if c.groups > 1 {
		return fmt.Sprintf("%s*%d", c.client, c.groups)
	}
	return c.client
}

func parseColumn(text string) (column, error) {
	name, number, _ := strings.Cut(text, "*")
	c := column{client: name, groups: 1}
	if loads[name] == nil {
		return c, fmt.Errorf("no client %q: use %s", name, strings.Join(slices.Sorted(maps.Keys(loads)), ", "))
	}
	if number != "" {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > 3 {
			return c, fmt.Errorf("no number of groups %q: use 1 to 3", number)
		}
		c.groups = n
	}
	return c, nil
}

// cell is what one client saw of one thing.
type cell struct {
	gaps   []time.Duration // longest time without an OK, of each round
	failed int             // sends
	limit  time.Duration   // 0: none
}

func (c cell) String() string {
	if len(c.gaps) == 0 {
		return "-"
	}
	p90 := quantile(c.gaps, 0.9)
	text := fmt.Sprintf("%d %d %d", quantile(c.gaps, 0.5).Milliseconds(), p90.Milliseconds(), quantile(c.gaps, 1).Milliseconds())
	if c.limit > 0 && p90.Round(time.Millisecond) > c.limit {
		text += "!"
	}
	if c.failed > 0 {
		text += fmt.Sprintf(" (%d failed)", c.failed)
	}
	return text
}

func measureAll(ctx context.Context, modes, clients []string, only string, rounds int) error {
	dir, err := os.MkdirTemp("", "ledgermq-failover-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var columns []column
	for _, text := range clients {
		c, err := parseColumn(text)
		if err != nil {
			return err
		}
		columns = append(columns, c)
	}
	chosen := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return only != "" && !slices.Contains(strings.Split(only, ","), f.name) })
	if len(chosen) == 0 {
		return fmt.Errorf("nothing is called %q", only)
	}
	table := map[string]*cell{}
	var failed []error
	for _, col := range columns {
		for _, text := range modes {
			mode, err := jepsen.ParseMode(text)
			if err != nil {
				return err
			}
			m := &measurement{ctx: ctx, column: col, mode: mode, table: table}
			if err := m.run(filepath.Join(dir, fmt.Sprint(col, mode)), chosen, rounds); err != nil {
				failed = append(failed, fmt.Errorf("%v, mode %v: %w", col, mode, err))
			}
		}
	}
	print(columns, modes, chosen, table)
	return errors.Join(append(failed, ctx.Err())...)
}

// print shows the table: median, p90 and maximum in milliseconds.
func print(columns []column, modes []string, chosen []fault, table map[string]*cell) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprint(w, "mode\twhat happens to the master\tlimit")
	for _, col := range columns {
		fmt.Fprintf(w, "\t%v: median p90 max", col)
	}
	fmt.Fprintln(w)
	row := func(mode, name string, limit time.Duration) {
		text := "-"
		if limit > 0 {
			text = fmt.Sprint(limit.Milliseconds())
		}
		fmt.Fprintf(w, "%s\t%s\t%s", mode, name, text)
		for _, col := range columns {
			c := table[key(col, mode, name)]
			if c == nil {
				c = &cell{}
			}
			fmt.Fprintf(w, "\t%v", c)
		}
		fmt.Fprintln(w)
	}
	for _, mode := range modes {
		for _, f := range chosen {
			row(mode, f.name, f.limit(mode))
			if f.joins {
				row(mode, joining, joinLimit)
			}
		}
		row(mode, "peace", 0)
	}
	fmt.Fprintln(w, "Milliseconds without an OK; ! is a p90 of our client above its limit.")
}

func key(c column, mode, name string) string { return fmt.Sprint(c, " ", mode, " ", name) }

// quantile of a few values: the smallest one that so many are not above.
func quantile(all []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

const (
	stepLimit = 2 * time.Minute
	steady    = 100                    // so many sends are OK before a fault and after it,
	calm      = 500 * time.Millisecond // and at least so long passes
)

// measurement is one client and mode: one cluster, on which everything is broken in turn.
type measurement struct {
	ctx    context.Context
	column column
	mode   jepsen.Mode
	table  map[string]*cell
	c      *jepsen.Cluster
	l      *load
}

func (m *measurement) run(dir string, faults []fault, rounds int) (err error) {
	binary, err := cluster.Binary()
	if err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(m.ctx, stepLimit)
	defer cancel()
	look := &look{}
	defer look.close()
	m.c, err = jepsen.StartCluster(starting, jepsen.ClusterOptions{Binary: binary, Dir: dir, Mode: m.mode, Groups: min(m.column.groups, m.mode.Members), Look: look.groups})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			fmt.Fprintln(os.Stderr, m.c.Logs())
		}
		err = errors.Join(err, m.c.Close())
	}()
	if m.l, err = startLoad(m.ctx, m.c, m.column.client); err != nil {
		return err
	}
	defer m.l.close()
	var failed []error
	for _, f := range faults {
		began := time.Now()
		for range rounds {
			if err := m.round(f); err != nil {
				return errors.Join(append(failed, fmt.Errorf("%s: %w", f.name, err))...)
			}
		}
		cell := m.cell(f.name, f.limit(m.mode.String()))
		fmt.Fprintf(os.Stderr, "%v, mode %v, %s: %v, took %v\n", m.column, m.mode, f.name, cell, time.Since(began).Round(time.Second))
		// With three groups a stock client that chooses no queue sends again to another master when it loses one. Ours leaves that to who
		// sends: what was on its way may be stored.
		mayFail := !f.spares && (m.column.groups < 3 || m.column.client == "own" || f.name != "kill -9")
		if why := m.l.reasons(); cell.failed > 0 && !mayFail {
			failed = append(failed, fmt.Errorf("%s: %d sends failed, and none may: %s", f.name, cell.failed, why))
		}
	}
	m.l.close()
	return errors.Join(append(failed, m.l.lost(m.ctx, m.c), m.verify())...)
}

func (m *measurement) cell(name string, limit time.Duration) *cell {
	k := key(m.column, m.mode.String(), name)
	if m.table[k] == nil {
		m.table[k] = &cell{}
		if m.column.client == "own" {
			m.table[k].limit = limit
		}
	}
	return m.table[k]
}

// round breaks the cluster once, and mends it.
func (m *measurement) round(f fault) error {
	ctx, cancel := context.WithTimeout(m.ctx, stepLimit)
	defer cancel()
	began := m.l.now()
	if err := m.l.await(ctx, began, true); err != nil {
		return err
	}
	master, err := m.c.Master(ctx)
	if err != nil || master == "" {
		return errors.Join(errors.New("no master"), err)
	}
	slave := m.c.Nodes()[0]
	if slave == master {
		slave = m.c.Nodes()[1]
	}
	broken, failures := m.l.now(), m.l.failures()
	if err := f.do(m.c, master, slave); err != nil {
		return err
	}
	err = jepsen.Await(ctx, "what follows", func() (bool, error) {
		if f.moves {
			now, err := m.c.Master(ctx)
			return now != "" && now != master, err
		}
		n, err := m.c.Voters(ctx)
		return n > 0 && n < m.voters(), err
	})
	if err == nil {
		err = m.l.await(ctx, m.l.now(), false)
	}
	if err != nil {
		return err
	}
	after := m.l.now()
	cell := m.cell(f.name, f.limit(m.mode.String()))
	gap := m.l.longest(broken, after)
	if gap > tooLong && (m.column.client == "own" || m.column.groups > 1) {
		fmt.Fprintf(os.Stderr, "%v, mode %v, %s: no OK for %v; the sends that failed: %s\n%s\n", m.column, m.mode, f.name, gap, m.l.reasons(), m.c.Logs())
	}
	cell.gaps = append(cell.gaps, gap)
	cell.failed += m.l.failures() - failures
	peace := m.cell("peace", 0)
	peace.gaps = append(peace.gaps, m.l.longest(began, broken))
	// A controller that is new has forgotten how often a replica came and went, and lets it vote again as soon as the first time.
	if err := m.c.Kill(jepsen.Controller); err != nil {
		return err
	}
	if err := m.c.Heal(); err != nil {
		return err
	}
	if err := m.c.AwaitHealthy(ctx); err != nil {
		return err
	}
	if m.column.groups > 1 { // so that no node leads two of them
		if _, err := m.c.Run(ctx, "admin", "rebalance", "--namesrv", m.c.Namesrv()[0]); err != nil {
			return err
		}
	}
	if f.joins {
		cell := m.cell(joining, joinLimit)
		now := m.l.now()
		cell.gaps = append(cell.gaps, m.l.longest(now-joinedWithin, now))
	}
	return nil
}

// voters is how many there are when all is well.
func (m *measurement) voters() int { return min(m.mode.Members, 2*m.mode.Answers-1) }

// verify demands that the logs of all replicas are equal.
func (m *measurement) verify() error {
	ctx, cancel := context.WithTimeout(m.ctx, stepLimit)
	defer cancel()
	return m.c.Verify(ctx)
}
