package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// The bytes of a packet; docs/format/peer.md draws them. All integers are big-endian.
const (
	packetMagic   = "LMQW"
	headerSize    = 24 // magic 4, kind 1, zero 1, envelopes 2, head bytes 4, frame bytes 4, zero 4, CRC-32C 4
	headerCRC     = 20 // where the CRC over the bytes before it and the head stands
	envelopeFixed = 96
	entryFixed    = 20
	frameMin      = 64 // the header of a frame

	kindBatch = 1
	kindPing  = 2
	kindPong  = 3

	flagMessage = 1 << 0
	flagReject  = 1 << 1
	flagPart    = 1 << 2

	partHash = 32 // bytes of a part's context
)

// Bounds of a packet, for the receiver. A sender stops at packetTarget, or sends one envelope alone.
const (
	maxPacketEnvelopes = 4096
	maxPacketHead      = 1 << 20
	maxPacketFrames    = 16 << 20
	packetTarget       = 4 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrWire is wrapped by every error about bytes that are not a packet which a sound peer can have sent. The connection that
// brought them is closed: there is no way to find the next packet.
var ErrWire = errors.New("peer: not a valid packet")

func wireError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrWire, fmt.Errorf(format, args...))
}

// envelopeSize is the number of bytes of e in a packet's head.
func envelopeSize(e *Envelope) int {
	n := envelopeFixed + len(e.Record) + 4*len(e.Frames)
	if e.Part != nil {
		n += partHash
	}
	if e.Msg != nil {
		n += len(e.Msg.Context)
		for _, x := range e.Msg.Entries {
			n += entryFixed + len(x.Data)
		}
	}
	return n
}

// appendBatch appends header and head of one packet with envs to dst. The packet's frames follow it on the wire, in order. The
// caller has checked each envelope, and keeps the packet inside its bounds.
func appendBatch(dst []byte, envs []Envelope) []byte {
	start := len(dst)
	dst = appendHeader(dst, kindBatch, len(envs))
	frames := 0
	for i := range envs {
		e := &envs[i]
		dst = appendEnvelope(dst, e)
		for _, f := range e.Frames {
			frames += len(f)
		}
	}
	binary.BigEndian.PutUint32(dst[start+8:], uint32(len(dst)-start-headerSize))
	binary.BigEndian.PutUint32(dst[start+12:], uint32(frames))
	sealPacket(dst[start:])
	return dst
}

// appendControl appends a ping or a pong: a packet that is only a header.
func appendControl(dst []byte, kind byte) []byte {
	start := len(dst)
	dst = appendHeader(dst, kind, 0)
	sealPacket(dst[start:])
	return dst
}

