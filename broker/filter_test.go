package broker

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/message"
)

func filterRecord(topic, properties string, born, store string) []byte {
	r := message.Record{Topic: topic, Properties: properties, Body: []byte("TAGS\x01body\x02"), BornHost: netip.MustParseAddrPort(born), StoreHost: netip.MustParseAddrPort(store)}
	return r.AppendTo(nil)
}

// The tag that a filter sees is the one that decoding the whole record gives.
func FuzzRecordTag(f *testing.F) {
	for _, topic := range []string{"T", strings.Repeat("t", 200)} {
		for _, properties := range []string{"", "TAGS\x01a\x02", "KEYS\x01TAGS\x02TAGS\x01a||b\x02WAIT\x01true\x02", "XTAGS\x01a\x02", "TAGS\x01a\x02TAGS\x01b\x02", "TAGS\x01\x02", "TAGS\x01last"} {
			for _, host := range []string{"127.0.0.1:1", "[2001:db8::1]:2"} {
				f.Add(filterRecord(topic, properties, host, "127.0.0.1:1"))
				f.Add(filterRecord(topic, properties, "127.0.0.1:1", host))
			}
		}
	}
	f.Fuzz(func(t *testing.T, record []byte) {
		got, ok := recordTag(record)
		m, n, err := message.Decode(record)
		if err != nil || n != len(record) {
			return // recordTag must only not panic
		}
		want, _ := message.Property(m.Properties, message.KeyTags)
		if !ok || string(got) != want {
			t.Fatalf("the tag is %q, %v; decoding gives %q", got, ok, want)
		}
	})
}

func TestFilterMakesNoGarbage(t *testing.T) {
	filter := parseTagFilter("a || b")
	record := filterRecord("T", "KEYS\x01k\x02TAGS\x01b\x02", "127.0.0.1:1", "127.0.0.1:1")
	if n := testing.AllocsPerRun(100, func() {
		if !filter.match(record) {
			t.Error("the tag does not match")
		}
	}); n > 0 {
		t.Errorf("a filtered message costs %.0f allocations", n)
	}
}
