package state

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// Decision is how a transaction ended.
type Decision uint8

// The decisions. A transaction has one for ever: the first one in the log.
const (
	Undecided  Decision = 0
	Committed  Decision = 1
	RolledBack Decision = 2
)

func (d Decision) String() string {
	switch d {
	case Undecided:
		return "undecided"
	case Committed:
		return "committed"
	case RolledBack:
		return "rolled back"
	}
	return fmt.Sprintf("Decision(%d)", uint8(d))
}

// MaxChecks is how often a producer is asked for the state of a transaction. Then it is left alone, pending, until its producer or an
// operator ends it.
const MaxChecks = 15

// Transaction is a pending one: its half message is stored, and not yet delivered or given up.
type Transaction struct {
	Number   ids.QueueOffset    // of the half message, dense from 0 in a group; on the wire it is the transaction state table offset
	Group    string             // producer group
	Origin   ids.PhysicalOffset // where the half message's record was stored first: what clients know it by, with the number
	At       ids.PhysicalOffset // where it is now
	Size     uint32             // of that record
	Stored   int64              // log time in milliseconds
	Immunity int64              // milliseconds from then to the first check
	Checks   uint8              // done
	Checked  int64              // log time of the last one
}

// GaveUp tells whether checking has ended without an answer.
func (t *Transaction) GaveUp() bool { return t.Checks >= MaxChecks }

// transactions are the pending transactions of a group, and how those before ended.
//
// Invariants:
//  1. The number of each pending one is below next, and has no decision in ended.
//  2. groups counts the pending ones of each producer group, and has no group with none; parked those that are no more checked.
//  3. ended has no chunk below next's by endedChunks or more, and none without a decision.
//  4. places has the place of each pending one, in the order of the log, and some that are left.
type transactions struct {
	next    ids.QueueOffset // number of the next half message
	pending shards[ids.QueueOffset, Transaction]
	groups  shards[string, txGroup]
	ended   shards[int64, *endedChunk]
	parked  int
	places  []halfPlace
	cloned  bool // places is empty until somebody needs it
}

// halfPlace is where a half message was stored. It is left when its transaction has ended, or has another place.
type halfPlace struct {
	at     ids.PhysicalOffset
	number ids.QueueOffset
}

// leftPlaces is how many places that are left may stay beside as many as there are pending ones.
const leftPlaces = 1024

// place notes where the half message of a pending transaction lies: behind all others.
func (t *transactions) place(x *Transaction) {
	if t.cloned {
		return
	}
	t.places = append(t.places, halfPlace{x.At, x.Number})
	if len(t.places) > 2*t.pending.count+leftPlaces {
		t.places = slices.DeleteFunc(t.places, t.left)
	}
}

func (t *transactions) left(p halfPlace) bool {
	x, pending := t.pending.get(p.number)
	return !pending || x.At != p.at
}

// putInOrder gathers the places of all pending transactions.
func (t *transactions) putInOrder() {
	t.cloned, t.places = false, make([]halfPlace, 0, t.pending.count)
	for _, x := range t.pending.all() {
		t.places = append(t.places, halfPlace{x.At, x.Number})
	}
	slices.SortFunc(t.places, func(a, b halfPlace) int { return cmp.Compare(a.at, b.at) })
}

type txGroup struct {
	name    string // the one copy of it that all its transactions share
	pending int
}

// endedChunk has the decisions of endedPerChunk transactions, two bits each.
type endedChunk struct {
	owner *owner
	n     int // decisions in it
	bits  [endedPerChunk / 4]byte
}

// How a transaction ended is known of the newest 8 million, in 2 MiB at most. A contrary or repeated end of an older one is refused
// all the same: what is neither pending nor new has ended.
const (
	endedPerChunk = 4096
	endedChunks   = 2048
)

func newTransactions() transactions {
	return transactions{
		pending: newShards[ids.QueueOffset, Transaction](256, func(n ids.QueueOffset) uint32 { return mix(uint64(n)) }),
		groups:  newShards[string, txGroup](64, hashName),
		ended:   newShards[int64, *endedChunk](64, func(n int64) uint32 { return uint32(n) }),
	}
}

