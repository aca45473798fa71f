package jepsen

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Class names what is wrong. The first seven are those of Jepsen's Kafka test.
type Class string

// The classes of violations.
const (
	Lost         Class = "lost"         // a send was OK and its value is not in the final log
	Duplicate    Class = "duplicate"    // a value that was sent once is there twice
	Inconsistent Class = "inconsistent" // one offset has been seen with two values
	Gap          Class = "gap"          // an offset below the end has nothing, or a poll jumped over one
	Reordered    Class = "reordered"    // a send that began when another one was already OK lies before it
	Uncommitted  Class = "uncommitted"  // a value was shown that is not in the final log
	Refused      Class = "refused"      // a value that was told NOT_STORED is there
	Phantom      Class = "phantom"      // a value is there that nobody sent
	Stale        Class = "stale"        // a maximum offset does not cover what was OK before the question
	Unconsumed   Class = "unconsumed"   // a send was OK and the consumer group never got it
	Unread       Class = "unread"       // a queue was not read to its end after healing
	Unhealed     Class = "unhealed"     // something was not reachable again by itself
	Diverged     Class = "diverged"     // `log verify` found damage, or replicas that differ
	TwoEnds      Class = "two-ends"     // a transaction was told to have ended, or has ended, both ways
	HalfShown    Class = "half-shown"   // the message of a transaction is in a queue, and nobody committed it
	Early        Class = "early"        // a message with a time was stored or shown before it
	Recalled     Class = "recalled"     // a message with a time was recalled, and is in a queue
	Unrecalled   Class = "unrecalled"   // a recall was refused as too late long before the time
	Back         Class = "back"         // a consumer group goes on before what was answered, and no reset did that
	Ahead        Class = "ahead"        // a consumer group goes on behind the end of the queue
	Invented     Class = "invented"     // a consumer group goes on where nobody said
	Undone       Class = "undone"       // a consumer group goes on where it was said before it was reset
	Crashed      Class = "crashed"      // a process ended by itself, or wrote of a panic
)

// Violation is one thing that is wrong.
type Violation struct {
	Class Class
	Text  string
}

func (v Violation) String() string { return string(v.Class) + ": " + v.Text }

type queueID struct {
	topic string
	queue int
}

func (q queueID) String() string { return fmt.Sprintf("%s/%d", q.topic, q.queue) }

// place is where a value lies.
type place struct {
	queueID
	offset int64
}

func (p place) String() string { return fmt.Sprintf("%v@%d", p.queueID, p.offset) }

// Judge returns everything in a history that a cluster must not do. The final log is what the Final operations read; each topic
// that is sent to needs them. Topics in consumed must also have been consumed to the last value that was OK.
func Judge(history []Op, consumed ...string) []Violation {
	j := &judge{sends: map[string]*Op{}, at: map[place]string{}, final: map[string][]place{}, replicas: map[queueID]map[string]int64{}}
	for i := range history {
		if op := &history[i]; op.Kind == Send || op.Kind == Half || op.Kind == Later {
			j.sends[op.Value] = op
		}
	}
	j.readFinal(history)
	j.compareReplicas()
	j.judgeFinal()
	j.judgeSends(history)
	j.judgeReads(history)
	j.judgeOrder()
	j.judgeMax(history)
	j.judgeTransactions(history)
	j.judgeTimers(history)
	j.judgeProgress(history)
	for _, topic := range consumed {
		j.judgeConsumed(history, topic)
	}
	return j.found
}

type judge struct {
	found    []Violation
	sends    map[string]*Op
	at       map[place]string   // the final log
	final    map[string][]place // by value: where it lies in the final log
	replicas map[queueID]map[string]int64
}

func (j *judge) bad(class Class, format string, args ...any) {
	j.found = append(j.found, Violation{class, fmt.Sprintf(format, args...)})
}

// readFinal puts the final log together from all replicas. Two values in one place are told, and the first one stands.
func (j *judge) readFinal(history []Op) {
	for i := range history {
		op := &history[i]
		if op.Kind != Final {
			continue
		}
		q := queueID{op.Topic, op.Queue}
		if op.Outcome != OK {
			j.bad(Unread, "%v on %s: %s", q, op.Replica, op.Error)
			continue
		}
		if j.replicas[q] == nil {
			j.replicas[q] = map[string]int64{}
		}
		j.replicas[q][op.Replica] = int64(len(op.Reads))
		for k, r := range op.Reads {
			if r.Offset != int64(k) {
				j.bad(Gap, "%v on %s: offset %d follows %d messages", q, op.Replica, r.Offset, k)
				break
			}
		}
		for _, r := range op.Reads {
			p := place{q, r.Offset}
			is, ok := j.at[p]
			switch {
			case !ok:
				j.at[p] = r.Value
				j.final[r.Value] = append(j.final[r.Value], p)
			case is != r.Value:
				j.bad(Inconsistent, "%v is %s, and %s on %s", p, is, r.Value, op.Replica)
			}
		}
	}
}

