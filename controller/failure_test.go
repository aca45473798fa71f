package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/loopback"
	"github.com/ledgermq/ledgermq/raftlog"
)

// The leader is killed 50 times in the middle of a creation. Every creation ends whole, no replica id is given twice, and all
// controllers agree.
func TestLeaderKilledWhileCreating(t *testing.T) {
	t.Parallel()
	const kills = 50
	c := newCluster(t, 3, func(o *Options) { o.CompactEvery = 50 })
	for _, id := range []string{"n1", "n2", "n3"} {
		n := newNode(t, c, id)
		n.mustRegister()
		n.live()
	}
	admin := c.client()
	r := rand.New(rand.NewPCG(1, 2))
	for i := range kills {
		name := fmt.Sprintf("g%d", i)
		lead := c.leader()
		wait := time.Duration(r.IntN(6000)) * time.Microsecond
		var wg sync.WaitGroup
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if _, err := admin.CreateGroup(ctx, request(name, 2, 3, "n1", "n2", "n3")); err != nil {
				t.Errorf("creating %s: %v", name, err)
			}
		})
		timer := time.NewTimer(wait)
		<-timer.C
		c.stop(lead.ID())
		if i%2 == 0 { // every other time the rest goes on alone first
			c.leader()
		}
		c.start(lead.ID())
		wg.Wait()
	}
	var groups []*pb.Group
	eventually(t, "all groups ready", func() (err error) {
		if groups, err = admin.ListGroups(ctxFor(t)); err != nil {
			return err
		}
		for _, g := range groups {
			if g.GetState() != pb.GroupState_GROUP_STATE_READY {
				return fmt.Errorf("group %s waits for %v", g.GetName(), g.GetWaitingFor())
			}
		}
		return nil
	})
	if len(groups) != kills {
		t.Errorf("%d groups after %d creations", len(groups), kills)
	}
	owners := map[uint64]string{}
	for _, g := range groups {
		record, err := raftlog.DecodeEpochRecord(g.GetEpochRecord())
		if err != nil || len(record.Voters) != 3 || record.Epoch != 1 {
			t.Errorf("group %s: record %+v, %v", g.GetName(), record, err)
		}
		for _, rep := range g.GetReplicas() {
			if owner, taken := owners[rep.GetReplicaId()]; taken {
				t.Errorf("replica id %d belongs to %s and %s", rep.GetReplicaId(), owner, g.GetName())
			}
			owners[rep.GetReplicaId()] = g.GetName()
		}
	}
	c.agree(3)
}

