// Command failover measures for how long clients get no OK when the master of a group is lost: it loads one group, breaks the
// master, and tells the longest time from one OK to the next one.
//
// The question: what does a failover cost whoever sends, by mode, by what happens to the master, and by client? Expected, from the times in
// docs/guarantees.md: a killed master is missed after 300 ms, a silent one after a second at most, and an election takes some
// milliseconds; a client of ours then needs a route, 100 ms at most, and gives up on a master that is silent after 500 ms. A stock client
// that has one group looks at its routes every 30 s.
//
// The cluster is one of package jepsen: a process per node and a controller apart, which dial each other through proxies on this machine.
// Everything shares its processors, so a figure has what the machine adds; the column "peace" tells the longest time without an
// OK while nothing was broken.
//
// Read main first, then measure. It runs alone; nothing calls it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/jepsen"
	"github.com/ledgermq/ledgermq/tests/cluster"
	"github.com/ledgermq/ledgermq/tests/goclient"
)

func main() {
	rounds := flag.Int("rounds", 3, "how often each master is broken")
	clients := flag.String("clients", "own", "comma separated: own, go (the official one, which takes some 30 s each time)")
	modes := flag.String("modes", "2-2,2-3", "comma separated modes")
	only := flag.String("only", "", "break masters in this way alone, such as SIGTERM")
	flag.Parse()
	faults := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return *only != "" && f.name != *only })
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := measureAll(ctx, strings.Split(*modes, ","), strings.Split(*clients, ","), faults, *rounds)
	cluster.RemoveBinary()
	if err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		os.Exit(1)
	}
}

// fault breaks a master. Cluster.Heal undoes it.
type fault struct {
	name string
	do   func(c *jepsen.Cluster, master string) error
}

var faults = []fault{
	{"kill -9", (*jepsen.Cluster).Kill},
	{"SIGSTOP", (*jepsen.Cluster).Pause},
	{"cut off from the others", func(c *jepsen.Cluster, master string) error {
		c.Net.Isolate(master, c.Everybody()...)
		return nil
	}},
	{"SIGTERM", (*jepsen.Cluster).Terminate},
}

var drivers = map[string]func() jepsen.Driver{"own": jepsen.Own, "go": goclient.New}

func measureAll(ctx context.Context, modes, clients []string, faults []fault, rounds int) error {
	dir, err := os.MkdirTemp("", "ledgermq-failover-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintln(w, "client\tmode\tthe master gets\trounds\tmedian\tp90\tmax\tpeace")
	for _, name := range clients {
		if drivers[name] == nil {
			return fmt.Errorf("no client %q: use own or go", name)
		}
		for _, text := range modes {
			mode, err := jepsen.ParseMode(text)
			if err != nil {
				return err
			}
			for i, f := range faults {
				fmt.Fprintf(os.Stderr, "client %s, mode %v, %s\n", name, mode, f.name)
				gaps, peace, err := measure(ctx, filepath.Join(dir, fmt.Sprint(name, mode, i)), mode, f, drivers[name](), rounds)
				if err != nil {
					return fmt.Errorf("client %s, mode %v, %s: %w", name, mode, f.name, err)
				}
				fmt.Fprintf(w, "%s\t%v\t%s\t%d\t%v\t%v\t%v\t%v\n", name, mode, f.name, len(gaps),
					millis(quantile(gaps, 0.5)), millis(quantile(gaps, 0.9)), millis(quantile(gaps, 1)), millis(peace))
			}
		}
	}
	return nil
}

func millis(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// quantile of a few values: the smallest one that so many are not above.
func quantile(all []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

const (
	topic     = "Failover"
	senders   = 16
	sendPause = 5 * time.Millisecond // after each send of each sender
	sendLimit = 10 * time.Second
	steady    = 300         // so many sends are OK before a fault and after it,
	calm      = time.Second // and at least so long passes
	stepLimit = 2 * time.Minute
)

// measure starts a cluster and breaks its master so many times. It returns the longest time without an OK of each time, and that of
// the moments before.
func measure(ctx context.Context, dir string, mode jepsen.Mode, f fault, d jepsen.Driver, rounds int) (gaps []time.Duration, peace time.Duration, err error) {
	binary, err := cluster.Binary()
	if err != nil {
		return nil, 0, err
	}
	starting, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	c, err := jepsen.StartCluster(starting, jepsen.ClusterOptions{Binary: binary, Dir: dir, Mode: mode})
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, errors.New(c.Logs()))
		}
		err = errors.Join(err, c.Close())
	}()
	l, err := startLoad(ctx, c, d)
	if err != nil {
		return nil, 0, err
	}
	defer l.close()
	for i := range rounds {
		if i > 0 {
			if err := mend(ctx, c); err != nil {
				return nil, 0, err
			}
		}
		gap, before, err := round(ctx, c, l, f)
		if err != nil {
			return nil, 0, err
		}
		gaps, peace = append(gaps, gap), max(peace, before)
	}
	return gaps, peace, nil
}

