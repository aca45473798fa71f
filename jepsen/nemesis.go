package jepsen

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Step is one fault of a schedule: it is made, stays for Hold, and is healed; then nothing happens for Calm.
type Step struct {
	Fault string // a key of faults
	Hold  time.Duration
	Calm  time.Duration
}

// prey is what a fault may hit. master leads the group, as far as anybody knows; slave is another node, rest are all nodes but
// the master.
type prey struct {
	*Cluster
	master, slave string
	rest          []string
}

type fault func(p prey) error

// network makes a fault of something that only changes the network.
func network(do func(p prey)) fault {
	return func(p prey) error { do(p); return nil }
}

// The faults, by kind.
var faults = map[string]map[string]fault{
	"kill": {
		"kill the master":          func(p prey) error { return p.Kill(p.master) },
		"kill a slave":             func(p prey) error { return p.Kill(p.slave) },
		"kill every node":          func(p prey) error { return each(p.Kill, p.Nodes()...) },
		"kill the controller":      func(p prey) error { return p.Kill(Controller) },
		"kill master + controller": func(p prey) error { return each(p.Kill, Controller, p.master) },
		"kill the name server":     func(p prey) error { return p.Kill(NameServer) },
		"terminate the master":     func(p prey) error { return p.Terminate(p.master) },
	},
	"pause": {
		"pause the master":          func(p prey) error { return p.Pause(p.master) },
		"pause a slave":             func(p prey) error { return p.Pause(p.slave) },
		"pause every node":          func(p prey) error { return each(p.Pause, p.Nodes()...) },
		"pause the controller":      func(p prey) error { return p.Pause(Controller) },
		"pause master + controller": func(p prey) error { return each(p.Pause, Controller, p.master) },
	},
	// But for one, clients still reach whoever is cut off: they must not be served what is not true any more.
	"partition": {
		"cut off the master, from clients too": network(func(p prey) { p.Net.Isolate(p.master, append(p.Everybody(), Clients)...) }),
		"isolate the master":                   network(func(p prey) { p.Net.Isolate(p.master, p.Everybody()...) }),
		"isolate a slave":                      network(func(p prey) { p.Net.Isolate(p.slave, p.Everybody()...) }),
		"isolate the controller":               network(func(p prey) { p.Net.Isolate(Controller, p.Everybody()...) }),
		"cut the master from the slaves":       network(func(p prey) { p.Net.Isolate(p.master, p.rest...) }),
		"cut the master from the controller":   network(func(p prey) { p.Net.Isolate(p.master, Controller) }),
		"nobody hears the master":              network(func(p prey) { p.oneWay(p.master, true, Rule{Cut: true}) }),
		"the master hears nobody":              network(func(p prey) { p.oneWay(p.master, false, Rule{Cut: true}) }),
		"delay the master by 100 ms":           network(func(p prey) { p.oneWay(p.master, true, Rule{Delay: 100 * time.Millisecond}) }),
		"4 KiB/s from the master":              network(func(p prey) { p.oneWay(p.master, true, Rule{Bandwidth: 4 << 10}) }),
		"isolate every node": network(func(p prey) {
			for _, node := range p.Nodes() {
				p.Net.Isolate(node, p.Nodes()...)
			}
		}),
		"reset the master's connections": network(func(p prey) {
			for _, other := range p.Everybody() {
				p.Net.Reset(p.master, other)
			}
		}),
	},
}

func init() {
	mixed := map[string]fault{}
	for _, kind := range []string{"kill", "pause", "partition"} {
		maps.Copy(mixed, faults[kind])
	}
	faults["mixed"] = mixed
}

func each(do func(id string) error, ids ...string) error {
	var failed []error
	for _, id := range ids {
		failed = append(failed, do(id))
	}
	return errors.Join(failed...)
}

// oneWay puts a rule on everything that a node sends to other members, or on everything that they send to it.
func (c *Cluster) oneWay(node string, out bool, r Rule) {
	for _, other := range c.Everybody() {
		switch {
		case other == node:
		case out:
			c.Net.Set(node, other, r)
		default:
			c.Net.Set(other, node, r)
		}
	}
}

// Kinds returns the kinds of faults.
func Kinds() []string { return slices.Sorted(maps.Keys(faults)) }

// Schedule lays out the faults of a run of so long. The same seed gives the same ones. Each fault of the kind comes before any
// comes again.
func Schedule(seed uint64, kind string, long time.Duration) []Step {
	r := rand.New(rand.NewPCG(seed, 0))
	var steps []Step
	var deck []string
	for at := time.Duration(0); at < long; {
		if len(deck) == 0 {
			deck = slices.Sorted(maps.Keys(faults[kind]))
			r.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		s := Step{Fault: deck[0], Hold: between(r, 300*time.Millisecond, 3*time.Second), Calm: between(r, 200*time.Millisecond, 2*time.Second)}
		deck = deck[1:]
		steps = append(steps, s)
		at += s.Hold + s.Calm
	}
	return steps
}

func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)))
}

// nemesis makes the faults of a schedule, one after the other, until it is through or ctx ends. It leaves the cluster healed.
// The error is one that a run cannot go on with: a process that ended by itself.
func nemesis(ctx context.Context, c *Cluster, steps []Step, rec *Recorder, say func(format string, args ...any)) error {
	last := c.Nodes()[0]
	for i, s := range steps {
		asking, cancel := context.WithTimeout(ctx, 2*time.Second)
		if now, err := c.Master(asking); err == nil && now != "" {
			last = now
		}
		cancel()
		master := last
		rest := slices.DeleteFunc(c.Nodes(), func(n string) bool { return n == master })
		slave := rest[i%len(rest)]
		start := rec.Now()
		if err := faults["mixed"][s.Fault](prey{c, master, slave, rest}); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", s.Fault, err), c.crashed())
		}
		what := strings.NewReplacer("the master", "the master "+master, "a slave", "the slave "+slave).Replace(s.Fault)
		rec.Add(Op{Kind: Fault, Start: start, Value: what})
		say("%7.1f s  %s for %v", float64(start)/1e9, what, s.Hold.Round(time.Millisecond))
		goesOn := pause(ctx, s.Hold)
		start = rec.Now()
		if err := c.Heal(); err != nil {
			return fmt.Errorf("healing: %w", err)
		}
		rec.Add(Op{Kind: Fault, Start: start, Value: "heal"})
		if !goesOn || !pause(ctx, s.Calm) {
			return nil
		}
	}
	return nil
}
