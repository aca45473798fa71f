package broker

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
	"github.com/ledgermq/ledgermq/timer"
)

// timers is what a replica has for its delayed messages beside the state and the log. Their way:
//
//	send ─form─▶ timer record in the log ─apply─▶ index ─due─▶ fireTimers: batch, read from the log ─form─▶ messages and the cursor's
//	     move in one frame ─apply─▶ queues
//
// Every replica has the index. Only the master fires, rolls and recalls, in the order of the loop: form decides by the state and by what
// is in flight, so that of a recall and a firing the first one in the log counts.
//
// Invariant: all timers in the log up to a position that a batch was planned to are in that batch, in one before it, recalled or rolled.
// For that a timer that is formed is due at the floor at least, which fireTimers raises before it looks into the index, and no batch goes
// beyond a timer that is formed and not applied yet.
type timers struct {
	idx   *timer.Index
	whole atomic.Bool   // the index has all timers of the log: else nothing fires
	begun atomic.Uint64 // rebuilds of the index
	wake  chan struct{} // fireTimers: there is something to look at
	wakes atomic.Int64  // a timer that is due before this wakes it

	mu     sync.Mutex
	floor  int64
	flying []timer.Pos // formed here and not applied, in the order of the log

	// Of the loop: what follows from the frames up to formedTo.
	cursor   timer.Pos
	low      ids.PhysicalOffset
	recalled map[timer.Pos]struct{}

	work    sync.Mutex         // of the index: a checkpoint or a rebuild
	rebuilt ids.PhysicalOffset // under work: 0, or up to where the log was applied after a rebuild that has not been proved
}

func newTimers() *timers {
	return &timers{wake: make(chan struct{}, 1), recalled: map[timer.Pos]struct{}{}}
}

// begin is for a new term of mastership, all before it is applied. It runs on the loop.
func (t *timers) begin(st *state.State) {
	t.cursor, t.low = st.TimerMarks()
	t.recalled = map[timer.Pos]struct{}{}
	t.mu.Lock()
	t.floor, t.flying = 0, nil
	t.mu.Unlock()
}

// formed gives a timer at off its due time. It runs on the loop.
func (t *timers) formed(due int64, off ids.PhysicalOffset) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	due = max(due, t.floor, t.cursor.Due)
	t.flying = append(t.flying, timer.Pos{Due: due, Offset: off})
	return due
}

// unformed takes n timers back, the newest ones.
func (t *timers) unformed(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flying = t.flying[:len(t.flying)-n]
}

// applied takes in a timer. It runs on the loop.
func (t *timers) applied(e timer.Entry) {
	t.idx.Add(e)
	t.mu.Lock()
	for len(t.flying) > 0 && t.flying[0].Offset <= e.Offset {
		t.flying = t.flying[1:]
	}
	t.mu.Unlock()
	if e.Due < t.wakes.Load() {
		signal(t.wake)
	}
}

// due returns the first living timers of the index that are due at now, at most limit, which all that are formed later come after.
func (t *timers) due(b timer.Bounds, now int64, limit int) ([]timer.Entry, error) {
	t.mu.Lock()
	before := t.floor
	t.floor = max(before, now)
	first := timer.Pos{Due: math.MaxInt64}
	for _, p := range t.flying {
		if p.Compare(first) < 0 {
			first = p
		}
	}
	t.mu.Unlock()
	list, err := t.idx.Scan(b, now, limit)
	n := 0
	for n < len(list) && list[n].Compare(first) < 0 {
		n++
	}
	list = list[:n]
	// What is formed from here on need only come after what was found.
	t.mu.Lock()
	if t.floor = before; n > 0 {
		t.floor = max(before, list[n-1].Due)
	}
	t.mu.Unlock()
	return list, err
}

// errNotWhole says that the index lacks timers. Who meets it looks again later.
var errNotWhole error = refuse(remoting.SystemBusy, "the timer index is being rebuilt, try later")

// readTimers looks into the index. Without an error it was whole all the while: what look has found is all there is.
func (r *Replica) readTimers(look func(*timer.Index) error) error {
	t := r.timers
	begun := t.begun.Load() // before whole: a rebuild that ends in between is over then, and one that begins later is seen below
	if !t.whole.Load() {
		return errNotWhole
	}
	err := look(t.idx)
	if t.begun.Load() != begun || r.timersBroken(err) || !t.whole.Load() {
		return errNotWhole
	}
	return err
}

