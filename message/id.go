package message

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"

	"github.com/ledgermq/ledgermq/internal/ids"
)

const upperHex = "0123456789ABCDEF"

func appendHex(dst, src []byte) []byte {
	for _, b := range src {
		dst = append(dst, upperHex[b>>4], upperHex[b&15])
	}
	return dst
}

// OffsetMessageID returns the id that names a record by its store host and physical offset: 32 upper-case hexadecimal
// digits for an IPv4 host, 56 for IPv6. RocketMQ calls it offset message id.
func OffsetMessageID(host netip.AddrPort, off ids.PhysicalOffset) string {
	var out [56]byte
	return string(AppendOffsetMessageID(out[:0], host, off))
}

// AppendOffsetMessageID appends what OffsetMessageID returns.
func AppendOffsetMessageID(dst []byte, host netip.AddrPort, off ids.PhysicalOffset) []byte {
	var raw [28]byte
	b := appendHost(raw[:0], host)
	b = binary.BigEndian.AppendUint64(b, uint64(off))
	return appendHex(dst, b)
}

// ParseOffsetMessageID is the reverse of OffsetMessageID; it takes lower case too. The error is a *FormatError.
//
// A unique key looks just like it, so that success does not prove that a record lies at the offset.
func ParseOffsetMessageID(id string) (netip.AddrPort, ids.PhysicalOffset, error) {
	bad := func(reason string) (netip.AddrPort, ids.PhysicalOffset, error) {
		return netip.AddrPort{}, 0, &FormatError{What: "message id", Reason: reason}
	}
	if len(id) != 32 && len(id) != 56 {
		return bad("want 32 or 56 hexadecimal digits")
	}
	var raw [28]byte
	n, err := hex.Decode(raw[:], []byte(id))
	if err != nil {
		return bad("not hexadecimal")
	}
	c := cursor{b: raw[:n]}
	host := c.host(n == 28)
	off := ids.PhysicalOffset(c.uint64())
	if c.fault != "" {
		return bad(c.fault)
	}
	if off < 0 {
		return bad("negative offset")
	}
	return host, off, nil
}
