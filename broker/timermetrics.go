package broker

import (
	"math"
	"strings"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
	"github.com/ledgermq/ledgermq/timer"
)

const (
	// maxTimersCounted bounds what one request reads: each timer's topic is in its message.
	maxTimersCounted = 100_000
	countTimersStep  = 4096
)

type timerMetricJSON struct {
	Count int64 `json:"count"`
	Time  int64 `json:"timeStamp"` // when the newest of them was stored
}

// timerMetrics takes GET_TIMER_METRICS (61): how many messages with a time wait for each topic. Those of a delay level do not count.
func (r *Replica) timerMetrics(*remoting.Command) (*remoting.Command, error) {
	if n, _, _ := r.st.TimersPending(); n > maxTimersCounted {
		return nil, refuse(remoting.SystemBusy, "%d timers wait in group %s, and at most %d are counted by topic: `ledgermq admin timer` has the sum", n, r.group, maxTimersCounted)
	}
	topics := map[string]timerMetricJSON{}
	var buf []byte
	for b := r.st.TimerBounds(); ; {
		var list []timer.Entry
		err := r.readTimers(func(x *timer.Index) (err error) {
			list, err = x.Scan(b, math.MaxInt64, countTimersStep)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			if buf, err = r.countTimer(e, topics, buf); err != nil {
				return nil, err
			}
			b.After = e.Pos
		}
		if len(list) < countTimersStep {
			break
		}
		if err := r.ctx.Err(); err != nil {
			return nil, err
		}
	}
	return jsonAnswer(struct {
		Version dataVersionJSON            `json:"dataVersion"`
		Topics  map[string]timerMetricJSON `json:"timingCount"`
	}{r.dataVersion(r.st.TopicVersion()), topics})
}

func (r *Replica) countTimer(e timer.Entry, topics map[string]timerMetricJSON, buf []byte) ([]byte, error) {
	if r.st.TimerRecalled(e.Pos) {
		return buf, nil
	}
	raw, err := r.readTimer(e, buf)
	if err != nil {
		if !r.st.TimerBounds().Alive(e.Pos) {
			return buf, nil // it was delivered or rolled meanwhile
		}
		return buf, err
	}
	rec, _, err := message.Decode(raw[state.TimerPrefixSize:])
	if err != nil {
		return raw, err
	}
	if rec.Topic == message.TimerTopic {
		topic := strings.Clone(propertyOr(rec.Properties, message.KeyRealTopic, "")) // the buffer is used again
		m := topics[topic]
		topics[topic] = timerMetricJSON{m.Count + 1, max(m.Time, rec.StoreTime)}
	}
	return raw, nil
}
