package namesrv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/remoting"
)

// registerTopics registers a master with whole topics.
func registerTopics(t *testing.T, cl *remoting.Client, group, addr string, counter int64, topics ...TopicConfig) {
	t.Helper()
	b := RegisterBody{Version: DataVersion{StateVersion: 5, Timestamp: 1, Counter: counter}, Topics: topics}
	body := b.Encode()
	mustOK(t, call(t, cl, remoting.RegisterBroker, body, "brokerName", group, "brokerAddr", addr, "clusterName", "c1", "haServerAddr", "ha:1",
		"brokerId", "0", "bodyCrc32", fmt.Sprint(BodyCRC(body)), "compressed", "false", FieldGroupTerm, "5"))
}

func permsOf(t *testing.T, cl *remoting.Client, topic string) map[string]int32 {
	t.Helper()
	var route struct {
		QueueDatas []struct {
			BrokerName string
			Perm       int32
		}
	}
	resp := mustOK(t, call(t, cl, remoting.GetRouteInfoByTopic, nil, "topic", topic, "acceptStandardJsonOnly", "true"))
	if err := json.Unmarshal(resp.Body, &route); err != nil {
		t.Fatal(err)
	}
	perms := map[string]int32{}
	for _, q := range route.QueueDatas {
		perms[q.BrokerName] = q.Perm
	}
	return perms
}

// A group whose writability an operator takes out of the routes stays read-only whatever it registers, and gets back what it had.
func TestWritePerm(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	b1, b2, user := dial(t, s), dial(t, s), dial(t, s)
	orders := TopicConfig{Name: "orders", ReadQueues: 4, WriteQueues: 4, Perm: 6}
	readOnly := TopicConfig{Name: "old", ReadQueues: 1, WriteQueues: 1, Perm: 4}
	registerTopics(t, b1, "g1", "10.0.0.1:1", 1, orders, readOnly)
	registerTopics(t, b2, "g2", "10.0.0.2:1", 1, orders)
	resp := mustOK(t, call(t, user, remoting.WipeWritePermOfBroker, nil, "brokerName", "g1"))
	if n, _ := resp.Get("wipeTopicCount"); n != "2" {
		t.Errorf("%s topics", n)
	}
	new := TopicConfig{Name: "new", ReadQueues: 1, WriteQueues: 1, Perm: 6}
	registerTopics(t, b1, "g1", "10.0.0.1:1", 2, orders, readOnly, new)
	if p := permsOf(t, user, "orders"); p["g1"] != 4 || p["g2"] != 6 {
		t.Errorf("orders: %v", p)
	}
	if p := permsOf(t, user, "new"); p["g1"] != 4 {
		t.Errorf("a topic that came later: %v", p)
	}
	resp = mustOK(t, call(t, user, remoting.AddWritePermOfBroker, nil, "brokerName", "g1"))
	if n, _ := resp.Get("addTopicCount"); n != "3" {
		t.Errorf("%s topics", n)
	}
	if p, q := permsOf(t, user, "orders"), permsOf(t, user, "old"); p["g1"] != 6 || q["g1"] != 4 {
		t.Errorf("given back: orders %v, old %v", p, q)
	}
	resp = mustOK(t, call(t, user, remoting.WipeWritePermOfBroker, nil, "brokerName", "nobody"))
	if n, _ := resp.Get("wipeTopicCount"); n != "0" {
		t.Errorf("%s topics of a group that is not there", n)
	}
}

