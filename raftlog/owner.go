package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// Owner is what this package keeps in commitlog.Meta.Owner: everything a vote or an acknowledgement depends on besides the
// log itself. docs/format/meta.md draws its bytes:
//
//	0  magic "LMQO"  4 | 4 version 1  1 | 5 zero 3
//	8  replica id    8 | 16 incarnation 16
//	32 term          8 | 40 vote      8 | 48 commit 8
//	56 size of the epoch record 4 | 60 epoch record, or nothing
//
// Integers are big-endian. The meta file around it has the checksum.
type Owner struct {
	Replica     ids.ReplicaID
	Incarnation ids.Incarnation
	Term        ids.Term
	Vote        ids.ReplicaID // 0: no vote in this term
	Commit      ids.Index     // a hint: it may lag, and a start never takes it above the last entry
	Record      []byte        // encoded epoch record in force, empty while the first one is waited for
}

const (
	ownerMagic   = "LMQO"
	ownerVersion = 1
	ownerFixed   = 60
)

// ErrOwner is wrapped by every error of DecodeOwner.
var ErrOwner = errors.New("raftlog: not a valid owner record in the meta file")

// Encode returns the bytes of o.
func (o Owner) Encode() []byte {
	b := make([]byte, 0, ownerFixed+len(o.Record))
	b = append(b, ownerMagic...)
	b = append(b, ownerVersion, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, uint64(o.Replica))
	b = append(b, o.Incarnation[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(o.Term))
	b = binary.BigEndian.AppendUint64(b, uint64(o.Vote))
	b = binary.BigEndian.AppendUint64(b, uint64(o.Commit))
	b = binary.BigEndian.AppendUint32(b, uint32(len(o.Record)))
	return append(b, o.Record...)
}

// DecodeOwner reads what Encode wrote. Every error wraps ErrOwner. The result does not alias b.
func DecodeOwner(b []byte) (Owner, error) {
	var o Owner
	switch {
	case len(b) < ownerFixed:
		return o, fmt.Errorf("%w: %d bytes, too short", ErrOwner, len(b))
	case string(b[:4]) != ownerMagic:
		return o, fmt.Errorf("%w: magic %q", ErrOwner, b[:4])
	case b[4] != ownerVersion:
		return o, fmt.Errorf("%w: version %d, this program knows %d", ErrOwner, b[4], ownerVersion)
	case b[5] != 0 || b[6] != 0 || b[7] != 0:
		return o, fmt.Errorf("%w: reserved bytes are not zero", ErrOwner)
	}
	if n := binary.BigEndian.Uint32(b[56:]); n > MaxEpochRecord || int(n) != len(b)-ownerFixed {
		return o, fmt.Errorf("%w: an epoch record of %d bytes in a blob of %d", ErrOwner, n, len(b))
	}
	o.Replica = ids.ReplicaID(binary.BigEndian.Uint64(b[8:]))
	o.Incarnation = ids.Incarnation(b[16:32])
	o.Term = ids.Term(binary.BigEndian.Uint64(b[32:]))
	o.Vote = ids.ReplicaID(binary.BigEndian.Uint64(b[40:]))
	o.Commit = ids.Index(binary.BigEndian.Uint64(b[48:]))
	if len(b) > ownerFixed {
		o.Record = bytes.Clone(b[ownerFixed:])
	}
	return o, nil
}
