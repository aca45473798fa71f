package remoting

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// jsonFrame makes a frame of a header as it is.
func jsonFrame(header string, body string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)+len(body)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(header)))
	return append(append(b, header...), body...)
}

// What other clients may write, and RocketMQ's own parser takes.
func TestJSONTolerance(t *testing.T) {
	t.Parallel()
	want := &Command{Code: 310, Language: LangCPP, Version: 475, Opaque: 7, Flag: FlagOneWay, Remark: "r"}
	want.Set("a", "x")
	want.Set("b", "")
	for name, header := range map[string]string{
		"other order":     `{"version":475,"extFields":{"a":"x","b":""},"opaque":7,"remark":"r","language":"CPP","flag":2,"code":310}`,
		"white space":     " {\n\t\"code\" : 310 , \"flag\":2,\r\n\"opaque\":7 ,\"version\":475,\"language\" : \"CPP\",\"remark\":\"r\" , \"extFields\" : { \"a\" : \"x\" , \"b\":\"\" } } \n",
		"numbers as text": `{"code":"310","flag":"2","opaque":"7","version":"475","language":"1","remark":"r","extFields":{"a":"x","b":""}}`,
		"unknown keys":    `{"x":{"y":[1,2.5e3,{"z":null}],"code":1},"code":310,"q":[],"flag":2,"opaque":7,"w":-1.5,"version":475,"language":"CPP","remark":"r","serializeTypeCurrentRPC":"JSON","extFields":{"n":null,"a":"x","o":{"p":1},"b":"","l":[true]}}`,
		"escapes":         `{"co\u0064e":310,"flag":2,"opaque":7,"version":475,"language":"\u0043PP","remark":"\u0072","extFields":{"\u0061":"\u0078","b":""}}`,
		"empty keys":      `{"":0,"code":310,"flag":2,"opaque":7,"version":475,"language":"CPP","remark":"r","extFields":{"a":"x","b":""}}`,
		"twice":           `{"code":1,"code":310,"flag":2,"opaque":7,"version":475,"language":"CPP","remark":"q","remark":"r","extFields":null,"extFields":{"a":"x","b":""}}`,
	} {
		got, err := Decode(jsonFrame(header, ""))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		t.Run(name, func(t *testing.T) { same(t, got, want) })
	}
}

