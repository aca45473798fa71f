package main

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/ledgermq/ledgermq/client"
)

func sampleMessage() client.Message {
	host := netip.MustParseAddrPort("10.0.0.1:10911")
	return client.Message{Topic: "Orders", Group: "g1", Queue: 2, Offset: 41, PhysicalOffset: 4168, ID: "C0000202165E216FE9FF943AF3B20000", OffsetID: "0A00000100002A9F0000000000001048",
		Keys: []string{"order-1"}, Tags: "paid", Properties: map[string]string{"WAIT": "true"}, BornTime: time.UnixMilli(1795999999990), BornHost: netip.MustParseAddrPort("10.0.0.9:40312"),
		StoreTime: time.UnixMilli(1796000000000), StoreHost: host, Body: []byte("hello")}
}

func sampleTrace() traceView {
	m := tracedOf(sampleMessage())
	again := tracedMessage{Place: "%RETRY%billing/g1/0@3", OffsetMessageID: "0A00000100002A9F0000000000001F00", StoreTime: 1796000002000, ReconsumeTimes: 1}
	records, _ := client.ParseTrace([]byte("Pub\x011795999999990\x01DefaultRegion\x01shop\x01Orders\x01C0000202165E216FE9FF943AF3B20000\x01paid\x01order-1\x0110.0.0.1:10911\x015\x0112\x010\x010A00000100002A9F0000000000001048\x01true\x0110.0.0.9\x02" +
		"SubBefore\x011796000001000\x01DefaultRegion\x01billing\x01R1\x01C0000202165E216FE9FF943AF3B20000\x010\x01order-1\x02" +
		"SubAfter\x01R1\x01C0000202165E216FE9FF943AF3B20000\x0130\x01false\x01order-1\x014\x011796000001030\x01billing\x02"))
	return traceView{ID: "C0000202165E216FE9FF943AF3B20000", Topic: "Orders", Stored: []tracedMessage{m},
		Waiting: []tracedWait{{Topic: "%RETRY%billing", Group: "g1", StoreTime: 1796000003000, Due: 1796000013000, ReconsumeTimes: 2}}, Records: viewRecords(records), Consumers: []tracedGroup{{Group: "billing",
			Progress: []tracedProgress{{Place: m.Place, Offset: 42, Past: true}}, Retries: []tracedMessage{again}, DeadLetters: []tracedMessage{}}}}
}

// TestTraceTable holds what the table tells of a message's way.
func TestTraceTable(t *testing.T) {
	t.Parallel()
	v := sampleTrace()
	v.Unread = 1
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	writeTrace(w, &v)
	w.Flush()
	want := `C0000202165E216FE9FF943AF3B20000 of topic Orders
TIME                      WHAT                 WHO      DETAIL
2026-11-30T00:53:20.000Z  stored               -        Orders/g1/2@41
2026-11-30T00:53:23.000Z  waits, repetition 2  billing  for %RETRY%billing/g1 until 2026-11-30T00:53:33.000Z
-                         past                 billing  Orders/g1/2@41, goes on at 42
2026-11-30T00:53:22.000Z  repetition 1         billing  %RETRY%billing/g1/0@3
2026-11-30T00:53:19.990Z  Pub                  shop     ok, 12 ms, by 10.0.0.9
2026-11-30T00:53:21.000Z  SubBefore            billing  -
2026-11-30T00:53:21.030Z  SubAfter             billing  failed, 30 ms
1 record in the trace topic cannot be read
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// TestPlaces holds which texts name a place.
func TestPlaces(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Orders/g1/2@41": "Orders/g1/2 41", "%RETRY%g/g1/0@0": "%RETRY%g/g1/0 0", "Orders/g1/2": "", "Orders/g1/2@": "", "Orders/g1/-1@0": "", "Orders/g1/0@-1": "",
		"Orders/g1/x@1": "", "Orders//0@1": "", "a b/g1/0@1": "", "/g1/0@1": "", "Orders/g1/0@9223372036854775808": "", "Orders/g1/2147483648@1": "", "": "", "@": "",
		"0A00000100002A9F0000000000001048": "",
	} {
		got := ""
		if q, off, ok := parsePlace(text); ok {
			got = strings.ReplaceAll(placeOf(q.Topic, q.Group, int32(q.Queue), int64(off)), "@", " ")
		}
		if got != want {
			t.Errorf("%q is the place %q, want %q", text, got, want)
		}
	}
}

// TestMessageUsage holds that what makes no sense is refused before anybody is asked, in one line.
func TestMessageUsage(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"find", "find a b", "find T --key a --tag b", "find T --key a --unique b", "find T --max 0", "find T --max 10001", "find T --from yesterday", "find T --until 17",
		"find T --from 2026-11-30T00:00:00Z --until 2026-11-29T00:00:00Z", "find T --key=", "find T --unique=", "find bad!topic", "show", "show nowhere", "show Orders/g1/2",
	} {
		code, out, errs := runTool(t, append([]string{"admin", "message"}, strings.Fields(args)...)...)
		if code != 2 || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("%s: exit code %d, %q", args, code, errs)
		}
	}
}
