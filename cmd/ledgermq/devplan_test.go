package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/internal/loopback"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// TestPlanHasNoCollisions lays out clusters of many shapes and looks for a port that two things have.
func TestPlanHasNoCollisions(t *testing.T) {
	t.Parallel()
	for _, base := range []int{0, 20000} {
		for _, nodes := range []int{1, 3, 5, 16} {
			for _, groups := range []int{1, 3, 64} {
				for _, controllers := range []int{1, 3} {
					p := devPlan{PortBase: base, Nodes: nodes, Groups: groups, Controllers: controllers, Namesrvs: 3, Mode: "1-1", SegmentSize: 64 << 20}
					if err := p.fill("/d"); err != nil {
						t.Fatal(err)
					}
					checkPlan(t, p)
				}
			}
		}
	}
}

func checkPlan(t *testing.T, p devPlan) {
	t.Helper()
	owner := make(map[int]string)
	take := func(port int, who string) {
		if port < p.PortBase || owner[port] != "" {
			t.Errorf("base %d, %d nodes: port %d of %s belongs to %s", p.PortBase, p.Nodes, port, who, owner[port])
		}
		owner[port] = who
	}
	for _, m := range p.Members {
		for name, port := range m.Ports {
			take(port, m.ID+" "+name)
		}
		if m.Role == "broker" {
			if m.Clients[1]-m.Clients[0]+1 < p.Groups {
				t.Errorf("%s has %v for %d groups", m.ID, m.Clients, p.Groups)
			}
			for port := m.Clients[0]; port <= m.Clients[1]; port++ {
				take(port, m.ID+" client")
			}
		}
	}
	want := p.PortBase
	if want == 0 {
		want = usualNamesrvPort
		if owner[usualBrokerPort] != "n1 client" {
			t.Errorf("port %d belongs to %q", usualBrokerPort, owner[usualBrokerPort])
		}
	}
	if owner[want] != "ns1 remoting" {
		t.Errorf("port %d belongs to %q, want the name server", want, owner[want])
	}
}

