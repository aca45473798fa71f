package client

import (
	"strings"
	"testing"
	"time"
)

// TestParseTrace reads records as clients of several versions and languages write them.
func TestParseTrace(t *testing.T) {
	t.Parallel()
	line := func(fields ...string) string { return strings.Join(fields, "\x01") + "\x02" }
	at, later := time.UnixMilli(1796000000000), time.UnixMilli(1796000000250)
	for name, c := range map[string]struct {
		text string
		want TraceRecord
	}{
		"Pub of an old client": {line("Pub", "1796000000000", "R", "pg", "T", "ID1", "tag", "k1 k2", "10.0.0.1:10911", "17", "3", "0", "true"),
			TraceRecord{Kind: "Pub", Time: at, Region: "R", Group: "pg", Topic: "T", ID: "ID1", Tags: "tag", Keys: "k1 k2", StoreHost: "10.0.0.1:10911", Bytes: 17, Cost: 3 * time.Millisecond, Success: true}},
		"Pub of Java": {line("Pub", "1796000000000", "R", "pg", "T", "ID1", "null", "null", "10.0.0.1:10911", "17", "3", "2", "OFF1", "false"),
			TraceRecord{Kind: "Pub", Time: at, Region: "R", Group: "pg", Topic: "T", ID: "ID1", StoreHost: "10.0.0.1:10911", OffsetID: "OFF1", Bytes: 17, Cost: 3 * time.Millisecond}},
		"Pub of Go": {line("Pub", "1796000000000", "", "pg", "T", "ID1", "", "", "10.0.0.1:10911", "0", "0", "0", "OFF1", "true", "10.0.0.9"),
			TraceRecord{Kind: "Pub", Time: at, Group: "pg", Topic: "T", ID: "ID1", StoreHost: "10.0.0.1:10911", OffsetID: "OFF1", Success: true, Client: "10.0.0.9"}},
		"SubBefore": {line("SubBefore", "1796000000000", "R", "cg", "REQ", "ID1", "2", "null"),
			TraceRecord{Kind: "SubBefore", Time: at, Region: "R", Group: "cg", Request: "REQ", ID: "ID1", Retry: 2}},
		"SubAfter of an old client": {line("SubAfter", "REQ", "ID1", "250", "true", "k1"),
			TraceRecord{Kind: "SubAfter", Request: "REQ", ID: "ID1", Cost: 250 * time.Millisecond, Success: true, Keys: "k1"}},
		"SubAfter": {line("SubAfter", "REQ", "ID1", "250", "false", "null", "1", "1796000000250", "cg"),
			TraceRecord{Kind: "SubAfter", Time: later, Group: "cg", Request: "REQ", ID: "ID1", Cost: 250 * time.Millisecond, Result: "timeout"}},
		"SubAfter with a code of its own": {line("SubAfter", "REQ", "ID1", "0", "false", "null", "9"),
			TraceRecord{Kind: "SubAfter", Request: "REQ", ID: "ID1", Result: "code 9"}},
		"EndTransaction": {line("EndTransaction", "1796000000000", "R", "pg", "T", "ID1", "tag", "k", "10.0.0.1:10911", "2", "TX", "ROLLBACK_MESSAGE", "true"),
			TraceRecord{Kind: "EndTransaction", Time: at, Region: "R", Group: "pg", Topic: "T", ID: "ID1", Tags: "tag", Keys: "k", StoreHost: "10.0.0.1:10911", State: "ROLLBACK_MESSAGE", Checked: true}},
		"Recall": {line("Recall", "1796000000000", "R", "pg", "T", "ID1", "true"),
			TraceRecord{Kind: "Recall", Time: at, Region: "R", Group: "pg", Topic: "T", ID: "ID1", Success: true}},
	} {
		got, bad := ParseTrace([]byte(c.text))
		if len(got) != 1 || bad != 0 || got[0] != c.want {
			t.Errorf("%s: %+v, %d bad, want %+v", name, got, bad, c.want)
		}
	}
	// What makes no sense is counted, and hides nothing of what does.
	good := line("Recall", "1796000000000", "R", "pg", "T", "ID1", "true")
	for _, bad := range []string{"x\x02", line("Pub"), line("Pub", "soon", "R", "pg", "T", "ID", "", "", "", "1", "1", "0", "true"), line("SubAfter", "REQ"), line("Recall", "1", "R", "pg", "T", "", "true"), line("Pub", "1", "2"),
		line("SubAfter", "REQ", "ID1", "9223372036854775807", "true", "k1"), line("SubAfter", "REQ", "ID1", "-9223372036855", "true", "k1"), "\x01\x02", line("pub", "1")} {
		if got, n := ParseTrace([]byte(good + bad + good)); len(got) != 2 || n != 1 {
			t.Errorf("%q: %d records, %d bad", bad, len(got), n)
		}
	}
	if got, n := ParseTrace(nil); len(got) != 0 || n != 0 {
		t.Errorf("an empty body has %d records, %d bad", len(got), n)
	}
}

// FuzzParseTrace: any body gives records with a kind and an id, and never a panic.
func FuzzParseTrace(f *testing.F) {
	f.Add([]byte("Pub\x011\x01R\x01pg\x01T\x01ID\x01t\x01k\x01h\x011\x011\x010\x01O\x01true\x02SubAfter\x01R\x01ID\x011\x01true\x01k\x020\x02"))
	f.Add([]byte("SubBefore\x011\x01R\x01cg\x01Q\x01ID\x010\x01null\x02EndTransaction\x01\x02"))
	f.Fuzz(func(t *testing.T, body []byte) {
		list, _ := ParseTrace(body)
		for _, r := range list {
			if r.ID == "" || r.Kind == "" {
				t.Fatalf("%+v", r)
			}
		}
	})
}
