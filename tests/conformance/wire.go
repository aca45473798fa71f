package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/internal/laxjson"
	"github.com/ledgermq/ledgermq/jepsen"
	"github.com/ledgermq/ledgermq/remoting"
)

// Cases that send bare requests and print the codes, the fields and the shapes of the answers.

// door is a connection to the master, or to a name server.
type door struct {
	e *Env
	c *remoting.Client
}

func master(e *Env) (*door, error) {
	k, err := client.New(e.Namesrv)
	if err != nil {
		return nil, err
	}
	defer k.Close()
	found := ""
	if err := jepsen.Await(e, "a master", func() (bool, error) {
		now, err := k.Cluster(e)
		for _, g := range now.Groups {
			found = g.Master()
		}
		return found != "", err
	}); err != nil {
		return nil, err
	}
	return dial(e, found)
}

// masterWithTopic is master, for a case whose topic it makes first.
func masterWithTopic(e *Env, queues string) (*door, error) {
	d, err := master(e)
	if err != nil {
		return nil, err
	}
	return d, d.topic(e.Topic(), queues)
}

// afterPause ends the first half of a case with a failover, and returns a connection to who is master then.
func afterPause(d *door) (*door, error) {
	if !d.e.Failover {
		return d, nil
	}
	if err := d.e.Pause(); err != nil {
		return nil, err
	}
	d.c.Close() // who was not killed has to forget the member, too
	return master(d.e)
}

func dial(e *Env, addr string) (*door, error) {
	c, err := remoting.Dial(e, addr, remoting.ClientOptions{})
	if err != nil {
		return nil, err
	}
	context.AfterFunc(e, c.Close)
	return &door{e, c}, nil
}

// fields is what a request carries: names and values in turn.
type fields []string

func (d *door) call(code int32, f fields, body string) (*remoting.Command, error) {
	req := remoting.NewRequest(code)
	for i := 0; i+1 < len(f); i += 2 {
		req.Set(f[i], f[i+1])
	}
	if body != "" {
		req.Body = []byte(body)
	}
	ctx, cancel := context.WithTimeout(d.e, 40*time.Second)
	defer cancel()
	return d.c.Call(ctx, req)
}

// show prints an answer: its code, its fields, the shape of its body.
func (d *door) show(key string, code int32, f fields, body string) {
	resp, err := d.call(code, f, body)
	if err != nil {
		d.e.Print(key, err)
		return
	}
	d.e.Print(key, fmt.Sprintf("code %d", resp.Code))
	var list []string
	for name, value := range resp.Fields() {
		if name == "ledgermqMaster" || name == "ledgermqTerm" {
			continue // another replica is master by now, and the answer came through the one that was
		}
		list = append(list, plain(name+"="+value))
	}
	if len(list) > 0 {
		slices.Sort(list)
		d.e.Print(key+".fields", strings.Join(list, " "))
	}
	if len(resp.Body) > 0 {
		for _, line := range shape(resp.Body) {
			d.e.Print(key+".body"+line, "there")
		}
	}
}

// code prints only the code of an answer.
func (d *door) code(key string, code int32, f fields, body string) {
	resp, err := d.call(code, f, body)
	if err != nil {
		d.e.Print(key, err)
		return
	}
	d.e.Print(key, fmt.Sprintf("code %d", resp.Code))
}

var words = []struct {
	pattern *regexp.Regexp
	word    string
}{
	{regexp.MustCompile(`\b[0-9A-Fa-f]{32,}\b`), "ID"},
	{regexp.MustCompile(`(\d{1,3}\.){3}\d{1,3}(:\d+)?`), "ADDR"},
	{regexp.MustCompile(`\b1[6-9]\d{11}\b`), "TIME"},
	{regexp.MustCompile(`commitLogDiskRatio_.*`), "commitLogDiskRatio_FOLDER"},
	{regexp.MustCompile(`\b(total\w+Num)=\d+`), "$1=N"},
}

