package state

import (
	"bytes"
	"cmp"
	"reflect"
	"slices"
	"testing"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// left is Left by looking at everything.
func (n *naive) left() (messages int64, all []Behind) {
	for _, t := range n.topics {
		groups := map[string]bool{}
		for o := range n.offsets {
			if o.k.Topic == t.ID {
				groups[o.group] = true
			}
		}
		for q := range n.high[t.ID] {
			k := index.Key{Topic: t.ID, Queue: q}
			most := int64(0)
			for g := range groups {
				from := n.first[k]
				if at, ok := n.offsets[naiveOffset{g, k}]; ok {
					from = max(from, at)
				}
				if m := int64(n.next[k] - from); m > 0 {
					all = append(all, Behind{t.Name, g, q, m})
					most = max(most, m)
				}
			}
			messages += most
		}
	}
	slices.SortFunc(all, func(a, b Behind) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Queue, b.Queue))
	})
	return messages, all
}

// What is left is what a look at everything finds, and a freeze has an effect when that is nothing.
func TestLeftTwin(t *testing.T) {
	t.Parallel()
	some, none := 0, 0
	for seed := range uint64(60) {
		y := newStory(seed)
		for range 150 {
			y.step(t)
			messages, behind := y.n.left()
			l := y.s.Left()
			if l.Messages != messages || l.More != 0 || !slices.Equal(l.Behind, behind) || l.Transactions != len(y.n.pending) {
				t.Fatalf("seed %d: %+v is left, want %d messages and %+v, %d transactions", seed, l, messages, behind, len(y.n.pending))
			}
			c := y.s.Clone()
			want := EffectNone
			if messages == 0 && len(y.n.pending) == 0 {
				want = EffectFrozen
				none++
			} else {
				some++
			}
			if e := apply(t, c, y.wall, RecordFreeze, AppendFreeze(nil, false)); e.Kind != want || (c.Frozen() == FrozenEmpty) != (want == EffectFrozen) || y.s.Frozen() != NotFrozen {
				t.Fatalf("seed %d: a freeze had the effect %v, %v", seed, e.Kind, c.Frozen())
			}
		}
	}
	if some < 500 || none < 50 {
		t.Errorf("something was left %d times, nothing %d times: the test tests little", some, none)
	}
}

