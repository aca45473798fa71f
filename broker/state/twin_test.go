package state

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// naive is the state machine in its plainest form: flat maps, nothing shared, everything looked through.
type naive struct {
	time, leaseTerm int64
	nextID          ids.TopicID
	topics          map[string]Topic
	high            map[ids.TopicID]ids.QueueID
	groups          map[string]SubscriptionGroup
	next, first     map[index.Key]ids.QueueOffset
	offsets         map[naiveOffset]ids.QueueOffset
	locks           map[naiveLock]lease
	resets          map[naiveOffset]resetState
	settings        map[string]string
	topicVersion    DataVersion
	groupVersion    DataVersion
	cut             ids.PhysicalOffset
	txNext          ids.QueueOffset
	pending         map[ids.QueueOffset]Transaction
	ended           map[ids.QueueOffset]Decision
}

type naiveOffset struct {
	group string
	k     index.Key
}

type naiveLock naiveOffset

func newNaive() *naive {
	return &naive{
		nextID: 1, topics: map[string]Topic{}, high: map[ids.TopicID]ids.QueueID{}, groups: map[string]SubscriptionGroup{},
		next: map[index.Key]ids.QueueOffset{}, first: map[index.Key]ids.QueueOffset{},
		pending: map[ids.QueueOffset]Transaction{}, ended: map[ids.QueueOffset]Decision{},
		offsets: map[naiveOffset]ids.QueueOffset{}, locks: map[naiveLock]lease{}, resets: map[naiveOffset]resetState{},
		settings: map[string]string{},
	}
}

func (n *naive) byID(id ids.TopicID) (Topic, bool) {
	for _, t := range n.topics {
		if t.ID == id {
			return t, true
		}
	}
	return Topic{}, false
}

func (n *naive) copy() *naive {
	c := *n
	c.settings = maps.Clone(n.settings)
	c.pending, c.ended = maps.Clone(n.pending), maps.Clone(n.ended)
	c.topics, c.high, c.groups = maps.Clone(n.topics), maps.Clone(n.high), maps.Clone(n.groups)
	c.next, c.first, c.offsets, c.locks = maps.Clone(n.next), maps.Clone(n.first), maps.Clone(n.offsets), maps.Clone(n.locks)
	c.resets = maps.Clone(n.resets)
	return &c
}

// story draws records and applies each to the state and to its twin.
type story struct {
	r    *rand.Rand
	s    *State
	n    *naive
	term ids.Term
	off  ids.PhysicalOffset
	wall int64
}

func newStory(seed uint64) *story {
	return &story{r: rand.New(rand.NewPCG(seed, 2)), s: New(), n: newNaive(), term: ids.MakeTerm(1, 1), wall: 1000}
}

func (y *story) topicName() string { return fmt.Sprintf("topic-%d", y.r.IntN(5)) }
func (y *story) groupName() string { return fmt.Sprintf("group-%d", y.r.IntN(4)) }

func (y *story) key() index.Key {
	return index.Key{Topic: ids.TopicID(1 + y.r.IntN(int(y.n.nextID)+1)), Queue: ids.QueueID(y.r.IntN(6))}
}

func (y *story) keys() []index.Key {
	var all []index.Key
	for range 1 + y.r.IntN(4) {
		all = append(all, y.key())
	}
	return all
}

func record(t uint8, off ids.PhysicalOffset, body []byte) commitlog.Record {
	return commitlog.Record{Type: t, Version: RecordVersion, Offset: off, Body: body}
}

