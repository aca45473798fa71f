package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// The levels of a program that knows of none, and of this one.
var oldLevels = Levels{1, 1}

// needyCommand is a command of a level.
type needyCommand struct {
	foundCommand
	level Level
}

func (c *needyCommand) needs() (Level, string) { return c.level, "a thing" }

// What needs a level is refused before the cluster has it, with the reason, where it is proposed and where it is applied.
func TestNeedsLevel(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		cluster, needs Level
		allowed        bool
	}{
		{0, 0, true}, {0, 1, true}, {0, 2, false}, {1, 2, false}, {2, 2, true}, {2, 1, true}, {2, 3, false}, {3, 2, true},
	} {
		s := NewState()
		s.cluster.Level = tt.cluster
		c := &needyCommand{level: tt.needs}
		err := s.allows(c)
		if tt.allowed != (err == nil) {
			t.Errorf("a command of level %d in a cluster of level %d: %v", tt.needs, tt.cluster, err)
		}
		if err == nil {
			continue
		}
		if applied := s.Apply(c); !errors.Is(applied, ErrNotNow) || applied.Error() != err.Error() {
			t.Errorf("applied: %v, want %v", applied, err)
		}
		if says := fmt.Sprintf("a thing needs the cluster's feature level %d, and it is %d: run `ledgermq admin cluster upgrade`", tt.needs, tt.cluster.orFirst()); !strings.HasPrefix(err.Error(), says) {
			t.Errorf("%v", err)
		}
	}
}

// The level never falls, and is absent in the state while it is 1: what older members make of the same commands is equal.
func TestLevelInState(t *testing.T) {
	t.Parallel()
	old, with := NewState(), NewState()
	must(t, old.Apply(&foundCommand{Cluster: hexOf(1)}))
	must(t, with.Apply(&foundCommand{Cluster: hexOf(1), Level: 1}))
	if old.Hash() != with.Hash() || strings.Contains(string(with.value(keyCluster)), "level") {
		t.Errorf("level 1 shows in the state: %s", with.value(keyCluster))
	}
	for _, step := range []struct{ raise, want Level }{{1, 1}, {0, 1}, {2, 2}, {1, 2}, {2, 2}} {
		must(t, with.Apply(&raiseLevelCommand{step.raise}))
		if with.level() != step.want {
			t.Errorf("level %d after %d", with.level(), step.raise)
		}
	}
	founded := NewState()
	must(t, founded.Apply(NewFound(ids.ClusterID(hexOf(1)))))
	if founded.level() != NewestLevel {
		t.Errorf("a new cluster begins with level %d", founded.level())
	}
}

// A level that this program does not understand is told by name, wherever it is met: in a command, in a snapshot, in the file.
func TestUnknownLevel(t *testing.T) {
	t.Parallel()
	want := fmt.Sprintf("this cluster's feature level is %d, this program understands %v: use a newer program", NewestLevel+1, OwnLevels())
	check := func(where string, err error) {
		t.Helper()
		var level *LevelError
		if !errors.As(err, &level) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", where, err, want)
		}
	}
	for _, c := range []Command{&raiseLevelCommand{NewestLevel + 1}, &foundCommand{hexOf(1), NewestLevel + 1}} {
		_, _, err := decodeCommand(encodeCommand(requestID{}, c))
		check(fmt.Sprintf("%T", c), err)
	}
	newer := NewState()
	newer.cluster.Level = NewestLevel + 1
	_, err := decodeSnapshot(encodeSnapshot(newer))
	check("a snapshot", err)
	// Other fields of a newer program do not hide it.
	_, err = stateOf([]entry{{keyCluster, fmt.Appendf(nil, `{"fancy":true,"level":%d}`, NewestLevel+1)}, {"fancy/1", []byte("{}")}})
	check("a newer state", err)

	dir, _ := madeStore(t)
	st, _, err := openStore(dir, false, nil)
	must(t, err)
	must(t, st.write(&batch{changes: []entry{{keyCluster, newer.value(keyCluster)}}, applied: &position{1, 1}}))
	must(t, st.close())
	_, err = reopen(dir)
	var folder *FolderError
	if !errors.As(err, &folder) || !strings.Contains(err.Error(), want) {
		t.Errorf("a controller's file: %v", err)
	}

	if err := (Levels{3, 4}).Check(2); err == nil || !strings.HasSuffix(err.Error(), "use an older program") {
		t.Errorf("a cluster that is too old: %v", err)
	}
}

