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
)

// Outcome tells how an Op ended, as its client tells it.
type Outcome string

// The outcomes. Only a send can be NotStored or Unknown.
const (
	OK        Outcome = "ok"
	NotStored Outcome = "not-stored" // it is not in the log and never will be
	Unknown   Outcome = "unknown"    // it may be there, now or later
	Failed    Outcome = "failed"     // a read that gave nothing
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
	Reads   []Read  `json:"reads,omitempty"`
	Error   string  `json:"error,omitempty"`
}

// Read is one message that was read.
type Read struct {
	Queue  int    `json:"queue"`
	Offset int64  `json:"offset"`
	Value  string `json:"value"`
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