// step draws one record, applies it and compares the effect. It returns the record and its frame's time.
func (y *story) step(tb testing.TB) (commitlog.Record, int64) {
	tb.Helper()
	y.wall += int64(y.r.IntN(3000)) - 200 // the wall clock may go back
	if y.r.IntN(40) == 0 {
		y.wall += 70_000
	}
	y.off += 8 * ids.PhysicalOffset(1+y.r.IntN(200))
	n, frame := y.n, max(y.wall, y.n.time)
	before := n.time
	var rec commitlog.Record
	want := Effect{Kind: EffectNone}
	switch c := y.r.IntN(128); {
	case c >= 125:
		v := Setting{fmt.Sprintf("setting-%d", y.r.IntN(3)), []string{"", "a", "b"}[y.r.IntN(3)]}
		rec = record(RecordSettings, y.off, AppendSettings(nil, []Setting{v}))
		if v.Value != n.settings[v.Name] {
			want.Kind = EffectSettings
			n.topicVersion = DataVersion{n.topicVersion.Counter + 1, frame}
			if n.settings[v.Name] = v.Value; v.Value == "" {
				delete(n.settings, v.Name)
			}
		}
	case c >= 100:
		rec, want = y.transaction(frame)
	case c < 45:
		p := MessagePrefix{Key: y.key(), TagsCode: y.r.Int64() - 1<<62}
		p.QueueOffset = n.next[p.Key]
		body := make([]byte, MessagePrefixSize+y.r.IntN(100))
		p.Put(body)
		rec = record(RecordMessage, y.off, body)
		want = Effect{Kind: EffectMessage, Key: p.Key, QueueOffset: p.QueueOffset, Entry: index.Entry{
			Offset: y.off + 24, Size: uint32(len(body) - 24), TagsCode: p.TagsCode}}
		if _, ok := n.byID(p.Key.Topic); !ok {
			want.Kind = EffectDropped
		} else {
			n.next[p.Key]++
			n.high[p.Key.Topic] = max(n.high[p.Key.Topic], p.Key.Queue+1)
		}
	case c < 55:
		rec, want = y.topicPut(frame)
	case c < 58:
		name := y.topicName()
		rec = record(RecordTopicDelete, y.off, AppendTopicDelete(nil, name))
		if t, ok := n.topics[name]; ok {
			want = Effect{Kind: EffectTopicDeleted, Topic: &t}
			delete(n.topics, name)
			maps.DeleteFunc(n.next, func(k index.Key, _ ids.QueueOffset) bool { return k.Topic == t.ID })
			maps.DeleteFunc(n.first, func(k index.Key, _ ids.QueueOffset) bool { return k.Topic == t.ID })
			maps.DeleteFunc(n.offsets, func(k naiveOffset, _ ids.QueueOffset) bool { return k.k.Topic == t.ID })
			maps.DeleteFunc(n.locks, func(k naiveLock, _ lease) bool { return k.k.Topic == t.ID })
			maps.DeleteFunc(n.resets, func(k naiveOffset, _ resetState) bool { return k.k.Topic == t.ID })
			n.topicVersion = DataVersion{n.topicVersion.Counter + 1, frame}
		}
	case c < 63:
		rec, want = y.groupPut(frame)
	case c < 66:
		name, clean := y.groupName(), y.r.IntN(2) == 0
		rec = record(RecordGroupDelete, y.off, AppendGroupDelete(nil, name, clean))
		if g, ok := n.groups[name]; ok {
			want = Effect{Kind: EffectGroupDeleted, Group: &g}
			delete(n.groups, name)
			n.groupVersion = DataVersion{n.groupVersion.Counter + 1, frame}
		}
		if clean {
			maps.DeleteFunc(n.offsets, func(k naiveOffset, _ ids.QueueOffset) bool { return k.group == name })
			maps.DeleteFunc(n.resets, func(k naiveOffset, _ resetState) bool { return k.group == name })
		}
	case c < 80:
		var list []ConsumerOffset
		for range y.r.IntN(6) {
			k := y.key()
			o := ConsumerOffset{y.groupName(), k.Topic, k.Queue, ids.QueueOffset(y.r.IntN(12) - 1)}
			list = append(list, o)
			if _, ok := n.byID(k.Topic); !ok || o.Offset < 0 || k.Queue >= n.high[k.Topic] {
				continue
			}
			if _, pending := n.resets[naiveOffset{o.Group, k}]; pending {
				continue
			}
			o.Offset = min(o.Offset, n.next[k])
			if n.offsets[naiveOffset{o.Group, k}] > o.Offset {
				want.Back = append(want.Back, o)
			}
			n.offsets[naiveOffset{o.Group, k}] = o.Offset
			want.Kind, want.Offsets = EffectOffsets, append(want.Offsets, o)
		}
		rec = record(RecordOffsets, y.off, AppendOffsets(nil, list))
	case c < 83:
		group := y.groupName()
		var list []ConsumerOffset
		for range 1 + y.r.IntN(4) {
			k := y.key()
			o := ConsumerOffset{group, k.Topic, k.Queue, ids.QueueOffset(y.r.IntN(12))}
			list = append(list, o)
			if _, ok := n.byID(k.Topic); !ok || k.Queue >= n.high[k.Topic] {
				continue
			}
			o.Offset = min(o.Offset, n.next[k])
			n.offsets[naiveOffset{group, k}], n.resets[naiveOffset{group, k}] = o.Offset, resetState{o.Offset, frame}
			want.Kind, want.Offsets = EffectReset, append(want.Offsets, o)
		}
		rec = record(RecordReset, y.off, AppendReset(nil, group, list))
	case c < 86:
		id, offset := naiveOffset{y.groupName(), y.key()}, ids.QueueOffset(y.r.IntN(12))
		if r, ok := n.resets[id]; ok && y.r.IntN(2) == 0 {
			offset = r.offset
		}
		rec = record(RecordResetTaken, y.off, AppendResetTaken(nil, id.group, id.k, offset))
		if r, ok := n.resets[id]; ok && r.offset == offset {
			delete(n.resets, id)
		}
	case c < 90:
		group, client, list := y.groupName(), fmt.Sprintf("client-%d", y.r.IntN(3)), y.keys()
		rec = record(RecordLock, y.off, AppendLock(nil, group, client, list))
		want = Effect{Kind: EffectLocks, Locked: []index.Key{}}
		for _, k := range list {
			id := naiveLock{group, k}
			l, held := n.locks[id]
			if _, ok := n.byID(k.Topic); ok && (!held || l.client == client || l.expires <= frame) {
				n.locks[id] = lease{client, frame + LeaseMillis}
				want.Locked = append(want.Locked, k)
			}
		}
	case c < 94:
		group, client, list := y.groupName(), fmt.Sprintf("client-%d", y.r.IntN(3)), y.keys()
		rec = record(RecordUnlock, y.off, AppendLock(nil, group, client, list))
		want = Effect{Kind: EffectUnlocked, Locked: []index.Key{}}
		live := false
		for _, k := range list {
			if l, ok := n.locks[naiveLock{group, k}]; ok && l.client == client {
				live = live || l.expires > n.time
				want.Locked = append(want.Locked, k)
				delete(n.locks, naiveLock{group, k})
			}
		}
		if !live {
			want.Locked = nil // ended ones may be forgotten already: not compared
		}
	case c < 97:
		rec, want = y.cutFront()
	default:
		if y.r.IntN(2) == 0 {
			y.term++
		}
		rec = record(RecordLeaseExtension, y.off, nil)
		if int64(y.term) > n.leaseTerm {
			n.leaseTerm, want.Kind = int64(y.term), EffectLeases
			for k, l := range n.locks {
				if l.expires > before {
					n.locks[k] = lease{l.client, frame + LeaseMillis}
				}
			}
		}
	}
	n.time = frame
	got, err := y.s.Apply(y.wall, y.term, rec)
	if err != nil {
		tb.Fatalf("apply %d: %v", rec.Type, err)
	}
	if got.Kind == EffectUnlocked && want.Locked == nil {
		got.Locked = nil
	}
	if got.Kind == EffectNone { // what a put found is told as well
		got.Topic, got.Group = nil, nil
	}
	if !reflect.DeepEqual(got, want) {
		tb.Fatalf("record of type %d:\n got %+v\nwant %+v", rec.Type, got, want)
	}
	return rec, y.wall
}

