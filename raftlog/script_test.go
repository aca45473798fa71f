package raftlog_test

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/sim"
)

// TestScripts runs the stories in testdata/scripts. Each file is one world of replicas; its commands say what happens, and the
// output what the replicas did. Nothing happens by itself but what a command asks for. Commands:
//
//	nodes 1 2 3                    machines with empty logs
//	one-frame                      replicas that open from now on put one frame into a message
//	record epoch=1 a=2 voters=1,2,3 learners=…   the controller issues a record
//	open 1 2 3 [record=1]          starts machines, with a record from the controller
//	adopt 1 record=2               the controller hands a record out
//	campaign 1                     a named election
//	transfer 1 to=2                the master is to hand over
//	leave 1                        its process ends soon
//	tick 1 [n=6]                   time passes at one replica
//	propose 1 NAME…                a client sends operations
//	fill 1 n=20 size=9000          a client sends n large operations, one after the other
//	snapshot 1                     the state machine keeps what it has applied on disk
//	cut-front 1                    the log gives up what the snapshot contains, as far as whole segments go
//	install 1 [power=3]            a replica takes the offer of its master; the power goes at the n-th change of the disk
//	read 1                         asks for a confirmed index
//	deliver [from=] [to=] [type=] [drop] [n=]   messages arrive, or are lost; n=0 lists what is on the way
//	write 1 [part]                 queued writes reach the disk and the replica hears of it; part: it does not hear
//	run [1 2 3]                    writes, messages and a little time until nothing happens; only between these replicas
//	fail-sync 1                    the next sync of this machine fails
//	power-after 1 n=4              the power goes in the middle of the n-th change of the disk from now on
//	kill 1 | power 1               ends a process, or cuts the power: what is not synced is lost
//	status [1 2 3]                 one line for each replica
//	log 1                          what is applied, and what only the log has
//	mutant 1 skip-gate|keep-term   breaks one rule on purpose
//	check                          what the checker found
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/scripts/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			t.Parallel()
			s := &script{w: sim.NewWorld(), records: make(map[int]raftlog.EpochRecord)}
			s.w.Sent = func(_ *sim.Node, o raftlog.Outgoing) { s.net = append(s.net, o) }
			datadriven.RunTest(t, f, func(t *testing.T, d *datadriven.TestData) string { return s.run(t, d) })
			if s.w.Check.Err != nil && !s.checked {
				t.Error(s.w.Check.Err)
			}
		})
	}
}

