package commitlog

import (
	"errors"
	"maps"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

func async(fs vfs.FS, boot string) Options {
	o := small(fs)
	o.Async, o.BootID = true, boot
	return o
}

// TestPowerCutUnderAsync: frames are written, some of them synced behind the writer, and the power goes. In the next boot the log
// says, as often as it is asked, that it may lack what was acknowledged, and changes nothing; what was synced can be read.
func TestPowerCutUnderAsync(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 7))
		fs := vfs.NewMem()
		o := async(fs, "a")
		l := mustCreate(t, o)
		var frames []Frame
		for range 5 + r.IntN(40) {
			switch r.IntN(8) {
			case 0:
				check(t, l.SyncBehind())
			case 1:
				check(t, l.SaveMeta([]byte("vote"), true))
			case 2:
				check(t, l.Checkpoint(nil))
			case 3:
				if _, err := l.FillAhead(); err != nil {
					t.Fatal(err)
				}
			case 4:
				if i := l.Tail().Index; i > 3 {
					check(t, l.TruncateAfter(i-2))
					frames = frames[:i-2]
				}
			default:
				batch := chain(t, l, l.Tail(), 1+r.IntN(4), 200+r.IntN(9000))
				check(t, l.Append(batch))
				frames = append(frames, batch...)
			}
		}
		synced, _ := l.Synced()
		before := fs
		if seed%2 == 0 {
			fs = before.Crash(r)
		} else {
			l.Close(false)
			fs = before.KillProcess().Crash(r)
		}
		for _, boot := range []string{"b", "b", "", "c"} {
			was := image(t, async(fs, boot))
			var lost *LostTailError
			if _, err := Open(async(fs, boot)); !errors.As(err, &lost) || !IdentityLost(err) {
				t.Fatalf("seed %d: Open in boot %q: %v", seed, boot, err)
			}
			if !maps.Equal(was, image(t, async(fs, boot))) {
				t.Fatalf("seed %d: Open changed a file", seed)
			}
		}
		read := async(fs, "b")
		read.ReadOnly = true
		l, err := Open(read)
		if err != nil {
			t.Fatalf("seed %d: read-only: %v", seed, err)
		}
		if l.Tail().Index < synced {
			t.Fatalf("seed %d: the log ends at %d, synced was %d", seed, l.Tail().Index, synced)
		}
		tail := l.Tail()
		holds(t, l, frames[:tail.Index])
		check(t, l.Close(false))

		// Who is chosen to go on has exactly what it told, as often as its opening is cut short, and a log like any other afterwards.
		accept := async(fs, "b")
		accept.AcceptLoss = true
		for range 1 + r.IntN(2) {
			l = mustOpen(t, accept)
			if l.Tail() != tail {
				t.Fatalf("seed %d: it was told that the log ends with %+v, it ends with %+v", seed, tail, l.Tail())
			}
			check(t, l.Close(false))
			accept.FS = accept.FS.(*vfs.Mem).Crash(r)
		}
		l = mustOpen(t, accept)
		frames = append(frames[:tail.Index:tail.Index], grow(t, l, 1, 30, 3000)...)
		check(t, l.Close(false))
		l = mustOpen(t, async(accept.FS.(*vfs.Mem).KillProcess(), "b"))
		holds(t, l, frames)
		check(t, l.Close(false))
	}
}

// The end of a process loses nothing, and a clean stop may be followed by another boot.
func TestKillUnderAsync(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	o := async(fs, "a")
	l := mustCreate(t, o)
	frames := grow(t, l, 1, 40, 5000)
	fs = fs.KillProcess()
	l = mustOpen(t, async(fs, "a"))
	holds(t, l, frames)
	frames = append(frames, grow(t, l, 1, 10, 5000)...)
	check(t, l.Close(true))
	fs = fs.Crash(rnd(1))
	l = mustOpen(t, async(fs, "b"))
	holds(t, l, frames)
	check(t, l.Close(false))
	// A start alone is no clean stop.
	if _, err := Open(async(fs.Crash(rnd(2)), "c")); !IdentityLost(err) {
		t.Fatalf("Open: %v", err)
	}
}

// After the end of a process a bad frame that others follow is damage, though all of them are in one long batch.
func TestFlippedBitUnderAsync(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	o := async(fs, "a")
	l := mustCreate(t, o)
	frames := grow(t, l, 1, 8, 2000)
	fs = fs.KillProcess()
	tamper(t, fs, o.Dir+"/"+segmentName(0, logSuffix), flip(int64(frames[4].Offset())+40))
	var d *DamageError
	if _, err := Open(async(fs, "a")); !errors.As(err, &d) || d.Lost || d.Offset != frames[4].Offset() {
		t.Fatalf("Open: %v", err)
	}
}

