package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/client"
)

// oneRun is held while a command line runs in this process: the library sets a help flag that all its apps share.
var oneRun sync.Mutex

// runTool runs one command line in this process.
func runTool(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	oneRun.Lock()
	defer oneRun.Unlock()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"ledgermq"}, args...), streams{in: strings.NewReader(""), out: &out, err: &errs})
	return code, out.String(), errs.String()
}

// TestBadInput holds that a command that makes no sense ends at once, with code 2 and one line that names the thing and the
// mend; and one that is refused with code 1.
func TestBadInput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	typo := filepath.Join(dir, "typo.yaml")
	if err := os.WriteFile(typo, []byte("brokr:\n  id: n1\nlisten-on: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "secret")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	broker := []string{"broker", "--http", "", "--id", "n1", "--data", dir, "--controllers", "127.0.0.1:1", "--namesrv", "127.0.0.1:1"}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"nonsense"}, 2, `no command "nonsense"`},
		{[]string{"admin", "topic", "nonsense"}, 2, `no command "nonsense"`},
		{[]string{"admin"}, 2, "which command"},
		{[]string{"dev", "--nodes", "many"}, 2, "invalid value"},
		{[]string{"dev", "--wheels", "4"}, 2, "wheels"},
		{[]string{"dev", "--flush", "async"}, 2, "--flush async is not there yet"},
		{[]string{"dev", "--flush", "never"}, 2, `--flush "never": use sync`},
		{[]string{"dev", "--mode", "3-2"}, 2, "want A-M"},
		{[]string{"dev", "--mode", "2-4"}, 2, "needs 4 nodes"},
		{[]string{"dev", "--nodes", "0"}, 2, "--nodes 0: use 1 to"},
		{[]string{"dev", "--groups", "1000"}, 2, "--groups 1000: use 1 to"},
		{[]string{"dev", "--min-isr", "4"}, 2, "--min-isr 4: mode 2-3 allows"},
		{[]string{"dev", "--mode", "1-3", "--min-isr", "2"}, 2, "--min-isr 2: mode 1-3 allows 1 to 1"},
		{[]string{"dev", "--port-base", "65530"}, 2, "--port-base 65530: the cluster needs"},
		{[]string{"dev", "--port-base", "0"}, 2, "--port-base 0: use"},
		{[]string{"dev", "--segment-size", "1000"}, 2, "use a power of two"},
		{[]string{"dev", "start"}, 2, "want the ID of a member"},
		{[]string{"dev", "start", "n1"}, 2, "--data"},
		{[]string{"dev", "start", "n1", "--data", dir}, 1, "not the folder of a dev cluster"},
		{[]string{"server", "--roles", "broker,cook"}, 2, `"cook" is not a role`},
		{[]string{"server", "--roles", "broker,broker"}, 2, "named twice"},
		{[]string{"server", "--roles", "broker"}, 2, "no data folder"},
		{[]string{"broker", "--http", "", "--data", dir}, 2, "no node id"},
		{append(slices.Clone(broker), "--listen", "127.0.0.1"), 2, "want HOST:PORT"},
		{append(slices.Clone(broker), "--listen", "127.0.0.1:20-10"), 2, "the first not above the last"},
		{append(slices.Clone(broker), "--listen", "0.0.0.0:20-30"), 2, "no cluster secret; give one with --secret-file"},
		{append(slices.Clone(broker), "--listen", "0.0.0.0:20-30", "--insecure"), 2, "say with --advertise which one"},
		{[]string{"server", "--http", "", "--roles", "broker", "--broker-id", "n1", "--data", dir, "--controllers", "127.0.0.1:1",
			"--namesrv", "127.0.0.1:1", "--broker-listen", "0.0.0.0:20-30", "--insecure"}, 2, "say with --broker-advertise which one"},
		{append(slices.Clone(broker), "--peer-listen", "0.0.0.0:0"), 2, "no cluster secret"},
		{append(slices.Clone(broker), "--peer-listen", "0.0.0.0:0", "--insecure"), 2, "which one others shall dial"},
		{append(slices.Clone(broker), "--peer-listen", busy.Addr().String()), 1, "the port is in use; end the process that has it"},
		{append(slices.Clone(broker), "--http", "127.0.0.1:99999"), 2, "0 to 65535"},
		{append(slices.Clone(broker), "--secret", "x", "--secret-file", empty), 2, "both given"},
		{append(slices.Clone(broker), "--secret-file", empty), 2, "is empty"},
		{append(slices.Clone(broker), "--log-level", "loud"), 2, "use debug, info, warn or error"},
		{[]string{"namesrv", "--http", "", "--listen", busy.Addr().String()}, 1, "the port is in use"},
		{[]string{"namesrv", "--http", "", "--listen", "0.0.0.0:0"}, 2, "no cluster secret"},
		{[]string{"namesrv", "--config", typo}, 2, "no such setting: listen-on, brokr"},
		{[]string{"namesrv", "--config", filepath.Join(dir, "absent.yaml")}, 2, "does not exist"},
		{[]string{"controller", "--http", "", "--data", dir, "--peers", "c1"}, 2, "want ID=HOST:PORT"},
		{[]string{"controller", "--http", "", "--data", filepath.Join(dir, "c1"), "--listen", "127.0.0.1:0"}, 1, "allow a new one with --bootstrap"},
		{[]string{"controller", "--http", "", "--data", filepath.Join(dir, "c2"), "--bootstrap", "--listen", "0.0.0.0:0", "--insecure"}, 2,
			"--advertise: the listener takes every address of this machine; say which one"},
		{[]string{"server", "--http", "", "--roles", "controller", "--data", filepath.Join(dir, "c2"), "--controller-bootstrap",
			"--controller-listen", "0.0.0.0:0", "--insecure"}, 2, "--controller-advertise: the listener takes every address"},
		{[]string{"controller", "--http", "", "--data", filepath.Join(dir, "c2"), "--listen", "127.0.0.1:0", "--peers", "c1=0.0.0.0:9"}, 2,
			"nobody can dial 0.0.0.0:9 of c1"},
		{[]string{"admin", "cluster", "--namesrv", "here"}, 2, `"here" is not HOST:PORT`},
		{[]string{"admin", "cluster", "extra"}, 2, "want no argument, got 1 argument"},
		{[]string{"admin", "cluster", "--namesrv", "127.0.0.1:1"}, 1, "does a name server run at 127.0.0.1:1?"},
		{[]string{"admin", "group", "create", "g1", "--mode", "2-3", "--on", "n1,n2"}, 2, "needs 3 nodes"},
		{[]string{"admin", "topic", "create", "a b"}, 2, "topic name"},
		{[]string{"admin", "topic", "create", "T", "--queues", "0"}, 2, "--queues 0: use 1 to"},
		{[]string{"admin", "topic", "create", "T", "--queues", "65537"}, 2, "--queues 65537: use 1 to 65536"},
		{[]string{"admin", "topic", "create", "T", "--perm", "x"}, 2, "use rw, r or w"},
		{[]string{"admin", "consumer", "reset", "G", "--topic", "T"}, 2, "where to? Give --to: first or earliest"},
		{[]string{"admin", "consumer", "reset", "G", "--topic", "T", "--to", "soon"}, 2, `--to "soon": use first or earliest`},
		{[]string{"admin", "consumer", "reset", "G", "--to", "first"}, 2, "which topic"},
		{[]string{"produce"}, 2, "want a topic"},
		{[]string{"produce", "a b", "x"}, 2, "topic name"},
		{[]string{"consume", "T", "--from", "middle"}, 2, "use first or last"},
		{[]string{"consume", "T", "--group", "a b"}, 2, "--group"},
		{[]string{"log", "verify"}, 2, "at least one folder"},
		{[]string{"log", "verify", filepath.Join(dir, "absent")}, 2, "does not exist"},
		{[]string{"log", "dump", dir}, 2, "no replica below"},
		{[]string{"log", "dump", dir, "--from", "-1"}, 2, "--from -1: indexes begin at 1"},
		{[]string{"log", "dump", dir, "--from", "0"}, 2, "--from 0: indexes begin at 1"},
		{[]string{"log", "dump", dir, "--count", "-1"}, 2, "--count -1 is negative"},
		{[]string{"bench", "produce", "--size", "9000000"}, 2, "a send carries at most"},
		{[]string{"config"}, 2, "which command's settings"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			code, _, stderr := runTool(t, c.args...)
			last := stderr[strings.LastIndex(strings.TrimSuffix(stderr, "\n"), "\n")+1:]
			if code != c.code || !strings.Contains(last, c.want) {
				t.Errorf("exit code %d, want %d; stderr:\n%s\nwant %q", code, c.code, stderr, c.want)
			}
			if !strings.HasPrefix(last, "ledgermq: ") {
				t.Errorf("the message is more than a line:\n%s", stderr)
			}
		})
	}
}

