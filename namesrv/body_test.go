package namesrv

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/internal/laxjson"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file of testdata, which docs/format/namesrv.md shows.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, bytes.TrimSuffix(want, []byte("\n"))) {
		t.Fatalf("%s:\n got %s\nwant %s", name, got, want)
	}
}

func exampleBody() RegisterBody {
	return RegisterBody{
		Version: DataVersion{StateVersion: 1<<32 | 2, Timestamp: 1_700_000_000_000, Counter: 7},
		Topics: []TopicConfig{
			{Name: "TBW102", ReadQueues: 8, WriteQueues: 8, Perm: 7},
			{Name: "orders", ReadQueues: 4, WriteQueues: 2, Perm: 6, Attributes: map[string]string{"message.type": "NORMAL"}},
		},
	}
}

func TestBodyForms(t *testing.T) {
	t.Parallel()
	b := exampleBody()
	plain := b.Encode()
	golden(t, "register.json", plain)
	got, err := DecodeRegisterBody(plain, false)
	b.Topics[0].Attributes = map[string]string{}
	if err != nil || !reflect.DeepEqual(got, b) {
		t.Fatalf("the JSON form came back as %+v, %v", got, err)
	}

	b.Topics[0].Attributes = nil
	packed := compressed(b)
	z, err := zlib.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	unpacked, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "register-unpacked.txt", listing(t, unpacked))
	if got, err = DecodeRegisterBody(packed, true); err != nil || !reflect.DeepEqual(got, b) {
		t.Fatalf("the compressed form came back as %+v, %v", got, err)
	}
	if got, err := DecodeRegisterBody(nil, true); err != nil || len(got.Topics) != 0 {
		t.Fatalf("no body: %+v, %v", got, err)
	}
}

// listing shows the unpacked compressed form: a number as 8 hexadecimal digits, a text in quotes behind its length.
func listing(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	number := func() int {
		n := int(binary.BigEndian.Uint32(b))
		fmt.Fprintf(&out, "%x", b[:4])
		b = b[4:]
		return n
	}
	text := func() {
		n := number()
		fmt.Fprintf(&out, " %q\n", b[:n])
		b = b[n:]
	}
	text()
	topics := number()
	out.WriteByte('\n')
	for range topics {
		text()
	}
	text()
	number()
	if len(b) > 0 {
		t.Fatalf("%d bytes are left", len(b))
	}
	return out.Bytes()
}

// TestPageShowsGoldenBytes holds docs/format/namesrv.md to the files of testdata.
func TestPageShowsGoldenBytes(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/format/namesrv.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"register.json", "register-unpacked.txt", "route.json", "route-old.txt", "cluster.json", "cluster-old.txt"} {
		want, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(page, bytes.TrimSpace(want)) {
			t.Errorf("the page does not show %s", name)
		}
	}
}

// TestBodyOfJava reads what a Java broker with a static topic sends: bare integer keys, fields we do not know.
func TestBodyOfJava(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/register-java.json")
	if err != nil {
		t.Fatal(err)
	}
	b, err := DecodeRegisterBody(text, false)
	if err != nil {
		t.Fatal(err)
	}
	want := []TopicConfig{{Name: "T", ReadQueues: 8, WriteQueues: 8, Perm: 6, Order: true, SysFlag: 3, Attributes: map[string]string{}}}
	if !reflect.DeepEqual(b.Topics, want) || b.Version != (DataVersion{StateVersion: 3, Timestamp: 1690000000000, Counter: 12}) {
		t.Fatalf("got %+v", b)
	}
}

func pack(parts ...any) []byte {
	var out bytes.Buffer
	z, _ := zlib.NewWriterLevel(&out, zlib.BestSpeed)
	for _, p := range parts {
		var size [4]byte
		switch p := p.(type) {
		case int:
			binary.BigEndian.PutUint32(size[:], uint32(p))
			_, _ = z.Write(size[:])
		case string:
			binary.BigEndian.PutUint32(size[:], uint32(len(p)))
			_, _ = z.Write(size[:])
			_, _ = io.WriteString(z, p)
		}
	}
	_ = z.Close()
	return out.Bytes()
}

func TestBadBodies(t *testing.T) {
	t.Parallel()
	version := `{"counter":1,"stateVersion":0,"timestamp":5}`
	// The end of an older form, without filters, is fine.
	b, err := DecodeRegisterBody(pack(version, 1, `T 1 2 6 SINGLE_TAG {"a b":"c d"}`), true)
	if err != nil || b.Topics[0].Attributes["a b"] != "c d" {
		t.Fatalf("short form: %+v, %v", b, err)
	}
	for name, c := range map[string]struct {
		body       []byte
		compressed bool
	}{
		"not JSON":          {[]byte("x"), false},
		"wrong type":        {[]byte(`{"topicConfigSerializeWrapper":{"topicConfigTable":[]}}`), false},
		"not packed":        {[]byte("x"), true},
		"cut":               {pack(version, 1, "T 1 1 6 SINGLE_TAG", "[]", 0)[:20], true},
		"no version":        {pack(""), true},
		"many topics":       {pack(version, MaxTopicsOfGroup+1), true},
		"empty":             {pack(), true},
		"length lies":       {pack(version, 1<<30), true},
		"length negative":   {pack(version, -1), true},
		"topic length lies": {pack(version, 1, 1<<20), true},
		"few words":         {pack(version, 1, "T 1 1 6"), true},
		"no number":         {pack(version, 1, "T 1 x 6 SINGLE_TAG"), true},
		"negative":          {pack(version, 1, "T 1 -1 6 SINGLE_TAG"), true},
		"no name":           {pack(version, 1, " 1 1 6 SINGLE_TAG"), true},
		"long name":         {pack(version, 1, strings.Repeat("n", 256)+" 1 1 6 SINGLE_TAG"), true},
		"control character": {[]byte(`{"topicConfigSerializeWrapper":{"topicConfigTable":{"a\nb":{}}}}`), false},
	} {
		if got, err := DecodeRegisterBody(c.body, c.compressed); !errors.Is(err, ErrBody) {
			t.Errorf("%s: %+v, %v; want ErrBody", name, got, err)
		}
	}
	// A small body that unpacks to a long text, and the bound on all texts together.
	bomb := pack(strings.Repeat(" ", maxItem+1))
	if _, err := DecodeRegisterBody(bomb, true); !errors.Is(err, ErrBody) || len(bomb) > maxItem/64 {
		t.Errorf("a bomb of %d bytes: %v", len(bomb), err)
	}
	r := items{in: bufio.NewReader(strings.NewReader("\x00\x00\x00\x02ab\x00\x00\x00\x02cd")), left: 11}
	if first := string(r.item()); first != "ab" || r.err != nil {
		t.Errorf("the first text: %q, %v", first, r.err)
	}
	if r.item(); !errors.Is(r.err, ErrBody) {
		t.Errorf("past the bound: %v", r.err)
	}
}

