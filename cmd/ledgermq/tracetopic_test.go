package main

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ledgermq/ledgermq/remoting"
)

// A trace in a topic that does not exist says so, unless clients or what waits tell of that topic.
func TestTraceInUnknownTopic(t *testing.T) {
	t.Parallel()
	var waiting atomic.Value
	waiting.Store("")
	ns := startCluster(t, func(req *remoting.Command) *remoting.Command {
		switch req.Code {
		case remoting.QueryMessage:
			return remoting.NewResponse(remoting.QueryNotFound, "none")
		case remoting.ShowTimers:
			return jsonAnswer(`{"waiting":[` + waiting.Load().(string) + `]}`)
		}
		return nil
	}, "Orders")
	for _, tt := range []struct {
		topic, waiting string
		code           int
		want           string
	}{
		{"Nope", "", 1, "route of Nope: no such topic; `ledgermq admin topic create NAME` makes one"},
		{"Nope", `{"topic":"Orders"}`, 1, "route of Nope: no such topic"},
		{"Nope", `{"topic":"Nope"}`, 0, ""},
		{"Orders", "", 1, "no message of topic Orders has the unique id ID1"},
	} {
		waiting.Store(tt.waiting)
		code, _, errs := runTool(t, "admin", "trace", "ID1", "--topic", tt.topic, "--namesrv", ns)
		if code != tt.code || !strings.Contains(errs, tt.want) {
			t.Errorf("%s, %s waits: exit code %d, want %d with %s:\n%s", tt.topic, tt.waiting, code, tt.code, tt.want, errs)
		}
	}
}
