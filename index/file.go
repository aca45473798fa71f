package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// slot is one span of the log in the order of spans: a file, or entries in memory, or both while the file is the newest
// one. It does not change; rows of one slot are of no use to another.
//
// Invariant: when both are set they hold the same entries.
type slot struct {
	file *file
	mem  *memRun
}

func (s slot) span() (from, to ids.PhysicalOffset) {
	if s.file != nil {
		return s.file.from, s.file.to
	}
	return s.mem.from, s.mem.to
}

func (s slot) lookup(k Key) (row, bool, error) {
	if s.mem != nil {
		r, ok := s.mem.lookup(k)
		return r, ok, nil
	}
	return s.file.lookup(k)
}

// entriesAt appends n entries of r, after the first skip, to dst.
func (s slot) entriesAt(r row, skip, n uint32, dst []Entry) ([]Entry, error) {
	if s.mem != nil {
		return s.mem.entriesAt(r, skip, n, dst), nil
	}
	return s.file.entriesAt(r, skip, n, dst)
}

func (s slot) cursor() cursor {
	if s.mem != nil {
		return s.mem.cursor()
	}
	return &fileCursor{x: s.file, entry: -1, dir: -1}
}

// cursor walks the rows of a slot in ascending order of keys.
type cursor interface {
	next() (row, bool, error)
	// copyTo writes the entries of the row that next returned last.
	copyTo(w *writer, r row) error
}

// file is an open file of the index. Any goroutine may read it; it is closed when the last reference is gone.
type file struct {
	header
	f     vfs.File
	name  string
	crc   uint32 // seed of the pages
	fence []Key
	refs  atomic.Int32
}

type page [pageSize]byte

var pagePool = sync.Pool{New: func() any { return new(page) }}

// openFile opens and checks a file: its header, size and fence. The other pages are checked when they are read.
func openFile(fs vfs.FS, name string) (*file, error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	x := &file{f: f, name: name}
	if err := x.open(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return x, nil
}

func (x *file) open() error {
	p := pagePool.Get().(*page)
	defer pagePool.Put(p)
	if n, err := x.f.ReadAt(p[:], 0); n < pageSize {
		if err == io.EOF {
			err = fmt.Errorf("it has only %d bytes", n)
		}
		return &CorruptionError{x.name, 0, err}
	}
	var err error
	if x.header, err = decodeHeader(p[:]); err != nil {
		return &CorruptionError{x.name, 0, err}
	}
	x.crc = x.header.seed()
	size, err := x.f.Size()
	if err != nil {
		return err
	}
	if size != x.header.pages()*pageSize {
		return &CorruptionError{x.name, 0, fmt.Errorf("it has %d bytes instead of %d", size, x.header.pages()*pageSize)}
	}
	left := int(x.directoryPages())
	x.fence = make([]Key, 0, left)
	for i := range x.fencePages() {
		if err := x.page(p, x.fencePage()+i); err != nil {
			return err
		}
		for j := 0; j < fencesPerPage && left > 0; j++ {
			x.fence = append(x.fence, decodeKey(p[j*fenceSize:]))
			left--
		}
	}
	if !slices.IsSortedFunc(x.fence, Key.Compare) {
		return &CorruptionError{x.name, x.fencePage(), errors.New("its fence is not sorted")}
	}
	return nil
}

// page reads and checks one page.
func (x *file) page(p *page, n int64) error {
	if _, err := x.f.ReadAt(p[:], n*pageSize); err != nil && err != io.EOF {
		return fmt.Errorf("queue index %s: %w", x.name, err)
	} else if err == io.EOF && n != x.pages()-1 {
		return &CorruptionError{x.name, n, io.ErrUnexpectedEOF}
	}
	if pageCRC(x.crc, n, p[:pageContent]) != binary.BigEndian.Uint32(p[pageContent:]) {
		return &CorruptionError{x.name, n, errChecksum}
	}
	return nil
}

func (x *file) lookup(k Key) (row, bool, error) {
	// The page whose first key is the last one not above k.
	i, found := slices.BinarySearchFunc(x.fence, k, Key.Compare)
	if !found {
		if i == 0 {
			return row{}, false, nil
		}
		i--
	}
	p := pagePool.Get().(*page)
	defer pagePool.Put(p)
	n := x.directoryPage() + int64(i)
	if err := x.page(p, n); err != nil {
		return row{}, false, err
	}
	lo, hi := 0, min(rowsPerPage, int(x.header.rows)-i*rowsPerPage)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		switch c := decodeKey(p[mid*rowSize:]).Compare(k); {
		case c < 0:
			lo = mid + 1
		case c > 0:
			hi = mid
		default:
			r := decodeRow(p[mid*rowSize:])
			if err := r.check(&x.header); err != nil {
				return row{}, false, &CorruptionError{x.name, n, err}
			}
			return r, true, nil
		}
	}
	return row{}, false, nil
}

