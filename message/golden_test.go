package message

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// golden reads a file of testdata: hexadecimal bytes or a quoted string on each line, a comment after #.
func golden(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".golden"))
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for n, line := range strings.Split(string(text), "\n") {
		if quoted, err := strconv.QuotedPrefix(line); err == nil {
			s, err := strconv.Unquote(quoted)
			if err != nil {
				t.Fatalf("%s:%d: %v", name, n+1, err)
			}
			out = append(out, s...)
			continue
		}
		digits, _, _ := strings.Cut(line, "#")
		b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil {
			t.Fatalf("%s:%d: %v", name, n+1, err)
		}
		out = append(out, b...)
	}
	return out
}

func goldenRecords() map[string]Record {
	v4 := sample()
	v6 := sample()
	v6.BornHost, v6.StoreHost = netip.MustParseAddrPort("[2001:db8::1]:45678"), netip.MustParseAddrPort("[2001:db8::2]:10911")
	v6.SysFlag, v6.Body = SysBornHostV6|SysStoreHostV6, []byte{}
	long := sample()
	long.Topic, long.Body, long.Properties = DLQTopic(strings.Repeat("g", 123)), []byte("x"), ""
	return map[string]Record{"record": v4, "record-ipv6": v6, "record-long-topic": long}
}

// The golden bytes were made by hand from the table of RocketMQ's record, not by this encoder.
func TestGoldenRecords(t *testing.T) {
	t.Parallel()
	for name, want := range goldenRecords() {
		b := golden(t, name)
		got, n, err := Decode(b)
		if err != nil || n != len(b) {
			t.Fatalf("%s: %d bytes, %v", name, n, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s: got  %+v\nwant %+v", name, got, want)
		}
		if made := want.AppendTo(nil); !bytes.Equal(made, b) {
			t.Fatalf("%s: made %x\nwant %x", name, made, b)
		}
	}
}

// A pair more in the bytes only is a pair more in the properties.
func TestGoldenRegion(t *testing.T) {
	t.Parallel()
	want := golden(t, "record-region")
	for _, props := range []string{"KEYS\x01k1 k2\x02TAGS\x01a\x02", "KEYS\x01k1 k2\x02TAGS\x01a"} { // the last separator may be absent
		r := sample()
		r.Properties = props
		if made := r.AppendWith(nil, KeyMsgRegion, "DefaultRegion"); !bytes.Equal(made, want) || len(made) != r.Size()+PropertySize(props, KeyMsgRegion, "DefaultRegion") {
			t.Errorf("%q: made %x\nwant %x", props, made, want)
		}
	}
	for _, props := range []string{"", "a\x01b", "a\x01b\x02"} {
		r, long := sample(), sample()
		r.Properties, long.Properties = props, AppendProperty(props, "k", "v")
		if made := r.AppendWith(nil, "k", "v"); !bytes.Equal(made, long.AppendTo(nil)) {
			t.Errorf("%q: made %x\nwant %x", props, made, long.AppendTo(nil))
		}
	}
}

func TestGoldenBatch(t *testing.T) {
	t.Parallel()
	want := []BatchItem{{Flag: 5, Body: []byte("first"), Properties: "TAGS\x01a\x02"}, {Body: []byte{}}}
	b := golden(t, "batch")
	var got []BatchItem
	for it, err := range SplitBatch(b) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, it)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v", got)
	}
	var made []byte
	for _, it := range want {
		made = AppendBatchItem(made, it)
	}
	if !bytes.Equal(made, b) {
		t.Fatalf("made %x\nwant %x", made, b)
	}
}

// The page of the format shows the golden files as they are.
func TestPageShowsGoldenBytes(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/format/message.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/*.golden")
	if err != nil || len(files) != 5 {
		t.Fatalf("%d golden files, %v", len(files), err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(page), string(text)) {
			t.Errorf("docs/format/message.md does not show %s", f)
		}
	}
}
