package state

import (
	"bytes"
	"encoding/hex"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/timer"
)

// golden returns the bytes of a golden file and checks that a page of the documentation shows each of its lines: up to 16
// bytes in hexadecimal, from column 50 on what they mean.
func golden(tb testing.TB, name, page string) []byte {
	tb.Helper()
	text, err := os.ReadFile("testdata/" + name + ".hex")
	if err != nil {
		tb.Fatal(err)
	}
	shown, err := os.ReadFile("../../docs/format/" + page)
	if err != nil {
		tb.Fatal(err)
	}
	if !bytes.Contains(shown, text) {
		tb.Errorf("docs/format/%s does not show testdata/%s.hex as it is", page, name)
	}
	var all []byte
	for line := range strings.Lines(string(text)) {
		b, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(line[:min(len(line), 48)]), " ", ""))
		if err != nil {
			tb.Fatalf("%s: %q: %v", name, line, err)
		}
		all = append(all, b...)
	}
	return all
}

func goldenTopic() Topic {
	return Topic{Name: "orders", ReadQueues: 8, WriteQueues: 4, Perm: 6, Order: true, Attributes: map[string]string{"type": "FIFO"}}
}

func goldenGroup() SubscriptionGroup {
	g := DefaultGroup("billing")
	g.RetryPolicy = RetryPolicy{Kind: RetryCustomized, Next: []int64{1000, 5000}}
	g.Subscriptions = []Subscription{{Topic: "orders", Expression: "*", ExpressionType: "TAG", Version: 7}}
	return g
}

var goldenSettings = []Setting{{"brokerPermission", "4"}, {"fileReservedTime", ""}}

func goldenCommands() map[string]struct {
	recordType uint8
	body       []byte
	command    any
} {
	t3 := func(q ids.QueueID) index.Key { return index.Key{Topic: 3, Queue: q} }
	offsets := []ConsumerOffset{{"billing", 3, 0, 17}, {"billing", 3, 1, 40}, {"audit", 3, 0, 0}}
	mins := []QueueMin{{t3(1), 12}}
	lock := lockCommand{group: "billing", client: "10.0.0.9@71", keys: []index.Key{t3(0), t3(1)}}
	const due = 1_796_000_000_000
	fire := TimerFire{From: timer.Pos{Due: due - 1000, Offset: 4400}, To: timer.Pos{Due: due, Offset: 9000}, Count: 2, Bytes: 300, Recalled: []timer.Pos{{Due: due, Offset: 8800}}}
	recall := TimerRecall{timer.Pos{Due: due, Offset: 8800}, 150}
	roll := TimerRoll{From: 4096, To: 1 << 30, Count: 2, Bytes: 300}
	return map[string]struct {
		recordType uint8
		body       []byte
		command    any
	}{
		"topic-put":          {RecordTopicPut, AppendTopicPut(nil, Create, goldenTopic()), topicPut{Create, goldenTopic()}},
		"topic-delete":       {RecordTopicDelete, AppendTopicDelete(nil, "orders"), topicDelete{"orders"}},
		"group-put":          {RecordGroupPut, AppendGroupPut(nil, Put, goldenGroup()), groupPut{Put, goldenGroup()}},
		"group-delete":       {RecordGroupDelete, AppendGroupDelete(nil, "billing", true), groupDelete{"billing", true}},
		"offsets":            {RecordOffsets, AppendOffsets(nil, offsets), offsetsCommand{offsets}},
		"lock":               {RecordLock, AppendLock(nil, lock.group, lock.client, lock.keys), lock},
		"transaction-end":    {RecordTransactionEnd, AppendTransactionEnd(nil, 42, Committed, 3), transactionEnd{42, Committed, 3}},
		"transaction-checks": {RecordTransactionChecks, AppendTransactionChecks(nil, false, []ids.QueueOffset{42, 43}), transactionChecks{false, []ids.QueueOffset{42, 43}}},
		"reset":              {RecordReset, AppendReset(nil, "billing", offsets[:2]), resetCommand{"billing", offsets[:2]}},
		"reset-taken":        {RecordResetTaken, AppendResetTaken(nil, "billing", t3(1), 40), resetTaken{Reset{Group: "billing", Key: t3(1), Offset: 40}}},
		"freeze":             {RecordFreeze, AppendFreeze(nil, false), freezeCommand{false}},
		"settings":           {RecordSettings, AppendSettings(nil, goldenSettings), settingsPut{goldenSettings}},
		"timer-fire":         {RecordTimerFire, fire.Append(nil), fire},
		"timer-recall":       {RecordTimerRecall, recall.Append(nil), recall},
		"timer-roll":         {RecordTimerRoll, roll.Append(nil), roll},
		"cut-front":          {RecordCutFront, AppendCutFront(nil, 1<<30, mins), cutFront{1 << 30, mins}},
	}
}

