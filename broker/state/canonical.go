package state

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// The canonical form of a state: the same state has the same bytes on every replica, whatever way led to it.
//
//	"LMQT" | version u16 = 1, or 2 when sections follow | 0 u16
//	time i64 | lease term u64 | next topic id u32 | cut base i64 | topic version i64, i64 | group version i64, i64
//	n u32 | topics by id          id u32, high i32, then as in the command
//	n u32 | queues by key         topic u32, queue i32, next i64, min i64
//	n u32 | groups by name        as in the command
//	n u32 | offsets by topic, group   topic u32, group string, n u32, by queue: queue i32, offset i64
//	n u32 | living locks by topic, queue, group   topic u32, queue i32, group string, client string, expires i64
//	sections by number            number u32, then its content
//
// A section is there only when it holds something. So a state without what came with them has the form that older programs know.
const (
	canonicalMagic    = "LMQT"
	canonicalVersion  = 1
	canonicalSections = 2
)

// section is a part of the form that later versions of this program brought. Its number is the type of the first record that fills it.
type section struct {
	number uint32
	empty  func(s *State) bool
	write  func(s *State, k *sink)
	read   func(s *State, d *decoder)
}

// sections are in ascending order of their numbers.
var sections = []section{
	{number: uint32(RecordTimer), empty: func(s *State) bool { return !s.timers.used() }, write: (*State).writeTimers, read: (*State).readTimers},
	{number: uint32(RecordHalf), empty: func(s *State) bool { return s.tx.next == 0 }, write: (*State).writeTransactions, read: (*State).readTransactions},
	{number: uint32(RecordReset), empty: func(s *State) bool { return s.resets.count == 0 }, write: (*State).writeResets, read: (*State).readResets},
	{number: uint32(RecordSettings), empty: func(s *State) bool { return len(s.settings) == 0 }, write: (*State).writeSettings, read: (*State).readSettings},
	{number: uint32(RecordFreeze), empty: func(s *State) bool { return s.freeze == NotFrozen }, write: (*State).writeFreeze, read: (*State).readFreeze},
}

// sectioned tells whether a section of s holds something.
func (s *State) sectioned() bool {
	return slices.ContainsFunc(sections, func(c section) bool { return !c.empty(s) })
}

func (s *State) writeSections(k *sink) {
	for _, c := range sections {
		if !c.empty(s) {
			k.b = put32(k.b, c.number)
			c.write(s, k)
			k.full()
		}
	}
}

// readSections reads to the end. An empty section that is there all the same would be a second form of the same state.
func (s *State) readSections(d *decoder) {
	next := 0
	for {
		number := d.u32()
		i := slices.IndexFunc(sections[next:], func(c section) bool { return c.number == number })
		if d.err == nil && i < 0 {
			d.fail(fmt.Errorf("section %d is unknown, or not in its place", number))
		}
		if d.err != nil {
			return
		}
		c := &sections[next+i]
		next += i + 1
		if c.read(s, d); d.err == nil && c.empty(s) {
			d.fail(fmt.Errorf("section %d is empty", number))
		}
		if d.err != nil || len(d.b) == 0 {
			return
		}
	}
}

// flushAt bounds the memory that writing a snapshot takes beyond the sorted keys.
const flushAt = 64 << 10

// sink collects bytes and hands them on in large pieces. It keeps the first error.
type sink struct {
	w   io.Writer
	b   []byte
	err error
}

func (k *sink) full() {
	if len(k.b) >= flushAt {
		k.flush()
	}
}

func (k *sink) flush() {
	if k.err == nil {
		_, k.err = k.w.Write(k.b)
	}
	k.b = k.b[:0]
}

// Snapshot writes the canonical form of s to w. It works on a clone, so that Apply goes on meanwhile; the caller that needs
// the state of a certain index makes its own clone at that index. It returns the error of w.
func (s *State) Snapshot(w io.Writer) error {
	c := s.Clone()
	k := &sink{w: w, b: make([]byte, 0, flushAt+4096)}
	c.write(k)
	k.flush()
	return k.err
}

// Hash returns the SHA-256 of the canonical form. Replicas at the same index have the same.
func (s *State) Hash() [32]byte {
	h := sha256.New()
	_ = s.Snapshot(h) // a hash never fails to take bytes
	return [32]byte(h.Sum(nil))
}

