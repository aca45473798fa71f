package vfs

import (
	"io"
	"os"
	"syscall"
)

// memFile is a handle on a node of a Mem. It is guarded by the Mem's mutex.
type memFile struct {
	m        *Mem
	n        *memNode
	name     string
	writable bool
	closed   bool
}

// write performs w and remembers it until the next sync.
func (n *memNode) write(w memWrite) {
	n.data = w.apply(n.data)
	n.pending = append(n.pending, w)
}

// check tells why op cannot go on; m.mu is held.
func (f *memFile) check(op string, write bool) error {
	switch {
	case f.closed:
		return pathError(op, f.name, os.ErrClosed)
	case f.m.dead:
		return pathError(op, f.name, ErrCrashed)
	case f.n.dir:
		return pathError(op, f.name, syscall.EISDIR)
	case write && !f.writable:
		return pathError(op, f.name, syscall.EBADF)
	}
	return nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.check("read", false); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathError("readat", f.name, syscall.EINVAL)
	}
	if len(p) == 0 {
		return 0, nil
	}
	if off >= int64(len(f.n.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.n.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.check("write", true); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathError("writeat", f.name, syscall.EINVAL)
	}
	if len(p) > 0 {
		f.n.write(memWrite{off: off, data: append([]byte(nil), p...)})
	}
	return len(p), nil
}

func (f *memFile) WritevAt(bufs [][]byte, off int64) error {
	total := 0
	for _, b := range bufs {
		total += len(b)
	}
	all := make([]byte, 0, total)
	for _, b := range bufs {
		all = append(all, b...)
	}
	_, err := f.WriteAt(all, off)
	return err
}

func (f *memFile) Size() (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.check("stat", false); err != nil {
		return 0, err
	}
	return int64(len(f.n.data)), nil
}

func (f *memFile) Truncate(size int64) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.check("truncate", true); err != nil {
		return err
	}
	if size < 0 {
		return pathError("truncate", f.name, syscall.EINVAL)
	}
	f.n.write(memWrite{off: size})
	return nil
}

func (f *memFile) SyncData() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.check("sync", false); err != nil {
		return err
	}
	for _, w := range f.n.pending {
		f.n.durable = w.apply(f.n.durable)
	}
	f.n.pending = nil
	return nil
}

// Uncache does nothing: all of it is memory.
func (f *memFile) Uncache(off, n int64) {}

// loseSync is a failed sync after which the pages look clean.
func (f *memFile) loseSync() {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.n.pending = nil
}

func (f *memFile) Close() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.closed {
		return pathError("close", f.name, os.ErrClosed)
	}
	f.closed = true
	return nil
}

func (f *memFile) Name() string { return f.name }
