package vfs

import (
	"io"
	"io/fs"

	"golang.org/x/sys/unix"
)

// maxVector is the kernel's IOV_MAX: more buffers than this take another call.
const maxVector = 1024

// WritevAt writes with pwritev(2), and goes on after a short write.
func (f *osFile) WritevAt(bufs [][]byte, off int64) error {
	var own [][]byte // a copy of the list, made only when a write was short: bufs belongs to the caller
	for len(bufs) > 0 {
		n, err := unix.Pwritev(f.fd, bufs[:min(len(bufs), maxVector)], off)
		if err == unix.EINTR {
			continue
		}
		if err == nil && n == 0 && size(bufs) > 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return &fs.PathError{Op: "pwritev", Path: f.Name(), Err: err}
		}
		off += int64(n)
		for len(bufs) > 0 && n >= len(bufs[0]) {
			n -= len(bufs[0])
			bufs = bufs[1:]
		}
		if n > 0 {
			own = append(own[:0:0], bufs...)
			own[0] = own[0][n:]
			bufs = own
		}
	}
	return nil
}

// SyncData is fdatasync(2).
func (f *osFile) SyncData() error {
	for {
		err := unix.Fdatasync(f.fd)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return &fs.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
		return nil
	}
}

// Uncache is posix_fadvise(2) with POSIX_FADV_DONTNEED.
func (f *osFile) Uncache(off, n int64) { _ = unix.Fadvise(f.fd, off, n, unix.FADV_DONTNEED) }

func size(bufs [][]byte) (n int) {
	for _, b := range bufs {
		n += len(b)
	}
	return n
}
