package jepsen

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// Kind tells what an Op did.
type Kind string

// The kinds of operations.
const (
	Send    Kind = "send"    // one message; Value, and Queue and Offset when it is OK
	Poll    Kind = "poll"    // read Queue from Offset on: Reads, Next
	Max     Kind = "max"     // asked for the maximum offset of Queue: Next
	Consume Kind = "consume" // a batch of a consumer group: Reads
	Final   Kind = "final"   // all of Queue on one replica, after everything was healed: Reads
	Fault   Kind = "fault"   // the nemesis did Value
	Half    Kind = "half"    // the half message of a transaction: Value
	End     Kind = "end"     // a transaction was committed, or with Commit false rolled back: Value
	Later   Kind = "later"   // a message with a time: Value, Delay, Due
	Recall  Kind = "recall"  // of a message with a time: Value
	Ack     Kind = "ack"     // a consumer group said that it goes on in Queue at Offset; Next: how far it had read
	Reset   Kind = "reset"   // a consumer group was told to go on in Queue at Offset
	Ask     Kind = "ask"     // where a consumer group goes on in Queue: Next, -1 for nowhere
)

// Outcome tells how an Op ended, as its client tells it.
type Outcome string

// The outcomes. What reads is never NotStored or Unknown.
const (
	OK        Outcome = "ok"
	NotStored Outcome = "not-stored" // it is not in the log and never will be
	Unknown   Outcome = "unknown"    // it may be there, now or later
	Failed    Outcome = "failed"     // a read that gave nothing; an end of a transaction that there is not
	Contrary  Outcome = "contrary"   // an end of a transaction that has ended the other way; a recall that came too late
	LeftOut   Outcome = "left-out"   // an ack that does not count, because the group was reset
)

// Op is one call of a client, or one act of the nemesis. Times are nanoseconds since the run began, by one monotonic clock.
type Op struct {
	Kind    Kind    `json:"kind"`
	Client  string  `json:"client,omitempty"` // the driver's name and the caller's number
	Start   int64   `json:"start"`
	End     int64   `json:"end"`
	Outcome Outcome `json:"outcome,omitempty"`
	Topic   string  `json:"topic,omitempty"`
	Queue   int     `json:"queue"`             // of the one group
	Replica string  `json:"replica,omitempty"` // that was asked; "": the master, as the client knows it
	Offset  int64   `json:"offset"`            // of a send that is OK: its place; of a poll: from where
	Next    int64   `json:"next,omitempty"`    // of a poll: where it says to go on; of a max: the answer
	Value   string  `json:"value,omitempty"`   // unique among all sends of a run
	Commit  bool    `json:"commit,omitempty"`
	Group   string  `json:"group,omitempty"`  // consumer group
	OneWay  bool    `json:"oneWay,omitempty"` // of an ack: nobody answers
	Delay   int64   `json:"delay,omitempty"`  // milliseconds
	Due     int64   `json:"due,omitempty"`    // not before this, by the client's clock, milliseconds since 1970
	Reads   []Read  `json:"reads,omitempty"`
	Error   string  `json:"error,omitempty"`
}

// Read is one message that was read.
type Read struct {
	Queue  int    `json:"queue"`
	Offset int64  `json:"offset"`
	Value  string `json:"value"`
	Stored int64  `json:"stored,omitempty"` // when, by the broker's clock, milliseconds since 1970
	Got    int64  `json:"got,omitempty"`    // when a consumer got it, by the client's clock
}

// Recorder gathers a history, and writes each operation as one line of JSON when it has ended.
type Recorder struct {
	began time.Time

	mu  sync.Mutex
	out *json.Encoder // nil: nowhere
	ops []Op
	err error
}

// NewRecorder begins a history. w may be nil.
func NewRecorder(w io.Writer) *Recorder {
	r := &Recorder{began: time.Now()}
	if w != nil {
		r.out = json.NewEncoder(w)
	}
	return r
}

// Now is the time of the run, for Op.Start.
func (r *Recorder) Now() int64 { return int64(time.Since(r.began)) }

// Add notes an operation that ends now.
func (r *Recorder) Add(op Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	op.End = r.Now()
	r.ops = append(r.ops, op)
	if r.out != nil && r.err == nil {
		r.err = r.out.Encode(op)
	}
}

// History returns what was noted so far, and the first error of writing it.
func (r *Recorder) History() ([]Op, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ops[:len(r.ops):len(r.ops)], r.err
}

// ReadHistory reads what a Recorder wrote.
func ReadHistory(in io.Reader) ([]Op, error) {
	var ops []Op
	dec := json.NewDecoder(bufio.NewReader(in))
	for {
		var op Op
		if err := dec.Decode(&op); err == io.EOF {
			return ops, nil
		} else if err != nil {
			return ops, fmt.Errorf("operation %d of the history: %w", len(ops), err)
		}
		ops = append(ops, op)
	}
}