// What RocketMQ keeps as key-value configuration of ordered topics follows here from the topics themselves.
func TestOrderConf(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	b1, b2, user := dial(t, s), dial(t, s), dial(t, s)
	plain := TopicConfig{Name: "plain", ReadQueues: 4, WriteQueues: 4, Perm: 6}
	ordered := TopicConfig{Name: "ordered", ReadQueues: 4, WriteQueues: 4, Perm: 6, Order: true}
	registerTopics(t, b1, "g1", "10.0.0.1:1", 1, plain, ordered)
	ordered.WriteQueues = 2
	registerTopics(t, b2, "g2", "10.0.0.2:1", 1, plain, ordered)
	get := func(topic string) (string, int32) {
		resp := call(t, user, remoting.GetKVConfig, nil, "namespace", "ORDER_TOPIC_CONFIG", "key", topic)
		v, _ := resp.Get("value")
		return v, resp.Code
	}
	if v, _ := get("ordered"); v != "g1:4;g2:2" {
		t.Errorf("the configuration is %q", v)
	}
	if _, code := get("plain"); code != remoting.QueryNotFound {
		t.Errorf("that of another topic: code %d", code)
	}
	route := string(mustOK(t, call(t, user, remoting.GetRouteInfoByTopic, nil, "topic", "ordered", "acceptStandardJsonOnly", "true")).Body)
	if !strings.Contains(route, `"orderTopicConf":"g1:4;g2:2",`) {
		t.Errorf("the route: %s", route)
	}
	if route := string(mustOK(t, call(t, user, remoting.GetRouteInfoByTopic, nil, "topic", "plain")).Body); strings.Contains(route, "orderTopicConf") {
		t.Errorf("the route: %s", route)
	}
	list := string(mustOK(t, call(t, user, remoting.GetKVListByNamespace, nil, "namespace", "ORDER_TOPIC_CONFIG")).Body)
	if list != `{"table":{"ordered":"g1:4;g2:2"}}` {
		t.Errorf("the list: %s", list)
	}
	put := func(namespace, key, value string) int32 {
		return call(t, user, remoting.PutKVConfig, nil, "namespace", namespace, "key", key, "value", value).Code
	}
	for _, tt := range []struct {
		namespace, key, value string
		code                  int32
	}{
		{"ORDER_TOPIC_CONFIG", "ordered", "g2:2;g1:4;", remoting.Success},
		{"ORDER_TOPIC_CONFIG", "ordered", "g1:4", remoting.InvalidParameter},
		{"ORDER_TOPIC_CONFIG", "plain", "g1:4", remoting.InvalidParameter},
		{"other", "k", "v", remoting.InvalidParameter},
		{"ORDER_TOPIC_CONFIG", "ordered", "", remoting.SystemError},
	} {
		if code := put(tt.namespace, tt.key, tt.value); code != tt.code {
			t.Errorf("%v: code %d", tt, code)
		}
	}
	if code := call(t, user, remoting.DeleteKVConfig, nil, "namespace", "ORDER_TOPIC_CONFIG", "key", "ordered").Code; code != remoting.InvalidParameter {
		t.Errorf("taking the order of an ordered topic: code %d", code)
	}
	mustOK(t, call(t, user, remoting.DeleteKVConfig, nil, "namespace", "ORDER_TOPIC_CONFIG", "key", "plain"))
}

func TestNamesrvLists(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	b, user := dial(t, s), dial(t, s)
	registerTopics(t, b, "g1", "10.0.0.1:1", 1, TopicConfig{Name: "a", Perm: 6, SysFlag: 1}, TopicConfig{Name: "b", Perm: 6, SysFlag: 2}, TopicConfig{Name: "c", Perm: 6, SysFlag: 3})
	for _, tt := range []struct {
		code   int32
		fields []string
		want   string
	}{
		{remoting.GetTopicsByCluster, []string{"cluster", "c1"}, `{"topicList":["a","b","c"]}`},
		{remoting.GetTopicsByCluster, []string{"cluster", "c2"}, `{"topicList":[]}`},
		{remoting.GetUnitTopicList, nil, `{"topicList":["a","c"]}`},
		{remoting.GetHasUnitSubTopicList, nil, `{"topicList":["b","c"]}`},
		{remoting.GetHasUnitSubUnunitTopicList, nil, `{"topicList":["b"]}`},
		{remoting.GetSystemTopicListFromNamesrv, nil, `{"brokerAddr":"10.0.0.1:1","topicList":["c1","g1"]}`},
		{remoting.GetBrokerMemberGroup, []string{"clusterName", "c1", "brokerName", "g1"}, `{"brokerMemberGroup":{"brokerAddrs":{"0":"10.0.0.1:1"},"brokerName":"g1","cluster":"c1"}}`},
	} {
		if got := string(mustOK(t, call(t, user, tt.code, nil, tt.fields...)).Body); got != tt.want {
			t.Errorf("%d: %s", tt.code, got)
		}
	}
	config := string(mustOK(t, call(t, user, remoting.GetNamesrvConfig, nil)).Body)
	if !strings.Contains(config, "brokerExpiredTimeMillis=120000\n") || !strings.Contains(config, "enableControllerInNamesrv=false\n") {
		t.Errorf("the configuration:\n%s", config)
	}
	for body, says := range map[string]string{"": "names no setting", "listenPort=1": "not changed: listenPort", "kvConfigPath=../x": `no such setting of a name server: "kvConfigPath"`,
		"listenPort=1\nrocketmqHome=/tmp;id": `"rocketmqHome"`} {
		resp := call(t, user, remoting.UpdateNamesrvConfig, []byte(body))
		if resp.Code != remoting.InvalidParameter || !strings.Contains(resp.Remark, says) {
			t.Errorf("%q: code %d %q", body, resp.Code, resp.Remark)
		}
	}
	if resp := call(t, user, remoting.ControllerGetMetadataInfo, nil); resp.Code != remoting.RequestCodeNotSupported {
		t.Errorf("a controller's request without one: code %d", resp.Code)
	}
}

// fakeCluster has one group g1 of slots 1 to 3, of which 3 does not vote; it elects 2 only.
type fakeCluster struct{ master ids.Slot }

func (f *fakeCluster) Controllers(context.Context) ([]ControllerPeer, string, error) {
	return []ControllerPeer{{"c-1", "10.1.0.1:9878"}, {"c-2", "a-host:9878"}}, "c-1", nil
}

