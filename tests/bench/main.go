// Command bench measures the built binary on this machine and prints the figures beside what bounds them: the same load
// without replication (mode 1-1, one node), and what the bare disk allows, to one writer and to three at once.
//
// The question: how many synchronous senders' messages of 1 KiB per second does one group in mode 2-3 with sync flush take when
// its three nodes, the load and everything else share this machine, and what does a message cost? The expected cost: each
// message is written and synced on three disks that here are one, so a group commit costs three syncs of one disk; the network is
// loopback, 0.7 µs a frame; the processor is shared by three replicas and the load, which is what bounds it.
//
// With -restart MIB it answers another question: how long does a node take from kill -9 to serving again with a log of so many MiB,
// when the kill comes in the middle of a load? Expected: what lies behind the last checkpoint, at most 64 MiB and what was being
// written, is read, written again and synced, and applied again from the last snapshot of the state; the size of the log
// before that costs nothing. So some 0.5 s, and with one voter an election on top.
//
// Read main first, then measure. It runs alone; nothing calls it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/jepsen"
	"github.com/ledgermq/ledgermq/tests/cluster"
)

func main() {
	seconds := flag.Int("seconds", 10, "how long each load is measured")
	mib := flag.Int64("restart", 0, "instead, measure a restart with a log of so many `MIB`; takes 4 times that on the disk")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	work := func(ctx context.Context, dir string, w io.Writer) error { return bench(ctx, dir, w, *seconds) }
	if *mib > 0 {
		work = func(ctx context.Context, dir string, w io.Writer) error { return restarts(ctx, dir, w, *mib<<20) }
	}
	err := inFolder(ctx, work)
	cluster.RemoveBinary()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// load is one run of `ledgermq bench`. Goals are those of one group in mode 2-3 on two cores.
type load struct {
	name string
	args []string
	goal string
}

func loads(seconds int) []load {
	produce := func(name, goal string, args ...string) load {
		return load{name, append([]string{"bench", "produce", "--duration", fmt.Sprintf("%ds", seconds)}, args...), goal}
	}
	return []load{
		produce("64 senders", "20000/s, p99 10ms, 50 CPU s", "--senders", "64"),
		produce("256 senders", "35000/s, p99 20ms, 28 CPU s", "--senders", "256"),
		produce("16 senders, batches of 16", "60000/s", "--senders", "16", "--batch", "16"),
		{"pull of 32", []string{"bench", "consume", "--duration", fmt.Sprintf("%ds", seconds)}, "250000/s"},
	}
}

// figures are the result of one load against one cluster.
type figures struct {
	Rate      float64 `json:"messagesPerSecond"`
	Messages  uint64  `json:"messages"`
	Errors    uint64  `json:"errors"`
	P50       int64   `json:"p50Micros"`
	P99       int64   `json:"p99Micros"`
	P999      int64   `json:"p999Micros"`
	Max       int64   `json:"maxMicros"`
	cpuPerMio float64 // server CPU-seconds per million messages, the warm-up's share taken out by rate
}

// inFolder gives work a folder for its clusters, which it removes, and prints its table.
func inFolder(ctx context.Context, work func(context.Context, string, io.Writer) error) error {
	dir, err := os.MkdirTemp("", "ledgermq-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	defer w.Flush()
	return work(ctx, dir, w)
}

func bench(ctx context.Context, dir string, w io.Writer, seconds int) (err error) {
	fmt.Fprintln(os.Stderr, "the bare disk")
	for _, size := range []int{4 << 10, 32 << 10, 256 << 10} {
		for _, writers := range []int{1, 3} {
			perSecond, err := bareDisk(ctx, filepath.Join(dir, "disk"), size, writers)
			if err != nil {
				return err
			}
			fmt.Fprintf(w, "bare disk, writers at once: %d\t%d KiB and fdatasync\t%.0f/s each\t%.1f MiB/s\n", writers, size>>10, perSecond/float64(writers), perSecond*float64(size)/(1<<20))
		}
	}
	results := make(map[string]map[string]figures)
	for _, mode := range []string{"1-1", "2-3"} {
		fmt.Fprintln(os.Stderr, "mode", mode)
		if results[mode], err = measure(ctx, w, filepath.Join(dir, mode), mode, seconds); err != nil {
			return fmt.Errorf("mode %s: %w", mode, err)
		}
	}
	fmt.Fprintln(w, "\nload\tmode\tmessages/s\tp50\tp99\tp99.9\tmax\terrors\tserver CPU s per million\tgoal in 2-3")
	for _, l := range loads(seconds) {
		for _, mode := range []string{"1-1", "2-3"} {
			f := results[mode][l.name]
			goal := ""
			if mode == "2-3" {
				goal = l.goal
			}
			fmt.Fprintf(w, "%s\t%s\t%.0f\t%v\t%v\t%v\t%v\t%d\t%.1f\t%s\n", l.name, mode, f.Rate,
				micros(f.P50), micros(f.P99), micros(f.P999), micros(f.Max), f.Errors, f.cpuPerMio, goal)
		}
	}
	return nil
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// bareDisk lets each of some writers overwrite a file that is filled already, one sync per write, for two seconds: what the commit
// log does at best, of one replica, or of three that share the disk. It returns the writes of all.
func bareDisk(ctx context.Context, name string, size, writers int) (perSecond float64, err error) {
	rates, errs := make([]float64, writers), make([]error, writers)
	var begin sync.WaitGroup
	var end sync.WaitGroup
	begin.Add(writers)
	for i := range writers {
		end.Go(func() { rates[i], errs[i] = overwrite(ctx, fmt.Sprintf("%s%d", name, i), size, &begin) })
	}
	end.Wait()
	for _, r := range rates {
		perSecond += r
	}
	return perSecond, errors.Join(errs...)
}

// overwrite is one writer of bareDisk. All begin when each has filled its file.
func overwrite(ctx context.Context, name string, size int, begin *sync.WaitGroup) (perSecond float64, err error) {
	const file = 32 << 20
	f, err := vfs.OS.Create(name)
	if err == nil {
		defer func() { err = errors.Join(err, f.Close(), os.Remove(name)) }()
		_, err = f.WriteAt(make([]byte, file), 0)
	}
	if err == nil {
		err = f.SyncData()
	}
	begin.Done()
	if err != nil {
		return 0, err
	}
	begin.Wait()
	block := make([]byte, size)
	began, n, off := time.Now(), 0, int64(0)
	for time.Since(began) < 2*time.Second && ctx.Err() == nil {
		block[0]++
		if _, err := f.WriteAt(block, off); err != nil {
			return 0, err
		}
		if err := f.SyncData(); err != nil {
			return 0, err
		}
		n++
		if off += int64(size); off+int64(size) > file {
			off = 0
		}
	}
	return float64(n) / time.Since(began).Seconds(), ctx.Err()
}

// measure starts a cluster of one group, runs every load, and then kills and restarts a node.
func measure(ctx context.Context, w io.Writer, dir, mode string, seconds int) (results map[string]figures, err error) {
	nodes, _ := strconv.Atoi(mode[2:])
	c, err := cluster.Start(ctx, cluster.Options{Dir: dir, Nodes: nodes, Groups: 1, Mode: mode})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	if err := idleMemory(w, c, mode); err != nil {
		return nil, err
	}
	results = make(map[string]figures)
	for _, l := range loads(seconds) {
		fmt.Fprintln(os.Stderr, " ", l.name)
		before, err := serverCPU(c)
		if err != nil {
			return nil, err
		}
		out, err := c.Run(ctx, append(l.args, "--json", "--namesrv", c.Namesrv[0])...)
		if err != nil {
			return nil, err
		}
		after, err := serverCPU(c)
		if err != nil {
			return nil, err
		}
		var f figures
		if err := json.Unmarshal([]byte(out), &f); err != nil {
			return nil, fmt.Errorf("%s: %w", out, err)
		}
		const warm = 3 // the default of `ledgermq bench`, at about the same rate
		f.cpuPerMio = (after - before) / (float64(f.Messages) * float64(seconds+warm) / float64(seconds)) * 1e6
		results[l.name] = f
	}
	return results, restart(ctx, w, c, mode)
}

// restarts kills the master of a group under load when its log has so many bytes, and tells how long it takes to serve again, once
// where it is the only voter and once where two others go on.
func restarts(ctx context.Context, dir string, w io.Writer, bytes int64) error {
	if free, _, err := vfs.OS.Space(dir); err != nil || free < 5*uint64(bytes) {
		return errors.Join(err, fmt.Errorf("%d MiB are free in %s, %d are needed: name another folder in TMPDIR", free>>20, dir, 5*bytes>>20))
	}
	for _, mode := range []string{"1-1", "2-3"} {
		fmt.Fprintln(os.Stderr, "mode", mode)
		if err := restartUnderLoad(ctx, w, filepath.Join(dir, mode), mode, bytes); err != nil {
			return fmt.Errorf("mode %s: %w", mode, err)
		}
	}
	return nil
}

func restartUnderLoad(ctx context.Context, w io.Writer, dir, mode string, bytes int64) (err error) {
	defer os.RemoveAll(dir)
	nodes, _ := strconv.Atoi(mode[2:])
	c, err := cluster.Start(ctx, cluster.Options{Dir: dir, Nodes: nodes, Groups: 1, Mode: mode})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	m, err := c.Member("n1")
	if err != nil {
		return err
	}
	loading, end := context.WithCancel(ctx)
	var load sync.WaitGroup
	defer load.Wait()
	defer end()
	ended := make(chan error, 1)
	load.Go(func() {
		_, err := c.Run(loading, "bench", "produce", "--senders", "64", "--batch", "8", "--size", "4096", "--duration", "1h", "--namesrv", c.Namesrv[0])
		ended <- err
	})
	err = jepsen.Await(ctx, "a log of that size", func() (bool, error) {
		select {
		case err := <-ended:
			return false, fmt.Errorf("the load ended: %w", err)
		default:
		}
		size, err := logBytes(m.Data)
		return size >= bytes+commitlog.DefaultFillAhead, err
	})
	if err != nil {
		return err
	}
	if err := c.Kill(ctx, m.ID); err != nil {
		return err
	}
	end()
	load.Wait()
	return serveAgain(ctx, w, c, m, mode)
}

// restart tells how long a node takes from kill -9 to serving again, with the log that the loads have left.
func restart(ctx context.Context, w io.Writer, c *cluster.Cluster, mode string) error {
	const id = "n1"
	m, err := c.Member(id)
	if err != nil {
		return err
	}
	if err := c.Kill(ctx, id); err != nil {
		return err
	}
	return serveAgain(ctx, w, c, m, mode)
}

func serveAgain(ctx context.Context, w io.Writer, c *cluster.Cluster, m cluster.Member, mode string) error {
	size, err := logBytes(m.Data)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := c.Restart(ctx, m.ID); err != nil {
		return err
	}
	fmt.Fprintf(w, "restart after kill -9, mode %s\tlog of %d MiB\t%v\tgoal for 1 GiB: 2s\n", mode, size>>20, time.Since(began).Round(time.Millisecond))
	return nil
}

func logBytes(dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".log") {
			info, err := d.Info()
			if err == nil {
				total += info.Size()
			}
		}
		return err
	})
	return total, err
}

func idleMemory(w io.Writer, c *cluster.Cluster, mode string) error {
	members, err := c.Members()
	if err != nil {
		return err
	}
	for _, m := range members {
		if m.Role != "broker" {
			continue
		}
		bytes, err := metric(c, m, "process_resident_memory_bytes")
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "idle memory, mode %s\t%s\t%.0f MiB\tgoal 60 MiB\n", mode, m.ID, bytes/(1<<20))
	}
	return nil
}

// serverCPU is the processor time that all members have used so far, in seconds.
func serverCPU(c *cluster.Cluster) (float64, error) {
	members, err := c.Members()
	if err != nil {
		return 0, err
	}
	total := 0.0
	for _, m := range members {
		s, err := metric(c, m, "process_cpu_seconds_total")
		if err != nil {
			return 0, err
		}
		total += s
	}
	return total, nil
}

// metric reads one metric without labels from a member's HTTP port.
func metric(c *cluster.Cluster, m cluster.Member, name string) (float64, error) {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get("http://" + c.At(m.Ports["http"]) + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("%s has no metric %s", m.ID, name)
}
