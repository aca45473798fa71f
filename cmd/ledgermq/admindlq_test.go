package main

import (
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// TestDeadLettersOfNobody holds that a consumer group that does not exist is refused, and one without dead letters is not.
func TestDeadLettersOfNobody(t *testing.T) {
	t.Parallel()
	ns := startCluster(t, func(req *remoting.Command) *remoting.Command {
		switch req.Code {
		case remoting.GetConsumerConnectionList:
			if req.GetOr("consumerGroup", "") == "connected" {
				return jsonAnswer(`{"connectionSet":[{"clientId":"c"}]}`)
			}
			return remoting.NewResponse(remoting.ConsumerNotOnline, "nobody")
		case remoting.QueryTopicsByConsumer:
			if req.GetOr("group", "") == "committed" {
				return jsonAnswer(`{"topicList":["Orders"]}`)
			}
			return jsonAnswer(`{"topicList":[]}`)
		case remoting.GetMinOffset, remoting.GetMaxOffset:
			resp := remoting.NewResponse(remoting.Success, "")
			resp.SetInt64("offset", 0)
			return resp
		}
		return nil
	}, "Orders", message.RetryTopic("retries"), message.DLQTopic("dead"))
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"list nobody", 1, "there is no consumer group nobody; `ledgermq admin consumer create nobody` makes it"},
		{"show nobody g1/0", 1, "there is no consumer group nobody"},
		{"resend nobody", 1, "there is no consumer group nobody"},
		{"list retries", 0, ""},
		{"list dead", 0, ""},
		{"list connected", 0, ""},
		{"list committed", 0, ""},
		{"resend dead", 0, "nothing matches"},
		{"resend dead g1/7 g2/0", 1, "consumer group dead has no dead letter g1/7, g2/0; `ledgermq admin dlq list dead` tells"},
		{"resend retries g1/7 --key k", 1, "no dead letter g1/7 that the other flags select"},
	} {
		code, _, errs := runTool(t, append(append([]string{"admin", "dlq"}, strings.Fields(tt.args)...), "--namesrv", ns)...)
		if code != tt.code || !strings.Contains(errs, tt.want) || tt.want == "" && errs != "" {
			t.Errorf("%s: exit code %d, want %d with %q:\n%s", tt.args, code, tt.code, tt.want, errs)
		}
	}
}

// TestMissingDeadLetters holds which of the named ones count as not there.
func TestMissingDeadLetters(t *testing.T) {
	t.Parallel()
	at := []client.DeadLetterName{{Group: "g1", Offset: 1}, {Group: "g1", Offset: 2}}
	seen := []deadView{{ID: "g1/1"}}
	for limit, want := range map[int]bool{0: true, 1: false, 2: true} {
		err := missingDeadLetters(&client.DeadLetterQuery{Group: "cg", At: at, Limit: limit}, seen)
		if (err != nil) != want || want && !strings.HasPrefix(err.Error(), "consumer group cg has no dead letter g1/2;") {
			t.Errorf("with a limit of %d: %v", limit, err)
		}
	}
	if err := missingDeadLetters(&client.DeadLetterQuery{At: at[:1]}, seen); err != nil {
		t.Error(err)
	}
}

// TestFailuresInARow holds that a resend goes on as long as something is sent from time to time.
func TestFailuresInARow(t *testing.T) {
	t.Parallel()
	start := time.Now()
	var f failures
	for i, try := range []struct {
		began, ended time.Duration
		failed, end  bool
	}{
		{0, time.Second, true, false},
		{time.Second, toolTimeout - 1, true, false},
		{toolTimeout, toolTimeout + 1, false, false},
		{toolTimeout + 1, 2 * toolTimeout, true, false},
		{2 * toolTimeout, 2*toolTimeout + 1, true, true},
		{2*toolTimeout + 1, 3 * toolTimeout, false, false},
		{3 * toolTimeout, 4 * toolTimeout, true, true}, // one alone
	} {
		if got := f.tooLong(try.failed, start.Add(try.began), start.Add(try.ended)); got != try.end {
			t.Errorf("try %d: the end is %v, want %v", i, got, try.end)
		}
	}
}
