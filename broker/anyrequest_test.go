package broker_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/remoting"
)

// Every field that a request of RocketMQ's clients, tools and brokers has.
var requestFields = strings.Fields(`topic defaultTopic readQueueNums writeQueueNums perm topicFilterType topicSysFlag order attributes force
	producerGroup defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties reconsumeTimes unitMode batch maxReconsumeTimes
	a b c d e f g h i j k l m n recallHandle tranStateTableOffset commitLogOffset commitOrRollback fromTransactionCheck msgId transactionId
	consumerGroup queueOffset maxMsgNums commitOffset suspendTimeoutMillis subscription subVersion expressionType maxMsgBytes
	setZeroIfNotFound timestamp boundaryType committed offset key maxNum beginTimestamp endTimestamp _UNIQUE_KEY_QUERY clientID clientId
	group groupName cleanOffset delayLevel originMsgId originTopic isForce statsName statsKey index count srcGroup destGroup
	topicSeq groupSeq maxTopicNum maxGroupNum dataVersion jstackEnable isOrder namespace value brokerName clusterName brokerId brokerAddr
	designateElect controllerAddress topicList readable
	body clientAddr execute from gaveUp giveUp indexType limit number offline physicalOffset storedBefore uniqueKey`)

// requestValues are what is wrong in each of them, by the name of the case; "" leaves them out.
var requestValues = map[string]string{
	"missing": "", "empty": "\x00", "huge": strings.Repeat("9", 40), "long": strings.Repeat("T", 70_000), "negative": "-9223372036854775808",
	"malformed": "../x;$(id)\r\n\t'\"{}", "zero": "0", "small": "-1", "largest": "9223372036854775807", "one more": "9223372036854775808", "largest of 32 bits": "2147483647",
	"fraction": "1.5", "true": "true", "binary": "\xff\xfe\x00\x01\x02",
}

// sourceOf is the source of this package, without its tests.
func sourceOf(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
	}
	return b.String()
}

// spans are the request codes that are tried: those of RocketMQ, our own, and others.
var spans = [][2]int32{{-2, 1100}, {2000, 2020}, {3000, 3020}, {4995, 5010}, {30990, 31040}, {32767, 32768}, {200040, 200160}, {1<<31 - 1, 1<<31 - 1}}

