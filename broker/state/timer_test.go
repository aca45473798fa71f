package state

import (
	"bytes"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/timer"
)

func timerBody(due int64, size int) []byte {
	b := make([]byte, TimerPrefixSize+size)
	TimerPrefix{Due: due, Key: 7}.Seal(b)
	return b
}

func TestGoldenTimer(t *testing.T) {
	t.Parallel()
	want := golden(t, "timer", "commands.md")
	p := TimerPrefix{Due: 1_796_000_000_000, Key: TimerKey("K1")}
	b := append(make([]byte, TimerPrefixSize), "rec"...)
	p.Seal(b)
	if !bytes.Equal(b, want) {
		t.Errorf("got %x, want %x", b, want)
	}
	if got, err := CheckTimer(want); err != nil || got != p {
		t.Errorf("%+v, %v", got, err)
	}
	for i := range want {
		bad := bytes.Clone(want)
		bad[i] ^= 1
		if _, err := CheckTimer(bad); err == nil {
			t.Errorf("a flip of byte %d is not seen", i)
		}
	}
}

// A group that never had a timer has the snapshot of a program that knows none.
func TestGoldenSnapshotTimers(t *testing.T) {
	t.Parallel()
	const due = 1_796_000_000_000
	s := withTopic(t, 1)
	var plain bytes.Buffer
	if err := s.Snapshot(&plain); err != nil || plain.Bytes()[5] != 1 {
		t.Fatalf("version %d, %v", plain.Bytes()[5], err)
	}
	s.timers = timers{cursor: timer.Pos{Due: due, Offset: 9000}, low: 4096, pending: 3, bytes: 450, recalled: s.timers.recalled}
	s.timers.recalled.put(s.own, timer.Pos{Due: due + 5, Offset: 9500}, struct{}{})
	var b bytes.Buffer
	if err := s.Snapshot(&b); err != nil {
		t.Fatal(err)
	}
	want := golden(t, "snapshot-timers", "snapshot.md")
	if b.Bytes()[5] != 2 || !bytes.Equal(b.Bytes()[plain.Len():], want) {
		t.Errorf("version %d, got %x, want %x", b.Bytes()[5], b.Bytes()[plain.Len():], want)
	}
	back, err := Load(&b)
	if err != nil || back.Hash() != s.Hash() {
		t.Fatalf("read back: %v", err)
	}
	if !back.TimerRecalled(timer.Pos{Due: due + 5, Offset: 9500}) || back.TimerBounds() != s.TimerBounds() {
		t.Error("what was read back answers otherwise")
	}
}

