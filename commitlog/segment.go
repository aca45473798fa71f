package commitlog

import (
	"fmt"
	"hash/crc32"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

const (
	segmentMagic      = "LMQS"
	segmentVersion    = 1
	segmentHeaderSize = 4096
	segmentUsed       = 72 // bytes of the header block in use
	flagRecycled      = 1

	logSuffix     = ".log"
	sidecarSuffix = ".idx"
	nextSuffix    = ".next"  // a prepared segment that holds no frame yet
	spareSuffix   = ".spare" // a cut segment, kept for its blocks
)

// segmentHeader is the first block of a segment file.
type segmentHeader struct {
	cluster     ids.ClusterID
	group       ids.GroupID
	segmentSize int64
	base        ids.PhysicalOffset
	generation  uint64 // never used twice in a log: start counter, and number within the start
	seed        uint32 // chain value of the frame before the first one
	recycled    bool   // the file was another segment before: bytes of that one may lie behind the tail
}

func (h segmentHeader) encode() []byte {
	b := make([]byte, segmentHeaderSize)
	copy(b, segmentMagic)
	b[4] = segmentVersion
	if h.recycled {
		b[5] = flagRecycled
	}
	copy(b[8:], h.cluster[:])
	copy(b[24:], h.group[:])
	be.PutUint64(b[40:], uint64(h.segmentSize))
	be.PutUint64(b[48:], uint64(h.base))
	be.PutUint64(b[56:], h.generation)
	be.PutUint32(b[64:], h.seed)
	be.PutUint32(b[68:], crc32.Checksum(b[:68], castagnoli))
	return b
}

// decodeSegmentHeader is the reverse of encode. A header of another version is an *IdentityError, else a *CorruptionError.
func decodeSegmentHeader(b []byte) (h segmentHeader, err error) {
	bad := func(reason string) (segmentHeader, error) {
		return segmentHeader{}, &CorruptionError{Offset: -1, Reason: "segment header: " + reason}
	}
	if len(b) < segmentHeaderSize {
		return bad("cut off")
	}
	if string(b[:4]) != segmentMagic {
		return bad("no magic")
	}
	if be.Uint32(b[68:]) != crc32.Checksum(b[:68], castagnoli) {
		return bad("checksum")
	}
	if b[4] != segmentVersion {
		return h, &IdentityError{Field: "version", Want: strconv.Itoa(segmentVersion), Have: strconv.Itoa(int(b[4]))}
	}
	if b[5]&^flagRecycled != 0 || b[6] != 0 || b[7] != 0 {
		return bad("unknown flags")
	}
	for _, c := range b[segmentUsed:segmentHeaderSize] {
		if c != 0 {
			return bad("bytes after the header")
		}
	}
	copy(h.cluster[:], b[8:])
	copy(h.group[:], b[24:])
	h.segmentSize, h.base = int64(be.Uint64(b[40:])), ids.PhysicalOffset(be.Uint64(b[48:]))
	h.generation, h.seed, h.recycled = be.Uint64(b[56:]), be.Uint32(b[64:]), b[5]&flagRecycled != 0
	return h, nil
}

// segment is one file of the log in memory.
type segment struct {
	header segmentHeader
	path   string
	file   vfs.File
	refs   atomic.Int32 // 1 for the log, 1 for each reader at work; at 0 the file is closed

	// Guarded by Log.mu.
	first  ids.Index // index of its first frame, whether it has one yet or not
	last   ids.Index // first-1 while it has none
	end    int64     // position of the aligned end of its last frame
	sparse sparse

	// Guarded by Log.wmu.
	dirty   bool // written since the last sync
	sidecar ids.Index

	fill fill
}

func (s *segment) base() ids.PhysicalOffset { return s.header.base }

// hold keeps the file open until release. It is called with Log.mu held, while the segment is in the list.
func (s *segment) hold() { s.refs.Add(1) }

func (s *segment) release() {
	if s.refs.Add(-1) == 0 {
		s.file.Close() // nothing was written through it that was not synced
	}
}

func segmentName(base ids.PhysicalOffset, suffix string) string {
	return fmt.Sprintf("%020d%s", base, suffix)
}

func (l *Log) segmentPath(base ids.PhysicalOffset, suffix string) string {
	return filepath.Join(l.o.Dir, segmentName(base, suffix))
}

// parseName is the reverse of segmentName.
func parseName(name, suffix string) (ids.PhysicalOffset, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	return ids.PhysicalOffset(n), err == nil && segmentName(ids.PhysicalOffset(n), suffix) == name
}

// sparse finds frames of one segment: it knows the place of one frame in each run of at most sparseFrames, or of sparseBytes.
// It costs 8 bytes per entry: 32 KiB per GiB of large frames, 128 KiB per GiB of frames of 256 bytes.
type sparse []sparseEntry

type sparseEntry struct {
	delta uint32 // index, less the segment's first index
	pos   uint32 // position in the file, in units of 8 bytes
}

const (
	sparseFrames = 256
	sparseBytes  = 256 << 10
)

// add notes the frame with index first+delta at pos, when it is far enough from the one noted last.
func (s *sparse) add(delta uint32, pos int64) {
	if n := len(*s); n > 0 {
		last := (*s)[n-1]
		if delta-last.delta < sparseFrames && pos-int64(last.pos)*align < sparseBytes {
			return
		}
	}
	*s = append(*s, sparseEntry{delta, uint32(pos / align)})
}

// find returns the last noted frame at or before delta.
func (s sparse) find(delta uint32) (d uint32, pos int64) {
	i := sort.Search(len(s), func(i int) bool { return s[i].delta > delta }) - 1
	return s[i].delta, int64(s[i].pos) * align
}

// findPos returns the last noted frame at or before pos.
func (s sparse) findPos(pos int64) (delta uint32, at int64) {
	i := sort.Search(len(s), func(i int) bool { return int64(s[i].pos)*align > pos }) - 1
	return s[i].delta, int64(s[i].pos) * align
}

// cut forgets frames after delta.
func (s *sparse) cut(delta uint32) {
	*s = (*s)[:sort.Search(len(*s), func(i int) bool { return (*s)[i].delta > delta })]
}

// fill tells the writer and the zero-filler of one segment apart.
//
// Invariant: the filler writes only [from, to), which starts at or after done; the writer never writes there while busy.
type fill struct {
	mu    sync.Mutex
	free  *sync.Cond // wakes the writer when busy became false
	busy  bool
	from  int64
	to    int64
	waits int   // how often the writer ran into the filler
	done  int64 // the filler goes on from here: before it are zeros or written frames
}

// claim is called by the writer before it writes [.., end): it waits for a filler in that range, for one step at most.
func (f *fill) claim(end int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.busy && f.from < end {
		f.waits++
		f.free.Wait()
	}
	f.done = max(f.done, end)
}

func newSegment(h segmentHeader, path string, file vfs.File) *segment {
	s := &segment{header: h, path: path, file: file, end: segmentHeaderSize}
	s.refs.Store(1)
	s.fill.free = sync.NewCond(&s.fill.mu)
	s.fill.done = segmentHeaderSize
	return s
}