// transaction draws one of the records of transactions.
func (y *story) transaction(frame int64) (commitlog.Record, Effect) {
	n := y.n
	switch c := y.r.IntN(100); {
	case c < 40:
		p := HalfPrefix{n.txNext, y.r.Int64N(10_000), y.groupName()}
		body := make([]byte, p.Size()+y.r.IntN(50))
		p.Put(body)
		at := y.off + ids.PhysicalOffset(p.Size())
		n.pending[p.Number] = Transaction{Number: p.Number, Group: p.Group, Origin: at, At: at, Size: uint32(len(body) - p.Size()), Stored: frame, Immunity: p.Immunity}
		n.txNext++
		return record(RecordHalf, y.off, body), Effect{Kind: EffectHalf, Number: p.Number}
	case c < 50:
		number := y.number()
		body := make([]byte, HalfAgainPrefix+y.r.IntN(50))
		PutHalfAgain(body, number)
		x, ok := n.pending[number]
		if !ok {
			return record(RecordHalfAgain, y.off, body), Effect{}
		}
		x.At, x.Size = y.off+HalfAgainPrefix, uint32(len(body)-HalfAgainPrefix)
		n.pending[number] = x
		return record(RecordHalfAgain, y.off, body), Effect{Kind: EffectHalfAgain, Number: number}
	case c < 75:
		number, d, topic := y.number(), RolledBack, ids.TopicID(0)
		_, ok := n.pending[number]
		if ok && y.r.IntN(2) == 0 { // a commit of another one would stop the replica: TestRefusals
			d, topic = Committed, y.key().Topic
		}
		rec := record(RecordTransactionEnd, y.off, AppendTransactionEnd(nil, number, d, topic))
		if !ok {
			return rec, Effect{}
		}
		if _, lives := n.byID(topic); d == Committed && !lives {
			return rec, Effect{Kind: EffectTransactionKept, Number: number}
		}
		delete(n.pending, number)
		n.ended[number] = d
		return rec, Effect{Kind: EffectTransactionEnded, Number: number, Decision: d}
	}
	var list []ids.QueueOffset
	for i := range n.txNext + 2 {
		if y.r.IntN(2) == 0 {
			list = append(list, i)
		}
	}
	resume := y.r.IntN(10) == 0
	e := Effect{}
	for _, i := range list {
		x, ok := n.pending[i]
		if !ok || !resume && x.Checks == MaxChecks {
			continue
		}
		if x.Checks++; x.Checks == MaxChecks {
			e.GaveUp++
		}
		x.Checked = frame
		if resume {
			x.Checks, x.Checked = 0, 0
			e.GaveUp = 0
		}
		n.pending[i] = x
		e.Kind, e.Checked = EffectTransactionsChecked, append(e.Checked, i)
	}
	return record(RecordTransactionChecks, y.off, AppendTransactionChecks(nil, resume, list)), e
}

