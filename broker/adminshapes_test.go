package broker_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/internal/laxjson"
	"github.com/ledgermq/ledgermq/remoting"
)

// The keys of GET_BROKER_RUNTIME_INFO that mqadmin, the dashboard and the exporter read. Several are read without a look whether they
// are there.
var runtimeKeys = strings.Fields(`brokerActive brokerVersion brokerVersionDesc msgPutTotalYesterdayMorning msgPutTotalTodayMorning
	msgPutTotalTodayNow msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow dispatchBehindBytes pageCacheLockTimeMills
	earliestMessageTimeStamp startAcceptSendRequestTimeStamp timerReadBehind timerOffsetBehind timerCongestNum timerEnqueueTps timerDequeueTps
	remainTransientStoreBufferNumbs remainHowManyDataToCommit remainHowManyDataToFlush commitLogDirCapacity
	sendThreadPoolQueueSize sendThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills
	pullThreadPoolQueueSize pullThreadPoolQueueCapacity pullThreadPoolQueueHeadWaitTimeMills
	litePullThreadPoolQueueSize litePullThreadPoolQueueCapacity litePullThreadPoolQueueHeadWaitTimeMills
	queryThreadPoolQueueSize queryThreadPoolQueueCapacity queryThreadPoolQueueHeadWaitTimeMills
	ackThreadPoolQueueSize ackThreadPoolQueueCapacity ackThreadPoolQueueHeadWaitTimeMills
	EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity bootTimestamp runtime putMessageEntireTimeMax putMessageTimesTotal
	putMessageFailedTimes putMessageSizeTotal putMessageDistributeTime putMessageAverageSize dispatchMaxBuffer getMessageEntireTimeMax
	putTps getFoundTps getMissTps getTotalTps getTransferredTps putLatency99 putLatency999 commitLogMaxOffset commitLogMinOffset
	commitLogDiskRatio consumeQueueDiskRatio`)