func FuzzRegisterBody(f *testing.F) {
	b := exampleBody()
	f.Add(b.Encode(), false)
	f.Add(compressed(b), true)
	f.Add(pack(`{"counter":1}`, 2, "T 1 1 6 SINGLE_TAG {}"), true)
	if java, err := os.ReadFile("testdata/register-java.json"); err == nil {
		f.Add(java, false)
	}
	f.Fuzz(func(t *testing.T, body []byte, compressed bool) {
		got, err := DecodeRegisterBody(body, compressed)
		if err != nil {
			if !errors.Is(err, ErrBody) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		// Invariant: what was read can be written and read again.
		again, err := DecodeRegisterBody(got.Encode(), false)
		if err != nil {
			t.Fatalf("%+v cannot be read again: %v", got, err)
		}
		if again.Version != got.Version {
			t.Fatalf("version %+v became %+v", got.Version, again.Version)
		}
	})
}

func TestAnswersInBothDialects(t *testing.T) {
	t.Parallel()
	route := TopicRoute{
		Queues: []QueueData{{Group: "g1", ReadQueues: 8, WriteQueues: 4, Perm: 6}, {Group: "g2", ReadQueues: 1, WriteQueues: 1, Perm: 4, SysFlag: 1}},
		Brokers: []BrokerData{
			{Cluster: "c", Group: "g1", Addrs: []BrokerAddr{{0, "10.0.0.1:10911"}, {2, "10.0.0.2:10911"}}, Term: 1<<32 | 2},
			{Cluster: "c", Group: "g2", Addrs: []BrokerAddr{{3, "h\"ü:1"}}, Zone: "z", Acting: true},
		},
	}
	old, now := bareKeys.appendRoute(nil, route), standard.appendRoute(nil, route)
	golden(t, "route-old.txt", old)
	golden(t, "route.json", now)
	oldCluster, cluster := bareKeys.appendCluster(nil, route.Brokers), standard.appendCluster(nil, route.Brokers)
	golden(t, "cluster-old.txt", oldCluster)
	golden(t, "cluster.json", cluster)
	for _, pair := range [][2][]byte{{old, now}, {oldCluster, cluster}} {
		if json.Valid(pair[0]) || !json.Valid(pair[1]) {
			t.Fatalf("dialects are mixed up:\n%s\n%s", pair[0], pair[1])
		}
		quoted, err := laxjson.Standard(pair[0])
		if err != nil || !bytes.Equal(quoted, pair[1]) {
			t.Fatalf("the old dialect says %s, the standard one %s (%v)", quoted, pair[1], err)
		}
	}
	if got := terms(route.Brokers); got != "g1=4294967298,g2=0" {
		t.Fatalf("terms %s", got)
	}
}

// compressed returns the compressed form of b, which brokers of Apache send and ours do not. It carries neither the order flag
// nor the system flag of a topic: RocketMQ's form has no place for them.
func compressed(b RegisterBody) []byte {
	var out bytes.Buffer
	z, err := zlib.NewWriterLevel(&out, zlib.BestCompression)
	if err != nil {
		panic(fmt.Sprintf("namesrv: %v", err))
	}
	item := func(text []byte) {
		var size [4]byte
		binary.BigEndian.PutUint32(size[:], uint32(len(text)))
		_, _ = z.Write(size[:]) // a bytes.Buffer takes everything
		_, _ = z.Write(text)
	}
	count := func(n int) {
		var size [4]byte
		binary.BigEndian.PutUint32(size[:], uint32(n))
		_, _ = z.Write(size[:])
	}
	version, _ := json.Marshal(b.Version)
	item(version)
	count(len(b.Topics))
	for _, t := range slices.SortedFunc(slices.Values(b.Topics), func(a, b TopicConfig) int { return strings.Compare(a.Name, b.Name) }) {
		item(topicText(t))
	}
	item([]byte("[]"))
	count(0)
	_ = z.Close()
	return out.Bytes()
}

// topicText is "name read write perm SINGLE_TAG {attributes}".
func topicText(t TopicConfig) []byte {
	dst := []byte(t.Name)
	for _, n := range []int32{t.ReadQueues, t.WriteQueues, t.Perm} {
		dst = strconv.AppendInt(append(dst, ' '), int64(n), 10)
	}
	dst = append(dst, " SINGLE_TAG"...)
	if len(t.Attributes) > 0 {
		attributes, _ := json.Marshal(t.Attributes)
		dst = append(append(dst, ' '), attributes...)
	}
	return dst
}