// TestPlacesOfHalves holds the first place of a pending half message against a look at all of them, in a state, in one that was loaded and in
// a clone, and that what is kept for it is in proportion to what is pending.
func TestPlacesOfHalves(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(rand.Uint64(), 1))
	s := New()
	pending := map[ids.QueueOffset]ids.PhysicalOffset{}
	off, most := ids.PhysicalOffset(64), 0
	apply := func(kind uint8, body []byte) {
		t.Helper()
		if _, err := s.Apply(1000, 1, record(kind, off, body)); err != nil {
			t.Fatal(err)
		}
		off += ids.PhysicalOffset(len(body)+63) &^ 7
	}
	some := func() (ids.QueueOffset, bool) {
		all := slices.Sorted(maps.Keys(pending))
		if len(all) == 0 {
			return 0, false
		}
		return all[rnd.IntN(len(all))], true
	}
	for i := range 20_000 {
		switch c := rnd.IntN(100); {
		case c < 45:
			p := HalfPrefix{Number: s.NextHalf(), Group: "pg"}
			body := make([]byte, p.Size()+10)
			p.Put(body)
			pending[p.Number] = off + ids.PhysicalOffset(p.Size())
			apply(RecordHalf, body)
		case c < 55:
			if n, ok := some(); ok {
				body := make([]byte, HalfAgainPrefix+10)
				PutHalfAgain(body, n)
				pending[n] = off + HalfAgainPrefix
				apply(RecordHalfAgain, body)
			}
		default:
			if n, ok := some(); ok {
				delete(pending, n)
				apply(RecordTransactionEnd, AppendTransactionEnd(nil, n, RolledBack, 0))
			}
		}
		most = max(most, len(pending))
		if len(s.tx.places) > 2*most+leftPlaces {
			t.Fatalf("step %d: %d places for at most %d that were pending", i, len(s.tx.places), most)
		}
		if i%50 != 0 {
			continue
		}
		first := ids.PhysicalOffset(1 << 62)
		for _, at := range pending {
			first = min(first, at)
		}
		for _, st := range []*State{s, s.Clone(), reload(t, s)} {
			for range 2 {
				if st.tx.holdsFront(first) || len(pending) > 0 && !st.tx.holdsFront(first+1) {
					t.Fatalf("step %d: the first of %d half messages does not lie at %d", i, len(pending), first)
				}
			}
		}
	}
}