// nextTimersAtOnce bounds the steps in which recalled timers are passed over: a step is a search in each run.
const nextTimersAtOnce = 4096

// nextTimer returns when the next timer that was not recalled is due.
func (r *Replica) nextTimer() (due int64, some bool) {
	b := r.st.TimerBounds()
	err := r.readTimers(func(x *timer.Index) error {
		for n := 1; ; n = min(8*n, nextTimersAtOnce) {
			list, err := x.Scan(b, math.MaxInt64, n)
			if err != nil {
				return err
			}
			for _, e := range list {
				if !r.st.TimerRecalled(e.Pos) {
					due, some = e.Due, true
					return nil
				}
			}
			if len(list) < n {
				return nil
			}
			b.After = list[n-1].Pos
		}
	})
	return due, some && err == nil
}

// openTimers opens the timer index. Nothing fires before reindex has made it whole.
func (r *Replica) openTimers() (err error) {
	r.timers.idx, err = timer.Open(timer.Options{FS: r.node.o.FS, Dir: filepath.Join(r.dir, timersDir), Group: r.gid,
		FirstOffset: r.clog.FirstOffset(), EndOffset: r.clog.Tail().Offset})
	if err != nil {
		return fmt.Errorf("open the timer index: %w", err)
	}
	for _, p := range r.timers.idx.Problems() {
		r.log.Error().Err(p).Msg("a file of the timer index cannot be used: it is rebuilt from the log")
	}
	return nil
}

const timersDir = "timers"

// maxTimersInMemory is how many timers a rebuild gathers before it writes them.
const maxTimersInMemory = 256 << 10

// timerIn returns the entry of a record that is a timer.
func timerIn(rec commitlog.Record) (e timer.Entry, is bool, err error) {
	if rec.Type != state.RecordTimer {
		return e, false, nil
	}
	if e, err = state.TimerEntry(rec); err != nil {
		return e, false, fmt.Errorf("the record at %d: %w", rec.Offset, err)
	}
	return e, true, nil
}

// addTimer adds a record to the timer index when it is a timer.
func (r *Replica) addTimer(rec commitlog.Record) error {
	e, is, err := timerIn(rec)
	if is && err == nil {
		r.timers.idx.Add(e)
	}
	return err
}

// spillTimers writes what a start has gathered when that is much. end is where the log was read to.
func (r *Replica) spillTimers(end ids.PhysicalOffset) error {
	if r.timers.idx.InMemory() < maxTimersInMemory {
		return nil
	}
	return r.timers.idx.Checkpoint(end, r.st.TimerBounds())
}

// checkpointTimers makes the timer index durable up to end; b is as for checkpointIndexes. While the index is being rebuilt it is left
// alone.
func (r *Replica) checkpointTimers(end ids.PhysicalOffset, b timer.Bounds) error {
	if !r.timers.work.TryLock() {
		return nil
	}
	defer r.timers.work.Unlock()
	if !r.timers.whole.Load() {
		return nil
	}
	err := r.timers.idx.Checkpoint(end, b)
	if r.timersBroken(err) {
		return nil
	}
	return err
}

// timersBroken tells whether err is a file of the index that cannot be used. Then the index is rebuilt, by upkeep.
func (r *Replica) timersBroken(err error) bool {
	var bad *timer.CorruptionError
	if !errors.As(err, &bad) {
		return false
	}
	if r.timers.whole.Swap(false) {
		r.log.Error().Err(err).Msg("the timer index cannot be used: it is rebuilt from the log, and no timer fires until then")
	}
	signal(r.mend)
	return true
}

// mendTimers rebuilds an index that is not whole from the log.
func (r *Replica) mendTimers() error {
	if r.timers.whole.Load() || r.catchingUp() {
		return nil
	}
	r.timers.work.Lock()
	defer r.timers.work.Unlock()
	r.timers.begun.Add(1)
	// What lies behind end is added by the loop, and the timers of the frame that is being applied may be there already.
	end := ids.PhysicalOffset(r.appliedEnd.Load())
	r.timers.idx.Reset(end)
	if err := r.readTimersAgain(end); err != nil {
		return fmt.Errorf("rebuild the timer index: %w", err)
	}
	r.timers.rebuilt = ids.PhysicalOffset(r.appliedEnd.Load())
	r.timers.whole.Store(true)
	r.log.Info().Msg("the timer index was rebuilt from the log")
	signal(r.timers.wake)
	return nil
}

