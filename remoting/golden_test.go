package remoting

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// golden reads a file of testdata: hexadecimal bytes or a quoted string on each line, a comment after #.
func golden(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".golden"))
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for n, line := range strings.Split(string(text), "\n") {
		if quoted, err := strconv.QuotedPrefix(line); err == nil {
			s, err := strconv.Unquote(quoted)
			if err != nil {
				t.Fatalf("%s:%d: %v", name, n+1, err)
			}
			out = append(out, s...)
			continue
		}
		digits, _, _ := strings.Cut(line, "#")
		b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil {
			t.Fatalf("%s:%d: %v", name, n+1, err)
		}
		out = append(out, b...)
	}
	return out
}

// goldenCommands are what the golden frames mean. The bytes were made by hand from the protocol's tables.
func goldenCommands() map[string]*Command {
	all := map[string]*Command{}
	for codec, name := range []string{"json", "rocketmq"} {
		send := &Command{Code: SendMessageV2, Language: LangJava, Version: 475, Opaque: 7, Body: []byte("hello")}
		send.Set("a", "producers")
		send.Set("b", "orders")
		send.Set("e", "3")
		send.Set("i", "TAGS\x01a\x02")
		answer := NewResponse(Success, "")
		answer.Set("msgId", "0A09080700002A9F0000000000001060")
		answer.SetInt64("queueId", 3)
		answer.SetInt64("queueOffset", 41)
		refusal := NewResponse(ServiceNotAvailable, `[NOT_STORED] "n2" leads`)
		answer.Opaque, refusal.Opaque = 7, 7
		send.Codec, answer.Codec, refusal.Codec = byte(codec), byte(codec), byte(codec)
		all["request-"+name], all["answer-"+name], all["refusal-"+name] = send, answer, refusal
	}
	return all
}

func TestGoldenFrames(t *testing.T) {
	t.Parallel()
	for name, want := range goldenCommands() {
		b := golden(t, name)
		if made := want.AppendTo(nil); !bytes.Equal(made, b) {
			t.Errorf("%s: made\n%q\nwant\n%q", name, made, b)
		}
		got, err := Decode(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		same(t, got, want)
	}
}

// same fails when the two commands differ in what travels.
func same(t *testing.T, got, want *Command) {
	t.Helper()
	if got.Code != want.Code || got.Language != want.Language || got.Version != want.Version || got.Opaque != want.Opaque ||
		got.Flag != want.Flag || got.Remark != want.Remark || got.Codec != want.Codec || !bytes.Equal(got.Body, want.Body) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
	var g, w []field
	g, w = append(g, got.fields...), append(w, want.fields...)
	if len(g) != len(w) {
		t.Fatalf("%d fields, want %d: %q, want %q", len(g), len(w), g, w)
	}
	for i := range g {
		if g[i] != w[i] {
			t.Fatalf("field %d is %q, want %q", i, g[i], w[i])
		}
	}
}

// The page of the format shows the golden files as they are.
func TestPageShowsGoldenBytes(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/format/remoting.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/*.golden")
	if err != nil || len(files) != len(goldenCommands()) {
		t.Fatalf("%d golden files, %v", len(files), err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(page), string(text)) {
			t.Errorf("docs/format/remoting.md does not show %s", f)
		}
	}
}