// plain replaces what differs from run to run by words.
func plain(s string) string {
	for _, w := range words {
		s = w.pattern.ReplaceAllString(s, w.word)
	}
	return s
}

// shape returns the paths of a JSON text, with the types of what is there; a text that is no JSON is its size only.
func shape(body []byte) []string {
	standard, err := laxjson.Standard(body)
	var value any
	if err == nil {
		err = json.Unmarshal(standard, &value)
	}
	if err != nil {
		return []string{fmt.Sprintf("%d bytes", len(body))}
	}
	paths := make(map[string]bool)
	walk("", value, paths)
	return slices.Sorted(maps.Keys(paths))
}

func walk(at string, value any, paths map[string]bool) {
	switch v := value.(type) {
	case map[string]any:
		if len(v) == 0 {
			paths[at+"{}"] = true
		}
		for key, inner := range v {
			if strings.HasSuffix(at, ".brokerAddrs") && key != "0" {
				continue // how many replicas a group has is not what is compared
			}
			if strings.HasSuffix(at, "Table") || strings.HasSuffix(at, "Map") {
				key = "*" // of topics, groups, queues: not which there are, but how they are told
			}
			walk(at+"."+plain(key), inner, paths)
		}
	case []any:
		if len(v) == 0 {
			paths[at+"[]"] = true
		}
		for _, inner := range v {
			walk(at+"[]", inner, paths)
		}
	case nil:
		paths[at+" null"] = true
	default:
		paths[fmt.Sprintf("%s %T", at, v)] = true
	}
}

// topic creates a topic and waits until the name server has it.
func (d *door) topic(name string, queues string) error {
	resp, err := d.call(remoting.UpdateAndCreateTopic, fields{"topic", name, "defaultTopic", "TBW102", "readQueueNums", queues,
		"writeQueueNums", queues, "perm", "6", "topicFilterType", "SINGLE_TAG", "topicSysFlag", "0", "order", "false"}, "")
	if err == nil && resp.Code != 0 {
		err = fmt.Errorf("creating %s: code %d: %s", name, resp.Code, resp.Remark)
	}
	if err != nil {
		return err
	}
	k, err := client.New(d.e.Namesrv)
	if err != nil {
		return err
	}
	defer k.Close()
	return jepsen.Await(d.e, "the route of "+name, func() (bool, error) {
		_, err := k.Route(d.e, name)
		return err == nil, nil
	})
}

func (d *door) sendFields(topic string, other ...string) fields {
	f := fields{"a", "producers", "b", topic, "c", "TBW102", "d", "4", "e", "0", "f", "0", "g", "1790000000000", "h", "0",
		"i", "", "j", "0", "k", "false", "l", "16", "m", "false"}
	for i := 0; i+1 < len(other); i += 2 {
		at := slices.Index(f, other[i])
		if at < 0 {
			f = append(f, other[i], other[i+1])
			continue
		}
		f[at+1] = other[i+1]
	}
	return f
}

// known are the request codes that a broker of RocketMQ 5.5.0 has a meaning for, those aside that concern what issues of their own are
// about (access control, pop, lite topics), and one that shuts something down.
var known = []int32{10, 11, 12, 14, 15, 17, 18, 21, 25, 26, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 41, 42, 43, 45, 46, 200, 201, 202,
	203, 204, 207, 208, 215, 222, 223, 225, 300, 301, 305, 306, 307, 308, 309, 310, 315, 316, 317, 320, 321, 323, 324, 325, 351, 352, 353,
	354, 355, 361, 370, 400, 401, 1007}

func emptyRequests(e *Env) error {
	for _, code := range known {
		d, err := master(e) // each has a connection of its own: a broker may close it
		if err != nil {
			return err
		}
		d.code(fmt.Sprintf("request %d", code), code, nil, "")
		d.c.Close()
	}
	return nil
}