// What the admin tools ask of a broker has the shapes that they read, from the master and through a slave.
func TestAdminShapes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	master := c.master("g1")
	slave := c.besides(master)
	w, s := c.wire(master, "g1"), c.wire(slave, "g1")
	w.topic("T", 2)
	for range 3 {
		w.ok(remoting.SendMessage, []byte("body"), sendFields("T")...)
	}
	w.ok(remoting.PullMessage, nil, pullFields("cg", "T", 0)...)

	for _, from := range []*wire{w, s} {
		var info struct{ Table map[string]string }
		parse(t, from.ok(remoting.GetBrokerRuntimeInfo, nil).Body, &info)
		for _, key := range runtimeKeys {
			if info.Table[key] == "" {
				t.Errorf("the runtime information has no %s", key)
			}
		}
		if n := info.Table["msgPutTotalTodayNow"]; from == w && n != "3" {
			t.Errorf("%s messages were put", n)
		}
		for _, key := range []string{"putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps"} {
			if n := len(strings.Fields(info.Table[key])); n != 3 {
				t.Errorf("%s has %d figures: %q", key, n, info.Table[key])
			}
		}

		stats := string(from.ok(remoting.GetTopicStatsInfo, nil, "topic", "T").Body)
		if !strings.HasPrefix(stats, `{"offsetTable":{{"topic":"T","brokerName":"g1","queueId":0}:{"lastUpdateTimestamp":`) {
			t.Errorf("the statistics of a topic: %s", stats)
		}
		standard, err := laxjson.Standard([]byte(stats))
		if err != nil {
			t.Fatal(err)
		}
		var table struct {
			OffsetTable map[string]struct{ LastUpdateTimestamp, MinOffset, MaxOffset int64 }
			TopicPutTps float64
		}
		parse(t, standard, &table)
		q0, q1 := table.OffsetTable[`{"topic":"T","brokerName":"g1","queueId":0}`], table.OffsetTable[`{"topic":"T","brokerName":"g1","queueId":1}`]
		if len(table.OffsetTable) != 2 || q0.MinOffset != 0 || q0.MaxOffset != 3 || q0.LastUpdateTimestamp == 0 || q1.MaxOffset != 0 || q1.LastUpdateTimestamp != 0 {
			t.Errorf("the statistics of a topic: %s", standard)
		}

		var topics struct {
			TopicConfigTable map[string]map[string]any
			DataVersion      struct{ Counter, StateVersion, Timestamp int64 }
		}
		parse(t, from.ok(remoting.GetAllTopicConfig, nil).Body, &topics)
		want := `{"attributes":{},"order":false,"perm":6,"readQueueNums":2,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":2}`
		if got, _ := json.Marshal(topics.TopicConfigTable["T"]); string(got) != want || topics.DataVersion.Counter < 1 || topics.DataVersion.StateVersion < 1 {
			t.Errorf("topic %s, version %+v", got, topics.DataVersion)
		}
		if one := string(from.ok(remoting.GetTopicConfig, nil, "topic", "T").Body); one != want {
			t.Errorf("the topic alone: %s", one)
		}
	}

	var data struct{ StatsMinute, StatsHour, StatsDay struct{ Sum int64 } }
	parse(t, w.ok(remoting.ViewBrokerStatsData, nil, "statsName", "TOPIC_PUT_NUMS", "statsKey", "T").Body, &data)
	if data.StatsMinute.Sum != 3 || data.StatsHour.Sum != 3 || data.StatsDay.Sum != 3 {
		t.Errorf("puts of the topic: %+v", data)
	}
	parse(t, w.ok(remoting.ViewBrokerStatsData, nil, "statsName", "GROUP_GET_NUMS", "statsKey", "T@cg").Body, &data)
	if data.StatsMinute.Sum != 3 {
		t.Errorf("gets of the group: %+v", data)
	}
	for _, bad := range [][]string{nil, {"statsName", "TOPIC_PUT_NUMS"}, {"statsName", "COMMERCIAL_SEND_TIMES", "statsKey", "T"}, {"statsName", "TOPIC_PUT_NUMS", "statsKey", "Nope"},
		{"statsName", "TOPIC_PUT_NUMS", "statsKey", "T@cg"}, {"statsName", "GROUP_GET_NUMS", "statsKey", "T@other"}, {"statsName", "BROKER_PUT_NUMS", "statsKey", "T"}} {
		if resp := w.call(remoting.ViewBrokerStatsData, nil, bad...); resp.Code != remoting.SystemError || resp.Remark == "" {
			t.Errorf("%v: code %d %q", bad, resp.Code, resp.Remark)
		}
	}

	config := string(w.ok(remoting.GetBrokerConfig, nil).Body)
	lines := strings.Split(strings.TrimSuffix(config, "\n"), "\n")
	for _, want := range []string{"brokerName=g1", "brokerId=0", "brokerClusterName=DefaultCluster", "totalReplicas=3", "minInSyncReplicas=2", "flushDiskType=SYNC_FLUSH", "brokerRole=SYNC_MASTER"} {
		if !slices.Contains(lines, want) {
			t.Errorf("the configuration has no line %q:\n%s", want, config)
		}
	}
	if other := string(s.ok(remoting.GetBrokerConfig, nil).Body); !strings.Contains(other, "brokerRole=SLAVE\n") || strings.Contains(other, "brokerId=0\n") {
		t.Errorf("the configuration of a slave:\n%s", other)
	}
}

func parse(t *testing.T, body []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(body, v); err != nil {
		t.Fatal(fmt.Errorf("%w in %s", err, body))
	}
}

