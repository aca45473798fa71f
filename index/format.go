package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// A file is made of pages of 4096 bytes: 4092 of content and a CRC-32C. All integers are big-endian.
//
//	page 0                header
//	pages 1..E            entries, 204 in a page, 20 bytes each: physical offset i64 | size u32 | tags code i64
//	pages E+1..E+D        directory, 170 rows in a page, 24 bytes each, in ascending order of topic and queue:
//	                      topic u32 | queue i32 | first queue offset i64 | number of its first entry u32 | count u32
//	pages E+D+1..E+D+F    fence: the key (topic u32, queue i32) of each directory page's first row, 511 in a page
//	from then on          words, 341 in a page, 12 bytes each, in ascending order: hash u64 | place in the segment u32
//	                      and while that takes more than one page, the first of each of its pages in the same form
//
// The entries of a queue lie one behind the other, so an entry needs no queue offset. Only the fence is kept in memory. A file of
// version 1 has no words.
const (
	magic         = "LMQI"
	formatVersion = 2
	queuesVersion = 1

	pageSize    = 4096
	pageContent = pageSize - 4

	entrySize      = 20
	entriesPerPage = pageContent / entrySize
	rowSize        = 24
	rowsPerPage    = pageContent / rowSize
	fenceSize      = 8
	fencesPerPage  = pageContent / fenceSize
	wordSize       = 12
	wordsPerPage   = pageContent / wordSize
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is the content of page 0.
//
//	0 "LMQI" | 4 version u16 | 6 zero u16 | 8 group id 16 | 24 segment size i64 | 32 from i64 | 40 to i64
//	48 entries u32 | 52 rows u32 | 56 words u32 | 60 zero to 4092
type header struct {
	group       ids.GroupID
	segmentSize int64
	from, to    ids.PhysicalOffset // the span of the log that is indexed, inside one segment
	entries     uint32
	rows        uint32
	words       uint32
	worded      bool // it is of a version that has words
}

func pages(n, perPage uint32) int64 {
	return int64((uint64(n) + uint64(perPage) - 1) / uint64(perPage))
}

func (h *header) entryPages() int64     { return pages(h.entries, entriesPerPage) }
func (h *header) directoryPages() int64 { return pages(h.rows, rowsPerPage) }
func (h *header) fencePages() int64     { return pages(uint32(h.directoryPages()), fencesPerPage) }
func (h *header) directoryPage() int64  { return 1 + h.entryPages() }
func (h *header) fencePage() int64      { return h.directoryPage() + h.directoryPages() }
func (h *header) pages() int64          { return h.fencePage() + h.fencePages() + h.wordPages() }

func (h *header) wordPages() (n int64) {
	for _, l := range h.levels() {
		n += pages(l.count, wordsPerPage)
	}
	return n
}

func (h *header) base() ids.PhysicalOffset { return h.from &^ ids.PhysicalOffset(h.segmentSize-1) }

// whole tells whether the file covers its whole segment.
func (h *header) whole() bool {
	return h.from == h.base() && int64(h.to-h.from) == h.segmentSize
}

// seed makes the checksum of a page depend on the file's identity: a page of another file is not taken for this one's.
func (h *header) seed() uint32 {
	var b [32]byte
	copy(b[:], h.group[:])
	binary.BigEndian.PutUint64(b[16:], uint64(h.from))
	binary.BigEndian.PutUint64(b[24:], uint64(h.to))
	return crc32.Checksum(b[:], castagnoli)
}

// pageCRC is the checksum of a page's content. page 0 is read before the seed is known and goes without one.
func pageCRC(seed uint32, page int64, content []byte) uint32 {
	if page == 0 {
		seed = 0
	}
	return crc32.Update(seed^uint32(page), castagnoli, content)
}

// seal writes the checksum of a page to its end.
func seal(p []byte, seed uint32, page int64) {
	binary.BigEndian.PutUint32(p[pageContent:], pageCRC(seed, page, p[:pageContent]))
}

func (h *header) encode(p []byte) {
	clear(p)
	copy(p, magic)
	version := uint16(queuesVersion)
	if h.worded {
		version = formatVersion
	}
	binary.BigEndian.PutUint16(p[4:], version)
	copy(p[8:24], h.group[:])
	binary.BigEndian.PutUint64(p[24:], uint64(h.segmentSize))
	binary.BigEndian.PutUint64(p[32:], uint64(h.from))
	binary.BigEndian.PutUint64(p[40:], uint64(h.to))
	binary.BigEndian.PutUint32(p[48:], h.entries)
	binary.BigEndian.PutUint32(p[52:], h.rows)
	binary.BigEndian.PutUint32(p[56:], h.words)
	seal(p, 0, 0)
}

// decodeHeader reads page 0 and checks that it can be true.
func decodeHeader(p []byte) (header, error) {
	var h header
	if len(p) < pageSize || string(p[:4]) != magic {
		return h, errors.New("it is no queue index")
	}
	v := binary.BigEndian.Uint16(p[4:])
	if v != formatVersion && v != queuesVersion {
		return h, fmt.Errorf("it has version %d, this program knows %d", v, formatVersion)
	}
	if pageCRC(0, 0, p[:pageContent]) != binary.BigEndian.Uint32(p[pageContent:pageSize]) {
		return h, errChecksum
	}
	h = header{
		group:       ids.GroupID(p[8:24]),
		segmentSize: int64(binary.BigEndian.Uint64(p[24:])),
		from:        ids.PhysicalOffset(binary.BigEndian.Uint64(p[32:])),
		to:          ids.PhysicalOffset(binary.BigEndian.Uint64(p[40:])),
		entries:     binary.BigEndian.Uint32(p[48:]),
		rows:        binary.BigEndian.Uint32(p[52:]),
		words:       binary.BigEndian.Uint32(p[56:]),
		worded:      v == formatVersion,
	}
	s := h.segmentSize
	if s <= 0 || s&(s-1) != 0 || h.from < 0 || h.from > h.to || int64(h.to-h.base()) > s || h.rows > h.entries || h.words > 0 && !h.worded {
		return h, errors.New("its header makes no sense")
	}
	return h, nil
}

var errChecksum = errors.New("the checksum does not fit")

// row is one line of the directory: a queue's entries in one file.
type row struct {
	key   Key
	first ids.QueueOffset
	start uint32 // number of the first entry in the file
	count uint32 // at least 1
}

// next is the queue offset after the last entry.
func (r row) next() ids.QueueOffset { return r.first + ids.QueueOffset(r.count) }

func (r row) append(dst []byte) []byte {
	dst = appendKey(dst, r.key)
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.first))
	dst = binary.BigEndian.AppendUint32(dst, r.start)
	return binary.BigEndian.AppendUint32(dst, r.count)
}

