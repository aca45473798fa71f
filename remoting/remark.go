package remoting

import (
	"strings"
	"unicode"
)

// MaxRemark bounds the line that Line makes, in bytes without the mark that something is left out.
const MaxRemark = 1000

// Line makes one bounded line of a text that may repeat what a client sent, for the remark of an answer.
func Line(text string) string {
	if len(text) > MaxRemark {
		text = strings.ToValidUTF8(text[:MaxRemark], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, text)
}
