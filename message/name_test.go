package message

import (
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

func TestJavaHash(t *testing.T) {
	t.Parallel()
	// Values of java.lang.String.hashCode.
	for s, want := range map[string]int32{
		"": 0, "a": 97, "TagA": 2598919, "hello": 99162322, "polygenelubricants": -2147483648,
		"\u00e4": 228, "\u4e2d\u6587": 646394, "\U0001F600": 1772899,
	} {
		if got := JavaHash(s); got != want {
			t.Errorf("%q: %d, want %d", s, got, want)
		}
	}
	if TagsCode("polygenelubricants") != -2147483648 || TagsCode("") != 0 {
		t.Error("TagsCode does not extend the sign")
	}
}

func TestOffsetMessageID(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{
		"10.9.8.7:10911":        "0A09080700002A9F0000000000001060",
		"[2001:db8::2]:10911":   "20010DB800000000000000000000000200002A9F0000000000001060",
		"[::ffff:10.9.8.7]:255": "0A090807000000FF0000000000001060",
	} {
		h := netip.MustParseAddrPort(host)
		id := OffsetMessageID(h, 4192)
		if id != want {
			t.Errorf("%s: %s", host, id)
		}
		for _, s := range []string{id, strings.ToLower(id)} {
			gotHost, off, err := ParseOffsetMessageID(s)
			if err != nil || off != 4192 || gotHost.Addr() != h.Addr().Unmap() || gotHost.Port() != h.Port() {
				t.Errorf("%s: %v %d %v", s, gotHost, off, err)
			}
		}
		official, err := primitive.UnmarshalMsgID([]byte(id))
		if err != nil || official.Offset != 4192 || official.Port != int(h.Port()) {
			t.Errorf("the client reads %s as %+v, %v", id, official, err)
		}
	}
	for _, bad := range []string{"", "0A", strings.Repeat("g", 32), strings.Repeat("F", 32), strings.Repeat("0", 40), "0A09080700002A9FFFFFFFFFFFFFFFFF", strings.Repeat("ä", 16)} {
		if _, _, err := ParseOffsetMessageID(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func FuzzParseOffsetMessageID(f *testing.F) {
	f.Add("0A09080700002A9F0000000000001060")
	f.Add("20010DB800000000000000000000000200002A9F0000000000001060")
	f.Fuzz(func(t *testing.T, id string) {
		host, off, err := ParseOffsetMessageID(id)
		if err == nil && !host.Addr().Is4In6() && OffsetMessageID(host, off) != strings.ToUpper(id) {
			t.Fatalf("%s: %v %d", id, host, off)
		}
	})
}

func TestUniqueKeys(t *testing.T) {
	t.Parallel()
	const workers, each = 8, 20_000
	made := make([][]string, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range each {
				made[w] = append(made[w], NewUniqueKey())
			}
		})
	}
	wg.Wait()
	seen := make(map[string]bool, workers*each)
	for _, keys := range made {
		for _, k := range keys {
			if seen[k] {
				t.Fatalf("%s was given twice", k)
			}
			seen[k] = true
			if len(k) != 32 && len(k) != 56 || strings.Trim(k, upperHex) != "" {
				t.Fatalf("%q is no key", k)
			}
		}
	}
}

// The clock may step back or stand still: keys go on growing.
func TestTicksGrow(t *testing.T) {
	t.Parallel()
	a := nextTick(0)
	if b := nextTick(-5); b <= a {
		t.Fatal(a, b)
	}
	m := monthStart(1_790_000_000_123)
	if d := 1_790_000_000_123 - m; d < 20*86_400_000 || d > 21*86_400_000 {
		t.Fatalf("21 September is %d ms into its month", d)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 127)
	for name, ok := range map[string]bool{
		"a": true, "Topic-1_x|y%z": true, long: true, long + "x": false, RetryTopic(long[:120]): true, DLQTopic(strings.Repeat("g", 250)): true,
		DLQTopic(strings.Repeat("g", 251)): false, "": false, "a b": false, "a/b": false, "tüpic": false, "a\x00": false, "../x": false, "a.b": false,
	} {
		if err := ValidTopic(name); (err == nil) != ok {
			t.Errorf("topic %q: %v", name, err)
		}
	}
	for name, ok := range map[string]bool{"g": true, long[:120]: true, long[:121]: false, "": false, "a b": false} {
		if err := ValidGroup(name); (err == nil) != ok {
			t.Errorf("group %q: %v", name, err)
		}
	}
	for name, want := range map[string][2]bool{ // system, writable
		"TBW102": {true, true}, "SCHEDULE_TOPIC_XXXX": {true, false}, "RMQ_SYS_TRANS_HALF_TOPIC": {true, false},
		"RMQ_SYS_TRANS_OP_HALF_TOPIC": {true, false}, "TRANS_CHECK_MAX_TIME_TOPIC": {true, false}, "SELF_TEST_TOPIC": {true, false},
		"RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC": {true, false}, "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC": {true, false},
		"OFFSET_MOVED_EVENT": {true, false}, "RMQ_SYS_TRACE_TOPIC": {true, true}, "rmq_sys_wheel_timer": {true, false},
		"orders": {false, true}, "%RETRY%g": {false, true},
	} {
		if got := [2]bool{IsSystemTopic(name), IsWritable(name)}; got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	for name, want := range map[string]bool{"TOOLS_CONSUMER": true, "CID_RMQ_SYS_X": true, "mine": false} {
		if IsSystemGroup(name) != want {
			t.Errorf("group %s", name)
		}
	}
	if g, ok := GroupOfRetryTopic(RetryTopic("g")); g != "g" || !ok {
		t.Error(g)
	}
	if _, ok := GroupOfRetryTopic("g"); ok {
		t.Error("g is no retry topic")
	}
}
