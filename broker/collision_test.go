package broker

import (
	"testing"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/message"
)

// A message that the index leads to is compared with the word itself: another word may have the same hash.
func TestQueryComparesTheWord(t *testing.T) {
	t.Parallel()
	rec := message.Record{Topic: "T", Properties: "KEYS\x01one two\x02UNIQ_KEY\x01id\x02TAGS\x01tag\x02"}
	raw := rec.AppendTo(nil)
	for kind, words := range map[index.WordKind][]string{index.WordKey: {"one", "two"}, index.WordUnique: {"id"}, index.WordTag: {"tag"}} {
		for _, word := range words {
			if q := (query{kind: kind, word: word}); !q.matches(raw) {
				t.Errorf("%c %q is not found", kind, word)
			}
		}
		for _, word := range []string{"on", "one two", "", "ID", "tags", "other"} {
			if q := (query{kind: kind, word: word}); q.matches(raw) {
				t.Errorf("%c %q is found", kind, word)
			}
		}
	}
	if q := (query{kind: index.WordKey, word: "one"}); q.matches(nil) {
		t.Error("a message of another topic is found")
	}
}
