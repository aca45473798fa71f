package jepsen

import "testing"

// offsetHistory: ten messages in one queue; group w acks with an answer, group s one-way beside sends of its own, group o beyond the end, group
// m is reset, and group x has members of which nothing is known.
func offsetHistory() []Op {
	const ms = 1_000_000
	var h []Op
	var reads []Read
	for i := range int64(10) {
		value := string(rune('a' + i))
		reads = append(reads, rd(i, value))
		h = append(h, Op{Kind: Send, Client: "s", Topic: "off", Start: 100 * i * ms, End: (100*i + 10) * ms, Outcome: OK, Value: value, Offset: i, Replica: "n1"})
	}
	ack := func(group string, at, offset, read int64, o Outcome) Op {
		return Op{Kind: Ack, Client: group, Group: group, Topic: "off", Start: at * ms, End: (at + 5) * ms, Offset: offset, Next: read, Outcome: o}
	}
	soon := ack("s", 220, 3, 3, Unknown)
	soon.OneWay, soon.Replica = true, "n1"
	reset := func(at, offset int64, o Outcome) Op {
		return Op{Kind: Reset, Client: "r", Group: "m", Topic: "off", Start: at * ms, End: (at + 5) * ms, Offset: offset, Outcome: o}
	}
	h = append(h,
		ask("w", "ask", 1, -1), ack("w", 300, 2, 2, OK), ask("w", "ask", 310, 2), ack("w", 400, 4, 4, Unknown), ask("w", "ask", 410, 2), ask("w", "ask", 420, 4),
		ack("w", 500, 5, 5, OK), ask("w", "ask", 510, 5),
		soon, ask("s", "ask", 230, -1), ask("s", "ask", 650, 3),
		ack("o", 300, 1000, 2, OK), ask("o", "ask", 310, 3), ack("o", 500, 1000, 5, OK), ask("o", "ask", 510, 5),
		ack("m", 300, 3, 3, OK), reset(400, 1, OK), ack("m", 410, 3, 3, LeftOut), ask("m", "ask", 420, 1), ack("m", 430, 2, 2, OK), ask("m", "ask", 440, 2),
		ask("x", "ask", 300, 2), ask("x", "ask", 400, 3),
		Op{Kind: Fault, Start: 700 * ms, End: 701 * ms, Value: "kill n1"},
		Op{Kind: Final, Topic: "off", Outcome: OK, Replica: "n1", Reads: reads},
		Op{Kind: Final, Topic: "off", Outcome: OK, Replica: "n2", Reads: reads},
	)
	for _, node := range []string{"n1", "n2"} {
		for group, at := range map[string]int64{"w": 5, "s": 3, "o": 5, "m": 2, "x": 3} {
			op := ask(group, finalClient, 2000, at)
			op.Replica = node
			h = append(h, op)
		}
	}
	return h
}

func ask(group, client string, at, next int64) Op {
	return Op{Kind: Ask, Client: client, Group: group, Topic: "off", Start: at * 1_000_000, End: (at + 5) * 1_000_000, Outcome: OK, Next: next}
}

