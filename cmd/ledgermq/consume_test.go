package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ledgermq/ledgermq/client"
)

// scripted is a reader without a cluster: from and until when, after its beginning, group g1 has no master, and when a message comes or an error.
type scripted struct {
	began       time.Time
	from, until time.Duration
	message     time.Duration // 0: none
	fault       time.Duration // 0: none
}

var errRefused = errors.New("refused")

func (s *scripted) Poll(ctx context.Context) ([]client.Message, error) {
	for {
		switch at := time.Since(s.began); {
		case s.message > 0 && at >= s.message:
			return []client.Message{{Topic: "T"}}, nil
		case s.fault > 0 && at >= s.fault:
			return nil, errRefused
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (s *scripted) Waiting() map[string]error {
	if at := time.Since(s.began); at >= s.from && at < s.until {
		return map[string]error{"g1": client.ErrNoMaster}
	}
	return nil
}

// TestIdle holds that the idle time of consume does not run while a group cannot be read, and that this has an end.
func TestIdle(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		idle, stop time.Duration // stop: when the user ends it, 0: never
		script     scripted
		messages   int
		err        string
		least      time.Duration // when it ends
	}{
		"nothing comes":                {2 * time.Second, 0, scripted{}, 0, "", 2 * time.Second},
		"a message comes":              {2 * time.Second, 0, scripted{message: time.Second}, 1, "", time.Second},
		"a group cannot be read":       {2 * time.Second, 0, scripted{until: time.Hour}, 0, "waited 10s without a message: group g1 has no master", toolTimeout},
		"it can be after a while":      {2 * time.Second, 0, scripted{until: 5 * time.Second}, 0, "", 7 * time.Second},
		"it cannot be for a while":     {2 * time.Second, 0, scripted{from: time.Second, until: 5 * time.Second}, 0, "", 7 * time.Second},
		"a message comes then":         {2 * time.Second, 0, scripted{until: time.Hour, message: 8 * time.Second}, 1, "", 8 * time.Second},
		"a long idle time":             {time.Minute, 0, scripted{until: time.Hour}, 0, "waited 1m0s without a message: group g1 has no master", time.Minute},
		"a fault":                      {2 * time.Second, 0, scripted{fault: time.Second}, 0, "refused", time.Second},
		"the user ends it":             {time.Minute, time.Second, scripted{}, 0, "", time.Second},
		"without an idle time":         {0, time.Minute, scripted{until: time.Hour}, 0, "", time.Minute},
		"without one, a message comes": {0, 0, scripted{until: time.Hour, message: 20 * time.Second}, 1, "", 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.stop > 0 {
					defer time.AfterFunc(tt.stop, cancel).Stop()
				}
				s := tt.script
				s.began = time.Now()
				messages, err := poll(ctx, &s, tt.idle)
				text := ""
				if err != nil {
					text = err.Error()
				}
				if took := time.Since(s.began); len(messages) != tt.messages || text != tt.err || took < tt.least || took > tt.least+max(tt.idle, time.Second)/4 {
					t.Errorf("after %v: %d messages, %q; want %v, %d, %q", took, len(messages), text, tt.least, tt.messages, tt.err)
				}
			})
		})
	}
}
