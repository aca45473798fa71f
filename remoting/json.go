package remoting

import (
	"encoding/binary"
	"math/bits"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// maxDepth bounds how deep values of unknown keys may nest.
const maxDepth = 32

// scanner walks a JSON header once, from left to right, and resolves escapes in place: a resolved string is never longer
// than its text, so that it is written over it. Nothing is allocated.
//
// It takes what RocketMQ's clients write and a little more: keys in any order, unknown keys, null for absent, numbers as
// strings and strings as numbers, raw control characters in strings.
type scanner struct {
	b     []byte
	at    int
	fault string // the first one; the walk ends with it
}

func (s *scanner) fail(reason string) {
	if s.fault == "" {
		s.fault = reason
	}
	s.at = len(s.b)
}

// next skips white space and returns the byte there without taking it, 0 at the end.
func (s *scanner) next() byte {
	if s.at < len(s.b) && s.b[s.at] > ' ' {
		return s.b[s.at]
	}
	return s.blank()
}

func (s *scanner) blank() byte {
	for s.at < len(s.b) {
		switch c := s.b[s.at]; c {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) expect(c byte) {
	if s.next() != c {
		s.fail("no JSON object")
		return
	}
	s.at++
}

// more steps to the next member of an object or array that ends with end. first is true for its first member.
func (s *scanner) more(first bool, end byte) bool {
	c := s.next()
	if c == end {
		s.at++
		return false
	}
	if !first {
		if c != ',' {
			s.fail("no comma between values")
			return false
		}
		s.at++
		s.next()
	}
	return s.fault == ""
}

// str takes a string and returns its bytes, with escapes resolved.
func (s *scanner) str() []byte {
	if s.next() != '"' {
		s.fail("no string where one must be")
		return nil
	}
	start := s.at + 1
	end := special(s.b, start)
	switch {
	case end == len(s.b):
		s.fail("a string has no end")
		return nil
	case s.b[end] == '\\':
		return s.unescape(start, end)
	}
	s.at = end + 1
	return s.b[start:end:end]
}

// special returns the place of the first quote or backslash at or after i, len(b) when there is none. It looks at eight
// bytes at a time; most strings of a header end in the first eight.
func special(b []byte, i int) int {
	for ; i+8 <= len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		if m := zeroBytes(x^each*'"') | zeroBytes(x^each*'\\'); m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	for ; i < len(b); i++ {
		if b[i] == '"' || b[i] == '\\' {
			return i
		}
	}
	return i
}

const each = 0x0101010101010101

// zeroBytes sets the top bit of the lowest zero byte of x, and of none below it; bits above it mean nothing.
func zeroBytes(x uint64) uint64 { return (x - each) &^ x & (each << 7) }

// unescape goes on with a string that began at start, at its first backslash.
func (s *scanner) unescape(start, at int) []byte {
	b := s.b
	w := at
	for i := at; i < len(b); {
		if b[i] == '"' {
			s.at = i + 1
			return b[start:w:w]
		}
		i += 2 // b[i] is a backslash
		if i > len(b) {
			break
		}
		switch e := b[i-1]; e {
		case '"', '\\', '/':
			b[w] = e
		case 'b':
			b[w] = '\b'
		case 'f':
			b[w] = '\f'
		case 'n':
			b[w] = '\n'
		case 'r':
			b[w] = '\r'
		case 't':
			b[w] = '\t'
		case 'u':
			r := hex4(b[i:])
			if r < 0 {
				s.fail("a bad \\u escape")
				return nil
			}
			i += 4
			if utf16.IsSurrogate(r) {
				r, i = surrogate(b, r, i)
			}
			// At most 3 bytes for 6 of text, 4 for 12: never past i.
			if r < utf8.RuneSelf {
				b[w] = byte(r)
			} else {
				w += utf8.EncodeRune(b[w:w+4:w+4], r) - 1
			}
		default:
			s.fail("a bad escape")
			return nil
		}
		w++
		end := special(b, i)
		w += copy(b[w:], b[i:end])
		i = end
	}
	s.fail("a string has no end")
	return nil
}

// surrogate joins the half r with the escape at i, when that is the other half. A lone half becomes U+FFFD.
func surrogate(b []byte, r rune, i int) (rune, int) {
	if i+6 <= len(b) && b[i] == '\\' && b[i+1] == 'u' {
		if joined := utf16.DecodeRune(r, hex4(b[i+2:])); joined != utf8.RuneError {
			return joined, i + 6
		}
	}
	return utf8.RuneError, i
}

// hex4 reads four hexadecimal digits, -1 when there are none.
func hex4(b []byte) rune {
	if len(b) < 4 {
		return -1
	}
	var r rune
	for _, c := range b[:4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// token takes a number, true, false or null.
func (s *scanner) token() []byte {
	start := s.at
	for s.at < len(s.b) {
		c := s.b[s.at]
		if '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || c == '-' || c == '+' || c == '.' || c == 'E' {
			s.at++
			continue
		}
		break
	}
	t := s.b[start:s.at:s.at]
	if !isToken(t) {
		s.fail("no value where one must be")
		return nil
	}
	return t
}

func isToken(t []byte) bool {
	if len(t) == 0 {
		return false
	}
	switch string(t) {
	case "true", "false", "null":
		return true
	}
	digits := 0
	for _, c := range t {
		switch {
		case '0' <= c && c <= '9':
			digits++
		case c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E':
		default:
			return false
		}
	}
	return digits > 0
}

// scalar takes a string or token; null and (after skipping them) objects and arrays give false.
func (s *scanner) scalar() ([]byte, bool) {
	switch s.next() {
	case '"':
		return s.str(), s.fault == ""
	case '{', '[':
		s.skip(0)
		return nil, false
	}
	t := s.token()
	return t, s.fault == "" && string(t) != "null"
}

// int32 takes an integer; null gives 0.
func (s *scanner) int32() int32 {
	if c := s.next(); c == '{' || c == '[' {
		s.fail("an object where an integer must be")
		return 0
	}
	t, ok := s.scalar()
	if !ok {
		return 0
	}
	v, ok := parseInt(t, 32)
	if !ok {
		s.fail("no integer of 32 bits where one must be")
	}
	return int32(v)
}

// skip takes any value.
func (s *scanner) skip(depth int) {
	if depth == maxDepth {
		s.fail("nested too deep")
		return
	}
	switch s.next() {
	case '"':
		s.str()
	case '{':
		s.at++
		for first := true; s.more(first, '}'); first = false {
			s.str()
			s.expect(':')
			s.skip(depth + 1)
		}
	case '[':
		s.at++
		for first := true; s.more(first, ']'); first = false {
			s.skip(depth + 1)
		}
	default:
		s.token()
	}
}

// decodeJSON reads a JSON header and returns what is wrong with it.
func (c *Command) decodeJSON(h []byte) (fault string) {
	s := scanner{b: h}
	s.expect('{')
	for first := true; s.more(first, '}'); first = false {
		key := s.str()
		s.expect(':')
		switch string(key) {
		case "code":
			c.Code = s.int32()
		case "flag":
			c.Flag = s.int32()
		case "opaque":
			c.Opaque = s.int32()
		case "version":
			c.Version = s.int32()
		case "language":
			if v, ok := s.scalar(); ok {
				c.Language = languageOf(v)
			}
		case "remark":
			if v, ok := s.scalar(); ok {
				c.Remark = alias(v)
			}
		case "extFields":
			c.decodeFields(&s)
		default:
			s.skip(0)
		}
	}
	if s.next(); s.at < len(h) {
		s.fail("something follows the object")
	}
	return s.fault
}

func (c *Command) decodeFields(s *scanner) {
	if s.next() != '{' {
		if string(s.token()) != "null" {
			s.fail("extFields is no object")
		}
		return
	}
	s.at++
	for first := true; ; first = false {
		before := s.at
		if c.plainFields(s, first) {
			return
		}
		if !s.more(first && s.at == before, '}') {
			return
		}
		key := s.str()
		s.expect(':')
		value, ok := s.scalar()
		if !ok {
			continue
		}
		if len(c.fields) == MaxFields {
			s.fail("too many fields")
			return
		}
		c.fields = append(c.fields, field{alias(key), alias(value)})
	}
}

// plainFields takes members as the clients write them, "key":"value" without white space and escapes, up to the end of
// the object: true. At another member it stops before it, in front of its comma: false. Most of a header is this, and one
// loop without calls takes half the time of the general walk.
func (c *Command) plainFields(s *scanner, first bool) bool {
	b, i := s.b, s.at
	for ; ; first = false {
		k := i
		if !first {
			if k >= len(b) || b[k] != ',' {
				break
			}
			k++
		}
		if k >= len(b) || b[k] != '"' {
			break
		}
		k++
		end := k
		for end < len(b) && b[end] != '"' && b[end] != '\\' {
			end++
		}
		if end+3 > len(b) || b[end] != '"' || b[end+1] != ':' || b[end+2] != '"' {
			break
		}
		v := end + 3
		stop := special(b, v)
		if stop == len(b) || b[stop] != '"' || len(c.fields) == MaxFields {
			break
		}
		c.fields = append(c.fields, field{alias(b[k:end]), alias(b[v:stop])})
		i = stop + 1
		if i < len(b) && b[i] == '}' {
			s.at = i + 1
			return true
		}
	}
	s.at = i
	return false
}

// appendJSON appends the header with its keys in the order of their names, as RocketMQ writes them.
func (c *Command) appendJSON(dst []byte, e envelope) []byte {
	dst = append(dst, `{"code":`...)
	dst = strconv.AppendInt(dst, int64(c.Code), 10)
	if len(c.fields) > 0 {
		dst = append(dst, `,"extFields":{`...)
		for i := range c.fields {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendString(dst, c.fields[i].key)
			dst = append(dst, ':')
			dst = appendString(dst, c.fields[i].value)
		}
		dst = append(dst, '}')
	}
	dst = append(dst, `,"flag":`...)
	dst = strconv.AppendInt(dst, int64(e.flag), 10)
	dst = append(dst, `,"language":"`...)
	dst = append(dst, LanguageName(e.language)...)
	dst = append(dst, `","opaque":`...)
	dst = strconv.AppendInt(dst, int64(e.opaque), 10)
	if c.Remark != "" {
		dst = append(dst, `,"remark":`...)
		dst = appendString(dst, c.Remark)
	}
	dst = append(dst, `,"serializeTypeCurrentRPC":"JSON","version":`...)
	dst = strconv.AppendInt(dst, int64(e.version), 10)
	return append(dst, '}')
}

// appendString appends s in quotes. Bytes that are no UTF-8 go as they are: what came in goes out.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for {
		n := plain(s)
		dst = append(dst, s[:n]...)
		if n == len(s) {
			return append(dst, '"')
		}
		switch c := s[n]; c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			const digits = "0123456789abcdef"
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		}
		s = s[n+1:]
	}
}

// plain returns how many bytes at the start of s need no escape.
func plain(s string) int {
	b := unsafe.Slice(unsafe.StringData(s), len(s))
	i := 0
	for ; i+8 <= len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		if m := zeroBytes(x^each*'"') | zeroBytes(x^each*'\\') | (x-each*0x20)&^x&(each<<7); m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c < 0x20 || c == '"' || c == '\\' {
			break
		}
	}
	return i
}
