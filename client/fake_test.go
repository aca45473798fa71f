package client

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/namesrv"
	"github.com/ledgermq/ledgermq/remoting"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// startNamesrv runs a real name server; stop may be called before the end of the test.
func startNamesrv(t *testing.T, change func(*namesrv.Options)) (addr string, stop func()) {
	t.Helper()
	o := namesrv.Options{Listener: listen(t), ReadyAfter: time.Millisecond}
	if change != nil {
		change(&o)
	}
	s, err := namesrv.New(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	stop = sync.OnceFunc(func() { _ = s.Close() })
	t.Cleanup(stop)
	return s.Addr().String(), stop
}

// fakeBroker is a replica of a group whose log lives in memory. Replicas that share a log stand for one group.
type fakeBroker struct {
	t     *testing.T
	group string
	addr  string
	log   *fakeLog
	srv   *remoting.Server
	stop  func()
	gone  chan struct{} // closed by stop

	mu    sync.Mutex
	hook  func(c *remoting.Conn, req *remoting.Command) bool // true: it has dealt with the request
	calls map[int32]int
	links []*remoting.Client // to name servers
}

type fakeLog struct {
	mu      sync.Mutex
	queues  map[string][][]byte // topic/queue → records
	physics ids.PhysicalOffset
	all     map[ids.PhysicalOffset][]byte
	offsets map[string]int64
	topics  map[string]string // created by 17: topic → read queues
	first   map[string]int64  // topic/queue → minimum offset
	grown   chan struct{}     // closed and replaced when something is stored
}

func newFakeLog() *fakeLog {
	return &fakeLog{
		queues: map[string][][]byte{}, all: map[ids.PhysicalOffset][]byte{}, offsets: map[string]int64{}, topics: map[string]string{},
		first: map[string]int64{}, grown: make(chan struct{}),
	}
}

func startBroker(t *testing.T, group string, log *fakeLog) *fakeBroker {
	t.Helper()
	l := listen(t)
	b := &fakeBroker{t: t, group: group, addr: l.Addr().String(), log: log, calls: map[int32]int{}, gone: make(chan struct{})}
	b.srv = remoting.NewServer(remoting.ServerOptions{Listener: l, Handler: b.handle, Workers: 64})
	b.srv.Start()
	b.stop = sync.OnceFunc(func() {
		close(b.gone)
		_ = b.srv.Close()
		for _, cl := range b.links {
			cl.Close()
		}
	})
	t.Cleanup(b.stop)
	return b
}

// register tells a name server what a broker of ours tells it.
func (b *fakeBroker) register(ns string, id ids.BrokerID, term ids.Term, topics ...namesrv.TopicConfig) {
	b.t.Helper()
	cl, err := remoting.Dial(b.t.Context(), ns, remoting.ClientOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	b.links = append(b.links, cl)
	b.t.Cleanup(cl.Close)
	req := remoting.NewRequest(remoting.RegisterBroker)
	for _, f := range [][2]string{
		{"brokerName", b.group}, {"brokerAddr", b.addr}, {"clusterName", "c1"}, {"haServerAddr", ""}, {"brokerId", strconv.Itoa(int(id))},
		{namesrv.FieldGroupTerm, strconv.FormatUint(uint64(term), 10)}, {namesrv.FieldControllers, "k1:1,k2:2"}, {namesrv.FieldClusterID, "id1"},
	} {
		req.Set(f[0], f[1])
	}
	req.Body = namesrv.RegisterBody{Version: namesrv.DataVersion{StateVersion: int64(term)}, Topics: topics}.Encode()
	if resp, err := cl.Call(b.t.Context(), req); err != nil || resp.Code != remoting.Success {
		b.t.Fatalf("register %s: %v, %+v", b.addr, err, resp)
	}
}

func topic(name string, queues int32) namesrv.TopicConfig {
	return namesrv.TopicConfig{Name: name, ReadQueues: queues, WriteQueues: queues, Perm: 6}
}

func (b *fakeBroker) setHook(h func(c *remoting.Conn, req *remoting.Command) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hook = h
}

// called returns how many requests of a code have come.
func (b *fakeBroker) called(code int32) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls[code]
}

func answerWith(code int32, remark string, fields ...string) func(*remoting.Conn, *remoting.Command) bool {
	return func(c *remoting.Conn, req *remoting.Command) bool {
		if req.Code != remoting.SendMessageV2 && req.Code != remoting.SendBatchMessage {
			return false
		}
		resp := remoting.NewResponse(code, remark)
		for i := 0; i < len(fields); i += 2 {
			resp.Set(fields[i], fields[i+1])
		}
		c.Reply(req, resp)
		return true
	}
}

func (b *fakeBroker) handle(c *remoting.Conn, req *remoting.Command) {
	b.mu.Lock()
	b.calls[req.Code]++
	hook := b.hook
	b.mu.Unlock()
	if hook != nil && hook(c, req) {
		return
	}
	if req.Code == remoting.PullMessage {
		c.Async(req, func(req *remoting.Command, p *remoting.Pending) { p.Answer(b.pull(req)) })
		return
	}
	c.Reply(req, b.answer(req.Clone()))
}

func (b *fakeBroker) answer(req *remoting.Command) *remoting.Command {
	l := b.log
	l.mu.Lock()
	defer l.mu.Unlock()
	ok := remoting.NewResponse(remoting.Success, "")
	queue := req.GetOr("topic", "") + "/" + req.GetOr("queueId", "")
	switch req.Code {
	case remoting.SendMessageV2, remoting.SendBatchMessage:
		return b.store(req)
	case remoting.GetMaxOffset:
		ok.SetInt64("offset", int64(len(l.queues[queue])))
	case remoting.GetMinOffset:
		ok.SetInt64("offset", l.first[queue])
	case remoting.SearchOffsetByTimestamp:
		at, _ := req.MustInt64("timestamp")
		n := slices.IndexFunc(l.queues[queue], func(rec []byte) bool {
			r, _, _ := message.Decode(rec)
			return r.StoreTime >= at
		})
		if n < 0 {
			n = len(l.queues[queue])
		}
		ok.SetInt64("offset", int64(n))
	case remoting.QueryConsumerOffset:
		off, found := l.offsets[req.GetOr("consumerGroup", "")+"@"+queue]
		if !found {
			return remoting.NewResponse(remoting.QueryNotFound, "not found")
		}
		ok.SetInt64("offset", off)
	case remoting.UpdateConsumerOffset:
		off, _ := req.MustInt64("commitOffset")
		l.offsets[req.GetOr("consumerGroup", "")+"@"+queue] = off
	case remoting.UpdateAndCreateTopic:
		l.topics[req.GetOr("topic", "")] = req.GetOr("readQueueNums", "")
	case remoting.DeleteTopicInBroker:
		delete(l.topics, req.GetOr("topic", ""))
	case remoting.UpdateAndCreateSubscriptionGroup:
		if !json.Valid(req.Body) {
			return remoting.NewResponse(remoting.SystemError, "no JSON")
		}
	case remoting.GetConsumerListByGroup:
		ok.Body = []byte(`{"consumerIdList":["` + b.group + `@1","all@1"]}`)
	case remoting.ViewMessageByID:
		off, _ := req.MustInt64("offset")
		rec, found := l.all[ids.PhysicalOffset(off)]
		if !found {
			return remoting.NewResponse(remoting.SystemError, "no message there")
		}
		ok.Body = rec
	default:
		return remoting.NewResponse(remoting.RequestCodeNotSupported, "")
	}
	return ok
}

// store appends a message or a batch; the log is locked.
func (b *fakeBroker) store(req *remoting.Command) *remoting.Command {
	l := b.log
	id, err := req.MustInt32("e")
	if err != nil {
		return remoting.NewResponse(remoting.SystemError, err.Error())
	}
	key := req.GetOr("b", "") + "/" + strconv.Itoa(int(id))
	items := []message.BatchItem{{Body: req.Body, Properties: req.GetOr("i", "")}}
	if req.Code == remoting.SendBatchMessage {
		items = items[:0]
		for it, err := range message.SplitBatch(req.Body) {
			if err != nil {
				return remoting.NewResponse(remoting.MessageIllegal, err.Error())
			}
			items = append(items, it)
		}
	}
	host := netip.MustParseAddrPort(b.addr)
	first := len(l.queues[key])
	var idList []string
	for _, it := range items {
		rec := message.Record{
			Topic: req.GetOr("b", ""), QueueID: ids.QueueID(id), QueueOffset: ids.QueueOffset(len(l.queues[key])), PhysicalOffset: l.physics,
			Body: it.Body, Properties: it.Properties, BornHost: host, StoreHost: host, BornTime: time.Now().UnixMilli(), StoreTime: time.Now().UnixMilli(),
		}
		bytes := rec.AppendTo(nil)
		l.queues[key] = append(l.queues[key], bytes)
		l.all[l.physics] = bytes
		idList = append(idList, message.OffsetMessageID(host, l.physics))
		l.physics += ids.PhysicalOffset(len(bytes))
	}
	close(l.grown)
	l.grown = make(chan struct{})
	ok := remoting.NewResponse(remoting.Success, "")
	ok.Set("msgId", strings.Join(idList, ","))
	ok.SetInt32("queueId", int32(id))
	ok.SetInt64("queueOffset", int64(first))
	return ok
}

// pull waits as long as it is asked to.
func (b *fakeBroker) pull(req *remoting.Command) *remoting.Command {
	key := req.GetOr("topic", "") + "/" + req.GetOr("queueId", "")
	from, _ := req.MustInt64("queueOffset")
	most, _ := req.MustInt64("maxMsgNums")
	wait, _ := req.MustInt64("suspendTimeoutMillis")
	deadline := time.NewTimer(time.Duration(wait) * time.Millisecond)
	defer deadline.Stop()
	for {
		b.log.mu.Lock()
		q, first, grown := b.log.queues[key], b.log.first[key], b.log.grown
		b.log.mu.Unlock()
		resp := remoting.NewResponse(remoting.Success, "")
		resp.SetInt64("minOffset", first)
		resp.SetInt64("maxOffset", int64(len(q)))
		resp.Set("suggestWhichBrokerId", "0")
		switch {
		case from < first:
			resp.Code = remoting.PullOffsetMoved
			resp.SetInt64("nextBeginOffset", first)
			return resp
		case from < int64(len(q)):
			to := min(from+most, int64(len(q)))
			for _, rec := range q[from:to] {
				resp.Body = append(resp.Body, rec...)
			}
			resp.SetInt64("nextBeginOffset", to)
			return resp
		}
		select {
		case <-grown:
		case <-b.gone:
			return remoting.NewResponse(remoting.ServiceNotAvailable, "closed")
		case <-deadline.C:
			resp.Code = remoting.PullNotFound
			resp.SetInt64("nextBeginOffset", from)
			return resp
		}
	}
}

// newClient makes a client with short waits.
func newClient(t *testing.T, ns []string, opts ...Option) *Client {
	t.Helper()
	c, err := New(ns, append([]Option{WithBackoff(time.Millisecond, 20*time.Millisecond)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// within returns a context for one step of a test.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until ok says true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("it did not come true in 20 s: %s", what)
		}
		<-tick.C
	}
}

const patience = 20 * time.Second
