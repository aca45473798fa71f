package broker

import (
	"fmt"
	"testing"
	"time"
)

// A tally of so many a tick is compared with what a list of all its counts says, over the ends of all rings.
func TestStatistics(t *testing.T) {
	t.Parallel()
	var s statistics
	now := time.Date(2026, 3, 1, 22, 0, 0, 0, time.Local)
	began := now
	s.open(now)
	s.begin(7, "T7", now)
	var at []time.Time // of each message
	lateAt := 500      // tick at which another tally is born
	for tick := 1; tick <= 3*daySamples*dayTicks/2; tick++ {
		for range 1 + tick%3 {
			s.put(7, 100)
			at = append(at, now)
		}
		if tick == lateAt {
			s.add(tallyGet, "g", 7, "T7", 5, 50, now)
		}
		now = now.Add(sampleEvery)
		s.tick(now, totalSample{put: int64(len(at)), putBytes: int64(100 * len(at))})
		if tick%17 != 0 {
			continue
		}
		want := func(over time.Duration) (n int64) {
			for i := len(at) - 1; i >= 0 && now.Sub(at[i]) <= over; i-- {
				n++
			}
			return n
		}
		for _, k := range []tallyKey{{kind: tallyPut, topic: 7}, allPuts} {
			minute, hour, day, found := s.find(k, now)
			if !found {
				t.Fatal("it is not there")
			}
			for i, got := range []span{minute, hour, day} {
				// A ring of n samples covers between n-1 and n of its steps.
				step := []time.Duration{sampleEvery, hourTicks * sampleEvery, dayTicks * sampleEvery}[i]
				full := []time.Duration{time.Minute, time.Hour, 24 * time.Hour}[i]
				if got.over > full+step || got.over < min(full, now.Sub(began)) {
					t.Fatalf("tick %d: span %d is over %v", tick, i, got.over)
				}
				if got.count != want(got.over) || got.bytes != 100*got.count {
					t.Fatalf("tick %d: span %d has %d messages of %d bytes in %v, want %d", tick, i, got.count, got.bytes, got.over, want(got.over))
				}
			}
		}
	}
	if _, _, _, found := s.find(tallyKey{tallyGet, 7, "g"}, now); found {
		t.Error("what did not change for more than a day is still kept")
	}
	if s.totals.putToday == 0 || s.totals.putYesterday != 0 && s.totals.putYesterday >= s.totals.putToday {
		t.Errorf("this morning there were %d, yesterday morning %d", s.totals.putToday, s.totals.putYesterday)
	}
	rate := s.totals.rate(now, totalSample{put: int64(len(at))}, time.Minute, func(s totalSample) int64 { return s.put })
	if rate < .19 || rate > .21 { // two in ten seconds
		t.Errorf("%.3f a second", rate)
	}
}

func TestStatisticsBound(t *testing.T) {
	t.Parallel()
	var s statistics
	now := time.Unix(1_700_000_000, 0)
	s.open(now)
	for i := range maxTallies + 10 {
		s.add(tallyGet, fmt.Sprintf("g%d", i), 1, "T", 1, 1, now)
	}
	if n := len(s.tallies); n != maxTallies {
		t.Errorf("%d tallies", n)
	}
	if s.lost.Load() != 12 { // two are those of all
		t.Errorf("%d were lost", s.lost.Load())
	}
	s.forgetGroup("g7")
	if _, _, _, found := s.find(tallyKey{tallyGet, 1, "g7"}, now); found {
		t.Error("a deleted group is still counted")
	}
	s.forgetTopic(1)
	if n := len(s.tallies); n != 2 {
		t.Errorf("%d tallies are left of a deleted topic", n-2)
	}
}

func TestAnswerTimes(t *testing.T) {
	t.Parallel()
	var a answerTimes
	a.add(time.Millisecond/2, 980)
	a.add(7*time.Millisecond, 15)
	a.add(3200*time.Millisecond, 5)
	if want := "[<=0ms]:980 [0~10ms]:15 [10~50ms]:0 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 [500ms~1s]:0 [1~2s]:0 [2~3s]:0 [3~4s]:5 [4~5s]:0 [5~10s]:0 [10s~]:0 "; a.text() != want {
		t.Errorf("have %s", a.text())
	}
	if a.quantile(.5) != 1 || a.quantile(.99) != 10 || a.quantile(.999) != 3200 {
		t.Errorf("50 %%: %d, 99 %%: %d, 99.9 %%: %d", a.quantile(.5), a.quantile(.99), a.quantile(.999))
	}
}
