package index

import (
	"errors"
	"fmt"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// Options tells an index where it lives and which log it belongs to.
type Options struct {
	FS  vfs.FS // default vfs.OS
	Dir string // folder of the index, made when it is missing; nothing else may live in it

	// SegmentSize is that of the commit log, in bytes: a power of two, 64 KiB to 4 GiB. Files of another size are dropped.
	SegmentSize int64

	// Group is the broker group's id. Files of another group are dropped.
	Group ids.GroupID

	// FirstOffset is where the log begins; files of segments before it are dropped. Default 0.
	FirstOffset ids.PhysicalOffset

	// EndOffset is where the log ends; files that claim to know more are of another life of the log, and dropped. 0: not
	// checked.
	EndOffset ids.PhysicalOffset

	// MaxRuns is how many spilled files a segment may have before they are merged. More cost reads a look-up each, fewer
	// cost writes. Default 32, at least 2.
	MaxRuns int
}

// EnsureDefaults fills in what was left out.
func (o *Options) EnsureDefaults() {
	if o.FS == nil {
		o.FS = vfs.OS
	}
	if o.MaxRuns == 0 {
		o.MaxRuns = 32
	}
}

// Validate returns all faults of o at once.
func (o *Options) Validate() error {
	var all []error
	fault := func(format string, a ...any) { all = append(all, fmt.Errorf("index options: "+format, a...)) }
	if o.Dir == "" {
		fault("Dir is empty")
	}
	if err := ids.CheckSegmentSize(o.SegmentSize, ids.MinTestSegmentSize); err != nil {
		fault("%w", err)
	}
	if o.FirstOffset < 0 || o.EndOffset < 0 {
		fault("FirstOffset is %d, EndOffset is %d, want none below 0", o.FirstOffset, o.EndOffset)
	}
	if o.MaxRuns < 2 {
		fault("MaxRuns is %d, want at least 2", o.MaxRuns)
	}
	return errors.Join(all...)
}

// base returns the first offset of the segment that off lies in.
func (o *Options) base(off ids.PhysicalOffset) ids.PhysicalOffset {
	return off &^ ids.PhysicalOffset(o.SegmentSize-1)
}

// end returns the end of the segment that off lies in.
func (o *Options) end(off ids.PhysicalOffset) ids.PhysicalOffset {
	return o.base(off) + ids.PhysicalOffset(o.SegmentSize)
}
