package remoting

import (
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
	"unsafe"
)

// Bits of Command.Flag.
const (
	FlagResponse int32 = 1
	FlagOneWay   int32 = 2
)

// Values of Command.Codec.
const (
	CodecJSON     byte = 0
	CodecRocketMQ byte = 1
)

// Version is the protocol version in all that this package sends: RocketMQ 5.3.3.
const Version int32 = 479

// Command is a request or a response: the header of a frame and its body.
//
// A Command that a Handler gets, its strings and its body lie in the connection's read buffer. They are valid until the
// handler returns; Clone makes a copy to keep. The zero Command is an empty JSON request.
type Command struct {
	Code     int32
	Language byte // Lang…
	Version  int32
	Opaque   int32 // correlates a response with its request
	Flag     int32 // FlagResponse, FlagOneWay
	Remark   string
	Body     []byte
	Codec    byte // CodecJSON, CodecRocketMQ

	fields []field
	text   []byte // bytes of the values that SetInt64 and SetBytes made; grows, never moves what fields points to
	size   int    // bytes of the frame this was decoded from
}

type field struct{ key, value string }

// NewRequest returns a request of this code in JSON.
func NewRequest(code int32) *Command { return &Command{Code: code, Language: LangGo, Version: Version} }

// NewResponse returns a response. The connection fills opaque, flag and codec from the request.
func NewResponse(code int32, remark string) *Command {
	return &Command{Code: code, Remark: remark, Language: LangGo, Version: Version, Flag: FlagResponse}
}

// Response tells whether c is a response.
func (c *Command) Response() bool { return c.Flag&FlagResponse != 0 }

// OneWay tells whether c is a request that wants no answer.
func (c *Command) OneWay() bool { return c.Flag&FlagOneWay != 0 }

// Reset empties c and keeps its memory. What Get returned before is not valid any more.
func (c *Command) Reset() {
	*c = Command{fields: c.fields[:0], text: c.text[:0]}
}

// Get returns the value of an extension field: the last one where the key occurs twice.
func (c *Command) Get(key string) (string, bool) {
	for i := len(c.fields) - 1; i >= 0; i-- {
		if f := &c.fields[i]; f.key == key {
			return f.value, true
		}
	}
	return "", false
}

// GetOr returns the value of a field, or other when it is absent.
func (c *Command) GetOr(key, other string) string {
	if v, ok := c.Get(key); ok {
		return v
	}
	return other
}

// Fields walks the extension fields in the order of the header.
func (c *Command) Fields() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for i := range c.fields {
			if !yield(c.fields[i].key, c.fields[i].value) {
				return
			}
		}
	}
}

// Set writes an extension field, in place of an earlier one of the same key. Key and value are kept as they are.
func (c *Command) Set(key, value string) {
	for i := range c.fields {
		if c.fields[i].key == key {
			c.fields[i].value = value
			return
		}
	}
	c.fields = append(c.fields, field{key, value})
}

// SetInt64 writes a decimal field. It makes no garbage when c is used again after Reset.
func (c *Command) SetInt64(key string, v int64) {
	at := len(c.text)
	c.text = strconv.AppendInt(c.text, v, 10)
	c.Set(key, alias(c.text[at:]))
}

// SetInt32 is SetInt64.
func (c *Command) SetInt32(key string, v int32) { c.SetInt64(key, int64(v)) }

// SetBool writes "true" or "false".
func (c *Command) SetBool(key string, v bool) { c.Set(key, strconv.FormatBool(v)) }

// SetBytes writes a field from bytes, which it copies into memory that Reset keeps.
func (c *Command) SetBytes(key string, v []byte) {
	at := len(c.text)
	c.text = append(c.text, v...)
	c.Set(key, alias(c.text[at:]))
}

// alias returns the string that shares b's memory.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// Clone returns a deep copy that shares nothing with c or its buffer.
func (c *Command) Clone() *Command {
	n := len(c.Remark) + len(c.Body)
	for i := range c.fields {
		n += len(c.fields[i].key) + len(c.fields[i].value)
	}
	arena := make([]byte, 0, n)
	hold := func(s string) string {
		at := len(arena)
		arena = append(arena, s...)
		return alias(arena[at:])
	}
	d := *c
	d.text = nil
	d.Remark = hold(c.Remark)
	d.fields = make([]field, len(c.fields))
	for i := range c.fields {
		d.fields[i] = field{hold(c.fields[i].key), hold(c.fields[i].value)}
	}
	if c.Body != nil {
		at := len(arena)
		arena = append(arena, c.Body...)
		d.Body = arena[at:len(arena):len(arena)]
	}
	return &d
}