// number is that of a transaction, mostly a pending one.
func (y *story) number() ids.QueueOffset {
	all := slices.Sorted(maps.Keys(y.n.pending))
	if len(all) == 0 || y.r.IntN(4) == 0 {
		return ids.QueueOffset(y.r.IntN(int(y.n.txNext) + 2))
	}
	return all[y.r.IntN(len(all))]
}

// checkTransactions compares every answer about transactions.
func (n *naive) checkTransactions(s *State, same func(string, any, any)) {
	same("next half message", s.NextHalf(), n.txNext)
	groups, gaveUp := map[string]int{}, 0
	for _, x := range n.pending {
		groups[x.Group]++
		if x.GaveUp() {
			gaveUp++
		}
	}
	pending, parked := s.PendingTransactions()
	same("pending transactions", []int{pending, parked}, []int{len(n.pending), gaveUp})
	for g := range 4 {
		group := fmt.Sprintf("group-%d", g)
		same("pending transactions of "+group, s.PendingOf(group), groups[group])
	}
	each := map[ids.QueueOffset]Transaction{}
	s.EachTransaction(func(x Transaction) { each[x.Number] = x })
	same("each transaction", each, n.pending)
	for i := ids.QueueOffset(-1); i < n.txNext+2; i++ {
		x, d, is, known := s.Transaction(i)
		want, wantIs := n.pending[i]
		same(fmt.Sprint("transaction ", i), []any{x, d, is, known}, []any{want, n.ended[i], wantIs, i >= 0 && i < n.txNext})
	}
}

func (y *story) topicPut(frame int64) (commitlog.Record, Effect) {
	n := y.n
	queues := int32(1 + y.r.IntN(3))
	t := Topic{Name: y.topicName(), ReadQueues: queues, WriteQueues: queues, Perm: 6, Order: y.r.IntN(2) == 0}
	if y.r.IntN(2) == 0 {
		t.Attributes = map[string]string{"b": "2", "a": "1"}
	}
	mode := PutMode(y.r.IntN(2))
	rec := record(RecordTopicPut, y.off, AppendTopicPut(nil, mode, t))
	old, ok := n.topics[t.Name]
	t.ID = old.ID
	if ok && (mode == Create || reflect.DeepEqual(old, t)) {
		return rec, Effect{Kind: EffectNone}
	}
	if !ok {
		t.ID = n.nextID
		n.nextID++
	}
	n.topics[t.Name] = t
	n.high[t.ID] = max(n.high[t.ID], ids.QueueID(queues))
	n.topicVersion = DataVersion{n.topicVersion.Counter + 1, frame}
	return rec, Effect{Kind: EffectTopic, Topic: &t}
}

