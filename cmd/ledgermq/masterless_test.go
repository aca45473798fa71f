package main

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/namesrv"
	"github.com/ledgermq/ledgermq/remoting"
)

// startNamesrv runs a name server; register tells it of a broker, as the broker would, whose address nobody needs when it is "".
func startNamesrv(t *testing.T) (ns string, register func(group, id, addr string, topics ...namesrv.TopicConfig)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := namesrv.New(namesrv.Options{Listener: l, ReadyAfter: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { _ = s.Close() })
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !s.Ready() {
		<-tick.C
	}
	ns = l.Addr().String()
	cl, err := remoting.Dial(t.Context(), ns, remoting.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return ns, func(group, id, addr string, topics ...namesrv.TopicConfig) {
		t.Helper()
		req := remoting.NewRequest(remoting.RegisterBroker)
		for _, f := range [][2]string{
			{"brokerName", group}, {"brokerAddr", firstNonEmpty(addr, "10.0.0.1:"+id+"1")}, {"clusterName", "c1"}, {"haServerAddr", ""}, {"brokerId", id}, {namesrv.FieldGroupTerm, "1"},
		} {
			req.Set(f[0], f[1])
		}
		req.Body = namesrv.RegisterBody{Version: namesrv.DataVersion{StateVersion: 1}, Topics: topics}.Encode()
		if resp, err := cl.Call(t.Context(), req); err != nil || resp.Code != remoting.Success {
			t.Fatalf("register %s: %v, %+v", group, err, resp)
		}
	}
}

// A topic that nobody may read is no reason to wait.
func TestConsumeOfWriteOnlyTopic(t *testing.T) {
	t.Parallel()
	ns, register := startNamesrv(t)
	register("g1", "0", "", namesrv.TopicConfig{Name: "In", ReadQueues: 4, WriteQueues: 4, Perm: 2})
	code, _, errs := runTool(t, "consume", "In", "--namesrv", ns)
	if want := "ledgermq: subscribe to In: it is not readable; `ledgermq admin topic create NAME --perm rw` makes it so\n"; code != 1 || errs != want {
		t.Errorf("exit code %d, %swant 1, %s", code, errs, want)
	}
}

// A group without a master is named where it may be why a topic is not known: its topics come from its master alone.
func TestGroupWithoutMaster(t *testing.T) {
	t.Parallel()
	ns, register := startNamesrv(t)
	for _, step := range []struct {
		do         func()
		want, none string
	}{
		{func() {}, "admin topic create NAME", "has no master"},
		{func() { register("g2", "2", "") }, "broker group g2 has no master", "admin topic create"},
		{func() { register("g3", "3", "") }, "broker groups g2, g3 have no master", "admin topic create"},
		{func() { register("g2", "0", ""); register("g3", "0", "") }, "admin topic create NAME", "no master"},
	} {
		step.do()
		for _, args := range [][]string{{"admin", "topic", "show", "orders"}, {"admin", "route", "orders"}} {
			code, _, errs := runTool(t, append(args, "--namesrv", ns)...)
			if code != 1 || !strings.Contains(errs, step.want) || strings.Contains(errs, step.none) {
				t.Errorf("%v: exit code %d, want one with %q and without %q:\n%s", args, code, step.want, step.none, errs)
			}
		}
	}
	register("g4", "1", "")
	if code, out, errs := runTool(t, "admin", "topic", "list", "--namesrv", ns); code != 0 || !strings.Contains(out, "TOPIC") || !strings.Contains(errs, "broker group g4 has no master") {
		t.Errorf("topic list: exit code %d\n%s\n%s", code, out, errs)
	}
}
