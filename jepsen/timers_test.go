package jepsen

import "testing"

// timerHistory: a and b fire, c is recalled, d is recalled too late, e is recalled without an answer, f is sent without one, g is refused, h is
// recalled twice, the second time when its time is over.
func timerHistory() []Op {
	const ms = 1_000_000
	later := func(value string, at, delay int64, o Outcome) Op {
		return Op{Kind: Later, Topic: "timer", Start: at * ms, End: (at + 5) * ms, Outcome: o, Value: value, Delay: delay, Due: 5000 + at + delay}
	}
	recall := func(value string, at int64, o Outcome) Op {
		return Op{Kind: Recall, Topic: "timer", Start: at * ms, End: (at + 5) * ms, Outcome: o, Value: value}
	}
	fired := func(offset int64, value string, due int64) Read {
		return Read{Offset: offset, Value: value, Stored: due + 1}
	}
	reads := []Read{fired(0, "a", 6000), fired(1, "b", 7000), fired(2, "d", 7500), fired(3, "f", 8000)}
	got := make([]Read, len(reads))
	for i, r := range reads {
		r.Got = r.Stored + 3
		got[i] = r
	}
	return []Op{
		later("a", 0, 1000, OK), later("b", 0, 2000, OK), later("c", 0, 2000, OK), later("d", 0, 2500, OK), later("e", 0, 3000, OK),
		later("f", 0, 3000, Unknown), later("g", 0, 3000, NotStored), later("h", 0, 3000, OK),
		recall("c", 10, OK), recall("d", 2499, Contrary), recall("e", 10, Unknown), recall("e", 20, Contrary), recall("h", 10, OK), recall("h", 3500, Contrary),
		{Kind: Consume, Topic: "timer", Outcome: OK, Reads: got[:2]},
		{Kind: Consume, Topic: "timer", Outcome: OK, Reads: got[2:]},
		{Kind: Final, Topic: "timer", Outcome: OK, Replica: "n1", Reads: reads},
		{Kind: Final, Topic: "timer", Outcome: OK, Replica: "n2", Reads: reads},
	}
}

// everywhere adds a value to the final log and to what was consumed.
func everywhere(h []Op, value string) []Op {
	r := Read{Offset: 4, Value: value, Stored: 9000, Got: 9001}
	h = append(h, Op{Kind: Consume, Topic: "timer", Outcome: OK, Reads: []Read{r}})
	return finals(h, func(reads []Read) []Read { return append(reads, r) })
}

// TestTimerHistories holds that each wrong history of messages with a time is found, and a good one is not.
func TestTimerHistories(t *testing.T) {
	t.Parallel()
	runHistories(t, timerHistory, []historyCase{
		{"a good one", nil, func(h []Op) []Op { return h }},
		{"one was shown and is gone", []Class{Uncommitted}, func(h []Op) []Op {
			return finals(h, func(r []Read) []Read { return r[:3] })
		}},
		{"one that was answered never fires", []Class{Lost}, func(h []Op) []Op {
			return append(h, Op{Kind: Later, Topic: "timer", Outcome: OK, Value: "x", Delay: 10, Due: 10})
		}},
		{"one that came too late to be recalled never fires", []Class{Lost}, func(h []Op) []Op {
			return append(h, Op{Kind: Later, Topic: "timer", Outcome: OK, Value: "x", Delay: 10, Due: 10},
				Op{Kind: Recall, Topic: "timer", Start: 20, End: 30, Outcome: Contrary, Value: "x"})
		}},
		{"one fires twice", []Class{Duplicate}, func(h []Op) []Op { return everywhere(h, "a") }},
		{"one without an answer fires twice", []Class{Duplicate}, func(h []Op) []Op { return everywhere(h, "f") }},
		{"a recalled one fires", []Class{Recalled}, func(h []Op) []Op { return everywhere(h, "c") }},
		{"a refused one fires", []Class{Refused}, func(h []Op) []Op { return everywhere(h, "g") }},
		{"one that nobody sent fires", []Class{Phantom}, func(h []Op) []Op { return everywhere(h, "?") }},
		{"one that nobody sent is recalled", []Class{Phantom}, func(h []Op) []Op {
			return append(h, Op{Kind: Recall, Topic: "timer", Outcome: OK, Value: "?"})
		}},
		{"one whose recall had no answer may fire", nil, func(h []Op) []Op { return everywhere(h, "e") }},
		{"one is stored before its time", []Class{Early}, func(h []Op) []Op {
			return finals(h, func(r []Read) []Read { r[1].Stored = 6999; return r })
		}},
		{"one that says to be stored in time comes before it", []Class{Early}, func(h []Op) []Op {
			for i := range h {
				if h[i].Kind == Consume && h[i].Reads[0].Value == "d" {
					h[i].Reads[0].Got = 7499
				}
			}
			return h
		}},
		{"one is stored at its time", nil, func(h []Op) []Op {
			return finals(h, func(r []Read) []Read { r[1].Stored = 7000; return r })
		}},
		{"a recall is refused long before", []Class{Unrecalled}, func(h []Op) []Op {
			find(h, Recall, "d").End = 1_000_000_000
			return h
		}},
		{"one that fired is not consumed", []Class{Unconsumed}, func(h []Op) []Op {
			for i := range h {
				if h[i].Kind == Consume {
					h[i].Reads = h[i].Reads[1:]
				}
			}
			return h
		}},
	}, "timer")
}
