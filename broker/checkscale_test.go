package broker

import (
	"context"
	"maps"
	"net"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/remoting"
)

// asked counts how often a producer was asked for each transaction.
type asked struct {
	mu    sync.Mutex
	times map[int64]int
	n     int
}

func (a *asked) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.n
}

// connection is a connection as a broker has it, and its other end, which counts what it is asked.
func (a *asked) connection(t *testing.T) (*remoting.Conn, *remoting.Client) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	opened := make(chan *remoting.Conn, 1)
	s := remoting.NewServer(remoting.ServerOptions{Listener: l, Handler: func(*remoting.Conn, *remoting.Command) {}, Opened: func(c *remoting.Conn) { opened <- c }})
	s.Start()
	t.Cleanup(func() { s.Close() })
	cl, err := remoting.Dial(t.Context(), l.Addr().String(), remoting.ClientOptions{Handler: func(_ *remoting.Conn, req *remoting.Command) {
		n, err := req.MustInt64("tranStateTableOffset")
		if req.Code != remoting.CheckTransactionState || err != nil {
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.times[n]++
		a.n++
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return <-opened, cl
}

// Fifty thousand transactions that nobody ends, of a hundred producer groups, one of which has nobody there and one nobody who hears:
// each of the others is asked for once before any is asked for again, also when those that were asked become due again meanwhile, in bounded
// rounds, those that have ended never, and all the checks that there ever are of it take less of the log than it does itself.
func TestChecksAtScale(t *testing.T) {
	t.Parallel()
	const (
		groups, each = 100, 500
		most         = 4096 // checks in a round
	)
	l := newTimerLoop(t)
	l.r.raft, l.r.ctx = new(raftlog.Group), context.Background()
	l.r.node.o.TransactionCheckInterval = time.Minute
	hears := &asked{times: map[int64]int{}}
	conn, _ := hears.connection(t)
	gone, end := hears.connection(t)
	end.Close()
	for deadline := time.Now().Add(10 * time.Second); gone.Push(remoting.NewRequest(1)) == nil; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("the broker does not see that a connection has ended")
		}
	}
	l.r.presence = newPresence[*remoting.Conn]()
	for i := range groups - 1 { // the last one has nobody
		c := conn
		if i == groups-2 {
			c = gone
		}
		l.r.presence.heartbeat(c, clientInfo{}, HeartbeatData{ClientID: "c", ProducerDataSet: []ProducerData{{strconv.Itoa(i)}}}, l.r.now())
	}
	began := l.tail.Offset
	for i := range groups * each {
		s := &send{key: l.key, at: l.r.now(), half: &state.HalfPrefix{Group: strconv.Itoa(i % groups)}, whenDone: func(*Replica, outcome, *send) {}}
		rec := message.Record{Topic: message.HalfTopic, Body: []byte("x"), BornHost: l.r.storeHost, StoreHost: l.r.storeHost,
			Properties: "TRAN_MSG\x01true\x02UNIQ_KEY\x01" + strconv.Itoa(i) + "\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"}
		if _, err := l.r.encodeOne(s, &rec, false, true); err != nil {
			t.Fatal(err)
		}
		l.r.inbox.add(s)
		if i%each == each-1 {
			l.all()
		}
	}
	stored := l.tail.Offset - began
	if n, _ := l.r.st.PendingTransactions(); n != groups*each {
		t.Fatalf("%d are pending", n)
	}
	// round is a round of checks, which the loop runs beside.
	round := func() (checks int, err error) {
		t.Helper()
		before := hears.count()
		due := l.r.dueChecks()
		if len(due) > most {
			t.Fatalf("a round has %d checks, want at most %d", len(due), most)
		}
		done := make(chan error, 1)
		go func() { done <- l.r.checkDue() }()
		for ended := false; !ended; {
			select {
			case err = <-done:
				ended = true
			default:
				l.all()
				runtime.Gosched()
			}
		}
		deaf := 0
		for i := range due {
			if due[i].Group == strconv.Itoa(groups-2) {
				deaf++
			}
		}
		for deadline := time.Now().Add(30 * time.Second); hears.count() < before+len(due)-deaf; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatalf("of %d checks %d came", len(due)-deaf, hears.count()-before)
			}
		}
		if (err != nil) != (deaf > 0) {
			t.Errorf("%d of the round's %d checks could not be sent, and it ended with %v", deaf, len(due), err)
		}
		return len(due), err
	}
	// again is how many transactions producers were asked for more than once.
	again := func() (n int) {
		hears.mu.Lock()
		defer hears.mu.Unlock()
		for _, times := range hears.times {
			if times > 1 {
				n++
			}
		}
		return n
	}
	began = l.tail.Offset
	checks := 0
	for left := (groups - 1) * each; left > 0; left -= most {
		n, _ := round()
		checks += n
		if want := max(0, most-left); n != most || again() > want {
			t.Fatalf("%d transactions were not asked for: a round had %d checks, and %d were asked for again, want %d and %d at most", left, n, again(), most, want)
		}
		l.now += time.Minute.Milliseconds() + 1 // each that was asked for is due again
	}
	if all := int64(l.tail.Offset-began) * state.MaxChecks * groups * each / int64(checks); all > int64(stored) {
		t.Errorf("%d checks take %d bytes of the log, the half messages %d", state.MaxChecks, all, stored)
	}
	if len(hears.times) != (groups-2)*each {
		t.Errorf("asked for %d transactions, want %d", len(hears.times), (groups-2)*each)
	}
	ended := map[int64]bool{}
	l.r.st.EachTransaction(func(x state.Transaction) {
		if x.Group == "0" {
			ended[int64(x.Number)] = true
		}
	})
	for n := range ended {
		l.end(ids.QueueOffset(n), state.RolledBack)
	}
	l.all()
	before := maps.Clone(hears.times)
	for n := 1; n > 0; {
		n, _ = round() // all are due
	}
	for n, times := range hears.times {
		if want := before[n] + 1; ended[n] && times != before[n] || !ended[n] && times != want {
			t.Fatalf("transaction %d, ended %v, was asked for %d times, %d of them before", n, ended[n], times, before[n])
		}
	}
	if n, gaveUp := l.r.st.PendingTransactions(); n != (groups-1)*each || gaveUp != 0 {
		t.Errorf("%d are pending, %d of them given up", n, gaveUp)
	}
}

// all runs the loop until nothing waits.
func (l *timerLoop) all() {
	for {
		if n, _ := l.r.inbox.waiting(); n == 0 && l.r.formed >= len(l.r.forming) {
			return
		}
		l.apply(l.form())
	}
}
