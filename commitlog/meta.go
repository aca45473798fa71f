package commitlog

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

const (
	metaName    = "meta"
	metaMagic   = "LMQM"
	metaVersion = 2
	metaSlot    = 4096
	metaOwnerAt = 256
	metaClean   = 1 // flag: stopped cleanly
	metaMaking  = 2 // flag: Create is not finished
	metaReset   = 4 // flag: Reset is not finished
)

// Meta is what the log, and the layer above, know durably beside the frames. It lives in two slots of one file.
type Meta struct {
	// Starts grows by one at each Open for writing.
	Starts uint64
	// BoundIndex (inclusive) and BoundOffset (exclusive) are the durable bound: known to be synced here.
	BoundIndex  ids.Index
	BoundOffset ids.PhysicalOffset
	// CleanStop tells that the last stop was a Close(true). It is false while the log is open.
	CleanStop bool
	// BootID is Options.BootID of the last Open.
	BootID string
	// TruncateTo is 0, or the end of a truncation that Open must complete.
	TruncateTo ids.PhysicalOffset
	// Owner belongs to the layer above, up to MaxOwner bytes.
	Owner []byte
}

// front describes what came before the first segment that is kept: all that lookups and recovery need of it.
type front struct {
	base  ids.PhysicalOffset
	prev  Tail      // the last frame that was given up; zero index when none was. Offset is not used
	start TermStart // where prev's term started
}

// metaRecord is one slot, decoded.
type metaRecord struct {
	Meta
	seq         uint64
	cluster     ids.ClusterID
	group       ids.GroupID
	segmentSize int64
	making      bool
	resetting   bool
	truncateEnd ids.PhysicalOffset // up to here bytes may have been written when TruncateTo was set
	batchEnd    ids.PhysicalOffset // 0, or: from the bound to here several writes were begun and not synced
	front       front
}

// encode returns the slot.
func (m *metaRecord) encode() []byte {
	b := make([]byte, metaSlot)
	copy(b, metaMagic)
	b[4] = metaVersion
	if m.CleanStop {
		b[5] |= metaClean
	}
	if m.making {
		b[5] |= metaMaking
	}
	if m.resetting {
		b[5] |= metaReset
	}
	be.PutUint16(b[6:], uint16(len(m.Owner)))
	be.PutUint64(b[8:], m.seq)
	copy(b[16:], m.cluster[:])
	copy(b[32:], m.group[:])
	for i, v := range []uint64{
		uint64(m.segmentSize), m.Starts, uint64(m.BoundIndex), uint64(m.BoundOffset), uint64(m.TruncateTo), uint64(m.truncateEnd),
		uint64(m.front.base), uint64(m.front.prev.Index), uint64(m.front.prev.Term), uint64(m.front.prev.Time),
		uint64(m.front.start.StartIndex), uint64(m.front.start.StartOffset),
	} {
		be.PutUint64(b[48+8*i:], v)
	}
	be.PutUint32(b[144:], m.front.prev.Chain)
	b[148] = byte(len(m.BootID))
	copy(b[152:152+MaxBootID], m.BootID)
	be.PutUint64(b[216:], uint64(m.batchEnd))
	copy(b[metaOwnerAt:], m.Owner)
	be.PutUint32(b[metaSlot-4:], crc32.Checksum(b[:metaSlot-4], castagnoli))
	return b
}

// errSlot tells that a slot holds nothing readable.
var errSlot = errors.New("commitlog: unreadable meta slot")

// errVersion tells that a slot is of another format version.
type errVersion uint8

func (e errVersion) Error() string { return fmt.Sprintf("commitlog: meta of version %d", uint8(e)) }