// agree waits until n controllers have applied the same and have the same state.
func (c *cluster) agree(n int) []*pb.StatusResponse {
	c.t.Helper()
	client := c.client()
	var out []*pb.StatusResponse
	eventually(c.t, "the controllers agree", func() error {
		out = nil
		all, err := client.Status(ctxFor(c.t))
		if err != nil {
			return err
		}
		for _, m := range all {
			if m.Err == nil && m.Status.GetFailure() == "" {
				out = append(out, m.Status)
			}
		}
		if len(out) != n {
			return fmt.Errorf("%d of %d answer", len(out), n)
		}
		for _, m := range out[1:] {
			if m.GetApplied() != out[0].GetApplied() {
				return fmt.Errorf("%s has applied %d, %s %d", out[0].GetId(), out[0].GetApplied(), m.GetId(), m.GetApplied())
			}
			if string(m.GetStateHash()) != string(out[0].GetStateHash()) {
				c.t.Fatalf("%s and %s differ at %d", out[0].GetId(), m.GetId(), m.GetApplied())
			}
		}
		return nil
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, s := range c.up {
		if s.mismatches.Load() != 0 {
			c.t.Errorf("%s saw another state at an equal position", id)
		}
	}
	return out
}

// A controller that was away while the log was cut gets the state as a snapshot.
func TestSnapshotToOneThatWasAway(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(o *Options) { o.CompactEvery = 10 })
	lead := c.leader()
	away := "c1"
	if lead.ID() == away {
		away = "c2"
	}
	c.stop(away)
	for i := range 40 {
		newNode(t, c, fmt.Sprintf("n%d", i)).mustRegister()
	}
	if v := lead.view.Load(); v.first < 20 {
		t.Fatalf("the log still begins at %d", v.first)
	}
	c.start(away)
	c.agree(3)
	c.restart(away)
	c.agree(3)
}

func TestOneNodeIDTwice(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	n := newNode(t, c, "n1")
	n.mustRegister()
	n.mustRegister() // the same process again
	n.mustBeat()

	other := newNode(t, c, "n1") // other check code
	if _, err := other.register(ctxFor(t)); !errors.Is(err, ErrNodeConflict) || !strings.Contains(err.Error(), "n1") {
		t.Errorf("another node with the same id: %v", err)
	}
	if _, err := other.beat(ctxFor(t)); !errors.Is(err, ErrNodeConflict) {
		t.Errorf("its heartbeat: %v", err)
	}

	// A copy of the data folder, started while the first process lives.
	stop := n.live()
	clone := newNode(t, c, "n1")
	clone.code = n.code
	if _, err := clone.register(ctxFor(t)); !errors.Is(err, ErrNodeConflict) || !strings.Contains(err.Error(), "running already") {
		t.Errorf("a second process: %v", err)
	}
	if _, err := clone.beat(ctxFor(t)); !errors.Is(err, ErrUnregistered) {
		t.Errorf("a heartbeat of the second process: %v", err)
	}
	n.mustBeat()

	// The first one dies: the second one is taken, and the first one is told when it comes back.
	stop()
	clone.mustRegister()
	clone.mustBeat()
	if _, err := n.beat(ctxFor(t)); !errors.Is(err, ErrUnregistered) {
		t.Errorf("a heartbeat of the replaced process: %v", err)
	}
	clone.live()
	if _, err := n.register(ctxFor(t)); !errors.Is(err, ErrNodeConflict) {
		t.Errorf("the replaced process registers: %v", err)
	}

	foreign := newNode(t, c, "n7")
	_, err := foreign.client.RegisterNode(ctxFor(t), &pb.RegisterNodeRequest{NodeId: "n7", CheckCode: foreign.code[:], ClusterId: make([]byte, 16)})
	if !errors.Is(err, ErrNodeConflict) || !strings.Contains(err.Error(), "belongs to cluster") {
		t.Errorf("a node of another cluster: %v", err)
	}
}

// An old heartbeat that arrives late changes nothing.
func TestLateHeartbeat(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	n := newNode(t, c, "n1")
	n.mustRegister()
	if _, err := c.client().CreateGroup(ctxFor(t), request("g", 1, 1, "n1")); err != nil {
		t.Fatal(err)
	}
	n.mustBeat()
	n.mustBeat()
	late := n.request()
	late.Session, late.Sequence, late.Levels = n.client.session[:], n.client.beats.Add(1), OwnLevels().Wire()
	_, r := onlyReplica(t, n)
	n.mu.Lock()
	r.starts = 5
	n.mu.Unlock()
	n.mustBeat()
	conn, err := dialPeer(c.addrs["c1"], &secretCredentials{secret: c.secret})
	must(t, err)
	defer conn.Close()
	if _, err := pb.NewControllerClient(conn).Heartbeat(ctxFor(t), late); err != nil {
		t.Fatal(err)
	}
	g, err := c.client().GetGroup(ctxFor(t), "g")
	if err != nil || g.GetReplicas()[0].GetLost() != "" {
		t.Errorf("a late heartbeat made the replica lost: %v, %v", g, err)
	}
	// The same from a folder that was put back is a restored backup.
	n.mu.Lock()
	r.starts = 4
	n.mu.Unlock()
	if resp := n.mustBeat(); !strings.Contains(resp.GetReplicas()[0].GetLost(), "restored backup") || resp.GetReplicas()[0].GetStarts() != 5 {
		t.Errorf("a restored backup: %v", resp.GetReplicas()[0])
	}
}

// A wiped member is another one: it is refused with a clear message, does not vote, and the others go on.
func TestWipedMember(t *testing.T) {
	t.Parallel()
	for _, wiped := range []string{"c1", "c3"} { // c1 is the founder
		t.Run(wiped, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, nil)
			newNode(t, c, "n1").mustRegister()
			c.agree(3)
			c.stop(wiped)
			must(t, os.RemoveAll(c.dirs[wiped]))
			s := c.start(wiped)
			eventually(t, "the wiped member knows", func() error {
				if v := s.view.Load(); !strings.Contains(v.failure, wiped) || !strings.Contains(v.failure, "another identity") {
					return fmt.Errorf("failure %q", v.failure)
				}
				return nil
			})
			if s.Ready() == nil {
				t.Error("it says that it is ready")
			}
			c.agree(2)
			newNode(t, c, "n2").mustRegister()
			// Alone with it, a member of the old cluster must not lead.
			var rest []string
			for id := range c.dirs {
				if id != wiped {
					rest = append(rest, id)
				}
			}
			c.stop(rest[0])
			lone := dial(t, []string{c.addrs[rest[1]], c.addrs[wiped]}, c.secret, WithAttemptTimeout(200*time.Millisecond))
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if _, err := lone.ListNodes(ctx); !errors.Is(err, ErrUnavailable) {
				t.Errorf("one of three, with a wiped one, answers: %v", err)
			}
			c.start(rest[0])
			c.agree(2)
		})
	}
}