func (y *story) groupPut(frame int64) (commitlog.Record, Effect) {
	n := y.n
	g := DefaultGroup(y.groupName())
	g.RetryMax = int32(y.r.IntN(3))
	if y.r.IntN(2) == 0 {
		g.RetryPolicy = RetryPolicy{Kind: RetryCustomized, Next: []int64{1000, 5000}}
		g.Subscriptions = []Subscription{{Topic: "t", Expression: "*", ExpressionType: "TAG", Version: 7}}
	}
	mode := PutMode(y.r.IntN(2))
	rec := record(RecordGroupPut, y.off, AppendGroupPut(nil, mode, g))
	if old, ok := n.groups[g.Name]; ok && (mode == Create || reflect.DeepEqual(old, g)) {
		return rec, Effect{Kind: EffectNone}
	}
	n.groups[g.Name] = g
	n.groupVersion = DataVersion{n.groupVersion.Counter + 1, frame}
	return rec, Effect{Kind: EffectGroup, Group: &g}
}

func (y *story) cutFront() (commitlog.Record, Effect) {
	n := y.n
	base := ids.PhysicalOffset(y.r.Int64N(int64(y.off)))
	if y.r.IntN(2) == 0 { // else a pending half message would nearly always be in the way
		for _, x := range n.pending {
			base = min(base, x.At)
		}
	}
	first := maps.Clone(n.first)
	var mins []QueueMin
	for _, k := range slices.SortedFunc(maps.Keys(n.next), index.Key.Compare) {
		if y.r.IntN(3) == 0 {
			m := QueueMin{k, ids.QueueOffset(y.r.IntN(int(n.next[k]) + 3))}
			mins = append(mins, m)
			n.first[k] = max(n.first[k], min(m.Min, n.next[k]))
		}
	}
	mins = append(mins, QueueMin{index.Key{Topic: 1 << 30, Queue: 3}, 9}) // of a topic that is gone
	for _, x := range n.pending {
		if x.At < base {
			n.first = first
			return record(RecordCutFront, y.off, AppendCutFront(nil, base, mins)), Effect{}
		}
	}
	n.cut = max(n.cut, base)
	return record(RecordCutFront, y.off, AppendCutFront(nil, base, mins)), Effect{Kind: EffectCut, Cut: n.cut}
}

// check compares every answer.
func (n *naive) check(tb testing.TB, s *State) {
	tb.Helper()
	same := func(what string, got, want any) {
		tb.Helper()
		if !reflect.DeepEqual(got, want) {
			tb.Fatalf("%s:\n got %+v\nwant %+v", what, got, want)
		}
	}
	topics := slices.SortedFunc(maps.Values(n.topics), func(a, b Topic) int { return cmp.Compare(a.Name, b.Name) })
	same("topics", append([]Topic{}, s.Topics()...), append([]Topic{}, topics...))
	groups := slices.SortedFunc(maps.Values(n.groups), func(a, b SubscriptionGroup) int { return cmp.Compare(a.Name, b.Name) })
	same("groups", append([]SubscriptionGroup{}, s.Groups()...), append([]SubscriptionGroup{}, groups...))
	settings := map[string]string{}
	for _, v := range s.Settings() {
		settings[v.Name] = v.Value
	}
	same("settings", settings, n.settings)
	same("versions", []DataVersion{s.TopicVersion(), s.GroupVersion()}, []DataVersion{n.topicVersion, n.groupVersion})
	same("time", s.Time(), n.time)
	same("cut", s.CutBase(), n.cut)
	for id := range n.nextID + 2 {
		for q := range ids.QueueID(7) {
			k := index.Key{Topic: id, Queue: q}
			same("next of "+k.String(), s.NextOffset(k), n.next[k])
			same("first of "+k.String(), s.MinOffset(k), n.first[k])
			for g := range 4 {
				group := fmt.Sprintf("group-%d", g)
				if t, ok := n.byID(id); ok {
					got, ok := s.ConsumerOffset(group, t.Name, q)
					want, wantOK := n.offsets[naiveOffset{group, k}]
					same("offset of "+group+" in "+k.String(), []any{got, ok}, []any{want, wantOK})
				}
				reset, ok := s.PendingReset(group, k)
				wantReset, pending := n.resets[naiveOffset{group, k}]
				same("reset of "+group+" in "+k.String(), []any{reset.Offset, reset.Time, ok}, []any{wantReset.offset, wantReset.time, pending})
				got, ok := lockHolder(s, group, k)
				want, held := n.locks[naiveLock{group, k}]
				if held = held && want.expires > n.time; !held {
					want = lease{}
				}
				same("lock of "+group+" on "+k.String(), []any{got.client, got.expires, ok}, []any{want.client, want.expires, held})
			}
		}
	}
	n.checkLists(tb, s, same)
	n.checkTransactions(s, same)
}