type script struct {
	w       *sim.World
	records map[int]raftlog.EpochRecord
	net     []raftlog.Outgoing
	ops     []*sim.Op
	out     strings.Builder
	checked bool
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	s.out.Reset()
	var nodes []*sim.Node
	var words []string
	args := make(map[string]string)
	for _, a := range d.CmdArgs {
		if len(a.Vals) > 0 {
			args[a.Key] = strings.Join(a.Vals, ",")
		} else if id, err := strconv.Atoi(a.Key); err == nil {
			if d.Cmd == "nodes" {
				if _, err := s.w.AddNode(ids.ReplicaID(id)); err != nil {
					t.Fatal(err)
				}
			}
			nodes = append(nodes, s.w.Node(ids.ReplicaID(id)))
		} else {
			words = append(words, a.Key)
		}
	}
	number := func(key string, otherwise int) int {
		if v, err := strconv.Atoi(args[key]); err == nil {
			return v
		}
		return otherwise
	}
	switch d.Cmd {
	case "nodes":
	case "one-frame":
		s.w.Config = func(c *raftlog.Config) { c.Limits.Message = 1 }
	case "record":
		e := number("epoch", 1)
		s.records[e*10+number("other", 0)] = s.w.Record(ids.Epoch(e), uint8(number("a", 2)), uint8(number("min", 1)), list(args["voters"]), list(args["learners"]))
	case "open":
		for _, n := range nodes {
			var rec *raftlog.EpochRecord
			if e := number("record", 0); e > 0 {
				r := s.records[e*10]
				rec = &r
			}
			if err := n.Open(rec); err != nil {
				fmt.Fprintf(&s.out, "n%d: %v\n", n.ID, err)
			}
		}
	case "adopt":
		for _, n := range nodes {
			if err := n.Adopt(s.records[number("record", 0)*10+number("other", 0)]); err != nil {
				fmt.Fprintf(&s.out, "n%d: %v\n", n.ID, err)
			}
		}
	case "campaign":
		nodes[0].Campaign()
	case "transfer":
		to := ids.ReplicaID(number("to", 0))
		nodes[0].Transfer(to, func(err error) {
			how := "done"
			if err != nil {
				how = strings.TrimPrefix(err.Error(), "raftlog: ")
			}
			fmt.Fprintf(&s.out, "n%d hands over to %d: %s\n", nodes[0].ID, to, how)
		})
	case "leave":
		nodes[0].Replica.Leave()
	case "tick":
		for range number("n", 1) {
			for _, n := range nodes {
				n.Tick()
			}
		}
	case "propose":
		for _, word := range words {
			op := &sim.Op{ID: len(s.ops) + 1, Payload: word}
			s.ops = append(s.ops, op)
			if !nodes[0].Propose(op) {
				fmt.Fprintf(&s.out, "%s is refused\n", word)
			}
		}
	case "fill":
		for range number("n", 1) {
			op := &sim.Op{ID: len(s.ops) + 1, Payload: fmt.Sprintf("%d%s", len(s.ops)+1, strings.Repeat("x", number("size", 1)))}
			s.ops = append(s.ops, op)
			if !nodes[0].Propose(op) {
				fmt.Fprintf(&s.out, "%.10s is refused\n", op.Payload)
			}
			s.settle(slices.DeleteFunc(slices.Clone(s.w.Nodes), func(n *sim.Node) bool { return !n.Up }))
		}
	case "snapshot":
		nodes[0].Machine.TakeSnapshot()
		fmt.Fprintf(&s.out, "at entry %d\n", nodes[0].Status().Applied)
	case "cut-front":
		did, err := nodes[0].CutFront()
		fmt.Fprintf(&s.out, "%v %v, the log begins at entry %d\n", did, err, nodes[0].Log.FirstIndex())
	case "install":
		n := nodes[0]
		if n.Offer == nil {
			return "no offer\n"
		}
		if p := number("power", 0); p > 0 {
			n.PowerAfter(p)
		}
		done, err := n.Install(s.w.Node(n.Offer.From))
		fmt.Fprintf(&s.out, "%v %v\n", done, err)
		if err != nil {
			n.PowerCut(nil)
		}
	case "ops":
		for _, op := range s.ops {
			fmt.Fprintf(&s.out, "%s %s\n", op.Payload, op.State)
		}
	case "read":
		n := nodes[0]
		n.Replica.ReadIndex(func(i ids.Index, err error) { fmt.Fprintf(&s.out, "read: %d %v\n", i, err) })
		n.Turn()
		if len(words) > 0 && words[0] == "run" {
			s.settle(s.w.Nodes)
		}
	case "deliver":
		s.deliver(list(args["from"]), list(args["to"]), args["type"], slices.Contains(words, "drop"), number("n", 1<<30))
	case "write":
		for _, n := range nodes {
			if err := n.Write(); err != nil {
				fmt.Fprintf(&s.out, "n%d: %v\n", n.ID, err)
			}
			for !slices.Contains(words, "part") && n.Complete() {
			}
		}
	case "run":
		if len(nodes) == 0 {
			nodes = s.w.Nodes
		}
		s.settle(nodes)
	case "fail-sync":
		nodes[0].FailSync()
	case "power-after":
		nodes[0].PowerAfter(number("n", 1))
	case "kill":
		nodes[0].Kill()
	case "power":
		nodes[0].PowerCut(nil)
	case "status":
		if len(nodes) == 0 {
			nodes = s.w.Nodes
		}
		for _, n := range nodes {
			s.status(n)
		}
	case "log":
		s.log(nodes[0])
	case "mutant":
		switch words[0] {
		case "skip-gate":
			raftlog.SkipGate(nodes[0].Replica)
		case "keep-term":
			raftlog.KeepTerm(nodes[0].Replica)
		}
	case "check":
		s.checked = true
		fmt.Fprintf(&s.out, "%v\n", s.w.Check.Err)
	default:
		t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	}
	if s.out.Len() == 0 {
		return "ok\n"
	}
	return s.out.String()
}

func list(s string) (out []ids.ReplicaID) {
	for _, p := range strings.FieldsFunc(s, func(c rune) bool { return c == ',' }) {
		n, _ := strconv.Atoi(p)
		out = append(out, ids.ReplicaID(n))
	}
	return out
}

// deliver lets the messages arrive that fit, each once and in order, not those that they cause.
func (s *script) deliver(from, to []ids.ReplicaID, kind string, drop bool, n int) {
	var keep, go_ []raftlog.Outgoing
	for _, o := range s.net {
		env := o.Envelope
		if (from == nil || slices.Contains(from, env.From)) && (to == nil || slices.Contains(to, env.To)) &&
			(kind == "" || env.Msg.GetType().String() == kind) && len(go_) < n {
			go_ = append(go_, o)
		} else {
			keep = append(keep, o)
		}
	}
	s.net = keep
	for _, o := range go_ {
		env := o.Envelope
		what := "arrives"
		if dst := s.w.Node(env.To); drop || dst == nil || !dst.Up {
			what = "is lost"
		}
		fmt.Fprintf(&s.out, "%s %s\n", describe(env.Epoch, env.Msg, env.Record != nil), what)
		if what == "arrives" {
			s.w.Node(env.To).Deliver(env)
		}
	}
	if n == 0 {
		for _, o := range s.net {
			fmt.Fprintf(&s.out, "%s is on the way\n", describe(o.Envelope.Epoch, o.Envelope.Msg, o.Envelope.Record != nil))
		}
	}
}

