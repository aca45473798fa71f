package raftlog

import (
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// window keeps the newest frames of a replica in memory: all that are not yet durable or not yet applied, and below them those
// that a follower a little behind may still need, up to a bound. What is below the window is read from the log.
//
// Invariants:
//  1. slots are consecutive: slots[i] has index first+i;
//  2. every entry that is not durable here is in the window, and so is what was appended in this process life and not applied;
//  3. bytes is the sum of the frames' sizes.
type window struct {
	first ids.Index
	slots []slot
	bytes int64
}

// slot is one entry with its frame and the tail of the log after it.
type slot struct {
	entry *pb.Entry
	frame commitlog.Frame
	tail  commitlog.Tail
}

// end returns the index after the last slot.
func (w *window) end() ids.Index { return w.first + ids.Index(len(w.slots)) }

// at returns the slot of index i, or nil.
func (w *window) at(i ids.Index) *slot {
	if len(w.slots) == 0 || i < w.first || i >= w.end() {
		return nil
	}
	return &w.slots[i-w.first]
}

func (w *window) push(s slot) {
	i := ids.Index(s.entry.GetIndex())
	if len(w.slots) == 0 {
		w.first = i
	}
	if i != w.end() {
		panic("raftlog: a frame does not follow the window's last")
	}
	w.slots = append(w.slots, s)
	w.bytes += int64(len(s.frame))
}

// truncate removes index from and all after it.
func (w *window) truncate(from ids.Index) {
	for len(w.slots) > 0 && w.end() > from {
		last := &w.slots[len(w.slots)-1]
		w.bytes -= int64(len(last.frame))
		*last = slot{}
		w.slots = w.slots[:len(w.slots)-1]
	}
}

// trim drops frames from the front: those up to safe (durable and applied here) that nobody needs (up to matched), or that are
// too many for limit.
func (w *window) trim(safe, matched ids.Index, limit int64) {
	n := 0
	for n < len(w.slots) {
		i := w.first + ids.Index(n)
		if i > safe || i > matched && w.bytes <= limit {
			break
		}
		w.bytes -= int64(len(w.slots[n].frame))
		w.slots[n] = slot{}
		n++
	}
	if n == 0 {
		return
	}
	w.first += ids.Index(n)
	w.slots = w.slots[n:]
	if len(w.slots) == 0 {
		w.slots = nil
	}
}