// TestPlanKeepsItsShape holds that a cluster's folder remembers what it was made with.
func TestPlanKeepsItsShape(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := devPlan{PortBase: 20000, Nodes: 5, Groups: 2, Controllers: 1, Namesrvs: 1, Mode: "2-3", SegmentSize: 64 << 20}
	if err := first.settle(dir, func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if err := first.save(dir); err != nil {
		t.Fatal(err)
	}
	again := devPlan{Nodes: 3, Groups: 3, Controllers: 1, Namesrvs: 1, Mode: "2-3", SegmentSize: 64 << 20}
	if err := again.settle(dir, func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("got %+v, want %+v", again, first)
	}
	other := devPlan{Nodes: 4, Groups: 2, Controllers: 1, Namesrvs: 1, Mode: "2-3", SegmentSize: 64 << 20}
	err := other.settle(dir, func(flag string) bool { return flag == "nodes" })
	if err == nil || !strings.Contains(err.Error(), "was made with 5") {
		t.Errorf("another shape was taken: %v", err)
	}

	name := filepath.Join(dir, devPlanName)
	if err := os.WriteFile(name, []byte(`{"version": 2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	err = again.settle(dir, func(string) bool { return false })
	if err == nil || !strings.Contains(err.Error(), name+" has version 2, this program knows 1") {
		t.Errorf("a plan of another version was taken: %v", err)
	}

	// What brokers create by themselves is part of it.
	dir = t.TempDir()
	first.setCreates("auto-create-topic", false)
	if err := first.save(dir); err != nil {
		t.Fatal(err)
	}
	again.setCreates("auto-create-group", false)
	if err := again.settle(dir, func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if again.creates("auto-create-topic") || !again.creates("auto-create-group") || fmt.Sprint(again.Extra) != "[--auto-create-topic=false]" {
		t.Errorf("flags of brokers: %v, want those of the folder, %v", again.Extra, first.Extra)
	}
	again.setCreates("auto-create-topic", true)
	err = again.settle(dir, func(flag string) bool { return flag == "auto-create-topic" })
	if err == nil || !strings.Contains(err.Error(), "was made with false") {
		t.Errorf("another --auto-create-topic was taken: %v", err)
	}
}

// TestDevRefusesForeignFolders holds that dev does not put its files among others.
func TestDevRefusesForeignFolders(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{devLockName, devLogName} { // what a cluster that never served leaves
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := checkForeign(dir); err != nil {
		t.Error(err)
	}
	if err := checkForeign(filepath.Join(dir, "absent")); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	code, _, stderr := runTool(t, "dev", "--data", dir)
	if code != 1 || !strings.Contains(stderr, dir) || !strings.Contains(stderr, "it has a, b, c, 2 more; use another --data folder") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 7 {
		t.Errorf("it changed the folder: %v, %v", entries, err)
	}
}

// TestRefusedStartsLeaveNothing holds that a start that is refused makes no folder, and that dev forgets a shape that never
// served.
func TestRefusedStartsLeaveNothing(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	dir := filepath.Join(top, "made", "here")
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	base := fmt.Sprint(busy.Addr().(*net.TCPAddr).Port - 2) // the controller's
	for _, args := range [][]string{
		{"broker", "--http", "", "--id", "n1", "--data", dir, "--controllers", "127.0.0.1:1", "--namesrv", "127.0.0.1:1", "--peer-listen", busy.Addr().String()},
		{"controller", "--http", "", "--data", dir, "--listen", "127.0.0.1:0"},
		{"server", "--http", "", "--roles", "controller,broker", "--broker-id", "n1", "--data", dir, "--controller-listen", "127.0.0.1:0", "--namesrv", "127.0.0.1:1"},
		{"dev", "--data", dir, "--port-base", base},
	} {
		code, _, stderr := runTool(t, args...)
		if code != 1 {
			t.Errorf("%v: exit code %d: %s", args, code, stderr)
		}
		if entries, err := os.ReadDir(top); err != nil || len(entries) > 0 {
			t.Errorf("%v left %v behind, %v", args, entries, err)
		}
	}
}

// asked is a context that tells when somebody waits for its end.
type asked struct {
	context.Context
	tell func()
}

func (a asked) Done() <-chan struct{} {
	a.tell()
	return a.Context.Done()
}

// TestDevLockIsAwaited holds that dev is not refused because somebody looks at the lock right now.
func TestDevLockIsAwaited(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	held, err := vfs.OS.Lock(filepath.Join(dir, devLockName))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockDev(t.Context(), dir); !errors.Is(err, vfs.ErrLocked) {
		t.Errorf("while it is held: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		// It looks at its context after a try in vain, and then the lock is given back.
		lock, err := lockDev(asked{t.Context(), sync.OnceFunc(func() { held.Close() })}, dir)
		if err == nil {
			err = lock.Close()
		}
		got <- err
	}()
	if err := <-got; err != nil {
		t.Errorf("it was held for a moment: %v", err)
	}
}

// TestPlanIsNew holds that a cluster with a replica is never taken for a new one, whatever its folder is called.
func TestPlanIsNew(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "[odd*", "n1")
	p := devPlan{Members: []devMember{{ID: "c1", Role: "controller"}, {ID: "n1", Role: "broker", Data: data}}}
	if !p.isNew() {
		t.Error("without a folder it is not new")
	}
	replica := filepath.Join(data, "groups", "ab")
	if err := os.MkdirAll(replica, 0o755); err != nil {
		t.Fatal(err)
	}
	if !p.isNew() {
		t.Error("without a replica it is not new")
	}
	if err := os.WriteFile(filepath.Join(replica, "replica.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if p.isNew() {
		t.Error("with a replica it is new")
	}
}

// TestNotReady holds what dev start reads from /readyz: whether what is missing can be brought about there.
func TestNotReady(t *testing.T) {
	t.Parallel()
	other, none := errors.New("no replica yet"), typedReady(fmt.Errorf("group g1: %w", broker.ErrNoMaster))
	lost := typedReady(fmt.Errorf("group g2: its replica here is %w: given up", broker.ErrLost))
	for _, c := range []struct {
		err  error
		want string
		word string
	}{
		{none, "not ready: no-master: group g1: no master known", noMasterWord},
		{lost, "not ready: lost: group g2: its replica here is lost: given up", lostWord},
		{errors.Join(none, none), "not ready: no-master: group g1: no master known; group g1: no master known", noMasterWord},
		{errors.Join(none, lost), "not ready: lost: group g1: no master known; group g2: its replica here is lost: given up", lostWord},
		{errors.Join(none, other), "not ready: group g1: no master known; no replica yet", ""},
		{typedReady(other), "not ready: no replica yet", ""},
	} {
		text := notReady(c.err)
		if text != c.want {
			t.Errorf("got %q, want %q", text, c.want)
		}
		got := fmt.Errorf("n1: not ready: %w", readyAnswer(text+"\n"))
		if word := elsewhere(got); word != c.word {
			t.Errorf("%q: %q, want %q", text, word, c.word)
		}
	}
}

// TestWaiting holds how long dev start waits for what a member cannot bring about: for each thing by itself, and not while it lacks
// something else.
func TestWaiting(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	w := waiting{now: func() time.Time { return now }}
	none, lost := &elsewhereError{noMasterWord, errors.New("no master")}, &elsewhereError{lostWord, errors.New("lost")}
	for i, step := range []struct {
		after time.Duration
		err   error
		over  bool
	}{
		{0, errors.New("opening"), false}, {time.Minute, errors.New("opening"), false},
		{0, none, false}, {4900 * time.Millisecond, none, false},
		{0, lost, false}, {2900 * time.Millisecond, lost, false}, {0, none, false},
		{4900 * time.Millisecond, none, false}, {100 * time.Millisecond, none, true},
		{0, lost, false}, {3 * time.Second, lost, true}, {0, nil, false},
	} {
		now = now.Add(step.after)
		if over := w.over(step.err); over != step.over {
			t.Errorf("step %d: %v, want %v", i, over, step.over)
		}
	}
}

// TestClientPortsAreKept holds that a replica has the same client port after a restart, that two never share one, and that a
// full range is refused.
func TestClientPortsAreKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	host := loopback.Host()
	free, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	first := free.Addr().(*net.TCPAddr).Port
	free.Close()
	addr := fmt.Sprintf("%s:%d-%d", host, first, first)
	open := func() *clientPorts {
		p, err := newClientPorts("", addr, "", dir, security{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := open()
	l, advertise, err := p.Listen("g1")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%s:%d", host, first); advertise != want {
		t.Errorf("advertised %s, want %s", advertise, want)
	}
	if _, _, err := p.Listen("g2"); err == nil || !strings.Contains(err.Error(), "widen the range") {
		t.Errorf("a second group in a range of one port: %v", err)
	}
	l.Close()
	p = open()
	if _, _, err := p.Listen("g2"); err == nil {
		t.Error("after a restart another group took the port of g1")
	}
	l, _, err = p.Listen("g1")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// TestClusterFileIsReplaced holds that changes by two processes do not lose each other.
func TestClusterFileIsReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := clusterFile{Version: 1, ClusterID: "x", Namesrv: []string{"127.0.0.1:1"}}
	for i := range 8 {
		f.Members = append(f.Members, clusterMember{ID: fmt.Sprintf("n%d", i), Role: "broker", Ports: map[string]int{}})
	}
	if err := f.write(dir); err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, len(f.Members))
	for i := range f.Members {
		go func() {
			errs <- changeClusterFile(dir, func(f *clusterFile) (bool, error) {
				f.Members[i].PID = i + 1
				return true, nil
			})
		}()
	}
	for range f.Members {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	got, err := readClusterFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range got.Members {
		if m.PID != i+1 {
			t.Errorf("member %d has pid %d: a change was lost", i, m.PID)
		}
	}
}
