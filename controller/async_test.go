package controller

import (
	"errors"
	"strings"
	"testing"
)

// A group that flushes asynchronously is a new thing of level 2, is recorded as such, and another flush mode makes another group.
func TestAsyncGroup(t *testing.T) {
	t.Parallel()
	s := foundedState(t, 3)
	c := creation("g1", 1, 2, 3)
	c.Async = true
	if err := s.Apply(c); !errors.Is(err, ErrNotNow) || !strings.Contains(err.Error(), "asynchronous flush needs the cluster's feature level 2") {
		t.Errorf("at level 1: %v", err)
	}
	must(t, s.Apply(&raiseLevelCommand{2}))
	must(t, s.Apply(c))
	g := s.groups["g1"]
	if !g.Async || !s.wantedReplica(g, &g.Replicas[0]).GetAsyncFlush() || !s.describe(g, nodeViews{}).GetAsyncFlush() {
		t.Error("the group does not flush asynchronously")
	}
	must(t, s.Apply(c))
	if err := s.Apply(creation("g1", 2, 2, 3)); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "flush async") {
		t.Errorf("the same group with another flush mode: %v", err)
	}
}