// readTimersAgain adds the living timers of the log before end to the index.
func (r *Replica) readTimersAgain(end ids.PhysicalOffset) error {
	b := r.st.TimerBounds()
	if b.Low >= end {
		return nil
	}
	if err := r.syncBefore(); err != nil { // what is past by b
		return err
	}
	first, err := r.clog.IndexAt(max(b.Low, r.clog.FirstOffset()))
	if err != nil {
		return err
	}
	gathered := 0 // since the last checkpoint, without what the loop adds
	for f, err := range r.clog.Frames(first) {
		if err != nil {
			return err
		}
		if f.Offset() >= end {
			return nil
		}
		for rec := range f.Records() {
			e, is, err := timerIn(rec)
			if err != nil {
				return err
			}
			if is && b.Alive(e.Pos) {
				r.timers.idx.Add(e)
				gathered++
			}
		}
		if gathered >= maxTimersInMemory {
			if err := r.timers.idx.Checkpoint(min(end, f.Offset()+ids.PhysicalOffset(f.Size())), b); err != nil {
				return err
			}
			gathered = 0
		}
		if err := r.ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// proveTimers counts a rebuilt index once against the state st of a checkpoint at end.
func (r *Replica) proveTimers(end ids.PhysicalOffset, st *state.State) {
	t := r.timers
	if !t.work.TryLock() {
		return
	}
	defer t.work.Unlock()
	// A state that is not behind the rebuild may count what the rebuild left out as dead.
	if t.rebuilt == 0 || end <= t.rebuilt || !t.whole.Load() {
		return
	}
	n, err := t.idx.Count(st.TimerBounds(), end, st.TimerRecalled)
	if err != nil {
		r.timersBroken(err)
		return
	}
	t.rebuilt = 0
	if pending, _, _ := st.TimersPending(); n != pending {
		r.counters.timerMismatches.Add(1)
		r.log.Error().Uint64("pending", pending).Uint64("indexed", n).Msg("the rebuilt timer index does not have the timers that the state counts as pending")
	}
}

// timerDamaged is met where a timer should lie at e and does not. Either the log is damaged there, which is repaired from another
// replica, or the index is wrong.
func (r *Replica) timerDamaged(e timer.Entry, fault error) error {
	err := r.damaged(e.Offset, fault)
	if r.clog.Poisoned() == nil && r.ctx.Err() == nil {
		r.counters.timerMismatches.Add(1)
		r.timersBroken(&timer.CorruptionError{File: filepath.Join(r.dir, timersDir), Err: fmt.Errorf("it names a timer at %d: %w", e.Offset, fault)})
	}
	return err
}

// readTimer reads a timer from the log, checked, into buf when that is large enough.
func (r *Replica) readTimer(e timer.Entry, buf []byte) ([]byte, error) {
	n := state.TimerPrefixSize + int(e.Size)
	if cap(buf) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if err := r.clog.ReadAt(buf, e.Offset-state.TimerPrefixSize); err != nil {
		if errors.Is(err, commitlog.ErrCompacted) {
			return nil, err // retention has gone on meanwhile
		}
		return nil, r.timerDamaged(e, err)
	}
	p, err := state.CheckTimer(buf)
	if err == nil && (p.Due != e.Due || p.Key != e.Key) {
		err = fmt.Errorf("another timer lies there, due at %d", p.Due)
	}
	if err != nil {
		return nil, r.timerDamaged(e, err)
	}
	return buf, nil
}

// formTimers is form for a message that waits for its time.
func (s *send) formTimers(r *Replica, b *commitlog.Builder) {
	start := 0
	for i := range s.recs {
		rec := s.buf[start:s.recs[i].end]
		start = s.recs[i].end
		s.recs[i].phys = r.formTimer(b, rec, s.later.due, s.timerKey)
	}
}

// formTimer appends a timer. Its record has the store host of the master that took it, also when another one rolls it, whose address may
// take another number of bytes.
func (r *Replica) formTimer(b *commitlog.Builder, rec []byte, due int64, key uint32) ids.PhysicalOffset {
	body, off, ok := b.Reserve(state.RecordTimer, state.RecordVersion, 0, state.TimerPrefixSize+len(rec))
	if !ok {
		panic("broker: the frame that admitted a timer has no room for it")
	}
	phys := off + state.TimerPrefixSize
	m := body[state.TimerPrefixSize:]
	copy(m, rec)
	message.PatchPlace(m, 0, phys, b.Time())
	state.TimerPrefix{Due: r.timers.formed(due, phys), Key: key}.Seal(body)
	return phys
}
