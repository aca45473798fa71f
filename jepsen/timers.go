package jepsen

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/message"
)

// The workload of timers, on a topic of its own: each sender sends messages with a time, by a delay, by a level or by the time itself, and
// recalls some, at once or at the moment when they are due. A consumer group gets what fires.
const (
	timerSenders = 2
	timerPause   = 30 * time.Millisecond
	shortDelay   = 300 * time.Millisecond
	longDelay    = 10 * time.Second
	// calmDelay is the longest one when the faults are over, which everybody waits for.
	calmDelay = 800 * time.Millisecond
	// recallSlack is how long before its time a message may be refused to be recalled, because it is on its way.
	recallSlack = 500 * time.Millisecond
)

// Wait is how a message with a time says it.
type Wait struct {
	Delay time.Duration
	Level int       // that has this delay; 0: it says it otherwise
	At    time.Time // now and Delay; zero: it says the delay
}

// levels are the delay levels that the workload uses.
var levels = [...]time.Duration{1: time.Second, 2: 5 * time.Second, 3: 10 * time.Second}

// Properties are the properties of a message that say it.
func (w Wait) Properties() map[string]string {
	switch {
	case w.Level > 0:
		return map[string]string{message.KeyDelayLevel: strconv.Itoa(w.Level)}
	case !w.At.IsZero():
		return map[string]string{message.KeyTimerDeliverMs: strconv.FormatInt(w.At.UnixMilli(), 10)}
	}
	return map[string]string{message.KeyTimerDelayMs: strconv.FormatInt(w.Delay.Milliseconds(), 10)}
}

// Delayer is a session that can send messages with a time.
type Delayer interface {
	// SendLater sends a value. handle is nil when the message cannot be recalled. The outcome is never Failed.
	SendLater(ctx context.Context, value string, w Wait) (handle any, outcome Outcome, err error)
}

// Recaller is a Delayer that can take messages back.
type Recaller interface {
	// Recall takes a message back: OK when it will never be delivered, Contrary when it was or will be, else Unknown. It may run beside others.
	Recall(ctx context.Context, handle any) (Outcome, error)
}

func (s *ownSession) SendLater(ctx context.Context, value string, w Wait) (any, Outcome, error) {
	r, err := s.p.Send(ctx, client.Message{Topic: s.topic, Body: []byte(value), Properties: w.Properties()})
	switch {
	case err == nil && r.RecallHandle == "":
		return nil, OK, nil
	case err == nil:
		return r, OK, nil
	case errors.Is(err, client.ErrNotStored):
		return nil, NotStored, err
	}
	return nil, Unknown, err
}

func (s *ownSession) Recall(ctx context.Context, handle any) (Outcome, error) {
	err := s.p.Recall(ctx, s.topic, handle.(client.Receipt))
	switch {
	case err == nil:
		return OK, nil
	case errors.Is(err, client.ErrTooLate):
		return Contrary, err
	}
	return Unknown, err
}

// delay sends messages with a time until ctx ends. Until calm their times are up to longDelay away.
func (w *worker) delay(ctx context.Context, calm time.Time, seed uint64) {
	d := w.session.(Delayer)
	r := rand.New(rand.NewPCG(seed, 1))
	var recalls sync.WaitGroup
	defer recalls.Wait()
	for i := 0; ctx.Err() == nil; i++ {
		wait := drawWait(r, i, max(calmDelay, min(longDelay, time.Until(calm))))
		op := Op{Kind: Later, Client: w.name, Topic: w.topic, Value: fmt.Sprintf("%s/%d", w.name, i), Start: w.rec.Now(), Delay: wait.Delay.Milliseconds()}
		now := time.Now()
		op.Due = now.UnixMilli() + op.Delay
		if i%4 == 1 && wait.Level == 0 {
			wait.At = time.UnixMilli(op.Due)
		}
		limit, cancel := context.WithTimeout(context.Background(), sendLimit)
		handle, outcome, err := d.SendLater(limit, op.Value, wait)
		cancel()
		if op.Outcome = outcome; err != nil {
			op.Error = err.Error()
		}
		w.rec.Add(op)
		if outcome == OK {
			w.succeed()
			recaller, can := w.session.(Recaller)
			switch {
			case handle == nil || !can:
				w.tally.sent(op.Value)
			case i%8 == 2: // and once more, which changes nothing
				w.recall(recaller, op.Value, handle)
				w.recall(recaller, op.Value, handle)
			case i%8 == 6 && wait.Delay < 2*time.Second:
				recalls.Go(func() {
					pause(ctx, time.Until(now.Add(wait.Delay+time.Duration(i%13-6)*time.Millisecond)))
					w.recall(recaller, op.Value, handle)
				})
			default:
				w.tally.sent(op.Value)
			}
		}
		pause(ctx, timerPause)
	}
}

// drawWait draws the time of message i.
func drawWait(r *rand.Rand, i int, longest time.Duration) Wait {
	if level := 1 + r.IntN(len(levels)-1); i%8 == 0 && levels[level] <= longest {
		return Wait{Delay: levels[level], Level: level}
	}
	if i%2 == 0 { // as many are due soon as in all the time after
		longest = min(longest, 2*time.Second)
	}
	return Wait{Delay: between(r, shortDelay, longest).Truncate(time.Millisecond)}
}

