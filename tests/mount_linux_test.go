package tests

import "golang.org/x/sys/unix"

// mountSmall mounts a file system of 256 MiB in memory at dir.
func mountSmall(dir string) error {
	return unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=256m")
}

func unmount(dir string) error { return unix.Unmount(dir, unix.MNT_DETACH) }
