// Package laxjson reads the JSON dialect of RocketMQ's Java programs, which encoding/json refuses.
//
// The dialect differs from the standard in the keys of objects. A key may be a bare integer, {0:"a:1"}, or a whole object,
// {{"queueId":0}:7}. Standard turns both into strings: {"0":"a:1"} and {"{\"queueId\":0}":7}. Text that is standard already
// comes back as it is, without a copy.
//
// Standard is a pure function and may be called from any goroutine. It bounds its own depth. It does not judge values: what
// is wrong there is left to the JSON decoder that reads the result.
package laxjson

import (
	"errors"
	"fmt"
)

// MaxDepth bounds how deep objects and arrays may nest.
const MaxDepth = 64

// maxKeysInKeys bounds object keys inside object keys: each level doubles the escapes, so the result would grow without end.
const maxKeysInKeys = 2

// ErrSyntax is returned when the text ends too early, nests too deeply, or has a key that neither dialect knows.
var ErrSyntax = errors.New("laxjson: bad text")

// Standard returns text as standard JSON. The result may share memory with text.
func Standard(text []byte) ([]byte, error) {
	s := scanner{in: text}
	s.space()
	if err := s.value(0); err != nil {
		return nil, err
	}
	s.space()
	if s.at < len(s.in) {
		return nil, s.fail("more text after the value")
	}
	if s.out == nil {
		return text, nil
	}
	return append(s.out, s.in[s.copied:]...), nil
}

// scanner walks the text once and copies it only from the first key on that needs quotes.
type scanner struct {
	in     []byte
	at     int
	out    []byte
	copied int // in[:copied] is in out
	inKeys int // how many object keys we are inside of
}

func (s *scanner) fail(what string) error {
	return fmt.Errorf("%w: %s at byte %d", ErrSyntax, what, s.at)
}

func (s *scanner) space() {
	for s.at < len(s.in) && (s.in[s.at] == ' ' || s.in[s.at] == '\n' || s.in[s.at] == '\t' || s.in[s.at] == '\r') {
		s.at++
	}
}

func (s *scanner) peek() byte {
	if s.at < len(s.in) {
		return s.in[s.at]
	}
	return 0
}

func (s *scanner) value(depth int) error {
	if depth > MaxDepth {
		return s.fail("too deep")
	}
	switch s.peek() {
	case '{':
		return s.object(depth)
	case '[':
		return s.array(depth)
	case '"':
		return s.text()
	}
	start := s.at
	for s.at < len(s.in) && isWord(s.in[s.at]) {
		s.at++
	}
	if s.at == start {
		return s.fail("no value")
	}
	return nil
}

func (s *scanner) text() error {
	for s.at++; s.at < len(s.in); s.at++ {
		switch s.in[s.at] {
		case '\\':
			s.at++
		case '"':
			s.at++
			return nil
		}
	}
	return s.fail("a string without an end")
}

func (s *scanner) array(depth int) error {
	s.at++
	s.space()
	if s.peek() == ']' {
		s.at++
		return nil
	}
	for {
		s.space()
		if err := s.value(depth + 1); err != nil {
			return err
		}
		s.space()
		switch s.peek() {
		case ',':
			s.at++
		case ']':
			s.at++
			return nil
		default:
			return s.fail("an array without an end")
		}
	}
}

func (s *scanner) object(depth int) error {
	s.at++
	s.space()
	if s.peek() == '}' {
		s.at++
		return nil
	}
	for {
		s.space()
		if err := s.key(depth); err != nil {
			return err
		}
		s.space()
		if s.peek() != ':' {
			return s.fail("a key without a value")
		}
		s.at++
		s.space()
		if err := s.value(depth + 1); err != nil {
			return err
		}
		s.space()
		switch s.peek() {
		case ',':
			s.at++
		case '}':
			s.at++
			return nil
		default:
			return s.fail("an object without an end")
		}
	}
}

// key passes over one key and quotes it when it has no quotes.
func (s *scanner) key(depth int) error {
	start := s.at
	switch c := s.peek(); {
	case c == '"':
		return s.text()
	case c == '{':
		// An object as a key is itself in the dialect: it becomes standard first, then a string.
		if s.inKeys == maxKeysInKeys {
			return s.fail("an object key inside an object key")
		}
		inner := scanner{in: s.in, at: s.at, copied: s.at, inKeys: s.inKeys + 1}
		if err := inner.value(depth + 1); err != nil {
			return err
		}
		s.at = inner.at
		s.quote(start, append(inner.out, s.in[inner.copied:inner.at]...))
		return nil
	case c == '-' || c >= '0' && c <= '9':
		for s.at++; s.at < len(s.in) && s.in[s.at] >= '0' && s.in[s.at] <= '9'; s.at++ {
		}
		s.quote(start, s.in[start:s.at])
		return nil
	}
	return s.fail("no key")
}

// quote writes key as a string in place of in[start:at].
func (s *scanner) quote(start int, key []byte) {
	if s.out == nil {
		s.out = make([]byte, 0, len(s.in)+len(s.in)/8+16)
	}
	s.out = append(s.out, s.in[s.copied:start]...)
	s.out = append(s.out, '"')
	for _, c := range key {
		switch {
		case c == '"' || c == '\\':
			s.out = append(s.out, '\\', c)
		case c < 0x20:
			const hex = "0123456789abcdef"
			s.out = append(s.out, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			s.out = append(s.out, c)
		}
	}
	s.out = append(s.out, '"')
	s.copied = s.at
}

// isWord tells the bytes of numbers, true, false, null and of the NaN and Infinity that the decoder will refuse.
func isWord(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '-' || c == '+' || c == '.'
}