// FieldError tells that a request lacks a field or that its value is no value of the field's type. It is answered with
// SYSTEM_ERROR and its text.
type FieldError struct {
	Field  string
	Value  string // empty when the field is missing
	Reason string
}

func (e *FieldError) Error() string {
	v := e.Value
	if len(v) > 64 {
		v = v[:64] + "…"
	}
	if e.Value == "" {
		return fmt.Sprintf("the field %s %s", e.Field, e.Reason)
	}
	return fmt.Sprintf("the field %s %s: %q", e.Field, e.Reason, strings.Clone(v))
}

func (c *Command) missing(key string) error { return &FieldError{Field: key, Reason: "is missing"} }

func (c *Command) integer(key string, bits int) (int64, bool, error) {
	s, ok := c.Get(key)
	if !ok {
		return 0, false, nil
	}
	v, ok := parseInt(s, bits)
	if !ok {
		return 0, true, &FieldError{Field: key, Value: strings.Clone(s), Reason: fmt.Sprintf("is no integer of %d bits", bits)}
	}
	return v, true, nil
}

// parseInt reads a decimal integer of so many bits, with an optional sign.
func parseInt[T string | []byte](s T, bits int) (int64, bool) {
	i, negative := 0, false
	if len(s) > 0 && (s[0] == '-' || s[0] == '+') {
		i, negative = 1, s[0] == '-'
	}
	if i == len(s) {
		return 0, false
	}
	var v uint64
	for ; i < len(s); i++ {
		d := uint64(s[i] - '0')
		if d > 9 || v > math.MaxInt64/10 {
			return 0, false
		}
		v = 10*v + d // at most 1<<63 + 9: no overflow
	}
	limit := uint64(1)<<(bits-1) - 1
	if negative {
		return -int64(v), v <= limit+1
	}
	return int64(v), v <= limit
}

// Int64 returns an integer field, false when it is absent, and a *FieldError when it is no decimal integer of 64 bits.
func (c *Command) Int64(key string) (int64, bool, error) { return c.integer(key, 64) }

// Int32 is Int64 with 32 bits.
func (c *Command) Int32(key string) (int32, bool, error) {
	v, ok, err := c.integer(key, 32)
	return int32(v), ok, err
}

// Bool returns a boolean field, false when it is absent, and a *FieldError when it is neither true nor false.
func (c *Command) Bool(key string) (value, ok bool, err error) {
	s, ok := c.Get(key)
	switch {
	case !ok:
		return false, false, nil
	case strings.EqualFold(s, "true"):
		return true, true, nil
	case strings.EqualFold(s, "false"):
		return false, true, nil
	}
	return false, true, &FieldError{Field: key, Value: strings.Clone(s), Reason: "is neither true nor false"}
}

// MustString returns a field, or a *FieldError when it is absent or empty.
func (c *Command) MustString(key string) (string, error) {
	if s, ok := c.Get(key); ok && s != "" {
		return s, nil
	}
	return "", c.missing(key)
}

// MustInt64 is Int64 with a *FieldError when the field is absent.
func (c *Command) MustInt64(key string) (int64, error) {
	v, ok, err := c.integer(key, 64)
	if !ok {
		return 0, c.missing(key)
	}
	return v, err
}

// MustInt32 is Int32 with a *FieldError when the field is absent.
func (c *Command) MustInt32(key string) (int32, error) {
	v, ok, err := c.integer(key, 32)
	if !ok {
		return 0, c.missing(key)
	}
	return int32(v), err
}

// Int64Or returns a field, other when it is absent, or a *FieldError.
func (c *Command) Int64Or(key string, other int64) (int64, error) {
	v, ok, err := c.integer(key, 64)
	if !ok {
		return other, nil
	}
	return v, err
}

// Int32Or is Int64Or with 32 bits.
func (c *Command) Int32Or(key string, other int32) (int32, error) {
	v, ok, err := c.integer(key, 32)
	if !ok {
		return other, nil
	}
	return int32(v), err
}

// BoolOr returns a field, other when it is absent, or a *FieldError.
func (c *Command) BoolOr(key string, other bool) (bool, error) {
	v, ok, err := c.Bool(key)
	if !ok {
		return other, nil
	}
	return v, err
}