// TestFlagsAfterArguments holds that flags may stand anywhere.
func TestFlagsAfterArguments(t *testing.T) {
	t.Parallel()
	app := newApp(streams{}, false)
	for _, c := range []struct{ in, want string }{
		{"admin group create NAME --mode 2-3 --json", "admin group create --mode 2-3 --json -- NAME"},
		{"produce T --tag=a b -- --c", "produce --tag=a -- T b --c"},
		{"dev start n1 --data /d", "dev start --data /d -- n1"},
		{"dev --nodes 3", "dev --nodes 3"},
		{"consume -", "consume -- -"},
		{"config broker --id n1", "config broker --id n1"},
	} {
		got := flagsFirst(app, append([]string{"ledgermq"}, strings.Fields(c.in)...))
		if s := strings.Join(got[1:], " "); s != c.want {
			t.Errorf("%s: got %s, want %s", c.in, s, c.want)
		}
	}
}

// TestSettingsOrder holds that the command line goes before the environment, that before the file, that before the default,
// and that a section goes before the top of the file.
func TestSettingsOrder(t *testing.T) { // not parallel: it sets environment variables
	file := filepath.Join(t.TempDir(), "ledgermq.yaml")
	text := "log-level: debug\nnamesrv: [\"a:1\", \"b:2\"]\nid: nobody\nbroker:\n  id: n7\n  flush: sync\n  auto-create-topic: false\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LEDGERMQ_DATA", "/from/env")
	t.Setenv("LEDGERMQ_FLUSH", "env")
	t.Setenv("LEDGERMQ_CONFIG", file)
	code, out, stderr := runTool(t, "config", "broker", "--flush", "flag", "--secret", "hush")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	got := make(map[string]string)
	for _, line := range strings.Split(out, "\n") {
		if f := strings.Fields(line); len(f) > 1 {
			got[f[0]] = strings.Join(f[1:], " ")
		}
	}
	for name, want := range map[string]string{
		"id": "n7 file " + file, "data": "/from/env environment LEDGERMQ_DATA", "flush": "flag flag",
		"log-level": "debug file " + file, "namesrv": "a:1,b:2 file " + file, "auto-create-topic": "false file " + file,
		"log-format": "auto default", "secret": "(hidden) flag",
	} {
		if got[name] != want {
			t.Errorf("%s: got %q, want %q", name, got[name], want)
		}
	}
	if strings.Contains(out, "hush") {
		t.Error("the secret is printed")
	}
}

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

