package broker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// statistics count what goes through a replica, by topic and by consumer group: since when its process began, and over the last minute,
// hour and day. Puts are counted by every replica as they are applied, so a new master's figures are those of the old one; what is read
// is counted by the replica that was read from. They are figures for operators and live in memory only.
//
// Counting a message is two atomic additions: the loop keeps the tallies of topics in a map of its own, and a pull looks its tally up
// once. Samples are taken every sampleEvery by housekeeping.
//
// Bound: maxTallies things are counted apart, about 0.7 KiB each. More are counted in the totals only, and lost tells how often that
// was. What did not change for a day is forgotten, and what belongs to a deleted topic or group at once.
type statistics struct {
	began time.Time
	lost  atomic.Int64

	puts map[ids.TopicID]*tally // of the loop

	mu      sync.RWMutex
	tallies map[tallyKey]*tally
	clock   sampleClock
	totals  totalSamples
}

const (
	sampleEvery = 10 * time.Second
	maxTallies  = 20_000

	minuteSamples = 7  // one each tick: what is between the first and now is a minute
	hourSamples   = 7  // one each 60 ticks
	daySamples    = 25 // one each 360 ticks
	hourTicks     = 60
	dayTicks      = 360
)

// tallyKind says what is counted.
type tallyKind uint8

const (
	tallyPut tallyKind = iota // messages of a topic that were applied
	tallyGet                  // messages of a topic that a group was given
)

type tallyKey struct {
	kind  tallyKind
	topic ids.TopicID
	group string // "" for tallyPut
}

// What a replica does in all is kept under these: no topic has id 0.
var allPuts, allGets = tallyKey{kind: tallyPut}, tallyKey{kind: tallyGet}

// tally counts one thing.
type tally struct {
	name         string // of the topic
	count, bytes atomic.Int64
	given        givenQueues // of tallyGet

	// Under statistics.mu.
	born   int64 // tick before which nothing was counted
	bornAt time.Time
	minute [minuteSamples]sample
	hour   [hourSamples]sample
	day    [daySamples]sample
}

type sample struct{ count, bytes int64 }

// sampleClock tells when the samples of all tallies were taken: that of tick t lies at t modulo the length of its ring.
type sampleClock struct {
	ticks  int64
	minute [minuteSamples]time.Time
	hour   [hourSamples]time.Time
	day    [daySamples]time.Time
}

func (s *statistics) open(now time.Time) {
	s.began, s.puts, s.tallies = now, map[ids.TopicID]*tally{}, map[tallyKey]*tally{}
	s.clock.minute[0], s.clock.hour[0], s.clock.day[0] = now, now, now
	s.tallies[allPuts], s.tallies[allGets] = &tally{bornAt: now}, &tally{bornAt: now}
	s.totals.open(now)
}

// put counts a message that was applied, and tells whether its topic is known. It belongs to the loop.
func (s *statistics) put(topic ids.TopicID, size uint32) (known bool) {
	t, known := s.puts[topic]
	if t != nil { // else there are too many
		t.count.Add(1)
		t.bytes.Add(int64(size))
	}
	return known
}

// begin makes a topic known.
func (s *statistics) begin(topic ids.TopicID, name string, now time.Time) {
	s.puts[topic] = s.of(tallyKey{kind: tallyPut, topic: topic}, name, now)
}

// add counts n messages of a group, and returns the tally; nil when there are too many. The group's name may lie in a request.
func (s *statistics) add(kind tallyKind, group string, topic ids.TopicID, name string, n, bytes int, now time.Time) *tally {
	k := tallyKey{kind, topic, group}
	s.mu.RLock()
	t := s.tallies[k]
	s.mu.RUnlock()
	if t == nil {
		k.group = string([]byte(group))
		if t = s.of(k, name, now); t == nil {
			return nil
		}
	}
	t.count.Add(int64(n))
	t.bytes.Add(int64(bytes))
	return t
}

// of returns the tally of a thing, and makes it; nil when there are too many.
func (s *statistics) of(k tallyKey, name string, now time.Time) *tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tallies[k]; t != nil {
		return t
	}
	if len(s.tallies) >= maxTallies {
		s.lost.Add(1)
		return nil
	}
	t := &tally{name: string([]byte(name)), born: s.clock.ticks, bornAt: now}
	s.tallies[k] = t
	return t
}

// forgetTopic drops what was counted of a deleted topic. It belongs to the loop.
func (s *statistics) forgetTopic(topic ids.TopicID) {
	delete(s.puts, topic)
	s.forget(func(k tallyKey) bool { return k.topic == topic })
}

func (s *statistics) forgetGroup(group string) {
	s.forget(func(k tallyKey) bool { return k.group == group && k.kind != tallyPut })
}

