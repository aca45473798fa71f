// Command rates measures transactions and timers of the built binary beside those of Apache RocketMQ, with one client, in one run, on this
// machine, and prints both and their ratio.
//
// The question: how many transactions and how many timers per second does one group take, three replicas, 1 KiB, an answer only when
// the message is on the disk of the master and with a majority at least? RocketMQ 5.5.0 runs in controller mode with three brokers, all-ack,
// at least two in sync, and SYNC_FLUSH, else with its own defaults, and is warmed up for 40 s because a JVM needs that; this binary runs in
// mode 2-3 with sync flush. They never run at the same time. Expected: a transaction is two writes, one behind the other, and so costs
// twice what a send does; a timer is two writes as well, of which the second one goes in batches. RocketMQ writes three messages for a
// transaction, and puts timers back with three threads that wait for each write. The goal is three times its rate.
//
// The loads, each with 64 and 256 senders, of which each has one request under way:
//
//	sends           the measure for the rest
//	transactions    a half message, and its commit, whose answer says that the message is in its queue
//	… one-way       the same with a commit that nobody answers, as official clients send it
//	timers          messages that are due 3 s after they were sent
//
// Of transactions and timers what counts is not an answer but what has become readable: how much the ends of the topic's queues moved
// within the time. So no system gains by taking what it does not deliver. When the senders have stopped the rest is waited for, but not
// for ever: what has not come is in the column "missing". Timers have a line for what was taken, too.
//
// With -timers it answers another question, of this binary alone: how late do timers come, and what do a million of them cost that are
// due at the same second, in memory and in time? See timers.go.
//
// RocketMQ's jars must have been fetched: `make rates` does that. Read main first, then load.go. It runs alone; nothing calls it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/jepsen"
	"github.com/ledgermq/ledgermq/tests/cluster"
	"github.com/ledgermq/ledgermq/tests/rocketmq"
)

// goal is how many times RocketMQ's rate transactions and timers shall have.
const goal = 3

func main() {
	var o options
	flag.IntVar(&o.seconds, "seconds", 8, "how long each load is measured; timers at least 8 times their delay")
	flag.DurationVar(&o.warm, "warm", 40*time.Second, "how long RocketMQ is warmed up")
	flag.StringVar(&o.only, "only", "", "measure only this `SYSTEM`: rocketmq or ledgermq")
	flag.StringVar(&o.load, "load", "", "measure only the load of this `NAME`")
	flag.IntVar(&o.senders, "senders", 0, "measure only with so `MANY` senders, 64 or 256")
	flag.BoolVar(&o.timers, "timers", false, "instead, measure how late timers come, and many that are due at once")
	flag.IntVar(&o.count, "count", 1_000_000, "with -timers, how `MANY` are due at once")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := o.validate()
	if err == nil {
		err = inFolder(ctx, o)
	}
	cluster.RemoveBinary()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rates:", err)
		os.Exit(1)
	}
}

type options struct {
	seconds int
	warm    time.Duration
	only    string
	load    string
	senders int
	timers  bool
	count   int
}

func (o *options) validate() error {
	switch {
	case o.seconds < 1 || o.seconds > 600:
		return fmt.Errorf("-seconds %d: use 1 to 600", o.seconds)
	case o.warm < 0:
		return fmt.Errorf("-warm %v is negative", o.warm)
	case o.only != "" && o.only != "rocketmq" && o.only != "ledgermq":
		return fmt.Errorf("-only %s: use rocketmq or ledgermq", o.only)
	case o.load != "" && !slices.ContainsFunc(loads, func(l load) bool { return l.name == o.load }):
		return fmt.Errorf("-load %q: there is no such load", o.load)
	case o.senders != 0 && !slices.Contains(senders, o.senders):
		return fmt.Errorf("-senders %d: use 64 or 256", o.senders)
	case o.count < 1 || o.count > 10_000_000:
		return fmt.Errorf("-count %d: use 1 to 10000000", o.count)
	}
	return nil
}

// inFolder gives the work a folder, which it removes, and prints its table.
func inFolder(ctx context.Context, o options) error {
	dir, err := os.MkdirTemp("", "ledgermq-rates-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	defer w.Flush()
	sync, err := oneSync(filepath.Join(dir, "disk"))
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "the disk: 4 KiB and fdatasync take %v\n\n", sync)
	if o.timers {
		return timers(ctx, w, filepath.Join(dir, "timers"), o.count)
	}
	var rows [2][]row
	if o.only != "ledgermq" {
		if rows[0], err = ofRocketMQ(ctx, filepath.Join(dir, "rocketmq"), o); err != nil {
			return fmt.Errorf("RocketMQ: %w", err)
		}
	}
	if o.only != "rocketmq" {
		if rows[1], err = ofOurs(ctx, filepath.Join(dir, "ledgermq"), o); err != nil {
			return fmt.Errorf("LedgerMQ: %w", err)
		}
	}
	return table(w, rows)
}

