package message

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

func pairs(props string) []string {
	var all []string
	for k, v := range Properties(props) {
		all = append(all, k+"="+v)
	}
	return all
}

func TestProperties(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		props string
		want  []string
	}{
		{"", nil},
		{"\x02\x02", nil},
		{"a\x011\x02b\x012\x02", []string{"a=1", "b=2"}},
		{"a\x011\x02b\x012", []string{"a=1", "b=2"}}, // the last separator is absent
		{"a\x01\x02b\x012\x02", []string{"b=2"}},     // no value
		{"\x011\x02b\x012\x02", []string{"b=2"}},     // no key
		{"a\x02b\x012\x02", []string{"b=2"}},         // no separator
		{"a\x01x\x01y\x02", []string{"a=x\x01y"}},    // the first one parts
		{"a\x011\x02a\x012\x02", []string{"a=1", "a=2"}},
	} {
		if got := pairs(c.props); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.props, got, c.want)
		}
	}
}

func TestProperty(t *testing.T) {
	t.Parallel()
	props := "a\x011\x02ab\x012\x02a\x013\x02"
	for key, want := range map[string]string{"a": "3", "ab": "2", "b": "", "": ""} {
		if got, ok := Property(props, key); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", key, got, ok)
		}
	}
}

func TestAppendAndDeleteProperty(t *testing.T) {
	t.Parallel()
	if got := AppendProperty("a\x011", "b", "2"); got != "a\x011\x02b\x012\x02" {
		t.Errorf("%q", got)
	}
	for _, bad := range [][2]string{{"", "v"}, {"k", ""}, {"k\x01", "v"}, {"k", "v\x02"}, {"k", "v\x01"}} {
		if got := AppendProperty("a\x011\x02", bad[0], bad[1]); got != "a\x011\x02" {
			t.Errorf("%q: %q", bad, got)
		}
		if ValidProperty(bad[0], bad[1]) == nil {
			t.Errorf("%q is valid", bad)
		}
	}
	for _, c := range [][3]string{
		{"a\x011\x02b\x012\x02a\x013\x02", "a", "b\x012\x02"},
		{"a\x011\x02b\x012", "b", "a\x011\x02"},
		{"aa\x011\x02", "a", "aa\x011\x02"},
		{"x\x02a\x011\x02\x02", "a", "x\x02\x02"},
		{"", "a", ""},
	} {
		if got := DeleteProperty(c[0], c[1]); got != c[2] {
			t.Errorf("%q without %q: %q", c[0], c[1], got)
		}
	}
	if got := SetProperty("a\x011\x02b\x012\x02", "a", "9"); got != "b\x012\x02a\x019\x02" {
		t.Errorf("%q", got)
	}
}

// A map as the naive twin: any row of appends, sets and deletes reads back as the map says, also by the official client.
func TestPropertiesAgainstMap(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 8))
	keys := []string{"a", "ab", "b", "KEYS", "ключ"}
	for range 300 {
		twin, props := map[string]string{}, ""
		for range r.IntN(12) {
			k, v := keys[r.IntN(len(keys))], strings.Repeat("v", 1+r.IntN(4))
			switch r.IntN(3) {
			case 0:
				props = AppendProperty(props, k, v)
				twin[k] = v
			case 1:
				props = SetProperty(props, k, v)
				twin[k] = v
			case 2:
				props = DeleteProperty(props, k)
				delete(twin, k)
			}
		}
		var official primitive.Message
		official.UnmarshalProperties([]byte(props))
		for _, k := range keys {
			got, ok := Property(props, k)
			want, has := twin[k]
			if got != want || ok != has || official.GetProperty(k) != want {
				t.Fatalf("%q: %q is %q (client %q), want %q", props, k, got, official.GetProperty(k), want)
			}
		}
	}
}

func FuzzProperties(f *testing.F) {
	f.Add("a\x011\x02b\x012", "a", "x")
	f.Add("\x02\x01\x02", "", "\x01")
	f.Fuzz(func(t *testing.T, props, key, value string) {
		before := pairs(props)
		without := DeleteProperty(props, key)
		if _, ok := Property(without, key); ok {
			t.Fatalf("%q is still in %q", key, without)
		}
		if _, ok := Property(props, key); !ok && !slices.Equal(before, pairs(without)) {
			t.Fatalf("deleting %q, which was not there, made %q of %q", key, without, props)
		}
		got := AppendProperty(props, key, value)
		if ValidProperty(key, value) != nil {
			if got != props {
				t.Fatalf("an invalid pair made %q of %q", got, props)
			}
			return
		}
		if want := append(before, key+"="+value); !slices.Equal(pairs(got), want) {
			t.Fatalf("%q, want %q", pairs(got), want)
		}
	})
}