func (s *statistics) forget(is func(tallyKey) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.tallies {
		if is(k) {
			delete(s.tallies, k)
		}
	}
}

// due tells whether the next sample is to be taken.
func (s *statistics) due(now time.Time) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	c := &s.clock
	return now.Sub(c.minute[c.ticks%minuteSamples]) >= sampleEvery
}

// tick samples everything. now is the wall clock's.
func (s *statistics) tick(now time.Time, totals totalSample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.clock
	c.ticks++
	hour, day := c.ticks%hourTicks == 0, c.ticks%dayTicks == 0
	c.minute[c.ticks%minuteSamples] = now
	if hour {
		c.hour[c.ticks/hourTicks%hourSamples] = now
	}
	if day {
		c.day[c.ticks/dayTicks%daySamples] = now
	}
	s.tallies[allPuts].set(totals.put, totals.putBytes)
	s.tallies[allGets].set(totals.get, totals.getBytes)
	for k, t := range s.tallies {
		at := sample{t.count.Load(), t.bytes.Load()}
		t.minute[c.ticks%minuteSamples] = at
		if hour {
			t.hour[c.ticks/hourTicks%hourSamples] = at
		}
		if day {
			i := c.ticks / dayTicks % daySamples
			idle := t.day[(i+1)%daySamples] == at && c.ticks-t.born > daySamples*dayTicks
			t.day[i] = at
			if idle && k.kind != tallyPut && k != allGets { // the loop holds those of topics, which end with their topics
				delete(s.tallies, k)
			}
		}
	}
	s.totals.tick(now, totals)
}

// span is what was counted in a while.
type span struct {
	count, bytes int64
	over         time.Duration
}

func (t *tally) set(count, bytes int64) {
	t.count.Store(count)
	t.bytes.Store(bytes)
}

// spans are what a tally counted within the last minute, hour and day, or since it began when that is less.
func (s *statistics) spans(t *tally, now time.Time) (minute, hour, day span) {
	c := &s.clock
	at := sample{t.count.Load(), t.bytes.Load()}
	since := func(ring []sample, times []time.Time, ticks int64) span {
		n := int64(len(ring))
		oldest := max(0, c.ticks/ticks-n+1) // of the samples that the ring has
		if oldest*ticks <= t.born {
			return span{at.count, at.bytes, now.Sub(t.bornAt)}
		}
		i := oldest % n
		return span{at.count - ring[i].count, at.bytes - ring[i].bytes, now.Sub(times[i])}
	}
	return since(t.minute[:], c.minute[:], 1), since(t.hour[:], c.hour[:], hourTicks), since(t.day[:], c.day[:], dayTicks)
}

// find calls f with the spans of a tally, under the lock; false when there is none.
func (s *statistics) find(k tallyKey, now time.Time) (minute, hour, day span, found bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := s.tallies[k]
	if t == nil {
		return minute, hour, day, false
	}
	minute, hour, day = s.spans(t, now)
	return minute, hour, day, true
}

// totalSample is what a replica has done in all.
type totalSample struct {
	put, putBytes, get, getBytes, found, missed int64
}

// totalSamples are the last ten minutes of it, and the figures of this morning and of yesterday's.
type totalSamples struct {
	ring  [61]totalSample
	times [61]time.Time
	at    int

	day                    int // of the month, of the last sample
	putYesterday, putToday int64
	getYesterday, getToday int64
}

func (t *totalSamples) open(now time.Time) {
	t.times[0], t.day = now, now.Day()
}

func (t *totalSamples) tick(now time.Time, s totalSample) {
	t.at = (t.at + 1) % len(t.ring)
	t.ring[t.at], t.times[t.at] = s, now
	if d := now.Day(); d != t.day {
		t.day = d
		t.putYesterday, t.getYesterday = t.putToday, t.getToday
		t.putToday, t.getToday = s.put, s.get
	}
}

// rate is how many a second there were of what of picks, over a while of about the given length, at most since the process began.
func (t *totalSamples) rate(now time.Time, s totalSample, over time.Duration, of func(totalSample) int64) float64 {
	then, at := t.before(now, over)
	if at.IsZero() || !now.After(at) {
		return 0
	}
	return float64(of(s)-of(then)) / now.Sub(at).Seconds()
}

// before is the newest sample that is at least so old, or the oldest one that there is.
func (t *totalSamples) before(now time.Time, over time.Duration) (s totalSample, at time.Time) {
	for i := range t.ring {
		j := (t.at - i + len(t.ring)) % len(t.ring)
		if t.times[j].IsZero() {
			break
		}
		s, at = t.ring[j], t.times[j]
		if now.Sub(at) >= over {
			break
		}
	}
	return s, at
}
