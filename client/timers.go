package client

import (
	"context"
	"fmt"

	"github.com/ledgermq/ledgermq/remoting"
)

// Timers are the delayed messages of a broker group that wait for their time, in figures.
type Timers struct {
	Group    string `json:"group"`
	Pending  uint64 `json:"pending"`
	Bytes    uint64 `json:"bytes"`             // of their records
	Recalled int    `json:"recalled"`          // whose time has not come
	Next     int64  `json:"nextMs,omitempty"`  // when the next one is due, ms since 1970; 0: none is pending
	Fired    int64  `json:"firedToMs"`         // all that were due up to then have been delivered; 0: none yet
	Index    string `json:"index"`             // "whole", or "rebuilding": then nothing is delivered
	Dropped  int64  `json:"droppedSinceStart"` // by the present master, because their topics were gone
}

// Timers returns the figures of the named broker groups, all when none is named. The error joins those of the groups; the list has what the
// others told.
func (c *Client) Timers(ctx context.Context, groups []string) ([]Timers, error) {
	var all []Timers
	_, err := c.inGroups(ctx, "show timers", groups, func(group string) error {
		resp, err := c.answerOfGroup(ctx, group, remoting.NewRequest(remoting.ShowTimers))
		if err != nil {
			return err
		}
		t := Timers{Group: group}
		if err := decodeLax(resp.Body, &t); err != nil {
			return fmt.Errorf("%w: %w", errBadAnswer, err)
		}
		all = append(all, t)
		return nil
	})
	return all, err
}

// Waiting is a message that waits for its time, or a retry that does.
type Waiting struct {
	Group      string `json:"-"`
	Topic      string `json:"topic"` // that it is for
	Queue      int32  `json:"queue"`
	Offset     int64  `json:"offset"` // physical
	Due        int64  `json:"dueMs"`
	Stored     int64  `json:"storedMs"`
	Reconsumed int32  `json:"reconsumeTimes"`
}

// Waiting finds the messages with a unique id that wait for their time, in all broker groups. The error joins those of the groups; the list
// has what the others told.
func (c *Client) Waiting(ctx context.Context, unique string) ([]Waiting, error) {
	var all []Waiting
	_, err := c.inGroups(ctx, "find a message that waits", nil, func(group string) error {
		req := remoting.NewRequest(remoting.ShowTimers)
		req.Set("uniqueKey", unique)
		resp, err := c.answerOfGroup(ctx, group, req)
		if err != nil {
			return err
		}
		var in struct {
			Waiting []Waiting `json:"waiting"`
		}
		if err := decodeLax(resp.Body, &in); err != nil {
			return fmt.Errorf("%w: %w", errBadAnswer, err)
		}
		for _, w := range in.Waiting {
			w.Group = group
			all = append(all, w)
		}
		return nil
	})
	return all, err
}