func unknownRequests(e *Env) error {
	d, err := master(e)
	if err != nil {
		return err
	}
	for _, code := range []int32{-1, 0, 9, 999, 31999} {
		d.code(fmt.Sprintf("request %d", code), code, nil, "")
	}
	n, err := dial(e, e.Namesrv[0])
	if err != nil {
		return err
	}
	for _, code := range []int32{-1, 10, 999} {
		n.code(fmt.Sprintf("name server request %d", code), code, nil, "")
	}
	return nil
}

func sends(e *Env) error {
	d, err := masterWithTopic(e, "1")
	if err != nil {
		return err
	}
	t := e.Topic()
	send := func(key string, other ...string) { d.show(key, 310, d.sendFields(t, other...), "body") }
	send("plain")
	send("queue -1 is any", "e", "-1")
	send("queue 7 of 1", "e", "7")
	send("queue -2", "e", "-2")
	send("no such number", "e", "x")
	send("a topic with a blank", "b", "a b")
	send("a topic of 128", "b", strings.Repeat("t", 128))
	send("an empty topic", "b", "")
	send("a topic that nobody made", "b", t+"-new", "c", "TBW102")
	send("a template that is not there", "b", t+"-other", "c", "nothing")
	send("properties of 40000", "i", "k\x01"+strings.Repeat("v", 40000)+"\x02")
	send("properties without an end", "i", "KEYS\x01k")
	d.code("no body", 310, d.sendFields(t), "")
	for i := 0; i < len(d.sendFields(t)); i += 2 {
		f := d.sendFields(t)
		d.code("without "+f[i], 310, slices.Delete(f, i, i+2), "body")
	}
	return nil
}

func routes(e *Env) error {
	if _, err := masterWithTopic(e, "3"); err != nil {
		return err
	}
	n, err := dial(e, e.Namesrv[0])
	if err != nil {
		return err
	}
	n.show("route", 105, fields{"topic", e.Topic(), "acceptStandardJsonOnly", "true"}, "")
	n.show("route in the old dialect", 105, fields{"topic", e.Topic()}, "")
	n.show("route of nothing", 105, fields{"topic", e.Topic() + "x"}, "")
	n.show("route without a topic", 105, nil, "")
	n.show("cluster", 106, nil, "")
	n.code("all topics", 206, nil, "")
	return nil
}

func offsets(e *Env) error {
	d, err := masterWithTopic(e, "1")
	if err != nil {
		return err
	}
	t, g := e.Topic(), e.Group("g")
	d.show("committed by a group that is not there", 15, fields{"consumerGroup", g, "topic", t, "queueId", "0", "commitOffset", "1"}, "")
	if _, err := d.call(200, nil, fmt.Sprintf(`{"groupName":%q,"consumeEnable":true,"retryQueueNums":1,"retryMaxTimes":16}`, g)); err != nil {
		return err
	}
	for range 5 {
		if _, err := d.call(310, d.sendFields(t), "body"); err != nil {
			return err
		}
	}
	of := func(other ...string) fields {
		return append(fields{"consumerGroup", g, "topic", t, "queueId", "0"}, other...)
	}
	if _, err := d.await(t, 5); err != nil { // RocketMQ answers a send before the message is in its queue
		return err
	}
	d.show("max", 30, of(), "")
	d.show("min", 31, of(), "")
	d.show("max of queue 9", 30, fields{"topic", t, "queueId", "9"}, "")
	d.show("max of no topic", 30, fields{"topic", t + "x", "queueId", "0"}, "")
	d.show("min of no topic", 31, fields{"topic", t + "x", "queueId", "0"}, "")
	d.show("committed 3", 15, of("commitOffset", "3"), "")
	d.show("is committed", 14, of(), "")
	d.show("committed -1", 15, of("commitOffset", "-1"), "")
	d.show("committed 2, back", 15, of("commitOffset", "2"), "")
	if d, err = afterPause(d); err != nil {
		return err
	}
	d.show("is committed then", 14, of(), "")
	d.show("committed to no topic", 15, fields{"consumerGroup", g, "topic", t + "x", "queueId", "0", "commitOffset", "1"}, "")
	d.show("search for 0", 29, of("timestamp", "0"), "")
	d.show("search for the future", 29, of("timestamp", "3790000000000"), "")
	d.show("search below 0", 29, of("timestamp", "-1"), "")
	d.show("search of no topic", 29, fields{"topic", t + "x", "queueId", "0", "timestamp", "0"}, "")
	d.code("message at -1", 33, fields{"offset", "-1"}, "")
	d.code("message far behind the end", 33, fields{"offset", "1000000000000"}, "")
	return nil
}