// Who must understand a level before it is raised.
func TestMayRaise(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000, 0)
	story := func(levels map[ids.NodeID]Levels, without ...ids.NodeID) error {
		s := foundedState(t, 4)
		must(t, s.Apply(creation("g", 1, 2, 3))) // n1 to n3
		l := NewLeader(time.Second)
		l.Begin(now.Add(-time.Minute), 1)
		for id, n := range s.nodes {
			own, ok := levels[id]
			if !ok {
				own = OwnLevels()
			}
			at := now
			for _, w := range without {
				if w == id {
					at = now.Add(-2 * time.Second)
				}
			}
			l.hear(at, id, n.Session, 1, own, nil)
		}
		return l.mayRaise(now, s, 2)
	}
	for _, tt := range []struct {
		name string
		err  error
		says string
	}{
		{"all understand it", story(nil), ""},
		{"an old node", story(map[ids.NodeID]Levels{"n2": oldLevels}), "feature level stays 1, 2 is not understood by all: node n2 understands 1..1: start the new program there"},
		{"an old node without replicas", story(map[ids.NodeID]Levels{"n4": oldLevels}), "node n4 understands 1..1"},
		{"a silent node", story(nil, "n3"), "node n3 is not heard: start it with the new program, or give its replicas' places to another node"},
		{"a silent node without replicas", story(nil, "n4"), ""},
		{"two of them", story(map[ids.NodeID]Levels{"n1": oldLevels}, "n3"), "node n1 understands 1..1: start the new program there; node n3 is not heard"},
	} {
		if tt.says == "" && tt.err != nil || tt.says != "" && (!errors.Is(tt.err, ErrNotNow) || !strings.Contains(tt.err.Error(), tt.says)) {
			t.Errorf("%s: %v, want %q", tt.name, tt.err, tt.says)
		}
	}
	good := &pb.StatusResponse{Id: "c1", Levels: OwnLevels().Wire()}
	for _, tt := range []struct {
		answer MemberStatus
		says   string
	}{
		{MemberStatus{Status: good}, ""},
		{MemberStatus{Status: &pb.StatusResponse{Id: "c2"}}, "controller c2 understands 1..1: start the new program there"},
		{MemberStatus{Address: "h:1", Err: context.DeadlineExceeded}, "the controller at h:1 does not answer"},
		{MemberStatus{Status: &pb.StatusResponse{Id: "c2", Failure: "it failed", Levels: OwnLevels().Wire()}}, "controller c2 takes no part: it failed"},
	} {
		if err := membersMayRaise(1, 2, []MemberStatus{{Status: good}, tt.answer}); tt.says == "" && err != nil ||
			tt.says != "" && (!errors.Is(err, ErrNotNow) || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%+v: %v", tt.answer, err)
		}
	}
}

