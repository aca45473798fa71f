package laxjson

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestStandardQuotesKeys(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{}`:                            `{}`,
		` {"a":1} `:                     ` {"a":1} `,
		`{0:"a:1",2:"b:2"}`:             `{"0":"a:1","2":"b:2"}`,
		`{"x":{0 : "a"},"y":[{-1:2}]}`:  `{"x":{"0" : "a"},"y":[{"-1":2}]}`,
		`{{"q":0,"m":{1:2}}:{"off":7}}`: `{"{\"q\":0,\"m\":{\"1\":2}}":{"off":7}}`,
		`{"s":"{0:1}\"{"}`:              `{"s":"{0:1}\"{"}`,
		`[null,true,1.5e+3]`:            `[null,true,1.5e+3]`,
	} {
		got, err := Standard([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("Standard(%s) = %s, %v; want %s", in, got, err, want)
		}
	}
}

func TestStandardRefuses(t *testing.T) {
	t.Parallel()
	for _, in := range []string{``, `{`, `{"a"}`, `{0}`, `{0:}`, `{0:1`, `["a`, `{a:1}`, `{} x`, `{"a":"\`, `{{{{"a":1}:1}:1}:1}`, strings.Repeat("[", 100) + strings.Repeat("]", 100)} {
		if got, err := Standard([]byte(in)); !errors.Is(err, ErrSyntax) {
			t.Errorf("Standard(%s) = %s, %v; want ErrSyntax", in, got, err)
		}
	}
}

func FuzzStandard(f *testing.F) {
	for _, in := range []string{`{0:"a"}`, `{{"a":{1:2}}:3}`, `{"a":[1,{2:"\""}]}`, `{"a":1}`} {
		f.Add([]byte(in))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := Standard(in)
		if json.Valid(in) {
			// Invariant: standard text (of a depth that is allowed) is never changed.
			if err == nil && string(out) != string(in) {
				t.Fatalf("standard text %q changed to %q", in, out)
			}
			if err != nil && strings.Count(string(in), "[")+strings.Count(string(in), "{") < MaxDepth {
				t.Fatalf("standard text %q refused: %v", in, err)
			}
		}
		if err != nil {
			return
		}
		// Invariant: Standard is idempotent.
		again, err := Standard(out)
		if err != nil || string(again) != string(out) {
			t.Fatalf("second pass of %q: %q, %v", out, again, err)
		}
	})
}
