package tests

import (
	"fmt"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// scene is a loaded group in one mode. Its steps are the rows of docs/guarantees.md.
type scene struct {
	t *testing.T
	c *cluster.Cluster
	l *load
}

// goesOn waits until sends are answered OK.
func (s *scene) goesOn() {
	s.t.Helper()
	s.l.awaitMore(s.t, 50, 60*time.Second)
}

// stops waits until no send is answered OK any more.
func (s *scene) stops() {
	s.t.Helper()
	s.l.awaitStop(s.t, time.Minute)
}

func (s *scene) kill(list ...string) {
	s.t.Helper()
	kill(s.t, s.c, list...)
}

func (s *scene) start(list ...string) {
	s.t.Helper()
	restart(s.t, s.c, list...)
}

func (s *scene) voters(list ...string) {
	s.t.Helper()
	voters(s.t, s.c, list...)
}

// wellWith waits until every replica lives, and n of them vote.
func (s *scene) wellWith(n int) {
	s.t.Helper()
	eventually(s.t, time.Minute, fmt.Sprintf("all replicas, %d of them voters", n), func() (bool, error) {
		have := 0
		for _, g := range groups(s.t, s.c) {
			if g.Master == nil || !g.Master.Live || g.ActiveEpoch != g.Epoch {
				return false, nil
			}
			for _, r := range g.Replicas {
				if !r.Live {
					return false, nil
				}
				if r.Voter {
					have++
				}
			}
		}
		return have == n, nil
	})
}

// epoch holds the newest epoch of the group against a number.
func (s *scene) epoch(want uint32) {
	s.t.Helper()
	for _, g := range groups(s.t, s.c) {
		if g.Epoch != want {
			s.t.Errorf("%s is in epoch %d, want %d", g.Name, g.Epoch, want)
		}
	}
}

// The rows of the table that no other test shows: what a mode survives, and what stops it. n1 is master at the beginning.
func TestModesGuarantee(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		mode   string
		minISR int
		steps  func(*scene)
	}{
		{"2-3", 0, func(s *scene) { // two at once; one, and a second one later
			s.kill("n2", "n3")
			s.stops()
			s.start("n2")
			s.goesOn()
			s.start("n3")
			s.voters("n1", "n2", "n3")
			s.kill("n2")
			s.voters("n1", "n3")
			s.goesOn()
			s.kill("n3")
			s.stops()
			s.start("n3")
			s.goesOn()
			s.start("n2")
		}},
		{"2-3", 2, func(s *scene) { // a replica and the controller
			s.kill("c1", "n1")
			s.goesOn()
			s.start("n1", "c1")
			s.voters("n1", "n2", "n3")
		}},
		{"3-3", 0, func(s *scene) { // one, and a second one later
			s.kill("n2")
			s.voters("n1", "n3")
			s.goesOn()
			s.kill("n3")
			s.stops()
			s.start("n3")
			s.goesOn()
			s.start("n2")
			s.voters("n1", "n2", "n3")
			s.goesOn()
		}},
		{"3-3", 0, func(s *scene) { // the controller; two at once
			s.kill("c1")
			s.goesOn()
			s.start("c1")
			s.kill("n2", "n3")
			s.stops()
			s.start("n2")
			s.voters("n1", "n2")
			s.goesOn()
			s.start("n3")
		}},
		{"3-3", 1, func(s *scene) { // one, and a second one later, and the last goes on
			s.kill("n1")
			s.voters("n2", "n3")
			s.goesOn()
			s.kill("n3")
			s.voters("n2")
			s.goesOn()
			s.start("n1", "n3")
			s.voters("n1", "n2", "n3")
		}},
		{"1-2", 0, func(s *scene) { // the learner, then the voter; the controller, and the voter with it
			s.kill("n2")
			s.goesOn()
			s.start("n2")
			s.kill("n1")
			s.stops()
			s.start("n1")
			s.goesOn()
			s.voters("n1")
			s.kill("c1")
			s.goesOn()
			s.kill("n1")
			s.stops()
			s.start("n1", "c1")
			s.goesOn()
			s.voters("n1")
		}},
		{"2-2", 2, func(s *scene) { // nobody goes on alone when the min ISR is two
			s.kill("n2")
			s.stops()
			s.start("n2")
			s.goesOn()
			s.voters("n1", "n2")
			s.epoch(1) // the set never got smaller
		}},
		{"2-2", 0, func(s *scene) { // two at once: either one has everything
			s.kill("n1", "n2")
			s.stops()
			s.start("n2")
			s.voters("n2")
			s.goesOn()
			s.start("n1")
			s.voters("n1", "n2")
		}},
		{"1-1", 0, func(s *scene) { // the controller, and the voter with it; the voter
			s.kill("c1")
			s.goesOn()
			s.kill("n1")
			s.stops()
			s.start("n1", "c1")
			s.goesOn()
			s.kill("n1")
			s.stops()
			s.start("n1")
			s.goesOn()
		}},
		{"3-3", 2, func(s *scene) { // a replica and the controller: the third copy is missing until the set may shrink
			s.kill("c1", "n2")
			s.stops()
			s.start("c1")
			s.voters("n1", "n3")
			s.goesOn()
			s.start("n2")
			s.voters("n1", "n2", "n3")
		}},
		{"2-4", 0, func(s *scene) { // the learner takes the place of a voter, and a second one may go
			s.kill("n2")
			s.voters("n1", "n3", "n4")
			s.goesOn()
			s.kill("n1")
			s.voters("n3", "n4")
			s.goesOn()
			s.start("n1", "n2")
			s.goesOn()
		}},
		{"2-4", 0, func(s *scene) { // the controller, and a voter with it; two at once
			s.kill("c1")
			s.goesOn()
			s.kill("n1")
			s.goesOn()
			s.start("n1", "c1")
			s.wellWith(3) // n4 may have taken the place of n1
			s.kill("n2", "n3")
			s.stops()
			s.start("n2")
			s.goesOn()
			s.start("n3")
		}},
		{"3-5", 0, func(s *scene) { // one, and a second one later
			s.kill("n1")
			s.voters("n2", "n3", "n4", "n5")
			s.goesOn()
			s.kill("n2")
			s.voters("n3", "n4", "n5")
			s.goesOn()
			s.start("n1", "n2")
			s.voters("n1", "n2", "n3", "n4", "n5")
		}},
		{"3-5", 0, func(s *scene) { // two at once, and the controller
			s.kill("c1", "n1", "n2")
			s.goesOn()
			s.start("n1", "n2", "c1")
			s.voters("n1", "n2", "n3", "n4", "n5")
			s.goesOn()
		}},
	} {
		name := row.mode
		if row.minISR > 0 {
			name += fmt.Sprintf(" min ISR %d", row.minISR)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, cluster.Options{Nodes: int(row.mode[2] - '0'), Groups: 1, Mode: row.mode, MinISR: row.minISR})
			firstLeads(t, c, "g1", "n1")
			s := &scene{t: t, c: c, l: startOwnLoad(t, c, "Modes", senders)}
			s.goesOn()
			row.steps(s)
			s.goesOn()
			s.l.check(t, c)
		})
	}
}
