package broker_test

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// mountSmall mounts a file system of that many bytes in memory at dir.
func mountSmall(dir string, size int64) error {
	return unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, fmt.Sprintf("size=%d", size))
}

func unmount(dir string) error { return unix.Unmount(dir, 0) }
