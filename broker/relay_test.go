package broker_test

import (
	"testing"

	"github.com/ledgermq/ledgermq/remoting"
)

// Requests that wait for members which do not answer have a bound of their own: those beyond it are refused at once, and all others are
// served.
func TestRelaysHaveABound(t *testing.T) {
	t.Parallel()
	const bound, all = 32, 48
	c := newCluster(t, "g1")
	master := c.master("g1")
	w := c.wire(master, "g1")
	w.topic("T", 1)
	silent := make(chan struct{})
	m := c.member(master, "g1", func(req *remoting.Command) *remoting.Command {
		if req.Code == remoting.GetConsumerRunningInfo || req.Code == remoting.GetConsumerStatusFromClient {
			<-silent
		}
		return remoting.NewResponse(remoting.Success, "")
	})
	m.join("c1", "cg", "CLUSTERING", "T", "*")
	answers := make(chan *remoting.Command, all)
	for i := range all {
		code, fields := remoting.GetConsumerRunningInfo, []string{"consumerGroup", "cg", "clientId", "c1"}
		if i%2 == 0 {
			code, fields = remoting.InvokeBrokerToGetConsumerStatus, []string{"topic", "T", "group", "cg"}
		}
		answer := w.start(code, nil, fields...)
		go func() { answers <- <-answer }()
	}
	for range all - bound {
		if resp := <-answers; resp.Code != remoting.SystemBusy {
			t.Errorf("a request beyond the bound: code %d %q", resp.Code, resp.Remark)
		}
	}
	w.ok(remoting.GetMaxOffset, nil, "topic", "T", "queueId", "0")
	close(silent)
	for range bound {
		if resp := <-answers; resp.Code != remoting.Success {
			t.Errorf("a request within the bound: code %d %q", resp.Code, resp.Remark)
		}
	}
	w.ok(remoting.GetConsumerRunningInfo, nil, "consumerGroup", "cg", "clientId", "c1")
}
