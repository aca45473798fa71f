package message

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// Magic numbers of the two forms of a record. They differ only in the width of the topic's length.
const (
	magicV1 uint32 = 0xDAA320A7 // topic length in one byte, up to 127
	magicV2 uint32 = 0xDAA320AB // topic length in two bytes
)

// Places inside a record that do not depend on the hosts.
const (
	atSize           = 0
	atMagic          = 4
	atCRC            = 8
	atQueueID        = 12
	atFlag           = 16
	atQueueOffset    = 20
	atPhysicalOffset = 28
	atSysFlag        = 36
	atBornTime       = 40
	atBornHost       = 48
)

// fixedSize is the size of a V1 record with two IPv4 hosts and nothing in body, topic and properties.
const fixedSize = 91

// extraV6 is what an IPv6 host takes more than an IPv4 host.
const extraV6 = 12

// maxRecord bounds a decoded record: the largest body, topic and properties fit with room to spare.
const maxRecord = MaxBody + 64<<10

// Record is one message as it is stored.
type Record struct {
	QueueID        ids.QueueID
	Flag           int32 // the user's flag, unchanged
	QueueOffset    ids.QueueOffset
	PhysicalOffset ids.PhysicalOffset
	SysFlag        int32 // Sys… bits; the two host bits follow from the hosts
	BornTime       int64 // ms since 1970, the producer's clock
	BornHost       netip.AddrPort
	StoreTime      int64 // ms since 1970, the master's clock
	StoreHost      netip.AddrPort
	ReconsumeTimes int32
	PreparedOffset int64 // physical offset of the half message, 0 when there is none
	Body           []byte
	Topic          string
	Properties     string // encoded, see Property
}

// FormatError tells why bytes are not a record, an item of a batch or a message id.
type FormatError struct {
	What   string // "record", "batch item", "message id"
	Reason string
}

func (e *FormatError) Error() string { return "message: bad " + e.What + ": " + e.Reason }

func badRecord(format string, args ...any) error {
	return &FormatError{What: "record", Reason: fmt.Sprintf(format, args...)}
}

// isV6 tells whether the host takes 16 address bytes. An IPv4 address inside an IPv6 one takes 4, none at all is 0.0.0.0.
func isV6(host netip.AddrPort) bool {
	a := host.Addr()
	return a.Is6() && !a.Is4In6()
}

// Size returns the number of bytes that AppendTo appends.
func (r *Record) Size() int {
	n := fixedSize + len(r.Body) + len(r.Topic) + len(r.Properties)
	if isV6(r.BornHost) {
		n += extraV6
	}
	if isV6(r.StoreHost) {
		n += extraV6
	}
	if len(r.Topic) > MaxTopic {
		n++
	}
	return n
}

// AppendTo appends the record's bytes to dst. It computes size, checksum and the host bits of sysFlag.
//
// It panics when the topic is longer than 32767 bytes or the properties are longer than MaxProperties: their lengths
// would lie. Callers check names and properties at the door.
func (r *Record) AppendTo(dst []byte) []byte { return r.appendWith(dst, "", "", 0) }

// AppendWith is AppendTo with one pair more behind the properties, in the bytes only: as with AppendProperty, but no longer string is made.
// The pair must be one that ValidProperty lets through, and have room: see PropertySize. Size does not count it.
func (r *Record) AppendWith(dst []byte, key, value string) []byte {
	return r.appendWith(dst, key, value, PropertySize(r.Properties, key, value))
}