// oneSync is how long one writer waits for 4 KiB on this disk, the median of some. In memory, where nothing is durable, it takes no time.
func oneSync(name string) (time.Duration, error) {
	f, err := vfs.OS.Create(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	block, took := make([]byte, 4<<10), make([]time.Duration, 200)
	for i := range took {
		began := time.Now()
		if _, err := f.WriteAt(block, 0); err != nil {
			return 0, err
		}
		if err := f.SyncData(); err != nil {
			return 0, err
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[len(took)/2].Round(time.Microsecond), nil
}

// table prints the rows of both systems in pairs. A ratio below the goal is an error.
func table(w io.Writer, rows [2][]row) (missed error) {
	fmt.Fprintln(w, "load\tsenders\tsystem\tmessages/s\tp50\tp99\terrors\tmissing\tload average\ttimes RocketMQ's")
	for i := range max(len(rows[0]), len(rows[1])) {
		for k, system := range []string{"RocketMQ 5.5.0", "LedgerMQ"} {
			if i >= len(rows[k]) {
				continue
			}
			r, ratio := rows[k][i], ""
			if k == 1 && i < len(rows[0]) && rows[0][i].perSecond > 0 {
				x := r.perSecond / rows[0][i].perSecond
				if ratio = fmt.Sprintf("%.1f", x); r.judged {
					ratio += fmt.Sprintf(", goal %d", goal)
					if x < goal {
						missed = errors.Join(missed, fmt.Errorf("%s, %d senders: %.1f times RocketMQ's rate, the goal is %d", r.load, r.senders, x, goal))
					}
				}
			}
			fmt.Fprintf(w, "%s\t%d\t%s\t%.0f\t%s\t%s\t%d\t%d\t%s\t%s\n", r.load, r.senders, system, r.perSecond, r.quantile(0.5), r.quantile(0.99), r.errors, r.missing, r.average, ratio)
		}
	}
	return missed
}

func ofRocketMQ(ctx context.Context, dir string, o options) (rows []row, err error) {
	fmt.Fprintln(os.Stderr, "RocketMQ starts")
	// The sizes of files are its own defaults again; package rocketmq has small ones for tests.
	c, err := rocketmq.Start(ctx, rocketmq.Options{Dir: dir, Replicated: true, Heap: "1g", Ready: 5 * time.Minute, Broker: map[string]string{
		"minInSyncReplicas": "2", "mappedFileSizeCommitLog": strconv.Itoa(1 << 30), "mappedFileSizeTimerLog": strconv.Itoa(100 << 20),
		"maxHashSlotNum": "5000000", "maxIndexNum": "20000000",
	}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	return measure(ctx, c.Namesrv, o.warm, o)
}

func ofOurs(ctx context.Context, dir string, o options) (rows []row, err error) {
	fmt.Fprintln(os.Stderr, "LedgerMQ starts")
	c, err := start(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	return measure(ctx, c.Namesrv, min(o.warm, 5*time.Second), o)
}

// start starts one group in mode 2-3 on three nodes. Profiles can be taken while it runs.
func start(ctx context.Context, dir string) (*cluster.Cluster, error) {
	c, err := cluster.Start(ctx, cluster.Options{Dir: dir, Nodes: 3, Groups: 1, Mode: "2-3", Args: []string{"--pprof"}})
	if err != nil {
		return nil, err
	}
	members, err := c.Members()
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	for _, m := range members {
		if m.Role == "broker" {
			fmt.Fprintf(os.Stderr, "  %s: http://%s/debug/pprof/profile\n", m.ID, c.At(m.Ports["http"]))
		}
	}
	return c, nil
}

// senders are the numbers of them that each load is measured with.
var senders = []int{64, 256}

// measure runs the loads against the one group of a cluster.
func measure(ctx context.Context, namesrv []string, warm time.Duration, o options) ([]row, error) {
	g, err := connect(ctx, namesrv)
	if err != nil {
		return nil, err
	}
	defer g.close()
	if err := g.warm(ctx, warm); err != nil {
		return nil, err
	}
	if err := g.awaitInSync(ctx); err != nil {
		return nil, err
	}
	var rows []row
	for _, l := range loads {
		for _, n := range senders {
			if o.load != "" && o.load != l.name || o.senders != 0 && o.senders != n {
				continue
			}
			more, err := g.run(ctx, l, n, time.Duration(o.seconds)*time.Second)
			if err != nil {
				return nil, fmt.Errorf("%s, %d senders: %w", l.name, n, err)
			}
			for _, r := range more {
				fmt.Fprintf(os.Stderr, "  %s, %d senders: %.0f/s, p50 %s, p99 %s, %d errors, %d missing, load average %s\n", r.load, n, r.perSecond, r.quantile(0.5), r.quantile(0.99), r.errors, r.missing, r.average)
				if r.why != nil {
					fmt.Fprintln(os.Stderr, "    the first error:", r.why)
				}
			}
			rows = append(rows, more...)
		}
	}
	return rows, nil
}

// group is a broker group as a name server tells of it, once it has a master.
func group(ctx context.Context, k *client.Client) (info client.GroupInfo, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	err = jepsen.Await(ctx, "a group with a master", func() (bool, error) {
		now, err := k.Cluster(ctx)
		if err != nil || len(now.Groups) != 1 {
			return false, err
		}
		info = now.Groups[0]
		return info.Master() != "", nil
	})
	return info, err
}

// loadAverage is that of the last minute, as the kernel tells it.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "?"
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}