// A sync behind the writer does not stop appends, covers what was written when it began, and is waited for by whoever syncs or cuts.
func TestSyncBehind(t *testing.T) {
	t.Parallel()
	var slow atomic.Bool
	began, end := make(chan struct{}), make(chan struct{})
	fs := vfs.Inject(vfs.NewMem(), func(op vfs.Op, name string, _ int64, _ int) error {
		if op == vfs.OpSync && strings.HasSuffix(name, logSuffix) && slow.CompareAndSwap(true, false) {
			began <- struct{}{}
			<-end
		}
		return nil
	})
	l := mustCreate(t, async(fs, "a"))
	defer l.Close(false)
	for _, then := range []struct {
		name string
		do   func() error
		want ids.Index // last index that is durable afterwards
	}{
		{"append", nil, 3},
		{"sync", l.Sync, 12},
		{"truncation", func() error { return l.TruncateAfter(10) }, 10},
		{"checkpoint", func() error { return l.Checkpoint(nil) }, 10 + 6},
	} {
		grow(t, l, 1, 3, 500)
		slow.Store(true)
		done := make(chan error, 1)
		go func() { done <- l.SyncBehind() }()
		<-began
		before, _ := l.Synced()
		grow(t, l, 1, 3, 500)
		if synced, _ := l.Synced(); synced != before || l.Unsynced() == 0 {
			t.Fatalf("%s: index %d counts as synced before the sync has ended", then.name, synced)
		}
		waits := make(chan error, 1)
		if then.do != nil {
			go func() { waits <- then.do() }()
			for l.wmu.TryLock() { // until it has taken it, and waits
				l.wmu.Unlock()
				if len(waits) > 0 {
					t.Fatalf("%s does not wait for the sync that runs", then.name)
				}
				runtime.Gosched()
			}
		}
		end <- struct{}{}
		check(t, <-done)
		if then.do != nil {
			check(t, <-waits)
		}
		if synced, _ := l.Synced(); synced != then.want {
			t.Fatalf("%s: index %d is synced, want %d", then.name, synced, then.want)
		}
	}
}

// A failed sync behind the writer poisons the log and is never tried again.
func TestFailedSyncBehind(t *testing.T) {
	t.Parallel()
	injected := errors.New("injected")
	for _, op := range []vfs.Op{vfs.OpSync, vfs.OpSyncDir} {
		var fail atomic.Bool
		var tries atomic.Int32
		fs := vfs.Inject(vfs.NewMem(), func(o vfs.Op, name string, _ int64, _ int) error {
			if fail.Load() && o == op && !strings.HasSuffix(name, metaName) {
				tries.Add(1)
				return injected
			}
			return nil
		})
		l := mustCreate(t, async(fs, "a"))
		frames := grow(t, l, 1, 20, 5000) // over the end of a segment, so that the folder has to be synced
		fail.Store(true)
		var p *PoisonedError
		if err := l.SyncBehind(); !errors.As(err, &p) || !errors.Is(err, injected) || !l.SyncFailed() {
			t.Fatalf("%v: SyncBehind: %v", op, err)
		}
		for name, change := range map[string]func() error{
			"SyncBehind": l.SyncBehind, "Sync": l.Sync, "Append": func() error { return l.Append(chain(t, l, l.Tail(), 1, 10)) },
			"TruncateAfter": func() error { return l.TruncateAfter(1) }, "SaveMeta": func() error { return l.SaveMeta(nil, true) },
			"Checkpoint": func() error { return l.Checkpoint(nil) },
		} {
			if err := change(); !errors.Is(err, injected) {
				t.Errorf("%v: %s after the failure: %v", op, name, err)
			}
		}
		holds(t, l, frames)
		if err := l.Close(true); !errors.Is(err, injected) {
			t.Errorf("%v: a clean stop of a poisoned log: %v", op, err)
		}
		if n := tries.Load(); n != 1 {
			t.Errorf("%v was tried %d times", op, n)
		}
	}
}

// TestCostOfAsync counts the syncs of the writer's own way: none but the marks, of which one covers many appends.
func TestCostOfAsync(t *testing.T) {
	t.Parallel()
	var syncs atomic.Int32
	fs := vfs.Inject(vfs.NewMem(), func(op vfs.Op, _ string, _ int64, _ int) error {
		if op == vfs.OpSync {
			syncs.Add(1)
		}
		return nil
	})
	l := mustCreate(t, async(fs, "a"))
	defer l.Close(false)
	syncs.Store(0)
	grow(t, l, 1, 100, 1000)
	if n := syncs.Load(); n > 5 {
		t.Errorf("100 frames of 1000 bytes cost %d syncs", n)
	}
}