// TestNotReady holds what dev start reads from /readyz: whether masters are all that is missing.
func TestNotReady(t *testing.T) {
	t.Parallel()
	other, none := errors.New("no replica yet"), typedReady(fmt.Errorf("group g1: %w", broker.ErrNoMaster))
	for _, c := range []struct {
		err  error
		want string
		only bool
	}{
		{none, "not ready: no-master: group g1: no master known", true},
		{errors.Join(none, none), "not ready: no-master: group g1: no master known; group g1: no master known", true},
		{errors.Join(none, other), "not ready: group g1: no master known; no replica yet", false},
		{typedReady(other), "not ready: no replica yet", false},
	} {
		text := notReady(c.err)
		if text != c.want {
			t.Errorf("got %q, want %q", text, c.want)
		}
		got := fmt.Errorf("n1: not ready: %w", readyAnswer(text+"\n"))
		if onlyNoMaster(got) != c.only {
			t.Errorf("%q: masters only: %v", text, !c.only)
		}
	}
}

// TestClientPortsAreKept holds that a replica has the same client port after a restart, that two never share one, and that a
// full range is refused.
func TestClientPortsAreKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	first := free.Addr().(*net.TCPAddr).Port
	free.Close()
	addr := fmt.Sprintf("127.0.0.1:%d-%d", first, first)
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
	if want := fmt.Sprintf("127.0.0.1:%d", first); advertise != want {
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

// TestResetPlaces holds what --to of consumer reset means.
func TestResetPlaces(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	for text, want := range map[string]resetTarget{
		"first": {end: "first"}, "earliest": {end: "first"}, "last": {end: "last"}, "latest": {end: "last"},
		"0": {isOffset: true}, "999999999999": {isOffset: true, offset: 999999999999},
		"1795946400000": {at: at}, "2026-11-29T10:00:00Z": {at: at}, "2026-11-29T12:00:00+02:00": {at: at},
	} {
		got, err := parseResetTarget(text)
		if err != nil || got.end != want.end || got.isOffset != want.isOffset || got.offset != want.offset || !got.at.Equal(want.at) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"-1", "yesterday", "2026-11-29", "1e3"} {
		if got, err := parseResetTarget(text); err == nil {
			t.Errorf("%s is taken: %+v", text, got)
		}
	}
}

// TestFailuresAreToldOnce holds that a change which every broker group refuses for one reason is not told that often.
func TestFailuresAreToldOnce(t *testing.T) {
	t.Parallel()
	no := func(addr string) error { return &client.CodeError{Op: "X", Addr: addr, Code: 29, Remark: "no"} }
	var out bytes.Buffer
	tool := &tool{streams: streams{out: &out}}
	err := tool.reportGroups(cli.NewContext(cli.NewApp(), flag.NewFlagSet("", flag.ContinueOnError), nil),
		[]client.GroupResult{{Group: "g1", Err: no("a:1")}, {Group: "g2"}, {Group: "g3", Err: no("a:3")}, {Group: "g4", Err: client.ErrNoMaster}}, errors.New("all"))
	want := "failed in 3 of 4 broker groups: no (code 29); the broker group has no master"
	if err == nil || err.Error() != want || strings.Count(out.String(), "no (code 29)") != 2 {
		t.Errorf("got %v, want %s\n%s", err, want, out.String())
	}
}

// TestWaitingIsToldOnce holds what consume says while a group cannot be read: one line per change.
func TestWaitingIsToldOnce(t *testing.T) {
	t.Parallel()
	var errs bytes.Buffer
	tool := &tool{streams: streams{err: &errs}}
	told := map[string]string{}
	for _, w := range []map[string]error{
		{}, {"g1": client.ErrNoMaster}, {"g1": client.ErrNoMaster}, {"g1": fmt.Errorf("x: %w", client.ErrNoMaster), "g2": errors.New("broken")},
		{"g2": errors.New("broken")}, {}, {},
	} {
		told = tool.tellChanges(told, w)
	}
	want := "waiting: group g1 has no master\nwaiting: group g2: broken\ngoing on: group g1 is there again\ngoing on: group g2 is there again\n"
	if errs.String() != want {
		t.Errorf("got\n%swant\n%s", errs.String(), want)
	}
}

// TestVersion holds the JSON that docs/cli.md describes.
func TestVersion(t *testing.T) {
	t.Parallel()
	code, out, stderr := runTool(t, "version", "--json")
	var v map[string]any
	if err := json.Unmarshal([]byte(out), &v); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v: %s%s", code, err, out, stderr)
	}
	for _, key := range []string{"version", "revision", "go", "platform", "protocol"} {
		if v[key] == nil {
			t.Errorf("no %s in %s", key, out)
		}
	}
}

// TestServerServes runs every role in one process until it is told to end, and looks at its HTTP listener.
func TestServerServes(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it opens everything, and then ends at once
	oneRun.Lock()
	defer oneRun.Unlock()
	var out, errs bytes.Buffer
	code := run(ctx, []string{"ledgermq", "server", "--namesrv-listen", "127.0.0.1:0", "--controller-listen", freeAddr(t), "--controller-bootstrap",
		"--broker-id", "n1", "--broker-listen", "127.0.0.1:0", "--broker-peer-listen", "127.0.0.1:0",
		"--http", "127.0.0.1:0", "--data", t.TempDir()}, streams{in: strings.NewReader(""), out: &out, err: &errs})
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
