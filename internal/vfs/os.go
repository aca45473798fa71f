package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"sort"

	"golang.org/x/sys/unix"
)

// OS is the file system of the machine.
var OS FS = osFS{}

type osFS struct{}

func (osFS) Create(name string) (File, error) {
	return wrapFile(os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644))
}
func (osFS) Open(name string) (File, error) { return wrapFile(os.Open(name)) }
func (osFS) OpenReadWrite(name string) (File, error) {
	return wrapFile(os.OpenFile(name, os.O_RDWR, 0o644))
}
func (osFS) Rename(from, to string) error { return os.Rename(from, to) }
func (osFS) Remove(name string) error     { return os.Remove(name) }
func (osFS) MkdirAll(dir string) error    { return os.MkdirAll(dir, 0o755) }

func (osFS) List(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	sort.Strings(names)
	return names, err
}

func (osFS) Stat(name string) (Info, error) {
	st, err := os.Stat(name)
	if err != nil {
		return Info{}, err
	}
	if st.IsDir() {
		return Info{IsDir: true}, nil
	}
	return Info{Size: st.Size()}, nil
}

func (osFS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err != unix.EINTR {
			break
		}
	}
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		f.Close()
		return nil, &fs.PathError{Op: "lock", Path: name, Err: ErrLocked}
	default:
		f.Close()
		return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
	}
}

func (osFS) Space(dir string) (free, total uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	unit := uint64(st.Bsize)
	return uint64(st.Bavail) * unit, uint64(st.Blocks) * unit, nil
}

type osFile struct {
	*os.File
	fd int
}

func wrapFile(f *os.File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return &osFile{File: f, fd: int(f.Fd())}, nil
}

func (f *osFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}
