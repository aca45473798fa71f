package broker

import (
	"net/netip"
	"testing"

	"github.com/ledgermq/ledgermq/message"
)

func TestFilterMakesNoGarbage(t *testing.T) {
	filter := parseTagFilter("a || b")
	host := netip.MustParseAddrPort("127.0.0.1:1")
	r := message.Record{Topic: "T", Properties: "KEYS\x01k\x02TAGS\x01b\x02", Body: []byte("TAGS\x01a\x02"), BornHost: host, StoreHost: host}
	record := r.AppendTo(nil)
	if n := testing.AllocsPerRun(100, func() {
		if !filter.match(record) {
			t.Error("the tag does not match")
		}
	}); n > 0 {
		t.Errorf("a filtered message costs %.0f allocations", n)
	}
}
