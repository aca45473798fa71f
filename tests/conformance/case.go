package conformance

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
)

// Case is one thing that is done to both systems.
type Case struct {
	Name   string
	Client string           // go for bare requests, official for the official Go client, or a program of tests/java: current, legacy, mqadmin
	Go     func(*Env) error // of Clients go and official
	// Commands, of Client mqadmin, are run in their order. TOPIC and GROUP in them become the case's own; a key is a command as it stands.
	Commands []string
	// Differ has a key, or a pattern of path.Match, and the id of the row of docs/divergence.md that explains the difference. With
	// `=VALUE` behind the key only a difference is meant where ours is that, or is nothing: `=nothing`.
	Differ map[string]string
	// Vary are the keys of Differ that need not differ: it depends on when the two are looked at.
	Vary []string

	Failover bool // stops in its middle, and our master is killed there
	Long     bool // takes more than some seconds: not part of the short run
}

func (c Case) String() string { return c.Client + "/" + c.Name }

// Env is what a case is given.
type Env struct {
	context.Context
	Namesrv []string
	ID      string // part of all names of topics and groups
	// Pause ends the first half of a case with Failover.
	Pause func() error
	// Failover says whether the case has one.
	Failover bool

	mu    sync.Mutex // of lines: a client's own goroutines print too
	lines []Line
	ends  []func()
}

// Line is something that a client saw.
type Line struct{ Key, Value string }

// Print notes what was seen. The lines of one key are compared in their order, those of different keys are not.
func (e *Env) Print(key string, value any) {
	own := strings.NewReplacer(e.ID, "CASE")
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lines = append(e.lines, Line{own.Replace(key), own.Replace(fmt.Sprint(value))})
}

// atEnd lets something be closed when the case is over, the last one first.
func (e *Env) atEnd(f func()) { e.ends = append(e.ends, f) }

func (e *Env) close() {
	for _, f := range slices.Backward(e.ends) {
		f()
	}
}

// pauseIf is Pause in a case that has a failover, and else nothing.
func (e *Env) pauseIf() error {
	if !e.Failover {
		return nil
	}
	return e.Pause()
}

// Topic returns the case's topic.
func (e *Env) Topic() string { return "T-" + e.ID }

// Group returns the name of one of the case's groups.
func (e *Env) Group(suffix string) string { return "G-" + e.ID + "-" + suffix }

// Difference is a key whose lines are not the same on both sides.
type Difference struct {
	Key          string
	There, Here  []string // RocketMQ's and ours
	Row, pattern string   // the row that allows it, and the key in Case.Differ; "" when none does
}

func (d Difference) String() string {
	show := func(l []string) string {
		if l == nil {
			return "nothing"
		}
		return strings.Join(l, "\n               ")
	}
	return fmt.Sprintf("%s\n     RocketMQ: %s\n     LedgerMQ: %s", d.Key, show(d.There), show(d.Here))
}

// compare returns the differences in the order of their keys, and the patterns of c.Differ that no difference needed.
func compare(c Case, there, here []Line) (differences []Difference, unused []string) {
	a, b := byKey(there), byKey(here)
	var keys []string
	for _, l := range slices.Concat(there, here) {
		keys = append(keys, l.Key)
	}
	slices.Sort(keys)
	used := make(map[string]bool)
	for _, key := range slices.Compact(keys) {
		if slices.Equal(a[key], b[key]) {
			continue
		}
		d := Difference{Key: key, There: a[key], Here: b[key]}
		for pattern, row := range c.Differ {
			p, value, only := strings.Cut(pattern, "=")
			if ok, _ := path.Match(p, key); ok && (!only || slices.Equal(b[key], []string{value}) || value == "nothing" && b[key] == nil) {
				d.Row, d.pattern = row, pattern
				used[pattern] = true
			}
		}
		differences = append(differences, d)
	}
	for pattern := range c.Differ {
		if !used[pattern] {
			unused = append(unused, pattern)
		}
	}
	slices.Sort(unused)
	return differences, unused
}

func byKey(lines []Line) map[string][]string {
	m := make(map[string][]string)
	for _, l := range lines {
		m[l.Key] = append(m[l.Key], l.Value)
	}
	return m
}
