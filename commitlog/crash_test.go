package commitlog

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

var (
	crashes   = flag.Int("crashes", 300, "crashes of TestCrashLoop")
	trace     = flag.Bool("crashtrace", false, "print what TestCrashLoop does")
	crashSeed = flag.Uint64("crashseed", 1, "first seed of TestCrashLoop")
)

const crashesPerSeed = 10

// TestCrashLoop works on a log under injected failures, crashes it, sometimes damages a file, and opens it again, over and
// over on the same disk. After each start either everything that was synced is there byte for byte, nothing is there that
// was truncated or never written, or the damage has a name. A damage without a cause is a failure too.
func TestCrashLoop(t *testing.T) {
	t.Parallel()
	total := crashStats{}
	for n := 0; n*crashesPerSeed < *crashes; n++ {
		seed := *crashSeed + uint64(n)
		c := &crasher{seed: seed, r: rand.New(rand.NewPCG(seed, 2)), stats: crashStats{}}
		if err := c.run(); err != nil {
			t.Fatalf("seed %d: %v\nrepeat: go test ./commitlog -run TestCrashLoop -crashes %d -crashseed %d", seed, err, crashesPerSeed, seed)
		}
		for k, v := range c.stats {
			total[k] += v
		}
	}
	t.Logf("%v", total)
	if *crashes < 300 {
		return
	}
	// The loop is worth something only while it reaches the places that it is for.
	for _, k := range []string{"open ok", "power cut", "kill -9", "poisoned", "tampered", "damage", "completed truncation", "front cut", "torn batch", "open failed and went well"} {
		if total[k] < 5 {
			t.Errorf("%q was reached %d times only", k, total[k])
		}
	}
	if total["open ok"]*10 < *crashes*6 {
		t.Errorf("only %d of %d starts went well", total["open ok"], *crashes)
	}
}

type crashStats map[string]int

type crasher struct {
	seed  uint64
	r     *rand.Rand
	stats crashStats

	fs *vfs.Mem
	o  Options
	w  *twin

	fault  int // operations until the fault; negative: none
	hit    bool
	starts uint64
	owners [][]byte // those that may be stored

	present ids.Index // must be there unless the power is cut
	batch   bool      // more than one write was not synced when the power went
	cut     []Frame   // removed by a truncation that failed after its intent was in one slot of meta, or in both
}

var errInjected = syscall.EIO

func (c *crasher) rule(op vfs.Op, name string, off int64, n int) error {
	if *trace {
		defer func() { fmt.Printf("\t%v %s at %d, %d bytes, fault %v\n", op, filepath.Base(name), off, n, c.hit) }()
	}
	if op != vfs.OpWrite && op != vfs.OpSync && op != vfs.OpRead && op != vfs.OpSyncDir && op != vfs.OpRename && op != vfs.OpCreate || c.fault < 0 {
		return nil
	}
	if c.fault--; c.fault >= 0 {
		return nil
	}
	c.hit = true
	switch {
	case op == vfs.OpWrite && c.r.IntN(2) == 0:
		return &vfs.ShortWrite{N: c.r.IntN(n + 1), Err: errInjected}
	case op == vfs.OpSync && c.r.IntN(2) == 0:
		return &vfs.LostSync{Err: errInjected}
	}
	return errInjected
}

// arm lets one of the next operations fail, or none.
func (c *crasher) arm(oneIn, within int) {
	c.fault, c.hit = -1, false
	if c.r.IntN(oneIn) == 0 {
		c.fault = c.r.IntN(within)
	}
}

func (c *crasher) fresh() error {
	c.fs = vfs.NewMem()
	c.w = newTwin(c.r)
	c.starts, c.present, c.batch, c.cut, c.owners = 0, 0, false, nil, [][]byte{[]byte("owner")}
	c.o = small(vfs.Inject(c.fs, c.rule))
	c.o.KeepSpare = []int{-1, 1, 2}[c.r.IntN(3)]
	c.arm(2, 15)
	// A crash in Create: it may be repeated until it says that all is there.
	for range 3 {
		err := Create(c.o, c.owners[0])
		if err == nil || errors.Is(err, ErrExists) {
			return nil
		}
		if !c.hit {
			return fmt.Errorf("create: %w", err)
		}
		c.arm(2, 15)
		if c.fs = c.fs.KillProcess(); c.r.IntN(2) == 0 {
			c.fs = c.fs.Crash(c.r)
		}
		c.o.FS = vfs.Inject(c.fs, c.rule)
	}
	c.fault = -1
	if err := Create(c.o, c.owners[0]); err != nil && !errors.Is(err, ErrExists) {
		return fmt.Errorf("create again: %w", err)
	}
	return nil
}