func (t *transactions) clone() transactions {
	return transactions{next: t.next, pending: t.pending.clone(), groups: t.groups.clone(), ended: t.ended.clone(), parked: t.parked, cloned: true}
}

func (c *endedChunk) get(number ids.QueueOffset) Decision {
	i := number % endedPerChunk
	return Decision(c.bits[i/4] >> (2 * (i % 4)) & 3)
}

// decide notes how a transaction ended, if its chunk is still kept.
func (t *transactions) decide(o *owner, number ids.QueueOffset, d Decision) {
	k := int64(number) / endedPerChunk
	if k <= t.oldest() {
		return
	}
	c, ok := t.ended.get(k)
	if !ok || c.owner != o {
		own := &endedChunk{owner: o}
		if ok {
			*own = *c
			own.owner = o
		}
		c = own
		t.ended.put(o, k, c)
	}
	i := number % endedPerChunk
	c.bits[i/4] |= byte(d) << (2 * (i % 4))
	c.n++
}

// oldest is the newest chunk that is no more kept.
func (t *transactions) oldest() int64 { return int64(t.next)/endedPerChunk - endedChunks }

// add makes a transaction pending.
func (t *transactions) add(o *owner, x Transaction) {
	g, ok := t.groups.get(x.Group)
	if !ok {
		g.name = x.Group
	}
	x.Group = g.name
	g.pending++
	t.groups.put(o, g.name, g)
	t.pending.put(o, x.Number, x)
	if x.GaveUp() {
		t.parked++
	}
}

// remove takes a pending transaction out.
func (t *transactions) remove(o *owner, x *Transaction) {
	t.pending.del(o, x.Number)
	g, _ := t.groups.get(x.Group)
	if g.pending--; g.pending == 0 {
		t.groups.del(o, x.Group)
	} else {
		t.groups.put(o, x.Group, g)
	}
	if x.GaveUp() {
		t.parked--
	}
}

// HalfPrefix is what stands before the RocketMQ record in the body of a RecordHalf.
type HalfPrefix struct {
	Number   ids.QueueOffset
	Immunity int64 // milliseconds
	Group    string
}

// Size is the number of bytes of the prefix. The physical offset of the RocketMQ record is the offset of the body plus this.
func (p *HalfPrefix) Size() int { return 20 + len(p.Group) }

// Put writes the prefix to the first Size bytes of body.
func (p *HalfPrefix) Put(body []byte) {
	binary.BigEndian.PutUint64(body, uint64(p.Number))
	binary.BigEndian.PutUint64(body[8:], uint64(p.Immunity))
	binary.BigEndian.PutUint32(body[16:], uint32(len(p.Group)))
	copy(body[20:p.Size()], p.Group)
}

// ParseHalf reads the body of a RecordHalf.
func ParseHalf(body []byte) (p HalfPrefix, record []byte, err error) {
	d := &decoder{b: body}
	p = HalfPrefix{Number: d.number(), Immunity: int64(d.u64()), Group: d.name()}
	if p.Immunity < 0 {
		d.fail(fmt.Errorf("an immunity of %d ms", p.Immunity))
	}
	return p, d.b, d.err
}

// HalfAgainPrefix is the number of bytes before the RocketMQ record in the body of a RecordHalfAgain.
const HalfAgainPrefix = 8

// PutHalfAgain writes the prefix of a RecordHalfAgain to the first HalfAgainPrefix bytes of body.
func PutHalfAgain(body []byte, number ids.QueueOffset) {
	binary.BigEndian.PutUint64(body, uint64(number))
}

// AppendTransactionEnd appends the body of a RecordTransactionEnd to dst. topic is the one in which the message of a committed
// transaction lies, in the record that follows in the same frame; 0 for one that is rolled back.
func AppendTransactionEnd(dst []byte, number ids.QueueOffset, d Decision, topic ids.TopicID) []byte {
	return put32(append(put64(dst, number), byte(d)), topic)
}

