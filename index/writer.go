package index

import (
	"errors"
	"math"
	"path/filepath"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

const (
	tempSuffix  = ".tmp"
	writerPages = 64 // pages that go to the file in one write
)

// writer writes one file front to back: entries as they come, the directory from memory (24 bytes a queue), the header
// last.
type writer struct {
	header
	f         vfs.File
	crc       uint32
	buf       []byte // whole pages, and the one that is being filled
	fill      int    // bytes of content in the page that is being filled
	page      int64  // number of the first page in buf
	directory []byte
	fence     []byte
	level     []byte // the first word of each page
	key       Key
	first     ids.QueueOffset
	start     uint32
	item      [wordSize]byte
}

func newWriter(f vfs.File, h header) *writer {
	return &writer{header: h, f: f, crc: h.seed(), page: 1, buf: make([]byte, pageSize, writerPages*pageSize)}
}

// put adds an item to the page that is being filled, or to the next one when it is full.
func (w *writer) put(b []byte) error {
	if w.fill+len(b) > pageContent {
		if err := w.nextPage(); err != nil {
			return err
		}
	}
	copy(w.buf[len(w.buf)-pageSize+w.fill:], b)
	w.fill += len(b)
	return nil
}

// nextPage seals the page that is being filled and begins another. It does nothing on an empty one.
func (w *writer) nextPage() error {
	if w.fill == 0 {
		return nil
	}
	n := len(w.buf) / pageSize
	seal(w.buf[len(w.buf)-pageSize:], w.crc, w.page+int64(n)-1)
	if n == writerPages {
		if err := w.flush(len(w.buf)); err != nil {
			return err
		}
		n = 0
	}
	w.buf = w.buf[:(n+1)*pageSize]
	clear(w.buf[n*pageSize:])
	w.fill = 0
	return nil
}

func (w *writer) flush(size int) error {
	if _, err := w.f.WriteAt(w.buf[:size], w.page*pageSize); err != nil {
		return err
	}
	w.page += int64(size / pageSize)
	return nil
}

var errTooMany = errors.New("a segment has more entries than a file can number")

func (w *writer) entry(b []byte) error {
	if w.entries == math.MaxUint32 {
		return errTooMany
	}
	w.entries++
	return w.put(b)
}

// begin starts a queue, finish ends it. Queues come in ascending order.
func (w *writer) begin(k Key, first ids.QueueOffset) { w.key, w.first, w.start = k, first, w.entries }

func (w *writer) finish() {
	if w.header.rows%rowsPerPage == 0 {
		w.fence = appendKey(w.fence, w.key)
	}
	w.header.rows++
	w.directory = row{w.key, w.first, w.start, w.entries - w.start}.append(w.directory)
}

func (w *writer) items(all []byte, size int) error {
	if err := w.nextPage(); err != nil {
		return err
	}
	for ; len(all) > 0; all = all[size:] {
		if err := w.put(all[:size]); err != nil {
			return err
		}
	}
	return nil
}

// word adds a word. They come in ascending order, after all queues.
func (w *writer) word(e wordEntry) error {
	if w.header.words == math.MaxUint32 {
		return errTooMany
	}
	b := e.append(w.item[:0])
	if w.header.words%wordsPerPage == 0 {
		w.level = append(w.level, b...)
	}
	w.header.words++
	return w.put(b)
}

// queuesDone writes directory and fence.
func (w *writer) queuesDone() error {
	if err := w.items(w.directory, rowSize); err != nil {
		return err
	}
	if err := w.items(w.fence, fenceSize); err != nil {
		return err
	}
	return w.nextPage()
}

// close writes what is left and the header, and makes the file durable under its temporary name.
func (w *writer) close() error {
	for level := w.level; len(level) > wordSize; {
		if err := w.items(level, wordSize); err != nil {
			return err
		}
		var above []byte
		for at := 0; at < len(level); at += wordsPerPage * wordSize {
			above = append(above, level[at:at+wordSize]...)
		}
		level = above
	}
	if err := w.nextPage(); err != nil {
		return err
	}
	if err := w.flush(len(w.buf) - pageSize); err != nil { // the last page of buf is empty
		return err
	}
	w.header.encode(w.buf[:pageSize])
	if _, err := w.f.WriteAt(w.buf[:pageSize], 0); err != nil {
		return err
	}
	return w.f.SyncData()
}

// writeFile writes what the slots hold, which are neighbours in ascending order, to one file of the span of h. The file has
// its final name, durably, when it returns.
func writeFile(fs vfs.FS, dir string, h header, from []slot) (x *file, err error) {
	name := fileName(dir, &h)
	temp := name + tempSuffix
	f, err := fs.Create(temp)
	if err != nil {
		return nil, err
	}
	w := newWriter(f, h)
	err = merge(w, from)
	if err == nil {
		err = w.queuesDone()
	}
	if err == nil && h.worded {
		err = mergeWords(from, w.word)
	}
	if err == nil {
		err = w.close()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = fs.Rename(temp, name)
	}
	if err == nil {
		err = fs.SyncDir(filepath.Clean(dir))
	}
	if err != nil {
		_ = fs.Remove(temp) // Open removes it otherwise
		return nil, err
	}
	return openFile(fs, name)
}

// merge copies the rows of the slots in ascending order of keys.
func merge(w *writer, from []slot) error {
	return mergeCursors(from, func(c cursor, r row, begin bool) error {
		if begin {
			w.begin(r.key, r.first)
		}
		return c.copyTo(w, r)
	}, func(Key, ids.QueueOffset, ids.QueueOffset) error {
		w.finish()
		return nil
	})
}

// mergeRows calls visit for each key of the slots, in ascending order, with the first and the last queue offset in them;
// the last is exclusive.
func mergeRows(from []slot, visit func(k Key, first, next ids.QueueOffset) error) error {
	return mergeCursors(from, func(cursor, row, bool) error { return nil }, visit)
}

// mergeCursors walks the slots, which are neighbours in ascending order, in the order of keys. For each key it calls one
// for each slot that has it, begin telling the first, then done. It returns a *DensityError where a slot does not go on
// where the one before it ends.
func mergeCursors(from []slot, one func(c cursor, r row, begin bool) error, done func(k Key, first, next ids.QueueOffset) error) error {
	type head struct {
		cursor
		row
		ok bool
	}
	heads := make([]head, len(from))
	advance := func(h *head) (err error) {
		h.row, h.ok, err = h.cursor.next()
		return err
	}
	for i, s := range from {
		heads[i].cursor = s.cursor()
		if err := advance(&heads[i]); err != nil {
			return err
		}
	}
	for {
		least := -1
		for i := range heads {
			if heads[i].ok && (least < 0 || heads[i].key.Compare(heads[least].key) < 0) {
				least = i
			}
		}
		if least < 0 {
			return nil
		}
		k, first := heads[least].key, heads[least].first
		next := first
		for i := least; i < len(heads); i++ {
			h := &heads[i]
			if !h.ok || h.key != k {
				continue
			}
			if h.first != next {
				return &DensityError{Key: k, Want: next, Have: h.first}
			}
			next = h.row.next()
			if err := one(h.cursor, h.row, i == least); err != nil {
				return err
			}
			if err := advance(h); err != nil {
				return err
			}
		}
		if err := done(k, first, next); err != nil {
			return err
		}
	}
}