func (c *crasher) run() error {
	if err := c.fresh(); err != nil {
		return err
	}
	for range crashesPerSeed {
		c.stats["crashes"]++
		l, err := c.open()
		if err != nil {
			return err
		}
		if l == nil { // a named damage: repaired from elsewhere
			if err := c.fresh(); err != nil {
				return err
			}
			continue
		}
		c.arm(2, 60)
		if err := c.work(l); err != nil {
			return err
		}
		c.crash(l)
	}
	return nil
}

// may tells what the last crash allows.
type may struct{ damage bool }

// open starts the log until no injected failure stands against it, and compares. A nil log is a named damage.
func (c *crasher) open() (*Log, error) {
	allowed := may{}
	tampered := c.tamper()
	if tampered != "" {
		allowed.damage = true
	}
	if tampered == "log" || tampered == flippedLog {
		// Damage to the end of the log, above the durable bound, can not be told from a torn write. One flipped bit can not
		// cost more than the last frame.
		if m, _, err := readMeta(c.fs, c.o.Dir); err == nil && m.BoundIndex < c.w.synced {
			if tampered == flippedLog {
				c.w.synced--
			} else {
				c.w.synced = m.BoundIndex
			}
		}
		c.present = 0
	}
	if *trace {
		fmt.Printf("open: first %d last %d synced %d present %d batch %v tampered %q\n", c.w.first, c.w.last(), c.w.synced, c.present, c.batch, tampered)
	}
	for try := 0; ; try++ {
		if c.fault = -1; try < 2 {
			c.arm(4, 40)
		}
		l, err := Open(c.o)
		if *trace {
			fmt.Println("opened:", err)
		}
		if err != nil {
			var d *DamageError
			switch {
			case c.hit && !errors.As(err, &d):
				c.stats["open failed and went well"]++
				if c.r.IntN(2) == 0 {
					c.fs = c.fs.KillProcess()
				} else {
					c.fs = c.fs.Crash(c.r)
					c.present = 0
				}
				c.o.FS = vfs.Inject(c.fs, c.rule)
				continue
			case errors.Is(err, ErrNotCreated) && c.starts == 0:
				// The end of the creation was never durable. It would be repeated.
				return nil, nil
			case (errors.As(err, &d) || errors.Is(err, ErrMetaLost)) && allowed.damage:
				c.stats["damage"]++
				return nil, nil
			}
			return nil, fmt.Errorf("open after %v (batch %v, tampered %q): %w", c.stats, c.batch, tampered, err)
		}
		c.fault = -1
		named, err := c.compare(l, tampered)
		if err != nil {
			return nil, fmt.Errorf("after the start (tampered %q): %w", tampered, err)
		}
		if named {
			c.stats["damage"]++
			l.Close(false)
			return nil, nil
		}
		c.stats["open ok"]++
		return l, nil
	}
}