// TestGoldenCommands compares what is encoded, and what is decoded, with bytes that were written down by other means.
func TestGoldenCommands(t *testing.T) {
	t.Parallel()
	for name, c := range goldenCommands() {
		want := golden(t, name, "commands.md")
		if !bytes.Equal(c.body, want) {
			t.Errorf("%s:\n got %x\nwant %x", name, c.body, want)
		}
		got, err := decodeCommand(c.recordType, want)
		if err != nil || !reflect.DeepEqual(got, c.command) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	prefix := MessagePrefix{Key: index.Key{Topic: 3, Queue: 1}, TagsCode: -1, QueueOffset: 42}
	b := make([]byte, MessagePrefixSize)
	prefix.Put(b)
	if want := golden(t, "message-prefix", "commands.md"); !bytes.Equal(b, want) {
		t.Errorf("prefix: got %x, want %x", b, want)
	}
	if got, err := ParseMessagePrefix(b); err != nil || got != prefix {
		t.Errorf("prefix: %+v, %v", got, err)
	}
	half := HalfPrefix{Number: 42, Immunity: 6000, Group: "billing"}
	b = make([]byte, half.Size())
	half.Put(b)
	if want := golden(t, "half-prefix", "commands.md"); !bytes.Equal(b, want) {
		t.Errorf("half prefix: got %x, want %x", b, want)
	}
	if got, rest, err := ParseHalf(append(b, "record"...)); err != nil || got != half || string(rest) != "record" {
		t.Errorf("half prefix: %+v, %q, %v", got, rest, err)
	}
	b = make([]byte, HalfAgainPrefix)
	PutHalfAgain(b, 42)
	if want := golden(t, "half-again-prefix", "commands.md"); !bytes.Equal(b, want) {
		t.Errorf("half again prefix: got %x, want %x", b, want)
	}
}

// TestGoldenSnapshot builds the state that the page shows, writes its file and reads it.
func TestGoldenSnapshot(t *testing.T) {
	t.Parallel()
	want := golden(t, "snapshot", "snapshot.md")
	s := New()
	k := index.Key{Topic: 1, Queue: 1}
	apply(t, s, 1000, RecordTopicPut, AppendTopicPut(nil, Put, goldenTopic()))
	apply(t, s, 2000, RecordGroupPut, AppendGroupPut(nil, Put, goldenGroup()))
	apply(t, s, 3000, RecordMessage, message(k, 0, 0, 100))
	apply(t, s, 3000, RecordMessage, message(k, 1, 0, 100))
	apply(t, s, 4000, RecordOffsets, AppendOffsets(nil, []ConsumerOffset{{"billing", 1, 1, 2}}))
	apply(t, s, 4000, RecordCutFront, AppendCutFront(nil, 1<<30, []QueueMin{{k, 1}}))
	if _, err := s.Apply(5000, ids.MakeTerm(1, 2), record(RecordLeaseExtension, 8, nil)); err != nil {
		t.Fatal(err)
	}
	apply(t, s, 5000, RecordLock, AppendLock(nil, "billing", "c1", []index.Key{k}))

	var group ids.GroupID
	for i := range group {
		group[i] = 0x91
	}
	fs := vfs.NewMem()
	m := SnapshotMeta{Group: group, Index: 9, Term: ids.MakeTerm(1, 2), Offset: 1<<30 + 8192, Chain: 0x01020304}
	m, err := WriteSnapshot(fs, snapshotDir, m, s)
	if err != nil {
		t.Fatal(err)
	}
	got, err := vfs.ReadFile(fs, snapshotName(snapshotDir, 9))
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%v\n got %x\nwant %x", err, got, want)
	}
	l, lm, err := ParseSnapshot(want)
	if err != nil || !reflect.DeepEqual(lm, m) || l.Hash() != s.Hash() {
		t.Fatalf("%+v, %v", lm, err)
	}
}

