package broker

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
)

const (
	// rollHalvesAtOnce and rollHalfBytes bound one frame's worth of half messages that are stored again; a single one may be larger.
	rollHalvesAtOnce = 1024
	rollHalfBytes    = 256 << 10
)

// errHalves says that half messages could not be stored again; upkeep tries again.
var errHalves = errors.New("pending half messages could not be taken along: their segments stay")

// rollHalves stores the half messages below front that are still pending again at the end of the log, so that retention can give up
// what lies there. So each of them is written once more for each time that the whole log is given up, however often it is checked.
func (r *Replica) rollHalves(front ids.PhysicalOffset) error {
	for {
		var low []state.Transaction
		r.st.EachTransaction(func(x state.Transaction) {
			if x.At < front {
				low = append(low, x)
			}
		})
		if len(low) == 0 {
			return nil // none comes to lie there any more
		}
		slices.SortFunc(low, func(a, b state.Transaction) int { return cmp.Compare(a.At, b.At) })
		for len(low) > 0 {
			p, err := r.planHalves(low)
			if err != nil {
				return fmt.Errorf("%w: %w", errHalves, err)
			}
			low = low[len(p.halves):]
			if !r.propose(p) {
				return errHalves
			}
			if o := <-p.done; o != outcomeOK && p.wrote > 0 {
				return errHalves
			} // else all of them have ended meanwhile
		}
	}
}

// pendingHalfBytes is how much of the log pending half messages take.
func (r *Replica) pendingHalfBytes() (n int64) {
	r.st.EachTransaction(func(x state.Transaction) { n += int64(x.Size) })
	return n
}

// halfRoll is the proposal of half messages that are stored again.
type halfRoll struct {
	halves []halfAt
	buf    []byte
	at     time.Time
	wrote  int
	done   chan outcome // capacity 1
}

// halfAt is a half message of a roll.
type halfAt struct {
	number ids.QueueOffset
	at     ids.PhysicalOffset // where it lay when it was read
	end    int                // of its record in halfRoll.buf
}

// planHalves reads the first of list, as many as one frame should have.
func (r *Replica) planHalves(list []state.Transaction) (*halfRoll, error) {
	p := &halfRoll{at: r.now(), done: make(chan outcome, 1)}
	for i := range list {
		x := &list[i]
		if i == rollHalvesAtOnce || i > 0 && len(p.buf)+int(x.Size) > rollHalfBytes {
			break
		}
		raw, err := r.halfBytes(x)
		if err != nil {
			return nil, err
		}
		p.buf = append(p.buf, raw...)
		p.halves = append(p.halves, halfAt{x.Number, x.At, len(p.buf)})
	}
	return p, nil
}

func (p *halfRoll) space() int {
	n, start := 0, 0
	for _, h := range p.halves {
		n += recordSpace(state.HalfAgainPrefix + h.end - start)
		start = h.end
	}
	return n
}

func (p *halfRoll) records() int                 { return p.wrote }
func (p *halfRoll) since() time.Time             { return p.at }
func (p *halfRoll) apply(int, state.Effect)      {}
func (p *halfRoll) finish(_ *Replica, o outcome) { p.done <- o }
func (p *halfRoll) form(r *Replica, b *commitlog.Builder) {
	start := 0
	for _, h := range p.halves {
		rec := p.buf[start:h.end]
		start = h.end
		if x, _, pending, _ := r.st.Transaction(h.number); !pending || x.At != h.at {
			continue // it has ended, or was stored again meanwhile
		}
		body, _, ok := b.Reserve(state.RecordHalfAgain, state.RecordVersion, 0, state.HalfAgainPrefix+len(rec))
		if !ok {
			panic("broker: the frame that admitted half messages has no room for them")
		}
		state.PutHalfAgain(body, h.number)
		copy(body[state.HalfAgainPrefix:], rec)
		p.wrote++
	}
}
