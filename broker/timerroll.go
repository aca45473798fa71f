package broker

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/timer"
)

const (
	// rollTimersGathered is how many are looked for at once: each look reads the whole index. They take 3 MiB.
	rollTimersGathered = 128 << 10
	// rollTimersAtOnce and rollBytes bound one frame's worth of a roll; a single timer may be larger than the latter.
	rollTimersAtOnce = 1024
	rollBytes        = 256 << 10
)

// errRolls says that a roll did not come about; upkeep tries again.
var errRolls = errors.New("pending timers could not be taken along: their segments stay")

// rollTimers appends the pending timers that lie before front once more, with the same times, so that retention can give up what lies
// there; of recalled ones the state forgets that they were.
// gather is how many it looks for at once. It goes through the log from its front on, a frame's worth at a time.
func (r *Replica) rollTimers(front ids.PhysicalOffset, gather int) error {
	if n, _, recalled := r.st.TimersPending(); n == 0 && recalled == 0 {
		return nil // of those that come meanwhile none lies there
	}
	for {
		var list []timer.Entry
		err := r.readTimers(func(x *timer.Index) (err error) {
			list, err = x.Below(r.st.TimerBounds(), front, gather)
			return err
		})
		if err != nil {
			return fmt.Errorf("%w: %w", errRolls, err)
		}
		if len(list) == 0 {
			return nil
		}
		term := r.role.Load().Term
		for to := front; len(list) > 0; {
			if len(list) == gather {
				to = list[len(list)-1].Offset + 1 // more may follow
			}
			_, low := r.st.TimerMarks()
			p := &roll{term: term, TimerRoll: state.TimerRoll{From: low, To: to}, at: r.now(), done: make(chan outcome, 1)}
			if err := p.plan(r, list); err != nil {
				return fmt.Errorf("%w: %w", errRolls, err)
			}
			list = list[len(p.items):]
			if !r.propose(p) || <-p.done != outcomeOK {
				return errRolls
			}
		}
	}
}

// roll is the proposal of a part of a roll: timers as they were, and the move of the lower bound behind those that they take the places
// of.
type roll struct {
	state.TimerRoll
	term   ids.Term
	items  []rollItem
	buf    []byte
	at     time.Time
	done   chan outcome // capacity 1
	formed int          // records
}

type rollItem struct {
	timer.Entry
	end int // of its record in roll.buf
}

// plan reads the first of list, which are all from p.From to p.To in the order of the log, as many as one frame should have.
func (p *roll) plan(r *Replica, list []timer.Entry) error {
	var buf []byte
	for i, e := range list {
		if i == rollTimersAtOnce || i > 0 && len(p.buf)+int(e.Size) > rollBytes {
			break
		}
		if !r.st.TimerRecalled(e.Pos) {
			var err error
			if buf, err = r.readTimer(e, buf); err != nil {
				return err
			}
			p.buf = append(p.buf, buf[state.TimerPrefixSize:]...)
		}
		p.items = append(p.items, rollItem{e, len(p.buf)})
	}
	if n := len(p.items); n < len(list) {
		p.To = p.items[n-1].Offset + 1 // more follow
	}
	return nil
}

func (p *roll) space() int {
	n := recordSpace(state.TimerCommandSize(len(p.items)))
	start := 0
	for i := range p.items {
		n += recordSpace(state.TimerPrefixSize + p.items[i].end - start)
		start = p.items[i].end
	}
	return n
}

func (p *roll) records() int     { return p.formed }
func (p *roll) since() time.Time { return p.at }

func (p *roll) form(r *Replica, b *commitlog.Builder) {
	t := r.timers
	if p.term != b.Term() || p.From != t.low {
		return // of an earlier plan
	}
	start := 0
	for i := range p.items {
		it := &p.items[i]
		rec := p.buf[start:it.end]
		start = it.end
		if it.Compare(t.cursor) <= 0 {
			continue // it has fired meanwhile
		}
		if _, now := t.recalled[it.Pos]; now || len(rec) == 0 || r.st.TimerRecalled(it.Pos) {
			p.Recalled = append(p.Recalled, it.Pos)
			continue
		}
		p.Count++
		p.Bytes += uint64(it.Size)
		r.formTimer(b, rec, it.Due, it.Key)
		p.formed++
	}
	slices.SortFunc(p.Recalled, timer.Pos.Compare)
	body, _, ok := b.Reserve(state.RecordTimerRoll, state.RecordVersion, 0, len(p.Append(nil)))
	if !ok {
		panic("broker: the frame that admitted a roll has no room for it")
	}
	p.Append(body[:0])
	p.formed++
	t.low = p.To
}

func (p *roll) unform(r *Replica) {
	r.timers.low = p.From
	r.timers.unformed(int(p.Count))
}

func (p *roll) apply(int, state.Effect)      {}
func (p *roll) finish(_ *Replica, o outcome) { p.done <- o }
