package broker

import (
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/timer"
)

const (
	// fireTimersAtOnce and fireBytes bound a batch; a single message may be larger than the latter.
	fireTimersAtOnce = 1024
	fireBytes        = 256 << 10
	// firesInFlight bounds the batches that are on their way into the log: the next ones are read while these are synced.
	firesInFlight = 4
	// firePause is how long a master that may not write, or whose batch did not get into the log, waits.
	firePause = 50 * time.Millisecond
	// unreadableEvery is how often the log says that timers cannot be read.
	unreadableEvery = time.Minute
	// idlePause is how often one looks without being woken. Nothing depends on it.
	idlePause = time.Second
)

// firing is the state of fireTimers.
type firing struct {
	term     ids.Term
	planned  timer.Pos // end of the batches so far
	sync     bool      // planned must be read from the state
	inFlight int
	done     chan bool // of each batch: did all of it get into the log
	buf      []byte
	told     time.Time // when the log last said that timers cannot be read
}

// fireTimers delivers the timers that are due while this replica is master.
func (r *Replica) fireTimers() {
	f := &firing{done: make(chan bool, firesInFlight)}
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-r.timers.wake:
		case ok := <-f.done:
			f.ended(ok)
		case <-r.ctx.Done():
			return
		}
		for len(f.done) > 0 {
			f.ended(<-f.done)
		}
		t.Reset(r.fire(f))
	}
}

func (f *firing) ended(ok bool) {
	f.inFlight--
	f.sync = f.sync || !ok
}

// fire puts what is due on its way. It returns after how long to look again, unless something happens before.
func (r *Replica) fire(f *firing) time.Duration {
	role := r.role.Load()
	if !r.isMaster() || !r.timers.whole.Load() {
		f.sync = true
		if role.Kind == raftlog.RoleMaster {
			return firePause // it may stay master
		}
		return idlePause
	}
	if role.Term != f.term {
		f.term, f.sync = role.Term, true
	}
	if f.sync {
		if f.inFlight > 0 {
			return firePause
		}
		f.planned, _ = r.st.TimerMarks()
		f.sync = false
	}
	for f.inFlight < firesInFlight {
		b := r.st.TimerBounds()
		if b.After.Compare(f.planned) < 0 {
			b.After = f.planned
		}
		r.timers.wakes.Store(math.MaxInt64)
		var list []timer.Entry
		err := r.readTimers(func(*timer.Index) (err error) {
			list, err = r.timers.due(b, r.now().UnixMilli(), fireTimersAtOnce)
			return err
		})
		if err != nil {
			return firePause
		}
		if len(list) == 0 {
			return r.untilNext(b)
		}
		if r.door() != nil {
			return firePause
		}
		p, err := r.planFire(f, list)
		if err != nil {
			r.unreadable(f, err)
			return firePause
		}
		to := p.to // the loop may set it back
		if !r.propose(p) {
			f.sync = true
			return firePause
		}
		f.planned = to
		f.inFlight++
	}
	return idlePause
}

// unreadable tells, once in a while, that what is due next cannot be read. That is tried all the time.
func (r *Replica) unreadable(f *firing, err error) {
	if now := r.now(); !errors.Is(err, commitlog.ErrCompacted) && now.Sub(f.told) >= unreadableEvery {
		f.told = now
		r.log.Error().Err(err).Msg("timers that are due cannot be read: they are tried again and again")
	}
}

// untilNext returns how long nothing is due.
func (r *Replica) untilNext(b timer.Bounds) time.Duration {
	var next timer.Entry
	var some bool
	err := r.readTimers(func(x *timer.Index) (err error) {
		next, some, err = x.Next(b)
		return err
	})
	switch {
	case err != nil:
		return firePause
	case !some:
		return idlePause
	}
	r.timers.wakes.Store(next.Due)
	wait := time.Duration(next.Due-r.now().UnixMilli()) * time.Millisecond
	return min(max(wait, time.Millisecond), idlePause)
}

// fire is the proposal of a batch: the messages that timers become, and the cursor's move behind them.
type fire struct {
	term     ids.Term
	from, to timer.Pos
	items    []fireItem
	buf      []byte
	at       time.Time
	done     chan<- bool

	formed    int  // records
	cut       bool // the last ones of the plan were left out: they are planned again
	delivered []delivery
	dropped   int
}

// delivery is a message of a batch that is in a frame.
type delivery struct {
	due    int64
	key    index.Key
	offset ids.QueueOffset
}

type fireItem struct {
	timer.Entry
	end      int // of its record in fire.buf
	key      index.Key
	tags     int64
	homeless bool // its topic does not exist any more
	recalled bool
}