// appendWith appends the record with a pair of more bytes behind the properties, none when more is 0.
func (r *Record) appendWith(dst []byte, key, value string, more int) []byte {
	if len(r.Properties)+more > MaxProperties || len(r.Topic) > 32767 {
		panic(fmt.Sprintf("message: a topic of %d and properties of %d bytes reached the encoder", len(r.Topic), len(r.Properties)+more))
	}
	sys := r.SysFlag &^ (SysBornHostV6 | SysStoreHostV6)
	if isV6(r.BornHost) {
		sys |= SysBornHostV6
	}
	if isV6(r.StoreHost) {
		sys |= SysStoreHostV6
	}
	magic := magicV1
	if len(r.Topic) > MaxTopic {
		magic = magicV2
	}
	b := binary.BigEndian
	dst = b.AppendUint32(dst, uint32(r.Size()+more))
	dst = b.AppendUint32(dst, magic)
	dst = b.AppendUint32(dst, bodyCRC(r.Body))
	dst = b.AppendUint32(dst, uint32(r.QueueID))
	dst = b.AppendUint32(dst, uint32(r.Flag))
	dst = b.AppendUint64(dst, uint64(r.QueueOffset))
	dst = b.AppendUint64(dst, uint64(r.PhysicalOffset))
	dst = b.AppendUint32(dst, uint32(sys))
	dst = b.AppendUint64(dst, uint64(r.BornTime))
	dst = appendHost(dst, r.BornHost)
	dst = b.AppendUint64(dst, uint64(r.StoreTime))
	dst = appendHost(dst, r.StoreHost)
	dst = b.AppendUint32(dst, uint32(r.ReconsumeTimes))
	dst = b.AppendUint64(dst, uint64(r.PreparedOffset))
	dst = b.AppendUint32(dst, uint32(len(r.Body)))
	dst = append(dst, r.Body...)
	if magic == magicV1 {
		dst = append(dst, byte(len(r.Topic)))
	} else {
		dst = b.AppendUint16(dst, uint16(len(r.Topic)))
	}
	dst = append(dst, r.Topic...)
	dst = b.AppendUint16(dst, uint16(len(r.Properties)+more))
	dst = append(dst, r.Properties...)
	if more == 0 {
		return dst
	}
	if needsSeparator(r.Properties) {
		dst = append(dst, pairSeparator...)
	}
	dst = append(dst, key...)
	dst = append(dst, nameSeparator...)
	dst = append(dst, value...)
	return append(dst, pairSeparator...)
}

// bodyCRC is CRC-32 (IEEE) without its top bit, and 0 for an empty body.
func bodyCRC(body []byte) uint32 { return crc32.ChecksumIEEE(body) & 0x7FFFFFFF }

// Patch writes the queue offset, the physical offset, the store time and the store host into the bytes of a record, in
// place. The rest stays, the checksum too: it covers the body only.
//
// rec must come from AppendTo (or have passed Decode) with a store host of the same size: Patch panics when storeHost is
// IPv6 and the record has place for IPv4. An IPv4 host in a record that has place for IPv6 is written as ::ffff:a.b.c.d.
func Patch(rec []byte, qo ids.QueueOffset, po ids.PhysicalOffset, storeTime int64, storeHost netip.AddrPort) {
	b := binary.BigEndian
	at := PatchPlace(rec, qo, po, storeTime)
	sys := int32(b.Uint32(rec[atSysFlag:]))
	if sys&SysStoreHostV6 != 0 {
		a := storeHost.Addr().As16()
		copy(rec[at:], a[:])
		at += 16
	} else {
		if isV6(storeHost) {
			panic("message: Patch with an IPv6 store host on a record made for IPv4")
		}
		a := as4(storeHost)
		copy(rec[at:], a[:])
		at += 4
	}
	b.PutUint32(rec[at:], uint32(storeHost.Port()))
}

// PatchPlace is Patch without the store host: the record keeps its own. It returns where that lies.
func PatchPlace(rec []byte, qo ids.QueueOffset, po ids.PhysicalOffset, storeTime int64) (storeHost int) {
	b := binary.BigEndian
	b.PutUint64(rec[atQueueOffset:], uint64(qo))
	b.PutUint64(rec[atPhysicalOffset:], uint64(po))
	at := atStoreTime(rec)
	b.PutUint64(rec[at:], uint64(storeTime))
	return at + 8
}

// StoreTimeHead is how many bytes from the front of a record StoreTimeOf needs at most. No record is shorter.
const StoreTimeHead = atBornHost + 8 + extraV6 + 8