func TestFolders(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	c.leader()
	open := func(change func(*Options)) error {
		t.Helper()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		o := c.options("c1", l)
		change(&o)
		s, err := Open(o)
		if err == nil {
			s.Close()
		}
		if _, again := l.Accept(); again == nil {
			t.Error("the listener is still open")
		}
		return err
	}
	var folder *FolderError
	if err := open(func(*Options) {}); !errors.As(err, &folder) || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a folder in use: %v", err)
	}
	if err := open(func(o *Options) { o.Dir, o.Bootstrap = t.TempDir(), false }); !errors.As(err, &folder) || !strings.Contains(err.Error(), "--bootstrap") {
		t.Errorf("an empty folder without bootstrap: %v", err)
	}
	c.stop("c1")
	if err := open(func(o *Options) { o.ID, o.Peers = "c2", nil }); !errors.As(err, &folder) || !strings.Contains(err.Error(), "belongs to controller c1") {
		t.Errorf("another member's folder: %v", err)
	}
	if err := open(func(o *Options) { o.Peers = map[string]string{"c1": "h:1", "c2": "h:2", "c3": "h:3"} }); !errors.As(err, &folder) || !strings.Contains(err.Error(), "founded by the controllers c1") {
		t.Errorf("other members: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	if err := open(func(o *Options) { o.Dir = file }); !errors.As(err, &folder) {
		t.Errorf("a file in the place of the folder: %v", err)
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	t.Parallel()
	_, err := Open(Options{ID: "a b", Peers: map[string]string{"c1": "h:1", "c2": "h:1"}, ElectionTicks: 1})
	for _, want := range []string{"data folder", `"a b"`, "listener", "want 1, 3 or 5", "same address", "election ticks"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %q", err, want)
		}
	}
	l := remoteListener{}
	_, err = Open(Options{Dir: t.TempDir(), ID: "c1", Listener: l, Bootstrap: true})
	if err == nil || !strings.Contains(err.Error(), "without a cluster secret") {
		t.Errorf("a listener beyond loopback without a secret: %v", err)
	}
}

type remoteListener struct{}

func (remoteListener) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (remoteListener) Close() error              { return nil }
func (remoteListener) Addr() net.Addr            { return &net.TCPAddr{IP: net.IPv4(0, 0, 0, 0), Port: 1} }

