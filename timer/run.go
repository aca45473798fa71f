package timer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"sort"
	"strings"
	"sync/atomic"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// A run file is a page with a header, and pages of entries in their order (docs/format/timer.md):
//
//	header  0 "LMQW" | 4 version u16 = 1 | 6 page size u16 = 4096 | 8 group id 16 | 24 from i64 | 32 to i64 | 40 entries u64
//	        48 zero | 4092 CRC-32C of what is before
//	page    0 entries of 24 bytes: due i64, offset i64, size u32, key u32 | 4080 number of the page, from 1 on, u64 | 4088 zero 4
//	        4092 CRC-32C of what is before
const (
	runMagic   = "LMQW"
	runVersion = 1
	pageSize   = 4096
	entrySize  = 24
	perPage    = 170
	atNumber   = perPage * entrySize
	atCRC      = pageSize - 4
)

var (
	be         = binary.BigEndian
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

func runName(dir string, from, to ids.PhysicalOffset) string {
	return filepath.Join(dir, fmt.Sprintf("%020d-%020d.timers", from, to))
}

// parseName is the reverse of runName for a base name.
func parseName(base string) (from, to ids.PhysicalOffset, ok bool) {
	span, ok := strings.CutSuffix(base, ".timers")
	if !ok || len(span) != 41 {
		return 0, 0, false
	}
	n, err := fmt.Sscanf(span, "%020d-%020d", &from, &to)
	return from, to, err == nil && n == 2 && from >= 0 && from < to
}

// run is one file.
type run struct {
	name     string
	f        vfs.File
	group    ids.GroupID
	from, to ids.PhysicalOffset
	count    int
	users    atomic.Int32 // the index, and who reads: the last one closes the file
}

func (r *run) free() {
	if r.users.Add(-1) == 0 {
		_ = r.f.Close()
	}
}

func (r *run) pages() int { return (r.count + perPage - 1) / perPage }

func (r *run) bad(format string, args ...any) error {
	return &CorruptionError{File: r.name, Err: fmt.Errorf(format, args...)}
}

func openRun(fs vfs.FS, name string) (*run, error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	r := &run{name: name, f: f}
	r.users.Store(1)
	if err := r.readHeader(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return r, nil
}

func (r *run) readHeader() error {
	h := make([]byte, pageSize)
	if _, err := r.f.ReadAt(h, 0); err != nil {
		return fmt.Errorf("read its header: %w", err)
	}
	if string(h[:4]) != runMagic {
		return errors.New("it is none")
	}
	if v := be.Uint16(h[4:]); v != runVersion {
		return fmt.Errorf("it has version %d, this program knows %d", v, runVersion)
	}
	if crc32.Checksum(h[:atCRC], castagnoli) != be.Uint32(h[atCRC:]) || be.Uint16(h[6:]) != pageSize || !bytes.Equal(h[48:atCRC], make([]byte, atCRC-48)) {
		return errors.New("its header is damaged")
	}
	r.group = ids.GroupID(h[8:24])
	r.from, r.to = ids.PhysicalOffset(be.Uint64(h[24:])), ids.PhysicalOffset(be.Uint64(h[32:]))
	n := be.Uint64(h[40:])
	size, err := r.f.Size()
	if err != nil {
		return err
	}
	if n > uint64(size) || size != int64(1+(n+perPage-1)/perPage)*pageSize {
		return fmt.Errorf("%d bytes are not what %d entries take", size, n)
	}
	r.count = int(n)
	return nil
}

// page reads and checks a page, from 0 on, into buf.
func (r *run) page(i int, buf []byte) ([]byte, error) {
	b := buf[:pageSize]
	if _, err := r.f.ReadAt(b, int64(1+i)*pageSize); err != nil {
		return nil, r.bad("read page %d: %w", i+1, err)
	}
	if crc32.Checksum(b[:atCRC], castagnoli) != be.Uint32(b[atCRC:]) || be.Uint64(b[atNumber:]) != uint64(i+1) {
		return nil, r.bad("page %d is damaged", i+1)
	}
	return b[:min(perPage, r.count-i*perPage)*entrySize], nil
}

func entryAt(b []byte) Entry {
	return Entry{Pos{int64(be.Uint64(b)), ids.PhysicalOffset(be.Uint64(b[8:]))}, be.Uint32(b[16:]), be.Uint32(b[20:])}
}

// scan appends the first living entries due at or before until, at most limit.
func (r *run) scan(b Bounds, until int64, limit int, all []Entry) ([]Entry, error) {
	if r.count == 0 || r.to <= b.Low {
		return all, nil
	}
	var buf [pageSize]byte
	var failed error
	// The first page that begins after b.After; what is wanted may begin in the one before it.
	i := sort.Search(r.pages(), func(i int) bool {
		p, err := r.page(i, buf[:])
		if err != nil {
			failed = err
			return true
		}
		return entryAt(p).Compare(b.After) > 0
	})
	for i = max(0, i-1); failed == nil && i < r.pages(); i++ {
		p, err := r.page(i, buf[:])
		if err != nil {
			return nil, err
		}
		for ; len(p) > 0; p = p[entrySize:] {
			e := entryAt(p)
			if e.Due > until || limit <= 0 {
				return all, nil
			}
			if b.Alive(e.Pos) {
				all = append(all, e)
				limit--
			}
		}
	}
	return all, failed
}

// each walks all entries.
func (r *run) each(f func(Entry)) error {
	var buf [pageSize]byte
	for i := range r.pages() {
		p, err := r.page(i, buf[:])
		if err != nil {
			return err
		}
		for ; len(p) > 0; p = p[entrySize:] {
			f(entryAt(p))
		}
	}
	return nil
}

// runWriter writes a file front to back.
type runWriter struct {
	fs    vfs.FS
	f     vfs.File
	name  string
	buf   []byte // whole pages that wait, and the page under way
	at    int64
	in    int // entries in the page under way
	count int
}

func newRunWriter(fs vfs.FS, name string) (*runWriter, error) {
	f, err := fs.Create(name + vfs.TempSuffix)
	if err != nil {
		return nil, err
	}
	return &runWriter{fs: fs, f: f, name: name, at: pageSize}, nil
}

const writeAhead = 64 * pageSize

func (w *runWriter) add(e Entry) error {
	w.buf = be.AppendUint64(w.buf, uint64(e.Due))
	w.buf = be.AppendUint64(w.buf, uint64(e.Offset))
	w.buf = be.AppendUint32(w.buf, e.Size)
	w.buf = be.AppendUint32(w.buf, e.Key)
	w.count++
	if w.in++; w.in < perPage {
		return nil
	}
	w.endPage()
	if len(w.buf) < writeAhead {
		return nil
	}
	return w.flush()
}

func (w *runWriter) endPage() {
	start := len(w.buf) - w.in*entrySize
	w.buf = append(w.buf, make([]byte, (perPage-w.in)*entrySize)...)
	w.buf = be.AppendUint64(w.buf, uint64((w.count+perPage-1)/perPage))
	w.buf = append(w.buf, 0, 0, 0, 0)
	w.buf = be.AppendUint32(w.buf, crc32.Checksum(w.buf[start:], castagnoli))
	w.in = 0
}

func (w *runWriter) flush() error {
	_, err := w.f.WriteAt(w.buf, w.at)
	w.at += int64(len(w.buf))
	w.buf = w.buf[:0]
	return err
}

// finish makes the file durable under its name and opens it.
func (w *runWriter) finish(group ids.GroupID, from, to ids.PhysicalOffset) (*run, error) {
	if w.in > 0 {
		w.endPage()
	}
	if err := w.flush(); err != nil {
		return nil, err
	}
	h := make([]byte, pageSize)
	copy(h, runMagic)
	be.PutUint16(h[4:], runVersion)
	be.PutUint16(h[6:], pageSize)
	copy(h[8:24], group[:])
	be.PutUint64(h[24:], uint64(from))
	be.PutUint64(h[32:], uint64(to))
	be.PutUint64(h[40:], uint64(w.count))
	be.PutUint32(h[atCRC:], crc32.Checksum(h[:atCRC], castagnoli))
	if _, err := w.f.WriteAt(h, 0); err != nil {
		return nil, err
	}
	if err := w.f.SyncData(); err != nil {
		return nil, err
	}
	if err := w.f.Close(); err != nil {
		return nil, err
	}
	w.f = nil
	if err := w.fs.Rename(w.name+vfs.TempSuffix, w.name); err != nil {
		return nil, err
	}
	if err := w.fs.SyncDir(filepath.Dir(w.name)); err != nil {
		return nil, err
	}
	return openRun(w.fs, w.name)
}

// abandon removes a file that was not finished.
func (w *runWriter) abandon() {
	if w.f != nil {
		_ = w.f.Close()
	}
	_ = w.fs.Remove(w.name + vfs.TempSuffix)
}
