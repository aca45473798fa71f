package broker

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/ledgermq/ledgermq/message"
)

// tagFilter is a parsed TAG expression: everything, or a set of tags. The zero value lets everything pass.
//
// The index holds only a 32-bit hash of a message's tag, so a filter is applied twice: by hash before the bytes are read,
// and by the tag itself after, since two tags can share a hash.
type tagFilter struct {
	tags  []string
	codes []int64
}

// own copies the tags, which parseTagFilter left in the expression.
func (f *tagFilter) own() {
	for i, t := range f.tags {
		f.tags[i] = strings.Clone(t)
	}
}

// parseTagFilter reads "*", "" or "A || B". An expression without any tag lets everything pass, as RocketMQ's does.
func parseTagFilter(expr string) tagFilter {
	var f tagFilter
	if expr = strings.TrimSpace(expr); expr == "" || expr == "*" {
		return f
	}
	for t := range strings.SplitSeq(expr, "||") {
		if t = strings.TrimSpace(t); t != "" {
			f.tags = append(f.tags, t)
			f.codes = append(f.codes, message.TagsCode(t))
		}
	}
	return f
}

func (f *tagFilter) all() bool { return len(f.tags) == 0 }

// mayMatch judges by the hash in the index.
func (f *tagFilter) mayMatch(code int64) bool {
	if f.all() {
		return true
	}
	for _, c := range f.codes {
		if c == code {
			return true
		}
	}
	return false
}

// match judges a stored record by its tag.
func (f *tagFilter) match(record []byte) bool {
	if f.all() {
		return true
	}
	tag, ok := recordTag(record)
	if !ok {
		return false
	}
	for _, t := range f.tags {
		if t == string(tag) {
			return true
		}
	}
	return false
}

// recordTag returns the TAGS property of a stored record, empty when it has none, without decoding the rest: it runs for each
// message of a filtered pull. ok is false when the bytes are no record.
func recordTag(record []byte) (tag []byte, ok bool) {
	const (
		magicAt, sysFlagAt, bornHostAt = 4, 36, 48
		v4, v6                         = 8, 20
		storeTime, retryAndPrepared    = 8, 12
		longTopics                     = 0xDAA320AB // magic of a record whose topic length has two bytes
	)
	be := binary.BigEndian
	if len(record) < bornHostAt {
		return nil, false
	}
	flag := int32(be.Uint32(record[sysFlagAt:]))
	at := bornHostAt + storeTime + retryAndPrepared
	for _, bit := range [2]int32{message.SysBornHostV6, message.SysStoreHostV6} {
		if flag&bit != 0 {
			at += v6
		} else {
			at += v4
		}
	}
	// skip goes over a field that has its length in n bytes before it.
	skip := func(n int) (field []byte, ok bool) {
		if at+n > len(record) {
			return nil, false
		}
		size := 0
		for _, b := range record[at : at+n] {
			size = size<<8 | int(b)
		}
		if at += n; size > len(record)-at {
			return nil, false
		}
		field = record[at : at+size]
		at += size
		return field, true
	}
	topic := 1
	if be.Uint32(record[magicAt:]) == longTopics {
		topic = 2
	}
	for _, n := range [2]int{4, topic} { // body, topic
		if _, ok := skip(n); !ok {
			return nil, false
		}
	}
	properties, ok := skip(2)
	for ok && len(properties) > 0 {
		var pair []byte
		pair, properties, _ = bytes.Cut(properties, []byte{2})
		if v, is := bytes.CutPrefix(pair, []byte(message.KeyTags+"\x01")); is && len(v) > 0 {
			tag = v // the last one counts, as in RocketMQ's map
		}
	}
	return tag, ok
}
