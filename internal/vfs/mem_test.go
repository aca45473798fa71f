package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
)

func rnd(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// outcomes crashes what build made under many seeds and counts what look says afterwards.
func outcomes(t *testing.T, build func(m *Mem), look func(m *Mem) string) map[string]int {
	t.Helper()
	seen := map[string]int{}
	for seed := range uint64(200) {
		m := NewMem()
		check(t, m.MkdirAll("/d"))
		check(t, m.SyncDir("/"))
		build(m)
		seen[look(m.Crash(rnd(seed)))]++
	}
	return seen
}

func content(m *Mem, name string) string {
	b, err := ReadFile(m, name)
	if errors.Is(err, os.ErrNotExist) {
		return "absent"
	}
	return string(b)
}

func TestCrashKeepsOnlyWhatWasSynced(t *testing.T) {
	t.Parallel()
	seen := outcomes(t, func(m *Mem) {
		write(t, m, "/d/a", "synced", true)
		check(t, m.SyncDir("/d"))
	}, func(m *Mem) string { return content(m, "/d/a") })
	if len(seen) != 1 || seen["synced"] == 0 {
		t.Fatalf("synced content and name: %v", seen)
	}

	seen = outcomes(t, func(m *Mem) { write(t, m, "/d/a", "x", true) }, func(m *Mem) string { return content(m, "/d/a") })
	if len(seen) != 2 || seen["absent"] == 0 || seen["x"] == 0 {
		t.Fatalf("name not synced: %v", seen)
	}

	seen = outcomes(t, func(m *Mem) {
		write(t, m, "/d/a", "x", false)
		check(t, m.SyncDir("/d"))
	}, func(m *Mem) string { return content(m, "/d/a") })
	if len(seen) != 2 || seen[""] == 0 || seen["x"] == 0 {
		t.Fatalf("content not synced, a zero-length file is possible: %v", seen)
	}

	seen = outcomes(t, func(m *Mem) {
		write(t, m, "/d/a", "a", true)
		write(t, m, "/d/b", "b", true)
		check(t, m.SyncDir("/d"))
		check(t, m.Rename("/d/b", "/d/a"))
	}, func(m *Mem) string { return content(m, "/d/a") + content(m, "/d/b") })
	if len(seen) != 2 || seen["ab"] == 0 || seen["babsent"] == 0 {
		t.Fatalf("rename not synced: %v", seen)
	}

	seen = outcomes(t, func(m *Mem) {
		write(t, m, "/d/a", "a", true)
		check(t, m.SyncDir("/d"))
		check(t, m.Remove("/d/a"))
	}, func(m *Mem) string { return content(m, "/d/a") })
	if len(seen) != 2 || seen["a"] == 0 || seen["absent"] == 0 {
		t.Fatalf("removal not synced: %v", seen)
	}
}

func TestCrashTearsBySectors(t *testing.T) {
	t.Parallel()
	seen := outcomes(t, func(m *Mem) {
		write(t, m, "/d/a", string(make([]byte, 4*sector)), true)
		check(t, m.SyncDir("/d"))
		f, err := m.OpenReadWrite("/d/a")
		check(t, err)
		_, err = f.WriteAt(bytes.Repeat([]byte{1}, 2*sector+10), sector-5)
		check(t, err)
	}, func(m *Mem) string {
		b, _ := ReadFile(m, "/d/a")
		s := ""
		for i := 0; i < len(b); i += sector {
			s += fmt.Sprint(bytes.Count(b[i:i+sector], []byte{1}), " ")
		}
		return s
	})
	for s := range seen {
		var a, b, c, d int
		if _, err := fmt.Sscan(s, &a, &b, &c, &d); err != nil || (a != 0 && a != 5) || (b != 0 && b != sector) || (c != 0 && c != sector) || (d != 0 && d != 5) {
			t.Fatalf("not torn by sectors: %q", s)
		}
	}
	if len(seen) != 16 {
		t.Fatalf("%d of 16 outcomes: %v", len(seen), seen)
	}
}

func TestCrashIsRepeatable(t *testing.T) {
	t.Parallel()
	image := func() string {
		m := NewMem()
		check(t, m.MkdirAll("/d"))
		check(t, m.SyncDir("/"))
		for i := range 20 {
			write(t, m, fmt.Sprint("/d/", i), fmt.Sprint("content ", i), i%2 == 0)
		}
		m = m.Crash(rnd(7))
		names, err := m.List("/d")
		check(t, err)
		s := ""
		for _, n := range names {
			s += n + content(m, "/d/"+n)
		}
		return s
	}
	if a, b := image(), image(); a != b {
		t.Fatalf("two crashes of one seed differ: %q, %q", a, b)
	}
}

func TestKillProcessKeepsWrites(t *testing.T) {
	t.Parallel()
	m := NewMem()
	check(t, m.MkdirAll("/d"))
	write(t, m, "/d/a", "x", false)
	old, err := m.OpenReadWrite("/d/a")
	check(t, err)
	_, err = m.Lock("/d/lock")
	check(t, err)
	k := m.KillProcess()
	if content(k, "/d/a") != "x" {
		t.Fatal("a write is lost")
	}
	l, err := k.Lock("/d/lock")
	check(t, err)
	check(t, l.Close())
	_, err = old.WriteAt([]byte("y"), 0)
	wants(t, err, ErrCrashed)
	_, err = m.Stat("/d")
	wants(t, err, ErrCrashed)
	if content(k, "/d/a") != "x" {
		t.Fatal("the dead process wrote")
	}
	// What was not synced is still not durable.
	lost := false
	for seed := uint64(0); seed < 50 && !lost; seed++ {
		m := NewMem()
		check(t, m.MkdirAll("/d"))
		check(t, m.SyncDir("/"))
		write(t, m, "/d/a", "x", false)
		lost = content(m.KillProcess().Crash(rnd(seed)), "/d/a") != "x"
	}
	if !lost {
		t.Fatal("a kill made writes durable")
	}
}

func TestInject(t *testing.T) {
	t.Parallel()
	m := NewMem()
	check(t, m.MkdirAll("/d"))
	check(t, m.SyncDir("/"))
	boom := errors.New("boom")
	var fail Op = -1
	var answer error = boom
	fs := Inject(m, func(op Op, name string, off int64, n int) error {
		if op == fail {
			return answer
		}
		return nil
	})
	write(t, fs, "/d/a", "0123456789", true)
	check(t, fs.SyncDir("/d"))
	f, err := fs.OpenReadWrite("/d/a")
	check(t, err)
	for op, do := range map[Op]func() error{
		OpCreate:   func() error { _, err := fs.Create("/d/a"); return err },
		OpOpen:     func() error { _, err := fs.Open("/d/a"); return err },
		OpRead:     func() error { _, err := f.ReadAt(make([]byte, 1), 0); return err },
		OpWrite:    func() error { _, err := f.WriteAt([]byte("x"), 0); return err },
		OpTruncate: func() error { return f.Truncate(0) },
		OpSync:     f.SyncData,
		OpSyncDir:  func() error { return fs.SyncDir("/d") },
		OpRename:   func() error { return fs.Rename("/d/a", "/d/b") },
		OpRemove:   func() error { return fs.Remove("/d/a") },
		OpMkdir:    func() error { return fs.MkdirAll("/d/e") },
		OpList:     func() error { _, err := fs.List("/d"); return err },
		OpStat:     func() error { _, err := fs.Stat("/d/a"); return err },
		OpLock:     func() error { _, err := fs.Lock("/d/lock"); return err },
		OpSpace:    func() error { _, _, err := fs.Space("/d"); return err },
	} {
		fail = op
		if err := do(); !errors.Is(err, boom) {
			t.Errorf("%v: %v", op, err)
		}
	}
	if got := content(m, "/d/a"); got != "0123456789" {
		t.Fatalf("a failed operation changed the file: %q", got)
	}

	fail, answer = OpWrite, &ShortWrite{N: 3, Err: boom}
	wants(t, f.WritevAt([][]byte{[]byte("ab"), []byte("cd")}, 0), boom)
	if got := content(m, "/d/a"); got != "abc3456789" {
		t.Fatalf("short write: %q", got)
	}

	fail, answer = OpSync, &LostSync{Err: boom}
	wants(t, f.SyncData(), boom)
	fail = -1
	check(t, f.SyncData())
	k := m.KillProcess()
	if got := content(k, "/d/a"); got != "abc3456789" {
		t.Fatalf("a lost sync shows while the machine runs: %q", got)
	}
	if got := content(k.Crash(rnd(0)), "/d/a"); got != "0123456789" {
		t.Fatalf("a later sync made the lost write durable: %q", got)
	}
}

// TestWriteFileAtomicCrash crashes in each step: there is the old content or the new one, and after success the new one.
func TestWriteFileAtomicCrash(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for seed := range uint64(200) {
		r := rnd(seed)
		m := NewMem()
		check(t, m.MkdirAll("/d"))
		check(t, m.SyncDir("/"))
		check(t, WriteFileAtomic(m, "/d/f", []byte("old")))
		left := r.IntN(8)
		err := WriteFileAtomic(Inject(m, func(Op, string, int64, int) error {
			if left--; left < 0 {
				return boom
			}
			return nil
		}), "/d/f", []byte("new"))
		got := content(m.Crash(r), "/d/f")
		if got != "new" && (got != "old" || err == nil) {
			t.Fatalf("seed %d: %q after %v", seed, got, err)
		}
	}
}

func TestSetSpace(t *testing.T) {
	t.Parallel()
	m := NewMem()
	m.SetSpace(5, 10)
	if free, total, err := m.Space("/"); err != nil || free != 5 || total != 10 {
		t.Fatalf("%d of %d, %v", free, total, err)
	}
}