func (n *naive) checkLists(tb testing.TB, s *State, same func(string, any, any)) {
	tb.Helper()
	for name, t := range n.topics {
		groups := map[string]bool{}
		for k := range n.offsets {
			if k.k.Topic == t.ID {
				groups[k.group] = true
			}
		}
		same("groups on "+name, append([]string{}, s.GroupsOn(name)...), append([]string{}, slices.Sorted(maps.Keys(groups))...))
	}
	living := 0
	for _, l := range n.locks {
		if l.expires > n.time {
			living++
		}
	}
	same("locks", livingLocks(s), living)
	same("resets", len(s.pendingResets()), len(n.resets))
	for g := range 4 {
		group, topics, count := fmt.Sprintf("group-%d", g), map[string]bool{}, 0
		for k := range n.offsets {
			if t, ok := n.byID(k.k.Topic); ok && k.group == group {
				topics[t.Name] = true
				count++
			}
		}
		same("topics of "+group, append([]string{}, s.TopicsOf(group)...), append([]string{}, slices.Sorted(maps.Keys(topics))...))
		for name := range topics {
			count -= len(s.ConsumerOffsets(group, name))
		}
		same("offsets of "+group, count, 0)
	}
}

// invariants checks the numbered list of State.
func invariants(tb testing.TB, s *State) {
	tb.Helper()
	fail := func(i int, what any) { tb.Fatalf("invariant %d does not hold for %+v", i, what) }
	if s.byName.count != s.byID.count {
		fail(1, s.byName.count)
	}
	for id, t := range s.byID.all() {
		if named, _ := s.byName.get(t.Name); named != t || id != t.ID || id >= s.nextTopic {
			fail(1, t)
		}
	}
	count := 0
	for k, q := range s.queues.all() {
		count++
		t, ok := s.byID.get(k.Topic)
		if !ok {
			fail(2, k)
		}
		if q.min < 0 || q.min > q.next || k.Queue >= t.high {
			fail(3, k)
		}
	}
	if count != s.queues.count {
		tb.Fatalf("%d queues are counted as %d", count, s.queues.count)
	}
	for k, q := range s.offsets.all() {
		if _, ok := s.byID.get(k.topic); !ok {
			fail(2, k)
		}
		for _, o := range q.list {
			if at, _ := s.queues.get(index.Key{Topic: k.topic, Queue: o.queue}); o.offset < 0 || o.offset > at.next {
				fail(4, o)
			}
		}
	}
	for k := range s.locks.all() {
		if _, ok := s.byID.get(k.Topic); !ok {
			fail(2, k)
		}
	}
	for k, r := range s.resets.all() {
		t, ok := s.byID.get(k.Topic)
		if !ok {
			fail(2, k)
		}
		if o, stored := s.ConsumerOffset(k.group, t.Name, k.Queue); !stored || o != r.offset {
			fail(4, k)
		}
	}
}

