package jepsen

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// The cases change a good history: two senders into one queue, a poller, a consumer, and the final read of two replicas.
//
//	time  1     2     3     4     5     6
//	a  ──[─────]                            OK at 0
//	b              [─────]                  OK at 1
//	c                    [───────────]      unknown, and it is at 2
//	d        [──────────]                   told that it is not stored
//	e                          [─────]      unknown, and it is nowhere
func goodHistory() []Op {
	reads := []Read{rd(0, "a"), rd(1, "b"), rd(2, "c")}
	return []Op{
		{Kind: Send, Topic: "T", Start: 10, End: 20, Outcome: OK, Value: "a", Offset: 0},
		{Kind: Send, Topic: "T", Start: 30, End: 40, Outcome: OK, Value: "b", Offset: 1},
		{Kind: Send, Topic: "T", Start: 40, End: 60, Outcome: Unknown, Value: "c"},
		{Kind: Send, Topic: "T", Start: 20, End: 40, Outcome: NotStored, Value: "d"},
		{Kind: Send, Topic: "T", Start: 50, End: 60, Outcome: Unknown, Value: "e"},
		{Kind: Fault, Start: 35, End: 35, Value: "kill n1"},
		{Kind: Poll, Topic: "T", Start: 41, End: 42, Outcome: OK, Offset: 0, Reads: reads[:2], Next: 2},
		{Kind: Poll, Topic: "T", Start: 41, End: 42, Outcome: OK, Offset: 2, Next: 2},
		{Kind: Poll, Topic: "T", Start: 43, End: 44, Outcome: Failed, Offset: 2},
		{Kind: Max, Topic: "T", Start: 21, End: 22, Outcome: OK, Next: 1},
		{Kind: Max, Topic: "T", Start: 41, End: 42, Outcome: OK, Next: 2},
		{Kind: Consume, Topic: "T", Start: 41, End: 45, Outcome: OK, Reads: reads[:2]},
		{Kind: Consume, Topic: "T", Start: 46, End: 47, Outcome: OK, Reads: reads[1:]}, // once more: at least once
		{Kind: Final, Topic: "T", Start: 70, End: 71, Outcome: OK, Replica: "n1", Reads: reads},
		{Kind: Final, Topic: "T", Start: 71, End: 72, Outcome: OK, Replica: "n2", Reads: reads},
	}
}

// historyCase is a change of a good history, and what is found then.
type historyCase struct {
	name   string
	want   []Class
	change func(h []Op) []Op
}

// runHistories holds that each case is found, and that nothing else is said.
func runHistories(t *testing.T, good func() []Op, cases []historyCase, consumed ...string) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			found := Judge(c.change(good()), consumed...)
			var classes []Class
			for _, v := range found {
				if !slices.Contains(classes, v.Class) {
					classes = append(classes, v.Class)
				}
			}
			slices.Sort(classes)
			slices.Sort(c.want)
			if !slices.Equal(classes, c.want) {
				t.Errorf("found %v, want %v: %v", classes, c.want, found)
			}
		})
	}
}

func rd(offset int64, value string) Read { return Read{Offset: offset, Value: value} }

func TestGoodHistory(t *testing.T) {
	t.Parallel()
	for _, v := range Judge(goodHistory(), "T") {
		t.Error(v)
	}
}

// finals applies change to what each replica has in the end.
func finals(history []Op, change func([]Read) []Read) []Op {
	for i := range history {
		if history[i].Kind == Final {
			history[i].Reads = change(slices.Clone(history[i].Reads))
		}
	}
	return history
}

func find(history []Op, kind Kind, value string) *Op {
	for i := range history {
		if op := &history[i]; op.Kind == kind && op.Value == value {
			return op
		}
	}
	return nil
}

