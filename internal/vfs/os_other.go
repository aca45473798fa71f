//go:build !linux

package vfs

// WritevAt writes buffer by buffer: these systems are for development, not for speed.
func (f *osFile) WritevAt(bufs [][]byte, off int64) error {
	for _, b := range bufs {
		n, err := f.WriteAt(b, off)
		if err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}

// SyncData is fsync(2).
func (f *osFile) SyncData() error { return f.Sync() }

// Uncache does nothing.
func (f *osFile) Uncache(off, n int64) {}
