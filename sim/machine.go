package sim

import (
	"fmt"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// opRecord is the record type of an operation in the frames of a world.
const opRecord = 1

// Op is one client's request.
type Op struct {
	ID      int
	Payload string
	Index   ids.Index // of the frame that carries it, once it is formed
	Term    ids.Term
	State   OpState
	Told    ids.Term // in which it was acknowledged
}

// OpState is what the client was told.
type OpState int

// States of an Op. Pending ends in exactly one of the others.
const (
	Pending OpState = iota
	Acked
	NotStored
	Unknown
	Refused // never formed
)

func (s OpState) String() string {
	return [...]string{"pending", "acked", "not stored", "unknown", "refused"}[s]
}

// Entry is one applied entry.
type Entry struct {
	Index ids.Index
	Term  ids.Term
	CRC   uint32
	Ops   []string // payloads
}

// Machine is the state machine of a node: the list of what was applied. It checks what raftlog promises to it.
type Machine struct {
	n       *Node
	applied []Entry
	at      ids.Index // the last entry of the log that is applied; those up to the end of a received snapshot are in it already
	master  bool
	role    raftlog.Role
	queue   []*Op // to be formed
	open    []*Op // formed and not settled
	batch   int   // operations in one frame, at most
	time    int64 // of the last frame

	flushed int
}

func newMachine(n *Node, at ids.Index) *Machine {
	return &Machine{n: n, at: at, applied: append([]Entry(nil), n.snapshot...), batch: 3}
}

// Form puts up to batch operations into one frame.
func (m *Machine) Form(b *commitlog.Builder) any {
	if !m.master {
		m.n.w.Check.fail("replica %d was asked to form without being master", m.n.ID)
	}
	var token []*Op
	for len(m.queue) > 0 && len(token) < m.batch {
		op := m.queue[0]
		body, _, ok := b.Reserve(opRecord, 1, 0, len(op.Payload))
		if !ok {
			break
		}
		copy(body, op.Payload)
		op.Index, op.Term = b.Index(), b.Term()
		m.queue = m.queue[1:]
		token = append(token, op)
	}
	if token == nil {
		return nil
	}
	m.open = append(m.open, token...)
	return token
}

// Apply appends to the list.
func (m *Machine) Apply(c raftlog.Committed) error {
	e := entryOf(c.Frame)
	if c.Index != m.at+1 {
		m.n.w.Check.fail("replica %d applied entry %d in the place of %d", m.n.ID, c.Index, m.at+1)
	}
	m.at = c.Index
	if t := c.Frame.Time(); t < m.time && !c.Frame.Empty() {
		m.n.w.Check.fail("replica %d applied entry %d of the time %d after one of %d", m.n.ID, c.Index, t, m.time)
	} else {
		m.time = max(m.time, t)
	}
	if c.Token != nil {
		ops := c.Token.([]*Op)
		if len(ops) != len(e.Ops) {
			m.n.w.Check.fail("replica %d applied entry %d with a token of %d operations for %d records", m.n.ID, c.Index, len(ops), len(e.Ops))
		}
		for k, op := range ops {
			if op.Payload != e.Ops[k] || op.State != Pending {
				m.n.w.Check.fail("replica %d applied entry %d with the token of another entry, or a settled one (%s)", m.n.ID, c.Index, op.State)
			}
		}
	}
	if int(c.Index) <= len(m.applied) {
		if s := m.applied[c.Index-1]; s.Index != e.Index || s.Term != e.Term || s.CRC != e.CRC {
			m.n.w.Check.fail("replica %d applied entry %d of term %s, its snapshot has one of term %s", m.n.ID, c.Index, e.Term, s.Term)
		}
		return nil
	}
	m.applied = append(m.applied, e)
	m.n.w.Check.applied(m.n, e)
	return nil
}

// entryOf is what a frame is to the state machine.
func entryOf(f commitlog.Frame) Entry {
	e := Entry{Index: f.Index(), Term: f.Term(), CRC: f.Chain()}
	for r := range f.Records() {
		e.Ops = append(e.Ops, string(r.Body))
	}
	return e
}

// Acked settles the operations up to an index.
func (m *Machine) Acked(upTo ids.Index) {
	if upTo > m.at {
		m.n.w.Check.fail("replica %d acknowledges entry %d and has applied %d", m.n.ID, upTo, len(m.applied))
	}
	kept := m.open[:0]
	for _, op := range m.open {
		if op.Index > upTo || op.State != Pending {
			if op.State == Pending {
				kept = append(kept, op)
			}
			continue
		}
		// The entry at the operation's place may be another one when its token was abandoned as not stored before.
		if e := m.applied[op.Index-1]; e.Term != op.Term {
			m.n.w.Check.fail("replica %d acknowledges entry %d of term %s, it applied one of term %s", m.n.ID, op.Index, op.Term, e.Term)
		}
		op.Told = m.role.Term
		m.settle(op, Acked)
	}
	m.open = kept
	m.n.w.Check.acked(m.n, upTo)
}

// Abandon settles the operations of a token.
func (m *Machine) Abandon(token any, o raftlog.Outcome) {
	state := Unknown
	if o == raftlog.NotStored {
		state = NotStored
	}
	for _, op := range token.([]*Op) {
		m.settle(op, state)
	}
}

func (m *Machine) settle(op *Op, s OpState) {
	if op.State != Pending {
		m.n.w.Check.fail("operation %d was settled as %s and then as %s", op.ID, op.State, s)
	}
	op.State = s
	m.n.w.Check.settled(m.n, op)
}

// Role is told by the replica.
func (m *Machine) Role(r raftlog.Role) {
	m.role = r
	m.master = r.Kind == raftlog.RoleMaster
	m.n.w.Tracef("r%d is %s in term %s, master %d", m.n.ID, r.Kind, r.Term, r.Master)
	if m.n.w.Role != nil {
		m.n.w.Role(m.n)
	}
	if m.master {
		m.n.w.Check.master(m.n, r.Term)
		return
	}
	for _, op := range m.queue {
		m.settle(op, Refused)
	}
	m.queue = nil
}

// Flush ends a turn.
func (m *Machine) Flush() { m.flushed++ }

// lost tells that the process ended: nobody will answer its clients.
func (m *Machine) lost() {
	for _, list := range [][]*Op{m.queue, m.open} {
		for _, op := range list {
			if op.State == Pending {
				op.State = Unknown
			}
		}
	}
}

// TakeSnapshot makes what is applied durable outside of the log.
func (m *Machine) TakeSnapshot() { m.n.snapshot = append([]Entry(nil), m.applied...) }

// Payloads returns all applied operations, for scripts.
func (m *Machine) Payloads() (out []string) {
	for _, e := range m.applied {
		if len(e.Ops) == 0 {
			out = append(out, fmt.Sprintf("(%s)", e.Term))
		}
		out = append(out, e.Ops...)
	}
	return out
}
