package tests

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/remoting"
	"github.com/ledgermq/ledgermq/tests/cluster"
)

// TestBadInput sends what no client should to a broker and to the name server. Each gets the protocol's own code at once, or its
// connection is closed; a producer that sends all the while notices nothing, and what it stored is read back from every replica.
func TestBadInput(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 1})
	l := startLoad(t, c, "Innocent", 2)
	l.awaitMore(t, 20, 30*time.Second)
	master, err := c.Member(masterOf(t, c, "g1"))
	if err != nil {
		t.Fatal(err)
	}
	broker := c.At(master.Ports["client:g1"])
	for name, addr := range map[string]string{"broker": broker, "name server": c.Namesrv[0]} {
		badFrames(t, name, addr)
	}
	badRequests(t, broker)
	l.awaitMore(t, 100, 30*time.Second)
	l.noneFailed(t)
	l.check(t, c)
}

// badFrames are closed by the server, which must go on serving others.
func badFrames(t *testing.T, name, addr string) {
	t.Helper()
	frame := func(length, header uint32, rest string) []byte {
		b := binary.BigEndian.AppendUint32(nil, length)
		b = binary.BigEndian.AppendUint32(b, header)
		return append(b, rest...)
	}
	for what, bytes := range map[string][]byte{
		"a frame that is too long":           frame(1<<30, 10, ""),
		"a negative length":                  frame(0xffffffff, 10, ""),
		"a length of nothing":                frame(0, 0, ""),
		"a header longer than its frame":     frame(20, 100, strings.Repeat("x", 16)),
		"an unknown codec":                   frame(20, 7<<24|16, strings.Repeat("x", 16)),
		"a JSON header that is none":         frame(20, 16, strings.Repeat("x", 16)),
		"a binary header with lying lengths": frame(4+22, 1<<24|22, "\x00\x0a\x00\x01\xdf\x00\x00\x00\x01\x00\x00\x00\x00\x7f\xff\xff\xff\x00\x00\x00\x00\x00"),
		"plain HTTP":                         []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
	} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := conn.Write(bytes); err != nil {
			t.Errorf("%s, %s: %v", name, what, err)
		}
		if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s, %s: the connection was not closed within 10 s", name, what)
		}
		conn.Close()
	}
	// One that is half sent waits for its rest, and only its own connection does.
	half, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { half.Close() })
	half.Write(frame(1000, 10, "{"))
}

// badRequests are answered, and their connection goes on.
func badRequests(t *testing.T, addr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cl, err := remoting.Dial(ctx, addr, remoting.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	send := func(change func(req *remoting.Command)) *remoting.Command {
		req := remoting.NewRequest(remoting.SendMessageV2)
		for key, value := range map[string]string{
			"a": "p", "b": "Innocent", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0", "k": "false", "m": "false",
		} {
			req.Set(key, value)
		}
		req.Body = []byte("0:bad")
		change(req)
		return req
	}
	set := func(key, value string) *remoting.Command {
		return send(func(req *remoting.Command) { req.Set(key, value) })
	}
	pull := func(topic, queue string) *remoting.Command {
		req := remoting.NewRequest(remoting.PullMessage)
		for key, value := range map[string]string{
			"consumerGroup": "TOOLS_CONSUMER", "topic": topic, "queueId": queue, "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4",
			"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
		} {
			req.Set(key, value)
		}
		return req
	}
	for what, test := range map[string]struct {
		req   *remoting.Command
		codes []int32
	}{
		"an empty topic":                 {set("b", ""), []int32{remoting.InvalidParameter}},
		"a topic that is too long":       {set("b", strings.Repeat("x", 128)), []int32{remoting.InvalidParameter}},
		"a topic of other characters":    {set("b", "a b"), []int32{remoting.InvalidParameter}},
		"a reserved topic":               {set("b", "SCHEDULE_TOPIC_XXXX"), []int32{remoting.NoPermission}},
		"a queue that does not exist":    {set("e", "99"), []int32{remoting.InvalidParameter}},
		"a queue that is no number":      {set("e", "one"), []int32{remoting.SystemError, remoting.InvalidParameter}},
		"a number out of range":          {set("e", "99999999999999"), []int32{remoting.SystemError, remoting.InvalidParameter}},
		"a body that is too long":        {send(func(r *remoting.Command) { r.Body = make([]byte, 4<<20+1) }), []int32{remoting.MessageIllegal}},
		"properties that are too long":   {set("i", "k\x01"+strings.Repeat("v", 40000)+"\x02"), []int32{remoting.MessageIllegal}},
		"a delay that is no number":      {set("i", "DELAY\x01soon\x02"), []int32{remoting.MessageIllegal}},
		"a time that is too far away":    {set("i", "TIMER_DELAY_SEC\x0199999999\x02"), []int32{remoting.MessageIllegal}},
		"a delayed half message":         {set("i", "TRAN_MSG\x01true\x02DELAY\x013\x02"), []int32{remoting.MessageIllegal}},
		"a send without its topic":       {remoting.NewRequest(remoting.SendMessageV2), []int32{remoting.SystemError, remoting.InvalidParameter}},
		"a request that is not there":    {remoting.NewRequest(31999), []int32{remoting.RequestCodeNotSupported}},
		"a pull of no topic":             {pull("Nowhere", "0"), []int32{remoting.TopicNotExist}},
		"a pull of a queue out of range": {pull("Innocent", "99"), []int32{remoting.InvalidParameter}},
		"a pull with a negative queue":   {pull("Innocent", "-1"), []int32{remoting.InvalidParameter}},
	} {
		began := time.Now()
		resp, err := cl.Call(ctx, test.req)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		known := false
		for _, code := range test.codes {
			known = known || resp.Code == code
		}
		if !known || resp.Remark == "" || strings.Contains(resp.Remark, "\n") {
			t.Errorf("%s: code %d, want %v, and one line that says why: %q", what, resp.Code, test.codes, resp.Remark)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("%s: refused after %v", what, took)
		}
	}
	if resp, err := cl.Call(ctx, send(func(*remoting.Command) {})); err != nil || resp.Code != remoting.Success {
		t.Errorf("a good send on the same connection: %v %v", resp, err)
	}
}

// TestAutoCreateCanBeTurnedOff holds that then an unknown topic is refused with code 17, and one that was made by hand is served.
func TestAutoCreateCanBeTurnedOff(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 1, Args: []string{"--auto-create-topic=false", "--auto-create-group=false"}})
	ctx := within(t, time.Minute)
	cl, err := client.New(c.Namesrv)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	m := client.Message{Topic: "Wanted", Body: []byte("x")}
	if _, err := cl.Producer().Send(ctx, m); !errors.Is(err, client.ErrNotStored) || !errors.Is(err, client.ErrTopicNotFound) {
		t.Errorf("a send to an unknown topic: %v", err)
	}
	if _, err := c.Admin(ctx, "topic", "create", "Wanted", "--queues", "1"); err != nil {
		t.Fatal(err)
	}
	if _, err := cl.Producer().Send(ctx, m); err != nil {
		t.Errorf("a send to the topic that was made: %v", err)
	}
}
