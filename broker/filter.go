package broker

import (
	"slices"
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

// match judges a stored record by its tag. Bytes that are no record have none.
func (f *tagFilter) match(record []byte) bool {
	if f.all() {
		return true
	}
	return slices.Contains(f.tags, message.IndexedOf(record).Tags)
}
