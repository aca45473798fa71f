package tests

import (
	"strconv"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/remoting"
)

// failingMarks are the marks of the walk-through of messages that fail, wait or hang.
var failingMarks = map[string]func(w *walker, args []string){
	`(\S+) fails at (\S+), and gives (\S+) up`: func(w *walker, a []string) { failMessages(w, a[0], a[1], a[2]) },
	`a producer of (\S+) dies before it ends its transaction`: func(w *walker, a []string) {
		cl, err := client.New(w.c.Namesrv)
		w.must(err)
		defer cl.Close()
		_, err = cl.Producer(client.InProducerGroup(a[0])).SendHalf(within(w.t, time.Minute), client.Message{Topic: "Orders", Body: []byte("nine")})
		w.must(err)
	},
}

// failMessages hands back two messages of Orders as a member of a group does: the one with the key retry, to come again, and the one with the
// key dead, which is given up. Then it commits that it is past both, and waits until the dead letter can be listed.
func failMessages(w *walker, group, retry, dead string) {
	w.t.Helper()
	ctx := within(w.t, time.Minute)
	cl, err := client.New(w.c.Namesrv)
	w.must(err)
	defer cl.Close()
	master, err := w.c.Member(masterOf(w.t, w.c, "g1"))
	w.must(err)
	wire, err := remoting.Dial(ctx, w.c.At(master.Ports["client:g1"]), remoting.ClientOptions{})
	w.must(err)
	defer wire.Close()
	for key, level := range map[string]string{retry: "0", dead: "-1"} {
		found, err := cl.Find(ctx, client.Search{Topic: "Orders", By: client.ByKey, Word: key})
		w.must(err)
		if len(found) != 1 {
			w.t.Fatalf("%d messages have the key %s", len(found), key)
		}
		req := remoting.NewRequest(remoting.ConsumerSendMsgBack)
		req.Set("group", group)
		req.Set("offset", strconv.FormatInt(int64(found[0].PhysicalOffset), 10))
		req.Set("delayLevel", level)
		resp, err := wire.Call(ctx, req)
		w.must(err)
		if resp.Code != remoting.Success {
			w.t.Fatalf("hand back %s: code %d %q", key, resp.Code, resp.Remark)
		}
	}
	w.must(cl.CommitOffset(ctx, group, client.QueueRef{Group: "g1", Topic: "Orders", Queue: 0}, 2))
	eventually(w.t, time.Minute, "the dead letter", func() (bool, error) {
		n := 0
		err := cl.DeadLetters(ctx, client.DeadLetterQuery{Group: group}, func(*client.DeadLetter) error { n++; return nil })
		return n == 1, err
	})
}
