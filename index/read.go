package index

import (
	"errors"
	"slices"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// maxMisses bounds how many slots without the queue one Get looks at for more entries when it has some already.
const maxMisses = 64

// Get appends to dst up to limit consecutive entries of a queue, beginning with queue offset from, and returns it. It
// appends none when from is not there. It may append fewer than limit although more are there: ask again from the next
// offset. It allocates nothing but what dst needs. It returns a *CorruptionError when a file is damaged: the file is given
// up, and Missing names what Rebuild must fill.
func (x *Index) Get(k Key, from ids.QueueOffset, limit int, dst []Entry) ([]Entry, error) {
	had := len(dst)
	x.mu.RLock()
	if x.closed {
		x.mu.RUnlock()
		return dst, ErrClosed
	}
	if limit <= 0 || from < 0 || x.gone(k) {
		x.mu.RUnlock()
		return dst, nil
	}
	if x.active != nil {
		if dst = x.active.read(k, from, limit, dst); len(dst) > had {
			x.mu.RUnlock()
			return dst, nil
		}
	}
	v := x.version
	v.refs.Add(1)
	x.mu.RUnlock()

	dst, err := v.read(k, from, limit, dst)
	v.unref()
	if err != nil {
		return dst, x.giveUp(err)
	}
	if n := len(dst) - had; n > 0 && n < limit {
		x.mu.RLock()
		if x.active != nil {
			dst = x.active.read(k, from+ids.QueueOffset(n), limit-n, dst)
		}
		x.mu.RUnlock()
	}
	return dst, nil
}

// gone tells whether the topic of k was dropped. x.mu is held.
func (x *Index) gone(k Key) bool {
	if len(x.dropped) == 0 {
		return false
	}
	_, gone := x.dropped[k.Topic]
	return gone
}

// find returns the last slot whose first entry of k is not after from, and its row. i is -1 when there is none.
func (v *version) find(k Key, from ids.QueueOffset) (i int, r row, err error) {
	lo, hi := 0, len(v.slots)
	// Most reads are of the newest slot.
	if hi > 0 {
		r, ok, err := v.slots[hi-1].lookup(k)
		if err != nil || ok && r.first <= from {
			return hi - 1, r, err
		}
		hi--
	}
	// A queue need not be in every slot: from the middle on go down to the next one that has it. Each slot that was looked
	// at is out of the question afterwards.
	best, bestRow := -1, row{}
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		at := mid
		var ok bool
		for ; at >= lo; at-- {
			if r, ok, err = v.slots[at].lookup(k); err != nil || ok {
				break
			}
		}
		switch {
		case err != nil:
			return at, row{}, err
		case !ok:
			lo = mid + 1
		case r.first <= from:
			best, bestRow, lo = at, r, mid+1
		default:
			hi = at
		}
	}
	return best, bestRow, nil
}

func (v *version) read(k Key, from ids.QueueOffset, limit int, dst []Entry) ([]Entry, error) {
	i, r, err := v.find(k, from)
	if err != nil || i < 0 || from >= r.next() {
		return dst, err
	}
	for {
		skip := uint32(from - r.first)
		n := min(uint32(limit), r.count-skip)
		if dst, err = v.slots[i].entriesAt(r, skip, n, dst); err != nil {
			return dst, err
		}
		from += ids.QueueOffset(n)
		limit -= int(n)
		found := false
		for misses := 0; limit > 0 && !found && misses < maxMisses; misses++ {
			if i++; i == len(v.slots) {
				return dst, nil
			}
			if r, found, err = v.slots[i].lookup(k); err != nil {
				return dst, err
			}
		}
		if !found || r.first != from {
			return dst, nil
		}
	}
}

// present returns the present version, with a reference for the caller, and the front. It returns ErrClosed after Close.
func (x *Index) present() (v *version, front ids.PhysicalOffset, err error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.closed {
		return nil, 0, ErrClosed
	}
	x.version.refs.Add(1)
	return x.version, x.front, nil
}

// giveUp drops the file that err tells to be damaged, and returns err.
func (x *Index) giveUp(err error) error {
	var bad *CorruptionError
	if !errors.As(err, &bad) {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, s := range x.version.slots {
		if s.file != nil && s.file.name == bad.File {
			x.setSlots(slices.Delete(slices.Clone(x.version.slots), i, i+1))
			x.remove(bad.File)
			break
		}
	}
	return err
}

// Verify reads every page of every file. It returns the damage that it finds, and gives those files up.
func (x *Index) Verify() error {
	v, _, err := x.present()
	if err != nil {
		return err
	}
	defer v.unref()
	var all []error
	for _, s := range v.slots {
		if s.file == nil {
			continue
		}
		if err := s.file.verify(); err != nil {
			all = append(all, x.giveUp(err))
		}
	}
	return errors.Join(all...)
}