func (f *fakeCluster) Groups(context.Context) ([]ControlledGroup, error) {
	g := ControlledGroup{Name: "g1", Epoch: 7, Master: f.master, MasterLive: true, MasterAddr: fmt.Sprintf("10.0.0.%d:1", f.master), MasterTerm: ids.MakeTerm(7, 2)}
	for slot := ids.Slot(1); slot <= 3; slot++ {
		g.Replicas = append(g.Replicas, ControlledReplica{Slot: slot, Addr: fmt.Sprintf("10.0.0.%d:1", slot), Live: true, Voter: slot < 3})
	}
	return []ControlledGroup{g}, nil
}

func (f *fakeCluster) Elect(_ context.Context, group string, slot ids.Slot) error {
	if slot != 2 {
		return errors.New("it does not vote")
	}
	f.master = slot
	return nil
}

// What RocketMQ's tools ask a controller, a name server answers.
func TestControllerRequests(t *testing.T) {
	t.Parallel()
	s := start(t, func(o *Options) { o.Cluster = &fakeCluster{master: 1} })
	user := dial(t, s)
	resp := mustOK(t, call(t, user, remoting.ControllerGetMetadataInfo, nil))
	for field, want := range map[string]string{"controllerLeaderId": "c-1", "controllerLeaderAddress": s.Addr().String(), "isLeader": "true", "peers": "c-1:10.1.0.1:9878;c-2:a-host:9878"} {
		if got, _ := resp.Get(field); got != want {
			t.Errorf("%s is %q, want %q", field, got, want)
		}
	}
	want := `{"replicasInfoTable":{"g1":{"inSyncReplicas":[{"alive":true,"brokerAddress":"10.0.0.1:1","brokerId":1,"brokerName":"g1"},` +
		`{"alive":true,"brokerAddress":"10.0.0.2:1","brokerId":2,"brokerName":"g1"}],"masterAddress":"10.0.0.1:1","masterBrokerId":1,"masterEpoch":7,` +
		`"notInSyncReplicas":[{"alive":true,"brokerAddress":"10.0.0.3:1","brokerId":3,"brokerName":"g1"}],"syncStateSetEpoch":7}}}`
	if got := string(mustOK(t, call(t, user, remoting.ControllerGetSyncStateData, []byte(`["g1","other"]`))).Body); got != want {
		t.Errorf("the sync-state set: %s", got)
	}
	elect := func(fields ...string) *remoting.Command {
		return call(t, user, remoting.ControllerElectMaster, nil, append(fields, "clusterName", "c1")...)
	}
	for _, bad := range [][]string{{"brokerName", "g1", "brokerId", "3", "designateElect", "true"}, {"brokerName", "g1", "brokerId", "2", "designateElect", "false"},
		{"brokerName", "g1", "brokerId", "-1", "designateElect", "true"}, {"brokerName", "g1", "brokerId", "99999999999", "designateElect", "true"}} {
		if resp := elect(bad...); resp.Code != 2012 || resp.Remark == "" {
			t.Errorf("%v: code %d %q", bad, resp.Code, resp.Remark)
		}
	}
	if resp := elect("brokerName", "g9", "brokerId", "2", "designateElect", "true"); resp.Code != 2010 {
		t.Errorf("an unknown group: code %d", resp.Code)
	}
	resp = mustOK(t, elect("brokerName", "g1", "brokerId", "2", "designateElect", "true"))
	if id, _ := resp.Get("masterBrokerId"); id != "2" || !strings.Contains(string(resp.Body), `"syncStateSet":[1,2]`) {
		t.Errorf("the new master is %s: %s", id, resp.Body)
	}
	resp = mustOK(t, call(t, user, remoting.ControllerGetReplicaInfo, nil, "brokerName", "g1"))
	if id, _ := resp.Get("masterBrokerId"); id != "2" {
		t.Errorf("the master is %s", id)
	}
	if config := string(mustOK(t, call(t, user, remoting.GetControllerConfig, nil)).Body); !strings.Contains(config, "controllerDLegerPeers=c-1-10.1.0.1:9878;c-2-a-host:9878\n") {
		t.Errorf("the configuration: %s", config)
	}
}

// silentCluster answers nothing until the call is given up.
type silentCluster struct {
	fakeCluster
	asked chan struct{}
	ended chan error
}

func (c *silentCluster) Controllers(ctx context.Context) ([]ControllerPeer, string, error) {
	close(c.asked)
	<-ctx.Done()
	c.ended <- ctx.Err()
	return nil, "", ctx.Err()
}

// A server that is closed does not wait for controllers that do not answer.
func TestCloseEndsControllerCalls(t *testing.T) {
	t.Parallel()
	c := &silentCluster{asked: make(chan struct{}), ended: make(chan error, 1)}
	s := start(t, func(o *Options) { o.Cluster = c })
	sent := make(chan struct{})
	cl := dial(t, s)
	go func() {
		defer close(sent)
		cl.Call(t.Context(), remoting.NewRequest(remoting.ControllerGetMetadataInfo)) // an answer, or a closed connection
	}()
	<-c.asked
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-c.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the call ended with %v, want it given up", err)
	}
	<-sent
}