func (s *State) write(k *sink) {
	k.b = append(k.b, canonicalMagic...)
	version := byte(canonicalVersion)
	if s.sectioned() {
		version = canonicalSections
	}
	k.b = append(k.b, 0, version, 0, 0)
	k.b = put64(put64(k.b, s.time), s.leaseTerm)
	k.b = put64(put32(k.b, s.nextTopic), s.cutBase)
	for _, v := range []DataVersion{s.topicVersion, s.groupVersion} {
		k.b = put64(put64(k.b, v.Counter), v.Time)
	}
	s.writeTopics(k)
	s.writeQueues(k)
	s.writeGroups(k)
	s.writeOffsets(k)
	s.writeLocks(k)
	s.writeSections(k)
}

func (s *State) writeTopics(k *sink) {
	all := make([]*topicState, 0, s.byID.count)
	for _, t := range s.byID.all() {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *topicState) int { return cmp.Compare(a.ID, b.ID) })
	k.b = put32(k.b, uint32(len(all)))
	for _, t := range all {
		k.b = appendTopic(put32(put32(k.b, t.ID), t.high), &t.Topic)
		k.full()
	}
}

func (s *State) writeQueues(k *sink) {
	type row struct {
		index.Key
		queueState
	}
	all := make([]row, 0, s.queues.count)
	for key, q := range s.queues.all() {
		all = append(all, row{key, q})
	}
	slices.SortFunc(all, func(a, b row) int { return a.Key.Compare(b.Key) })
	k.b = put32(k.b, uint32(len(all)))
	for _, r := range all {
		k.b = put64(put64(put32(put32(k.b, r.Topic), r.Queue), r.next), r.min)
		k.full()
	}
}

func (s *State) writeGroups(k *sink) {
	all := make([]*SubscriptionGroup, 0, s.groups.count)
	for _, g := range s.groups.all() {
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b *SubscriptionGroup) int { return strings.Compare(a.Name, b.Name) })
	k.b = put32(k.b, uint32(len(all)))
	for _, g := range all {
		k.b = appendGroup(k.b, g)
		k.full()
	}
}

func (k offsetKey) compare(o offsetKey) int {
	return cmp.Or(cmp.Compare(k.topic, o.topic), strings.Compare(k.group, o.group))
}

func (s *State) writeOffsets(k *sink) {
	type row struct {
		offsetKey
		*queueOffsets
	}
	all := make([]row, 0, s.offsets.count)
	for key, q := range s.offsets.all() {
		all = append(all, row{key, q})
	}
	slices.SortFunc(all, func(a, b row) int { return a.offsetKey.compare(b.offsetKey) })
	k.b = put32(k.b, uint32(len(all)))
	for _, r := range all {
		k.b = putString(put32(k.b, r.topic), r.group)
		k.b = put32(k.b, uint32(len(r.list)))
		for _, o := range r.list {
			k.b = put64(put32(k.b, o.queue), o.offset)
			k.full()
		}
	}
}

func (k lockKey) compare(o lockKey) int {
	return cmp.Or(k.Key.Compare(o.Key), strings.Compare(k.group, o.group))
}

func (s *State) writeLocks(k *sink) {
	type row struct {
		lockKey
		lease
	}
	var all []row
	for key, l := range s.locks.all() {
		if l.expires > s.time {
			all = append(all, row{key, l})
		}
	}
	slices.SortFunc(all, func(a, b row) int { return a.lockKey.compare(b.lockKey) })
	k.b = put32(k.b, uint32(len(all)))
	for _, r := range all {
		k.b = put32(put32(k.b, r.Topic), r.Queue)
		k.b = put64(putString(putString(k.b, r.group), r.client), r.expires)
		k.full()
	}
}

// Load reads the canonical form to its end. It returns a *SnapshotError for bytes that are none; everything that Snapshot
// writes is checked, so that the state's invariants hold for what Load returns.
func Load(r io.Reader) (*State, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("state snapshot: %w", err)
	}
	s, err := decodeState(b)
	if err != nil {
		return nil, &SnapshotError{Err: err}
	}
	return s, nil
}

