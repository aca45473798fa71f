package jepsen

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// askKernel asks the kernel for the inode of one socket of IPv4, by its two ends: "" when there is none, or the kernel does not tell. The
// whole table, which /proc/net/tcp is, takes milliseconds on a machine with many sockets: too long for what is measured through a proxy.
//
//	netlink header 16 | family 1, protocol 1, extensions 1, pad 1, states u32 | ports u16, u16 | source 16, destination 16 | interface u32 | cookie 8
func askKernel(local, remote netip.AddrPort) string {
	const header, request, answer = 16, 56, 72 // an answer has its inode at its end
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return ""
	}
	defer unix.Close(s)
	unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1})
	b := make([]byte, header+request)
	native := binary.NativeEndian
	native.PutUint32(b, uint32(len(b)))
	native.PutUint16(b[4:], 20) // SOCK_DIAG_BY_FAMILY
	native.PutUint16(b[6:], unix.NLM_F_REQUEST)
	d := b[header:]
	d[0], d[1] = unix.AF_INET, unix.IPPROTO_TCP
	native.PutUint32(d[4:], 0xffffffff)
	binary.BigEndian.PutUint16(d[8:], local.Port())
	binary.BigEndian.PutUint16(d[10:], remote.Port())
	from, to := local.Addr().Unmap().As4(), remote.Addr().Unmap().As4()
	copy(d[12:], from[:])
	copy(d[28:], to[:])
	copy(d[48:], "\xff\xff\xff\xff\xff\xff\xff\xff") // any cookie
	if err := unix.Sendto(s, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return ""
	}
	reply := make([]byte, 4096)
	n, _, err := unix.Recvfrom(s, reply, 0)
	if err != nil || n < header+answer || native.Uint16(reply[4:]) == syscall.NLMSG_ERROR {
		return ""
	}
	// Without such a connection the answer is about the socket that listens there.
	if ends := reply[header+4:][:36]; !bytes.Equal(ends, d[8:44]) {
		return ""
	}
	if inode := native.Uint32(reply[header+answer-4:]); inode != 0 {
		return strconv.FormatUint(uint64(inode), 10)
	}
	return ""
}