// compareReplicas demands that each replica has as much of a queue as the others.
func (j *judge) compareReplicas() {
	for _, q := range slices.SortedFunc(maps.Keys(j.replicas), compareQueues) {
		var longest int64
		for _, n := range j.replicas[q] {
			longest = max(longest, n)
		}
		for _, name := range slices.Sorted(maps.Keys(j.replicas[q])) {
			if n := j.replicas[q][name]; n < longest {
				j.bad(Unread, "%v has %d messages on %s, %d on another replica", q, n, name, longest)
			}
		}
	}
}

func compareQueues(a, b queueID) int {
	return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.queue, b.queue))
}

// judgeFinal looks at each value of the final log.
func (j *judge) judgeFinal() {
	for _, value := range slices.Sorted(maps.Keys(j.final)) {
		places := j.final[value]
		if len(places) > 1 {
			j.bad(Duplicate, "%s lies at %v", value, places)
		}
		switch send := j.sends[value]; {
		case send == nil:
			j.bad(Phantom, "%q at %v was sent by nobody", value, places[0])
		case send.Outcome == NotStored:
			j.bad(Refused, "%s lies at %v, and its sender was told that it is not stored: %s", value, places[0], send.Error)
		}
	}
}

// judgeSends looks for each send that was OK where its answer says that it is.
func (j *judge) judgeSends(history []Op) {
	for i := range history {
		op := &history[i]
		if op.Kind != Send || op.Outcome != OK {
			continue
		}
		p := place{queueID{op.Topic, op.Queue}, op.Offset}
		if len(j.final[op.Value]) == 0 {
			j.bad(Lost, "%s was answered OK at %v after %s, and is nowhere", op.Value, p, seconds(op.End))
		}
		if is, ok := j.at[p]; ok && is != op.Value {
			j.bad(Inconsistent, "%v was given to %s by its answer, and is %s", p, op.Value, is)
		} else if !ok && len(j.final[op.Value]) > 0 {
			j.bad(Inconsistent, "%s was answered OK at %v, where nothing is; it lies at %v", op.Value, p, j.final[op.Value])
		}
	}
}

// judgeReads compares what polls and consumers were shown with the final log.
func (j *judge) judgeReads(history []Op) {
	type shown struct {
		place
		value string
	}
	told := map[shown]bool{} // each wrong read once
	for i := range history {
		op := &history[i]
		if op.Kind != Poll && op.Kind != Consume || op.Outcome != OK {
			continue
		}
		for _, r := range op.Reads {
			p := place{queueID{op.Topic, r.Queue}, r.Offset}
			is, ok := j.at[p]
			if ok && is == r.Value || told[shown{p, r.Value}] {
				continue
			}
			told[shown{p, r.Value}] = true
			switch send := j.sends[r.Value]; {
			case send == nil:
				j.bad(Phantom, "%q was read at %v and was sent by nobody", r.Value, p)
			case send.Outcome == NotStored && len(j.final[r.Value]) == 0:
				j.bad(Refused, "%s was read at %v, and its sender was told that it is not stored: %s", r.Value, p, send.Error)
			}
			if ok {
				j.bad(Inconsistent, "%v is %s, and was read as %s after %s (%s)", p, is, r.Value, seconds(op.End), op.Client)
			} else {
				j.bad(Uncommitted, "%s was read at %v after %s (%s), and is not there any more", r.Value, p, seconds(op.End), op.Client)
			}
		}
		if op.Kind == Poll {
			j.judgePoll(op)
		}
	}
}

