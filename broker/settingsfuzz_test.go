package broker

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Whatever text an operator sends, what is taken of it can be changed, stands once and in order, and is taken again as it is.
func FuzzParseConfig(f *testing.F) {
	for _, s := range []string{"brokerPermission=4\n", "# a comment\n! another\n\n autoCreateTopicEnable = TRUE \r\n", "fileReservedTime=+72\nfileReservedTime=default", "brokerName=x", "=", "a=b=c",
		"autoCreateSubscriptionGroup=false\nfileReservedTime=-1", "\x00\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		changes, err := parseConfig(body)
		if err != nil {
			return
		}
		var again strings.Builder
		for i, c := range changes {
			at := slices.IndexFunc(settings, func(s setting) bool { return s.name == c.Name })
			if at < 0 || settings[at].check == nil || i > 0 && changes[i-1].Name >= c.Name {
				t.Fatalf("%q is taken as %q", body, changes)
			}
			value := c.Value
			if value == "" {
				value = settingDefault
			}
			again.WriteString(c.Name + "=" + value + "\n")
		}
		second, err := parseConfig([]byte(again.String()))
		if err != nil || len(changes) == 0 || !reflect.DeepEqual(second, changes) {
			t.Fatalf("%q is taken as %q, and that as %q, %v", body, changes, second, err)
		}
	})
}
