package namesrv

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/remoting"
)

// goodRequest is a request that succeeds, and what of it can be wrong.
type goodRequest struct {
	fields []string // the required ones first, each with its value
	needs  int      // how many are required
	body   string
	kinds  map[string]string // of the fields that are not text: number, unsigned, flag
	reads  bool              // it changes nothing
	badJSN bool              // its body is JSON, and another one is refused
}

// goodRequests are those of each code that a name server serves.
func goodRequests() map[int32]goodRequest {
	who := []string{"clusterName", "c1", "brokerName", "g1", "brokerAddr", "10.0.0.1:1", "brokerId", "0"}
	with := func(more ...string) []string { return append(slices.Clone(who), more...) }
	reg := RegisterBody{Version: DataVersion{StateVersion: 5, Timestamp: 1, Counter: 1}, Topics: []TopicConfig{
		{Name: "orders", ReadQueues: 8, WriteQueues: 8, Perm: 6}, {Name: "ordered", ReadQueues: 8, WriteQueues: 8, Perm: 6, Order: true}}}
	number, unsigned, flag := "number", "unsigned", "flag"
	order := []string{"namespace", orderNamespace, "key", "ordered", "value", "g1:8"}
	standard := goodRequest{fields: []string{"acceptStandardJsonOnly", "true"}, kinds: map[string]string{"acceptStandardJsonOnly": flag}, reads: true}
	list := goodRequest{reads: true}
	return map[int32]goodRequest{
		remoting.RegisterBroker: {fields: with(FieldGroupTerm, "5", "haServerAddr", "ha:1", "compressed", "false", "bodyCrc32", "0", "enableActingMaster", "false", "heartbeatTimeoutMillis", "120000",
			FieldControllers, "k1:1", FieldClusterID, "id1"), needs: 4, body: string(reg.Encode()), badJSN: true,
			kinds: map[string]string{"brokerId": unsigned, FieldGroupTerm: unsigned, "bodyCrc32": number, "heartbeatTimeoutMillis": number, "compressed": flag, "enableActingMaster": flag}},
		remoting.UnregisterBroker:              {fields: with(FieldGroupTerm, "5"), needs: 4, kinds: map[string]string{"brokerId": unsigned, FieldGroupTerm: unsigned}},
		remoting.QueryDataVersion:              {fields: who, needs: 4, body: `{"stateVersion":5,"timestamp":1,"counter":1}`, kinds: map[string]string{"brokerId": unsigned}, reads: true, badJSN: true},
		remoting.BrokerHeartbeat:               {fields: []string{"brokerAddr", "10.0.0.1:1"}, needs: 1, reads: true},
		remoting.GetRouteInfoByTopic:           {fields: append([]string{"topic", "orders"}, standard.fields...), needs: 1, kinds: standard.kinds, reads: true},
		remoting.GetBrokerClusterInfo:          standard,
		remoting.GetAllTopicListFromNameserver: list,
		remoting.DeleteTopicInNamesrv:          {fields: []string{"topic", "orders", "clusterName", "c1"}, needs: 1},
		remoting.GetControllers:                list,
		remoting.WipeWritePermOfBroker:         {fields: []string{"brokerName", "g1"}, needs: 1},
		remoting.AddWritePermOfBroker:          {fields: []string{"brokerName", "g1"}, needs: 1},
		remoting.GetTopicsByCluster:            {fields: []string{"cluster", "c1"}, needs: 1, reads: true},
		remoting.GetUnitTopicList:              list,
		remoting.GetHasUnitSubTopicList:        list,
		remoting.GetHasUnitSubUnunitTopicList:  list,
		remoting.GetSystemTopicListFromNamesrv: list,
		remoting.GetBrokerMemberGroup:          {fields: []string{"clusterName", "c1", "brokerName", "g1"}, needs: 2, reads: true},
		remoting.PutKVConfig:                   {fields: order, needs: 3, reads: true},
		remoting.GetKVConfig:                   {fields: order[:4], needs: 2, reads: true},
		remoting.DeleteKVConfig:                {fields: append(slices.Clone(order[:2]), "key", "orders"), needs: 2, reads: true},
		remoting.GetKVListByNamespace:          {fields: order[:2], needs: 1, reads: true},
		remoting.GetNamesrvConfig:              list,
		remoting.UpdateNamesrvConfig:           {body: "listenPort=1", reads: true}, // which is always refused
		remoting.ControllerGetMetadataInfo:     list,
		remoting.ControllerGetSyncStateData:    {body: `["g1"]`, reads: true, badJSN: true},
		remoting.ControllerGetReplicaInfo:      {fields: []string{"brokerName", "g1"}, needs: 1, reads: true},
		remoting.ControllerElectMaster: {fields: []string{"brokerName", "g1", "brokerId", "2", "designateElect", "true", "clusterName", "c1"}, needs: 2,
			kinds: map[string]string{"brokerId": number, "designateElect": flag}},
		remoting.GetControllerConfig: list,
	}
}