// TransactionEndSize is the size of the body of a RecordTransactionEnd.
const TransactionEndSize = 13

// AppendTransactionChecks appends the body of a RecordTransactionChecks to dst: the producers of these transactions are asked, or,
// with resume, they are asked anew as if they had never been. numbers must be in ascending order.
func AppendTransactionChecks(dst []byte, resume bool, numbers []ids.QueueOffset) []byte {
	dst = put32(putBool(dst, resume), uint32(len(numbers)))
	for _, n := range numbers {
		dst = put64(dst, n)
	}
	return dst
}

// MessageIn returns the RocketMQ record in a record of the log that has one, of a queue or a half message.
func MessageIn(r commitlog.Record) (record []byte, ok bool) {
	n := 0
	switch r.Type {
	case RecordMessage:
		n = MessagePrefixSize
	case RecordHalfAgain:
		n = HalfAgainPrefix
	case RecordHalf:
		_, record, err := ParseHalf(r.Body)
		return record, err == nil && len(record) > 0
	default:
		return nil, false
	}
	if len(r.Body) <= n {
		return nil, false
	}
	return r.Body[n:], true
}

type (
	transactionEnd struct {
		number   ids.QueueOffset
		decision Decision
		topic    ids.TopicID
	}
	transactionChecks struct {
		resume  bool
		numbers []ids.QueueOffset
	}
)

func (d *decoder) number() ids.QueueOffset {
	n := ids.QueueOffset(d.u64())
	if n < 0 {
		d.fail(fmt.Errorf("transaction %d", n))
	}
	return n
}

func (d *decoder) transactionEnd() transactionEnd {
	c := transactionEnd{d.number(), Decision(d.u8()), ids.TopicID(d.u32())}
	if d.err == nil && (c.decision != Committed && c.decision != RolledBack || (c.topic != 0) != (c.decision == Committed)) {
		d.fail(fmt.Errorf("decision %d with topic %d", c.decision, c.topic))
	}
	return c
}

func (d *decoder) transactionChecks() transactionChecks {
	c := transactionChecks{resume: d.flag()}
	for i := range d.count(8) {
		c.numbers = append(c.numbers, d.number())
		if i > 0 && c.numbers[i] <= c.numbers[i-1] {
			d.fail(errOrder)
		}
	}
	return c
}