func apply2(tb testing.TB, s *State, kind uint8, off ids.PhysicalOffset, body []byte) Effect {
	tb.Helper()
	e, err := s.Apply(1, ids.MakeTerm(1, 1), record(kind, off, body))
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

// A record that does not follow from those before it stops the replica, and changes nothing.
func TestTimerRefusals(t *testing.T) {
	t.Parallel()
	s := New()
	apply2(t, s, RecordTimer, 100, timerBody(1000, 10))
	first := timer.Pos{Due: 1000, Offset: 100 + TimerPrefixSize}
	apply2(t, s, RecordTimerFire, 200, (&TimerFire{To: first, Count: 1, Bytes: 10}).Append(nil))
	apply2(t, s, RecordTimerRoll, 300, (&TimerRoll{To: 64}).Append(nil))
	before := s.Hash()
	for name, c := range map[string]struct {
		kind uint8
		off  ids.PhysicalOffset
		body []byte
		want error
	}{
		"a timer before the cursor":     {RecordTimer, 400, timerBody(999, 10), new(TimerError)},
		"a timer without a time":        {RecordTimer, 400, timerBody(0, 10), new(CommandError)},
		"half a timer":                  {RecordTimer, 400, timerBody(2000, 0)[:10], new(CommandError)},
		"a firing from elsewhere":       {RecordTimerFire, 400, (&TimerFire{To: timer.Pos{Due: 2000, Offset: 1}}).Append(nil), new(TimerError)},
		"a firing that goes back":       {RecordTimerFire, 400, (&TimerFire{From: first, To: timer.Pos{Due: 999, Offset: 1}}).Append(nil), new(CommandError)},
		"a roll from elsewhere":         {RecordTimerRoll, 400, (&TimerRoll{From: 63, To: 100}).Append(nil), new(TimerError)},
		"a roll that goes back":         {RecordTimerRoll, 400, (&TimerRoll{From: 64, To: 64}).Append(nil), new(CommandError)},
		"a recall with bytes behind":    {RecordTimerRecall, 400, append((&TimerRecall{Pos: first}).Append(nil), 0), new(CommandError)},
		"recalled ones out of order":    {RecordTimerFire, 400, (&TimerFire{From: first, To: timer.Pos{Due: 2000}, Recalled: []timer.Pos{{Due: 9}, {Due: 8}}}).Append(nil), new(CommandError)},
		"a recall of a negative offset": {RecordTimerRecall, 400, (&TimerRecall{Pos: timer.Pos{Due: 1, Offset: -1}}).Append(nil), new(CommandError)},
	} {
		_, err := s.Apply(9_000_000, ids.MakeTerm(1, 1), record(c.kind, c.off, c.body))
		var te *TimerError
		var ce *CommandError
		_, wantTimer := c.want.(*TimerError)
		if wantTimer && !errors.As(err, &te) || !wantTimer && !errors.As(err, &ce) {
			t.Errorf("%s: %v", name, err)
		}
		if s.Hash() != before {
			t.Fatalf("%s: the state has changed", name)
		}
	}
}

// The state against a set of all timers that are pending.
func TestTimerTwin(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 3))
		s := New()
		pending := map[timer.Pos]uint32{}
		recalled := map[timer.Pos]bool{}
		var cursor timer.Pos
		var low, at ids.PhysicalOffset
		at = 64
		for range 400 {
			at += 200
			sorted := slices.SortedFunc(maps.Keys(pending), timer.Pos.Compare)
			switch r.IntN(10) {
			default:
				size := 1 + r.IntN(100)
				due := max(cursor.Due, 1) + r.Int64N(5000)
				e := apply2(t, s, RecordTimer, at, timerBody(due, size))
				p := timer.Pos{Due: due, Offset: at + TimerPrefixSize}
				if e.Kind != EffectTimer || e.Timer != (timer.Entry{Pos: p, Size: uint32(size), Key: 7}) {
					t.Fatalf("seed %d: effect %+v", seed, e)
				}
				pending[p] = uint32(size)
			case 0, 1: // fire some of the first ones, recalled ones among them
				c := TimerFire{From: cursor}
				all := slices.SortedFunc(maps.Keys(recalled), timer.Pos.Compare)
				if len(sorted) == 0 {
					continue
				}
				c.To = sorted[r.IntN(min(len(sorted), 5))]
				for _, p := range sorted {
					if p.Compare(c.To) <= 0 {
						c.Count++
						c.Bytes += uint64(pending[p])
						delete(pending, p)
					}
				}
				for _, p := range all {
					if p.Compare(c.To) <= 0 {
						c.Recalled = append(c.Recalled, p)
						delete(recalled, p)
					}
				}
				apply2(t, s, RecordTimerFire, at, c.Append(nil))
				cursor = c.To
			case 2, 3: // recall one that is pending, or was, or never was
				p := timer.Pos{Due: 1 + r.Int64N(9000), Offset: ids.PhysicalOffset(r.Int64N(int64(at)))}
				if len(sorted) > 0 && r.IntN(4) > 0 {
					p = sorted[r.IntN(len(sorted))]
				}
				size, is := pending[p]
				want := EffectNone
				if is {
					want = EffectTimerRecalled
				} else if p.Compare(cursor) > 0 && p.Offset >= low && !recalled[p] {
					continue // no proposer names one that is not in the log
				}
				if e := apply2(t, s, RecordTimerRecall, at, (&TimerRecall{p, size}).Append(nil)); e.Kind != want {
					t.Fatalf("seed %d: the recall of %v: %+v, want %d", seed, p, e, want)
				}
				if is {
					delete(pending, p)
					recalled[p] = true
				}
			case 4: // roll what lies in the first part of the log
				to := low + ids.PhysicalOffset(1+r.Int64N(int64(at-low)))
				c := TimerRoll{From: low, To: to}
				for _, p := range sorted {
					if p.Offset >= to {
						continue
					}
					size := pending[p]
					delete(pending, p)
					c.Count++
					c.Bytes += uint64(size)
					at += 200
					apply2(t, s, RecordTimer, at, timerBody(p.Due, int(size)))
					pending[timer.Pos{Due: p.Due, Offset: at + TimerPrefixSize}] = size
				}
				for _, p := range slices.SortedFunc(maps.Keys(recalled), timer.Pos.Compare) {
					if p.Offset < to {
						c.Recalled = append(c.Recalled, p)
						delete(recalled, p)
					}
				}
				at += 200
				apply2(t, s, RecordTimerRoll, at, c.Append(nil))
				low = to
			}
			var bytes uint64
			for p, size := range pending {
				bytes += uint64(size)
				if !s.TimerBounds().Alive(p) || s.TimerRecalled(p) {
					t.Fatalf("seed %d: %v is pending and the state says otherwise", seed, p)
				}
			}
			for p := range recalled {
				if !s.TimerRecalled(p) {
					t.Fatalf("seed %d: %v was recalled and the state says otherwise", seed, p)
				}
			}
			n, b, named := s.TimersPending()
			if n != uint64(len(pending)) || b != bytes || named != len(recalled) {
				t.Fatalf("seed %d: %d pending of %d bytes, %d recalled; want %d, %d, %d", seed, n, b, named, len(pending), bytes, len(recalled))
			}
		}
		clone := s.Clone()
		at += 200
		apply2(t, s, RecordTimer, at, timerBody(cursor.Due+1, 10))
		apply2(t, s, RecordTimerRecall, at+200, (&TimerRecall{timer.Pos{Due: cursor.Due + 1, Offset: at + TimerPrefixSize}, 10}).Append(nil))
		if clone.TimerRecalled(timer.Pos{Due: cursor.Due + 1, Offset: at + TimerPrefixSize}) {
			t.Fatalf("seed %d: a clone sees what came after it", seed)
		}
	}
}
