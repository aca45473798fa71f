package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/timer"
)

// A timer is a message that waits for its time: a record of its own type that no queue has. What has become of it is not noted at the
// timer. A timer is *pending* when it
//
//  1. comes after the cursor, in the order of due times: all up to the cursor have fired,
//  2. lies at or behind low in the log: all before it were rolled, which is appended once more at the end, before retention gives them up,
//  3. was not recalled.
//
// So the state has two numbers and the set of those recalled that the other two do not cover yet; all else follows from the log.

// TimerPrefixSize is the number of bytes before the RocketMQ record in the body of a timer.
const TimerPrefixSize = 16

// TimerPrefix is what stands before the RocketMQ record of a timer.
type TimerPrefix struct {
	Due int64  // milliseconds since 1970
	Key uint32 // hash of the unique key
}

// TimerKey is the hash of a unique key in a TimerPrefix.
func TimerKey(unique string) uint32 { return crc32.Checksum([]byte(unique), castagnoli) }

// Seal writes the prefix, with a checksum of the whole body, of which the rest is there already.
func (p TimerPrefix) Seal(body []byte) {
	binary.BigEndian.PutUint64(body, uint64(p.Due))
	binary.BigEndian.PutUint32(body[8:], p.Key)
	binary.BigEndian.PutUint32(body[12:], timerSum(body))
}

func timerSum(body []byte) uint32 {
	return crc32.Update(crc32.Checksum(body[:12], castagnoli), castagnoli, body[TimerPrefixSize:])
}

// ParseTimerPrefix reads the prefix of a timer's body.
func ParseTimerPrefix(body []byte) (TimerPrefix, error) {
	if len(body) < TimerPrefixSize {
		return TimerPrefix{}, fmt.Errorf("a timer of %d bytes has no whole prefix", len(body))
	}
	p := TimerPrefix{Due: int64(binary.BigEndian.Uint64(body)), Key: binary.BigEndian.Uint32(body[8:])}
	if p.Due <= 0 {
		return p, fmt.Errorf("a timer due at %d", p.Due)
	}
	return p, nil
}

// CheckTimer is ParseTimerPrefix for bytes that no frame's checksum has vouched for.
func CheckTimer(body []byte) (TimerPrefix, error) {
	p, err := ParseTimerPrefix(body)
	if err == nil && binary.BigEndian.Uint32(body[12:]) != timerSum(body) {
		err = errors.New("a timer's checksum is wrong")
	}
	return p, err
}

// TimerEntry returns the index's entry of a timer's record.
func TimerEntry(r commitlog.Record) (timer.Entry, error) {
	p, err := ParseTimerPrefix(r.Body)
	if err != nil {
		return timer.Entry{}, err
	}
	return timer.Entry{Pos: timer.Pos{Due: p.Due, Offset: r.Offset + TimerPrefixSize}, Size: uint32(len(r.Body) - TimerPrefixSize), Key: p.Key}, nil
}

// TimerFire is the command that moves the cursor. It stands in the frame of the messages that the timers became.
type TimerFire struct {
	From, To timer.Pos   // the cursor before and after
	Count    uint32      // timers that have fired by it, delivered or not
	Bytes    uint64      // of their RocketMQ records
	Recalled []timer.Pos // recalled ones that it passes, ascending
}

// TimerRecall is the command that recalls a timer.
type TimerRecall struct {
	timer.Pos
	Size uint32 // of its RocketMQ record
}

// TimerRoll is the command that moves low. It stands in the frame of the timers that take the places of those before it.
type TimerRoll struct {
	From, To ids.PhysicalOffset // low before and after
	Count    uint32             // timers that were appended again
	Bytes    uint64             // of their RocketMQ records
	Recalled []timer.Pos        // recalled ones that it passes, ascending
}

// TimerCommandSize bounds the body of a TimerFire or TimerRoll with n recalled timers.
func TimerCommandSize(n int) int { return 48 + 16*n }