// applyHalf makes a transaction pending, or notes where the message of one that is pending lies now.
func (s *State) applyHalf(frameTime int64, r commitlog.Record) (Effect, error) {
	if r.Type == RecordHalfAgain {
		return s.applyHalfAgain(frameTime, r)
	}
	p, record, err := ParseHalf(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && p.Number != s.tx.next {
		err = fmt.Errorf("it is half message %d, but the next one is %d", p.Number, s.tx.next)
	}
	if err != nil {
		return Effect{}, &CommandError{Type: r.Type, Offset: r.Offset, Err: err}
	}
	s.advance(frameTime)
	at := r.Offset + ids.PhysicalOffset(len(r.Body)-len(record))
	s.tx.next++
	s.tx.ended.del(s.own, s.tx.oldest())
	x := Transaction{Number: p.Number, Group: p.Group, Origin: at, At: at, Size: uint32(len(record)), Stored: s.time, Immunity: p.Immunity}
	s.tx.add(s.own, x)
	s.tx.place(&x)
	return Effect{Kind: EffectHalf, Number: p.Number}, nil
}

func (s *State) applyHalfAgain(frameTime int64, r commitlog.Record) (Effect, error) {
	d := &decoder{b: r.Body}
	number := d.number()
	if d.err != nil {
		return Effect{}, &CommandError{Type: r.Type, Offset: r.Offset, Err: d.err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance(frameTime)
	x, ok := s.tx.pending.get(number)
	if !ok {
		return Effect{Kind: EffectNone}, nil
	}
	x.At, x.Size = r.Offset+HalfAgainPrefix, uint32(len(d.b))
	s.tx.pending.put(s.own, number, x)
	s.tx.place(&x)
	return Effect{Kind: EffectHalfAgain, Number: number}, nil
}

// errEndedTwice: who forms frames knows what is pending, also in the frames before; the message behind this record would be
// delivered twice, or after a rollback.
var errEndedTwice = errors.New("it commits a transaction that is not pending")

// checkEnd tells what must stop the replica before anything is changed.
func (s *State) checkEnd(c transactionEnd) error {
	if _, pending := s.tx.pending.get(c.number); !pending && c.decision == Committed {
		return errEndedTwice
	}
	return nil
}

// applyEnd ends a pending transaction. One whose topic was deleted after its commit was formed stays pending: its message, in the next
// record, is not delivered either.
func (s *State) applyEnd(c transactionEnd) Effect {
	x, pending := s.tx.pending.get(c.number)
	if !pending {
		return Effect{Kind: EffectNone}
	}
	if c.decision == Committed {
		if _, lives := s.byID.get(c.topic); !lives {
			return Effect{Kind: EffectTransactionKept, Number: c.number}
		}
	}
	s.tx.remove(s.own, &x)
	s.tx.decide(s.own, c.number, c.decision)
	return Effect{Kind: EffectTransactionEnded, Number: c.number, Decision: c.decision}
}

// applyChecks counts a check of each transaction of the list that is pending, or forgets those that were.
func (s *State) applyChecks(c transactionChecks) Effect {
	e := Effect{Kind: EffectTransactionsChecked}
	for _, n := range c.numbers {
		x, pending := s.tx.pending.get(n)
		if !pending || !c.resume && x.GaveUp() {
			continue
		}
		was := x.GaveUp()
		if c.resume {
			x.Checks, x.Checked = 0, 0
		} else {
			x.Checks++
			x.Checked = s.time
		}
		if is := x.GaveUp(); is && !was {
			s.tx.parked++
			e.GaveUp++
		} else if was && !is {
			s.tx.parked--
		}
		s.tx.pending.put(s.own, n, x)
		e.Checked = append(e.Checked, n)
	}
	if len(e.Checked) == 0 {
		return Effect{Kind: EffectNone}
	}
	return e
}

// holdsFront tells whether a pending half message lies below base: the log must not lose it.
func (t *transactions) holdsFront(base ids.PhysicalOffset) bool {
	if t.cloned {
		t.putInOrder()
	}
	for len(t.places) > 0 && t.left(t.places[0]) {
		t.places = t.places[1:]
	}
	return len(t.places) > 0 && t.places[0].at < base
}

// Transaction returns a pending transaction, or how it ended. known is false for a number that no half message has had yet; one that
// has ended so long ago that nobody knows how is Undecided, and not pending.
func (s *State) Transaction(number ids.QueueOffset) (x Transaction, d Decision, pending, known bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if number < 0 || number >= s.tx.next {
		return x, Undecided, false, false
	}
	if x, pending = s.tx.pending.get(number); pending {
		return x, Undecided, true, true
	}
	if c, ok := s.tx.ended.get(int64(number) / endedPerChunk); ok {
		d = c.get(number)
	}
	return x, d, false, true
}

// NextHalf returns the number of the next half message.
func (s *State) NextHalf() ids.QueueOffset {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.tx.next
}

// PendingTransactions returns how many transactions are pending, and how many of them are no more checked.
func (s *State) PendingTransactions() (pending, gaveUp int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.tx.pending.count, s.tx.parked
}

// TransactionGroups returns the producer groups that have pending transactions, in no order.
func (s *State) TransactionGroups() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	names := make([]string, 0, s.tx.groups.count)
	for name := range s.tx.groups.all() {
		names = append(names, name)
	}
	return names
}

// PendingOf returns how many transactions of a producer group are pending.
func (s *State) PendingOf(group string) int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	g, _ := s.tx.groups.get(group)
	return g.pending
}

// EachTransaction calls f for each transaction that is pending during the whole call, in no order, and for some of the others. It holds
// the lock for a part of them at a time; f must not call s.
func (s *State) EachTransaction(f func(Transaction)) {
	for i := range s.tx.pending.parts {
		s.mu.RLock()
		for _, x := range s.tx.pending.parts[i].m {
			f(x)
		}
		s.mu.RUnlock()
	}
}

// The section of the snapshot:
//
//	next number i64 | n u32 | pending by number   number i64, group string, origin i64, at i64, size u32, stored i64, immunity i64, checks u8, checked i64
//	n u32 | chunks of decisions by number         number i64, bytes string: two bits a decision, without zeros at the end
func (s *State) writeTransactions(k *sink) {
	all := make([]Transaction, 0, s.tx.pending.count)
	for _, x := range s.tx.pending.all() {
		all = append(all, x)
	}
	slices.SortFunc(all, func(a, b Transaction) int { return cmp.Compare(a.Number, b.Number) })
	k.b = put32(put64(k.b, s.tx.next), uint32(len(all)))
	for _, x := range all {
		k.b = put64(put64(putString(put64(k.b, x.Number), x.Group), x.Origin), x.At)
		k.b = put64(put64(put32(k.b, x.Size), x.Stored), x.Immunity)
		k.b = put64(append(k.b, x.Checks), x.Checked)
		k.full()
	}
	chunks := make([]int64, 0, s.tx.ended.count)
	for n := range s.tx.ended.all() {
		chunks = append(chunks, n)
	}
	slices.Sort(chunks)
	k.b = put32(k.b, uint32(len(chunks)))
	for _, n := range chunks {
		c, _ := s.tx.ended.get(n)
		k.b = putString(put64(k.b, n), strings.TrimRight(string(c.bits[:]), "\x00"))
		k.full()
	}
}

func (s *State) readTransactions(d *decoder) {
	s.tx.next = d.number()
	last := ids.QueueOffset(-1)
	for range d.count(58) {
		x := Transaction{Number: d.number(), Group: d.name(), Origin: ids.PhysicalOffset(d.u64()), At: ids.PhysicalOffset(d.u64())}
		x.Size, x.Stored, x.Immunity = d.u32(), int64(d.u64()), int64(d.u64())
		x.Checks, x.Checked = d.u8(), int64(d.u64())
		d.ascending(last < 0, cmp.Compare(last, x.Number))
		last = x.Number
		if x.Number >= s.tx.next || x.Origin < 0 || x.At < x.Origin || x.Immunity < 0 || x.Checks > MaxChecks || x.Checks == 0 && x.Checked != 0 {
			d.fail(fmt.Errorf("transaction %d makes no sense", x.Number))
		}
		if d.err != nil {
			return
		}
		s.tx.add(s.own, x)
	}
	s.tx.putInOrder()
	lastChunk := int64(-1)
	for range d.count(12) {
		n := int64(d.u64())
		b := d.str()
		d.ascending(lastChunk < 0, cmp.Compare(lastChunk, n))
		lastChunk = n
		if n < 0 || n <= s.tx.oldest() || n > int64(s.tx.next)/endedPerChunk || len(b) == 0 || len(b) > endedPerChunk/4 || b[len(b)-1] == 0 {
			d.fail(fmt.Errorf("chunk %d of decisions makes no sense", n))
		}
		if d.err != nil {
			return
		}
		c := &endedChunk{owner: s.own}
		copy(c.bits[:], b)
		for i := range ids.QueueOffset(endedPerChunk) {
			number := ids.QueueOffset(n)*endedPerChunk + i
			switch _, pending := s.tx.pending.get(number); c.get(number) {
			case Undecided:
				continue
			case Committed, RolledBack:
				c.n++
				if !pending && number < s.tx.next {
					continue
				}
			}
			d.fail(fmt.Errorf("the decision of transaction %d makes no sense", number))
			return
		}
		s.tx.ended.put(s.own, n, c)
	}
}