// A cluster whose controllers and nodes are old is upgraded one by one; nothing new is said before the operator says so, and after that
// no old one comes back.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	old := map[string]bool{"c1": true, "c2": true, "c3": true}
	c := newCluster(t, 3, func(o *Options) {
		if old[o.ID] {
			o.levels = oldLevels
		}
	})
	ctx := ctxFor(t)
	admin := c.client()
	n := newNode(t, c, "n1")
	n.client.levels = oldLevels
	n.mustRegister()
	stop := n.live()
	if _, err := admin.CreateGroup(ctx, request("g", 1, 1, "n1")); err != nil {
		t.Fatal(err)
	}
	level := func() Level {
		m, err := admin.Members(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return Level(m.GetLevel())
	}
	if level() != 1 {
		t.Fatalf("three old controllers founded a cluster of level %d", level())
	}
	// refused waits until an upgrade by a new leader is refused for the reason; an old leader raises to 1, which changes nothing.
	refused := func(why string) {
		t.Helper()
		eventually(t, "the refusal: "+why, func() error {
			before, now, err := admin.Upgrade(ctx)
			if before > 1 || now > 1 {
				t.Fatalf("raised from %d to %d, %v: want %s", before, now, err, why)
			}
			if err == nil { // let another one lead
				c.restart(c.leader().ID())
			}
			if err == nil || !errors.Is(err, ErrNotNow) || !strings.Contains(err.Error(), why) {
				return fmt.Errorf("%v", err)
			}
			return nil
		})
	}
	for _, id := range []string{"c1", "c2"} {
		delete(old, id)
		c.restart(id)
	}
	refused("controller c3 understands 1..1: start the new program there")
	c.stop("c3")
	refused("does not answer: start it with the new program")
	delete(old, "c3")
	c.start("c3")
	refused("node n1 understands 1..1: start the new program there")

	// The node's new program takes over; its old one would go on to be taken until the level is raised.
	upgraded := newNode(t, c, "n1")
	upgraded.code = n.code
	n.mu.Lock()
	upgraded.replicas = n.replicas
	n.mu.Unlock()
	stop()
	upgraded.mustRegister()
	stop = upgraded.live()
	eventually(t, "the upgrade", func() error {
		was, now, err := admin.Upgrade(ctx)
		if err == nil && (was != 1 || now != NewestLevel) {
			t.Fatalf("raised from %d to %d", was, now)
		}
		return err
	})
	eventually(t, "the level at the node", func() error {
		if resp := upgraded.mustBeat(); Level(resp.GetLevel()) != NewestLevel {
			return fmt.Errorf("level %d", resp.GetLevel())
		}
		return nil
	})
	if was, now, err := admin.Upgrade(ctx); err != nil || was != NewestLevel || now != NewestLevel {
		t.Errorf("again: from %d to %d, %v", was, now, err)
	}

	// An old program is refused by name, a new node and one that was there.
	want := fmt.Sprintf("this cluster's feature level is %d, this program understands 1..1: use a newer program", NewestLevel)
	for _, id := range []string{"n1", "n9"} {
		late := newNode(t, c, id)
		late.client.levels = oldLevels
		if id == "n1" {
			late.code = n.code
		}
		if _, err := late.register(ctx); !errors.Is(err, ErrNodeConflict) || !strings.Contains(err.Error(), want) {
			t.Errorf("an old program of %s registers: %v", id, err)
		}
	}
	stop()
	upgraded.client.levels = oldLevels
	if _, err := upgraded.client.Heartbeat(ctx, upgraded.request()); !errors.Is(err, ErrNodeConflict) || !strings.Contains(err.Error(), want) {
		t.Errorf("the heartbeat of an old program: %v", err)
	}
	// The level survives all controllers.
	for _, id := range []string{"c1", "c2", "c3"} {
		c.stop(id)
	}
	for _, id := range []string{"c1", "c2", "c3"} {
		c.start(id)
	}
	c.leader()
	if level() != NewestLevel {
		t.Errorf("level %d after a restart of all controllers", level())
	}
}

// A cluster that is founded by controllers of two versions begins with what the older ones understand.
func TestFoundedWithOld(t *testing.T) {
	t.Parallel()
	for _, old := range []string{"", "c1", "c3"} {
		c := newCluster(t, 3, func(o *Options) {
			if o.ID == old {
				o.levels = oldLevels
			}
		})
		m, err := c.client().Members(ctxFor(t))
		must(t, err)
		want := NewestLevel
		if old != "" {
			want = 1
		}
		if Level(m.GetLevel()) != want {
			t.Errorf("with %q old: level %d, want %d", old, m.GetLevel(), want)
		}
	}
}
