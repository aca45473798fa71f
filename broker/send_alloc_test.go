package broker

import (
	"testing"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// sendCommand is what a stock client sends for a message of 1 KiB.
func sendCommand() *remoting.Command {
	req := remoting.NewRequest(remoting.SendMessageV2)
	for _, f := range [][2]string{{"a", "producers"}, {"b", "T"}, {"c", "TBW102"}, {"d", "4"}, {"e", "0"}, {"f", "0"}, {"g", "1700000000000"}, {"h", "0"},
		{"i", "UNIQ_KEY\x017F000001000018B4AAC20000000000FF\x02WAIT\x01true\x02TAGS\x01a\x02"}, {"j", "0"}, {"k", "false"}, {"m", "false"}} {
		req.Set(f[0], f[1])
	}
	req.Body = make([]byte, 1024)
	return req
}

// round sends n messages in one frame.
func (l *loop) round(n int, req *remoting.Command, top *state.Topic) {
	for range n {
		s, err := parseSend(req)
		if err != nil {
			l.t.Fatal(err)
		}
		p, err := l.r.prepare(nil, req, &s, top, false)
		if err != nil {
			l.t.Fatal(err)
		}
		if !l.r.inbox.add(p) {
			l.t.Fatal("a master took no send")
		}
	}
	l.apply(l.form())
}

// The way of a message from its request to its answer makes no garbage of its own; what is left is a frame's, and the index's.
func TestSendAllocations(t *testing.T) {
	l := newLoop(t)
	top, _ := l.r.st.Topic("T")
	req := sendCommand()
	const n = 64
	l.round(n, req, &top)
	per := testing.AllocsPerRun(20, func() { l.round(n, req, &top) }) / n
	t.Logf("%.2f allocations per message", per)
	if per > 2 { // the race detector makes pools forget; without pools it is more than 3
		t.Errorf("a message costs %.2f allocations, want hardly any", per)
	}
}

func BenchmarkSend(b *testing.B) {
	l := newLoop(b)
	top, _ := l.r.st.Topic("T")
	req := sendCommand()
	b.ReportAllocs()
	b.SetBytes(int64(len(req.Body)))
	for range b.N {
		l.round(64, req, &top)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(64*b.N), "ns/msg")
}

// A retried or refused send must not leave anything of itself in the next one that uses its memory.
func TestSendMemoryIsClean(t *testing.T) {
	t.Parallel()
	l := newLoop(t)
	top, _ := l.r.st.Topic("T")
	for i := range 100 {
		req := sendCommand()
		req.Body = make([]byte, i*7%50)
		if i%3 == 0 {
			req.Set("i", "") // no unique key: the broker makes one
		}
		before := l.r.st.NextOffset(l.key)
		l.round(1+i%5, req, &top)
		if got := l.r.st.NextOffset(l.key); int(got-before) != 1+i%5 {
			t.Fatalf("round %d stored %d messages", i, got-before)
		}
		raw, err := l.r.idx.Get(l.key, before, 1, nil)
		if err != nil || len(raw) != 1 {
			t.Fatalf("round %d: %v %v", i, raw, err)
		}
		want := message.Record{Topic: "T", Body: req.Body, Properties: message.AppendProperty(req.GetOr("i", ""), message.KeyMsgRegion, defaultRegion)}
		if i%3 == 0 {
			continue
		}
		want.BornHost, want.StoreHost = l.r.bornHost(nil, req), l.r.storeHost
		if int(raw[0].Size) != want.Size() {
			t.Fatalf("round %d: a record of %d bytes, want %d", i, raw[0].Size, want.Size())
		}
	}
}
