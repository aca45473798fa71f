package client

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/message"
)

// TestDeadLettersOfMasterlessGroup holds that the dead letters of the other groups are seen, and that a master is not looked for without end.
func TestDeadLettersOfMasterlessGroup(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	dlq := message.DLQTopic("cg")
	b1, b2 := startBroker(t, "g1", newFakeLog()), startBroker(t, "g2", newFakeLog())
	b1.register(ns, 0, 5, topic(dlq, 1), topic("x", 1))
	c := newClient(t, []string{ns})
	if _, err := c.Producer().Send(within(t, patience), Message{Topic: dlq, Body: []byte("dead")}); err != nil {
		t.Fatal(err)
	}
	startBroker(t, "g2", newFakeLog()).register(ns, 2, 5)
	b2.register(ns, 0, 5, topic(dlq, 1), topic("x", 1))
	b2.stop()
	eventually(t, "group g2 has no master", func() bool {
		r, err := c.Route(t.Context(), dlq)
		return err == nil && len(r.Groups) == 2 && r.Groups[1].Master() == ""
	})
	seen, ctx := 0, within(t, patience)
	err := c.DeadLetters(ctx, DeadLetterQuery{Group: "cg", Patience: 30 * time.Millisecond}, func(d *DeadLetter) error { seen++; return nil })
	if !errors.Is(err, ErrNoMaster) || !strings.Contains(err.Error(), "no answer within 30ms") || seen != 1 || ctx.Err() != nil {
		t.Errorf("%d seen, want 1: %v", seen, err)
	}
}
