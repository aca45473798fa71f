package jepsen

import (
	"slices"
	"testing"
)

// txHistory: a is committed, b rolled back, c and d raced by both, e left alone and rolled back in the end, f without an answer and pending
// until then, g told not to be stored.
func txHistory() []Op {
	half := func(value string, o Outcome) Op { return Op{Kind: Half, Topic: "tx", Outcome: o, Value: value} }
	end := func(value string, commit bool, o Outcome) Op {
		return Op{Kind: End, Topic: "tx", Outcome: o, Value: value, Commit: commit}
	}
	reads := []Read{rd(0, "a"), rd(1, "c")}
	return []Op{
		half("a", OK), half("b", OK), half("c", OK), half("d", OK), half("e", OK), half("f", Unknown), half("g", NotStored),
		end("a", true, OK), end("b", false, Unknown), end("c", true, OK), end("c", false, Contrary), end("d", true, Contrary), end("d", false, OK),
		end("a", false, Contrary), end("b", false, OK), end("c", false, Contrary), end("d", false, OK), end("e", false, OK), end("f", false, OK),
		{Kind: Final, Topic: "tx", Outcome: OK, Replica: "n1", Reads: reads},
		{Kind: Final, Topic: "tx", Outcome: OK, Replica: "n2", Reads: reads},
	}
}

// TestTransactionHistories holds that each wrong history of transactions is found, and a good one is not.
func TestTransactionHistories(t *testing.T) {
	t.Parallel()
	add := func(value string) func([]Read) []Read {
		return func(r []Read) []Read { return append(r, rd(int64(len(r)), value)) }
	}
	runHistories(t, txHistory, []historyCase{
		{"a good one", nil, func(h []Op) []Op { return h }},
		{"a commit is nowhere", []Class{Lost}, func(h []Op) []Op {
			return finals(h, func(r []Read) []Read { return r[:1] })
		}},
		{"a commit of unknown outcome that the last rollback met is nowhere", []Class{Lost}, func(h []Op) []Op {
			find(h, End, "c").Outcome = Unknown
			return finals(h, func(r []Read) []Read { return r[:1] })
		}},
		{"a commit is there twice", []Class{Duplicate}, func(h []Op) []Op { return finals(h, add("a")) }},
		{"a rollback is there", []Class{TwoEnds}, func(h []Op) []Op { return finals(h, add("d")) }},
		{"a rollback was told to one, a commit to another", []Class{TwoEnds}, func(h []Op) []Op {
			return append(h, Op{Kind: End, Topic: "tx", Outcome: OK, Value: "d", Commit: true})
		}},
		{"a half message is shown", []Class{HalfShown}, func(h []Op) []Op {
			h = slices.DeleteFunc(h, func(op Op) bool { return op.Kind == End && op.Value == "f" })
			return finals(h, add("f"))
		}},
		{"a rollback was refused for nothing", []Class{Lost, TwoEnds}, func(h []Op) []Op {
			find(h, End, "e").Outcome = Contrary
			return h
		}},
		{"a half message is lost", []Class{Lost}, func(h []Op) []Op {
			find(h, End, "e").Outcome = Failed
			return h
		}},
		{"a refused half message is there", []Class{Refused, HalfShown}, func(h []Op) []Op {
			return finals(h, add("g"))
		}},
		{"a library says commit and nobody rolls back", []Class{Lost}, func(h []Op) []Op {
			return append(h, Op{Kind: Half, Topic: "tx", Outcome: OK, Value: "x"}, Op{Kind: End, Topic: "tx", Outcome: Unknown, Value: "x", Commit: true})
		}},
		{"a library says commit and rollback, and nobody knows which", nil, func(h []Op) []Op {
			return append(h, Op{Kind: Half, Topic: "tx", Outcome: OK, Value: "x"}, Op{Kind: End, Topic: "tx", Outcome: Unknown, Value: "x", Commit: true},
				Op{Kind: End, Topic: "tx", Outcome: Unknown, Value: "x"})
		}},
		{"a library says rollback, and it is there", []Class{HalfShown}, func(h []Op) []Op {
			h = append(h, Op{Kind: Half, Topic: "tx", Outcome: OK, Value: "x"}, Op{Kind: End, Topic: "tx", Outcome: Unknown, Value: "x"})
			return finals(h, add("x"))
		}},
		{"a transaction that nobody began", []Class{Phantom}, func(h []Op) []Op {
			return append(h, Op{Kind: End, Topic: "tx", Outcome: OK, Value: "x"})
		}},
	})
}
