// Package state is the deterministic state machine of one broker group: what follows from the records of its commit log.
//
//	record ──▶ Apply(frame time, term, record) ──▶ Effect (what changed, for the index, waiting clients, the name servers)
//	                       │
//	                       ├─ topics, groups                    configuration, with a version counter each
//	                       ├─ queues    topic/queue             → next queue offset, first retained one
//	                       ├─ offsets   group on topic/queue    → consumer offset
//	                       ├─ locks     group on topic/queue    → client, end of the lease in log time
//	                       ├─ tx        half message            → producer group, place in the log, checks; how it ended
//	                       ├─ resets    group on topic/queue    → consumer offset that its members have not taken over yet
//	                       ├─ timers    which are pending, see timer.go
//	                       └─ freeze    the group is to be removed, see freeze.go
//
// It is pure: no clock, disk (but for snapshot.go), goroutine or randomness. The same records give the same state, and the
// same bytes of Snapshot and Hash, on every replica. Time is the greatest frame time applied so far. A record of an unknown
// type or version, one that does not parse and a message that is not the next of its queue are errors: the replica stops,
// and the state is as it was before that record.
//
// Apply and Clone are called from one goroutine, between them in the order of the log; everything else from any goroutine.
// A read holds a lock for the time of a map look-up. What is returned is shared and must not be changed.
//
// Clone is cheap: it copies the tables of parts, not their content (cow.go), so a snapshot is written from a clone in the
// background while Apply goes on. Measured with BenchmarkSnapshot on 2 busy cores, processor time: with 100,000 queues a
// clone takes 0.1 ms and the longest Apply after it 0.4 ms (it copies a part); with 1,000,000 queues 0.1 and 1.1 ms. A queue
// with a consumer offset takes about 65 to 85 bytes of memory.
//
// Read command.go for the formats of the commands, docs/format/commands.md for their bytes, and docs/format/snapshot.md
// for those of a snapshot.
package state

import (
	"sync"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/timer"
)

// State is the state of one group after a record of its log. The zero value is of no use: New and Load make one.
//
// Invariants:
//  1. byName and byID hold the same topics; every id is below nextTopic.
//  2. Every key of queues, offsets, locks and resets belongs to a topic in byID.
//  3. For each queue 0 <= min <= next, and its id is below its topic's high.
//  4. A stored consumer offset is between 0 and the queue's next. While a reset is pending it is the reset's.
type State struct {
	mu  sync.RWMutex
	own *owner

	time         int64 // log time: the greatest frame time applied, milliseconds
	leaseTerm    ids.Term
	nextTopic    ids.TopicID
	cutBase      ids.PhysicalOffset
	topicVersion DataVersion
	groupVersion DataVersion

	byName   shards[string, *topicState]
	byID     shards[ids.TopicID, *topicState]
	queues   shards[index.Key, queueState]
	groups   shards[string, *SubscriptionGroup]
	offsets  shards[offsetKey, *queueOffsets]
	locks    shards[lockKey, lease]
	tx       transactions
	resets   shards[lockKey, resetState]
	settings map[string]string // replaced, never changed; nil: none
	timers   timers
	freeze   Freeze
	sweep    int // next part of locks to sweep; no part of the state
}

// DataVersion counts the changes of a table; Time is the log time of the last one, in milliseconds.
type DataVersion struct {
	Counter int64
	Time    int64
}

// New returns the state before the first record.
func New() *State {
	return &State{
		own:       new(owner),
		nextTopic: 1,
		byName:    newShards[string, *topicState](256, hashName),
		byID:      newShards[ids.TopicID, *topicState](256, hashTopic),
		queues:    newShards[index.Key, queueState](1024, hashKey),
		groups:    newShards[string, *SubscriptionGroup](256, hashName),
		offsets:   newShards[offsetKey, *queueOffsets](256, hashOffset),
		locks:     newShards[lockKey, lease](256, hashLock),
		tx:        newTransactions(),
		resets:    newShards[lockKey, resetState](16, hashLock),
		timers:    newTimers(),
	}
}

// EffectKind names what a record changed.
type EffectKind uint8