// TestTwin applies random records to the state and to a plain one. Clones that were taken on the way must stay as they
// were, and a state that is loaded from a snapshot must go on like the one that was never saved.
func TestTwin(t *testing.T) {
	t.Parallel()
	for seed := range uint64(16) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			y := newStory(seed)
			type saved struct {
				s *State
				n *naive
				h [32]byte
			}
			var clones []saved
			for i := range 800 {
				y.step(t)
				switch {
				case i%97 == 0:
					y.n.check(t, y.s)
					invariants(t, y.s)
				case y.r.IntN(60) == 0:
					c := y.s.Clone()
					clones = append(clones, saved{c, y.n.copy(), c.Hash()})
				case y.r.IntN(60) == 0:
					y.s = reload(t, y.s)
				case y.r.IntN(200) == 0 && len(clones) > 0:
					// A clone is a state of its own: go on with one, and the old one becomes a clone.
					c := &clones[y.r.IntN(len(clones))]
					was := saved{y.s, y.n, y.s.Hash()}
					y.s, y.n = c.s, c.n
					*c = was
				}
			}
			y.n.check(t, y.s)
			invariants(t, y.s)
			for _, c := range clones {
				c.n.check(t, c.s)
				if c.s.Hash() != c.h {
					t.Fatal("a clone has changed")
				}
			}
		})
	}
}

// reload writes s and reads it again. Both must have the same bytes.
func reload(tb testing.TB, s *State) *State {
	tb.Helper()
	var a, b bytes.Buffer
	if err := s.Snapshot(&a); err != nil {
		tb.Fatal(err)
	}
	l, err := Load(bytes.NewReader(a.Bytes()))
	if err != nil {
		tb.Fatal(err)
	}
	if err := l.Snapshot(&b); err != nil {
		tb.Fatal(err)
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) || l.Hash() != s.Hash() {
		tb.Fatal("a state that was written and read differs")
	}
	return l
}

// TestReplicas applies the same records to two states, one of which is saved and loaded on the way: equal hashes after
// every record.
func TestReplicas(t *testing.T) {
	t.Parallel()
	y, other := newStory(99), New()
	for i := range 1500 {
		rec, frame := y.step(t)
		if _, err := other.Apply(frame, y.term, rec); err != nil {
			t.Fatal(err)
		}
		if i%50 == 0 {
			other = reload(t, other)
		}
		if i%10 == 0 && other.Hash() != y.s.Hash() {
			t.Fatalf("the replicas differ after record %d of type %d", i, rec.Type)
		}
	}
}

// TestForgottenDecisions ends more transactions than are remembered: each decision is right or no more known, never wrong, and the memory
// has its bound.
func TestForgottenDecisions(t *testing.T) {
	t.Parallel()
	s := New()
	x := newTransactions()
	n := ids.QueueOffset(endedPerChunk * (endedChunks + 3))
	for at := ids.QueueOffset(0); at < n; at += endedPerChunk { // eight of each chunk are enough
		x.next = at + 8
		x.ended.del(s.own, x.oldest())
		for i := range ids.QueueOffset(8) {
			x.decide(s.own, at+i, Decision(1+(at+i)%2))
		}
	}
	x.next = n - 1
	if x.ended.count != endedChunks {
		t.Errorf("%d chunks are kept, want %d", x.ended.count, endedChunks)
	}
	x.decide(s.own, 5, Committed) // one that was pending all the time
	s.tx = x
	for i := ids.QueueOffset(0); i < n; i += endedPerChunk {
		old := int64(i)/endedPerChunk <= x.oldest()
		for j := range ids.QueueOffset(9) {
			want := Decision(1 + (i+j)%2)
			if old || j == 8 {
				want = Undecided
			}
			if _, d, pending, known := s.Transaction(i + j); d != want || pending || known != (i+j < x.next) {
				t.Fatalf("transaction %d: %v, pending %v, known %v; want %v", i+j, d, pending, known, want)
			}
		}
	}
	reload(t, s)
}