func TestJSONValues(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`"\"\\\/\b\f\n\r\t"`:                "\"\\/\b\f\n\r\t",
		`"\u0041\u00e9\u4e2d\uD83D\uDE00!"`: "Aé中\U0001F600!",
		`"\ud83d"`:                          "\uFFFD",
		`"\ud83dx"`:                         "\uFFFDx",
		`"\ude00\ud83d"`:                    "\uFFFD\uFFFD",
		`"\ud83d\u0041"`:                    "\uFFFDA",
		`"\ud83d\ud83d\ude00"`:              "\uFFFD\U0001F600",
		"\"raw \x01\x02\n\"":                "raw \x01\x02\n",
		"\"no utf-8 \xff\"":                 "no utf-8 \xff",
		`12`:                                "12",
		`-1.5e+3`:                           "-1.5e+3",
		`true`:                              "true",
		`"1234567\n1234567\n"`:              "1234567\n1234567\n",
		`"12345678\\"`:                      `12345678\`,
	} {
		// Before another field, so that an escape that is resolved in place must leave the rest alone.
		c, err := Decode(jsonFrame(`{"extFields":{"k":`+text+`,"next":"ne\u0078t"},"code":5}`, "body"))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, ok := c.Get("k"); got != want || !ok {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
		if next, _ := c.Get("next"); next != "next" || c.Code != 5 || string(c.Body) != "body" {
			t.Errorf("%s: then %q, code %d, body %q", text, next, c.Code, c.Body)
		}
	}
}

func TestJSONRefuses(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1)
	many := strings.Repeat(`"k":"v",`, MaxFields) + `"k":"v"`
	for _, header := range []string{
		``, `{`, `[]`, `null`, `"x"`, `{}x`, `{}{}`, "{}\x00", `{"code"}`, `{"code":}`, `{"code":1,}`, `{,"code":1}`, `{"code":1 "flag":2}`, `{"code" 1}`,
		`{"code":1.5}`, `{"code":2147483648}`, `{"code":-2147483649}`, `{"code":"x"}`, `{"code":true}`, `{"code":{}}`, `{"code":[1]}`, `{"code":"1`, `{"code":""}`,
		`{"extFields":[]}`, `{"extFields":"x"}`, `{"extFields":{"a":"b"`, `{"extFields":{"a":"b"}`, `{"extFields":{"a"}}`, `{"extFields":{a:"b"}}`,
		`{"extFields":{"a":"b",}}`, `{"extFields":{"a":"b""c":"d"}}`, `{"extFields":{"a":b}}`, `{"extFields":{"a":--}}`, `{"extFields":{"a":"\x"}}`,
		`{"extFields":{"a":"\u12"}}`, `{"extFields":{"a":"\u12g4"}}`, `{"extFields":{"a":"\`, `{"extFields":{"a":"b\"}}`, `{"extFields":{"a\":"b"}}`,
		`{"x":` + deep + `}`, `{"x":[1`, `{"x":[1 2]}`, `{"x":{"y":1]}`, `{"x":nul}`, `{"x":truefalse}`, `{"extFields":{` + many + `}}`,
	} {
		var frame *FrameError
		if c, err := Decode(jsonFrame(header, "")); !errors.As(err, &frame) {
			t.Errorf("%.80s: %+v, %v", header, c, err)
		}
	}
	ok := `{"x":` + strings.Repeat("[", maxDepth-1) + strings.Repeat("]", maxDepth-1) + `,"extFields":{` + strings.Repeat(`"k":"v",`, MaxFields-1) + `"k":"w"}}`
	c, err := Decode(jsonFrame(ok, ""))
	if err != nil {
		t.Fatal(err)
	}
	if v, _ := c.Get("k"); v != "w" {
		t.Errorf("the last of a key that occurs often is %q", v)
	}
}

func TestBinaryRefuses(t *testing.T) {
	t.Parallel()
	good := golden(t, "refusal-rocketmq")
	withFields := golden(t, "request-rocketmq")
	change := func(b []byte, at int, v ...byte) []byte { b = bytes.Clone(b); copy(b[at:], v); return b }
	for name, b := range map[string][]byte{
		"short":              {0, 0, 0, 24, 1, 0, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"remark too long":    change(good, 8+13, 0, 0, 1, 0),
		"remark negative":    change(good, 8+13, 0xFF, 0xFF, 0xFF, 0xFF),
		"remark wraps":       change(good, 8+13, 0xFF, 0xFF, 0xFF, 0xFC),
		"remark over fields": change(good, 8+13, 0, 0, 0, 24),
		"fields too long":    change(withFields, 8+17, 0, 0, 1, 0),
		"fields too short":   change(withFields, 8+17, 0, 0, 0, 1),
		"fields negative":    change(withFields, 8+17, 0xFF, 0xFF, 0xFF, 0xFF),
		"key too long":       change(withFields, 8+21, 0x01, 0),
		"key negative":       change(withFields, 8+21, 0xFF, 0xFF),
		"value too long":     change(withFields, 8+24, 0, 0, 1, 0),
		"value negative":     change(withFields, 8+24, 0xFF, 0xFF, 0xFF, 0xFF),
	} {
		var frame *FrameError
		if c, err := Decode(b); !errors.As(err, &frame) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

func TestFrameRefuses(t *testing.T) {
	t.Parallel()
	for name, b := range map[string][]byte{
		"nothing":        {},
		"seven bytes":    {0, 0, 0, 4, 0, 0, 0},
		"length 0":       {0, 0, 0, 0, 0, 0, 0, 0},
		"length 3":       {0, 0, 0, 3, 0, 0, 0, 0},
		"too long":       {1, 0, 0, 0, 0, 0, 0, 0},
		"negative":       {0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0},
		"TLS":            {0x16, 3, 1, 2, 0, 1, 0, 1},
		"codec 2":        {0, 0, 0, 6, 2, 0, 0, 2, '{', '}'},
		"header lies":    {0, 0, 0, 6, 0, 0, 0, 3, '{', '}'},
		"shorter":        {0, 0, 0, 7, 0, 0, 0, 2, '{', '}'},
		"longer":         {0, 0, 0, 5, 0, 0, 0, 1, '{', '}'},
		"no JSON header": {0, 0, 0, 4, 0, 0, 0, 0},
	} {
		var frame *FrameError
		if c, err := Decode(b); !errors.As(err, &frame) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

// An empty value in the binary codec means null, and so absent.
func TestBinaryEmptyIsAbsent(t *testing.T) {
	t.Parallel()
	c := &Command{Codec: CodecRocketMQ}
	c.Set("a", "")
	c.Set("b", "x")
	d, err := Decode(c.AppendTo(nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := d.Get("a"); ok || len(d.fields) != 1 {
		t.Fatalf("%q", d.fields)
	}
}

// What does not fit into 16 bits goes as JSON.
func TestBinaryFallsBack(t *testing.T) {
	t.Parallel()
	pop := &Command{Code: PopMessage, Codec: CodecRocketMQ}
	version := &Command{Version: 40000, Codec: CodecRocketMQ}
	key := &Command{Codec: CodecRocketMQ}
	key.Set(strings.Repeat("k", math.MaxInt16+1), "v")
	for _, c := range []*Command{pop, version, key} {
		want := c.Clone()
		want.Codec = CodecJSON
		got, err := Decode(c.AppendTo(nil))
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, want)
	}
}

func randomString(r *rand.Rand, limit int) string {
	var b []byte
	for range r.IntN(limit + 1) {
		switch r.IntN(8) {
		case 0:
			b = append(b, byte(r.IntN(0x20)))
		case 1:
			b = append(b, `"\/`[r.IntN(3)])
		case 2:
			b = utf8.AppendRune(b, rune(0x80+r.IntN(0x20000)))
		case 3:
			b = append(b, byte(r.IntN(256))) // mostly no UTF-8
		default:
			b = append(b, byte('a'+r.IntN(26)))
		}
	}
	return string(b)
}

func randomCommand(r *rand.Rand) *Command {
	c := &Command{Code: int32(int16(r.Uint32())), Language: byte(r.IntN(len(languages))), Version: int32(int16(r.Uint32())), Opaque: int32(r.Uint32()),
		Flag: int32(r.Uint32()), Remark: randomString(r, 20), Codec: byte(r.IntN(2))}
	if r.IntN(2) == 0 {
		c.Body = []byte(randomString(r, 50))
	}
	for range r.IntN(20) {
		c.Set("k"+randomString(r, 10), "v"+randomString(r, 40))
	}
	return c
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	var into Command
	for range 1000 {
		want := randomCommand(r)
		b := want.AppendTo([]byte("before"))
		if string(b[:6]) != "before" {
			t.Fatal("AppendTo changed what was there")
		}
		b = b[6:]
		clone := bytes.Clone(b)
		if err := into.DecodeFrom(b); err != nil {
			t.Fatalf("%v: %q", err, clone)
		}
		same(t, &into, want)
		kept := into.Clone()
		clear(b)
		same(t, kept, want)
	}
}

// oracle is the header as encoding/json sees it.
type oracle struct {
	Code, Flag, Opaque, Version int32
	Language, Remark            string
	ExtFields                   map[string]string
}

// What we write must mean the same to another JSON parser, and what it writes the same to us.
func TestJSONAgainstLibrary(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		want := randomCommand(r)
		want.Codec = CodecJSON
		want.Remark = strings.ToValidUTF8(want.Remark, "?")
		valid := &Command{}
		for k, v := range want.Fields() {
			valid.Set(strings.ToValidUTF8(k, "?"), strings.ToValidUTF8(v, "?"))
		}
		want.fields = valid.fields
		b := want.AppendTo(nil)
		var o oracle
		header := b[8 : 8+int(binary.BigEndian.Uint32(b[4:]))]
		if err := json.Unmarshal(header, &o); err != nil {
			t.Fatalf("%v: %s", err, header)
		}
		if o.Code != want.Code || o.Flag != want.Flag || o.Opaque != want.Opaque || o.Version != want.Version ||
			o.Language != LanguageName(want.Language) || o.Remark != want.Remark || len(o.ExtFields) != len(want.fields) {
			t.Fatalf("%+v is read as %+v", want, o)
		}
		for k, v := range want.Fields() {
			if o.ExtFields[k] != v {
				t.Fatalf("field %q is %q, read as %q", k, v, o.ExtFields[k])
			}
		}
		theirs, err := json.Marshal(map[string]any{"code": o.Code, "flag": o.Flag, "opaque": o.Opaque, "version": o.Version, "language": o.Language, "remark": o.Remark, "extFields": o.ExtFields})
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(jsonFrame(string(theirs), string(want.Body)))
		if err != nil {
			t.Fatalf("%v: %s", err, theirs)
		}
		for k, v := range want.Fields() {
			if g, ok := got.Get(k); g != v || !ok {
				t.Fatalf("field %q of %s is %q", k, theirs, g)
			}
		}
		got.fields = want.fields
		same(t, got, want)
	}
}

func TestTypedFields(t *testing.T) {
	t.Parallel()
	var c Command
	for k, v := range map[string]string{"n": "-12", "max": "9223372036854775807", "min": "-9223372036854775808", "over": "9223372036854775808",
		"under": "-9223372036854775809", "huge": "99999999999999999999999", "text": "1x", "empty": "", "minus": "-", "max32": "2147483647", "over32": "2147483648",
		"min32": "-2147483648", "under32": "-2147483649", "plus": "+5", "true": "TRUE", "false": "false", "yes": "yes"} {
		c.Set(k, v)
	}
	for key, want := range map[string]int64{"n": -12, "max": math.MaxInt64, "min": math.MinInt64, "plus": 5} {
		if v, ok, err := c.Int64(key); v != want || !ok || err != nil {
			t.Errorf("%s: %d %v %v", key, v, ok, err)
		}
	}
	for key, want := range map[string]int32{"n": -12, "max32": math.MaxInt32, "min32": math.MinInt32} {
		if v, ok, err := c.Int32(key); v != want || !ok || err != nil {
			t.Errorf("%s: %d %v %v", key, v, ok, err)
		}
	}
	bad := func(key string, err error) {
		t.Helper()
		var f *FieldError
		if !errors.As(err, &f) || f.Field != key || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}
	for _, key := range []string{"over", "under", "huge", "text", "empty", "minus"} {
		_, _, err := c.Int64(key)
		bad(key, err)
	}
	for _, key := range []string{"over32", "under32", "max"} {
		_, _, err := c.Int32(key)
		bad(key, err)
		_, err = c.MustInt32(key)
		bad(key, err)
		_, err = c.Int32Or(key, 1)
		bad(key, err)
	}
	if v, ok, err := c.Int64("absent"); v != 0 || ok || err != nil {
		t.Error(v, ok, err)
	}
	_, err := c.MustInt64("absent")
	bad("absent", err)
	_, err = c.MustInt32("absent")
	bad("absent", err)
	_, err = c.MustString("absent")
	bad("absent", err)
	_, err = c.MustString("empty")
	bad("empty", err)
	_, err = c.BoolOr("yes", true)
	bad("yes", err)
	for key, want := range map[string]bool{"true": true, "false": false, "absent": true} {
		if v, err := c.BoolOr(key, true); v != want || err != nil {
			t.Errorf("%s: %v %v", key, v, err)
		}
	}
	if v, err := c.Int64Or("absent", 9); v != 9 || err != nil {
		t.Error(v, err)
	}
	if c.GetOr("absent", "x") != "x" || c.GetOr("n", "x") != "-12" {
		t.Error("GetOr")
	}
}

func TestParseIntAgainstLibrary(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	for range 20000 {
		s := strconv.FormatInt(int64(r.Uint64())>>r.IntN(64), 10)
		if r.IntN(4) == 0 {
			s += string("0123456789x"[r.IntN(11)])
		}
		for _, bits := range []int{32, 64} {
			want, err := strconv.ParseInt(s, 10, bits)
			got, ok := parseInt(s, bits)
			if ok != (err == nil) || ok && got != want {
				t.Fatalf("%s in %d bits: %d %v, want %d %v", s, bits, got, ok, want, err)
			}
		}
	}
}

// Values made by SetInt64 must not move when more are made, and Reset must not need new memory.
func TestSetters(t *testing.T) {
	var c Command
	for i := range int64(200) {
		c.SetInt64("k"+strconv.FormatInt(i, 10), i*1_000_003)
	}
	c.SetBool("b", true)
	c.SetBytes("raw", []byte("xy"))
	c.SetInt32("k0", 5)
	for i := range int64(200) {
		want := strconv.FormatInt(i*1_000_003, 10)
		if i == 0 {
			want = "5"
		}
		if v, _ := c.Get("k" + strconv.FormatInt(i, 10)); v != want {
			t.Fatalf("k%d is %s", i, v)
		}
	}
	if c.GetOr("b", "") != "true" || c.GetOr("raw", "") != "xy" || len(c.fields) != 202 {
		t.Fatal(c.fields)
	}
	if n := testing.AllocsPerRun(100, func() {
		c.Reset()
		c.SetInt64("a", 1<<40)
		c.SetInt64("b", 1<<41)
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestDecodeAllocatesNothing(t *testing.T) {
	for codec := range byte(2) {
		original := sendV2(codec)
		frame := bytes.Clone(original)
		var c Command
		if err := c.DecodeFrom(frame); err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(100, func() {
			copy(frame, original)
			if c.DecodeFrom(frame) != nil {
				t.Fatal("no frame")
			}
		}); n != 0 {
			t.Fatalf("codec %d: %v allocations", codec, n)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for i, name := range languages {
		if languageOf([]byte(name)) != byte(i) || LanguageName(byte(i)) != name {
			t.Error(name)
		}
	}
	for _, other := range []string{"", "go", "14", "-1", "99999999999999999999"} {
		if languageOf([]byte(other)) != LangOther {
			t.Error(other)
		}
	}
	if LanguageName(200) != "OTHER" || RequestName(SendMessageV2) != "SEND_MESSAGE_V2" || RequestName(9999) != "9999" {
		t.Error("names")
	}
}
