package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/jepsen"
	"github.com/ledgermq/ledgermq/tests/cluster"
	"github.com/ledgermq/ledgermq/tests/goclient"
)

const (
	topic     = "Failover"
	senders   = 16
	sendLimit = 10 * time.Second
)

// sendPause is what each sender waits after each send.
var sendPause = 5 * time.Millisecond

// loads are the clients, by name: each begins to send and tells the load what became of it, until ctx ends.
var loads = map[string]func(ctx context.Context, c *jepsen.Cluster, l *load) error{
	"own": func(ctx context.Context, c *jepsen.Cluster, l *load) error { return l.drive(ctx, c, jepsen.Own()) },
	"go": func(ctx context.Context, c *jepsen.Cluster, l *load) error {
		return l.drive(ctx, c, goclient.Defaults())
	},
	"java": func(ctx context.Context, c *jepsen.Cluster, l *load) error { return l.java(ctx, c) },
}

// load sends all the time, without choosing a queue, and notes when it was answered OK, and what.
type load struct {
	began   time.Time
	stop    context.CancelFunc
	senders sync.WaitGroup
	release []func() // after the senders' end

	mu         sync.Mutex
	ok         []time.Duration // since began, ascending
	values     []string        // that were answered OK
	failed     int
	lastFailed time.Duration
	why        map[string]int
}

func startLoad(ctx context.Context, c *jepsen.Cluster, name string) (*load, error) {
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
	l := &load{began: time.Now(), why: map[string]int{}}
	ctx, l.stop = context.WithCancel(ctx)
	if err := loads[name](ctx, c, l); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// close ends the senders and waits for them. It may be called again.
func (l *load) close() {
	l.stop()
	l.senders.Wait()
	for _, f := range l.release {
		f()
	}
	l.release = nil
}

// note takes what became of a send: why is "" when it was answered OK.
func (l *load) note(value, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if why != "" {
		l.failed++
		l.lastFailed = l.now()
		l.why[why[:min(len(why), 200)]]++
		return
	}
	l.ok = append(l.ok, l.now())
	l.values = append(l.values, value)
}

// drive sends through sessions of a driver.
func (l *load) drive(ctx context.Context, c *jepsen.Cluster, d jepsen.Driver) error {
	for n := range senders {
		s, err := d.Open(ctx, c.Namesrv(), topic, "nobody")
		if err != nil {
			return err
		}
		l.release = append(l.release, s.Close)
		l.senders.Go(func() {
			tick := time.NewTimer(0)
			defer tick.Stop()
			for i := 0; ; i++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				value, why := fmt.Sprintf("%d:%d", n, i), ""
				limit, cancel := context.WithTimeout(context.Background(), sendLimit)
				if _, _, outcome, err := s.Send(limit, "", value); outcome != jepsen.OK {
					why = fmt.Sprint(outcome, ": ", err)
				}
				cancel()
				l.note(value, why)
				tick.Reset(sendPause)
			}
		})
	}
	return nil
}

// java sends with the official Java client, in a process of its own. `make java` has built it.
func (l *load) java(ctx context.Context, c *jepsen.Cluster) error {
	target := filepath.Join(cluster.Root(), "tests", "java", "current", "target")
	if _, err := os.Stat(target); err != nil {
		return fmt.Errorf("the Java client's cases are not built, run `make java` first: %w", err)
	}
	home, err := os.MkdirTemp("", "ledgermq-failover-java-")
	if err != nil {
		return err
	}
	l.release = append(l.release, func() { os.RemoveAll(home) })
	cmd := exec.Command("java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-Duser.home="+home, "-Drocketmq.client.logRoot="+home,
		"-cp", filepath.Join(target, "classes")+string(os.PathListSeparator)+filepath.Join(target, "lib", "*"),
		"org.ledgermq.tests.Harness", strings.Join(c.Namesrv(), ";"), "load",
		"topic="+topic, fmt.Sprintf("senders=%d", senders), fmt.Sprintf("pause=%d", sendPause.Milliseconds()))
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	l.senders.Go(func() {
		defer context.AfterFunc(ctx, func() { io.WriteString(in, "\n") })()
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			word, rest, _ := strings.Cut(lines.Text(), " ")
			switch word {
			case "ACK":
				l.note(rest, "")
			case "FAILED":
				value, why, _ := strings.Cut(rest, " ")
				l.note(value, why)
			}
		}
		if err := cmd.Wait(); err != nil {
			l.note("", "the Java process ended: "+err.Error())
		}
	})
	return nil
}

func (l *load) now() time.Duration { return time.Since(l.began) }

func (l *load) failures() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// reasons tells why sends have failed since it was asked last.
func (l *load) reasons() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer clear(l.why)
	return fmt.Sprint(l.why)
}

// await waits until sends have been OK for a while since a time, and if all must, none has failed for as long. A stock client of a group
// that had no master when it asked for the route fails for up to 30 s while the others go on.
func (l *load) await(ctx context.Context, since time.Duration, all bool) error {
	return jepsen.Await(ctx, "sends that are OK", func() (bool, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		first, _ := slices.BinarySearch(l.ok, since)
		from := since
		if all {
			from = max(from, l.lastFailed)
		}
		return len(l.ok)-first >= steady && l.now()-from >= calm, nil
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

// lost reads everything back and returns an error when something that was answered OK is not there. The senders have ended.
func (l *load) lost(ctx context.Context, c *jepsen.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	cl, err := client.New(c.Namesrv())
	if err != nil {
		return err
	}
	defer cl.Close()
	route, err := cl.Route(ctx, topic)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, g := range route.Groups {
		for q := range g.ReadQueues {
			ref := client.QueueRef{Group: g.Group, Topic: topic, Queue: ids.QueueID(q)}
			end, err := cl.MaxOffset(ctx, ref)
			if err != nil {
				return fmt.Errorf("reading everything back: %w", err)
			}
			for at := ids.QueueOffset(0); at < end; {
				r, err := cl.Pull(ctx, ref, at, 32)
				if err != nil || r.Status != client.PullFound {
					return fmt.Errorf("reading everything back: %v at %d of %d: %v, %w", ref, at, end, r.Status, err)
				}
				for _, m := range r.Messages {
					there[string(m.Body)] = true
				}
				at = r.NextOffset
			}
		}
	}
	var missing []string
	for _, v := range l.values {
		if !there[v] {
			missing = append(missing, v)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%d of %d messages that were answered OK are lost: %v …", len(missing), len(l.values), missing[:min(5, len(missing))])
	}
	return nil
}