// StoreTimeOf reads the store time of a record, in ms since 1970, from its first StoreTimeHead bytes.
func StoreTimeOf(head []byte) int64 {
	return int64(binary.BigEndian.Uint64(head[atStoreTime(head):]))
}

// atStoreTime is where the store time of a record lies: behind the producer's host.
func atStoreTime(rec []byte) int {
	at := atBornHost + 8
	if int32(binary.BigEndian.Uint32(rec[atSysFlag:]))&SysBornHostV6 != 0 {
		at += extraV6
	}
	return at
}

// Decode reads the record at the start of b and returns it with its size. Body lies in b; topic and properties are
// copies. Bytes after the record are not looked at, so that a pull's body is read by repeated calls.
//
// The error is a *FormatError when b is too short, a length lies, the magic is unknown or the body's checksum is wrong.
func Decode(b []byte) (Record, int, error) {
	var r Record
	if len(b) < fixedSize {
		return r, 0, badRecord("%d bytes are less than the smallest record", len(b))
	}
	be := binary.BigEndian
	size := int(be.Uint32(b[atSize:]))
	if size < fixedSize || size > maxRecord {
		return r, 0, badRecord("size %d is out of range", size)
	}
	if size > len(b) {
		return r, 0, badRecord("size %d, but only %d bytes", size, len(b))
	}
	b = b[:size]
	magic := be.Uint32(b[atMagic:])
	if magic != magicV1 && magic != magicV2 {
		return r, 0, badRecord("unknown magic %08X", magic)
	}
	crc := be.Uint32(b[atCRC:])
	r.QueueID = ids.QueueID(be.Uint32(b[atQueueID:]))
	r.Flag = int32(be.Uint32(b[atFlag:]))
	r.QueueOffset = ids.QueueOffset(be.Uint64(b[atQueueOffset:]))
	r.PhysicalOffset = ids.PhysicalOffset(be.Uint64(b[atPhysicalOffset:]))
	r.SysFlag = int32(be.Uint32(b[atSysFlag:]))
	r.BornTime = int64(be.Uint64(b[atBornTime:]))

	c := cursor{b: b, at: atBornHost}
	r.BornHost = c.host(r.SysFlag&SysBornHostV6 != 0)
	r.StoreTime = int64(c.uint64())
	r.StoreHost = c.host(r.SysFlag&SysStoreHostV6 != 0)
	r.ReconsumeTimes = int32(c.uint32())
	r.PreparedOffset = int64(c.uint64())
	r.Body = c.bytes(int(int32(c.uint32())))
	if magic == magicV1 {
		r.Topic = string(c.bytes(int(int8(c.uint8()))))
	} else {
		r.Topic = string(c.bytes(int(int16(c.uint16()))))
	}
	r.Properties = string(c.bytes(int(int16(c.uint16()))))
	switch {
	case c.fault != "":
		return Record{}, 0, badRecord("%s", c.fault)
	case c.at != size:
		return Record{}, 0, badRecord("size %d, but the fields end at %d", size, c.at)
	case crc != bodyCRC(r.Body):
		return Record{}, 0, badRecord("body checksum %08X, want %08X", bodyCRC(r.Body), crc)
	}
	return r, size, nil
}

