package message

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/ledgermq/ledgermq/internal/ids"
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

func randomText(r *rand.Rand, limit int) string {
	b := make([]byte, r.IntN(limit+1))
	for i := range b {
		b[i] = byte(r.IntN(256))
	}
	return string(b)
}

func randomHost(r *rand.Rand) netip.AddrPort {
	var b [16]byte
	for i := range b {
		b[i] = byte(r.IntN(256))
	}
	if r.IntN(2) == 0 {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[:4])), uint16(r.Uint32()))
	}
	b[0] = 0x20 // no IPv4 address inside an IPv6 one
	return netip.AddrPortFrom(netip.AddrFrom16(b), uint16(r.Uint32()))
}

func randomRecord(r *rand.Rand) Record {
	rec := Record{
		QueueID: ids.QueueID(r.Uint32()), Flag: int32(r.Uint32()), QueueOffset: ids.QueueOffset(r.Uint64()),
		PhysicalOffset: ids.PhysicalOffset(r.Uint64()), SysFlag: int32(r.Uint32()), BornTime: int64(r.Uint64()),
		BornHost: randomHost(r), StoreTime: int64(r.Uint64()), StoreHost: randomHost(r), ReconsumeTimes: int32(r.Uint32()),
		PreparedOffset: int64(r.Uint64()), Body: []byte(randomText(r, 300)), Topic: randomText(r, 255), Properties: randomText(r, 300),
	}
	rec.SysFlag &^= SysBornHostV6 | SysStoreHostV6
	if rec.BornHost.Addr().Is6() {
		rec.SysFlag |= SysBornHostV6
	}
	if rec.StoreHost.Addr().Is6() {
		rec.SysFlag |= SysStoreHostV6
	}
	return rec
}

func TestRecordRoundTrip(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 2000 {
		want := randomRecord(r)
		b := want.AppendTo([]byte("before"))
		if string(b[:6]) != "before" {
			t.Fatal("AppendTo changed what was there")
		}
		b = b[6:]
		if len(b) != want.Size() {
			t.Fatalf("%d bytes, Size says %d", len(b), want.Size())
		}
		got, n, err := Decode(append(b, "next"...))
		if err != nil || n != len(b) {
			t.Fatalf("record %d: %d, %v", i, n, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got  %+v\nwant %+v", got, want)
		}
	}
}

func TestRecordTopicLengths(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 127, 128, 255} {
		r := sample()
		r.Topic = strings.Repeat("t", n)
		b := r.AppendTo(nil)
		magic, want := binary.BigEndian.Uint32(b[4:]), magicV1
		if n > 127 {
			want = magicV2
		}
		got, _, err := Decode(b)
		if err != nil || got.Topic != r.Topic || magic != want {
			t.Fatalf("%d: magic %x, topic of %d, %v", n, magic, len(got.Topic), err)
		}
	}
}

// A host that is missing, or an IPv4 address inside an IPv6 one, takes four bytes.
func TestRecordOddHosts(t *testing.T) {
	t.Parallel()
	r := sample()
	r.BornHost, r.StoreHost = netip.AddrPort{}, netip.MustParseAddrPort("[::ffff:10.9.8.7]:10911")
	got, _, err := Decode(r.AppendTo(nil))
	if err != nil || got.SysFlag != 0 {
		t.Fatal(got.SysFlag, err)
	}
	if got.BornHost.String() != "0.0.0.0:0" || got.StoreHost.String() != "10.9.8.7:10911" {
		t.Fatal(got.BornHost, got.StoreHost)
	}
}

func TestPatch(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		rec := randomRecord(r)
		b := rec.AppendTo(nil)
		want := rec
		want.QueueOffset, want.PhysicalOffset, want.StoreTime = ids.QueueOffset(r.Int64()), ids.PhysicalOffset(r.Int64()), r.Int64()
		for want.StoreHost = randomHost(r); want.StoreHost.Addr().Is6() != rec.StoreHost.Addr().Is6(); {
			want.StoreHost = randomHost(r)
		}
		Patch(b, want.QueueOffset, want.PhysicalOffset, want.StoreTime, want.StoreHost)
		got, _, err := Decode(b)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%v\ngot  %+v\nwant %+v", err, got, want)
		}
		if at := StoreTimeOf(b[:StoreTimeHead]); at != want.StoreTime {
			t.Fatalf("store time %d, want %d", at, want.StoreTime)
		}
	}
}

