package remoting

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// The official Go client writes and reads our frames: one server plays name server and broker for its producer.
func TestOfficialClient(t *testing.T) {
	rlog.SetLogLevel("error")
	type sent struct{ topic, properties, body string }
	got := make(chan sent, 1)
	var addr string
	s := serve(t, ServerOptions{Handler: func(c *Conn, req *Command) {
		if req.Language != LangGo || req.Version != 317 || req.Codec != CodecJSON {
			t.Errorf("request %d: language %d, version %d, codec %d", req.Code, req.Language, req.Version, req.Codec)
		}
		switch req.Code {
		case GetRouteInfoByTopic:
			resp := NewResponse(Success, "")
			resp.Body = []byte(`{"brokerDatas":[{"brokerAddrs":{"0":"` + addr + `"},"brokerName":"g1","cluster":"c"}],` +
				`"filterServerTable":{},"queueDatas":[{"brokerName":"g1","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}`)
			c.Reply(req, resp)
		case SendMessage:
			topic, err := req.MustString("topic")
			if err != nil {
				t.Error(err)
			}
			queue, err := req.MustInt32("queueId")
			if err != nil {
				t.Error(err)
			}
			select {
			case got <- sent{strings.Clone(topic), strings.Clone(req.GetOr("properties", "")), string(req.Body)}:
			default:
			}
			if strings.Contains(req.GetOr("properties", ""), "refuse") {
				c.ReplyError(req, MessageIllegal, `a "remark" with \ and	tab`)
				return
			}
			resp := NewResponse(Success, "")
			resp.Set("msgId", "0A09080700002A9F0000000000001060")
			resp.SetInt32("queueId", queue)
			resp.SetInt64("queueOffset", 41)
			c.Reply(req, resp)
		default:
			c.Reply(req, NewResponse(Success, ""))
		}
	}})
	addr = s.Addr().String()
	p, err := producer.NewDefaultProducer(producer.WithNameServer(primitive.NamesrvAddr{addr}), producer.WithGroupName("producers"), producer.WithRetry(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Shutdown(); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	msg := primitive.NewMessage("orders", []byte("hello \x00\xff")).WithTag("a\"b\\c<d>\u2028é\U0001F600").WithKeys([]string{"k1", "k2"})
	res, err := p.SendSync(ctx, msg)
	if err != nil {
		t.Fatal(err)
	}
	if res.Status != primitive.SendOK || res.QueueOffset != 41 || res.OffsetMsgID != "0A09080700002A9F0000000000001060" || res.MessageQueue.BrokerName != "g1" {
		t.Errorf("the client read %v", res)
	}
	g := <-got
	if g.topic != "orders" || g.body != "hello \x00\xff" || !strings.Contains(g.properties, "TAGS\x01a\"b\\c<d>\u2028é\U0001F600\x02") || !strings.Contains(g.properties, "KEYS\x01k1 k2 \x02") && !strings.Contains(g.properties, "KEYS\x01k1 k2\x02") {
		t.Errorf("we read %q", g)
	}
	msg = primitive.NewMessage("orders", []byte("x")).WithTag("refuse")
	if res, err := p.SendSync(ctx, msg); err == nil || !strings.Contains(err.Error(), `a "remark" with \ and	tab`) {
		t.Errorf("the client read %v, %v", res, err)
	}
}
