// Package vfs is the seam between LedgerMQ and the file system. Whatever is written durably goes through FS, so that a
// test can put a disk there that loses what was not synced (Mem) or that fails on command (Inject).
//
// Guarantees that callers may build on, and that both implementations hold (one test suite runs on both):
//
//   - What WriteAt and WritevAt wrote is read back by the same process at once, also through another handle, also after a
//     kill -9; it survives a power cut only after SyncData returned nil.
//   - A name that was created, renamed or removed survives a power cut only after SyncDir of its directory.
//   - A failed SyncData says nothing about what is on the disk. Never call it again hoping for better news: the kernel may
//     have marked the pages clean.
//   - Rename within one directory is atomic.
//
// FS and File may be used from many goroutines at once. Overlapping writes to one place have no defined winner. The state of
// a byte in Mem:
//
//	written ──SyncData──▶ durable        written ──Crash──▶ kept | lost | torn by sectors of 512 bytes
//
// Read vfs.go first, then mem.go.
package vfs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// ErrLocked is returned by Lock when another process, or another opener in this one, holds the lock.
var ErrLocked = errors.New("vfs: locked by another process")

// Info describes a file or a directory.
type Info struct {
	Size  int64 // bytes; 0 for a directory
	IsDir bool
}

// FS is a file system. Names are paths as of path/filepath. All errors wrap those of package os (os.ErrNotExist, …).
type FS interface {
	// Create makes name, or truncates it when it exists, for reading and writing.
	Create(name string) (File, error)
	// Open opens name for reading. The error is os.ErrNotExist when it is absent.
	Open(name string) (File, error)
	// OpenReadWrite opens name, which must exist, for reading and writing.
	OpenReadWrite(name string) (File, error)
	// Rename replaces to by from, atomically.
	Rename(from, to string) error
	// Remove removes a file, or a directory that is empty.
	Remove(name string) error
	// MkdirAll makes dir and its parents. It is not durable: see MkdirDurable.
	MkdirAll(dir string) error
	// List returns the sorted base names in dir.
	List(dir string) ([]string, error)
	Stat(name string) (Info, error)
	// SyncDir makes the names in dir durable.
	SyncDir(dir string) error
	// Lock takes the lock file name, which is made when it is absent, until the Closer is closed or the process ends.
	// It returns ErrLocked at once when somebody else holds it.
	Lock(name string) (io.Closer, error)
	// Space returns the bytes that are free to this process and the size of the file system that holds dir.
	Space(dir string) (free, total uint64, err error)
}

// File is an open file.
type File interface {
	io.ReaderAt
	io.WriterAt
	// WritevAt writes bufs one behind the other from off on, in one system call where the system can. An error means
	// that any part may have been written. It does not keep or change bufs.
	WritevAt(bufs [][]byte, off int64) error
	Size() (int64, error)
	Truncate(size int64) error
	// SyncData makes the content and the size durable (fdatasync).
	SyncData() error
	// Uncache tells the system that n bytes from off are not read soon: it may give up the memory that holds them. What is not
	// on the disk yet stays. It is advice and cannot fail.
	Uncache(off, n int64)
	Close() error
	// Name returns the name that the file was opened with.
	Name() string
}

// TempSuffix ends the names of files that WriteFileAtomic has not finished. A start may remove them.
const TempSuffix = ".tmp"

// WriteFileAtomic replaces name by a file that holds data: after a crash at any moment name holds its old content or data,
// whole. It is durable when nil is returned.
func WriteFileAtomic(fs FS, name string, data []byte) error {
	tmp := name + TempSuffix
	f, err := fs.Create(tmp)
	if err != nil {
		return err
	}
	if err := f.WritevAt([][]byte{data}, 0); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.SyncData(); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := fs.Rename(tmp, name); err != nil {
		return err
	}
	return fs.SyncDir(filepath.Dir(name))
}

// ReadFile returns the content of name.
func ReadFile(fs FS, name string) ([]byte, error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if err == io.EOF && n == len(b) {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// MkdirDurable makes dir and its missing parents and syncs every directory on the way to it: one that exists may be there from
// an attempt that was cut short before its sync. Parents that this process may not open are left out: it did not make them.
func MkdirDurable(fs FS, dir string) error {
	dir = filepath.Clean(dir)
	if err := fs.MkdirAll(dir); err != nil {
		return err
	}
	for parent := filepath.Dir(dir); ; parent = filepath.Dir(parent) {
		if err := fs.SyncDir(parent); err != nil && !errors.Is(err, os.ErrPermission) {
			return err
		}
		if parent == filepath.Dir(parent) {
			return nil
		}
	}
}