// The kinds of effects.
const (
	EffectNone                EffectKind = iota // nothing; Topic or Group is set when a put found it as wished
	EffectMessage                               // Key, QueueOffset and Entry are for the index
	EffectDropped                               // a message of a topic that was deleted before it: it is not delivered
	EffectTopic                                 // Topic is new or changed
	EffectTopicDeleted                          // Topic is what it was
	EffectGroup                                 // Group is new or changed
	EffectGroupDeleted                          // Group is what it was
	EffectOffsets                               // Offsets were stored
	EffectLocks                                 // Locked is what the client now holds of what it asked for; it may be empty
	EffectUnlocked                              // Locked was freed
	EffectCut                                   // Cut is the new front of the log
	EffectLeases                                // the leases of all locks were extended
	EffectHalf                                  // transaction Number is pending
	EffectHalfAgain                             // its half message lies elsewhere now
	EffectTransactionEnded                      // transaction Number has ended with Decision
	EffectTransactionKept                       // transaction Number stays pending: the topic of its message was deleted
	EffectSettings                              // settings of the group have changed
	EffectTransactionsChecked                   // Checked were checked, or are checked anew; with this GaveUp of them for the last time
	EffectReset                                 // Offsets are where the group goes on: its members must be told
	EffectTimer                                 // Timer is pending
	EffectTimersFired                           // Count timers have fired
	EffectTimersRolled                          // Count timers were rolled
	EffectTimerRecalled                         // a timer was recalled
	EffectFrozen                                // the group is frozen, by this record or one before
)

// Effect tells what a record changed. Which fields are set follows from Kind.
type Effect struct {
	Kind        EffectKind
	Key         index.Key
	QueueOffset ids.QueueOffset
	Entry       index.Entry
	Topic       *Topic
	Group       *SubscriptionGroup
	Offsets     []ConsumerOffset
	Back        []ConsumerOffset // those of Offsets that members committed below what was stored
	Locked      []index.Key
	Cut         ids.PhysicalOffset
	Number      ids.QueueOffset
	Decision    Decision
	Checked     []ids.QueueOffset
	GaveUp      int
	Timer       timer.Entry
	Count       uint32
}

// Apply carries out one record of a frame. frameTime is the frame's, in milliseconds. It returns an *UnknownCommandError,
// a *CommandError, a *DensityError or a *TimerError for a record that must stop the replica.
func (s *State) Apply(frameTime int64, term ids.Term, r commitlog.Record) (Effect, error) {
	if r.Version != 1 || r.Flags != 0 || !knownRecord(r.Type) {
		return Effect{}, &UnknownCommandError{Type: r.Type, Version: r.Version, Flags: r.Flags, Offset: r.Offset}
	}
	switch r.Type {
	case RecordMessage:
		return s.applyMessage(frameTime, r)
	case RecordHalf, RecordHalfAgain:
		return s.applyHalf(frameTime, r)
	case RecordTimer:
		return s.applyTimer(frameTime, r)
	}
	return s.applyCommand(frameTime, term, r)
}

// advance moves the log time. It returns the time before.
func (s *State) advance(frameTime int64) int64 {
	before := s.time
	s.time = max(before, frameTime)
	return before
}

func (s *State) applyMessage(frameTime int64, r commitlog.Record) (Effect, error) {
	p, err := ParseMessagePrefix(r.Body)
	if err != nil {
		return Effect{}, &CommandError{Type: r.Type, Offset: r.Offset, Err: err}
	}
	e := Effect{Kind: EffectMessage, Key: p.Key, QueueOffset: p.QueueOffset, Entry: index.Entry{
		Offset: r.Offset + MessagePrefixSize, Size: uint32(len(r.Body) - MessagePrefixSize), TagsCode: p.TagsCode,
	}}
	s.mu.Lock()
	defer s.mu.Unlock()
	q, known := s.queues.get(p.Key)
	var topic *topicState
	if !known {
		// Only a living topic has a queue: it need not be looked up for one that is known.
		if topic, known = s.byID.get(p.Key.Topic); !known {
			s.advance(frameTime)
			e.Kind = EffectDropped
			return e, nil
		}
	}
	if p.QueueOffset != q.next {
		return Effect{}, &DensityError{Key: p.Key, Want: q.next, Have: p.QueueOffset, Offset: r.Offset}
	}
	s.advance(frameTime)
	if topic != nil && p.Key.Queue >= topic.high {
		wider := *topic
		wider.high = p.Key.Queue + 1
		s.setTopic(&wider)
	}
	q.next++
	s.queues.put(s.own, p.Key, q)
	return e, nil
}

