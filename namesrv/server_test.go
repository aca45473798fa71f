package namesrv

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/remoting"
)

// TestMain also forgives what the official client leaves behind: loops that sleep for up to 10 s before they see that they
// are to end. TestOfficialGoClient alone uses it.
func TestMain(m *testing.M) {
	official := []goleak.Option{goleak.IgnoreAnyFunction("github.com/patrickmn/go-cache.(*janitor).Run")}
	for _, loop := range []string{"1", "2", "3", "4", "5"} {
		official = append(official, goleak.IgnoreAnyFunction("github.com/apache/rocketmq-client-go/v2/internal.(*rmqClient).Start.func1."+loop))
	}
	goleak.VerifyTestMain(m, official...)
}

// start runs a server on a free port until the test ends.
func start(t *testing.T, change func(*Options)) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Listener: l, ReadyAfter: time.Millisecond}
	if change != nil {
		change(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// eventually polls until ok says true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("it did not come true in 10 s: %s", what)
		}
		<-tick.C
	}
}

func dial(t *testing.T, s *Server) *remoting.Client {
	t.Helper()
	cl, err := remoting.Dial(t.Context(), s.Addr().String(), remoting.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func call(t *testing.T, cl *remoting.Client, code int32, body []byte, fields ...string) *remoting.Command {
	t.Helper()
	req := remoting.NewRequest(code)
	req.Body = body
	for i := 0; i < len(fields); i += 2 {
		req.Set(fields[i], fields[i+1])
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resp, err := cl.Call(ctx, req)
	if err != nil {
		t.Fatalf("request %d: %v", code, err)
	}
	return resp
}

func mustOK(t *testing.T, resp *remoting.Command) *remoting.Command {
	t.Helper()
	if resp.Code != remoting.Success {
		t.Fatalf("code %d: %s", resp.Code, resp.Remark)
	}
	return resp
}

// register sends what one of our brokers sends.
func register(t *testing.T, cl *remoting.Client, group, addr string, id ids.BrokerID, term ids.Term, topics ...string) *remoting.Command {
	t.Helper()
	return registerIn(t, cl, "c1", group, addr, id, term, topics...)
}

func registerIn(t *testing.T, cl *remoting.Client, cluster, group, addr string, id ids.BrokerID, term ids.Term, topics ...string) *remoting.Command {
	t.Helper()
	b := RegisterBody{Version: DataVersion{StateVersion: int64(term), Timestamp: 1, Counter: 1}}
	for _, name := range topics {
		b.Topics = append(b.Topics, TopicConfig{Name: name, ReadQueues: 8, WriteQueues: 8, Perm: 6})
	}
	body := b.Encode()
	return call(t, cl, remoting.RegisterBroker, body, "brokerName", group, "brokerAddr", addr, "clusterName", cluster,
		"haServerAddr", "ha:"+addr, "brokerId", strconv.Itoa(int(id)), "bodyCrc32", strconv.Itoa(int(BodyCRC(body))),
		"compressed", "false", FieldGroupTerm, strconv.FormatUint(uint64(term), 10), FieldControllers, "k1:1, k2:2", FieldClusterID, "id1")
}

func TestServeRoutes(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	m, sl, user := dial(t, s), dial(t, s), dial(t, s)
	mustOK(t, register(t, m, "g1", "10.0.0.1:1", 0, 5, "orders", "c1", "g1"))
	resp := mustOK(t, register(t, sl, "g1", "10.0.0.2:1", 2, 5))
	if resp.GetOr("masterAddr", "") != "10.0.0.1:1" || resp.GetOr("haServerAddr", "") != "ha:10.0.0.1:1" || resp.GetOr(FieldGroupTerm, "") != "5" {
		t.Fatalf("the slave's answer lacks its master: %+v", resp)
	}

	resp = mustOK(t, call(t, user, remoting.GetRouteInfoByTopic, nil, "topic", "orders"))
	want := `{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:1","2":"10.0.0.2:1"},"brokerName":"g1","cluster":"c1","enableActingMaster":false}],` +
		`"filterServerTable":{},"queueDatas":[{"brokerName":"g1","perm":6,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}]}`
	if string(resp.Body) != want {
		t.Fatalf("route\n got %s\nwant %s", resp.Body, want)
	}
	if resp.GetOr(FieldTerms, "") != "g1=5" {
		t.Fatalf("terms %q", resp.GetOr(FieldTerms, ""))
	}
	eventually(t, "ready", s.Ready)
	if resp := call(t, user, remoting.GetRouteInfoByTopic, nil, "topic", "none"); resp.Code != remoting.TopicNotExist {
		t.Fatalf("unknown topic: code %d", resp.Code)
	}
	resp = mustOK(t, call(t, user, remoting.GetAllTopicListFromNameserver, nil))
	if string(resp.Body) != `{"topicList":["c1","g1","orders"]}` {
		t.Fatalf("topic list %s", resp.Body)
	}
	resp = mustOK(t, call(t, user, remoting.GetBrokerClusterInfo, nil))
	if !json.Valid(resp.Body) || !strings.Contains(string(resp.Body), `"clusterAddrTable":{"c1":["g1"]}`) {
		t.Fatalf("cluster %s", resp.Body)
	}
	resp = mustOK(t, call(t, user, remoting.GetControllers, nil))
	if resp.GetOr("clusterID", "") != "id1" || resp.GetOr("controllers", "") != "k1:1,k2:2" {
		t.Fatalf("controllers %+v", resp)
	}
	mustOK(t, call(t, user, remoting.DeleteTopicInNamesrv, nil, "topic", "orders"))
	if resp := call(t, user, remoting.GetRouteInfoByTopic, nil, "topic", "orders"); resp.Code != remoting.TopicNotExist {
		t.Fatalf("deleted topic: code %d", resp.Code)
	}
	if resp := call(t, user, remoting.RegisterTopicInNamesrv, nil); resp.Code != remoting.RequestCodeNotSupported {
		t.Fatalf("request 217: code %d", resp.Code)
	}
	if st := s.Stats(); st.Groups != 1 || st.Addresses != 2 || st.Topics != 2 || st.Requests[RequestKey{"REGISTER_BROKER", 0}] != 2 || st.Requests[RequestKey{"other", 3}] != 1 {
		t.Fatalf("stats %+v", st)
	}
}

// A topic that two clusters have is deleted in one of them: the other one keeps it, whatever the connection carries next, over the place
// of the deletion.
func TestDeleteTopicOfOneCluster(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	m, user := dial(t, s), dial(t, s)
	mustOK(t, registerIn(t, m, "c1", "g1", "10.0.0.1:1", 0, 5, "orders"))
	mustOK(t, registerIn(t, m, "c2", "g2", "10.0.0.2:1", 0, 5, "orders"))
	mustOK(t, call(t, user, remoting.DeleteTopicInNamesrv, nil, "topic", "orders", "clusterName", "c1"))
	call(t, user, -1, nil, "padding", strings.Repeat("x", 1000))
	resp := mustOK(t, call(t, m, remoting.GetRouteInfoByTopic, nil, "topic", "orders"))
	if route := string(resp.Body); strings.Contains(route, "g1") || !strings.Contains(route, "g2") {
		t.Errorf("the route is %s, want that of g2 alone", route)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	cl := dial(t, s)
	mustOK(t, register(t, cl, "g", "a:1", 0, 5, "x", "y"))
	families, err := s.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got[f.GetName()] += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	if got["ledgermq_namesrv_groups"] != 1 || got["ledgermq_namesrv_topics"] != 2 || got["ledgermq_namesrv_requests_total"] != 1 {
		t.Fatalf("metrics %v", got)
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	cl := dial(t, s)
	who := []string{"brokerName", "g", "brokerAddr", "a:1", "clusterName", "c", "brokerId", "0"}
	ask := func(v DataVersion) *remoting.Command {
		body, _ := json.Marshal(v)
		return mustOK(t, call(t, cl, remoting.QueryDataVersion, body, who...))
	}
	if resp := ask(DataVersion{}); resp.GetOr("changed", "") != "true" || len(resp.Body) != 0 {
		t.Fatalf("an unknown broker: %+v", resp)
	}
	mustOK(t, call(t, cl, remoting.BrokerHeartbeat, nil, who...)) // unknown too: SUCCESS as in RocketMQ
	mustOK(t, register(t, cl, "g", "a:1", 0, 5, "x", "y"))
	if resp := ask(DataVersion{StateVersion: 5, Timestamp: 1, Counter: 1}); resp.GetOr("changed", "") != "false" ||
		string(resp.Body) != `{"stateVersion":5,"timestamp":1,"counter":1}` {
		t.Fatalf("the same version: %+v %s", resp, resp.Body)
	}
	if resp := ask(DataVersion{StateVersion: 5, Timestamp: 1, Counter: 2}); resp.GetOr("changed", "") != "true" {
		t.Fatalf("another version: %+v", resp)
	}
	mustOK(t, call(t, cl, remoting.BrokerHeartbeat, nil, who...))
	mustOK(t, call(t, cl, remoting.UnregisterBroker, nil, append(who, FieldGroupTerm, "4")...))
	if st := s.Stats(); st.Addresses != 1 {
		t.Fatal("an unregistration of a lower term was taken")
	}
	mustOK(t, call(t, cl, remoting.UnregisterBroker, nil, append(who, FieldGroupTerm, "5")...))
	if st := s.Stats(); st.Addresses != 0 || st.Removed[leftUnregistered] != 1 {
		t.Fatalf("not unregistered: %+v", st)
	}
}

func TestClosedConnection(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	old, fresh, user := dial(t, s), dial(t, s), dial(t, s)
	mustOK(t, register(t, old, "g", "a:1", 0, 5, "x", "y"))
	mustOK(t, register(t, fresh, "g", "b:1", 0, 6, "x", "y"))
	resp := register(t, old, "g", "a:1", 0, 5, "x", "y")
	if resp.Code != remoting.SystemError || resp.GetOr(FieldGroupTerm, "") != "6" || resp.GetOr("masterAddr", "") != "b:1" || !strings.Contains(resp.Remark, "restart") {
		t.Fatalf("a late registration: %+v", resp)
	}
	mustOK(t, register(t, old, "g", "a:1", 1, 6))
	old.Close()
	eventually(t, "the closed connection took its address along", func() bool { return s.Stats().Addresses == 1 })
	resp = mustOK(t, call(t, user, remoting.GetRouteInfoByTopic, nil, "topic", "x"))
	if !strings.Contains(string(resp.Body), `{"0":"b:1"}`) {
		t.Fatalf("route %s", resp.Body)
	}
	fresh.Close()
	eventually(t, "nobody is left", func() bool { return s.Stats().Addresses == 0 })
	if resp := call(t, user, remoting.GetRouteInfoByTopic, nil, "topic", "x"); resp.Code != remoting.TopicNotExist && resp.Code != remoting.SystemError {
		t.Fatalf("a topic without brokers: code %d", resp.Code)
	}
}

func TestSilentBrokerExpires(t *testing.T) {
	t.Parallel()
	var seconds atomic.Int64
	s := start(t, func(o *Options) {
		o.Clock = func() time.Time { return t0.Add(time.Duration(seconds.Load()) * time.Second) }
		o.ScanEvery = time.Millisecond
	})
	cl := dial(t, s)
	mustOK(t, register(t, cl, "g", "a:1", 0, 5, "x", "y"))
	seconds.Store(120)
	mustOK(t, call(t, cl, remoting.BrokerHeartbeat, nil, "brokerAddr", "a:1"))
	seconds.Store(240)
	mustOK(t, call(t, cl, remoting.GetRouteInfoByTopic, nil, "topic", "x"))
	seconds.Store(241)
	eventually(t, "the silent broker is gone", func() bool { return s.Stats().Removed[leftSilent] == 1 })
}

func TestReady(t *testing.T) {
	t.Parallel()
	var answer atomic.Pointer[[]string]
	s := start(t, func(o *Options) {
		o.ReadyAfter, o.AskEvery = time.Hour, time.Millisecond
		o.Known = func(context.Context) ([]string, error) {
			if a := answer.Load(); a != nil {
				return *a, nil
			}
			return nil, errors.New("no controller answers")
		}
	})
	cl, other := dial(t, s), dial(t, s)
	for _, topic := range []string{"x", "TBW102"} {
		if resp := call(t, cl, remoting.GetRouteInfoByTopic, nil, "topic", topic); resp.Code != remoting.SystemError || !strings.Contains(resp.Remark, "not ready") {
			t.Fatalf("%s before it is ready: code %d %q", topic, resp.Code, resp.Remark)
		}
	}
	mustOK(t, register(t, cl, "g1", "a:1", 0, 5, "x", "y"))
	mustOK(t, call(t, cl, remoting.GetRouteInfoByTopic, nil, "topic", "x"))
	answer.Store(&[]string{"g1", "g2"})
	mustOK(t, register(t, other, "g2", "b:1", 2, 5)) // a slave does not bring topics
	if resp := call(t, cl, remoting.GetRouteInfoByTopic, nil, "topic", "z"); resp.Code != remoting.SystemError || s.Ready() {
		t.Fatalf("ready before the master of g2 registered: code %d", resp.Code)
	}
	mustOK(t, register(t, other, "g2", "b:1", 0, 5, "z", "y"))
	eventually(t, "ready", s.Ready)
	mustOK(t, call(t, cl, remoting.GetRouteInfoByTopic, nil, "topic", "z"))
	if resp := call(t, cl, remoting.GetRouteInfoByTopic, nil, "topic", "TBW102"); resp.Code != remoting.TopicNotExist {
		t.Fatalf("TBW102 when ready: code %d", resp.Code)
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	cl := dial(t, s)
	good := map[string]string{"brokerName": "g", "brokerAddr": "a:1", "clusterName": "c", "brokerId": "0", "haServerAddr": ""}
	body := RegisterBody{Topics: []TopicConfig{{Name: "x"}, {Name: "y"}}}.Encode()
	for name, change := range map[string][2]string{
		"no name":       {"brokerName", ""},
		"no cluster":    {"clusterName", ""},
		"no address":    {"brokerAddr", ""},
		"no id":         {"brokerId", ""},
		"negative id":   {"brokerId", "-1"},
		"id no number":  {"brokerId", "master"},
		"long name":     {"brokerName", strings.Repeat("g", 256)},
		"space":         {"brokerName", "g 1"},
		"comma":         {"brokerAddr", "a:1,b:1"},
		"wrong sum":     {"bodyCrc32", "1"},
		"wrong flag":    {"compressed", "maybe"},
		"not packed":    {"compressed", "true"},
		"wrong term":    {FieldGroupTerm, "-5"},
		"wrong timeout": {"heartbeatTimeoutMillis", "soon"},
		"wrong acting":  {"enableActingMaster", "7"},
	} {
		fields := []string{change[0], change[1]}
		for k, v := range good {
			if k != change[0] {
				fields = append(fields, k, v)
			}
		}
		if resp := call(t, cl, remoting.RegisterBroker, body, fields...); resp.Code != remoting.SystemError || resp.Remark == "" {
			t.Errorf("%s: code %d %q", name, resp.Code, resp.Remark)
		}
	}
	for _, code := range []int32{remoting.UnregisterBroker, remoting.QueryDataVersion, remoting.BrokerHeartbeat, remoting.GetRouteInfoByTopic, remoting.DeleteTopicInNamesrv} {
		if resp := call(t, cl, code, nil); resp.Code != remoting.SystemError {
			t.Errorf("request %d without fields: code %d", code, resp.Code)
		}
	}
	if st := s.Stats(); st.Groups != 0 {
		t.Errorf("a bad request left something: %+v", st)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	_, err := New(Options{Expiry: -1, ReadyAfter: -1})
	for _, want := range []string{"Listener", "Expiry", "ReadyAfter"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("%v does not name %s", err, want)
		}
	}
}

func TestCompressedRegistrationAndOldDialect(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	cl := dial(t, s)
	body := compressed(exampleBody())
	mustOK(t, call(t, cl, remoting.RegisterBroker, body, "brokerName", "g", "brokerAddr", "a:1", "clusterName", "c", "haServerAddr", "",
		"brokerId", "0", "compressed", "true", "bodyCrc32", strconv.Itoa(int(BodyCRC(body))), "heartbeatTimeoutMillis", "9223372036854775807"))
	for version, want := range map[int32]string{317: `{0:"a:1"}`, 402: `{0:"a:1"}`, 403: `{"0":"a:1"}`, 479: `{"0":"a:1"}`} {
		req := remoting.NewRequest(remoting.GetRouteInfoByTopic)
		req.Set("topic", "orders")
		if got := rawCall(t, s, req, version); !strings.Contains(string(got.Body), `"brokerAddrs":`+want) {
			t.Errorf("version %d gets %s", version, got.Body)
		}
		req.Set("acceptStandardJsonOnly", "true")
		if got := rawCall(t, s, req, version); !json.Valid(got.Body) {
			t.Errorf("version %d asks for standard JSON and gets %s", version, got.Body)
		}
	}
}

// rawCall sends with another protocol version than ours.
func rawCall(t *testing.T, s *Server, req *remoting.Command, version int32) *remoting.Command {
	t.Helper()
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	req.Version = version
	if _, err := c.Write(req.AppendTo(nil)); err != nil {
		t.Fatal(err)
	}
	var frame []byte
	for {
		buf := make([]byte, 4096)
		n, err := c.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		frame = append(frame, buf[:n]...)
		if len(frame) >= 4 && len(frame) >= 4+int(uint32(frame[0])<<24|uint32(frame[1])<<16|uint32(frame[2])<<8|uint32(frame[3])) {
			break
		}
	}
	resp, err := remoting.Decode(frame)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// BenchmarkRouteOfTopic: what does one route answer cost a server, without the network? A topic in 16 groups of 3 replicas is
// 3 KiB of text; writing it should cost a few microseconds and the allocation of the answer.
func BenchmarkRouteOfTopic(b *testing.B) {
	r := NewRoutes(time.Minute)
	for g := range 16 {
		for id := range ids.BrokerID(3) {
			reg := slave("10.0.0."+strconv.Itoa(g)+":"+strconv.Itoa(10000+int(id)), id, 5, 1)
			reg.Group, reg.Topics = "group-"+strconv.Itoa(g), []TopicConfig{{Name: "orders", ReadQueues: 8, WriteQueues: 8, Perm: 6}}
			if _, err := r.Register(t0, reg); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportAllocs()
	size := 0
	for b.Loop() {
		route, _ := r.Topic("orders")
		size = len(standard.appendRoute(nil, route)) + len(terms(route.Brokers))
	}
	b.ReportMetric(float64(size), "bytes")
}
