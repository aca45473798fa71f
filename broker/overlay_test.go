package broker

import (
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/remoting"
	"github.com/ledgermq/ledgermq/timer"
)

// loop is a replica without Raft, clients and node: the test is its loop goroutine.
type loop struct {
	t    testing.TB
	r    *Replica
	log  *commitlog.Log
	tail commitlog.Tail
	term ids.Term
	key  index.Key

	before []commitlog.Frame       // formed until the topic was there
	formed func(f commitlog.Frame) // sees each frame; may be nil
	clock  func() int64            // time of the next frame; nil: always 1000
}

func newLoop(t testing.TB) *loop {
	t.Helper()
	fs, dir := vfs.OS, t.TempDir()
	o := commitlog.Options{FS: fs, Dir: filepath.Join(dir, "log"), Cluster: ids.ClusterID(ids.NewUUID(nil)), Group: ids.GroupID(ids.NewUUID(nil)), SegmentSize: 16 << 20}
	if err := commitlog.Create(o, nil); err != nil {
		t.Fatal(err)
	}
	log, err := commitlog.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close(false) })
	idx, err := index.Open(index.Options{FS: fs, Dir: filepath.Join(dir, "index"), SegmentSize: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { idx.Close() })
	times := newTimers()
	if times.idx, err = timer.Open(timer.Options{FS: fs, Dir: filepath.Join(dir, timersDir)}); err != nil {
		t.Fatal(err)
	}
	times.whole.Store(true)
	t.Cleanup(func() { times.idx.Close() })
	n := &Node{o: NodeOptions{CheckpointBytes: 1 << 40, Clock: time.Now, ClusterName: "c"}, log: zerolog.Nop()}
	n.file.Level = controller.NewestLevel
	l := &loop{t: t, log: log, tail: log.Tail(), term: 1<<32 | 1}
	l.r = &Replica{node: n, group: "g", st: state.New(), idx: idx, timers: times, clog: log, holds: newHolds(), storeHost: netip.MustParseAddrPort("127.0.0.1:1"),
		presence: newPresence[*remoting.Conn]()}
	l.r.stats.open(time.Now())
	l.r.counters.open("g")
	l.formed = func(f commitlog.Frame) { l.before = append(l.before, f) }
	l.r.Role(raftlog.Role{Kind: raftlog.RoleMaster, Term: l.term})
	l.apply(l.form()) // what every new master proposes
	l.r.proposeNow(state.RecordTopicPut, state.AppendTopicPut(nil, state.Put, state.Topic{Name: "T", ReadQueues: 1, WriteQueues: 1, Perm: 6}))
	l.apply(l.form())
	top, found := l.r.st.Topic("T")
	if !found {
		t.Fatal("no topic")
	}
	l.formed = nil
	l.key = index.Key{Topic: top.ID}
	return l
}

// proposeNow enqueues a command as proposeCommand does, without a Raft group to wake.
func (r *Replica) proposeNow(kind uint8, body []byte) bool {
	return r.inbox.add(&command{kind: kind, body: body, at: r.now()})
}

// formed is a frame with its token, not yet committed.
type formed struct {
	frame commitlog.Frame
	token any
}

// builder is that of the next frame.
func (l *loop) builder() *commitlog.Builder {
	at := int64(1000)
	if l.clock != nil {
		at = l.clock()
	}
	return l.log.NewBuilder(l.tail, l.term, at)
}

func (l *loop) form() formed {
	l.t.Helper()
	b := l.builder()
	token := l.r.Form(b)
	if token == nil {
		l.t.Fatal("nothing was formed")
	}
	f := formed{b.Finish(), token}
	l.tail = l.tail.After(f.frame)
	if l.formed != nil {
		l.formed(f.frame)
	}
	return f
}

func (l *loop) apply(f formed) {
	l.t.Helper()
	if err := l.r.Apply(raftlog.Committed{Index: f.frame.Index(), Term: l.term, Time: f.frame.Time(), Frame: f.frame, Token: f.token}); err != nil {
		l.t.Fatal(err)
	}
	if f.token != nil {
		l.r.Acked(f.frame.Index())
	}
}

// send enqueues one message; its outcome comes over the channel.
func (l *loop) send() chan outcome {
	l.t.Helper()
	ch := make(chan outcome, 2) // a second answer would be seen
	s := &send{key: l.key, at: l.r.now(), whenDone: func(_ *Replica, o outcome, _ *send) { ch <- o }}
	if _, err := l.r.encodeOne(s, &message.Record{Topic: "T", Body: []byte("x"), BornHost: l.r.storeHost, StoreHost: l.r.storeHost}, false, true); err != nil {
		l.t.Fatal(err)
	}
	if !l.r.inbox.add(s) {
		l.t.Fatal("a master took no send")
	}
	return ch
}

func expect(t *testing.T, ch chan outcome, want outcome) {
	t.Helper()
	select {
	case o := <-ch:
		if o != want {
			t.Errorf("the outcome is %d, want %d", o, want)
		}
	default:
		t.Error("no outcome")
	}
	if len(ch) > 0 {
		t.Error("a second outcome")
	}
}

// A send that waits for its quorum too long is answered unknown, and is still in the log: what is formed after it must not get its
// queue offset again.
func TestOffsetsAfterAbandonedAsUnknown(t *testing.T) {
	t.Parallel()
	l := newLoop(t)
	first := l.send()
	a := l.form()
	l.r.Abandon(a.token, raftlog.Unknown)
	expect(t, first, outcomeUnknown)
	second := l.send()
	b := l.form()
	a.token = nil // as raftlog hands it out then
	l.apply(a)
	third := l.send()
	c := l.form()
	l.apply(b)
	l.apply(c)
	expect(t, second, outcomeOK)
	expect(t, third, outcomeOK)
	if next := l.r.st.NextOffset(l.key); next != 3 {
		t.Errorf("the queue ends at %d, want 3", next)
	}
}

// A frame that Raft did not take leaves no hole in the queue.
func TestOffsetsAfterAbandonedAsNotStored(t *testing.T) {
	t.Parallel()
	l := newLoop(t)
	first := l.send()
	a := l.form()
	second, tail := l.send(), l.tail
	b := l.form()
	l.r.Abandon(b.token, raftlog.NotStored)
	l.tail = tail
	expect(t, second, outcomeNotStored)
	third := l.send()
	c := l.form()
	l.apply(a)
	l.apply(c)
	expect(t, first, outcomeOK)
	expect(t, third, outcomeOK)
	if next := l.r.st.NextOffset(l.key); next != 2 {
		t.Errorf("the queue ends at %d, want 2", next)
	}
}

// add is put, where no Raft group has to be woken.
func (q *inbox) add(p proposal) bool {
	taken, _ := q.put(p)
	return taken
}