func (s *State) applyCommand(frameTime int64, term ids.Term, r commitlog.Record) (Effect, error) {
	c, err := decodeCommand(r.Type, r.Body)
	if err != nil {
		return Effect{}, &CommandError{Type: r.Type, Offset: r.Offset, Err: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if end, ok := c.(transactionEnd); ok {
		if err := s.checkEnd(end); err != nil {
			return Effect{}, &CommandError{Type: r.Type, Offset: r.Offset, Err: err}
		}
	}
	switch c := c.(type) { // what may be refused leaves the log time as it was
	case TimerFire:
		e, err := s.applyTimerFire(r.Offset, c)
		if err == nil {
			s.advance(frameTime)
		}
		return e, err
	case TimerRoll:
		e, err := s.applyTimerRoll(r.Offset, c)
		if err == nil {
			s.advance(frameTime)
		}
		return e, err
	}
	before := s.advance(frameTime)
	switch c := c.(type) {
	case TimerRecall:
		return s.applyTimerRecall(c), nil
	case topicPut:
		return s.applyTopicPut(c), nil
	case topicDelete:
		return s.applyTopicDelete(c.name), nil
	case groupPut:
		return s.applyGroupPut(c), nil
	case groupDelete:
		return s.applyGroupDelete(c), nil
	case offsetsCommand:
		return s.applyOffsets(c.offsets, false), nil
	case lockCommand:
		if c.unlock {
			return s.applyUnlock(c), nil
		}
		return s.applyLock(c), nil
	case cutFront:
		return s.applyCut(c), nil
	case leaseExtension:
		return s.applyExtension(before, term), nil
	case settingsPut:
		return s.applySettings(c), nil
	case freezeCommand:
		return s.applyFreeze(c), nil
	case transactionEnd:
		return s.applyEnd(c), nil
	case transactionChecks:
		return s.applyChecks(c), nil
	case resetCommand:
		return s.applyReset(c), nil
	case resetTaken:
		return s.applyResetTaken(c), nil
	}
	panic("state: decodeCommand returned a type that Apply does not know")
}

// applyCut moves the front of the log and the first retained offset of the queues that lose messages by it. Neither ever
// moves back; a long list may come in several commands with the same base.
func (s *State) applyCut(c cutFront) Effect {
	if s.tx.holdsFront(c.base) { // who proposes a cut has moved them before
		return Effect{Kind: EffectNone}
	}
	s.cutBase = max(s.cutBase, c.base)
	for _, m := range c.mins {
		q, ok := s.queues.get(m.Key)
		if !ok {
			continue
		}
		if first := min(m.Min, q.next); first > q.min {
			q.min = first
			s.queues.put(s.own, m.Key, q)
		}
	}
	return Effect{Kind: EffectCut, Cut: s.cutBase}
}

// CutBase returns where the log begins by the last cut of its front; 0 before the first.
func (s *State) CutBase() ids.PhysicalOffset {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.cutBase
}

// Time returns the log time in milliseconds: the greatest frame time that was applied.
func (s *State) Time() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.time
}

// Clone returns a copy that lives on its own. It shares memory with s until one of the two changes it. Call it between two
// frames, from the goroutine that applies.
func (s *State) Clone() *State {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Both sides get a new owner: no part of either is its own any more.
	s.own = new(owner)
	return &State{
		own: new(owner), time: s.time, leaseTerm: s.leaseTerm, nextTopic: s.nextTopic, cutBase: s.cutBase,
		topicVersion: s.topicVersion, groupVersion: s.groupVersion,
		byName: s.byName.clone(), byID: s.byID.clone(), queues: s.queues.clone(), groups: s.groups.clone(),
		offsets: s.offsets.clone(), locks: s.locks.clone(), tx: s.tx.clone(), resets: s.resets.clone(), settings: s.settings, timers: s.timers.clone(), freeze: s.freeze, sweep: s.sweep,
	}
}