// spans are the request codes that are tried: those of RocketMQ, our own, and others.
var spans = [][2]int32{{-2, 1100}, {2000, 2020}, {3000, 3020}, {4995, 5010}, {30990, 31040}, {32767, 32768}, {200040, 200160}, {1<<31 - 1, 1<<31 - 1}}

// logged is a log that a test reads while it is written.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// stranger sends requests on one connection, and tells what is wrong with their answers.
type stranger struct {
	t       *testing.T
	s       *Server
	cluster *fakeCluster
	cl      *remoting.Client
	good    map[int32]goodRequest
	log     logged
}

func newStranger(t *testing.T) *stranger {
	x := &stranger{t: t, cluster: &fakeCluster{master: 1}, good: goodRequests()}
	x.s = start(t, func(o *Options) { o.Cluster, o.Logger = x.cluster, zerolog.New(&x.log) })
	x.cl = dial(t, x.s)
	eventually(t, "ready", x.s.Ready)
	return x
}

// table is all that the server knows of brokers and topics, without the times at which it heard of them.
func (x *stranger) table() string {
	x.s.mu.RLock()
	defer x.s.mu.RUnlock()
	r := x.s.routes
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.groups)) {
		g := r.groups[name]
		fmt.Fprintf(&b, "%q %+v %v %+v %v %v %+v %v\n", name, g.data, g.protected, g.topics, g.topicVersion, g.topicTerm, g.termOfAddr, g.termOfPlace)
		for _, id := range slices.Sorted(maps.Keys(g.places)) {
			p := g.places[id]
			fmt.Fprintf(&b, "  %v %q %q %v %v %v\n", p.id, p.addr, p.haAddr, p.term, p.version, p.timeout)
		}
	}
	fmt.Fprintln(&b, r.Topics(), r.clusterID, r.controllers, x.cluster.master)
	return b.String()
}

// ask sends one request and returns its answer, after a look at what any answer must be.
func (x *stranger) ask(code int32, body string, fields ...string) *remoting.Command {
	x.t.Helper()
	before := x.table()
	resp := call(x.t, x.cl, code, []byte(body), fields...)
	what := fmt.Sprintf("request %d with %.120q and a body of %d bytes %.40q: code %d %.200q", code, fields, len(body), body, resp.Code, resp.Remark)
	if resp.Code != remoting.Success && resp.Remark == "" {
		x.t.Errorf("%s: no remark", what)
	}
	if len(resp.Remark) > remoting.MaxRemark+3 || strings.ContainsAny(resp.Remark, "\n\r\t\x00") {
		x.t.Errorf("%s: the remark of %d bytes is no line", what, len(resp.Remark))
	}
	for _, trace := range []string{"goroutine ", "panic", "runtime error", ".go:", "internal error"} {
		if strings.Contains(resp.Remark, trace) {
			x.t.Errorf("%s: it tells of %q", what, trace)
		}
	}
	good, served := x.good[code]
	if !served && resp.Code != remoting.RequestCodeNotSupported {
		x.t.Errorf("%s: want code 3, as nobody serves this", what)
	}
	if after := x.table(); after != before && (resp.Code != remoting.Success || good.reads) {
		x.t.Errorf("%s: the table was\n%s and is\n%s", what, before, after)
	}
	return resp
}

// refused sends a request that must get a code, and a remark that says where the fault is.
func (x *stranger) refused(want int32, says string, code int32, body string, fields ...string) {
	x.t.Helper()
	if resp := x.ask(code, body, fields...); resp.Code != want || !strings.Contains(resp.Remark, says) {
		x.t.Errorf("request %d with %.120q and %.40q: code %d %.200q, want %d and a word of %s", code, fields, body, resp.Code, resp.Remark, want, says)
	}
}