func (x *file) entriesAt(r row, skip, n uint32, dst []Entry) ([]Entry, error) {
	p := pagePool.Get().(*page)
	defer pagePool.Put(p)
	at, end := r.start+skip, r.start+skip+n
	for at < end {
		if err := x.page(p, 1+int64(at/entriesPerPage)); err != nil {
			return dst, err
		}
		for i := at % entriesPerPage; i < entriesPerPage && at < end; i++ {
			dst = append(dst, decodeEntry(p[i*entrySize:]))
			at++
		}
	}
	return dst, nil
}

// fileCursor reads a file front to back: its directory, and the entries in the same order.
type fileCursor struct {
	x       *file
	row     uint32 // number of the next row
	rows    page
	dir     int64 // page that rows holds; -1 none
	entries page
	entry   int64 // page that entries holds; -1 none
	lastKey Key
	start   uint32 // where the next row's entries must begin
}

func (c *fileCursor) next() (row, bool, error) {
	if c.row == c.x.header.rows {
		if c.start != c.x.entries {
			return row{}, false, &CorruptionError{c.x.name, c.dir, errors.New("entries belong to no queue")}
		}
		return row{}, false, nil
	}
	if n := c.x.directoryPage() + int64(c.row/rowsPerPage); n != c.dir {
		if err := c.x.page(&c.rows, n); err != nil {
			return row{}, false, err
		}
		c.dir = n
	}
	r := decodeRow(c.rows[c.row%rowsPerPage*rowSize:])
	err := r.check(&c.x.header)
	if err == nil && (r.start != c.start || c.row > 0 && c.lastKey.Compare(r.key) >= 0) {
		err = fmt.Errorf("the row of queue %v is out of order", r.key)
	}
	if err != nil {
		return row{}, false, &CorruptionError{c.x.name, c.dir, err}
	}
	c.row, c.lastKey, c.start = c.row+1, r.key, r.start+r.count
	return r, true, nil
}

func (c *fileCursor) copyTo(w *writer, r row) error {
	for at := r.start; at < r.start+r.count; at++ {
		if n := 1 + int64(at/entriesPerPage); n != c.entry {
			if err := c.x.page(&c.entries, n); err != nil {
				return err
			}
			c.entry = n
		}
		if err := w.entry(c.entries[at%entriesPerPage*entrySize:][:entrySize]); err != nil {
			return err
		}
	}
	return nil
}

// verify reads every page.
func (x *file) verify() error {
	c := slot{file: x}.cursor()
	for i := 0; ; i++ {
		r, ok, err := c.next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if i%rowsPerPage == 0 && x.fence[i/rowsPerPage] != r.key {
			return &CorruptionError{x.name, x.fencePage(), fmt.Errorf("the fence does not name queue %v", r.key)}
		}
	}
	if err := x.verifyWords(); err != nil {
		return err
	}
	p := pagePool.Get().(*page)
	defer pagePool.Put(p)
	for n := range x.pages() {
		if n > 0 {
			if err := x.page(p, n); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *file) ref() { x.refs.Add(1) }

// unref closes the file with its last reference. A file that was only read has nothing to lose by a failed close.
func (x *file) unref() {
	if x.refs.Add(-1) == 0 {
		_ = x.f.Close()
	}
}