// A group is frozen when nothing is left in it, or what is left is given up; and for ever.
func TestFreeze(t *testing.T) {
	t.Parallel()
	topic := func(s *State, name string) {
		apply(t, s, 10, RecordTopicPut, AppendTopicPut(nil, Put, Topic{Name: name, ReadQueues: 2, WriteQueues: 2, Perm: 6}))
	}
	orders, retry := index.Key{Topic: 1, Queue: 1}, index.Key{Topic: 2}
	for _, tt := range []struct {
		name   string
		do     func(s *State)
		left   Left
		frozen bool
	}{
		{"a new group", func(*State) {}, Left{}, true},
		{"messages that nobody consumes", func(s *State) { apply(t, s, 20, RecordMessage, message(orders, 0, 0, 10)) }, Left{}, true},
		{"a group that has consumed all", func(s *State) {
			apply(t, s, 20, RecordMessage, message(orders, 0, 0, 10))
			apply(t, s, 30, RecordOffsets, AppendOffsets(nil, []ConsumerOffset{{"billing", 1, 1, 1}}))
		}, Left{}, true},
		{"a group that is behind", func(s *State) {
			for i := range ids.QueueOffset(3) {
				apply(t, s, 20, RecordMessage, message(orders, i, 0, 10))
			}
			apply(t, s, 30, RecordOffsets, AppendOffsets(nil, []ConsumerOffset{{"audit", 1, 1, 2}, {"billing", 1, 1, 1}}))
		}, Left{Messages: 2, Behind: []Behind{{"orders", "audit", 1, 1}, {"orders", "billing", 1, 2}}}, false},
		{"a group that has no offset in a queue", func(s *State) {
			apply(t, s, 20, RecordMessage, message(orders, 0, 0, 10))
			apply(t, s, 30, RecordOffsets, AppendOffsets(nil, []ConsumerOffset{{"billing", 1, 0, 0}}))
		}, Left{Messages: 1, Behind: []Behind{{"orders", "billing", 1, 1}}}, false},
		{"what retention gave up", func(s *State) {
			for i := range ids.QueueOffset(3) {
				apply(t, s, 20, RecordMessage, message(orders, i, 0, 10))
			}
			apply(t, s, 30, RecordOffsets, AppendOffsets(nil, []ConsumerOffset{{"billing", 1, 1, 0}}))
			apply(t, s, 40, RecordCutFront, AppendCutFront(nil, 1<<20, []QueueMin{{orders, 3}}))
		}, Left{}, true},
		{"a retry that its group has not looked at", func(s *State) { apply(t, s, 20, RecordMessage, message(retry, 0, 0, 10)) },
			Left{Messages: 1, Behind: []Behind{{"%RETRY%billing", "billing", 0, 1}}}, false},
		{"a retry that was consumed", func(s *State) {
			apply(t, s, 20, RecordMessage, message(retry, 0, 0, 10))
			apply(t, s, 30, RecordOffsets, AppendOffsets(nil, []ConsumerOffset{{"billing", 2, 0, 1}}))
		}, Left{}, true},
		{"a group that goes back", func(s *State) {
			apply(t, s, 20, RecordMessage, message(orders, 0, 0, 10))
			apply(t, s, 30, RecordOffsets, AppendOffsets(nil, []ConsumerOffset{{"billing", 1, 1, 1}}))
			apply(t, s, 40, RecordReset, AppendReset(nil, "billing", []ConsumerOffset{{Topic: 1, Queue: 1, Offset: 0}}))
		}, Left{Messages: 1, Behind: []Behind{{"orders", "billing", 1, 1}}}, false},
		{"a timer", func(s *State) { apply(t, s, 20, RecordTimer, timerBody(1000, 30)) }, Left{Timers: 1}, false},
		{"a transaction", func(s *State) { apply(t, s, 20, RecordHalf, halfBody(0, "pay")) }, Left{Transactions: 1}, false},
	} {
		s := New()
		topic(s, "orders")
		topic(s, "%RETRY%billing")
		tt.do(s)
		if l := s.Left(); !reflect.DeepEqual(l, tt.left) || (l.Messages == 0 && l.Timers == 0 && l.Transactions == 0) != tt.frozen {
			t.Errorf("%s: %+v is left, want %+v", tt.name, l, tt.left)
		}
		apply(t, s, 40, RecordTopicDelete, AppendTopicDelete(nil, "no such topic")) // the log time is that of the freeze
		before := s.Hash()
		e := apply(t, s, 40, RecordFreeze, AppendFreeze(nil, false))
		if frozen := e.Kind == EffectFrozen; frozen != tt.frozen || (s.Frozen() == FrozenEmpty) != frozen || (s.Hash() != before) != frozen {
			t.Errorf("%s: the freeze had the effect %v: %v", tt.name, e.Kind, s.Frozen())
		}
		want := FrozenEmpty
		if !tt.frozen {
			want = FrozenGiveUp
		}
		for range 2 { // the second time it is frozen already
			if e := apply(t, s, 50, RecordFreeze, AppendFreeze(nil, true)); e.Kind != EffectFrozen || s.Frozen() != want {
				t.Errorf("%s: a freeze that gives up had the effect %v: %v", tt.name, e.Kind, s.Frozen())
			}
		}
		if l := reload(t, s); l.Frozen() != want || l.Hash() != s.Hash() || s.Clone().Frozen() != want {
			t.Errorf("%s: the freeze was lost", tt.name)
		}
	}
}

// TestGoldenFreeze compares the section of the freeze with the page.
func TestGoldenFreeze(t *testing.T) {
	t.Parallel()
	s := New()
	apply(t, s, 1000, RecordFreeze, AppendFreeze(nil, false))
	var b bytes.Buffer
	if err := s.Snapshot(&b); err != nil {
		t.Fatal(err)
	}
	if want := golden(t, "frozen", "snapshot.md"); !bytes.HasSuffix(b.Bytes(), want) {
		t.Errorf("got %x\nwant its end to be %x", b.Bytes(), want)
	}
	bad := bytes.Clone(b.Bytes())
	for _, freeze := range []byte{0, 3} {
		bad[len(bad)-1] = freeze
		if loadOrRefuse(t, bad) {
			t.Errorf("freeze %d is taken", freeze)
		}
	}
}
