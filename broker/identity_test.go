package broker

import (
	"slices"
	"strings"
	"testing"
)

// A list of controllers is good when it has one that the node was ever told of, under whatever name.
func TestControllersOfANode(t *testing.T) {
	t.Parallel()
	var f nodeFile
	want := func(given, all string) {
		t.Helper()
		got, err := f.controllers(strings.Fields(given))
		if all == "" && (err == nil || !strings.Contains(err.Error(), "has none of those that this node knows")) || all != "" && (err != nil || strings.Join(got, " ") != all) {
			t.Errorf("given %s: %v %v, want %q", given, got, err, all)
		}
	}
	want("127.0.0.1:1", "127.0.0.1:1")
	if !f.tell([]string{"127.0.0.1:1"}) || f.tell([]string{"127.0.0.1:1"}) {
		t.Error("news are told wrong")
	}
	want("localhost:1", "localhost:1 127.0.0.1:1")
	want("127.0.0.1:9", "")
	want("no.such.host.invalid:1", "")
	f.tell([]string{"127.0.0.1:2", "127.0.0.1:3"})
	want("127.0.0.1:1", "127.0.0.1:1 127.0.0.1:2 127.0.0.1:3") // only old
	want("127.0.0.1:4", "")
	for i := range 3 * maxFormer {
		f.tell([]string{"h:" + strings.Repeat("1", i+1)})
	}
	if len(f.FormerControllers) != maxFormer || slices.Contains(f.FormerControllers, f.Controllers[0]) {
		t.Errorf("%d former controllers", len(f.FormerControllers))
	}
}