// TestGoldenTransactions builds the section of transactions that the page shows: the state has nothing else.
func TestGoldenTransactions(t *testing.T) {
	t.Parallel()
	want := golden(t, "transactions", "snapshot.md")
	s := New()
	for i := range ids.QueueOffset(4) {
		p := HalfPrefix{Number: i, Immunity: 6000, Group: "billing"}
		body := make([]byte, p.Size()+100)
		p.Put(body)
		if _, err := s.Apply(5000, ids.MakeTerm(1, 2), record(RecordHalf, 0x1000+ids.PhysicalOffset(i)*0x100, body)); err != nil {
			t.Fatal(err)
		}
	}
	apply(t, s, 5100, RecordTransactionEnd, AppendTransactionEnd(nil, 0, RolledBack, 0))
	apply(t, s, 5200, RecordTransactionEnd, AppendTransactionEnd(nil, 2, RolledBack, 0))
	apply(t, s, 11000, RecordTransactionChecks, AppendTransactionChecks(nil, false, []ids.QueueOffset{1}))
	again := make([]byte, HalfAgainPrefix+100)
	PutHalfAgain(again, 3)
	if _, err := s.Apply(12000, ids.MakeTerm(1, 2), record(RecordHalfAgain, 0x2000, again)); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := s.Snapshot(&b); err != nil {
		t.Fatal(err)
	}
	const fixed = 88 // what stands before the sections of an empty state
	if got := b.Bytes()[fixed:]; !bytes.Equal(got, want) {
		t.Fatalf("\n got %x\nwant %x", got, want)
	}
	if l, err := Load(bytes.NewReader(b.Bytes())); err != nil || l.Hash() != s.Hash() {
		t.Fatal(err)
	}
}

// TestGoldenResets compares the section of pending resets with the page.
func TestGoldenResets(t *testing.T) {
	t.Parallel()
	s := New()
	apply(t, s, 1000, RecordTopicPut, AppendTopicPut(nil, Put, goldenTopic()))
	for i := range 2 {
		apply(t, s, 3000, RecordMessage, message(index.Key{Topic: 1, Queue: 1}, ids.QueueOffset(i), 0, 100))
	}
	apply(t, s, 5000, RecordReset, AppendReset(nil, "billing", []ConsumerOffset{{Topic: 1, Queue: 1, Offset: 2}}))
	var b bytes.Buffer
	if err := s.Snapshot(&b); err != nil {
		t.Fatal(err)
	}
	if want := golden(t, "resets", "snapshot.md"); !bytes.HasSuffix(b.Bytes(), want) {
		t.Errorf("got %x\nwant its end to be %x", b.Bytes(), want)
	}
}

// FuzzCommand decodes any bytes as each command. What is decoded must apply without a panic and keep the invariants, and
// must be encoded to the same bytes.
func FuzzCommand(f *testing.F) {
	for _, c := range goldenCommands() {
		f.Add(c.recordType, c.body)
	}
	f.Add(RecordMessage, message(index.Key{Topic: 1}, 0, 5, 30))
	f.Add(RecordUnlock, AppendLock(nil, "g", "c", []index.Key{{Topic: 1}}))
	f.Add(RecordLeaseExtension, []byte{})
	half := HalfPrefix{Immunity: 6000, Group: "g"}
	b := make([]byte, half.Size()+30)
	half.Put(b)
	f.Add(RecordHalf, b)
	f.Add(RecordTimer, timerBody(1000, 10))
	f.Add(RecordHalfAgain, make([]byte, HalfAgainPrefix+30))
	f.Fuzz(func(t *testing.T, recordType uint8, body []byte) {
		s := withTopic(t, 4)
		apply(t, s, 5, RecordMessage, message(index.Key{Topic: 1}, 0, 5, 30))
		before := s.Hash()
		_, err := s.Apply(10, ids.MakeTerm(1, 1), record(recordType, 64, body))
		if err != nil {
			if s.Hash() != before {
				t.Fatal("a record that was refused has changed the state")
			}
			return
		}
		invariants(t, s)
		reload(t, s)
		switch recordType {
		case RecordMessage, RecordHalf, RecordHalfAgain, RecordTimer:
			return
		}
		c, err := decodeCommand(recordType, body)
		if err != nil {
			t.Fatal(err)
		}
		if again := encode(c); !bytes.Equal(again, body) && recordType != RecordOffsets {
			t.Fatalf("decoded and encoded again:\n got %x\nwant %x", again, body)
		}
	})
}

