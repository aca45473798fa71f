package tests

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/remoting"
	"github.com/ledgermq/ledgermq/tests/cluster"
)

// TestOperatorCommands holds what an operator's commands show, take and refuse of transactions, dead letters, topics and consumer groups.
func TestOperatorCommands(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 1})
	cl, err := client.New(c.Namesrv)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	o := &operator{t, c, cl}
	t.Run("transactions", func(t *testing.T) { o.in(t).transactions() })
	t.Run("topic", func(t *testing.T) { o.in(t).deleteTopic() })
	t.Run("reset", func(t *testing.T) { o.in(t).reset() })
	t.Run("consumers", func(t *testing.T) { o.in(t).consumers() })
	t.Run("dead letters", func(t *testing.T) { o.in(t).deadLetters() })
	t.Run("moved master", func(t *testing.T) { o.in(t).movedMaster() })
}

// operator runs commands as an operator does.
type operator struct {
	*testing.T
	c  *cluster.Cluster
	cl *client.Client
}

func (o *operator) in(t *testing.T) *operator { return &operator{t, o.c, o.cl} }

// ok runs an admin command that must succeed, and returns what it prints.
func (o *operator) ok(args ...string) string {
	o.Helper()
	out, err := o.c.Admin(within(o.T, time.Minute), args...)
	if err != nil {
		o.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

// refuses runs one that must end with an exit code and these words.
func (o *operator) refuses(code int, want string, args ...string) string {
	o.Helper()
	out, err := o.c.Admin(within(o.T, time.Minute), args...)
	refused(o.T, err, code, want)
	return out
}

// read reads what one prints as JSON.
func (o *operator) read(out string, into any) {
	o.Helper()
	if err := json.Unmarshal([]byte(out), into); err != nil {
		o.Fatalf("%v\n%s", err, out)
	}
}

// master returns the node of g1's living master, "" when there is none or it is not told.
func (o *operator) master() string {
	var list []groupInfo
	if err := o.c.AdminJSON(within(o.T, 20*time.Second), &list, "group", "list"); err != nil {
		o.Log(err)
		return ""
	}
	for _, g := range list {
		if g.Name == "g1" && g.Master != nil && g.Master.Live {
			return g.Master.Node
		}
	}
	return ""
}

// join makes a member of a consumer group. Each beat is a heartbeat to the master of that moment; leave ends its connections, as the test's end
// does.
func (o *operator) join(group, topic string) (beat func() error, leave func()) {
	wires := map[string]*remoting.Client{}
	leave = func() {
		for _, w := range wires {
			w.Close()
		}
		clear(wires)
	}
	o.Cleanup(leave)
	body := fmt.Appendf(nil, `{"clientID":"m1","consumerDataSet":[{"groupName":%q,"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",
		"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[{"topic":%q,"subString":"*","subVersion":1,"expressionType":"TAG"}]}]}`, group, topic)
	beat = func() error {
		node := o.master()
		if node == "" {
			return errors.New("there is no master")
		}
		member, err := o.c.Member(node)
		if err != nil {
			return err
		}
		ctx := within(o.T, 10*time.Second)
		addr := o.c.At(member.Ports["client:g1"])
		if w := wires[addr]; w == nil || w.Closed() {
			if w, err = remoting.Dial(ctx, addr, remoting.ClientOptions{}); err != nil {
				return err
			}
			wires[addr] = w
		}
		req := remoting.NewRequest(remoting.HeartBeat)
		req.Body = body
		resp, err := wires[addr].Call(ctx, req)
		if err == nil && resp.Code != remoting.Success {
			err = fmt.Errorf("a heartbeat: %+v", resp)
		}
		return err
	}
	return beat, leave
}

// A pending transaction is found by either id of its message. Of several that are named, one that has ended keeps none of the others from
// its end.
func (o *operator) transactions() {
	o.ok("topic", "create", "Pays", "--queues", "1")
	p := o.cl.Producer(client.InProducerGroup("pay"))
	var halves []client.Half
	for _, body := range []string{"one", "two", "three"} {
		h, err := p.SendHalf(within(o.T, time.Minute), client.Message{Topic: "Pays", Body: []byte(body)})
		if err != nil {
			o.Fatal(err)
		}
		halves = append(halves, h)
	}
	type tx struct {
		Group  string
		Number int64
		Body   []byte
	}
	for i, body := range []string{"one", "two"} {
		for _, id := range []string{halves[i].MessageID, halves[i].OffsetMessageID, strings.ToLower(halves[i].OffsetMessageID)} {
			var x tx
			o.read(o.ok("tx", "show", id, "--json"), &x)
			if x.Number != halves[i].Number || string(x.Body) != body {
				o.Errorf("%s: %+v, want number %d with %q", id, x, halves[i].Number, body)
			}
		}
	}
	name := func(h client.Half) string { return fmt.Sprintf("%s/%d", h.Group, h.Number) }
	o.refuses(1, `no pending transaction has the message id "nothing"`, "tx", "show", "nothing")
	o.refuses(2, "names no transaction", "tx", "show", "g1/x")
	o.ok("tx", "resolve", "commit", name(halves[0]), "--yes")
	o.refuses(1, "no pending transaction has the message id", "tx", "show", halves[0].MessageID)

	all := []string{"tx", "resolve", "rollback", name(halves[0]), name(halves[1]), "g9/0", name(halves[2]), "--json"}
	o.refuses(1, "say --yes to roll back 2 transactions", all...)
	var results []struct {
		Number int64
		Group  string
		OK     bool
		Error  string
	}
	o.read(o.refuses(1, "2 of 4 transactions did not end so", append(all, "--yes")...), &results)
	if len(results) != 4 || results[0].OK || !strings.Contains(results[0].Error, "it has ended, or never was") || !results[1].OK || results[2].OK ||
		!strings.Contains(results[2].Error, `does not know a broker group "g9"`) || !results[3].OK {
		o.Errorf("the results: %+v", results)
	}
	if out := o.ok("tx", "list", "--producer-group", "pay", "--json"); strings.TrimSpace(out) != "[]" {
		o.Errorf("these are pending: %s", out)
	}
}

// What dlq list shows of a dead letter's time, to the millisecond, is taken by --since and --until.
func (o *operator) deadLetters() {
	o.ok("topic", "create", "%DLQ%careful", "--queues", "1")
	if _, err := o.c.Run(within(o.T, time.Minute), "produce", "%DLQ%careful", "a", "b", "c", "--namesrv", o.c.Namesrv[0]); err != nil {
		o.Fatal(err)
	}
	list := func(args ...string) (ids, since []string) {
		o.Helper()
		var all []struct{ ID, StoredAt string }
		o.read(o.ok(append([]string{"dlq", "list", "careful", "--json"}, args...)...), &all)
		for _, d := range all {
			ids, since = append(ids, d.ID), append(since, d.StoredAt)
		}
		return ids, since
	}
	ids, since := list()
	if len(ids) != 3 {
		o.Fatalf("the dead letters: %v", ids)
	}
	later := 0 // those of the last one's time or later
	for _, at := range since {
		if stored, err := time.Parse("2006-01-02T15:04:05.000Z", at); err != nil {
			o.Errorf("a time without its milliseconds: %v", err)
		} else if last, err := time.Parse(time.RFC3339, since[2]); err == nil && !stored.Before(last) {
			later++
		}
	}
	from, _ := list("--since", since[2])
	until, _ := list("--until", since[2])
	if len(from) != later || len(until) != 3-later {
		o.Errorf("since %s: %v, until then: %v, of %v", since[2], from, until, since)
	}
	o.refuses(2, "2026-11-29T10:00:00.250Z", "dlq", "list", "careful", "--since", "yesterday")
}

// A topic with all its messages does not go before --yes is said: until then it is shown what would go.
func (o *operator) deleteTopic() {
	o.ok("topic", "create", "Going", "--queues", "2")
	if _, err := o.c.Run(within(o.T, time.Minute), "produce", "Going", "a", "b", "c", "--namesrv", o.c.Namesrv[0]); err != nil {
		o.Fatal(err)
	}
	if err := o.cl.CommitOffset(within(o.T, time.Minute), "reader", client.QueueRef{Group: "g1", Topic: "Going"}, 1); err != nil {
		o.Fatal(err)
	}
	var uses []client.TopicUse
	o.read(o.refuses(1, "nothing was changed: say --yes to delete topic Going with all its messages", "topic", "delete", "Going", "--json"), &uses)
	if len(uses) != 1 || uses[0].Group != "g1" || uses[0].Queues != 2 || uses[0].Messages != 3 || !slices.Equal(uses[0].ConsumerGroups, []string{"reader"}) {
		o.Errorf("what would go: %+v", uses)
	}
	if out := o.ok("topic", "show", "Going"); !strings.Contains(out, "all") {
		o.Errorf("the topic is still there, and shown is\n%s", out)
	}
	o.ok("topic", "delete", "Going", "--yes")
	o.refuses(1, "no such topic", "topic", "show", "Going")
	o.refuses(1, "no such topic", "topic", "delete", "Going")
}

// A reset in a topic that the group does not consume is refused, and names those that it does; --new is for a group that has not begun.
func (o *operator) reset() {
	for _, topic := range []string{"Read", "Unread"} {
		o.ok("topic", "create", topic, "--queues", "1")
		if _, err := o.c.Run(within(o.T, time.Minute), "produce", topic, "a", "b", "c", "--namesrv", o.c.Namesrv[0]); err != nil {
			o.Fatal(err)
		}
	}
	if err := o.cl.CommitOffset(within(o.T, time.Minute), "mover", client.QueueRef{Group: "g1", Topic: "Read"}, 1); err != nil {
		o.Fatal(err)
	}
	offset := func(group, topic string) (off ids.QueueOffset, found bool) {
		o.Helper()
		off, found, err := o.cl.CommittedOffset(within(o.T, time.Minute), group, client.QueueRef{Group: "g1", Topic: topic})
		if err != nil {
			o.Fatal(err)
		}
		return off, found
	}
	o.ok("consumer", "create", "mover")
	o.ok("consumer", "reset", "mover", "--topic", "Read", "--to", "last")
	if at, _ := offset("mover", "Read"); at != 3 {
		o.Errorf("after a reset to the end the group is at %d", at)
	}
	o.refuses(1, "consumer group mover does not consume topic Unread, it has no offset there and no member that subscribes to it; what it consumes: Read. Give --new",
		"consumer", "reset", "mover", "--topic", "Unread", "--to", "last")
	if at, found := offset("mover", "Unread"); found {
		o.Errorf("a refused reset has left the offset %d", at)
	}
	o.ok("consumer", "create", "starter")
	o.refuses(1, "what it consumes: none", "consumer", "reset", "starter", "--topic", "Unread", "--to", "2")
	o.ok("consumer", "reset", "starter", "--topic", "Unread", "--to", "2", "--new")
	if at, _ := offset("starter", "Unread"); at != 2 {
		o.Errorf("a group that has not begun would begin at %d, want 2", at)
	}
}

// The list has every consumer group, with what is known of it. One is deleted when nobody is there and --yes is said, with its offsets; its
// retry and dead-letter topics go with --topics alone.
func (o *operator) consumers() {
	o.ok("topic", "create", "Fruit", "--queues", "1")
	if _, err := o.c.Run(within(o.T, time.Minute), "produce", "Fruit", "a", "b", "c", "--namesrv", o.c.Namesrv[0]); err != nil {
		o.Fatal(err)
	}
	o.ok("consumer", "create", "eaters")
	o.ok("consumer", "create", "idlers", "--disabled")
	if err := o.cl.CommitOffset(within(o.T, time.Minute), "eaters", client.QueueRef{Group: "g1", Topic: "Fruit"}, 1); err != nil {
		o.Fatal(err)
	}
	o.ok("topic", "create", "%DLQ%eaters", "--queues", "1")
	if _, err := o.c.Run(within(o.T, time.Minute), "produce", "%DLQ%eaters", "bad", "--namesrv", o.c.Namesrv[0]); err != nil {
		o.Fatal(err)
	}
	type listed struct {
		Name            string
		Members, Topics []string
		Lag             *int64
		Disabled        bool
	}
	look := func(name string) (*listed, error) {
		var all []listed
		err := o.c.AdminJSON(within(o.T, time.Minute), &all, "consumer", "list")
		for i := range all {
			if all[i].Name == name {
				return &all[i], err
			}
		}
		return nil, err
	}
	find := func(name string) *listed {
		o.Helper()
		g, err := look(name)
		if err != nil {
			o.Fatal(err)
		}
		return g
	}
	members := func(name string, want int, err error) (bool, error) { // an error is one of this moment
		g, fault := look(name)
		if err = errors.Join(err, fault); err != nil {
			o.Log(err)
			return false, nil
		}
		return g != nil && len(g.Members) == want, nil
	}
	if g := find("eaters"); g == nil || g.Lag == nil || *g.Lag != 2 || !slices.Equal(g.Topics, []string{"Fruit"}) || len(g.Members) != 0 || g.Disabled {
		o.Errorf("the group that has an offset: %+v", g)
	}
	if g := find("idlers"); g == nil || g.Lag != nil || len(g.Topics) != 0 || !g.Disabled {
		o.Errorf("the group without one: %+v", g)
	}
	if g := find("TOOLS_CONSUMER"); g != nil {
		o.Errorf("a group of RocketMQ's tools: %+v", g)
	}

	o.refuses(1, "there is no consumer group nobody", "consumer", "delete", "nobody", "--yes")
	beat, leave := o.join("eaters", "Fruit")
	eventually(o.T, time.Minute, "a member", func() (bool, error) { return members("eaters", 1, beat()) })
	o.refuses(1, "consumer group eaters has 1 member, ", "consumer", "delete", "eaters", "--yes")
	leave()
	eventually(o.T, time.Minute, "the member's end", func() (bool, error) { return members("eaters", 0, nil) })

	var going struct {
		Topics      []string
		DeadLetters int64
	}
	o.read(o.refuses(1, "nothing was changed: say --yes to delete consumer group eaters", "consumer", "delete", "eaters", "--json"), &going)
	if !slices.Contains(going.Topics, "Fruit") || going.DeadLetters != 1 {
		o.Errorf("what would go: %+v", going)
	}
	if find("eaters") == nil {
		o.Error("the group went without --yes")
	}
	topics := func() string { return o.ok("topic", "list", "--all") }
	o.ok("consumer", "delete", "eaters", "--yes")
	if g := find("eaters"); g != nil {
		o.Errorf("a deleted group: %+v", g)
	}
	if _, found, err := o.cl.CommittedOffset(within(o.T, time.Minute), "eaters", client.QueueRef{Group: "g1", Topic: "Fruit"}); found || err != nil {
		o.Errorf("a deleted group has an offset: %v, %v", found, err)
	}
	if all := topics(); !strings.Contains(all, "%DLQ%eaters") || !strings.Contains(all, "%RETRY%eaters") {
		o.Errorf("the topics of the deleted group went without --topics:\n%s", all)
	}
	o.refuses(1, "there is no consumer group eaters", "consumer", "delete", "eaters", "--yes")
	o.ok("consumer", "delete", "eaters", "--topics", "--yes")
	if all := topics(); strings.Contains(all, "eaters") {
		o.Errorf("the topics of the deleted group are there:\n%s", all)
	}
}

// moveLine is a line of a log that tells of a master that moved by itself.
type moveLine struct {
	Level, Node, From, To, Reason, Message string
	Time                                   time.Time
}

// moves are these lines, of all logs from their beginning, by their text.
func (o *operator) moves() map[string]moveLine {
	o.Helper()
	logs, err := filepath.Glob(filepath.Join(o.c.Dir, "log", "*.log"))
	if err != nil || len(logs) == 0 {
		o.Fatalf("there are no logs: %v", err)
	}
	all := map[string]moveLine{}
	for _, name := range logs {
		text, err := os.ReadFile(name)
		if err != nil {
			o.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var l moveLine
			if json.Unmarshal([]byte(line), &l) == nil && l.Message == "the mastership moved by itself" {
				if all[line] = l; l.Level != "warn" || l.Node != l.To || l.Reason == "" {
					o.Errorf("the log says %s", line)
				}
			}
		}
	}
	return all
}

// With the log level that dev has by itself, the log has a line of a master that moved by itself, on the node that leads then, and none of
// one that an operator moved. On a busy machine one may move by itself at any time: then what was done says nothing, and is done again.
func (o *operator) movedMaster() {
	const tries = 3
	var told func() bool // of the operator's move, that it was by itself
	for try := 1; ; try++ {
		before, from := o.moves(), masterOf(o.T, o.c, "g1")
		to := map[string]string{"n1": "n2", "n2": "n3", "n3": "n1"}[from]
		o.ok("elect", "g1", "--node", to)
		now, end := masterOf(o.T, o.c, "g1"), time.Now()
		told = func() bool {
			for line, l := range o.moves() {
				if _, old := before[line]; !old && l.From == from && l.To == to && l.Time.Before(end) {
					return true
				}
			}
			return false
		}
		if now == to && !told() {
			break
		}
		if try == tries {
			o.Fatalf("an operator moved the master, and the log tells that it moved by itself: %v", o.moves())
		}
	}
	for try := 1; !o.killMaster(); try++ {
		if try == tries {
			o.Fatalf("the master had moved whenever it was to be killed: %v", o.moves())
		}
	}
	if told() {
		o.Errorf("the log tells of an operator's move that it was by itself: %v", o.moves())
	}
}

// killMaster kills the master and waits for the line that tells of its move. It returns false when the node was not the master any more.
func (o *operator) killMaster() (told bool) {
	before := o.moves()
	node := masterOf(o.T, o.c, "g1")
	kill(o.T, o.c, node)
	eventually(o.T, time.Minute, "a line of the move from "+node, func() (bool, error) {
		now := o.master()
		var last moveLine
		for line, l := range o.moves() {
			if _, old := before[line]; !old && l.From == node {
				told = true
			}
			if l.Time.After(last.Time) {
				last = l
			}
		}
		away := now != "" && now != node && last.To == now // the present master's move is told, and was from another node or before
		return told || away, nil
	})
	restart(o.T, o.c, node)
	return told
}
