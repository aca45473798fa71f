package commitlog

import (
	"errors"
	"io"

	"github.com/ledgermq/ledgermq/internal/vfs"
)

const windowSize = 1 << 20

// window reads a file from front to back through one buffer. A slice that at returned is valid until the next call.
type window struct {
	f     vfs.File
	limit int64 // nothing is read at or behind it
	buf   []byte
	pos   int64 // of buf[0]
	n     int   // valid bytes in buf
}

// at returns the n bytes at pos, or fewer at the limit and at the end of the file.
func (w *window) at(pos int64, n int) ([]byte, error) {
	if left := w.limit - pos; int64(n) > left {
		n = int(max(left, 0))
	}
	if pos < w.pos || pos+int64(n) > w.pos+int64(w.n) {
		want := int(max(min(int64(max(n, windowSize)), w.limit-pos), 0))
		if cap(w.buf) < want {
			w.buf = make([]byte, want)
		}
		got, err := w.f.ReadAt(w.buf[:want], pos)
		if err != nil && !errors.Is(err, io.EOF) {
			w.n = 0
			return nil, err
		}
		w.pos, w.n = pos, got
	}
	at := int(pos - w.pos)
	return w.buf[at:min(at+n, w.n)], nil
}
