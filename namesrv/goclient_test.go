package namesrv_test

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"

	"github.com/ledgermq/ledgermq/namesrv"
	"github.com/ledgermq/ledgermq/remoting"
)

// TestOfficialGoClient lets the official Go client read routes from our name server: as an administrator, and as a producer
// that sends to the broker that the route names.
func TestOfficialGoClient(t *testing.T) {
	rlog.SetLogLevel("fatal")
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	nl, bl := listen(), listen()
	ns, err := namesrv.New(namesrv.Options{Listener: nl, ReadyAfter: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	defer ns.Close()

	// A broker that says OK to a send and to anything else that the client may want to tell it.
	sends := make(chan string, 16)
	broker := remoting.NewServer(remoting.ServerOptions{Listener: bl, Handler: func(c *remoting.Conn, req *remoting.Command) {
		resp := remoting.NewResponse(remoting.Success, "")
		if req.Code == remoting.SendMessage || req.Code == remoting.SendMessageV2 {
			resp.Set("msgId", "7F00000100002A9F0000000000000000")
			resp.Set("queueId", "1")
			resp.Set("queueOffset", "7")
			select {
			case sends <- string(req.Body):
			default:
			}
		}
		c.Reply(req, resp)
	}})
	broker.Start()
	defer broker.Close()

	cl, err := remoting.Dial(t.Context(), nl.Addr().String(), remoting.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for _, b := range []struct{ addr, id string }{{bl.Addr().String(), "0"}, {"127.0.0.1:1", "2"}} {
		req := remoting.NewRequest(remoting.RegisterBroker)
		for _, f := range [][2]string{{"brokerName", "g1"}, {"brokerAddr", b.addr}, {"clusterName", "c1"}, {"haServerAddr", ""}, {"brokerId", b.id}, {namesrv.FieldGroupTerm, "4294967297"}} {
			req.Set(f[0], f[1])
		}
		req.Body = namesrv.RegisterBody{
			Version: namesrv.DataVersion{StateVersion: 4294967297},
			Topics:  []namesrv.TopicConfig{{Name: "orders", ReadQueues: 4, WriteQueues: 4, Perm: 6}, {Name: "TBW102", ReadQueues: 8, WriteQueues: 8, Perm: 7}},
		}.Encode()
		if resp, err := cl.Call(t.Context(), req); err != nil || resp.Code != remoting.Success {
			t.Fatalf("register: %v, %+v", err, resp)
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	resolver := primitive.NewPassthroughResolver([]string{nl.Addr().String()})
	adm, err := admin.NewAdmin(admin.WithResolver(resolver))
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	topics, err := adm.FetchAllTopicList(ctx)
	if err != nil || !slices.Equal(topics.TopicList, []string{"TBW102", "orders"}) {
		t.Fatalf("topic list: %+v, %v", topics, err)
	}
	queues, err := adm.FetchPublishMessageQueues(ctx, "orders")
	if err != nil || len(queues) != 4 || queues[3].BrokerName != "g1" || queues[3].QueueId != 3 {
		t.Fatalf("queues of orders: %+v, %v", queues, err)
	}
	clusters, err := adm.FetchClusterList("orders")
	if err != nil || !slices.Equal(clusters, []string{"c1"}) {
		t.Fatalf("clusters of orders: %v, %v", clusters, err)
	}
	if _, err := adm.FetchClusterList("nothing"); err == nil {
		t.Fatal("a topic that does not exist has a cluster")
	}

	p, err := producer.NewDefaultProducer(producer.WithNsResolver(resolver), producer.WithRetry(0), producer.WithGroupName("pg"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	defer p.Shutdown()
	// The second topic is new: the client takes the route of TBW102 for it.
	for _, topic := range []string{"orders", "fresh"} {
		res, err := p.SendSync(ctx, primitive.NewMessage(topic, []byte("to "+topic)))
		if err != nil || res.Status != primitive.SendOK || res.QueueOffset != 7 {
			t.Fatalf("send to %s: %+v, %v", topic, res, err)
		}
		select {
		case body := <-sends:
			if body != "to "+topic {
				t.Fatalf("the broker got %q", body)
			}
		case <-ctx.Done():
			t.Fatal("the broker got nothing")
		}
	}
}