// planFire reads a batch.
func (r *Replica) planFire(f *firing, list []timer.Entry) (*fire, error) {
	p := &fire{term: f.term, from: f.planned, at: r.now(), done: f.done}
	now := p.at.UnixMilli()
	dropped := map[string]int{} // by topic
	for _, e := range list {
		if len(p.items) > 0 && len(p.buf)+int(e.Size) > fireBytes {
			break
		}
		it := fireItem{Entry: e}
		if it.recalled = r.st.TimerRecalled(e.Pos); !it.recalled {
			var err error
			if f.buf, err = r.readTimer(e, f.buf); err != nil {
				if len(p.items) == 0 {
					return nil, err
				}
				break // what lies before it can go
			}
			rec, _, err := message.Decode(f.buf[state.TimerPrefixSize:])
			if err != nil || !unpark(&rec, now) {
				it.homeless = true
			} else if t, lives := r.st.Topic(rec.Topic); !lives {
				it.homeless = true
			} else {
				rec.QueueID = livingQueue(&t, rec.QueueID)
				rec.StoreHost = r.storeHost
				it.key = index.Key{Topic: t.ID, Queue: rec.QueueID}
				it.tags = message.TagsCode(propertyOr(rec.Properties, message.KeyTags, ""))
				p.buf = rec.AppendTo(p.buf)
			}
			if it.homeless {
				dropped[strings.Clone(propertyOr(rec.Properties, message.KeyRealTopic, rec.Topic))]++
			}
		}
		it.end = len(p.buf)
		p.items = append(p.items, it)
		p.to = e.Pos
	}
	if len(dropped) > 0 {
		r.log.Warn().Interface("dropped", dropped).Msg("delayed messages are due whose topics do not exist: they are dropped")
	}
	return p, nil
}

func (p *fire) space() int {
	n := recordSpace(state.TimerCommandSize(len(p.items)))
	start := 0
	for i := range p.items {
		n += recordSpace(state.MessagePrefixSize + p.items[i].end - start)
		start = p.items[i].end
	}
	return n
}

func (p *fire) records() int     { return p.formed }
func (p *fire) since() time.Time { return p.at }

func (p *fire) form(r *Replica, b *commitlog.Builder) {
	t := r.timers
	if p.term != b.Term() || p.from != t.cursor {
		return // of an earlier plan
	}
	// The frame has the time at which the loop's turn began. What became due a moment later must not be stored with a time before its own,
	// nor with one that is after the frame's: the store times of a queue do not go back.
	n := 0
	for n < len(p.items) && p.items[n].Due <= b.Time() {
		n++
	}
	if p.cut = n < len(p.items); n == 0 {
		return
	}
	p.items = p.items[:n]
	p.to = p.items[n-1].Pos
	c := state.TimerFire{From: p.from, To: p.to}
	start := 0
	for i := range p.items {
		it := &p.items[i]
		rec := p.buf[start:it.end]
		start = it.end
		if _, now := t.recalled[it.Pos]; now || it.recalled || r.st.TimerRecalled(it.Pos) {
			c.Recalled = append(c.Recalled, it.Pos)
			continue
		}
		if it.Offset < t.low {
			continue // it was appended again: another timer has its place
		}
		c.Count++
		c.Bytes += uint64(it.Size)
		if it.homeless {
			p.dropped++
			continue
		}
		qo := r.nextOffset(it.key, 1)
		r.formMessage(b, it.key, it.tags, qo, rec)
		p.delivered = append(p.delivered, delivery{it.Due, it.key, qo})
		p.formed++
	}
	body, _, ok := b.Reserve(state.RecordTimerFire, state.RecordVersion, 0, len(c.Append(nil)))
	if !ok {
		panic("broker: the frame that admitted a batch of timers has no room for it")
	}
	c.Append(body[:0])
	p.formed++
	t.cursor = p.to
}

func (p *fire) unform(r *Replica) {
	r.timers.cursor = p.from
	for _, d := range slices.Backward(p.delivered) {
		r.overlay[d.key] = d.offset
	}
}

func (p *fire) apply(_ int, e state.Effect) {
	if e.Kind == state.EffectDropped {
		p.dropped++
	}
}

func (p *fire) finish(r *Replica, o outcome) {
	if o == outcomeOK {
		now := r.now().UnixMilli()
		for _, d := range p.delivered {
			r.counters.lateness.Observe(float64(now-d.due) / 1000)
		}
		r.counters.timersDropped.Add(int64(p.dropped))
	}
	p.done <- o == outcomeOK && !p.cut // has room: it is counted
}