func describe(epoch ids.Epoch, m *pb.Message, record bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "n%d->n%d %s term %s", m.GetFrom(), m.GetTo(), m.GetType(), ids.Term(m.GetTerm()))
	if ids.Term(m.GetTerm()).Epoch() != epoch {
		fmt.Fprintf(&b, " epoch %d", epoch)
	}
	if m.GetType() == pb.MsgApp || m.GetType() == pb.MsgAppResp {
		fmt.Fprintf(&b, " index %d", m.GetIndex())
	}
	if n := len(m.GetEntries()); n > 0 {
		fmt.Fprintf(&b, " entries %d", n)
	}
	if m.GetReject() {
		b.WriteString(" reject")
	}
	if record {
		b.WriteString(" +record")
	}
	return b.String()
}

// settle lets everything happen between these replicas until nothing does: writes, messages, and a tick of the master so that
// commit indexes leave. Messages to and from others stay on the way... lost ones are those to a machine that is down.
func (s *script) settle(nodes []*sim.Node) {
	in := func(id ids.ReplicaID) bool {
		return slices.ContainsFunc(nodes, func(n *sim.Node) bool { return n.ID == id && n.Up })
	}
	for round := 0; round < 1000; round++ {
		busy := false
		for _, n := range nodes {
			if n.Up && n.Busy() {
				busy = true
				n.Write()
				for n.Complete() {
				}
			}
		}
		var keep, go_ []raftlog.Outgoing
		for _, o := range s.net {
			switch {
			case in(o.Envelope.From) && in(o.Envelope.To):
				go_ = append(go_, o)
			case s.w.Node(o.Envelope.To).Up && !in(o.Envelope.To) || !in(o.Envelope.From):
				keep = append(keep, o)
			}
		}
		s.net = keep
		for _, o := range go_ {
			busy = true
			s.w.Node(o.Envelope.To).Deliver(o.Envelope)
		}
		if !busy {
			s.w.Now += 6_000 // longer than a commit index is held
			sent := len(s.net)
			for _, n := range nodes {
				if n.Up {
					n.Turn()
				}
			}
			if sent == len(s.net) {
				return
			}
		}
	}
	io.WriteString(&s.out, "does not settle\n")
}

func (s *script) status(n *sim.Node) {
	if !n.Up {
		fmt.Fprintf(&s.out, "n%d down\n", n.ID)
		return
	}
	st := n.Status()
	fmt.Fprintf(&s.out, "n%d %s term %s", n.ID, st.Role, st.Term)
	if st.Master != 0 {
		fmt.Fprintf(&s.out, " master %d", st.Master)
	}
	fmt.Fprintf(&s.out, " epoch %d applied %d commit %d last %d durable %d", st.Epoch, st.Applied, st.Commit, st.Last, st.Synced)
	for _, list := range [2][]raftlog.MemberStatus{st.Voters, st.Learners} {
		for _, m := range list {
			if m.Behind {
				fmt.Fprintf(&s.out, ", %d is behind the front", m.ID)
			}
		}
	}
	if n.Offer != nil {
		fmt.Fprintf(&s.out, ", offered the front behind entry %d with the state at %d", n.Offer.Front.Prev.Index, n.Offer.Snapshot.Index)
	}
	if st.Parked != "" {
		fmt.Fprintf(&s.out, "\n   parked: %s", strings.ReplaceAll(st.Parked, "raftlog: parked: ", ""))
	}
	s.out.WriteString("\n")
}

// log shows what is applied, and after a bar what only the log has. An empty frame shows as its term.
func (s *script) log(n *sim.Node) {
	applied := n.Machine.Payloads()
	if len(applied) == 0 {
		applied = []string{"nothing applied"}
	}
	fmt.Fprintf(&s.out, "%s", strings.Join(applied, " "))
	if tail := n.Log.Tail(); tail.Index > n.Status().Applied {
		s.out.WriteString(" |")
		for i := n.Status().Applied + 1; i <= tail.Index; i++ {
			f, err := n.Log.ReadFrame(i, nil)
			if err != nil {
				fmt.Fprintf(&s.out, " %v", err)
				break
			}
			if f.Empty() {
				fmt.Fprintf(&s.out, " (%s)", f.Term())
			}
			for r := range f.Records() {
				fmt.Fprintf(&s.out, " %s", r.Body)
			}
		}
	}
	s.out.WriteString("\n")
}