// TestAnyRequestTriesAll holds that the tables of TestAnyRequest have every code that has a name, and every field that a handler reads.
func TestAnyRequestTriesAll(t *testing.T) {
	t.Parallel()
	codes, err := os.ReadFile("../remoting/codes.go")
	if err != nil {
		t.Fatal(err)
	}
	requests, _, _ := strings.Cut(string(codes), "// Response codes.")
	for _, m := range regexp.MustCompile(`(\w+)\s+int32 = (\d+)`).FindAllStringSubmatch(requests, -1) {
		code, err := strconv.ParseInt(m[2], 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(spans, func(s [2]int32) bool { return s[0] <= int32(code) && int32(code) <= s[1] }) {
			t.Errorf("request %s (%d) is not tried", m[1], code)
		}
	}
	source := sourceOf(t)
	for _, m := range regexp.MustCompile(`req\.(?:Must\w+|\w*Or|Get)\("([^"]+)"`).FindAllStringSubmatch(source, -1) {
		if !slices.Contains(requestFields, m[1]) {
			t.Errorf("the field %q is not tried", m[1])
		}
	}
}

// bodiesOf are JSON objects with every name that this package gives a field of one, each with one value.
func bodiesOf(t *testing.T) (all []string) {
	t.Helper()
	var names []string
	for _, m := range regexp.MustCompile(`json:"(\w+)`).FindAllStringSubmatch(sourceOf(t), -1) {
		if !slices.Contains(names, m[1]) {
			names = append(names, m[1])
		}
	}
	if len(names) < 50 {
		t.Fatalf("only %d names were found", len(names))
	}
	for _, value := range []string{"2147483647", "-2147483648", "9223372036854775807", "-1", "0", "1.5", "1e400", `""`, `"T"`, `"../x;$(id)"`, "true", "null", "[]", "{}", "[{}]", "[null]",
		"[[[[]]]]", `{"T":-1}`, `{"":""}`, `["T"]`, `[{"topic":"T","queueId":2147483647}]`, strings.Repeat("9", 400)} {
		var b strings.Builder
		for i, name := range names {
			fmt.Fprintf(&b, "%s%q:%s", map[bool]string{true: "{", false: ","}[i == 0], name, value)
		}
		b.WriteString("}")
		all = append(all, b.String())
		// Names that exist let the other fields be looked at.
		all = append(all, strings.Replace(b.String(), "{", `{"groupName":"cg","consumerGroup":"cg","clientID":"c","clientId":"c","topic":"T","topicName":"T",`, 1))
	}
	return all
}

var requestBodies = []string{"", "{", "null", "[]", "{}", `"x"`, strings.Repeat("[", 10_000), strings.Repeat("x", 1<<20), "k=v\n../x=$(id)\n", "\x00\xff\xfe",
	`{"topic":-1,"consumerGroup":{},"clientID":[],"mqSet":7,"topicConfigList":"x","groupConfigList":{},"groupName":1}`}

// Whatever a request of any code holds, known or not, it is answered at once with a code and a line of text, and what was refused has
// changed nothing.
func TestAnyRequest(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	node := c.master("g1")
	w := c.wire(node, "g1")
	w.topic("T", 2)
	bodies := bodiesOf(t)
	r := rand.New(rand.NewPCG(1, 1))
	var values []string
	for _, v := range requestValues {
		values = append(values, strings.TrimPrefix(v, "\x00"))
	}
	slices.Sort(values)
	served := 0
	for _, span := range spans {
		for code := int64(span[0]); code <= int64(span[1]); code++ {
			if w.any(t, c, node, int32(code), nil, nil) == remoting.RequestCodeNotSupported {
				continue
			}
			served++
			for _, name := range slices.Sorted(maps.Keys(requestValues)) {
				value := requestValues[name]
				var fields []string
				for _, f := range requestFields {
					switch value {
					case "":
					case "\x00":
						fields = append(fields, f, "")
					default:
						fields = append(fields, f, value)
					}
				}
				if name == "missing" || r.IntN(2) == 0 {
					w.any(t, c, node, int32(code), []byte("x"), fields)
				}
				if name != "missing" {
					// A topic that exists lets the other fields be looked at.
					w.any(t, c, node, int32(code), []byte("x"), append(fields, "topic", "T", "b", "T", "consumerGroup", "cg", "group", "cg"))
				}
			}
			for _, body := range requestBodies {
				w.any(t, c, node, int32(code), []byte(body), nil)
			}
			for range 6 {
				w.any(t, c, node, int32(code), []byte(bodies[r.IntN(len(bodies))]), nil)
			}
			// Where all else makes sense, one field that does not.
			for range 16 {
				f, v := requestFields[r.IntN(len(requestFields))], values[r.IntN(len(values))]
				w.any(t, c, node, int32(code), []byte(`{"groupName":"cg","consumerGroup":"cg","clientID":"c","clientId":"c"}`), append(sensible(), f, v))
			}
		}
	}
	if served < 40 {
		t.Errorf("only %d codes are served", served)
	}
	t.Logf("%d codes are served", served)
}

// sensible are values for all fields with which many requests are good ones.
func sensible() (fields []string) {
	for _, f := range requestFields {
		v := "1"
		switch f {
		case "topic", "b", "originTopic":
			v = "T"
		case "consumerGroup", "group", "groupName", "srcGroup":
			v = "cg"
		case "queueId", "e", "f", "sysFlag", "h", "flag", "commitOrRollback":
			v = "0"
		case "perm":
			v = "6"
		case "force", "isForce", "order", "cleanOffset", "body", "gaveUp", "committed", "m":
			v = "false"
		case "properties", "i":
			v = ""
		}
		fields = append(fields, f, v)
	}
	return fields
}

// any sends one request and returns the code of its answer.
func (w *wire) any(t *testing.T, c *cluster, node string, code int32, body []byte, fields []string) int32 {
	t.Helper()
	what := fmt.Sprintf("request %d with %.60q … %.60q and a body of %d bytes %.40q", code, fields[:min(len(fields), 2)], fields[max(len(fields)-2, 0):], len(body), body)
	before := c.nodes[node].Replica("g1").StateHash()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	resp, err := w.c.Call(ctx, request(code, body, fields...))
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if resp.Code != remoting.Success && code != remoting.PullMessage && code != remoting.LitePullMessage && resp.Remark == "" {
		t.Errorf("%s: code %d without a remark", what, resp.Code)
	}
	for _, trace := range []string{"goroutine ", "panic", "runtime error", ".go:"} {
		if strings.Contains(resp.Remark, trace) {
			t.Errorf("%s: code %d %q", what, resp.Code, resp.Remark)
		}
	}
	if len(resp.Remark) > 4096 || strings.ContainsAny(resp.Remark, "\n\r\t\x00") {
		t.Errorf("%s: a remark of %d bytes, which is no line: %.200q", what, len(resp.Remark), resp.Remark)
	}
	if hash := c.nodes[node].Replica("g1").StateHash; resp.Code != remoting.Success && hash() != before {
		// What a request before it has left to do, such as a commit that was gathered, may have come in between. Then it does so once.
		changed := true
		for try := 0; try < 3 && changed; try++ {
			eventually(t, 20*time.Second, func() error {
				before = hash()
				at := time.Now().Add(300 * time.Millisecond)
				eventually(t, 20*time.Second, func() error { return until(at) })
				if hash() != before {
					return errors.New("the state changes by itself")
				}
				return nil
			})
			if _, err := w.c.Call(ctx, request(code, body, fields...)); err != nil {
				t.Fatalf("%s, once more: %v", what, err)
			}
			changed = hash() != before
		}
		if changed {
			t.Errorf("%s: code %d %q, and the state has changed", what, resp.Code, resp.Remark)
		}
	}
	return resp.Code
}
