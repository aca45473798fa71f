package jepsen

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ownerOf returns the name of the process, among pids, that owns the socket at local which is connected to remote, "" when it is
// none of them. It reads /proc.
func ownerOf(local, remote netip.AddrPort, pids map[string]int) string {
	inode := askKernel(local, remote)
	if inode == "" {
		inode = socketInode(local, remote)
	}
	if inode == "" {
		return ""
	}
	link := "socket:[" + inode + "]"
	for name, pid := range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
		fds, err := os.ReadDir(dir)
		if err != nil {
			continue // it has ended meanwhile
		}
		for _, fd := range fds {
			if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && to == link {
				return name
			}
		}
	}
	return ""
}

// socketInode finds a connected socket of IPv4 in the kernel's table.
func socketInode(local, remote netip.AddrPort) string {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return ""
	}
	want := procAddr(local) + " " + procAddr(remote)
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 9 && fields[1]+" "+fields[2] == want {
			return fields[9]
		}
	}
	return ""
}

// procAddr writes an address as the kernel does: the number of the address in its own byte order, and the port.
func procAddr(a netip.AddrPort) string {
	ip := a.Addr().Unmap().As4()
	if hostIsLittle {
		slices.Reverse(ip[:])
	}
	return strings.ToUpper(hex.EncodeToString(ip[:])) + fmt.Sprintf(":%04X", a.Port())
}

var hostIsLittle = binary.NativeEndian.Uint16([]byte{1, 0}) == 1