func (w *worker) recall(r Recaller, value string, handle any) {
	op := Op{Kind: Recall, Client: w.name, Topic: w.topic, Value: value, Start: w.rec.Now()}
	limit, cancel := context.WithTimeout(context.Background(), sendLimit)
	outcome, err := r.Recall(limit, handle)
	cancel()
	if op.Outcome = outcome; err != nil {
		op.Error = err.Error()
	}
	w.rec.Add(op)
}

// beginTimers makes the topic and the workers of timers of a driver that has them.
func (r *run) beginTimers(ctx context.Context, d Driver, senders, readers *crew) error {
	topic := "timer-" + d.Name()
	if _, err := r.cl.CreateTopic(ctx, client.TopicSpec{Name: topic, ReadQueues: topicQueues}); err != nil {
		return err
	}
	r.topics = append(r.topics, topic)
	calm, t := time.Now().Add(r.o.Duration), newTally()
	for i := range timerSenders + 1 {
		s, err := d.Open(ctx, r.c.Namesrv(), topic, "readers-"+topic)
		if err != nil {
			return err
		}
		w := &worker{rec: r.rec, session: s, name: fmt.Sprintf("%s/send%d", topic, i), topic: topic, tally: t}
		r.workers = append(r.workers, w)
		if i < timerSenders {
			senders.add(func(ctx context.Context) { w.delay(ctx, calm, r.o.Seed<<8|uint64(i)) })
			continue
		}
		w.name = topic + "/consume"
		r.consumed, r.tallies = append(r.consumed, topic), append(r.tallies, t)
		readers.add(w.consume)
	}
	return nil
}

// awaitTimers waits until no message waits for its time.
func (r *run) awaitTimers(ctx context.Context) error {
	var last error
	err := Await(ctx, "the last timer", func() (bool, error) {
		all, err := r.cl.Timers(ctx, []string{Group})
		if err == nil && all[0].Pending > 0 {
			err = fmt.Errorf("%+v", all[0])
		}
		last = err
		return err == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// timed is what a history tells of a message with a time.
type timed struct {
	sent        *Op
	back, maybe *Op   // recalls that were OK, that had no answer
	tooLate     *Op   // the first recall that came too late
	stored, got int64 // the earliest ones; 0: none
	consumer    string
}

// judgeTimers demands of each message with a time that it is in a queue once when nobody recalled it, never when somebody did, and that it
// was neither stored nor given to anybody before its time.
func (j *judge) judgeTimers(history []Op) {
	all := map[string]*timed{}
	for i := range history {
		if op := &history[i]; op.Kind == Later {
			all[op.Value] = &timed{sent: op}
		}
	}
	for i := range history {
		op := &history[i]
		switch op.Kind {
		case Recall:
			j.noteRecall(all[op.Value], op)
		case Final, Poll, Consume:
			for _, r := range op.Reads {
				if t := all[r.Value]; t != nil {
					t.see(op, r)
				}
			}
		}
	}
	for _, value := range slices.Sorted(maps.Keys(all)) {
		j.judgeTimer(value, all[value])
	}
}

func (j *judge) noteRecall(t *timed, op *Op) {
	switch {
	case t == nil:
		j.bad(Phantom, "%s was recalled, and sent by nobody", op.Value)
	case op.Outcome == OK && t.back == nil:
		t.back = op
	case op.Outcome == Unknown && t.maybe == nil:
		t.maybe = op
	case op.Outcome == Contrary && t.tooLate == nil:
		t.tooLate = op
	}
}

func (t *timed) see(op *Op, r Read) {
	if r.Stored > 0 && (t.stored == 0 || r.Stored < t.stored) {
		t.stored = r.Stored
	}
	if r.Got > 0 && (t.got == 0 || r.Got < t.got) {
		t.got, t.consumer = r.Got, op.Client
	}
}

func (j *judge) judgeTimer(value string, t *timed) {
	places, op := j.final[value], t.sent
	switch {
	case t.back != nil && len(places) > 0:
		j.bad(Recalled, "%s was recalled after %s, and lies at %v", value, seconds(t.back.End), places)
	case op.Outcome == OK && t.back == nil && t.maybe == nil && len(places) == 0:
		j.bad(Lost, "%s was answered OK after %s, to be delivered %d ms later, and is nowhere", value, seconds(op.End), op.Delay)
	}
	// A recall before it may be why it does not wait any more.
	first := t.tooLate
	if first != nil && (t.back == nil || t.back.Start > first.End) && (t.maybe == nil || t.maybe.Start > first.End) {
		if left := op.Start + op.Delay*int64(time.Millisecond) - first.End; left > int64(recallSlack) {
			j.bad(Unrecalled, "a recall of %s was told to be too late %s before its time", value, seconds(left))
		}
	}
	if t.stored > 0 && t.stored < op.Due {
		j.bad(Early, "%s was stored %d ms before its time", value, op.Due-t.stored)
	}
	if t.got > 0 && t.got < op.Due {
		j.bad(Early, "%s came to %s %d ms before its time", value, t.consumer, op.Due-t.got)
	}
}