// judgePoll demands that a poll gives what lies from its offset on, one after the other.
func (j *judge) judgePoll(op *Op) {
	q, want := queueID{op.Topic, op.Queue}, op.Offset
	for _, r := range op.Reads {
		switch {
		case r.Offset > want:
			j.bad(Gap, "a poll of %v from %d on gives offset %d where %d comes next (%s)", q, op.Offset, r.Offset, want, op.Client)
		case r.Offset < want:
			j.bad(Reordered, "a poll of %v from %d on gives offset %d where %d comes next (%s)", q, op.Offset, r.Offset, want, op.Client)
		}
		want = r.Offset + 1
	}
	if op.Next > want {
		j.bad(Gap, "a poll of %v from %d on gives nothing at %d and goes on at %d (%s)", q, op.Offset, want, op.Next, op.Client)
	}
}

// judgeOrder demands that the log of a queue agrees with real time: what began after another send was OK lies behind it.
func (j *judge) judgeOrder() {
	byQueue := map[queueID][]place{}
	for p := range j.at {
		byQueue[p.queueID] = append(byQueue[p.queueID], p)
	}
	for _, q := range slices.SortedFunc(maps.Keys(byQueue), compareQueues) {
		places := byQueue[q]
		slices.SortFunc(places, func(a, b place) int { return cmp.Compare(b.offset, a.offset) })
		var first *Op // of those further back that are OK, the one that ended first
		for _, p := range places {
			op := j.sends[j.at[p]]
			if op == nil || op.Kind != Send { // others have the place of their commit, or of their time
				continue
			}
			if first != nil && first.End < op.Start {
				j.bad(Reordered, "%s lies at %v before %s, which was OK %s before the other was sent", op.Value, p, first.Value, seconds(op.Start-first.End))
			}
			if op.Outcome == OK && (first == nil || op.End < first.End) {
				first = op
			}
		}
	}
}

// answered is a send that was OK: when, and the highest offset until then.
type answered struct{ end, offset int64 }

type answers map[queueID][]answered

func answeredOf(history []Op) answers {
	ok := answers{}
	for i := range history {
		if op := &history[i]; op.Kind == Send && op.Outcome == OK {
			q := queueID{op.Topic, op.Queue}
			ok[q] = append(ok[q], answered{op.End, op.Offset})
		}
	}
	for _, list := range ok {
		slices.SortFunc(list, func(a, b answered) int { return cmp.Compare(a.end, b.end) })
		for i := 1; i < len(list); i++ {
			list[i].offset = max(list[i].offset, list[i-1].offset)
		}
	}
	return ok
}

// last returns the last one of a queue before a time.
func (a answers) last(q queueID, before int64) (answered, bool) {
	n, _ := slices.BinarySearchFunc(a[q], before, func(a answered, before int64) int { return cmp.Compare(a.end, before) })
	if n == 0 {
		return answered{}, false
	}
	return a[q][n-1], true
}

// judgeMax demands that a maximum offset covers every send that was OK before the question.
func (j *judge) judgeMax(history []Op) {
	ok := answeredOf(history)
	for i := range history {
		op := &history[i]
		if op.Kind != Max || op.Outcome != OK {
			continue
		}
		q := queueID{op.Topic, op.Queue}
		if last, some := ok.last(q, op.Start); some && last.offset >= op.Next {
			j.bad(Stale, "the maximum of %v was %d after %s, when offset %d had been OK for %s (%s)",
				q, op.Next, seconds(op.End), last.offset, seconds(op.Start-last.end), op.Client)
		}
	}
}

// judgeConsumed demands that a consumer group got every value of a topic that was OK; of those with a time every one that nobody recalled.
func (j *judge) judgeConsumed(history []Op, topic string) {
	got := map[string]bool{} // or need not be
	for i := range history {
		op := &history[i]
		if op.Kind == Recall && op.Outcome != Contrary {
			got[op.Value] = true
		}
		if op.Kind == Consume && op.Topic == topic {
			for _, r := range op.Reads {
				got[r.Value] = true
			}
		}
	}
	for i := range history {
		if op := &history[i]; op.Kind == Send && op.Topic == topic && op.Outcome == OK && !got[op.Value] {
			j.bad(Unconsumed, "%s was answered OK at %s/%d@%d and was never consumed", op.Value, op.Topic, op.Queue, op.Offset)
		} else if op.Kind == Later && op.Topic == topic && op.Outcome == OK && !got[op.Value] && len(j.final[op.Value]) > 0 {
			j.bad(Unconsumed, "%s was answered OK, lies at %v and was never consumed", op.Value, j.final[op.Value])
		}
	}
}

func seconds(ns int64) string { return fmt.Sprintf("%.3f s", float64(ns)/1e9) }