// close looks at the connection, which the server must not have ended, and at what it has logged.
func (x *stranger) close() {
	x.t.Helper()
	if x.cl.Closed() {
		x.t.Error("the connection was closed")
	}
	if log := x.log.String(); strings.Contains(log, "panic") {
		x.t.Errorf("the server logged %s", log)
	}
}

// One field that is missing, empty, no number or no flag: code 1, and the remark names it, for each field of each request.
func TestEachField(t *testing.T) {
	t.Parallel()
	codes := slices.Concat(slices.Collect(maps.Keys(handlers)), slices.Collect(maps.Keys(answerers)))
	x := newStranger(t)
	all := x.good
	if have, want := slices.Sorted(maps.Keys(all)), slices.Sorted(slices.Values(codes)); !slices.Equal(have, want) {
		t.Fatalf("requests of %d are tried, of %d are served", have, want)
	}
	// What the others ask for is there, whatever came before.
	restore := func() {
		r := all[remoting.RegisterBroker]
		mustOK(t, x.ask(remoting.RegisterBroker, r.body, r.fields...))
	}
	restore()
	for _, code := range slices.Sorted(maps.Keys(all)) {
		r := all[code]
		if resp := x.ask(code, r.body, r.fields...); resp.Code != remoting.Success && code != remoting.UpdateNamesrvConfig {
			t.Errorf("request %d as it should be: code %d %q", code, resp.Code, resp.Remark)
		}
		for i := 0; i < len(r.fields); i += 2 {
			key := r.fields[i]
			set := func(value string) []string {
				f := slices.Clone(r.fields)
				f[i+1] = value
				return f
			}
			if i/2 < r.needs {
				x.refused(remoting.SystemError, key, code, r.body, slices.Concat(r.fields[:i], r.fields[i+2:])...)
				x.refused(remoting.SystemError, key, code, r.body, set("")...)
			}
			switch r.kinds[key] {
			case "number", "unsigned":
				for _, bad := range []string{"x", "1.5", " 1", "1e3", "0x1", strings.Repeat("9", 40), strings.Repeat("9", 70_000), "9223372036854775808000", "\xff\xfe", "true"} {
					x.refused(remoting.SystemError, key, code, r.body, set(bad)...)
				}
				for _, bad := range []string{"-1", "-9223372036854775808"} {
					if r.kinds[key] == "unsigned" {
						x.refused(remoting.SystemError, key, code, r.body, set(bad)...)
					}
				}
			case "flag":
				for _, bad := range []string{"x", "2", "-1", "yes", "\x00", strings.Repeat("true", 10_000)} {
					x.refused(remoting.SystemError, key, code, r.body, set(bad)...)
				}
			}
		}
		if r.badJSN {
			for _, bad := range []string{"{", `"x"`, "7", strings.Repeat("[", 10_000), strings.Repeat("x", 1<<20), "\x00\xff\xfe", `{"stateVersion":"x","topicConfigSerializeWrapper":7}`, `{} {}`} {
				x.refused(remoting.SystemError, "body", code, bad, r.fields...)
			}
		}
		restore()
	}
	x.close()
}

// Names that could not stand in a route, and topics that no broker can mean, come into no table.
func TestBadRegistrations(t *testing.T) {
	t.Parallel()
	x := newStranger(t)
	good := x.good[remoting.RegisterBroker]
	for _, bad := range []string{" ", "a b", "a\nb", "\x00", "a\x7f", strings.Repeat("T", 256), strings.Repeat("T", 70_000)} {
		for i := range 3 {
			f := slices.Clone(good.fields)
			f[2*i+1] = bad
			x.refused(remoting.SystemError, f[2*i], remoting.RegisterBroker, good.body, f...)
		}
		topic := RegisterBody{Topics: []TopicConfig{{Name: "T", ReadQueues: 1, WriteQueues: 1, Perm: 6}, {Name: bad, Perm: 6}}}.Encode()
		x.refused(remoting.SystemError, "body", remoting.RegisterBroker, string(topic), good.fields...)
	}
	for _, numbers := range []string{`"readQueueNums":-1`, `"writeQueueNums":-2147483648`, `"perm":-6`, `"readQueueNums":2147483648`, `"readQueueNums":1.5`, `"readQueueNums":"x"`, `"perm":[]`} {
		x.refused(remoting.SystemError, "body", remoting.RegisterBroker, `{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"topicName":"T",`+numbers+`}}}}`, good.fields...)
	}
	if groups, addrs, topics := x.s.routes.Counts(); groups+addrs+topics != 0 {
		t.Errorf("%d groups, %d addresses and %d topics came of it", groups, addrs, topics)
	}
	x.close()
}