func topics(e *Env) error {
	d, err := master(e)
	if err != nil {
		return err
	}
	make := func(key, name string, other ...string) {
		f := fields{"topic", name, "defaultTopic", "TBW102", "readQueueNums", "2", "writeQueueNums", "2", "perm", "6",
			"topicFilterType", "SINGLE_TAG", "topicSysFlag", "0", "order", "false"}
		for i := 0; i+1 < len(other); i += 2 {
			f[slices.Index(f, other[i])+1] = other[i+1]
		}
		d.show(key, 17, f, "")
	}
	t := e.Topic()
	make("made", t)
	make("made again", t)
	make("read only", t, "perm", "4")
	make("more queues", t, "readQueueNums", "4", "writeQueueNums", "4")
	make("fewer queues", t, "readQueueNums", "1", "writeQueueNums", "1")
	make("no queues", t+"-0", "readQueueNums", "0", "writeQueueNums", "0")
	make("queues below 0", t+"-1", "readQueueNums", "-1", "writeQueueNums", "-1")
	make("perm 0", t+"-2", "perm", "0")
	make("perm 9", t+"-3", "perm", "9")
	make("an empty name", "")
	make("a blank", "a b")
	make("a name of 128", strings.Repeat("t", 128))
	make("a system topic", "TBW102")
	make("the cluster's topic", "DefaultCluster")
	make("an order", t+"-4", "order", "true")
	d.show("deleted", 215, fields{"topic", t}, "")
	d.show("deleted again", 215, fields{"topic", t}, "")
	d.show("deleted without a name", 215, fields{"topic", ""}, "")
	d.show("deleted a system topic", 215, fields{"topic", "TBW102"}, "")
	return nil
}

func groups(e *Env) error {
	d, err := master(e)
	if err != nil {
		return err
	}
	make := func(key, name, more string) {
		d.show(key, 200, nil, fmt.Sprintf(`{"groupName":%q,"consumeEnable":true,"retryQueueNums":1,"retryMaxTimes":16%s}`, name, more))
	}
	make("made", e.Group("g"), "")
	make("made again", e.Group("g"), "")
	make("an empty name", "", "")
	make("a blank", "a b", "")
	make("negative maximum", e.Group("neg"), `,"retryMaxTimes":-5`)
	d.show("no JSON", 200, nil, "xx")
	d.show("no body", 200, nil, "")
	d.show("members of nobody", 38, fields{"consumerGroup", e.Group("nobody")}, "")
	beat := fmt.Sprintf(`{"clientID":"c1","producerDataSet":[],"consumerDataSet":[{"groupName":%q,"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",`+
		`"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[{"classFilterMode":false,"topic":%q,"subString":"*","tagsSet":[],"codeSet":[],`+
		`"subVersion":1790000000000,"expressionType":"TAG"}],"unitMode":false}]}`, e.Group("live"), e.Topic())
	d.show("heartbeat", 34, nil, beat)
	d.show("members", 38, fields{"consumerGroup", e.Group("live")}, "")
	locks := func(client string) string {
		return fmt.Sprintf(`{"consumerGroup":%q,"clientId":%q,"mqSet":[{"topic":%q,"brokerName":%q,"queueId":0}]}`, e.Group("live"), client, e.Topic(), group)
	}
	if err := d.topic(e.Topic(), "1"); err != nil {
		return err
	}
	d.show("lock", 41, nil, locks("c1"))
	if d, err = afterPause(d); err != nil {
		return err
	}
	if _, err := d.call(34, nil, beat); err != nil { // who is connected is not in the log
		return err
	}
	d.show("lock of another", 41, nil, locks("c2"))
	d.show("unlock", 42, nil, locks("c1"))
	d.show("lock of another then", 41, nil, locks("c2"))
	d.show("unregistered", 35, fields{"clientID", "c1", "consumerGroup", e.Group("live")}, "")
	d.show("members then", 38, fields{"consumerGroup", e.Group("live")}, "")
	d.code("heartbeat that is no JSON", 34, nil, "xx")
	d.code("lock that is no JSON", 41, nil, "xx")
	return nil
}