// Check tells why rec is not exactly the record that is meant: one of that topic, queue and offsets, whose lengths add up and whose body has
// its checksum; nil when it is. The checksum covers the body only: flags, times, hosts and the bytes of the properties may be anything.
// The error is a *FormatError. It allocates nothing but that.
func Check(rec []byte, topic string, queue ids.QueueID, qo ids.QueueOffset, po ids.PhysicalOffset) error {
	if len(rec) < fixedSize {
		return badRecord("%d bytes are less than the smallest record", len(rec))
	}
	be := binary.BigEndian
	magic, crc, sys := be.Uint32(rec[atMagic:]), be.Uint32(rec[atCRC:]), int32(be.Uint32(rec[atSysFlag:]))
	hosts := 2 * 8
	if sys&SysBornHostV6 != 0 {
		hosts += extraV6
	}
	if sys&SysStoreHostV6 != 0 {
		hosts += extraV6
	}
	c := cursor{b: rec, at: atBornHost}
	c.bytes(hosts + 8 + 4 + 8) // with the store time, the number of tries and the offset of the half message
	body := c.bytes(int(int32(c.uint32())))
	var name []byte
	if magic == magicV1 {
		name = c.bytes(int(int8(c.uint8())))
	} else {
		name = c.bytes(int(int16(c.uint16())))
	}
	c.bytes(int(int16(c.uint16())))
	switch {
	case magic != magicV1 && magic != magicV2:
		return badRecord("unknown magic %08X", magic)
	case int(be.Uint32(rec[atSize:])) != len(rec):
		return badRecord("size %d in %d bytes", be.Uint32(rec[atSize:]), len(rec))
	case c.fault != "":
		return badRecord("%s", c.fault)
	case c.at != len(rec):
		return badRecord("size %d, but the fields end at %d", len(rec), c.at)
	case ids.QueueID(be.Uint32(rec[atQueueID:])) != queue || ids.QueueOffset(be.Uint64(rec[atQueueOffset:])) != qo || ids.PhysicalOffset(be.Uint64(rec[atPhysicalOffset:])) != po:
		return badRecord("it is of queue %d, offset %d, at %d; meant is offset %d of queue %d at %d", int32(be.Uint32(rec[atQueueID:])), be.Uint64(rec[atQueueOffset:]),
			be.Uint64(rec[atPhysicalOffset:]), qo, queue, po)
	case string(name) != topic:
		return badRecord("its topic is %q, not %q", name, topic)
	case crc != bodyCRC(body):
		return badRecord("body checksum %08X, want %08X", bodyCRC(body), crc)
	}
	return nil
}

// cursor reads fields one after the other. After the first fault every read gives zero.
type cursor struct {
	b     []byte
	at    int
	fault string
}

func (c *cursor) bytes(n int) []byte {
	switch {
	case c.fault != "":
		return nil
	case n < 0:
		c.fault = fmt.Sprintf("negative length %d at byte %d", n, c.at)
		return nil
	case n > len(c.b)-c.at:
		c.fault = fmt.Sprintf("length %d at byte %d runs past the end", n, c.at)
		return nil
	}
	p := c.b[c.at : c.at+n : c.at+n]
	c.at += n
	return p
}

func (c *cursor) uint8() byte {
	if p := c.bytes(1); p != nil {
		return p[0]
	}
	return 0
}

func (c *cursor) uint16() uint16 {
	if p := c.bytes(2); p != nil {
		return binary.BigEndian.Uint16(p)
	}
	return 0
}

func (c *cursor) uint32() uint32 {
	if p := c.bytes(4); p != nil {
		return binary.BigEndian.Uint32(p)
	}
	return 0
}

func (c *cursor) uint64() uint64 {
	if p := c.bytes(8); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

func (c *cursor) host(v6 bool) netip.AddrPort {
	n := 4
	if v6 {
		n = 16
	}
	addr, _ := netip.AddrFromSlice(c.bytes(n))
	port := c.uint32()
	if port > 65535 {
		if c.fault == "" {
			c.fault = fmt.Sprintf("port %d before byte %d", port, c.at)
		}
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr, uint16(port))
}

func as4(host netip.AddrPort) [4]byte {
	if a := host.Addr().Unmap(); a.Is4() {
		return a.As4()
	}
	return [4]byte{}
}

// appendHost appends 4 or 16 address bytes and a port of 4.
func appendHost(dst []byte, host netip.AddrPort) []byte {
	if isV6(host) {
		a := host.Addr().As16()
		dst = append(dst, a[:]...)
	} else {
		a := as4(host)
		dst = append(dst, a[:]...)
	}
	return binary.BigEndian.AppendUint32(dst, uint32(host.Port()))
}
