package vfs

import (
	"errors"
	"io"
)

// Op names a kind of operation for the rule of Inject.
type Op int

// The operations that a rule sees.
const (
	OpCreate Op = iota
	OpOpen      // Open and OpenReadWrite
	OpRead
	OpWrite // WriteAt and WritevAt
	OpTruncate
	OpSync
	OpSyncDir
	OpRename // the name is the old one
	OpRemove
	OpMkdir
	OpList
	OpStat
	OpLock
	OpSpace
	OpUncache // whose error is ignored
)

var opNames = [...]string{"create", "open", "read", "write", "truncate", "sync", "syncdir", "rename", "remove", "mkdir", "list", "stat", "lock", "space", "uncache"}

func (o Op) String() string { return opNames[o] }

// ShortWrite, returned by a rule for OpWrite, lets the first N bytes of the write through and then fails with Err.
type ShortWrite struct {
	N   int
	Err error
}

func (e *ShortWrite) Error() string { return "short write: " + e.Err.Error() }
func (e *ShortWrite) Unwrap() error { return e.Err }

// LostSync, returned by a rule for OpSync, makes the sync fail with Err in the worst way that kernels have: what was written
// before stays readable while the machine runs, and no later sync makes it durable; only writing it again does.
type LostSync struct{ Err error }

func (e *LostSync) Error() string { return "lost sync: " + e.Err.Error() }
func (e *LostSync) Unwrap() error { return e.Err }

// Inject returns a file system that asks rule before each operation. When rule returns an error the operation fails with it
// and nothing happened (but see ShortWrite). off and n are the place and length of a read or write, the new size of a
// truncation in off, else 0. The rule may be called from many goroutines at once. It may block: that is a slow disk.
func Inject(fs FS, rule func(op Op, name string, off int64, n int) error) FS {
	return &injectFS{fs: fs, rule: rule}
}

type injectFS struct {
	fs   FS
	rule func(op Op, name string, off int64, n int) error
}

func (i *injectFS) open(op Op, name string, open func(string) (File, error)) (File, error) {
	if err := i.rule(op, name, 0, 0); err != nil {
		return nil, err
	}
	f, err := open(name)
	if err != nil {
		return nil, err
	}
	return &injectFile{File: f, rule: i.rule}, nil
}

func (i *injectFS) Create(name string) (File, error) { return i.open(OpCreate, name, i.fs.Create) }
func (i *injectFS) Open(name string) (File, error)   { return i.open(OpOpen, name, i.fs.Open) }
func (i *injectFS) OpenReadWrite(name string) (File, error) {
	return i.open(OpOpen, name, i.fs.OpenReadWrite)
}

func (i *injectFS) Rename(from, to string) error {
	if err := i.rule(OpRename, from, 0, 0); err != nil {
		return err
	}
	return i.fs.Rename(from, to)
}

func (i *injectFS) Remove(name string) error {
	if err := i.rule(OpRemove, name, 0, 0); err != nil {
		return err
	}
	return i.fs.Remove(name)
}

func (i *injectFS) MkdirAll(dir string) error {
	if err := i.rule(OpMkdir, dir, 0, 0); err != nil {
		return err
	}
	return i.fs.MkdirAll(dir)
}

func (i *injectFS) List(dir string) ([]string, error) {
	if err := i.rule(OpList, dir, 0, 0); err != nil {
		return nil, err
	}
	return i.fs.List(dir)
}

func (i *injectFS) Stat(name string) (Info, error) {
	if err := i.rule(OpStat, name, 0, 0); err != nil {
		return Info{}, err
	}
	return i.fs.Stat(name)
}

func (i *injectFS) SyncDir(dir string) error {
	if err := i.rule(OpSyncDir, dir, 0, 0); err != nil {
		return err
	}
	return i.fs.SyncDir(dir)
}

func (i *injectFS) Lock(name string) (io.Closer, error) {
	if err := i.rule(OpLock, name, 0, 0); err != nil {
		return nil, err
	}
	return i.fs.Lock(name)
}

func (i *injectFS) Space(dir string) (free, total uint64, err error) {
	if err := i.rule(OpSpace, dir, 0, 0); err != nil {
		return 0, 0, err
	}
	return i.fs.Space(dir)
}

type injectFile struct {
	File
	rule func(op Op, name string, off int64, n int) error
}

func (f *injectFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.rule(OpRead, f.Name(), off, len(p)); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *injectFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.rule(OpWrite, f.Name(), off, len(p)); err != nil {
		var short *ShortWrite
		if errors.As(err, &short) && short.N > 0 {
			n, _ := f.File.WriteAt(p[:min(short.N, len(p))], off)
			return n, err
		}
		return 0, err
	}
	return f.File.WriteAt(p, off)
}

func (f *injectFile) WritevAt(bufs [][]byte, off int64) error {
	total := 0
	for _, b := range bufs {
		total += len(b)
	}
	if err := f.rule(OpWrite, f.Name(), off, total); err != nil {
		var short *ShortWrite
		if errors.As(err, &short) {
			left := short.N
			for _, b := range bufs {
				b = b[:min(left, len(b))]
				f.File.WriteAt(b, off)
				off += int64(len(b))
				left -= len(b)
			}
		}
		return err
	}
	return f.File.WritevAt(bufs, off)
}

func (f *injectFile) Truncate(size int64) error {
	if err := f.rule(OpTruncate, f.Name(), size, 0); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *injectFile) SyncData() error {
	if err := f.rule(OpSync, f.Name(), 0, 0); err != nil {
		var lost *LostSync
		if m, ok := f.File.(*memFile); ok && errors.As(err, &lost) {
			m.loseSync()
		}
		return err
	}
	return f.File.SyncData()
}

func (f *injectFile) Uncache(off, n int64) {
	if f.rule(OpUncache, f.Name(), off, int(n)) == nil {
		f.File.Uncache(off, n)
	}
}