// compare checks l against the twin, and makes the twin what l holds.
func (c *crasher) compare(l *Log, tampered string) (named bool, err error) {
	w := c.w
	if l.FirstIndex() != w.first {
		// A front cut that failed on the way may have been made or not.
		if l.FirstIndex() < w.first || l.FirstIndex() > w.last() {
			return false, fmt.Errorf("first index %d, want %d", l.FirstIndex(), w.first)
		}
		w.frames = w.frames[l.FirstIndex()-w.first:]
		w.first = l.FirstIndex()
	}
	last := l.Tail().Index
	if tampered == "meta" && last > w.last() {
		w.frames = append(w.frames, c.cut...) // the slot with the intent is gone
	}
	if c.batch && last < w.last() {
		c.stats["torn batch"]++
	}
	if last < max(w.synced, c.present) || last > w.last() {
		return false, fmt.Errorf("tail %d; %d were synced, %d must be present, %d were written", last, w.synced, c.present, w.last())
	}
	w.frames = w.frames[:last-w.first+1]
	n := 0
	for f, err := range l.Frames(w.first) {
		if err != nil {
			var cor *CorruptionError
			if errors.As(err, &cor) && tampered != "" && l.Poisoned() != nil {
				return true, nil
			}
			return false, err
		}
		if !bytes.Equal(f, w.frames[n]) {
			return false, fmt.Errorf("frame %d differs", f.Index())
		}
		n++
	}
	if n != len(w.frames) {
		return false, fmt.Errorf("%d frames read of %d", n, len(w.frames))
	}
	for i := w.first; i <= last; i++ {
		f, err := l.ReadFrame(i, nil)
		if err != nil || !bytes.Equal(f, w.frames[i-w.first]) {
			return false, fmt.Errorf("ReadFrame(%d): %v", i, err)
		}
		if term, err := l.TermOf(i); err != nil || term != f.Term() {
			return false, fmt.Errorf("TermOf(%d) = %v, %v", i, term, err)
		}
	}
	m := l.Meta()
	found := false
	for _, o := range c.owners {
		found = found || bytes.Equal(o, m.Owner)
	}
	if !found && tampered != "meta" {
		return false, fmt.Errorf("owner %q, want one of %q", m.Owner, c.owners)
	}
	if m.Starts <= c.starts && tampered != "meta" {
		return false, fmt.Errorf("start counter %d after %d", m.Starts, c.starts)
	}
	if i, _ := l.Synced(); i != last {
		return false, fmt.Errorf("synced %d of %d after the start", i, last)
	}
	c.owners, c.starts = [][]byte{m.Owner}, m.Starts
	w.synced, c.present, c.batch, c.cut = last, 0, false, nil
	return false, nil
}

// work does a few dozen things, until one fails.
func (c *crasher) work(l *Log) error {
	w := c.w
	failed := func(err error) (bool, error) {
		if err == nil {
			return false, nil
		}
		if !c.hit {
			return true, err
		}
		return true, nil
	}
	for range c.r.IntN(60) {
		var err error
		switch op := c.r.IntN(24); {
		case op < 8:
			frames := w.batch(l)
			if c.r.IntN(2) == 0 {
				frames = frames[:1] // as a quiet master does
			}
			err = l.Append(frames)
			w.frames = append(w.frames, frames...) // also when it failed: it may be there
			if *trace {
				fmt.Printf("append %d frames from %d @%d: %v\n", len(frames), frames[0].Index(), frames[0].Offset(), err)
			}
		case op < 17:
			if err = l.Sync(); err == nil {
				w.synced = w.last()
			}
		case op < 18:
			i := w.first - 1 + ids.Index(c.r.IntN(len(w.frames)+1))
			err = l.TruncateAfter(i)
			if errors.Is(err, ErrCompacted) || i == w.last() {
				err = nil
				break
			}
			w.synced = min(w.synced, i)
			if err == nil {
				w.frames = w.frames[:i-w.first+1]
				w.synced = w.last()
			} else {
				c.stats["failed truncation"]++
			}
		case op < 19 && c.r.IntN(2) == 0:
			segs := l.Segments()
			s := segs[c.r.IntN(len(segs))]
			if _, end := l.Synced(); s.LastIndex < s.FirstIndex || end <= s.Base+segmentHeaderSize {
				break
			}
			if err = l.CutFront(s.Base); err == nil {
				c.stats["front cut"]++
				w.frames = w.frames[s.FirstIndex-w.first:]
				w.first = s.FirstIndex
			}
		case op < 20:
			o := []byte(fmt.Sprint("owner", c.r.Uint32()))
			if err = l.SaveMeta(o, c.r.IntN(2) == 0); err == nil {
				c.owners = nil
			}
			c.owners = append(c.owners, o)
		case op < 21:
			if err = l.Checkpoint(nil); err == nil {
				w.synced = w.last()
			}
		default:
			_, err = l.FillAhead()
		}
		if *trace && err != nil {
			fmt.Println("failed:", err)
		}
		if stop, err := failed(err); err != nil {
			return err
		} else if stop {
			if l.Poisoned() != nil {
				c.stats["poisoned"]++
				c.fault = -1
				if err := c.isPoisoned(l); err != nil {
					return err
				}
			}
			return nil
		}
	}
	if c.r.IntN(6) == 0 && len(w.frames) > 1 { // stop in the middle of a truncation
		i := w.first + ids.Index(c.r.IntN(len(w.frames)-1))
		c.fault, c.hit = 2+c.r.IntN(12), false
		before := w.last()
		err := l.TruncateAfter(i)
		if w.synced = min(w.synced, i); err == nil {
			w.frames = w.frames[:i-w.first+1]
			w.synced = i
		} else if l.Meta().TruncateTo != 0 {
			// The intent is durable: the frames may not come back.
			c.stats["completed truncation"]++
			w.frames, c.cut = w.frames[:i-w.first+1], w.frames[i-w.first+1:]
		} else if !c.hit {
			return fmt.Errorf("truncation of %d to %d: %w", before, i, err)
		}
	}
	return nil
}

