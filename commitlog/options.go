package commitlog

import (
	"errors"
	"fmt"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// Sizes of the format and of the defaults, in bytes.
const (
	// MaxFrame bounds a whole frame: a message of 4 MiB with its properties, and room.
	MaxFrame = 5<<20 + 64<<10
	// DefaultFillAhead is how far the zeros reach ahead of the writer.
	DefaultFillAhead = 32 << 20
	minFillAhead     = 16 << 20
	maxFillAhead     = 64 << 20
	// MaxOwner bounds Meta.Owner.
	MaxOwner = 3 << 10
	// MaxBootID bounds Options.BootID.
	MaxBootID = 64
)

// Options of one log.
type Options struct {
	// FS holds the files. Default vfs.OS.
	FS vfs.FS
	// Dir is the folder of this log alone. Required.
	Dir string
	// Cluster and Group are written into every file and checked at Open. Required.
	Cluster ids.ClusterID
	Group   ids.GroupID
	// SegmentSize in bytes: a power of two from 16 MiB to 4 GiB, the same on all replicas and for ever. Larger ones mean
	// fewer files and coarser retention. Default 1 GiB.
	SegmentSize int64
	// SmallSegments lets SegmentSize go down to 64 KiB, for tests. Below 16 MiB the largest frame is a quarter of the segment.
	SmallSegments bool
	// FillAhead in bytes is how far FillAhead keeps zeros ahead of the writer, 16 to 64 MiB, at most one segment. Default
	// 32 MiB. Negative: none; appends then extend the file, and a sync costs more: see BenchmarkAppendSync.
	FillAhead int64
	// KeepSpare is the number of cut segments that are kept for use as later ones. Default 1. Negative: none.
	KeepSpare int
	// BootID names this start of the machine; it is kept in Meta. Default "": not known, which is never the same as before.
	BootID string
	// Async tells that frames are acknowledged before they are synced: SyncBehind does that beside the writer. After a stop
	// without a clean-stop mark in another boot Open then returns a *LostTailError.
	Async bool
	// AcceptLoss opens a log all the same that would be refused with a *LostTailError: it was chosen to go on with what it has.
	AcceptLoss bool
	// ReadOnly opens without a lock and changes nothing, not even to recover.
	ReadOnly bool
}

// EnsureDefaults fills what is zero.
func (o *Options) EnsureDefaults() {
	if o.FS == nil {
		o.FS = vfs.OS
	}
	if o.SegmentSize == 0 {
		o.SegmentSize = ids.DefaultSegmentSize
	}
	if o.FillAhead == 0 {
		o.FillAhead = DefaultFillAhead
	}
	if o.KeepSpare == 0 {
		o.KeepSpare = 1
	}
}

// Validate reports all faults at once. Call EnsureDefaults before.
func (o *Options) Validate() error {
	var errs []error
	fault := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("commitlog options: "+format, args...))
	}
	if o.Dir == "" {
		fault("Dir is empty")
	}
	if ids.UUID(o.Cluster).IsZero() {
		fault("Cluster is zero")
	}
	if ids.UUID(o.Group).IsZero() {
		fault("Group is zero")
	}
	least := int64(ids.MinSegmentSize)
	if o.SmallSegments {
		least = ids.MinTestSegmentSize
	}
	if err := ids.CheckSegmentSize(o.SegmentSize, least); err != nil {
		fault("%w", err)
	}
	if o.FillAhead > maxFillAhead || o.FillAhead >= 0 && o.FillAhead < minFillAhead && !o.SmallSegments {
		fault("FillAhead %d is not from %d to %d", o.FillAhead, minFillAhead, maxFillAhead)
	}
	if len(o.BootID) > MaxBootID {
		fault("BootID has %d bytes, more than %d", len(o.BootID), MaxBootID)
	}
	return errors.Join(errs...)
}

// maxFrame is the bound of a frame in a log of these options.
func (o *Options) maxFrame() int {
	if o.SegmentSize < ids.MinSegmentSize {
		return int(o.SegmentSize / 4)
	}
	return MaxFrame
}
