package client

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// The place that an offset message id names is one in each broker group: where its address is nobody's, no group is guessed.
func TestTransactionsAtAPlace(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	b1, b2 := startBroker(t, "g1", newFakeLog()), startBroker(t, "g2", newFakeLog())
	b1.register(ns, 0, 5, topic("orders", 1))
	c := newClient(t, []string{ns})
	pending := func(number int, id string) map[int32]string {
		return map[int32]string{remoting.ListTransactions: fmt.Sprintf(`{"found":1,"transactions":[{"number":%d,"offset":4379,"messageId":%q}]}`, number, id)}
	}
	b1.tells(pending(7, "unique"))
	b2.tells(pending(8, "other"))
	at := func(b *fakeBroker) string { return message.OffsetMessageID(netip.MustParseAddrPort(b.addr), 4379) }
	nobody := message.OffsetMessageID(netip.MustParseAddrPort(startBroker(t, "g3", newFakeLog()).addr), 4379)
	if list, err := c.TransactionsOf(within(t, patience), nobody); err != nil || len(list) != 1 || list[0].Number != 7 {
		t.Errorf("of the only group: %+v, %v", list, err)
	}
	b2.register(ns, 0, 5, topic("orders", 1))
	eventually(t, "the second group", func() bool {
		info, err := c.Cluster(within(t, time.Second))
		return err == nil && len(info.Groups) == 2
	})
	for id, want := range map[string]int64{at(b1): 7, at(b2): 8, "unique": 7, "other": 8} {
		if list, err := c.TransactionsOf(within(t, patience), id); err != nil || len(list) != 1 || list[0].Number != want {
			t.Errorf("%s: %+v, %v, want number %d", id, list, err, want)
		}
	}
	list, err := c.TransactionsOf(within(t, patience), nobody)
	if a, ok := errors.AsType[*AmbiguousPlaceError](err); !ok || len(list) != 0 || len(a.Pending) != 2 || !strings.Contains(err.Error(), "g1/7, g2/8") {
		t.Errorf("an address of nobody: %+v, %v", list, err)
	}
	b2.tells(pending(8, nobody)) // a unique id that looks like an offset message id
	if list, err := c.TransactionsOf(within(t, patience), nobody); err != nil || len(list) != 1 || list[0].Number != 8 {
		t.Errorf("a unique id that looks like a place: %+v, %v", list, err)
	}
}