func appendHeader(dst []byte, kind byte, envelopes int) []byte {
	dst = append(dst, packetMagic...)
	dst = append(dst, kind, 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(envelopes))
	return append(dst, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
}

func sealPacket(p []byte) { binary.BigEndian.PutUint32(p[headerCRC:], packetCRC(p)) }

// packetCRC covers header and head. Frames carry their own checksum, and a second pass over them would buy nothing.
func packetCRC(p []byte) uint32 {
	return crc32.Update(crc32.Checksum(p[:headerCRC], castagnoli), castagnoli, p[headerSize:])
}

func appendEnvelope(dst []byte, e *Envelope) []byte {
	be := binary.BigEndian
	m := e.Msg
	var flags byte
	context := m.GetContext()
	var place [envelopeFixed - 48]byte // of the message, or the part
	if p := e.Part; p != nil {
		flags |= flagPart
		context = p.Hash[:]
		be.PutUint64(place[0:], uint64(p.Index))
		be.PutUint64(place[8:], uint64(p.Size))
		be.PutUint64(place[16:], uint64(p.At))
		place[28] = byte(p.Kind)
		if len(e.Frames) > 0 {
			be.PutUint32(place[24:], crc32.Checksum(e.Frames[0], castagnoli))
		}
	}
	if m != nil {
		flags |= flagMessage
		for i, v := range [...]uint64{m.GetTerm(), m.GetLogTerm(), m.GetIndex(), m.GetCommit(), m.GetVote(), m.GetRejectHint()} {
			be.PutUint64(place[8*i:], v)
		}
	}
	if m.GetReject() {
		flags |= flagReject
	}
	dst = append(dst, e.Group[:]...)
	dst = be.AppendUint64(dst, uint64(e.From))
	dst = be.AppendUint64(dst, uint64(e.To))
	dst = be.AppendUint32(dst, uint32(e.Epoch))
	dst = append(dst, byte(m.GetType()), flags)
	dst = be.AppendUint16(dst, uint16(len(e.Frames)))
	dst = be.AppendUint16(dst, uint16(len(m.GetEntries())))
	dst = be.AppendUint16(dst, uint16(len(e.Record)))
	dst = be.AppendUint16(dst, uint16(len(context)))
	dst = append(dst, 0, 0)
	dst = append(dst, place[:]...)
	dst = append(dst, e.Record...)
	dst = append(dst, context...)
	for _, x := range m.GetEntries() {
		dst = be.AppendUint64(dst, x.GetTerm())
		dst = be.AppendUint64(dst, x.GetIndex())
		dst = append(dst, byte(x.GetType()), 0)
		dst = be.AppendUint16(dst, uint16(len(x.Data)))
		dst = append(dst, x.Data...)
	}
	for _, f := range e.Frames {
		dst = be.AppendUint32(dst, uint32(len(f)))
	}
	return dst
}

// header is a packet's parsed header.
type header struct {
	kind         byte
	envelopes    int
	head, frames int // bytes
}

// parseHeader reads the first headerSize bytes of b and checks everything in them but the CRC, so that what they announce may
// be allocated.
func parseHeader(b []byte) (header, error) {
	be := binary.BigEndian
	h := header{kind: b[4], envelopes: int(be.Uint16(b[6:])), head: int(be.Uint32(b[8:])), frames: int(be.Uint32(b[12:]))}
	switch {
	case string(b[:4]) != packetMagic:
		return h, wireError("magic %q", b[:4])
	case b[5] != 0 || be.Uint32(b[16:]) != 0:
		return h, wireError("reserved bytes are not zero")
	case h.kind == kindPing || h.kind == kindPong:
		if h.envelopes != 0 || h.head != 0 || h.frames != 0 {
			return h, wireError("a ping or pong with content")
		}
	case h.kind != kindBatch:
		return h, wireError("kind %d", h.kind)
	case h.envelopes < 1 || h.envelopes > maxPacketEnvelopes:
		return h, wireError("%d envelopes, 1 to %d are allowed", h.envelopes, maxPacketEnvelopes)
	case h.head < h.envelopes*envelopeFixed || h.head > maxPacketHead:
		return h, wireError("a head of %d bytes for %d envelopes, at most %d are allowed", h.head, h.envelopes, maxPacketHead)
	case h.frames > maxPacketFrames:
		return h, wireError("%d bytes of frames, at most %d are allowed", h.frames, maxPacketFrames)
	}
	return h, nil
}

// checkPacketCRC checks a header and its head, which packet is.
func checkPacketCRC(packet []byte) error {
	if got, want := packetCRC(packet), binary.BigEndian.Uint32(packet[headerCRC:]); got != want {
		return wireError("checksum %08x, the content has %08x", want, got)
	}
	return nil
}

// checkHead checks all of packet, a header h and its head, and tells what its envelopes need.
func checkHead(h header, packet []byte) (need, error) {
	if err := checkPacketCRC(packet); err != nil {
		return need{}, err
	}
	n, err := measure(packet[headerSize:], h.envelopes)
	if err == nil && n.frameBytes != h.frames {
		err = wireError("%d bytes of frames, the envelopes name %d", h.frames, n.frameBytes)
	}
	return n, err
}

// decodeBatch appends the envelopes of a packet to dst: all, or none and an error. checkHead has accepted head and told n. The
// frames of the envelopes alias frames, all else is copied.
func decodeBatch(dst []Envelope, h header, n need, head, frames []byte) ([]Envelope, error) {
	room := makeRoom(n)
	start := len(dst)
	for range h.envelopes {
		e, restHead, restFrames, err := room.envelope(head, frames)
		if err != nil {
			clear(dst[start:])
			return dst[:start], err
		}
		dst, head, frames = append(dst, e), restHead, restFrames
	}
	return dst, nil
}

// layout is one envelope's fixed part, checked.
type layout struct {
	typ                              raftpb.MessageType
	message, reject, part            bool
	frames, entries, record, context int
}

func parseLayout(b []byte) (layout, error) {
	be := binary.BigEndian
	var l layout
	if len(b) < envelopeFixed {
		return l, wireError("an envelope is cut off")
	}
	flags := b[37]
	l = layout{
		typ: raftpb.MessageType(b[36]), message: flags&flagMessage != 0, reject: flags&flagReject != 0, part: flags&flagPart != 0,
		frames: int(be.Uint16(b[38:])), entries: int(be.Uint16(b[40:])), record: int(be.Uint16(b[42:])), context: int(be.Uint16(b[44:])),
	}
	switch {
	case flags&^(flagMessage|flagReject|flagPart) != 0 || be.Uint16(b[46:]) != 0:
		return l, wireError("reserved bytes of an envelope are not zero")
	case l.frames > MaxFrames || l.entries > MaxEntries || l.record > MaxRecordBytes || l.context > MaxContextBytes:
		return l, wireError("an envelope over a bound: %d frames, %d entries, a record of %d bytes, a context of %d", l.frames, l.entries, l.record, l.context)
	case l.message && !Carried(l.typ):
		return l, wireError("a %v may not come from a peer", l.typ)
	case l.message && l.typ == raftpb.MsgSnap && l.entries+l.frames > 0:
		return l, wireError("a MsgSnap with entries or frames")
	case l.part:
		if l.message || l.typ != 0 || l.reject || l.frames > 1 || l.entries != 0 || l.context != partHash || !zero(b[77:envelopeFixed]) ||
			l.frames == 0 && !zero(b[72:76]) {
			return l, wireError("a part has fields of a message")
		}
		if kind := PartKind(b[76]); kind >= partKinds || kind == PartOfNewest && l.frames > 0 {
			return l, wireError("a part of kind %d in %d pieces", kind, l.frames)
		}
		index, size, at := be.Uint64(b[48:]), int64(be.Uint64(b[56:])), int64(be.Uint64(b[64:]))
		if index == 0 || at < 0 || size < at {
			return l, wireError("a part at %d of %d bytes", at, size)
		}
	case !l.message:
		if l.typ != 0 || l.reject || l.frames+l.entries+l.context != 0 || !zero(b[48:envelopeFixed]) {
			return l, wireError("an envelope without a message has fields of one")
		}
	}
	return l, nil
}

func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// need is what the envelopes of a packet take together.
type need struct{ messages, entries, frames, frameBytes, blob int }

// measure walks over the head of a packet without allocating, and checks that its parts fill it exactly.
func measure(head []byte, envelopes int) (need, error) {
	be := binary.BigEndian
	var n need
	for range envelopes {
		l, err := parseLayout(head)
		if err != nil {
			return n, err
		}
		if head = head[envelopeFixed:]; len(head) < l.record+l.context {
			return n, wireError("an envelope is cut off")
		}
		head = head[l.record+l.context:]
		n.blob += l.record
		if l.message && l.context > inlineContext {
			n.blob += l.context
		}
		if l.message {
			n.messages++
		}
		for range l.entries {
			if len(head) < entryFixed {
				return n, wireError("an entry is cut off")
			}
			data := int(be.Uint16(head[18:]))
			switch {
			case head[16] > byte(raftpb.EntryConfChangeV2):
				return n, wireError("entry type %d", head[16])
			case head[17] != 0:
				return n, wireError("reserved bytes of an entry are not zero")
			case data > MaxEntryData:
				return n, wireError("an entry with %d bytes of data, at most %d are allowed", data, MaxEntryData)
			case len(head) < entryFixed+data:
				return n, wireError("an entry is cut off")
			}
			if data > inlineData {
				n.blob += data
			}
			head = head[entryFixed+data:]
		}
		n.entries += l.entries
		if len(head) < 4*l.frames {
			return n, wireError("an envelope is cut off")
		}
		total := 0
		for i := range l.frames {
			size := int(be.Uint32(head[4*i:]))
			if l.part && (size == 0 || size > MaxPartBytes) {
				return n, wireError("a part of %d bytes, at most %d are allowed", size, MaxPartBytes)
			}
			if total += size; size < frameMin && !l.part || total > MaxFrameBytes {
				return n, wireError("a frame of %d bytes, %d in one envelope: %d to %d are allowed", size, total, frameMin, MaxFrameBytes)
			}
		}
		n.frames += l.frames
		n.frameBytes += total
		head = head[4*l.frames:]
	}
	if len(head) != 0 {
		return n, wireError("%d bytes follow the last envelope", len(head))
	}
	return n, nil
}

// Small contexts and entry data live inside their message or entry. Raft's read contexts have 8 bytes, its transfer mark 16, a
// thin entry's data 16.
const (
	inlineContext = 16
	inlineData    = 16
)

// message is a Raft message together with all that its pointers point to: one allocation instead of ten.
type message struct {
	m                                                        raftpb.Message
	typ                                                      raftpb.MessageType
	to, from, term, logTerm, index, commit, vote, rejectHint uint64
	reject                                                   bool
	context                                                  [inlineContext]byte
}

// entry is the same for an entry.
type entry struct {
	e           raftpb.Entry
	typ         raftpb.EntryType
	term, index uint64
	data        [inlineData]byte
}

// room holds everything that the envelopes of one packet need, each part taken from the front.
type room struct {
	messages []message
	entries  []entry
	list     []*raftpb.Entry
	frames   []commitlog.Frame
	blob     []byte
}

// single serves the usual packet, one message with at most one entry, from one allocation.
type single struct {
	message [1]message
	entry   [1]entry
	list    [1]*raftpb.Entry
	frame   [1]commitlog.Frame
}

func makeRoom(n need) room {
	var r room
	if n.messages == 1 && n.entries == 1 && n.frames <= 1 {
		s := new(single)
		r = room{messages: s.message[:], entries: s.entry[:], list: s.list[:], frames: s.frame[:]}
	} else {
		r = room{messages: make([]message, n.messages)}
		if n.entries > 0 {
			r.entries, r.list = make([]entry, n.entries), make([]*raftpb.Entry, n.entries)
		}
		if n.frames > 0 {
			r.frames = make([]commitlog.Frame, n.frames)
		}
	}
	if n.blob > 0 {
		r.blob = make([]byte, n.blob)
	}
	return r
}

func (r *room) copy(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	var c []byte
	c, r.blob = r.blob[:len(b):len(b)], r.blob[len(b):]
	copy(c, b)
	return c
}

// envelope reads the next envelope. measure has accepted head: nothing in it can be too short.
func (r *room) envelope(head, frames []byte) (Envelope, []byte, []byte, error) {
	be := binary.BigEndian
	l, err := parseLayout(head)
	if err != nil {
		return Envelope{}, nil, nil, err
	}
	fixed := head[:envelopeFixed]
	e := Envelope{
		Group: ids.GroupID(fixed[:16]), From: ids.ReplicaID(be.Uint64(fixed[16:])), To: ids.ReplicaID(be.Uint64(fixed[24:])),
		Epoch: ids.Epoch(be.Uint32(fixed[32:])),
	}
	head = head[envelopeFixed:]
	e.Record, head = r.copy(head[:l.record]), head[l.record:]
	if l.message {
		m := &r.messages[0]
		r.messages = r.messages[1:]
		m.fill(l, fixed)
		switch {
		case l.context > inlineContext:
			m.m.Context = r.copy(head[:l.context])
		case l.context > 0:
			n := copy(m.context[:], head[:l.context])
			m.m.Context = m.context[:n:n]
		}
		head = head[l.context:]
		m.m.Entries, head = r.entriesOf(head, l.entries)
		e.Msg = &m.m
	}
	if l.part {
		p := &Part{Kind: PartKind(fixed[76]), Index: ids.Index(be.Uint64(fixed[48:])), Size: int64(be.Uint64(fixed[56:])), At: int64(be.Uint64(fixed[64:])), Hash: [32]byte(head[:partHash])}
		e.Part, head = p, head[partHash:]
		if l.frames > 0 {
			size := int(be.Uint32(head))
			part := frames[:size:size]
			if crc32.Checksum(part, castagnoli) != be.Uint32(fixed[72:]) || int64(size) > p.Size-p.At {
				return Envelope{}, nil, nil, wireError("%d bytes at %d of %d: bad checksum, or more than there are", size, p.At, p.Size)
			}
			e.Frames, r.frames = r.frames[:1:1], r.frames[1:]
			e.Frames[0] = part
			head, frames = head[4:], frames[size:]
		}
		return e, head, frames, nil
	}
	if l.frames > 0 {
		e.Frames, r.frames = r.frames[:l.frames:l.frames], r.frames[l.frames:]
		for i := range e.Frames {
			size := int(be.Uint32(head[4*i:]))
			f, err := commitlog.CheckFrame(frames[:size:size])
			if err != nil {
				return Envelope{}, nil, nil, wireError("frame %d of group %v: %w", i+1, e.Group, err)
			}
			if len(f) != size {
				return Envelope{}, nil, nil, wireError("frame %d of group %v has %d bytes, the envelope names %d", i+1, e.Group, len(f), size)
			}
			e.Frames[i], frames = f, frames[size:]
		}
		head = head[4*l.frames:]
	}
	return e, head, frames, nil
}

func (r *room) entriesOf(head []byte, n int) ([]*raftpb.Entry, []byte) {
	if n == 0 {
		return nil, head
	}
	be := binary.BigEndian
	var list []*raftpb.Entry
	list, r.list = r.list[:n:n], r.list[n:]
	for i := range list {
		x := &r.entries[0]
		r.entries = r.entries[1:]
		x.term, x.index, x.typ = be.Uint64(head), be.Uint64(head[8:]), raftpb.EntryType(head[16])
		x.e.Term, x.e.Index, x.e.Type = &x.term, &x.index, &x.typ
		size := int(be.Uint16(head[18:]))
		data := head[entryFixed : entryFixed+size]
		if size > inlineData {
			x.e.Data = r.copy(data)
		} else if size > 0 {
			copy(x.data[:], data)
			x.e.Data = x.data[:size:size]
		}
		list[i], head = &x.e, head[entryFixed+size:]
	}
	return list, head
}

// fill sets every scalar field, also those that are zero: to Raft an absent number and a zero are the same.
func (m *message) fill(l layout, fixed []byte) {
	be := binary.BigEndian
	m.typ, m.reject = l.typ, l.reject
	m.from, m.to = be.Uint64(fixed[16:]), be.Uint64(fixed[24:])
	m.term, m.logTerm, m.index = be.Uint64(fixed[48:]), be.Uint64(fixed[56:]), be.Uint64(fixed[64:])
	m.commit, m.vote, m.rejectHint = be.Uint64(fixed[72:]), be.Uint64(fixed[80:]), be.Uint64(fixed[88:])
	m.m.Type, m.m.To, m.m.From, m.m.Term, m.m.LogTerm = &m.typ, &m.to, &m.from, &m.term, &m.logTerm
	m.m.Index, m.m.Commit, m.m.Vote, m.m.RejectHint, m.m.Reject = &m.index, &m.commit, &m.vote, &m.rejectHint, &m.reject
}
