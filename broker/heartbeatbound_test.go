package broker_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/remoting"
)

// A heartbeat that names too many groups or subscriptions, or one too many for its connection, is refused as a whole: nobody is a member
// by it, and no group is made.
func TestHeartbeatBounds(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	list := func(prefix string, first, n int, format string) string {
		var b bytes.Buffer
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, format, fmt.Sprintf("%s%d", prefix, first+i))
		}
		return b.String()
	}
	beat := func(producers, consumers string) []byte {
		return fmt.Appendf(nil, `{"clientID":"c1","producerDataSet":[%s],"consumerDataSet":[%s]}`, producers, consumers)
	}
	group, topic := `{"groupName":%q}`, `{"topic":%q,"subString":"*"}`
	refused := func(body []byte, says string) {
		t.Helper()
		if resp := w.call(remoting.HeartBeat, body); resp.Code != remoting.InvalidParameter || !strings.Contains(resp.Remark, says) {
			t.Errorf("code %d %q, want that it says %q", resp.Code, resp.Remark, says)
		}
	}
	refused(beat(list("p", 0, 1025, group), `{"groupName":"made"}`), "1025 producer groups")
	refused(beat(`{"groupName":"p0"}`, list("made", 0, 1025, group)), "1025 consumer groups")
	refused(beat(`{"groupName":"p0"}`, `{"groupName":"made","subscriptionDataSet":[`+list("T", 0, 1025, topic)+`]}`), `"made" has 1025 subscriptions`)
	w.ok(remoting.HeartBeat, beat(list("q", 0, 1000, group), ""))
	w.ok(remoting.HeartBeat, beat(list("q", 0, 1000, group), ""))
	refused(beat(list("p", 0, 25, group), `{"groupName":"made"}`), "would have 1025 producer groups")
	for _, name := range []string{"made", "made0"} {
		if resp := w.call(remoting.GetSubscriptionGroupConfig, nil, "group", name); resp.Code == remoting.Success {
			t.Errorf("group %s was made", name)
		}
	}
	if resp := w.call(remoting.GetProducerConnectionList, nil, "producerGroup", "p0"); resp.Code == remoting.Success {
		t.Errorf("p0 has a member: %s", resp.Body)
	}
	other := c.wire(c.master("g1"), "g1")
	other.ok(remoting.HeartBeat, beat(list("p", 0, 25, group), `{"groupName":"made","subscriptionDataSet":[`+list("T", 0, 1024, topic)+`]}`))
	other.ok(remoting.GetSubscriptionGroupConfig, nil, "group", "made")
}