// Append appends the body of a RecordTimerFire to dst.
func (c *TimerFire) Append(dst []byte) []byte {
	dst = putTimer(putTimer(dst, c.From), c.To)
	return putTimers(put64(put32(dst, c.Count), c.Bytes), c.Recalled)
}

// Append appends the body of a RecordTimerRecall to dst.
func (c *TimerRecall) Append(dst []byte) []byte { return put32(putTimer(dst, c.Pos), c.Size) }

// Append appends the body of a RecordTimerRoll to dst.
func (c *TimerRoll) Append(dst []byte) []byte {
	return putTimers(put64(put32(put64(put64(dst, c.From), c.To), c.Count), c.Bytes), c.Recalled)
}

func putTimer(dst []byte, p timer.Pos) []byte { return put64(put64(dst, p.Due), p.Offset) }

func putTimers(dst []byte, list []timer.Pos) []byte {
	dst = put32(dst, uint32(len(list)))
	for _, p := range list {
		dst = putTimer(dst, p)
	}
	return dst
}

func (d *decoder) timer() timer.Pos {
	p := timer.Pos{Due: int64(d.u64()), Offset: ids.PhysicalOffset(d.u64())}
	if p.Due < 0 || p.Offset < 0 {
		d.fail(fmt.Errorf("a timer due at %d, at %d", p.Due, p.Offset))
	}
	return p
}

func (d *decoder) timers() []timer.Pos {
	var list []timer.Pos
	for i := range d.count(16) {
		p := d.timer()
		if i > 0 {
			d.ascending(false, list[i-1].Compare(p))
		}
		list = append(list, p)
	}
	return list
}

func (d *decoder) timerFire() TimerFire {
	c := TimerFire{From: d.timer(), To: d.timer(), Count: d.u32(), Bytes: d.u64(), Recalled: d.timers()}
	if d.err == nil && c.From.Compare(c.To) >= 0 {
		d.fail(errors.New("the cursor does not move on"))
	}
	return c
}

func (d *decoder) timerRoll() TimerRoll {
	c := TimerRoll{From: ids.PhysicalOffset(d.u64()), To: ids.PhysicalOffset(d.u64()), Count: d.u32(), Bytes: d.u64(), Recalled: d.timers()}
	if d.err == nil && (c.From < 0 || c.From >= c.To) {
		d.fail(errors.New("the lower bound does not move on"))
	}
	return c
}

// timers is the part of the state that tells which timers are pending.
type timers struct {
	cursor   timer.Pos
	low      ids.PhysicalOffset
	pending  uint64
	bytes    uint64
	recalled shards[timer.Pos, struct{}]
}

func newTimers() timers {
	return timers{recalled: newShards[timer.Pos, struct{}](256, func(p timer.Pos) uint32 { return mix(uint64(p.Offset)) })}
}

func (t *timers) clone() timers {
	c := *t
	c.recalled = t.recalled.clone()
	return c
}

// used tells whether the group ever had a timer.
func (t *timers) used() bool {
	return t.pending|t.bytes != 0 || t.cursor != timer.Pos{} || t.low != 0 || t.recalled.count > 0
}

func (t *timers) less(count, bytes uint64) {
	t.pending -= min(t.pending, count)
	t.bytes -= min(t.bytes, bytes)
}

// MaxRecalled bounds the recalled timers that the cursor has not passed: each takes some 30 bytes of memory.
const MaxRecalled = 1 << 20

// TimerError is a record that does not follow from those before it: the master that formed it did not know them.
type TimerError struct {
	Offset ids.PhysicalOffset
	Reason string
}

func (e *TimerError) Error() string {
	return fmt.Sprintf("state: the record at %d does not follow from the timers before it: %s", e.Offset, e.Reason)
}

