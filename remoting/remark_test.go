package remoting

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// A remark is one line of valid text and has an end, whatever a client sent.
func TestLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                             "",
		"topic Straße 漢 is not there":  "topic Straße 漢 is not there",
		"a\r\nb\tc\x00d\u0085e\u2028f": "a  b c d e f",
		"x\xff\xfey":                   "x\ufffd\ufffdy",
		strings.Repeat("漢", MaxRemark): strings.Repeat("漢", MaxRemark/3) + "…",
	} {
		if got := Line(text); got != want || !utf8.ValidString(got) {
			t.Errorf("of %.40q comes %.40q, want %.40q", text, got, want)
		}
	}
}