// mixedSubscriptions lets two members of one group want different tags of one queue.
func mixedSubscriptions(e *Env) error {
	d, err := masterWithTopic(e, "1")
	if err != nil {
		return err
	}
	t, g := e.Topic(), e.Group("mixed")
	if _, err := d.call(200, nil, fmt.Sprintf(`{"groupName":%q,"consumeEnable":true,"retryQueueNums":1,"retryMaxTimes":16}`, g)); err != nil {
		return err
	}
	for _, tag := range []string{"A", "B", "A", "C"} {
		if _, err := d.call(310, d.sendFields(t, "i", properties("TAGS", tag, "UNIQ_KEY", uniqueKey())), tag); err != nil {
			return err
		}
	}
	if _, err := afterPause(d); err != nil {
		return err
	}
	tags := []string{"A", "B"}
	var doors []*door
	for _, tag := range tags {
		m, err := master(e)
		if err != nil {
			return err
		}
		doors = append(doors, m)
		if _, err := m.call(34, nil, fmt.Sprintf(`{"clientID":"wants-%[3]s","producerDataSet":[],"consumerDataSet":[{"groupName":%[1]q,"consumeType":"CONSUME_PASSIVELY",`+
			`"messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[{"classFilterMode":false,"topic":%[2]q,`+
			`"subString":%[3]q,"tagsSet":[%[3]q],"codeSet":[%[4]d],"subVersion":1790000000000,"expressionType":"TAG"}],"unitMode":false}]}`, g, t, tag, tag[0])); err != nil {
			return err
		}
	}
	for i, m := range doors {
		for from := range 4 {
			key := fmt.Sprintf("%s from %d", tags[i], from)
			resp, err := m.call(11, fields{"consumerGroup", g, "topic", t, "queueId", "0", "queueOffset", fmt.Sprint(from), "maxMsgNums", "32", "sysFlag", "4",
				"commitOffset", "0", "suspendTimeoutMillis", "0", "subscription", tags[i], "subVersion", "1790000000000", "expressionType", "TAG"}, "")
			if err != nil {
				return err
			}
			e.Print(key, fmt.Sprintf("code %d, next %s, %t", resp.Code, resp.GetOr("nextBeginOffset", "none"), len(resp.Body) > 0))
		}
	}
	return nil
}

