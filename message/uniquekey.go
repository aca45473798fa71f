package message

import (
	"crypto/rand"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// NewUniqueKey returns a key that no other call in this process returns within a month, and hardly any call of another
// one: upper-case hexadecimal of the machine's address (4 or 16 bytes), process id (2), a number drawn at the start
// (4, RocketMQ has the hash of a class loader here), milliseconds since the start of the month (4), counter (2). 32 digits,
// 56 on a machine with IPv6 only.
func NewUniqueKey() string {
	tick := nextTick(time.Now().UnixMilli())
	start := monthStart(tick >> 16)
	var raw [28]byte
	b := append(raw[:0], uniquePrefix()...)
	b = binary.BigEndian.AppendUint32(b, uint32(tick>>16-start))
	b = binary.BigEndian.AppendUint16(b, uint16(tick))
	var out [56]byte
	return string(appendHex(out[:0], b))
}

// lastTick is milliseconds<<16 | counter of the last key.
//
// Invariant: it only grows, also when the clock steps back or more than 65536 keys are made in one millisecond.
var lastTick atomic.Int64

func nextTick(nowMillis int64) int64 {
	for {
		last := lastTick.Load()
		next := max(last+1, nowMillis<<16)
		if lastTick.CompareAndSwap(last, next) {
			return next
		}
	}
}

// month caches the month of the last key: its first millisecond and the first one after it.
type month struct{ start, end int64 }

var currentMonth atomic.Pointer[month]

func monthStart(millis int64) int64 {
	if m := currentMonth.Load(); m != nil && millis >= m.start && millis < m.end {
		return m.start
	}
	t := time.UnixMilli(millis)
	first := time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, t.Location())
	m := &month{start: first.UnixMilli(), end: first.AddDate(0, 1, 0).UnixMilli()}
	currentMonth.Store(m)
	return m.start
}

var uniquePrefix = sync.OnceValue(func() []byte {
	b := localAddress().AsSlice()
	b = binary.BigEndian.AppendUint16(b, uint16(os.Getpid()))
	var drawn [4]byte
	rand.Read(drawn[:])
	return append(b, drawn[:]...)
})

// localAddress is the first address that is not loopback, IPv4 before IPv6, and 127.0.0.1 when there is none.
func localAddress() netip.Addr {
	best := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return best
	}
	for _, a := range addrs {
		ip, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		addr, ok := netip.AddrFromSlice(ip.IP)
		if addr = addr.Unmap(); !ok || !addr.IsGlobalUnicast() {
			continue
		}
		if addr.Is4() {
			return addr
		}
		if best.Is4() {
			best = addr
		}
	}
	return best
}