// TestOffsetHistories holds that each wrong history of consumer offsets is found, and a good one is not.
func TestOffsetHistories(t *testing.T) {
	t.Parallel()
	const ms = 1_000_000
	// until adds questions, and takes the last ones away, which would see more.
	until := func(h []Op, more ...Op) []Op {
		var kept []Op
		for _, op := range h {
			if op.Kind != Ask || op.Client != finalClient {
				kept = append(kept, op)
			}
		}
		return append(kept, more...)
	}
	ack := func(group string, at, offset int64, o Outcome) Op {
		return Op{Kind: Ack, Client: group, Group: group, Topic: "off", Start: at * ms, End: (at + 5) * ms, Offset: offset, Next: offset, Outcome: o}
	}
	runHistories(t, offsetHistory, []historyCase{
		{"a good one", nil, func(h []Op) []Op { return h }},
		{"before what was acked", []Class{Back}, func(h []Op) []Op { return until(h, ask("w", "ask", 900, 4)) }},
		{"before what was acked, by a replica without a master", nil, func(h []Op) []Op {
			op := ask("w", "ask", 900, 4)
			op.End = op.Start + int64(masterless)
			return until(h, op)
		}},
		{"behind the end, by a replica without a master", []Class{Ahead}, func(h []Op) []Op {
			op := ask("w", "ask", 900, 11)
			op.End = op.Start + int64(masterless)
			return until(h, op)
		}},
		{"nowhere, after an ack", []Class{Back}, func(h []Op) []Op { return until(h, ask("w", "ask", 900, -1)) }},
		{"before what was answered to a question", []Class{Back}, func(h []Op) []Op { return until(h, ask("x", "ask", 900, 2)) }},
		{"before a one-way ack that must be in the log", []Class{Back}, func(h []Op) []Op {
			h = until(h)
			h = h[:len(h):len(h)]
			for i := range h {
				if h[i].Kind == Ask && h[i].Group == "s" && h[i].Next == 3 {
					h[i].Next = -1
				}
			}
			return h
		}},
		{"before a one-way ack that a fault may have lost", nil, func(h []Op) []Op {
			h = until(h, Op{Kind: Fault, Start: 300 * ms, End: 301 * ms, Value: "kill n1"})
			for i := range h {
				if h[i].Kind == Ask && h[i].Group == "s" && h[i].Next == 3 {
					h[i].Next = -1
				}
			}
			return h
		}},
		{"before a one-way ack after which another one is master", nil, func(h []Op) []Op {
			h = until(h)
			for i := range h {
				if h[i].Kind == Ask && h[i].Group == "s" && h[i].Next == 3 {
					h[i].Next = -1
				}
				if h[i].Kind == Send && h[i].Start >= 400*ms {
					h[i].Replica = "n2"
				}
			}
			return h
		}},
		{"before what was the end when more was acked", []Class{Back}, func(h []Op) []Op { return until(h, ask("o", "ask", 900, 4)) }},
		{"behind the end", []Class{Ahead}, func(h []Op) []Op { return until(h, ask("o", "ask", 900, 11)) }},
		{"behind what the end was then", []Class{Ahead}, func(h []Op) []Op { return until(h, ask("o", "ask", 520, 10)) }},
		{"where nobody said", []Class{Invented}, func(h []Op) []Op { return until(h, ask("w", "ask", 900, 7)) }},
		{"where it is said only later", []Class{Invented}, func(h []Op) []Op {
			return until(h, ask("w", "ask", 900, 7), ack("w", 1000, 7, OK))
		}},
		{"before an ack after a reset", []Class{Back}, func(h []Op) []Op { return until(h, ask("m", "ask", 900, 1)) }},
		{"before a reset", []Class{Back, Undone}, func(h []Op) []Op {
			return until(h, ack("m", 200, 1, OK), Op{Kind: Reset, Client: "r", Group: "m", Topic: "off", Start: 800 * ms, End: 805 * ms, Offset: 3, Outcome: OK}, ask("m", "ask", 900, 1))
		}},
		{"as a reset without an answer says", nil, func(h []Op) []Op {
			return until(h, Op{Kind: Reset, Client: "r", Group: "m", Topic: "off", Start: 800 * ms, End: 805 * ms, Offset: 0, Outcome: Unknown}, ask("m", "ask", 900, 2), ask("m", "ask", 1000, 0))
		}},
		{"as an ack from before the reset says", []Class{Undone}, func(h []Op) []Op { return until(h, ask("m", "ask", 900, 3)) }},
		{"as an ack that was left out says", []Class{Invented}, func(h []Op) []Op {
			h = until(h, ack("m", 890, 4, LeftOut), ask("m", "ask", 900, 4))
			return h
		}},
		{"replicas differ", []Class{Diverged}, func(h []Op) []Op {
			a, b := ask("o", finalClient, 3000, 5), ask("o", finalClient, 3100, 6)
			a.Replica, b.Replica = "n1", "n2"
			return until(h, a, b)
		}},
		{"a replica cannot be asked", []Class{Unread}, func(h []Op) []Op {
			return append(h, Op{Kind: Ask, Client: finalClient, Group: "w", Topic: "off", Replica: "n2", Outcome: Failed})
		}},
	})
}
