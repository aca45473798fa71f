package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wants fails unless err wraps target.
func wants(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("error %v, want %v", err, target)
	}
}

// write makes name with content data, synced when sync is set.
func write(t *testing.T, fs FS, name, data string, sync bool) {
	t.Helper()
	f, err := fs.Create(name)
	check(t, err)
	_, err = f.WriteAt([]byte(data), 0)
	check(t, err)
	if sync {
		check(t, f.SyncData())
	}
	check(t, f.Close())
}

func read(t *testing.T, fs FS, name string) string {
	t.Helper()
	b, err := ReadFile(fs, name)
	check(t, err)
	return string(b)
}

// worlds runs the same test on each implementation.
func worlds(t *testing.T, test func(t *testing.T, fs FS, dir string)) {
	t.Parallel()
	t.Run("OS", func(t *testing.T) { t.Parallel(); test(t, OS, t.TempDir()) })
	t.Run("Mem", func(t *testing.T) {
		t.Parallel()
		m := NewMem()
		check(t, m.MkdirAll("/d"))
		test(t, m, "/d")
	})
	t.Run("Inject", func(t *testing.T) {
		t.Parallel()
		m := NewMem()
		check(t, m.MkdirAll("/d"))
		test(t, Inject(m, func(Op, string, int64, int) error { return nil }), "/d")
	})
}

func TestFiles(t *testing.T) {
	worlds(t, func(t *testing.T, fsys FS, dir string) {
		name := filepath.Join(dir, "a")
		_, err := fsys.Open(name)
		wants(t, err, os.ErrNotExist)
		_, err = fsys.OpenReadWrite(name)
		wants(t, err, os.ErrNotExist)
		_, err = fsys.Create(filepath.Join(dir, "none", "a"))
		wants(t, err, os.ErrNotExist)
		_, err = fsys.OpenReadWrite(dir)
		if err == nil {
			t.Fatal("a directory was opened for writing")
		}

		f, err := fsys.Create(name)
		check(t, err)
		if f.Name() != name {
			t.Fatalf("name %q", f.Name())
		}
		n, err := f.WriteAt([]byte("hello"), 10)
		check(t, err)
		if n != 5 {
			t.Fatalf("wrote %d", n)
		}
		check(t, f.WritevAt([][]byte{[]byte("ab"), nil, []byte("cde")}, 2))
		check(t, f.WritevAt(nil, 0))
		size, err := f.Size()
		check(t, err)
		want := "\x00\x00abcde\x00\x00\x00hello"
		if size != int64(len(want)) || read(t, fsys, name) != want {
			t.Fatalf("%d bytes %q", size, read(t, fsys, name))
		}
		b := make([]byte, 10)
		if n, err := f.ReadAt(b, 10); n != 5 || err != io.EOF || string(b[:n]) != "hello" {
			t.Fatalf("ReadAt over the end: %d, %v", n, err)
		}
		if n, err := f.ReadAt(b, 15); n != 0 || err != io.EOF {
			t.Fatalf("ReadAt at the end: %d, %v", n, err)
		}
		if n, err := f.ReadAt(b[:5], 10); n != 5 || err != nil {
			t.Fatalf("ReadAt up to the end: %d, %v", n, err)
		}
		if _, err := f.ReadAt(b, -1); err == nil {
			t.Fatal("ReadAt at a negative offset")
		}
		if _, err := f.WriteAt(b, -1); err == nil {
			t.Fatal("WriteAt at a negative offset")
		}

		check(t, f.Truncate(12))
		check(t, f.Truncate(15)) // grows by zeros, not by what was there
		if got := read(t, fsys, name); got != "\x00\x00abcde\x00\x00\x00he\x00\x00\x00" {
			t.Fatalf("after the truncation %q", got)
		}
		check(t, f.SyncData())
		check(t, f.Close())
		_, err = f.WriteAt([]byte("x"), 0)
		wants(t, err, os.ErrClosed)
		wants(t, f.Close(), os.ErrClosed)

		r, err := fsys.Open(name)
		check(t, err)
		if _, err := r.WriteAt([]byte("x"), 0); err == nil {
			t.Fatal("wrote through a read-only handle")
		}
		w, err := fsys.OpenReadWrite(name)
		check(t, err)
		_, err = w.WriteAt([]byte("X"), 0)
		check(t, err)
		if _, err := r.ReadAt(b[:1], 0); err != nil || b[0] != 'X' {
			t.Fatalf("a write is not seen through another handle: %q, %v", b[:1], err)
		}
		check(t, w.Close())
		f, err = fsys.Create(name) // truncates
		check(t, err)
		if size, err := r.Size(); err != nil || size != 0 {
			t.Fatalf("size %d, %v after Create", size, err)
		}
		check(t, f.Close())
		check(t, r.Close())
	})
}

