package sim

import (
	"bytes"
	"fmt"
	"reflect"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// Verdict is the first fault.
type Verdict struct {
	Err  error
	Rule error // the first breach of rule 9 of a Checker, which does not end a run: what comes of it is a fault too
}

func (v *Verdict) fail(format string, args ...any) {
	if v.Err == nil {
		v.Err = fmt.Errorf(format, args...)
	}
}

// Checker judges a world, that is a group by itself. It demands, at each step:
//
//  1. one value per index: all replicas apply the same frame at the same place;
//  2. one master per term, which votes in its epoch;
//  3. an acknowledged entry is on K voters of the master's epoch, durable as the group's flush mode says, in the same term;
//  4. a vote, an acknowledgement and the first word in an epoch leave only when what they depend on is durable, and from a replica
//     that has all it ever acknowledged and voted; one that is lost, or damaged and not repaired, says nothing;
//  5. an operation told "not stored" is applied nowhere, and each operation is told one outcome;
//  6. a confirmed read index is not below anything that was acknowledged before the question, and is applied where it was asked for;
//  7. the invariants of Replica.Check hold after each turn;
//  8. no replica parks, is damaged or loses its identity but for the faults that were injected, and every log opens again after a crash;
//  9. an epoch is issued and noted as active by the rules, which are written here once more (rules.go), and what is decided for one
//     group leaves the others as they are;
//  10. the times in a log never go back, whatever the clocks do;
//
// and at the end that every acknowledged operation is in the log of every member, that the logs are equal byte by byte, and that the
// state of each member is the one that is built anew from its log.
type Checker struct {
	*Verdict

	values   map[ids.Index]Entry
	masters  map[ids.Term]ids.ReplicaID
	refusedP map[string]bool // payloads told "not stored"
	appliedP map[string]ids.Index
	MaxAcked ids.Index
	Acks     int
	Masters  int
	Reads    int

	unclean ids.Epoch              // that of an unclean election, to which the rules do not apply
	mayPark map[ids.ReplicaID]bool // a disk error was injected in this process life
}

func newChecker(v *Verdict) *Checker {
	return &Checker{
		Verdict: v,
		values:  make(map[ids.Index]Entry), masters: make(map[ids.Term]ids.ReplicaID),
		refusedP: make(map[string]bool), appliedP: make(map[string]ids.Index), mayPark: make(map[ids.ReplicaID]bool),
	}
}

func (c *Checker) applied(n *Node, e Entry) {
	n.w.Tracef("r%d applies %d %s %08x", n.ID, e.Index, e.Term, e.CRC)
	if n.out {
		return
	}
	if v, ok := c.values[e.Index]; !ok {
		c.values[e.Index] = e
	} else if v.Term != e.Term || v.CRC != e.CRC {
		c.fail("replica %d applies entry %d of term %s (%08x), another one applied it with term %s (%08x)", n.ID, e.Index, e.Term, e.CRC, v.Term, v.CRC)
	}
	for _, p := range e.Ops {
		if c.refusedP[p] {
			c.fail("operation %.20q was told to be not stored, replica %d applies it at %d", p, n.ID, e.Index)
		}
		if at, ok := c.appliedP[p]; ok && at != e.Index {
			c.fail("operation %.20q is at %d and at %d", p, at, e.Index)
		}
		c.appliedP[p] = e.Index
	}
}

func (c *Checker) master(n *Node, term ids.Term) {
	if other, ok := c.masters[term]; ok && other != n.ID {
		c.fail("replicas %d and %d are master in term %s", other, n.ID, term)
	} else if !ok {
		c.Masters++
	}
	c.masters[term] = n.ID
	if !n.Replica.Record().IsVoter(n.ID) {
		c.fail("replica %d is master in term %s and does not vote in its epoch", n.ID, term)
	}
}

// leaves demands that what a message depends on is durable at its sender.
func (c *Checker) leaves(n *Node, o raftlog.Outgoing) {
	m := o.Envelope.Msg
	if n.lost != "" || n.missing || n.damage != nil {
		c.fail("replica %d sends %s, and is lost or damaged", n.ID, m.GetType())
		return
	}
	owner, err := raftlog.DecodeOwner(n.Log.Meta().Owner)
	if err != nil {
		c.fail("replica %d: %w", n.ID, err)
		return
	}
	var epoch ids.Epoch
	if rec, err := raftlog.DecodeEpochRecord(owner.Record); err == nil {
		epoch = rec.Epoch
	}
	switch {
	case epoch < o.Envelope.Epoch:
		c.fail("replica %d speaks in epoch %d, its disk knows %d", n.ID, o.Envelope.Epoch, epoch)
	case m.GetReject():
	case epoch > ids.Term(m.GetTerm()).Epoch() && (m.GetType() == raftpb.MsgAppResp || m.GetType() == raftpb.MsgVoteResp):
		c.fail("replica %d sends %s in term %s, its disk knows epoch %d", n.ID, m.GetType(), ids.Term(m.GetTerm()), epoch)
	case m.GetType() == raftpb.MsgVoteResp && (uint64(owner.Term) != m.GetTerm() || uint64(owner.Vote) != m.GetTo()) && uint64(owner.Term) <= m.GetTerm():
		c.fail("replica %d votes for %d in term %s, its disk knows a vote for %d in term %s", n.ID, m.GetTo(), ids.Term(m.GetTerm()), owner.Vote, owner.Term)
	case m.GetType() == raftpb.MsgVoteResp:
		c.promises(n, m)
		if to, voted := n.votes[ids.Term(m.GetTerm())]; voted && uint64(to) != m.GetTo() {
			c.fail("replica %d votes for %d in term %s, it has voted for %d", n.ID, m.GetTo(), ids.Term(m.GetTerm()), to)
		}
		n.votes[ids.Term(m.GetTerm())] = ids.ReplicaID(m.GetTo())
	case m.GetType() == raftpb.MsgAppResp && n.cut > 0 && ids.Index(m.GetIndex()) >= n.cut && uint64(owner.Term) > m.GetTerm():
		// It was durable, and before the write had ended a newer master had it replaced: as if the network had been slow.
	case m.GetType() == raftpb.MsgAppResp:
		if has := n.mayAck(); uint64(has) < m.GetIndex() {
			c.fail("replica %d acknowledges entry %d to %d, its disk has %d", n.ID, m.GetIndex(), m.GetTo(), has)
		}
		c.promises(n, m)
		n.promised = max(n.promised, ids.Index(m.GetIndex()))
	}
}

// promises demands that who votes or acknowledges has all that it acknowledged before, under this id.
func (c *Checker) promises(n *Node, m *raftpb.Message) {
	if tail := n.Log.Tail().Index; tail < n.promised {
		c.fail("replica %d sends %s in term %s with a log up to entry %d, it has acknowledged entry %d", n.ID, m.GetType(), ids.Term(m.GetTerm()), tail, n.promised)
	}
}

// forget is told of an unclean election, which makes an epoch: what its winner lacks was not chosen, and not acknowledged.
func (c *Checker) forget(epoch ids.Epoch, after ids.Index, ops []*Op) {
	c.unclean = epoch
	for i := range c.values {
		if i > after {
			delete(c.values, i)
		}
	}
	for p, i := range c.appliedP {
		if i > after {
			delete(c.appliedP, p)
		}
	}
	for _, op := range ops {
		if op.State == Acked && op.Index > after {
			op.State = Unknown
		}
	}
	c.MaxAcked = min(c.MaxAcked, after)
}

// acked demands that the entry is durable on K voters of the master's epoch.
func (c *Checker) acked(n *Node, upTo ids.Index) {
	c.Acks++
	c.MaxAcked = max(c.MaxAcked, upTo)
	n.w.Tracef("r%d acknowledges %d", n.ID, upTo)
	rec := n.Replica.Record()
	have := 0
	for _, m := range rec.Voters {
		v := n.w.Node(m.ID)
		synced := v.synced
		if v.Log != nil {
			synced = v.mayAck()
		}
		if synced >= upTo {
			have++
		}
	}
	if k := min(int(rec.A), len(rec.Voters)); have < k {
		c.fail("replica %d acknowledges entry %d, which is on %d of %d voters; it must be on %d", n.ID, upTo, have, len(rec.Voters), k)
	}
}

func (c *Checker) settled(n *Node, op *Op) {
	n.w.Tracef("r%d settles op %d: %s", n.ID, op.ID, op.State)
	switch op.State {
	case NotStored, Refused:
		c.refusedP[op.Payload] = true
		if i, ok := c.appliedP[op.Payload]; ok {
			c.fail("operation %d is told to be %s, and was applied at %d", op.ID, op.State, i)
		}
	case Acked:
		if i, ok := c.appliedP[op.Payload]; !ok || i != op.Index {
			c.fail("operation %d is acknowledged at %d and applied at %d", op.ID, op.Index, i)
		}
	}
}

// turn looks at a replica after each of its turns.
func (c *Checker) turn(n *Node) {
	if p := n.Replica.Parked(); p != nil && !c.mayPark[n.ID] && !n.harmed {
		c.fail("replica %d parks: %v", n.ID, p)
	}
	if err := n.Replica.Check(); err != nil {
		c.fail("replica %d: %w", n.ID, err)
	}
}

// read demands that a confirmed index covers what was acknowledged before the question.
func (c *Checker) read(n *Node, asked, got ids.Index) {
	c.Reads++
	if got < asked {
		c.fail("replica %d confirms %d for a read that came when %d was acknowledged", n.ID, got, asked)
	}
	if n.Machine.at < got {
		c.fail("replica %d confirms %d for a read and has applied %d", n.ID, got, n.Machine.at)
	}
}

// Final compares the logs of the members of rec, byte by byte up to the lowest commit, and looks for every acknowledged operation
// in each of them.
func (c *Checker) Final(w *World, rec raftlog.EpochRecord, ops []*Op) {
	var members []*Node
	low := ids.Index(1 << 62)
	for _, n := range w.Nodes {
		if _, ok := rec.Member(n.ID); ok && n.Up {
			members = append(members, n)
			low = min(low, n.Status().Applied)
		}
	}
	for i := ids.Index(1); i <= low; i++ {
		var first []byte
		for _, n := range members {
			if i < n.Log.FirstIndex() { // it was given up, and is in a snapshot
				if e := n.Machine.applied[i-1]; !reflect.DeepEqual(e, c.values[i]) {
					c.fail("replica %d has the state %+v at entry %d, applied was %+v", n.ID, e, i, c.values[i])
					return
				}
				continue
			}
			f, err := n.Log.ReadFrame(i, nil)
			if err != nil {
				c.fail("replica %d: read entry %d: %v", n.ID, i, err)
				return
			}
			if built := entryOf(f); !reflect.DeepEqual(built, n.Machine.applied[i-1]) {
				c.fail("replica %d has the state %+v at entry %d, its log gives %+v", n.ID, n.Machine.applied[i-1], i, built)
				return
			}
			if first == nil {
				first = bytes.Clone(f)
			} else if !bytes.Equal(first, f) {
				c.fail("replica %d holds other bytes of entry %d than replica %d", n.ID, i, members[0].ID)
				return
			}
		}
	}
	for _, op := range ops {
		if op.State != Acked {
			continue
		}
		for _, n := range members {
			if int(op.Index) > len(n.Machine.applied) {
				c.fail("replica %d lacks acknowledged operation %d (entry %d)", n.ID, op.ID, op.Index)
				continue
			}
			found := false
			for _, p := range n.Machine.applied[op.Index-1].Ops {
				found = found || p == op.Payload
			}
			if !found {
				c.fail("replica %d has another entry in the place of acknowledged operation %d (entry %d)", n.ID, op.ID, op.Index)
			}
		}
	}
}
