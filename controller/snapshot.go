package controller

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// A snapshot carries the whole state to a member whose log is too far behind. It exists on the wire only: the store keeps the
// state entry by entry.
//
//	"LMQK" | version u32 (1) | entries u32 | per entry: key length u32, key, value length u32, value | SHA-256 of all before
const (
	snapshotMagic   = "LMQK"
	snapshotVersion = 1
)

// encodeSnapshot returns the canonical bytes of s.
func encodeSnapshot(s *State) []byte {
	all := s.entries()
	b := []byte(snapshotMagic)
	b = binary.BigEndian.AppendUint32(b, snapshotVersion)
	b = binary.BigEndian.AppendUint32(b, uint32(len(all)))
	for _, e := range all {
		b = binary.BigEndian.AppendUint32(b, uint32(len(e.key)))
		b = append(b, e.key...)
		b = binary.BigEndian.AppendUint32(b, uint32(len(e.value)))
		b = append(b, e.value...)
	}
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

// decodeSnapshot reads what encodeSnapshot wrote. The result does not alias b.
func decodeSnapshot(b []byte) (*State, error) {
	if len(b) < 12+sha256.Size || string(b[:4]) != snapshotMagic {
		return nil, errors.New("controller snapshot: it does not start like one")
	}
	if v := binary.BigEndian.Uint32(b[4:]); v != snapshotVersion {
		return nil, fmt.Errorf("controller snapshot: version %d, this program reads version %d", v, snapshotVersion)
	}
	body, sum := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if got := sha256.Sum256(body); string(got[:]) != string(sum) {
		return nil, errors.New("controller snapshot: its checksum is wrong")
	}
	count := binary.BigEndian.Uint32(body[8:])
	rest := body[12:]
	part := func() ([]byte, bool) {
		if len(rest) < 4 {
			return nil, false
		}
		n := uint64(binary.BigEndian.Uint32(rest))
		if n > uint64(len(rest)-4) {
			return nil, false
		}
		p := rest[4 : 4+n]
		rest = rest[4+n:]
		return p, true
	}
	var all []entry
	for range count {
		key, ok := part()
		value, ok2 := part()
		if !ok || !ok2 {
			return nil, errors.New("controller snapshot: it ends inside an entry")
		}
		if len(all) > 0 && all[len(all)-1].key >= string(key) {
			return nil, errors.New("controller snapshot: its entries are out of order")
		}
		all = append(all, entry{string(key), append([]byte(nil), value...)})
	}
	if len(rest) > 0 {
		return nil, errors.New("controller snapshot: bytes behind its last entry")
	}
	s, err := stateOf(all)
	if err != nil {
		return nil, fmt.Errorf("controller snapshot: %w", err)
	}
	return s, nil
}