func TestManyBuffers(t *testing.T) {
	worlds(t, func(t *testing.T, fsys FS, dir string) {
		var bufs [][]byte
		var want []byte
		for i := range 3000 { // more than one system call takes
			b := bytes.Repeat([]byte{byte(i)}, i%7)
			bufs = append(bufs, b)
			want = append(want, b...)
		}
		f, err := fsys.Create(filepath.Join(dir, "a"))
		check(t, err)
		defer f.Close()
		check(t, f.WritevAt(bufs, 0))
		if got := read(t, fsys, f.Name()); got != string(want) {
			t.Fatalf("%d bytes, want %d", len(got), len(want))
		}
	})
}

func TestNames(t *testing.T) {
	worlds(t, func(t *testing.T, fsys FS, dir string) {
		path := func(names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
		check(t, fsys.MkdirAll(path("x", "y")))
		check(t, fsys.MkdirAll(path("x", "y")))
		write(t, fsys, path("x", "b"), "b", false)
		write(t, fsys, path("x", "a"), "a", false)
		names, err := fsys.List(path("x"))
		check(t, err)
		if !slices.Equal(names, []string{"a", "b", "y"}) {
			t.Fatalf("List: %v", names)
		}
		if _, err := fsys.List(path("x", "a")); err == nil {
			t.Fatal("List of a file")
		}
		_, err = fsys.List(path("none"))
		wants(t, err, os.ErrNotExist)
		wants(t, fsys.SyncDir(path("none")), os.ErrNotExist)
		wants(t, fsys.Remove(path("none")), os.ErrNotExist)
		wants(t, fsys.Rename(path("none"), path("x", "c")), os.ErrNotExist)
		wants(t, fsys.Rename(path("x", "a"), path("none", "c")), os.ErrNotExist)
		if err := fsys.MkdirAll(path("x", "a", "z")); err == nil {
			t.Fatal("a directory in a file")
		}
		if err := fsys.Remove(path("x")); err == nil {
			t.Fatal("a full directory was removed")
		}

		// A handle follows the file, not the name; Rename replaces.
		f, err := fsys.OpenReadWrite(path("x", "a"))
		check(t, err)
		check(t, fsys.Rename(path("x", "a"), path("x", "b")))
		_, err = f.WriteAt([]byte("A"), 0)
		check(t, err)
		if got := read(t, fsys, path("x", "b")); got != "A" {
			t.Fatalf("after the rename %q", got)
		}
		_, err = fsys.Stat(path("x", "a"))
		wants(t, err, os.ErrNotExist)
		check(t, fsys.Remove(path("x", "b")))
		b := make([]byte, 1)
		if _, err := f.ReadAt(b, 0); err != nil || b[0] != 'A' {
			t.Fatalf("a removed file that is open reads %q, %v", b, err)
		}
		check(t, f.Close())
		check(t, fsys.Remove(path("x", "y")))
		check(t, fsys.SyncDir(path("x")))
		if st, err := fsys.Stat(path("x")); err != nil || !st.IsDir {
			t.Fatalf("Stat: %+v, %v", st, err)
		}
		write(t, fsys, path("c"), "12345", false)
		if st, err := fsys.Stat(path("c")); err != nil || st.IsDir || st.Size != 5 {
			t.Fatalf("Stat: %+v, %v", st, err)
		}
		if free, total, err := fsys.Space(dir); err != nil || free == 0 || total < free {
			t.Fatalf("Space: %d of %d, %v", free, total, err)
		}
		_, _, err = fsys.Space(path("none"))
		wants(t, err, os.ErrNotExist)
	})
}

func TestLock(t *testing.T) {
	worlds(t, func(t *testing.T, fsys FS, dir string) {
		name := filepath.Join(dir, "lock")
		l, err := fsys.Lock(name)
		check(t, err)
		_, err = fsys.Lock(name)
		wants(t, err, ErrLocked)
		check(t, l.Close())
		l, err = fsys.Lock(name)
		check(t, err)
		check(t, l.Close())
		_, err = fsys.Lock(filepath.Join(dir, "none", "lock"))
		wants(t, err, os.ErrNotExist)
	})
}

func TestWriteFileAtomic(t *testing.T) {
	worlds(t, func(t *testing.T, fsys FS, dir string) {
		name := filepath.Join(dir, "f")
		for _, data := range []string{"one", "", "three"} {
			check(t, WriteFileAtomic(fsys, name, []byte(data)))
			if got := read(t, fsys, name); got != data {
				t.Fatalf("%q, want %q", got, data)
			}
		}
		names, err := fsys.List(dir)
		check(t, err)
		if !slices.Equal(names, []string{"f"}) {
			t.Fatalf("left behind: %v", names)
		}
		deep := filepath.Join(dir, "p", "q", "r")
		check(t, MkdirDurable(fsys, deep))
		check(t, MkdirDurable(fsys, deep))
		check(t, WriteFileAtomic(fsys, filepath.Join(deep, "f"), []byte("x")))
	})
}

// TestRandomAgree does the same random operations on the machine's file system and on Mem, and compares all answers.
func TestRandomAgree(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 0))
		mem, dirs := NewMem(), []string{t.TempDir(), "/d"}
		check(t, mem.MkdirAll(dirs[1]))
		worlds := []FS{OS, mem}
		do := func(step int, f func(fs FS, dir string) (any, error)) {
			t.Helper()
			a, errA := f(worlds[0], dirs[0])
			b, errB := f(worlds[1], dirs[1])
			if fmt.Sprint(a) != fmt.Sprint(b) || (errA == nil) != (errB == nil) || errors.Is(errA, fs.ErrNotExist) != errors.Is(errB, fs.ErrNotExist) {
				t.Fatalf("seed %d, step %d: OS answers %v, %v; Mem %v, %v", seed, step, a, errA, b, errB)
			}
		}
		with := func(name string, f func(File) (any, error)) func(FS, string) (any, error) {
			return func(fs FS, dir string) (any, error) {
				file, err := fs.OpenReadWrite(filepath.Join(dir, name))
				if err != nil {
					return nil, err
				}
				defer file.Close()
				return f(file)
			}
		}
		for step := range 400 {
			name, other := string(rune('a'+r.IntN(4))), string(rune('a'+r.IntN(4)))
			off, n := r.Int64N(5000), r.IntN(3000)
			switch r.IntN(8) {
			case 0:
				do(step, func(fs FS, dir string) (any, error) {
					f, err := fs.Create(filepath.Join(dir, name))
					if err == nil {
						err = f.Close()
					}
					return nil, err
				})
			case 1:
				do(step, func(fs FS, dir string) (any, error) {
					return nil, fs.Rename(filepath.Join(dir, name), filepath.Join(dir, other))
				})
			case 2:
				do(step, func(fs FS, dir string) (any, error) { return nil, fs.Remove(filepath.Join(dir, name)) })
			case 3:
				do(step, with(name, func(f File) (any, error) { return nil, f.Truncate(off) }))
			case 4:
				do(step, with(name, func(f File) (any, error) {
					b := make([]byte, n)
					got, err := f.ReadAt(b, off)
					return b[:got], err
				}))
			case 5:
				do(step, func(fs FS, dir string) (any, error) { return fs.List(dir) })
			default:
				b := bytes.Repeat([]byte{byte(step)}, n)
				do(step, with(name, func(f File) (any, error) {
					if err := f.WritevAt([][]byte{b[:n/2], b[n/2:]}, off); err != nil {
						return nil, err
					}
					return f.Size()
				}))
			}
		}
	}
}