// Whatever a request of any code holds, known or not, it is answered with a code and a line of text, what was refused has changed nothing,
// and the connection lives on.
func TestAnyRequest(t *testing.T) {
	t.Parallel()
	x := newStranger(t)
	all := x.good
	r := rand.New(rand.NewPCG(1, 1))
	var fields []string
	for _, g := range all {
		for i := 0; i < len(g.fields); i += 2 {
			fields = append(fields, g.fields[i])
		}
	}
	slices.Sort(fields)
	fields = append(slices.Compact(fields), "zoneName")
	values := []string{"", strings.Repeat("9", 40), strings.Repeat("T", 70_000), "-9223372036854775808", "9223372036854775807", "9223372036854775808", "2147483648", "../x;$(id)\r\n\t'\"{}", "0", "-1", "1.5",
		"true", "\xff\xfe\x00\x01\x02", "g1", "orders", "a,b;c=d"}
	bodies := []string{"", "{", "null", "[]", "{}", `"x"`, strings.Repeat("[", 10_000), strings.Repeat("x", 1<<20), "k=v\n../x=$(id)\n", "\x00\xff\xfe", `[null]`, `[{}]`, `["g1",7]`,
		`{"topicConfigSerializeWrapper":null}`, `{"topicConfigSerializeWrapper":{"topicConfigTable":{"":null},"dataVersion":-1}}`, `{"stateVersion":-9223372036854775808,"timestamp":1e400,"counter":null}`,
		`{"topicConfigSerializeWrapper":{"topicConfigTable":{"A":{},"B":{"attributes":{"k":7}}},"dataVersion":{"stateVersion":-1}}}`}
	for _, span := range spans {
		for c := int64(span[0]); c <= int64(span[1]); c++ {
			code := int32(c)
			x.ask(code, "")
			g, served := all[code]
			if !served {
				continue
			}
			restored := all[remoting.RegisterBroker]
			x.ask(remoting.RegisterBroker, restored.body, restored.fields...)
			for _, v := range values {
				var set []string
				for _, f := range fields {
					set = append(set, f, v)
				}
				x.ask(code, "x", set...)
			}
			for _, body := range bodies {
				x.ask(code, body)
				x.ask(code, body, g.fields...)
			}
			for range 30 { // where all else makes sense, some fields that do not
				set := slices.Clone(g.fields)
				for range 1 + r.IntN(2) {
					set = append(set, fields[r.IntN(len(fields))], values[r.IntN(len(values))])
				}
				body := g.body
				if r.IntN(3) == 0 {
					body = bodies[r.IntN(len(bodies))]
				}
				x.ask(code, body, set...)
			}
			// One-way requests get no answer, and the next one its own.
			req := remoting.NewRequest(code)
			req.Body = []byte("x")
			for _, f := range fields {
				req.Set(f, values[r.IntN(len(values))])
			}
			if err := x.cl.OneWay(req); err != nil {
				t.Fatal(err)
			}
			mustOK(t, call(t, x.cl, remoting.GetAllTopicListFromNameserver, nil))
		}
	}
	x.close()
	if st := x.s.Stats(); st.Requests[RequestKey{"other", remoting.RequestCodeNotSupported}] == 0 || len(st.Requests) > 200 {
		t.Errorf("the requests of strangers have %d series", len(st.Requests))
	}
}

// TestAnyRequestTriesAll holds that the table has every field that a handler reads, and the spans every code that has a name.
func TestAnyRequestTriesAll(t *testing.T) {
	t.Parallel()
	tried := map[string]bool{"zoneName": true}
	for _, g := range goodRequests() {
		for i := 0; i < len(g.fields); i += 2 {
			tried[g.fields[i]] = true
		}
	}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		text, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?:cmd|req)\.(?:Must\w+|\w*Or|Get)\("([^"]+)"`).FindAllStringSubmatch(string(text), -1) {
			if !tried[m[1]] {
				t.Errorf("%s reads the field %q, which is not tried", f.Name(), m[1])
			}
		}
	}
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
}