// isPoisoned checks that nothing can be changed any more.
func (c *crasher) isPoisoned(l *Log) error {
	var p *PoisonedError
	for _, err := range []error{l.Append(nil), l.Sync(), l.SaveMeta(nil, false), l.TruncateAfter(0), l.Checkpoint(nil)} {
		if !errors.As(err, &p) || !errors.Is(err, errInjected) {
			return fmt.Errorf("a poisoned log answers %v", err)
		}
	}
	return nil
}

// crash ends l in one of three ways.
func (c *crasher) crash(l *Log) {
	switch c.fault = -1; c.r.IntN(5) {
	case 0:
		if l.Close(true) == nil {
			c.w.synced = c.w.last()
		}
		if c.r.IntN(2) == 0 {
			c.fs = c.fs.Crash(c.r)
		} else {
			c.fs = c.fs.KillProcess()
		}
		c.stats["clean stop"]++
	case 1, 2:
		c.fs = c.fs.KillProcess()
		c.stats["kill -9"]++
		if l.Poisoned() == nil {
			c.present = c.w.last() // all that was written is there, though not durable
		}
	default:
		c.batch = c.w.last() > c.w.synced+1
		c.fs = c.fs.Crash(c.r)
		c.stats["power cut"]++
	}
	c.o.FS = vfs.Inject(c.fs, c.rule)
	if *trace {
		fmt.Println("crashed", c.stats)
	}
}

// flippedLog is what tamper returns after it flipped a bit of a segment.
const flippedLog = "bit of a log"

// tamper damages a file, in one of five crashes. It returns what, or "".
func (c *crasher) tamper() string {
	if c.r.IntN(5) != 0 || c.starts == 0 {
		return ""
	}
	names, err := c.fs.List(c.o.Dir)
	if err != nil || len(names) == 0 {
		return ""
	}
	name := names[c.r.IntN(len(names))]
	path := filepath.Join(c.o.Dir, name)
	kind := strings.TrimPrefix(filepath.Ext(name), ".")
	if kind == "" {
		kind = name
	}
	if kind == "lock" {
		return ""
	}
	f, err := c.fs.OpenReadWrite(path)
	if err != nil {
		return ""
	}
	size, _ := f.Size()
	switch c.r.IntN(4) {
	case 0: // zero length
		f.Truncate(0)
	case 1: // half
		f.Truncate(size / 2)
	default: // one bit
		if size == 0 {
			return ""
		}
		at := c.r.Int64N(size)
		var b [1]byte
		f.ReadAt(b[:], at)
		b[0] ^= 1 << c.r.IntN(8)
		f.WriteAt(b[:], at)
		if kind == "log" {
			kind = flippedLog
		}
	}
	f.SyncData()
	f.Close()
	c.stats["tampered"]++
	return kind
}

var errPower = errors.New("the power is off")

// powerAfter lets k changes of fs through. Of the next one, a write gets half way, and then everything fails. on tells whether
// the power is still there.
func powerAfter(fs vfs.FS, k int) (cut vfs.FS, on func() bool) {
	return vfs.Inject(fs, func(op vfs.Op, _ string, _ int64, n int) error {
		switch op {
		case vfs.OpWrite, vfs.OpSync, vfs.OpSyncDir, vfs.OpRename, vfs.OpCreate, vfs.OpRemove:
			k--
		}
		switch {
		case k == -1 && op == vfs.OpWrite:
			return &vfs.ShortWrite{N: n / 2, Err: errPower}
		case k < 0:
			return errPower
		}
		return nil
	}), func() bool { return k >= 0 }
}
