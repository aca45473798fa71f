//go:build unix

package remoting

import "syscall"

// tryWriter writes to a socket without waiting for it. Its function is made once, so that a write allocates nothing.
type tryWriter struct {
	p   []byte
	n   int
	err error
	fn  func(fd uintptr) bool
}

func (t *tryWriter) init() {
	t.fn = func(fd uintptr) bool {
		for t.n < len(t.p) {
			n, err := syscall.Write(int(fd), t.p[t.n:])
			switch {
			case err == syscall.EINTR:
			case err == syscall.EAGAIN:
				return true
			case err != nil:
				t.err = err
				return true
			default:
				t.n += n
			}
		}
		return true // never wait for the socket here
	}
}

func (t *tryWriter) write(raw syscall.RawConn, p []byte) (int, error) {
	t.p, t.n, t.err = p, 0, nil
	if err := raw.Write(t.fn); err != nil {
		return t.n, err
	}
	t.p = nil
	return t.n, t.err
}