func TestSecrets(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	c.leader()
	open := &cluster{t: t, dirs: map[string]string{"c1": t.TempDir()}, up: map[string]*Server{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	open.addrs = map[string]string{"c1": l.Addr().String()}
	open.startOn("c1", l)
	t.Cleanup(func() { open.stop("c1") })
	for _, test := range []struct {
		name   string
		addr   string
		secret string
		ok     bool
	}{
		{"right", c.addrs["c1"], "a secret", true},
		{"wrong", c.addrs["c1"], "another", false},
		{"none", c.addrs["c1"], "", false},
		{"none needed", open.addrs["c1"], "", true},
		{"not expected", open.addrs["c1"], "a secret", false},
	} {
		client := dial(t, []string{test.addr}, []byte(test.secret))
		_, err := client.Members(ctxFor(t)) // a refusal comes at once, long before the context ends
		if test.ok != (err == nil) || !test.ok && !errors.Is(err, ErrSecret) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	// Bytes of another protocol close the connection at once.
	conn, err := net.Dial("tcp", c.addrs["c1"])
	must(t, err)
	defer conn.Close()
	conn.Write([]byte("GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n"))
	must(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	if n, err := conn.Read(make([]byte, 10)); err == nil {
		t.Errorf("%d bytes for a stranger", n)
	}
	// Who cannot prove the secret gets nothing that was made with it.
	stranger, err := net.Dial("tcp", c.addrs["c1"])
	must(t, err)
	defer stranger.Close()
	stranger.Write(append([]byte(handshakeMagic), handshakeVersion, 1))
	stranger.Write(make([]byte, 32+32)) // a nonce, and a proof that is none
	must(t, stranger.SetReadDeadline(time.Now().Add(10*time.Second)))
	if got, err := io.ReadAll(stranger); err != nil || len(got) != 4+2+32+1 || got[5] != statusOK || got[38] != statusSecret {
		t.Errorf("a stranger gets %x, %v; want a nonce and a refusal", got, err)
	}
	// A server that only says that it is one is no controller.
	near, far := net.Pipe()
	defer near.Close()
	must(t, near.SetDeadline(time.Now().Add(10*time.Second)))
	go func() {
		defer far.Close()
		io.ReadFull(far, make([]byte, 4+2+32))
		far.Write(append(append([]byte(handshakeMagic), handshakeVersion, statusOK), make([]byte, 32)...))
		io.ReadFull(far, make([]byte, 32))
		far.Write(append([]byte{statusOK}, make([]byte, 32)...))
	}()
	if err := (&secretCredentials{secret: []byte("a secret")}).clientHandshake(near); !errors.Is(err, ErrSecret) {
		t.Errorf("a server without the secret: %v", err)
	}
	// Without a secret a peer beyond loopback is refused.
	a, b := net.Pipe()
	defer a.Close()
	server := &secretCredentials{}
	refused := make(chan error, 1)
	go func() {
		_, _, err := server.ServerHandshake(remoteConn{b})
		refused <- err
	}()
	if err := (&secretCredentials{}).clientHandshake(a); !errors.Is(err, ErrSecret) {
		t.Errorf("client beyond loopback: %v", err)
	}
	if err := <-refused; !errors.Is(err, ErrSecret) {
		t.Errorf("server: %v", err)
	}
}

type remoteConn struct{ net.Conn }

func (remoteConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }

// blackHole takes connections and never answers.
func blackHole(t *testing.T) string {
	t.Helper()
	var conns []net.Conn
	t.Cleanup(func() { // after the last one was taken
		for _, conn := range conns {
			conn.Close()
		}
	})
	return accept(t, "127.0.0.1:0", func(conn net.Conn) { conns = append(conns, conn) })
}

// accept gives take what connects to addr, one after the other, until the test ends. It returns the address.
func accept(t *testing.T, addr string, take func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			take(conn)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().String()
}

// Black-holed and dead controllers cost a call its time at most; the living one is found and kept.
func TestDeadControllers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	c.leader()
	holes := []string{blackHole(t), blackHole(t), "127.0.0.1:1"}

	client := dial(t, append(holes, c.addrs["c1"]), c.secret)
	if _, err := client.Members(ctxFor(t)); err != nil {
		t.Fatal(err)
	}
	if queue, err := client.round(); err != nil || queue[0].addr != c.addrs["c1"] { // it goes there at once now
		t.Errorf("the next call begins with %v, %v", queue[0].addr, err)
	}

	only := dial(t, holes, c.secret)
	began := time.Now()
	short, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err := only.Members(short)
	if took := time.Since(began); !errors.Is(err, ErrUnavailable) || took > 3*time.Second {
		t.Fatalf("dead controllers only: %v after %v", err, took)
	}
	named := slices.ContainsFunc(holes, func(h string) bool { return strings.Contains(err.Error(), h) })
	if strings.Contains(err.Error(), "\n") || !named {
		t.Errorf("the error does not name an address in one line: %v", err)
	}
	must(t, only.Close())
	if _, err := only.Members(ctxFor(t)); !errors.Is(err, ErrClosed) {
		t.Errorf("after close: %v", err)
	}
	if _, err := Dial(nil, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("no address: %v", err)
	}
	if _, err := Dial([]string{"nowhere"}, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("a bad address: %v", err)
	}
}

// A client that knows one follower finds the leader, and the next one when that dies.
func TestFollowTheLeader(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	lead := c.leader()
	var follower string
	for id := range c.addrs {
		if id != lead.ID() {
			follower = id
		}
	}
	client := dial(t, []string{c.addrs[follower]}, c.secret)
	m, err := client.Members(ctxFor(t))
	if err != nil || len(m.GetMembers()) != 3 || len(m.GetClusterId()) != 16 {
		t.Fatalf("members %v, %v", m, err)
	}
	if got := client.Addresses(); len(got) != 3 {
		t.Errorf("the client knows %v", got)
	}
	c.stop(lead.ID())
	if _, err := client.Members(ctxFor(t)); err != nil {
		t.Error(err)
	}
}

// With most controllers away nothing is answered as if it were certain, and everything goes on when they are back.
func TestNoQuorum(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	n := newNode(t, c, "n1")
	n.mustRegister()
	lead := c.leader()
	var others []string
	for id := range c.dirs {
		if id != lead.ID() {
			others = append(others, id)
		}
	}
	for _, id := range others {
		c.stop(id)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 600*time.Millisecond)
	defer cancel()
	if _, err := c.client().ListNodes(ctx); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a minority answers: %v", err)
	}
	for _, id := range others {
		c.start(id)
	}
	n.mustBeat()
	nodes, err := c.client().ListNodes(ctxFor(t))
	if err != nil || len(nodes) != 1 || nodes[0].GetNodeId() != "n1" {
		t.Errorf("nodes %v, %v", nodes, err)
	}
}

// A member whose disk fails takes no part; the others go on.
func TestDiskFails(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	lead := c.leader()
	must(t, lead.store.db.Close())
	newNode(t, c, "n1").mustRegister()
	eventually(t, "it says that it failed", func() error {
		if lead.view.Load().failure == "" {
			return errors.New("no failure is shown")
		}
		return nil
	})
	c.agree(2)
}

// Close ends calls that wait, with or without Start, any number of times.
func TestClose(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s, err := Open(Options{Dir: t.TempDir(), ID: "c1", Listener: l, Bootstrap: true})
	must(t, err)
	must(t, s.Close())
	must(t, s.Close())
	s.Start()

	c := newCluster(t, 3, nil)
	lead := c.leader()
	n := newNode(t, c, "n1")
	n.mustRegister()
	n.mustBeat()
	clone := newNode(t, c, "n1")
	clone.code = n.code
	errs := make(chan error, 1)
	go func() {
		_, err := clone.register(ctxFor(t))
		errs <- err
	}()
	c.stop(lead.ID())
	if err := <-errs; err != nil && !errors.Is(err, ErrNodeConflict) {
		t.Errorf("a call through the death of the leader: %v", err)
	}
}

// What a controller that cannot be reached means is said in words, not in those of the transport.
func TestUnreachableIsSaidPlainly(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", loopback.Host()+":0")
	must(t, err)
	addr := l.Addr().String()
	must(t, l.Close())
	client := dial(t, []string{addr}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = client.ListNodes(ctx)
	if want := "no controller available: " + addr + ": "; err == nil || err.Error() != want+"connection refused" && err.Error() != want+"no answer in time" {
		t.Errorf("got %v, want %s and one reason", err, want)
	}
	members, err := client.Status(ctxFor(t))
	must(t, err)
	if got := members[0].Err; got == nil || got.Error() != "connection refused" {
		t.Errorf("the member's state: %v", got)
	}
}