func decodeRow(b []byte) row {
	return row{
		key:   decodeKey(b),
		first: ids.QueueOffset(binary.BigEndian.Uint64(b[8:])),
		start: binary.BigEndian.Uint32(b[16:]),
		count: binary.BigEndian.Uint32(b[20:]),
	}
}

// check tells whether r can be true in a file of h.
func (r row) check(h *header) error {
	if r.count == 0 || uint64(r.start)+uint64(r.count) > uint64(h.entries) || r.first < 0 || r.key.Queue < 0 {
		return fmt.Errorf("the row of queue %v makes no sense", r.key)
	}
	return nil
}

func appendKey(dst []byte, k Key) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(k.Topic))
	return binary.BigEndian.AppendUint32(dst, uint32(k.Queue))
}

func decodeKey(b []byte) Key {
	return Key{ids.TopicID(binary.BigEndian.Uint32(b)), ids.QueueID(int32(binary.BigEndian.Uint32(b[4:])))}
}

func (e Entry) append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(e.Offset))
	dst = binary.BigEndian.AppendUint32(dst, e.Size)
	return binary.BigEndian.AppendUint64(dst, uint64(e.TagsCode))
}

func decodeEntry(b []byte) Entry {
	_ = b[entrySize-1]
	return Entry{
		Offset:   ids.PhysicalOffset(binary.BigEndian.Uint64(b)),
		Size:     binary.BigEndian.Uint32(b[8:]),
		TagsCode: int64(binary.BigEndian.Uint64(b[12:])),
	}
}

const (
	wholeSuffix = ".idx"
	runSuffix   = ".run"
)

// fileName names a file by its span: a whole segment's by the segment's base, as the segment itself.
func fileName(dir string, h *header) string {
	if h.whole() {
		return filepath.Join(dir, fmt.Sprintf("%020d%s", h.from, wholeSuffix))
	}
	return filepath.Join(dir, fmt.Sprintf("%020d-%020d%s", h.from, h.to, runSuffix))
}

// parseName is the reverse of fileName for a base name.
func parseName(base string, segmentSize int64) (from, to ids.PhysicalOffset, ok bool) {
	if digits, found := strings.CutSuffix(base, wholeSuffix); found {
		n, err := strconv.ParseInt(digits, 10, 64)
		off := ids.PhysicalOffset(n)
		return off, off + ids.PhysicalOffset(segmentSize), err == nil && len(digits) == 20
	}
	digits, found := strings.CutSuffix(base, runSuffix)
	a, b, two := strings.Cut(digits, "-")
	if !found || !two || len(a) != 20 || len(b) != 20 {
		return 0, 0, false
	}
	n, err1 := strconv.ParseInt(a, 10, 64)
	m, err2 := strconv.ParseInt(b, 10, 64)
	return ids.PhysicalOffset(n), ids.PhysicalOffset(m), err1 == nil && err2 == nil
}
