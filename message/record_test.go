package message

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func sample() Record {
	return Record{
		QueueID: 3, Flag: 7, QueueOffset: 41, PhysicalOffset: 4096 + 64 + 8 + 24, SysFlag: 0,
		BornTime: 1_790_000_000_123, BornHost: netip.MustParseAddrPort("10.1.2.3:45678"),
		StoreTime: 1_790_000_000_456, StoreHost: netip.MustParseAddrPort("10.9.8.7:10911"),
		ReconsumeTimes: 2, PreparedOffset: 99, Body: []byte("hello, ledger"), Topic: "orders",
		Properties: "KEYS\x01k1 k2\x02TAGS\x01a\x02",
	}
}

func TestRecordRoundTrip(t *testing.T) {
	t.Parallel()
	for _, born := range []string{"10.1.2.3:45678", "[2001:db8::1]:45678"} {
		for _, store := range []string{"10.9.8.7:10911", "[2001:db8::2]:10911"} {
			for _, topic := range []string{"orders", strings.Repeat("t", 127), DLQPrefix + strings.Repeat("t", 200)} {
				r := sample()
				r.BornHost, r.StoreHost, r.Topic = netip.MustParseAddrPort(born), netip.MustParseAddrPort(store), topic
				b := r.AppendTo(nil)
				if len(b) != r.Size() {
					t.Fatalf("%s %s: %d bytes, Size says %d", born, store, len(b), r.Size())
				}
				got, n, err := Decode(append(b, "next"...))
				if err != nil || n != len(b) {
					t.Fatalf("Decode: %d, %v", n, err)
				}
				r.SysFlag = got.SysFlag
				if !reflect.DeepEqual(got, r) {
					t.Fatalf("got %+v\nwant %+v", got, r)
				}
			}
		}
	}
}
