package message

import (
	"encoding/binary"
	"iter"
	"strings"
	"unsafe"
)

// Indexed is what a message can be asked for by. The strings lie in the record.
type Indexed struct {
	Keys   string // KEYS: words, separated by one space
	Unique string // UNIQ_KEY
	Tags   string // TAGS
}

// IndexedOf reads what a record can be asked for by, of the last pair of each key as in RocketMQ's map. It allocates nothing, and looks
// at what it needs only; a record that ends early has nothing. It is on the path of every message, on every replica.
func IndexedOf(rec []byte) (x Indexed) {
	props := propertiesOf(rec)
	for len(props) > 0 {
		pair := props
		if i := strings.IndexByte(props, pairSeparator[0]); i >= 0 {
			pair, props = props[:i], props[i+1:]
		} else {
			props = ""
		}
		// Of the three keys that matter one has four letters or eight; most pairs are none of them.
		switch {
		case len(pair) < len(KeyKeys)+2:
		case pair[len(KeyKeys)] == nameSeparator[0]:
			switch pair[:len(KeyKeys)] {
			case KeyKeys:
				x.Keys = pair[len(KeyKeys)+1:]
			case KeyTags:
				x.Tags = pair[len(KeyTags)+1:]
			}
		case len(pair) > len(KeyUniqueKey)+1 && pair[len(KeyUniqueKey)] == nameSeparator[0] && pair[:len(KeyUniqueKey)] == KeyUniqueKey:
			x.Unique = pair[len(KeyUniqueKey)+1:]
		}
	}
	return x
}

// Words walks the words of the keys. One that is there twice is given twice.
func (x *Indexed) Words() iter.Seq[string] {
	return func(yield func(string) bool) {
		for word := range strings.SplitSeq(x.Keys, " ") {
			if word != "" && !yield(word) {
				return
			}
		}
	}
}

// propertiesOf returns the property string of a record, which lies in it; empty when the record ends early.
func propertiesOf(rec []byte) string {
	if len(rec) < fixedSize {
		return ""
	}
	be := binary.BigEndian
	sys := int32(be.Uint32(rec[atSysFlag:]))
	at := atBornHost + 8 + 8 + 8 + 4 + 8
	if sys&SysBornHostV6 != 0 {
		at += extraV6
	}
	if sys&SysStoreHostV6 != 0 {
		at += extraV6
	}
	end := len(rec)
	if at+4 > end {
		return ""
	}
	body := int(int32(be.Uint32(rec[at:])))
	at += 4
	if body < 0 || body > end-at-2 {
		return ""
	}
	at += body
	if be.Uint32(rec[atMagic:]) == magicV1 {
		at += 1 + int(rec[at])
	} else {
		at += 2 + int(be.Uint16(rec[at:]))
	}
	if at+2 > end {
		return ""
	}
	n := int(be.Uint16(rec[at:]))
	at += 2
	if n > end-at {
		return ""
	}
	return unsafe.String(unsafe.SliceData(rec[at:end:end]), n)
}