func decodeState(b []byte) (*State, error) {
	d := &decoder{b: b}
	if m := d.take(4); string(m) != canonicalMagic {
		return nil, errors.New("it is not one")
	}
	version := d.u32()
	if d.err == nil && version != canonicalVersion<<16 && version != canonicalSections<<16 {
		return nil, fmt.Errorf("it has version %d, this program knows %d and %d", version>>16, canonicalVersion, canonicalSections)
	}
	s := New()
	s.time, s.leaseTerm = int64(d.u64()), ids.Term(d.u64())
	s.nextTopic, s.cutBase = ids.TopicID(d.u32()), ids.PhysicalOffset(d.u64())
	for _, v := range []*DataVersion{&s.topicVersion, &s.groupVersion} {
		v.Counter, v.Time = int64(d.u64()), int64(d.u64())
	}
	s.readTopics(d)
	s.readQueues(d)
	s.readGroups(d)
	s.readOffsets(d)
	s.readLocks(d)
	if version == canonicalSections<<16 {
		s.readSections(d)
	}
	if err := d.end(); err != nil {
		return nil, err
	}
	return s, nil
}

// ascending reports to d unless c tells that the one before is smaller.
func (d *decoder) ascending(first bool, c int) {
	if d.err == nil && !first && c >= 0 {
		d.fail(errOrder)
	}
}

// topicOf returns the topic that an entry of another table belongs to.
func (s *State) topicOf(d *decoder, id ids.TopicID) *topicState {
	t, ok := s.byID.get(id)
	if !ok {
		d.fail(fmt.Errorf("topic %d does not exist", id))
		return new(topicState)
	}
	return t
}

func (s *State) readTopics(d *decoder) {
	var last ids.TopicID
	for i := range d.count(37) {
		id, high := ids.TopicID(d.u32()), ids.QueueID(int32(d.u32()))
		t := &topicState{Topic: d.topic(), high: high}
		t.ID = id
		d.ascending(i == 0, cmp.Compare(last, id))
		last = id
		if _, twice := s.byName.get(t.Name); twice || id == 0 || id >= s.nextTopic || int32(high) < max(t.ReadQueues, t.WriteQueues) {
			d.fail(fmt.Errorf("topic %d %q makes no sense", id, t.Name))
		}
		if d.err != nil {
			return
		}
		s.setTopic(t)
	}
}

func (s *State) readQueues(d *decoder) {
	var last index.Key
	for i := range d.count(24) {
		key := d.key()
		q := queueState{ids.QueueOffset(d.u64()), ids.QueueOffset(d.u64())}
		d.ascending(i == 0, last.Compare(key))
		last = key
		if q.min < 0 || q.min > q.next || key.Queue >= s.topicOf(d, key.Topic).high {
			d.fail(fmt.Errorf("queue %v makes no sense", key))
		}
		if d.err != nil {
			return
		}
		s.queues.put(s.own, key, q)
	}
}

func (s *State) readGroups(d *decoder) {
	last := ""
	for i := range d.count(70) {
		g := d.group()
		d.ascending(i == 0, strings.Compare(last, g.Name))
		last = g.Name
		if d.err != nil {
			return
		}
		s.groups.put(s.own, g.Name, &g)
	}
}

func (s *State) readOffsets(d *decoder) {
	var last offsetKey
	for i := range d.count(12) {
		key := offsetKey{ids.TopicID(d.u32()), d.name()}
		d.ascending(i == 0, last.compare(key))
		last = key
		t := s.topicOf(d, key.topic)
		q := &queueOffsets{owner: s.own}
		for j := range d.count(12) {
			o := queueOffset{ids.QueueID(int32(d.u32())), ids.QueueOffset(d.u64())}
			if j > 0 {
				d.ascending(false, cmp.Compare(q.list[j-1].queue, o.queue))
			}
			at, _ := s.queues.get(index.Key{Topic: key.topic, Queue: o.queue})
			if o.queue < 0 || o.queue >= t.high || o.offset < 0 || o.offset > at.next {
				d.fail(fmt.Errorf("the offset of group %q in queue %d/%d makes no sense", key.group, key.topic, o.queue))
			}
			q.list = append(q.list, o)
		}
		if len(q.list) == 0 {
			d.fail(fmt.Errorf("group %q has no offset on topic %d", key.group, key.topic))
		}
		if d.err != nil {
			return
		}
		s.offsets.put(s.own, key, q)
	}
}

func (s *State) readLocks(d *decoder) {
	var last lockKey
	for i := range d.count(24) {
		key := lockKey{Key: d.key()}
		key.group = d.name()
		l := lease{d.name(), int64(d.u64())}
		d.ascending(i == 0, last.compare(key))
		last = key
		s.topicOf(d, key.Topic)
		if l.expires <= s.time {
			d.fail(fmt.Errorf("the lock of queue %v has ended", key.Key))
		}
		if d.err != nil {
			return
		}
		s.locks.put(s.own, key, l)
	}
}
