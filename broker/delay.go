package broker

import (
	"strconv"
	"strings"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// delayLevels are RocketMQ's, from level 1 on.
var delayLevels = [...]time.Duration{time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute,
	3 * time.Minute, 4 * time.Minute, 5 * time.Minute, 6 * time.Minute, 7 * time.Minute, 8 * time.Minute, 9 * time.Minute, 10 * time.Minute,
	20 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour}

// later tells when a message is to be delivered, and which kind of delayed message it is. The zero value: at once.
type later struct {
	due   int64 // milliseconds since 1970
	level int   // 0: a time was given
}

// afterLevel is the delay of a level from now on. A level above the last one counts as that.
func (r *Replica) afterLevel(level int) later {
	level = min(level, len(delayLevels))
	if level <= 0 {
		return later{}
	}
	return later{r.now().Add(delayLevels[level-1]).UnixMilli(), level}
}

// delays are the properties that delay a message, as they came.
type delays struct {
	level, deliverMs, delayMs, delaySec string
	set                                 bool // TIMER_OUT_MS is there: it was a timer once, and is none again
}

func (d *delays) any() bool {
	return d.level != "" || d.deliverMs != "" || d.delayMs != "" || d.delaySec != ""
}

// laterOf tells when a client wants its message to be delivered: by the level, or else by the time. A time that is past is now.
func (r *Replica) laterOf(d *delays) (later, error) {
	bad := func(key, value, why string) error {
		return refuse(remoting.MessageIllegal, "[NOT_STORED] property %s=%s: %s", key, strconv.Quote(value), why)
	}
	if d.level != "" {
		n, err := strconv.ParseInt(d.level, 10, 32)
		if err != nil || n < 0 {
			return later{}, bad(message.KeyDelayLevel, d.level, "a delay level is a number from 1 to 18, or 0 for none")
		}
		if n > 0 {
			return r.afterLevel(int(min(n, int64(len(delayLevels))))), nil
		}
	}
	if d.set {
		return later{}, nil
	}
	now := r.now().UnixMilli()
	most := int64(r.node.o.TimerMaxDelay / time.Millisecond)
	var due int64
	for _, p := range [3]struct {
		key, value string
		unit       int64 // 0: a time, not a delay
	}{{message.KeyTimerDelaySec, d.delaySec, 1000}, {message.KeyTimerDelayMs, d.delayMs, 1}, {message.KeyTimerDeliverMs, d.deliverMs, 0}} {
		if p.value == "" {
			continue
		}
		n, err := strconv.ParseInt(p.value, 10, 64)
		switch {
		case err != nil || n < 0:
			return later{}, bad(p.key, p.value, "it must be a number of 64 bits that is not negative")
		case p.unit == 0:
			due = n
		case n > most/p.unit:
			return later{}, bad(p.key, p.value, r.tooLate())
		default:
			due = now + n*p.unit
		}
		if due-now > most {
			return later{}, bad(p.key, p.value, r.tooLate())
		}
		break
	}
	if due <= now {
		return later{}, nil
	}
	return later{due: due}, nil
}

func (r *Replica) tooLate() string {
	return "it is further away than the limit of " + r.node.o.TimerMaxDelay.String() + " (--timer-max-delay)"
}

// delayed decides about the delay of a message: what its proposer wants, or else its properties.
func (r *Replica) delayed(wanted later, c *checked, retry bool) (later, error) {
	if wanted.due != 0 || !c.delays.any() {
		return wanted, r.mayDelay(wanted)
	}
	l, err := r.laterOf(&c.delays)
	if err != nil {
		return l, err
	}
	if err := r.mayDelay(l); err != nil {
		if retry { // so it was before there were delays
			return later{}, nil
		}
		return l, err
	}
	return l, nil
}

func (r *Replica) mayDelay(l later) error {
	if l.due == 0 {
		return nil
	}
	return r.needLevel(remoting.MessageIllegal, "[NOT_STORED] delayed messages need")
}

// park makes a message one that waits: of RocketMQ's system topic for it, with its real topic and queue in properties.
func park(rec *message.Record, l later) {
	props := message.SetProperty(rec.Properties, message.KeyRealTopic, rec.Topic)
	props = message.SetProperty(props, message.KeyRealQueueID, strconv.Itoa(int(rec.QueueID)))
	if l.level > 0 {
		for _, k := range [3]string{message.KeyTimerDeliverMs, message.KeyTimerDelayMs, message.KeyTimerDelaySec} {
			props = message.DeleteProperty(props, k)
		}
		props = message.SetProperty(props, message.KeyDelayLevel, strconv.Itoa(l.level))
		rec.Topic, rec.QueueID = message.ScheduleTopic, ids.QueueID(l.level-1)
	} else {
		props = message.SetProperty(props, message.KeyTimerOutMs, strconv.FormatInt(l.due, 10))
		rec.Topic, rec.QueueID = message.TimerTopic, 0
	}
	rec.Properties = props
}

// unpark is the reverse of park: the message that is delivered. It keeps the properties, as RocketMQ's does, and those with a time get
// two more. It returns false when the record does not name its real place.
func unpark(rec *message.Record, now int64) bool {
	topic, named := message.Property(rec.Properties, message.KeyRealTopic)
	q, err := strconv.ParseInt(propertyOr(rec.Properties, message.KeyRealQueueID, ""), 10, 32)
	if !named || err != nil || q < 0 {
		return false
	}
	if rec.Topic == message.TimerTopic {
		props := message.SetProperty(rec.Properties, message.KeyTimerEnqueueMs, strconv.FormatInt(rec.StoreTime, 10))
		if props = message.SetProperty(props, message.KeyTimerDequeueMs, strconv.FormatInt(now, 10)); len(props) <= message.MaxProperties {
			rec.Properties = props
		}
	}
	rec.Topic, rec.QueueID = topic, ids.QueueID(q)
	return true
}

func propertyOr(props, key, or string) string {
	if v, ok := message.Property(props, key); ok {
		return v
	}
	return or
}

// livingQueue is the queue of a topic that a message for queue q goes to: that one, or, when the topic has fewer by now, another one.
func livingQueue(t *state.Topic, q ids.QueueID) ids.QueueID {
	n := ids.QueueID(max(t.ReadQueues, t.WriteQueues))
	if q < n {
		return q
	}
	if w := ids.QueueID(min(t.ReadQueues, t.WriteQueues)); w > 0 {
		n = w
	}
	return q % max(n, 1)
}

// recallHandle is what a producer may take its message back with: base64 of RocketMQ's five words. Messages for retry topics have none,
// nor have those with a level.
func (r *Replica) recallHandle(dst []byte, topic, unique string, l later) []byte {
	if l.level > 0 || l.due == 0 || message.IsRetryTopic(topic) {
		return dst
	}
	words := strings.Join([]string{handleVersion, topic, r.group, strconv.FormatInt(l.due+1, 10), unique}, " ")
	return handleEncoding.AppendEncode(dst, []byte(words))
}
