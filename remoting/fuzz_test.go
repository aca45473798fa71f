package remoting

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func FuzzDecode(f *testing.F) {
	for name := range goldenCommands() {
		f.Add(golden(f, name))
	}
	f.Add(jsonFrame(`{"x":[1,{"y":null}],"extFields":{"a":"\ud83d\ude00"}}`, "b"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Decode(bytes.Clone(b))
		if err != nil {
			return
		}
		again, err := Decode(c.AppendTo(nil))
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if c.Language >= byte(len(languages)) && c.Codec == CodecJSON {
			t.Fatalf("language %d", c.Language)
		}
		same(t, again, c)
	})
}

func FuzzJSONHeader(f *testing.F) {
	f.Add(`{"code":310,"extFields":{"a":"x","b":"\u0001"},"flag":0,"language":"JAVA","opaque":7,"remark":null,"version":475}`)
	f.Add(` { "x" : [ { } , -1.5e3 , "\\" , true ] , "remark" : "\ud83d\ude00\"" } `)
	f.Fuzz(func(t *testing.T, header string) {
		c, err := Decode(jsonFrame(header, "body"))
		if err == nil {
			if string(c.Body) != "body" {
				t.Fatalf("%q changed the body to %q", header, c.Body)
			}
			return
		}
		// What the library takes we take, but for what we bound and what has no meaning here.
		var o struct {
			Code, Flag, Opaque, Version *int32
			Language, Remark            *string
			ExtFields                   map[string]*string
		}
		if json.Unmarshal([]byte(header), &o) != nil || strings.TrimSpace(header) == "null" ||
			strings.Contains(err.Error(), "too deep") || strings.Contains(err.Error(), "too many") {
			return
		}
		t.Fatalf("%q: %v", header, err)
	})
}

func FuzzBinaryHeader(f *testing.F) {
	f.Add(golden(f, "request-rocketmq")[8:])
	f.Add(golden(f, "refusal-rocketmq")[8:])
	f.Fuzz(func(t *testing.T, header []byte) {
		var c Command
		c.Codec = CodecRocketMQ
		if c.decodeBinary(bytes.Clone(header)) != "" {
			return
		}
		for i := range c.fields {
			if c.fields[i].key == "" || c.fields[i].value == "" {
				t.Fatal("an empty key or value was kept")
			}
		}
		again, err := Decode(c.AppendTo(nil))
		if err != nil {
			t.Fatal(err)
		}
		same(t, again, &c)
	})
}