// shapes asks what mqadmin and the dashboard ask, of a topic with messages and a group with a member, and compares the answers' JSON.
func shapes(e *Env) error {
	d, err := masterWithTopic(e, "1")
	if err != nil {
		return err
	}
	t, g := e.Topic(), e.Group("g")
	for range 3 {
		if _, err := d.call(310, d.sendFields(t, "i", "KEYS\x01k\x02"), "body"); err != nil {
			return err
		}
	}
	d.show("group", 200, nil, fmt.Sprintf(`{"groupName":%q,"consumeEnable":true,"retryQueueNums":1,"retryMaxTimes":16}`, g))
	beat := fmt.Sprintf(`{"clientID":"c1","producerDataSet":[{"groupName":"producers"}],"consumerDataSet":[{"groupName":%q,"consumeType":"CONSUME_PASSIVELY",`+
		`"messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[{"classFilterMode":false,"topic":%q,`+
		`"subString":"*","tagsSet":[],"codeSet":[],"subVersion":1790000000000,"expressionType":"TAG"}],"unitMode":false}]}`, g, t)
	if _, err := d.call(34, nil, beat); err != nil {
		return err
	}
	if _, err := d.call(15, fields{"consumerGroup", g, "topic", t, "queueId", "0", "commitOffset", "1"}, ""); err != nil {
		return err
	}
	if d, err = afterPause(d); err != nil {
		return err
	}
	if _, err := d.call(34, nil, beat); err != nil { // who is connected is not in the log
		return err
	}
	d.show("all topics", 21, nil, "")
	d.show("runtime", 28, nil, "")
	d.show("all groups", 201, nil, "")
	d.show("topic statistics", 202, fields{"topic", t}, "")
	d.show("topic statistics of nothing", 202, fields{"topic", t + "x"}, "")
	d.show("consumers", 203, fields{"consumerGroup", g}, "")
	d.show("consumers of nothing", 203, fields{"consumerGroup", g + "x"}, "")
	d.show("producers", 204, fields{"producerGroup", "producers"}, "")
	d.show("producers of nothing", 204, fields{"producerGroup", "nobody"}, "")
	d.show("progress", 208, fields{"consumerGroup", g, "topic", t}, "")
	d.show("progress of all topics", 208, fields{"consumerGroup", g}, "")
	d.show("progress of nothing", 208, fields{"consumerGroup", g + "x"}, "")
	d.show("topic consumed by", 300, fields{"topic", t}, "")
	d.show("topics of a group", 343, fields{"group", g}, "")
	d.show("queue entries", 321, fields{"topic", t, "queueId", "0", "index", "0", "count", "2", "consumerGroup", g}, "")
	d.show("topic's configuration", 351, fields{"topic", t}, "")
	d.show("configuration of no topic", 351, fields{"topic", t + "x"}, "")
	d.show("group's configuration", 352, fields{"group", g}, "")
	d.show("time spans", 303, fields{"topic", t, "group", g}, "")
	d.show("reset", 222, fields{"topic", t, "group", g + "x", "timestamp", "0", "isForce", "true"}, "")
	d.show("status of nobody", 223, fields{"topic", t, "group", g + "x"}, "")
	d.show("running information of nobody", 307, fields{"consumerGroup", g, "clientId", "nobody"}, "")
	d.show("statistics of nothing", 315, fields{"statsName", "TOPIC_PUT_NUMS", "statsKey", t + "x"}, "")
	d.show("deleted group", 207, fields{"groupName", g, "cleanOffset", "true"}, "")
	d.show("progress of the deleted group", 208, fields{"consumerGroup", g, "topic", t}, "")
	n, err := dial(e, e.Namesrv[0])
	if err != nil {
		return err
	}
	n.show("name server: topics", 206, nil, "")
	n.show("name server: topics of a cluster", 224, fields{"cluster", "DefaultCluster"}, "")
	n.show("name server: put", 100, fields{"namespace", "N", "key", "k", "value", "v"}, "")
	n.show("name server: get", 101, fields{"namespace", "N", "key", "k"}, "")
	n.show("name server: list", 219, fields{"namespace", "N"}, "")
	n.show("name server: delete", 102, fields{"namespace", "N", "key", "k"}, "")
	n.show("name server: get then", 101, fields{"namespace", "N", "key", "k"}, "")
	n.show("name server: protect nothing", 205, fields{"brokerName", "nobody"}, "")
	return nil
}