// decodeMeta is the reverse of encode.
func decodeMeta(b []byte) (*metaRecord, error) {
	if len(b) != metaSlot || string(b[:4]) != metaMagic || be.Uint32(b[metaSlot-4:]) != crc32.Checksum(b[:metaSlot-4], castagnoli) {
		return nil, errSlot
	}
	if b[4] != metaVersion {
		return nil, errVersion(b[4])
	}
	owner, boot := int(be.Uint16(b[6:])), int(b[148])
	if b[5]&^(metaClean|metaMaking|metaReset) != 0 || owner > MaxOwner || boot > MaxBootID {
		return nil, errSlot
	}
	at := func(i int) uint64 { return be.Uint64(b[48+8*i:]) }
	m := &metaRecord{
		Meta: Meta{
			Starts: at(1), BoundIndex: ids.Index(at(2)), BoundOffset: ids.PhysicalOffset(at(3)), CleanStop: b[5]&metaClean != 0,
			BootID: string(b[152 : 152+boot]), TruncateTo: ids.PhysicalOffset(at(4)), Owner: bytes.Clone(b[metaOwnerAt : metaOwnerAt+owner]),
		},
		seq: be.Uint64(b[8:]), segmentSize: int64(at(0)), making: b[5]&metaMaking != 0, resetting: b[5]&metaReset != 0, truncateEnd: ids.PhysicalOffset(at(5)),
		batchEnd: ids.PhysicalOffset(be.Uint64(b[216:])),
		front: front{
			base:  ids.PhysicalOffset(at(6)),
			prev:  Tail{Index: ids.Index(at(7)), Term: ids.Term(at(8)), Time: int64(at(9)), Chain: be.Uint32(b[144:])},
			start: TermStart{Term: ids.Term(at(8)), StartIndex: ids.Index(at(10)), StartOffset: ids.PhysicalOffset(at(11))},
		},
	}
	copy(m.cluster[:], b[16:])
	copy(m.group[:], b[32:])
	for _, v := range []int64{m.segmentSize, int64(m.BoundOffset), int64(m.TruncateTo), int64(m.truncateEnd), int64(m.batchEnd), int64(m.front.base), m.front.prev.Time} {
		if v < 0 {
			return nil, errSlot
		}
	}
	return m, nil
}

// metaFile writes the two slots in turn, so that a torn write costs one of them only.
type metaFile struct {
	f    vfs.File
	cur  metaRecord
	next int // the slot to write next: never the only good one
}

// readMeta reads both slots of dir and chooses the newer one. It returns os.ErrNotExist when there is no file, errSlot when
// neither can be read.
func readMeta(fs vfs.FS, dir string) (cur *metaRecord, next int, err error) {
	b, err := vfs.ReadFile(fs, filepath.Join(dir, metaName))
	if err != nil {
		return nil, 0, err
	}
	err = errSlot
	for i := range 2 {
		if len(b) < (i+1)*metaSlot {
			break
		}
		m, slotErr := decodeMeta(b[i*metaSlot : (i+1)*metaSlot])
		if slotErr != nil {
			var v errVersion
			if errors.As(slotErr, &v) {
				err = slotErr
			}
			continue
		}
		if cur == nil || m.seq > cur.seq {
			cur, next = m, 1-i
		}
	}
	if cur == nil {
		return nil, 0, err
	}
	return cur, next, nil
}

// keep makes durable what was read: it may be in memory only, when the sync that it waited for failed or never came. The other
// slot would then be the only good one on the disk, and the next write goes there; and what follows from this one, a segment
// removed or a truncation completed, must not be on the disk before it. The same bytes are written to the same place, so
// that a power cut leaves them, or what was there.
func (f *metaFile) keep() error {
	if _, err := f.f.WriteAt(f.cur.encode(), int64(1-f.next)*metaSlot); err != nil {
		return err
	}
	return f.f.SyncData()
}

// write stores m in the next slot, durably; both: in each slot, one after the other.
func (f *metaFile) write(m metaRecord, both bool) error {
	times := 1
	if both {
		times = 2
	}
	for range times {
		m.seq = f.cur.seq + 1
		if _, err := f.f.WriteAt(m.encode(), int64(f.next)*metaSlot); err != nil {
			return err
		}
		if err := f.f.SyncData(); err != nil {
			return err
		}
		f.cur, f.next = m, 1-f.next
	}
	return nil
}
