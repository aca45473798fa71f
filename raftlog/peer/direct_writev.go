//go:build linux || darwin

package peer

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxVectors is below IOV_MAX of every system that this is built for.
const maxVectors = 1024

// direct writes to a socket without ever waiting for it.
type direct struct {
	raw  syscall.RawConn // nil when conn gives no access: then nothing is ever written directly
	call func(fd uintptr) bool
	bufs [][]byte
	n    int
	err  error
}

func newDirect(conn net.Conn) *direct {
	d := &direct{}
	if sc, ok := conn.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			d.raw = raw
		}
	}
	// One closure for the life of the connection, so that a write allocates nothing.
	d.call = func(fd uintptr) bool {
		for {
			d.n, d.err = unix.Writev(int(fd), d.bufs)
			if !errors.Is(d.err, unix.EINTR) {
				return true // also when the socket is full: waiting is the pipe's goroutine's work
			}
		}
	}
	return d
}

// write hands bufs to the socket once and returns how many bytes it took, 0 when it is full.
func (d *direct) write(bufs [][]byte) (int, error) {
	if d.raw == nil {
		return 0, nil
	}
	d.bufs, d.n, d.err = bufs[:min(len(bufs), maxVectors)], 0, nil
	err := d.raw.Write(d.call)
	d.bufs = nil
	switch {
	case err != nil:
		return 0, err
	case errors.Is(d.err, unix.EAGAIN):
		return 0, nil
	case d.err != nil:
		return 0, d.err
	}
	return d.n, nil
}
