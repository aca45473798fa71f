package state

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// message returns the body of a message.
func message(k index.Key, qo ids.QueueOffset, tags int64, size int) []byte {
	b := make([]byte, MessagePrefixSize+size)
	MessagePrefix{Key: k, TagsCode: tags, QueueOffset: qo}.Put(b)
	return b
}

// halfBody returns the body of a half message.
func halfBody(number ids.QueueOffset, group string) []byte {
	p := HalfPrefix{Number: number, Group: group}
	b := make([]byte, p.Size()+30)
	p.Put(b)
	return b
}

// apply applies one record that must succeed.
func apply(tb testing.TB, s *State, time int64, recordType uint8, body []byte) Effect {
	tb.Helper()
	e, err := s.Apply(time, ids.MakeTerm(1, 1), record(recordType, 4096, body))
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

// lockHolder returns the living lock of a group on a queue.
func lockHolder(s *State, group string, k index.Key) (lease, bool) {
	l, ok := s.locks.get(lockKey{k, group})
	if !ok || l.expires <= s.time {
		return lease{}, false
	}
	return l, true
}

// livingLocks counts the living locks.
func livingLocks(s *State) (n int) {
	for _, l := range s.locks.all() {
		if l.expires > s.time {
			n++
		}
	}
	return n
}

// withTopic returns a state with one topic of id 1 and n queues.
func withTopic(tb testing.TB, n int32) *State {
	tb.Helper()
	s := New()
	apply(tb, s, 1, RecordTopicPut, AppendTopicPut(nil, Put, Topic{Name: "orders", ReadQueues: n, WriteQueues: n, Perm: 6}))
	return s
}

// TestRefusals feeds what must stop a replica, and checks that nothing has changed.
func TestRefusals(t *testing.T) {
	t.Parallel()
	s := withTopic(t, 4)
	k := index.Key{Topic: 1}
	apply(t, s, 5, RecordMessage, message(k, 0, 7, 100))
	before := s.Hash()

	unknown := func(r uint8, version uint8, flags uint16) func(error) bool {
		return func(err error) bool {
			var u *UnknownCommandError
			return errors.As(err, &u) && u.Type == r && u.Version == version && u.Flags == flags && u.Offset == 64
		}
	}
	command := func(err error) bool { return errors.As(err, new(*CommandError)) }
	dense := func(want, have ids.QueueOffset) func(error) bool {
		return func(err error) bool {
			var d *DensityError
			return errors.As(err, &d) && d.Want == want && d.Have == have && d.Key.Topic == 1
		}
	}
	long := strings.Repeat("x", 300)
	for name, c := range map[string]struct {
		recordType, version uint8
		flags               uint16
		body                []byte
		ok                  func(error) bool
	}{
		"type 0":                   {0, 1, 0, nil, unknown(0, 1, 0)},
		"type 200":                 {200, 1, 0, nil, unknown(200, 1, 0)},
		"version 0":                {RecordTopicPut, 0, 0, nil, unknown(RecordTopicPut, 0, 0)},
		"version 2 message":        {RecordMessage, 2, 0, message(k, 1, 0, 10), unknown(RecordMessage, 2, 0)},
		"flags":                    {RecordTopicDelete, 1, 1, AppendTopicDelete(nil, "orders"), unknown(RecordTopicDelete, 1, 1)},
		"offset repeated":          {RecordMessage, 1, 0, message(k, 0, 0, 10), dense(1, 0)},
		"offset left out":          {RecordMessage, 1, 0, message(k, 2, 0, 10), dense(1, 2)},
		"first one not 0":          {RecordMessage, 1, 0, message(index.Key{Topic: 1, Queue: 9}, 1, 0, 10), dense(0, 1)},
		"message without head":     {RecordMessage, 1, 0, make([]byte, 23), command},
		"negative queue":           {RecordMessage, 1, 0, message(index.Key{Topic: 1, Queue: -1}, 0, 0, 1), command},
		"negative queue offset":    {RecordMessage, 1, 0, message(k, -1, 0, 1), command},
		"empty command":            {RecordTopicPut, 1, 0, nil, command},
		"empty name":               {RecordTopicDelete, 1, 0, AppendTopicDelete(nil, ""), command},
		"bytes behind":             {RecordTopicDelete, 1, 0, append(AppendTopicDelete(nil, "orders"), 0), command},
		"length lies":              {RecordTopicDelete, 1, 0, []byte{0xff, 0xff, 0xff, 0xff, 'x'}, command},
		"count lies":               {RecordOffsets, 1, 0, []byte{0xff, 0xff, 0xff, 0xff}, command},
		"unknown mode":             {RecordTopicPut, 1, 0, AppendTopicPut(nil, 2, Topic{Name: "a"}), command},
		"negative queues":          {RecordTopicPut, 1, 0, AppendTopicPut(nil, Put, Topic{Name: "a", ReadQueues: -1}), command},
		"retry policy":             {RecordGroupPut, 1, 0, AppendGroupPut(nil, Put, SubscriptionGroup{Name: "g", RetryPolicy: RetryPolicy{Kind: 3}}), command},
		"cut out of order":         {RecordCutFront, 1, 0, AppendCutFront(nil, 0, []QueueMin{{Key: index.Key{Topic: 2}}, {Key: k}}), command},
		"cut below 0":              {RecordCutFront, 1, 0, AppendCutFront(nil, -1, nil), command},
		"lease with body":          {RecordLeaseExtension, 1, 0, []byte(long), command},
		"commit of no transaction": {RecordTransactionEnd, 1, 0, AppendTransactionEnd(nil, 7, Committed, 1), command},
		"commit without a topic":   {RecordTransactionEnd, 1, 0, AppendTransactionEnd(nil, 7, Committed, 0), command},
		"no decision":              {RecordTransactionEnd, 1, 0, AppendTransactionEnd(nil, 7, Undecided, 0), command},
		"half message left out":    {RecordHalf, 1, 0, halfBody(1, "g"), command},
		"half without a group":     {RecordHalf, 1, 0, halfBody(0, ""), command},
		"half too short":           {RecordHalf, 1, 0, halfBody(0, "g")[:19], command},
		"checks out of order":      {RecordTransactionChecks, 1, 0, AppendTransactionChecks(nil, false, []ids.QueueOffset{2, 1}), command},
		"half again too short":     {RecordHalfAgain, 1, 0, make([]byte, 7), command},
		"no settings":              {RecordSettings, 1, 0, AppendSettings(nil, nil), command},
		"settings out of order":    {RecordSettings, 1, 0, AppendSettings(nil, []Setting{{"b", "1"}, {"a", "1"}}), command},
		"setting without a name":   {RecordSettings, 1, 0, AppendSettings(nil, []Setting{{"", "1"}}), command},
		"lock no client":           {RecordLock, 1, 0, AppendLock(nil, "g", "", nil), command},
	} {
		r := record(c.recordType, 64, c.body)
		r.Version, r.Flags = c.version, c.flags
		_, err := s.Apply(1_000_000, ids.MakeTerm(2, 1), r)
		if err == nil || !c.ok(err) {
			t.Errorf("%s: %v", name, err)
		}
		if s.Hash() != before {
			t.Fatalf("%s: the state has changed", name)
		}
	}
}

// TestTopicIncarnations follows a topic that is deleted and created again: nothing of the first life is seen in the second.
func TestTopicIncarnations(t *testing.T) {
	t.Parallel()
	s := withTopic(t, 2)
	old := index.Key{Topic: 1, Queue: 1}
	for i := range 3 {
		apply(t, s, 10, RecordMessage, message(old, ids.QueueOffset(i), 0, 10))
	}
	commit := AppendOffsets(nil, []ConsumerOffset{{"g", 1, 1, 3}})
	apply(t, s, 11, RecordOffsets, commit)
	apply(t, s, 12, RecordLock, AppendLock(nil, "g", "c", []index.Key{old}))
	if e := apply(t, s, 13, RecordTopicDelete, AppendTopicDelete(nil, "orders")); e.Kind != EffectTopicDeleted || e.Topic.ID != 1 {
		t.Fatalf("delete: %+v", e)
	}
	if s.Queues() != 0 || s.NextOffset(old) != 0 || livingLocks(s) != 0 {
		t.Fatal("the deleted topic left something behind")
	}
	e := apply(t, s, 14, RecordTopicPut, AppendTopicPut(nil, Create, Topic{Name: "orders", ReadQueues: 2, WriteQueues: 2, Perm: 6}))
	if e.Kind != EffectTopic || e.Topic.ID != 2 {
		t.Fatalf("the second incarnation: %+v", e)
	}
	// What was on its way for the first incarnation.
	if e := apply(t, s, 15, RecordMessage, message(old, 3, 0, 10)); e.Kind != EffectDropped {
		t.Fatalf("a late message: %+v", e)
	}
	if e := apply(t, s, 16, RecordOffsets, commit); e.Kind != EffectNone {
		t.Fatalf("a late offset: %+v", e)
	}
	if e := apply(t, s, 17, RecordLock, AppendLock(nil, "g", "c", []index.Key{old})); len(e.Locked) != 0 {
		t.Fatalf("a late lock: %+v", e)
	}
	if _, ok := s.ConsumerOffset("g", "orders", 1); ok {
		t.Fatal("the second incarnation has the first one's offset")
	}
}

// TestVersions checks that only what changes something moves a version.
func TestVersions(t *testing.T) {
	t.Parallel()
	s := withTopic(t, 2)
	one := AppendTopicPut(nil, Put, Topic{Name: "orders", ReadQueues: 2, WriteQueues: 2, Perm: 6})
	other := AppendTopicPut(nil, Create, Topic{Name: "orders", ReadQueues: 8, WriteQueues: 8, Perm: 6})
	for i, body := range [][]byte{one, other} {
		e := apply(t, s, 50, RecordTopicPut, body)
		if e.Kind != EffectNone || e.Topic == nil || e.Topic.WriteQueues != 2 || s.TopicVersion() != (DataVersion{1, 1}) {
			t.Fatalf("put %d: %+v, version %+v", i, e, s.TopicVersion())
		}
	}
	apply(t, s, 60, RecordTopicDelete, AppendTopicDelete(nil, "absent"))
	if s.TopicVersion().Counter != 1 {
		t.Fatal("to delete what is not there is a change")
	}
	apply(t, s, 61, RecordTopicPut, AppendTopicPut(nil, Put, Topic{Name: "orders", ReadQueues: 1, WriteQueues: 1, Perm: 4}))
	if got, _ := s.Topic("orders"); got.ID != 1 || got.Perm != 4 || s.TopicVersion() != (DataVersion{2, 61}) {
		t.Fatalf("an update: %+v, version %+v", got, s.TopicVersion())
	}
	g := DefaultGroup("g")
	for range 3 {
		apply(t, s, 70, RecordGroupPut, AppendGroupPut(nil, Put, g))
	}
	if s.GroupVersion() != (DataVersion{1, 70}) {
		t.Fatalf("group version %+v", s.GroupVersion())
	}
}

// TestLocks follows an ordered queue through two clients, the end of a lease and a change of master.
func TestLocks(t *testing.T) {
	t.Parallel()
	s := withTopic(t, 2)
	q := []index.Key{{Topic: 1, Queue: 0}, {Topic: 1, Queue: 1}}
	lock := func(time int64, client string, keys []index.Key) int {
		return len(apply(t, s, time, RecordLock, AppendLock(nil, "g", client, keys)).Locked)
	}
	if n := lock(1000, "a", q); n != 2 {
		t.Fatalf("a takes %d of two free queues", n)
	}
	if n := lock(2000, "b", q); n != 0 {
		t.Fatalf("b takes %d of a's queues", n)
	}
	if n := lock(31_000, "a", q[:1]); n != 1 {
		t.Fatal("a cannot renew its lease")
	}
	if n := lock(61_000, "b", q); n != 1 {
		t.Fatalf("b takes %d queues when one of two leases has ended", n)
	}
	if l, ok := lockHolder(s, "g", q[1]); !ok || l.client != "b" || l.expires != 121_000 {
		t.Fatalf("holder of the second queue: %+v", l)
	}
	apply(t, s, 62_000, RecordUnlock, AppendLock(nil, "g", "a", q))
	if n := lock(62_500, "b", q); n != 2 {
		t.Fatalf("b holds %d queues after a has unlocked", n)
	}

	// The master is gone for a minute and a half. Nobody could renew, so the new term's first record extends all leases.
	extend := record(RecordLeaseExtension, 4096, nil)
	if _, err := s.Apply(150_000, ids.MakeTerm(1, 2), extend); err != nil {
		t.Fatal(err)
	}
	if n := lock(180_000, "a", q); n != 0 {
		t.Fatalf("a takes %d of the queues whose leases were extended", n)
	}
	// A second extension in the same term does nothing.
	if e, err := s.Apply(200_000, ids.MakeTerm(1, 2), extend); err != nil || e.Kind != EffectNone {
		t.Fatalf("second extension: %+v, %v", e, err)
	}
	if n := lock(210_000, "a", q); n != 2 {
		t.Fatalf("a takes %d queues after the extended leases have ended", n)
	}
}

// TestCut follows the first retained offset of two queues.
func TestCut(t *testing.T) {
	t.Parallel()
	s := withTopic(t, 2)
	a, b := index.Key{Topic: 1, Queue: 0}, index.Key{Topic: 1, Queue: 1}
	for i := range ids.QueueOffset(5) {
		apply(t, s, 1, RecordMessage, message(a, i, 0, 10))
	}
	apply(t, s, 1, RecordMessage, message(b, 0, 0, 10))
	apply(t, s, 2, RecordCutFront, AppendCutFront(nil, 65536, []QueueMin{{a, 3}, {b, 1}}))
	for range 2 { // a repeated or older cut moves nothing back
		if first, next := s.QueueRange(a); first != 3 || next != 5 {
			t.Fatalf("queue a is %d to %d", first, next)
		}
		if first, next := s.QueueRange(b); first != 1 || next != 1 || s.CutBase() != 65536 {
			t.Fatalf("queue b is %d to %d, front %d", first, next, s.CutBase())
		}
		apply(t, s, 3, RecordCutFront, AppendCutFront(nil, 4096, []QueueMin{{a, 1}}))
	}
}

// TestReadersBesideApply reads everything from several goroutines while one applies, and writes snapshots of clones. It is
// of use with the race detector.
func TestReadersBesideApply(t *testing.T) {
	t.Parallel()
	y := newStory(7)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for _, topic := range y.s.Topics() {
					y.s.GroupsOn(topic.Name)
					y.s.ConsumerOffsets("group-1", topic.Name)
					y.s.QueueRange(index.Key{Topic: topic.ID})
				}
				y.s.TopicsOf("group-2")
				y.s.HoldsLocks("group-1")
				y.s.Groups()
			}
		})
	}
	var clones sync.WaitGroup
	for i := range 2000 {
		y.step(t)
		if i%100 == 0 {
			c := y.s.Clone()
			clones.Go(func() {
				if first, second := c.Hash(), c.Hash(); first != second {
					t.Error("a clone changes while the state goes on")
				}
			})
		}
	}
	clones.Wait()
	close(stop)
	wg.Wait()
	y.n.check(t, y.s)
}