// TestBadHistories holds that each class is found, and that nothing else is said.
func TestBadHistories(t *testing.T) {
	t.Parallel()
	runHistories(t, goodHistory, []historyCase{
		{"an answered message is nowhere", []Class{Lost}, func(h []Op) []Op {
			return append(h, Op{Kind: Send, Topic: "T", Start: 50, End: 60, Outcome: OK, Value: "x", Offset: 3},
				Op{Kind: Consume, Topic: "T", Outcome: Failed, Reads: []Read{rd(3, "x")}})
		}},
		{"an answered message gave way to another one", []Class{Lost, Inconsistent}, func(h []Op) []Op {
			return append(h, Op{Kind: Send, Topic: "T", Start: 50, End: 60, Outcome: OK, Value: "x", Offset: 2},
				Op{Kind: Consume, Topic: "T", Outcome: Failed, Reads: []Read{rd(2, "x")}})
		}},
		{"a message is there twice", []Class{Duplicate}, func(h []Op) []Op {
			return finals(h, func(r []Read) []Read { return append(r, rd(3, "c")) })
		}},
		{"replicas differ at one offset", []Class{Inconsistent}, func(h []Op) []Op {
			h[len(h)-1].Reads = []Read{rd(0, "a"), rd(1, "b"), rd(2, "e")}
			return h
		}},
		{"a poll showed another value", []Class{Inconsistent}, func(h []Op) []Op {
			return append(h, Op{Kind: Poll, Topic: "T", Outcome: OK, Offset: 2, Reads: []Read{rd(2, "e")}, Next: 3})
		}},
		{"an answer names another place", []Class{Inconsistent}, func(h []Op) []Op {
			find(h, Send, "b").Offset = 7
			return slices.DeleteFunc(h, func(op Op) bool { return op.Kind == Max })
		}},
		{"the log has a hole", []Class{Gap}, func(h []Op) []Op {
			return finals(h, func(r []Read) []Read { return append(r, rd(4, "e")) })
		}},
		{"a poll jumps over a message", []Class{Gap}, func(h []Op) []Op {
			return append(h, Op{Kind: Poll, Topic: "T", Outcome: OK, Offset: 0, Reads: []Read{rd(0, "a"), rd(2, "c")}, Next: 3})
		}},
		{"a poll finds nothing and goes on behind a message", []Class{Gap}, func(h []Op) []Op {
			return append(h, Op{Kind: Poll, Topic: "T", Outcome: OK, Offset: 1, Next: 2})
		}},
		{"the log contradicts real time", []Class{Reordered}, func(h []Op) []Op {
			find(h, Send, "a").Offset, find(h, Send, "b").Offset = 1, 0
			swap := func(r []Read) []Read { return append([]Read{rd(0, "b"), rd(1, "a")}, r[2:]...) }
			h = slices.DeleteFunc(h, func(op Op) bool { return op.Kind == Poll || op.Kind == Max })
			for i := range h {
				if h[i].Kind == Consume && h[i].Reads[0].Offset == 0 {
					h[i].Reads = swap(h[i].Reads)
				} else if h[i].Kind == Consume {
					h[i].Reads = h[i].Reads[1:]
				}
			}
			return finals(h, swap)
		}},
		{"an unknown send lies before what was OK when it began", []Class{Reordered}, func(h []Op) []Op {
			h = slices.DeleteFunc(h, func(op Op) bool { return op.Kind == Max })
			h = append(h, Op{Kind: Send, Topic: "T", Start: 31, End: 38, Outcome: OK, Value: "x", Offset: 3},
				Op{Kind: Consume, Topic: "T", Outcome: OK, Reads: []Read{rd(3, "x")}})
			return finals(h, func(r []Read) []Read { return append(r, rd(3, "x")) })
		}},
		{"a poll gives messages out of order", []Class{Gap, Reordered}, func(h []Op) []Op {
			return append(h, Op{Kind: Poll, Topic: "T", Outcome: OK, Offset: 0, Reads: []Read{rd(1, "b"), rd(0, "a")}, Next: 1})
		}},
		{"a message was shown and taken back", []Class{Uncommitted}, func(h []Op) []Op {
			return append(h, Op{Kind: Poll, Topic: "T", Outcome: OK, Offset: 3, Reads: []Read{rd(3, "e")}, Next: 4})
		}},
		{"a refused message is in the log", []Class{Refused}, func(h []Op) []Op {
			return finals(h, func(r []Read) []Read { return append(r, rd(3, "d")) })
		}},
		{"a refused message was shown", []Class{Refused, Uncommitted}, func(h []Op) []Op {
			return append(h, Op{Kind: Consume, Topic: "T", Outcome: OK, Reads: []Read{rd(3, "d")}})
		}},
		{"a message that nobody sent", []Class{Phantom}, func(h []Op) []Op {
			return finals(h, func(r []Read) []Read { return append(r, rd(3, "?")) })
		}},
		{"a maximum forgets an answered message", []Class{Stale}, func(h []Op) []Op {
			return append(h, Op{Kind: Max, Topic: "T", Start: 41, End: 42, Outcome: OK, Next: 1})
		}},
		{"the consumer group misses a message", []Class{Unconsumed}, func(h []Op) []Op {
			h = append(h, Op{Kind: Send, Topic: "T", Start: 50, End: 60, Outcome: OK, Value: "x", Offset: 3})
			return finals(h, func(r []Read) []Read { return append(r, rd(3, "x")) })
		}},
		{"a replica has less", []Class{Unread}, func(h []Op) []Op {
			h[len(h)-1].Reads = h[len(h)-1].Reads[:2]
			return h
		}},
		{"a replica cannot be read", []Class{Unread}, func(h []Op) []Op {
			h[len(h)-1] = Op{Kind: Final, Topic: "T", Outcome: Failed, Replica: "n2", Error: "nobody answers"}
			return h
		}},
	}, "T")
}

// TestHistoryFile holds that a history can be judged again from its file.
func TestHistoryFile(t *testing.T) {
	t.Parallel()
	var file bytes.Buffer
	r := NewRecorder(&file)
	for _, op := range goodHistory() {
		r.Add(op)
	}
	want, err := r.History()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadHistory(&file)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read back, %v:\n%v\nwant\n%v", err, got, want)
	}
	if _, err := ReadHistory(strings.NewReader(`{"kind":"send"}` + "\n{")); err == nil {
		t.Error("a cut history was taken for a whole one")
	}
}
