package broker

import (
	"errors"
	"math"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
	"github.com/ledgermq/ledgermq/timer"
)

// timersView is the answer to SHOW_TIMERS.
type timersView struct {
	Pending  uint64 `json:"pending"`
	Bytes    uint64 `json:"bytes"`             // of their records
	Recalled int    `json:"recalled"`          // whose time has not come: the state names them until then
	Next     int64  `json:"nextMs,omitempty"`  // when the next one is due, ms since 1970; absent when none is pending
	Fired    int64  `json:"firedToMs"`         // all that were due up to then have been delivered; 0: none yet
	Index    string `json:"index"`             // "whole", or "rebuilding": then nothing is delivered
	Dropped  int64  `json:"droppedSinceStart"` // by this master, because their topics were gone

	Waiting []waitingView `json:"waiting,omitempty"` // with the unique key that was asked for
}

// waitingView is a message that waits for its time.
type waitingView struct {
	Topic      string             `json:"topic"` // that it is for
	Queue      ids.QueueID        `json:"queue"`
	Offset     ids.PhysicalOffset `json:"offset"`
	Due        int64              `json:"dueMs"`
	Stored     int64              `json:"storedMs"`
	Reconsumed int32              `json:"reconsumeTimes"`
}

const (
	maxWaiting  = 64      // in one answer
	waitingPage = 1 << 16 // timers that are looked at at once
)

// showTimers takes SHOW_TIMERS (31022), our own: how many delayed messages wait, and for when; with a `uniqueKey` also which of them have it.
func (r *Replica) showTimers(req *remoting.Command) (*remoting.Command, error) {
	cursor, _ := r.st.TimerMarks()
	v := timersView{Fired: cursor.Due, Index: "whole", Dropped: r.counters.timersDropped.Load()}
	v.Pending, v.Bytes, v.Recalled = r.st.TimersPending()
	if r.timers.whole.Load() {
		v.Next, _ = r.nextTimer()
	} else {
		v.Index = "rebuilding"
	}
	if unique := req.GetOr("uniqueKey", ""); unique != "" {
		var err error
		if v.Waiting, err = r.waiting(unique); err != nil {
			return nil, err
		}
	}
	return jsonAnswer(v)
}

// waiting finds the messages with a unique key that wait for their time. It looks at all that wait: there is no index of their keys alone.
func (r *Replica) waiting(unique string) (list []waitingView, err error) {
	ctx, cancel := r.requestContext()
	defer cancel()
	b, key := r.st.TimerBounds(), state.TimerKey(unique)
	var buf []byte
	for len(list) < maxWaiting {
		var page []timer.Entry
		err := r.readTimers(func(x *timer.Index) (err error) {
			page, err = x.Scan(b, math.MaxInt64, waitingPage)
			return err
		})
		if err != nil {
			return nil, err
		}
		if len(page) == 0 {
			return list, nil
		}
		if ctx.Err() != nil {
			return nil, refuse(remoting.SystemBusy, "so many messages wait that they cannot be looked through in time")
		}
		for _, e := range page {
			if e.Key != key || r.st.TimerRecalled(e.Pos) || len(list) == maxWaiting {
				continue
			}
			if buf, err = r.readTimer(e, buf); errors.Is(err, commitlog.ErrCompacted) {
				continue // it was appended again meanwhile
			} else if err != nil {
				return nil, err
			}
			rec, _, err := message.Decode(buf[state.TimerPrefixSize:])
			if err != nil {
				return nil, err
			}
			if at := e.Due; propertyOr(rec.Properties, message.KeyUniqueKey, "") == unique && unpark(&rec, 0) {
				list = append(list, waitingView{rec.Topic, rec.QueueID, e.Offset, at, rec.StoreTime, rec.ReconsumeTimes})
			}
		}
		b.After = page[len(page)-1].Pos
	}
	return list, nil
}