func TestPatchHostSizes(t *testing.T) {
	t.Parallel()
	v4, v6 := netip.MustParseAddrPort("10.9.8.7:10911"), netip.MustParseAddrPort("[2001:db8::2]:10911")
	r := sample()
	r.StoreHost = v6
	b := r.AppendTo(nil)
	Patch(b, 1, 2, 3, v4)
	if got, _, err := Decode(b); err != nil || got.StoreHost.String() != "[::ffff:10.9.8.7]:10911" {
		t.Fatal(got.StoreHost, err)
	}
	defer func() {
		if recover() == nil {
			t.Fatal("Patch wrote an IPv6 address over a place for IPv4")
		}
	}()
	r = sample()
	Patch(r.AppendTo(nil), 1, 2, 3, v6)
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	put := func(at int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte { binary.BigEndian.PutUint32(b[at:], v); return b }
	}
	const bodyLength = 84
	for name, c := range map[string]struct {
		change func([]byte) []byte
		reason string
	}{
		"empty":             {func([]byte) []byte { return nil }, "0 bytes are less"},
		"cut off":           {func(b []byte) []byte { return b[:len(b)-1] }, "but only"},
		"size 0":            {put(0, 0), "out of range"},
		"size too small":    {put(0, 127), "runs past the end"},
		"size too large":    {put(0, maxRecord+1), "out of range"},
		"size negative":     {put(0, math.MaxUint32), "out of range"},
		"magic of a blank":  {put(4, 0xCBD43194), "unknown magic"},
		"checksum":          {put(8, 1), "body checksum"},
		"body changed":      {func(b []byte) []byte { b[bodyLength+4] ^= 1; return b }, "body checksum"},
		"body length":       {put(bodyLength, 1000), "runs past the end"},
		"body length minus": {put(bodyLength, math.MaxUint32), "negative length"},
		"shorter body":      {put(bodyLength, 12), "runs past the end"},
		"topic length":      {func(b []byte) []byte { b[bodyLength+4+13] = 0x80; return b }, "negative length"},
		"properties length": {func(b []byte) []byte { b[len(b)-20] = 0xFF; return b }, "negative length"},
		"fewer properties":  {func(b []byte) []byte { b[len(b)-19]--; return b }, "the fields end at"},
		"port":              {put(52, 65536), "port 65536"},
		"host size":         {put(36, uint32(SysBornHostV6)), ""},
	} {
		r := sample()
		b := c.change(r.AppendTo(nil))
		_, n, err := Decode(b)
		var format *FormatError
		if !errors.As(err, &format) || n != 0 || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
}

// The official client must read what we write. (It cannot read topics over 127 bytes at all.)
// Check accepts what was meant and finds every flipped bit but those that the checksum of a record does not cover, and what is whole but not
// meant.
func TestCheck(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(4, 2))
	for i := range 60 {
		rec := randomRecord(r)
		if i == 0 {
			rec = sample()
		}
		b := rec.AppendTo(nil)
		check := func(b []byte) error { return Check(b, rec.Topic, rec.QueueID, rec.QueueOffset, rec.PhysicalOffset) }
		if err := check(b); err != nil {
			t.Fatalf("%+v: %v", rec, err)
		}
		body := len(b) - len(rec.Properties) - 2 - len(rec.Topic) - 1 - len(rec.Body) - 4
		if len(rec.Topic) > MaxTopic {
			body--
		}
		for at := range b {
			free := at >= atFlag && at < atQueueOffset || at >= atSysFlag && at < body || at >= len(b)-len(rec.Properties)
			for bit := range 8 {
				b[at] ^= 1 << bit
				err := check(b)
				b[at] ^= 1 << bit
				host := at == atSysFlag+3 && int32(1<<bit)&(SysBornHostV6|SysStoreHostV6) != 0 // another length
				if (err == nil) != (free && !host) {
					t.Fatalf("bit %d of byte %d flipped in %d: %v", bit, at, len(b), err)
				}
			}
		}
		for name, err := range map[string]error{
			"cut":                   check(b[:len(b)-1]),
			"a byte more":           check(append(bytes.Clone(b), 0)),
			"another topic":         Check(b, rec.Topic+"x", rec.QueueID, rec.QueueOffset, rec.PhysicalOffset),
			"another queue":         Check(b, rec.Topic, rec.QueueID+1, rec.QueueOffset, rec.PhysicalOffset),
			"another queue offset":  Check(b, rec.Topic, rec.QueueID, rec.QueueOffset+1, rec.PhysicalOffset),
			"another place":         Check(b, rec.Topic, rec.QueueID, rec.QueueOffset, rec.PhysicalOffset+1),
			"nothing":               check(nil),
			"the record behind one": check(append(make([]byte, 8), b...)),
		} {
			var f *FormatError
			if !errors.As(err, &f) {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
}

func TestOfficialClientDecodes(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	var all []byte
	var want []Record
	for range 50 {
		rec := randomRecord(r)
		rec.SysFlag &^= SysCompressed
		rec.Topic = strings.Repeat("t", r.IntN(128))
		rec.Properties = AppendProperty(AppendProperty("", KeyTags, "a"), KeyKeys, "k1 k2")
		all, want = rec.AppendTo(all), append(want, rec)
	}
	got := primitive.DecodeMessage(bytes.Clone(all))
	if len(got) != len(want) {
		t.Fatalf("%d messages, want %d", len(got), len(want))
	}
	for i, g := range got {
		w := &want[i]
		if int(g.StoreSize) != w.Size() || ids.QueueID(g.Queue.QueueId) != w.QueueID || g.Flag != w.Flag ||
			ids.QueueOffset(g.QueueOffset) != w.QueueOffset || ids.PhysicalOffset(g.CommitLogOffset) != w.PhysicalOffset ||
			g.SysFlag != w.SysFlag || g.BornTimestamp != w.BornTime || g.StoreTimestamp != w.StoreTime ||
			g.ReconsumeTimes != w.ReconsumeTimes || g.PreparedTransactionOffset != w.PreparedOffset ||
			!bytes.Equal(g.Body, w.Body) || g.Topic != w.Topic || uint32(g.BodyCRC) != bodyCRC(w.Body) ||
			g.GetTags() != "a" || g.GetKeys() != "k1 k2" ||
			g.OffsetMsgId != OffsetMessageID(w.StoreHost, w.PhysicalOffset) {
			t.Fatalf("message %d: the client read %v of %+v", i, g, w)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	for name := range goldenRecords() {
		f.Add(golden(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, n, err := Decode(b)
		if err != nil {
			if Check(b, "T", 0, 0, 0) == nil {
				t.Fatalf("accepted, but %v", err)
			}
			return
		}
		if err := Check(b[:n], r.Topic, r.QueueID, r.QueueOffset, r.PhysicalOffset); err != nil {
			t.Fatal(err)
		}
		// A V2 record with a short topic, or an IPv4 address in an IPv6 place, is read but never written.
		short := binary.BigEndian.Uint32(b[4:]) == magicV2 && len(r.Topic) <= MaxTopic
		if short || r.BornHost.Addr().Is4In6() || r.StoreHost.Addr().Is4In6() {
			return
		}
		if made := r.AppendTo(nil); !bytes.Equal(made, b[:n]) {
			t.Fatalf("read  %x\nwrote %x", b[:n], made)
		}
	})
}

// BenchmarkAppend answers: what does a record of 1 KiB cost the connection that encodes it? Expected: a copy of 1 KiB
// and its checksum, 0.1 to 0.2 µs, no allocation.
func BenchmarkAppend(b *testing.B) {
	r := sample()
	r.Body = make([]byte, 1024)
	var out []byte
	b.ReportAllocs()
	b.SetBytes(int64(r.Size()))
	for b.Loop() {
		out = r.AppendTo(out[:0])
	}
}