// round breaks the master once.
func round(ctx context.Context, c *jepsen.Cluster, l *load, f fault) (gap, peace time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	began := l.now()
	if err := l.await(ctx, began); err != nil {
		return 0, 0, err
	}
	master, err := c.Master(ctx)
	if err != nil || master == "" {
		return 0, 0, errors.Join(errors.New("no master"), err)
	}
	broken := l.now()
	if err := f.do(c, master); err != nil {
		return 0, 0, err
	}
	err = jepsen.Await(ctx, "another master than "+master, func() (bool, error) {
		now, err := c.Master(ctx)
		return now != "" && now != master, err
	})
	if err == nil {
		err = l.await(ctx, l.now())
	}
	if err != nil {
		return 0, 0, err
	}
	return l.longest(broken, l.now()), l.longest(began, broken), nil
}

// mend undoes what a round has broken and waits until the group is whole.
func mend(ctx context.Context, c *jepsen.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	if err := c.Heal(); err != nil {
		return err
	}
	return c.AwaitHealthy(ctx)
}

// load sends all the time and notes when it was answered OK.
type load struct {
	began    time.Time
	stop     context.CancelFunc
	senders  sync.WaitGroup
	sessions []jepsen.Session

	mu sync.Mutex
	ok []time.Duration // since began, ascending
}

func startLoad(ctx context.Context, c *jepsen.Cluster, d jepsen.Driver) (*load, error) {
	admin, err := client.New(c.Namesrv())
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	making, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	if _, err := admin.CreateTopic(making, client.TopicSpec{Name: topic, ReadQueues: 8}); err != nil {
		return nil, err
	}
	l := &load{began: time.Now()}
	loading, stop := context.WithCancel(ctx)
	l.stop = stop
	for range senders {
		s, err := d.Open(ctx, c.Namesrv(), topic, "nobody")
		if err != nil {
			l.close()
			return nil, err
		}
		l.sessions = append(l.sessions, s)
		l.senders.Go(func() { l.send(loading, s) })
	}
	return l, nil
}

func (l *load) close() {
	l.stop()
	l.senders.Wait()
	for _, s := range l.sessions {
		s.Close()
	}
}

func (l *load) send(ctx context.Context, s jepsen.Session) {
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		limit, cancel := context.WithTimeout(ctx, sendLimit)
		_, _, outcome, _ := s.Send(limit, "", strings.Repeat("x", 200))
		cancel()
		if outcome == jepsen.OK {
			l.mu.Lock()
			l.ok = append(l.ok, l.now())
			l.mu.Unlock()
		}
		tick.Reset(sendPause)
	}
}

func (l *load) now() time.Duration { return time.Since(l.began) }

// await waits until sends have been OK for a while since a time.
func (l *load) await(ctx context.Context, since time.Duration) error {
	return jepsen.Await(ctx, "sends that are OK", func() (bool, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		first, _ := slices.BinarySearch(l.ok, since)
		return len(l.ok)-first >= steady && l.now()-since >= calm, nil
	})
}

// longest is the longest time from one OK to the next one that ended between two times.
func (l *load) longest(from, to time.Duration) (longest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, _ := slices.BinarySearch(l.ok, from)
	for i := max(first, 1); i < len(l.ok) && l.ok[i] <= to; i++ {
		longest = max(longest, l.ok[i]-l.ok[i-1])
	}
	return longest
}
