package main

import (
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// TestDeleteConsumerWithoutItsTopics holds that what was deleted is shown, and both topics are tried, when these cannot be deleted.
func TestDeleteConsumerWithoutItsTopics(t *testing.T) {
	t.Parallel()
	ns := startCluster(t, func(req *remoting.Command) *remoting.Command {
		switch req.Code {
		case remoting.GetSubscriptionGroupConfig:
			return jsonAnswer(`{"groupName":"cg","consumeEnable":true}`)
		case remoting.GetConsumeStats, remoting.GetTopicStatsInfo:
			return jsonAnswer(`{"offsetTable":{}}`)
		case remoting.QueryTopicConsumeByWho:
			return jsonAnswer(`{"groupList":[]}`)
		case remoting.GetConsumerConnectionList:
			return remoting.NewResponse(remoting.ConsumerNotOnline, "nobody")
		case remoting.DeleteSubscriptionGroup:
			return remoting.NewResponse(remoting.Success, "")
		case remoting.DeleteTopicInBroker:
			return remoting.NewResponse(remoting.SystemError, "not "+req.GetOr("topic", ""))
		}
		return nil
	}, message.RetryTopic("cg"), message.DLQTopic("cg"))
	code, out, errs := runTool(t, "admin", "consumer", "delete", "cg", "--topics", "--yes", "--namesrv", ns)
	retry, dead := strings.Index(errs, "not topic %RETRY%cg"), strings.Index(errs, "not topic %DLQ%cg")
	if code != 1 || !strings.Contains(out, "g1") || !strings.Contains(out, "ok") || retry < 0 || dead < retry {
		t.Errorf("exit code %d, %q and %q", code, out, errs)
	}
}