// The requests that change topics and groups in lists, and those that show who consumes what and how far the replicas are.
func TestAdminLists(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	master := c.master("g1")
	slave := c.besides(master)
	w, s := c.wire(master, "g1"), c.wire(slave, "g1")
	s.ok(remoting.UpdateAndCreateTopicList, []byte(`{"topicConfigList":[{"topicName":"A","readQueueNums":1,"writeQueueNums":1,"perm":6,"topicFilterType":"SINGLE_TAG"},
		{"topicName":"B","readQueueNums":2,"writeQueueNums":2,"perm":4,"order":true,"attributes":{"+message.type":"FIFO"}}]}`))
	want := `{"attributes":{"message.type":"FIFO"},"order":true,"perm":4,"readQueueNums":2,"topicFilterType":"SINGLE_TAG","topicName":"B","topicSysFlag":0,"writeQueueNums":2}`
	if got := string(w.ok(remoting.GetTopicConfig, nil, "topic", "B").Body); got != want {
		t.Errorf("topic %s", got)
	}
	for _, body := range []string{`{"topicConfigList":[{"topicName":"C","readQueueNums":1,"writeQueueNums":1,"perm":6},{"topicName":"no good","readQueueNums":1,"writeQueueNums":1,"perm":6}]}`,
		`{"topicConfigList":[]}`, `{}`, `x`, `{"topicConfigList":[{"topicName":"C","readQueueNums":0,"writeQueueNums":1,"perm":6}]}`} {
		if resp := w.call(remoting.UpdateAndCreateTopicList, []byte(body)); resp.Code == remoting.Success {
			t.Errorf("%s was taken", body)
		}
	}
	if resp := w.call(remoting.GetTopicConfig, nil, "topic", "C"); resp.Code != remoting.TopicNotExist {
		t.Errorf("a list that was refused made a topic: code %d", resp.Code)
	}

	w.ok(remoting.UpdateAndCreateSubscriptionGroupList, []byte(`{"groupConfigList":[{"groupName":"one"},{"groupName":"two","retryMaxTimes":3}]}`))
	w.ok(remoting.SendMessage, []byte("x"), sendFields("A")...)
	for _, g := range []string{"one", "two"} {
		w.ok(remoting.UpdateConsumerOffset, nil, "consumerGroup", g, "topic", "A", "queueId", "0", "commitOffset", "1")
	}
	var list struct{ GroupList, TopicList []string }
	parse(t, s.ok(remoting.QueryTopicConsumeByWho, nil, "topic", "A").Body, &list)
	if !slices.Equal(list.GroupList, []string{"one", "two"}) {
		t.Errorf("topic A is consumed by %v", list.GroupList)
	}
	parse(t, w.ok(remoting.QueryTopicsByConsumer, nil, "group", "two").Body, &list)
	if !slices.Equal(list.TopicList, []string{"A"}) {
		t.Errorf("group two consumes %v", list.TopicList)
	}
	parse(t, w.ok(remoting.GetSystemTopicListFromBroker, nil).Body, &list)
	if !slices.Equal(list.TopicList, []string{"DefaultCluster", "RMQ_SYS_TRACE_TOPIC", "TBW102", "g1"}) {
		t.Errorf("system topics %v", list.TopicList)
	}
	var spans struct {
		ConsumeTimeSpanSet []struct{ MinTimeStamp, MaxTimeStamp, ConsumeTimeStamp, DelayTime int64 }
	}
	parse(t, w.ok(remoting.QueryConsumeTimeSpan, nil, "topic", "A", "group", "one").Body, &spans)
	if len(spans.ConsumeTimeSpanSet) != 1 {
		t.Fatalf("%+v", spans)
	}
	if q := spans.ConsumeTimeSpanSet[0]; q.MinTimeStamp == 0 || q.MinTimeStamp != q.MaxTimeStamp || q.ConsumeTimeStamp != q.MaxTimeStamp || q.DelayTime != 0 {
		t.Errorf("%+v", q)
	}

	var cq struct {
		MaxQueueIndex, MinQueueIndex int64
		QueueData                    []struct{ PhysicOffset, PhysicSize, TagsCode int64 }
	}
	parse(t, s.ok(remoting.QueryConsumeQueue, nil, "topic", "A", "queueId", "0", "index", "0", "count", "10").Body, &cq)
	if cq.MaxQueueIndex != 1 || cq.MinQueueIndex != 0 || len(cq.QueueData) != 1 || cq.QueueData[0].PhysicSize == 0 {
		t.Errorf("the queue: %+v", cq)
	}
	for _, bad := range [][]string{{"index", "0", "count", "0"}, {"index", "x", "count", "1"}, {"index", "0"}} {
		if resp := w.call(remoting.QueryConsumeQueue, nil, append(bad, "topic", "A", "queueId", "0")...); resp.Code == remoting.Success {
			t.Errorf("%v was taken", bad)
		}
	}

	all := string(s.ok(remoting.GetBrokerConsumeStats, nil, "isOrder", "false").Body)
	entry := `{"consumeTps":0,"offsetTable":{{"topic":"A","brokerName":"g1","queueId":0}:{`
	if !strings.HasPrefix(all, `{"brokerAddr":"`+c.port(master, "g1")+`","consumeStatsList":[{"one":[`+entry) || !strings.Contains(all, `{"two":[`+entry) || !strings.HasSuffix(all, `}}}]}],"totalDiff":0,"totalInflightDiff":0}`) {
		t.Errorf("the progress of all groups: %s", all)
	}
	if none := string(w.ok(remoting.GetBrokerConsumeStats, nil, "isOrder", "true").Body); !strings.Contains(none, `"consumeStatsList":[]`) {
		t.Errorf("that of ordered topics: %s", none)
	}
	// Each of these reads something of many queues: only so many may be at it.
	leader := c.nodes[master].Replica("g1")
	leader.Survey(broker.MaxSurveys)
	for code, fields := range map[int32][]string{remoting.GetBrokerConsumeStats: {"isOrder", "false"}, remoting.QueryConsumeTimeSpan: {"topic", "A", "group", "one"}, remoting.GetTopicStatsInfo: {"topic", "A"}} {
		if resp := w.call(code, nil, fields...); resp.Code != remoting.SystemBusy || !strings.Contains(resp.Remark, "under way: try again") {
			t.Errorf("request %d beside %d others: code %d %q", code, broker.MaxSurveys, resp.Code, resp.Remark)
		}
	}
	leader.Survey(-broker.MaxSurveys)
	w.ok(remoting.GetTopicStatsInfo, nil, "topic", "A")
	if one := string(s.ok(remoting.GetSubscriptionGroupConfig, nil, "group", "two").Body); !strings.Contains(one, `"retryMaxTimes":3`) {
		t.Errorf("a group alone: %s", one)
	}
	w.ok(remoting.HeartBeat, []byte(`{"clientID":"p1","producerDataSet":[{"groupName":"makers"}]}`))
	if made := string(w.ok(remoting.GetAllProducerInfo, nil).Body); !strings.Contains(made, `{"data":{"makers":[{"clientId":"p1","language":"GO",`) {
		t.Errorf("producers: %s", made)
	}
	w.ok(remoting.DeleteSubscriptionGroup, nil, "groupName", "one", "cleanOffset", "true")
	parse(t, w.ok(remoting.QueryTopicConsumeByWho, nil, "topic", "A").Body, &list)
	if !slices.Equal(list.GroupList, []string{"two"}) {
		t.Errorf("after a deletion topic A is consumed by %v", list.GroupList)
	}
	w.ok(remoting.DeleteSubscriptionGroup, nil, "groupName", "nobody")

	for _, code := range []int32{remoting.CleanExpiredConsumeQueue, remoting.CleanUnusedTopic, remoting.DeleteExpiredCommitLog} {
		w.ok(code, nil)
	}
	var ha struct {
		Master           bool
		InSyncSlaveNums  int
		HaConnectionInfo []struct {
			Addr   string
			Diff   int64
			InSync bool
		}
		HaClientRuntimeInfo struct{ MasterAddr string }
	}
	parse(t, w.ok(remoting.GetBrokerHAStatus, nil).Body, &ha)
	if !ha.Master || ha.InSyncSlaveNums != 2 || len(ha.HaConnectionInfo) != 2 || ha.HaConnectionInfo[0].Addr == "" || ha.HaConnectionInfo[0].Diff < 0 {
		t.Errorf("replication as the master sees it: %+v", ha)
	}
	parse(t, s.ok(remoting.GetBrokerHAStatus, nil).Body, &ha)
	if ha.Master || ha.HaClientRuntimeInfo.MasterAddr != c.port(master, "g1") {
		t.Errorf("replication as a slave sees it: %+v", ha)
	}
	var epochs struct {
		BrokerName string
		EpochList  []struct{ Epoch, StartOffset, EndOffset int64 }
		MaxOffset  int64
	}
	parse(t, w.ok(remoting.GetBrokerEpochCache, nil).Body, &epochs)
	if n := len(epochs.EpochList); epochs.BrokerName != "g1" || n < 1 || epochs.EpochList[0].Epoch != 1 || epochs.EpochList[n-1].EndOffset != epochs.MaxOffset {
		t.Errorf("epochs %+v", epochs)
	}
	if resp := w.call(3005, nil); resp.Code != remoting.RequestCodeNotSupported || !strings.Contains(resp.Remark, "access control") {
		t.Errorf("a list of users: code %d %q", resp.Code, resp.Remark)
	}
}