func (s *State) applyTimer(frameTime int64, r commitlog.Record) (Effect, error) {
	e, err := TimerEntry(r)
	if err != nil {
		return Effect{}, &CommandError{Type: r.Type, Offset: r.Offset, Err: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Compare(s.timers.cursor) <= 0 {
		return Effect{}, &TimerError{r.Offset, fmt.Sprintf("it is due at %d, all up to %d have fired", e.Due, s.timers.cursor.Due)}
	}
	s.advance(frameTime)
	s.timers.pending++
	s.timers.bytes += uint64(e.Size)
	return Effect{Kind: EffectTimer, Timer: e}, nil
}

func (s *State) applyTimerFire(off ids.PhysicalOffset, c TimerFire) (Effect, error) {
	t := &s.timers
	if c.From != t.cursor {
		return Effect{}, &TimerError{off, fmt.Sprintf("it moves the cursor on from %v, which is at %v", c.From, t.cursor)}
	}
	t.cursor = c.To
	t.less(uint64(c.Count), c.Bytes)
	s.forget(c.Recalled)
	return Effect{Kind: EffectTimersFired, Count: c.Count}, nil
}

func (s *State) applyTimerRoll(off ids.PhysicalOffset, c TimerRoll) (Effect, error) {
	t := &s.timers
	if c.From != t.low {
		return Effect{}, &TimerError{off, fmt.Sprintf("it moves the lower bound on from %d, which is at %d", c.From, t.low)}
	}
	t.low = c.To
	t.less(uint64(c.Count), c.Bytes)
	s.forget(c.Recalled)
	return Effect{Kind: EffectTimersRolled, Count: c.Count}, nil
}

func (s *State) forget(recalled []timer.Pos) {
	for _, p := range recalled {
		s.timers.recalled.del(s.own, p)
	}
}

// applyTimerRecall recalls a timer that its proposer found in the log. It has no effect when that has fired or was rolled meanwhile,
// was recalled before, or when too many are.
func (s *State) applyTimerRecall(c TimerRecall) Effect {
	if _, done := s.timers.recalled.get(c.Pos); done || !s.timerBounds().Alive(c.Pos) || s.timers.recalled.count >= MaxRecalled {
		return Effect{Kind: EffectNone}
	}
	s.timers.recalled.put(s.own, c.Pos, struct{}{})
	s.timers.less(1, uint64(c.Size))
	return Effect{Kind: EffectTimerRecalled}
}

func (s *State) timerBounds() timer.Bounds {
	return timer.Bounds{After: s.timers.cursor, Low: max(s.timers.low, s.cutBase)}
}

// TimerBounds returns what tells pending timers from those that have fired or were rolled.
func (s *State) TimerBounds() timer.Bounds {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.timerBounds()
}

// TimerMarks returns the cursor and the lower bound as the next TimerFire and TimerRoll must name them.
func (s *State) TimerMarks() (cursor timer.Pos, low ids.PhysicalOffset) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.timers.cursor, s.timers.low
}

// TimerRecalled tells whether a timer was recalled; not of one that has fired or was rolled.
func (s *State) TimerRecalled(p timer.Pos) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, ok := s.timers.recalled.get(p)
	return ok
}

// TimersPending returns how many timers are pending, the bytes of their records, and how many recalled ones the state still names.
func (s *State) TimersPending() (count, bytes uint64, recalled int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.timers.pending, s.timers.bytes, s.timers.recalled.count
}

func (s *State) writeTimers(k *sink) {
	t := &s.timers
	k.b = put64(putTimer(k.b, t.cursor), t.low)
	k.b = put64(put64(k.b, t.pending), t.bytes)
	all := make([]timer.Pos, 0, t.recalled.count)
	for p := range t.recalled.all() {
		all = append(all, p)
	}
	slices.SortFunc(all, timer.Pos.Compare)
	k.b = put32(k.b, uint32(len(all)))
	for _, p := range all {
		k.b = putTimer(k.b, p)
		k.full()
	}
}

func (s *State) readTimers(d *decoder) {
	t := &s.timers
	t.cursor, t.low = d.timer(), ids.PhysicalOffset(d.u64())
	t.pending, t.bytes = d.u64(), d.u64()
	if t.low < 0 {
		d.fail(fmt.Errorf("timers are rolled up to %d", t.low))
	}
	for _, p := range d.timers() {
		t.recalled.put(s.own, p, struct{}{})
	}
}