func encode(c any) []byte {
	switch c := c.(type) {
	case topicPut:
		return AppendTopicPut(nil, c.mode, c.topic)
	case topicDelete:
		return AppendTopicDelete(nil, c.name)
	case groupPut:
		return AppendGroupPut(nil, c.mode, c.group)
	case groupDelete:
		return AppendGroupDelete(nil, c.name, c.cleanOffsets)
	case offsetsCommand:
		return AppendOffsets(nil, c.offsets)
	case lockCommand:
		return AppendLock(nil, c.group, c.client, c.keys)
	case cutFront:
		return AppendCutFront(nil, c.base, c.mins)
	case transactionEnd:
		return AppendTransactionEnd(nil, c.number, c.decision, c.topic)
	case transactionChecks:
		return AppendTransactionChecks(nil, c.resume, c.numbers)
	case resetCommand:
		return AppendReset(nil, c.group, c.offsets)
	case resetTaken:
		return AppendResetTaken(nil, c.reset.Group, c.reset.Key, c.reset.Offset)
	case settingsPut:
		return AppendSettings(nil, c.settings)
	case freezeCommand:
		return AppendFreeze(nil, c.giveUp)
	case TimerFire:
		return c.Append(nil)
	case TimerRecall:
		return c.Append(nil)
	case TimerRoll:
		return c.Append(nil)
	}
	return nil
}

// FuzzLoad reads any bytes as a state.
func FuzzLoad(f *testing.F) {
	for seed := range uint64(3) {
		y := newStory(seed)
		for range 60 {
			y.step(f)
		}
		var b bytes.Buffer
		if err := y.s.Snapshot(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) { loadOrRefuse(t, b) })
}

// loadOrRefuse reads b. What is taken must hold the invariants and be written to the same bytes.
func loadOrRefuse(tb testing.TB, b []byte) bool {
	tb.Helper()
	s, err := Load(bytes.NewReader(b))
	if err != nil {
		return false
	}
	invariants(tb, s)
	var again bytes.Buffer
	if err := s.Snapshot(&again); err != nil || !bytes.Equal(again.Bytes(), b) {
		tb.Fatalf("written again:\n got %x\nwant %x (%v)", again.Bytes(), b, err)
	}
	return true
}

// TestMutatedLoad changes up to three bytes of a state at a time, many times: the canonical form has one reading or none.
func TestMutatedLoad(t *testing.T) {
	t.Parallel()
	y := newStory(4)
	for range 120 {
		y.step(t)
	}
	var whole bytes.Buffer
	if err := y.s.Snapshot(&whole); err != nil {
		t.Fatal(err)
	}
	taken := 0
	for range 4000 {
		b := slices.Clone(whole.Bytes())
		for range 1 + y.r.IntN(3) {
			b[y.r.IntN(len(b))] = byte(y.r.IntN(256) >> y.r.IntN(8))
		}
		if loadOrRefuse(t, b) {
			taken++
		}
	}
	if taken < 50 || taken > 3800 {
		t.Fatalf("%d of 4000 changed states are taken: the test tests nothing", taken)
	}
}

// FuzzSnapshotFile reads any bytes as a file.
func FuzzSnapshotFile(f *testing.F) {
	fs := vfs.NewMem()
	write(f, fs, 7, withTopic(f, 3))
	b, err := vfs.ReadFile(fs, snapshotName(snapshotDir, 7))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:snapshotHeader])
	f.Fuzz(func(t *testing.T, b []byte) {
		s, m, err := ParseSnapshot(b)
		if err == nil && s.Hash() != m.Hash {
			t.Fatal("a file was taken whose hash is wrong")
		}
	})
}
