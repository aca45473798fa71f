package message

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"
)

func TestBatchRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		at     int
		v      uint32
		reason string
	}{
		"size too small":    {0, 21, "size 21"},
		"size too large":    {0, 35, "size 35"},
		"size negative":     {0, math.MaxUint32, "size 4294967295"},
		"body too long":     {16, 14, "runs past the end"},
		"body negative":     {16, math.MaxUint32, "negative length"},
		"body shorter":      {16, 4, "number 1"},
		"size cuts the end": {0, 33, "number 1"},
	} {
		good := AppendBatchItem(nil, BatchItem{Body: []byte("first"), Properties: "TAGS\x01a\x02"})
		bad := bytes.Clone(good)
		binary.BigEndian.PutUint32(bad[c.at:], c.v)
		var items int
		var fault error
		for _, err := range SplitBatch(append(good, bad...)) {
			if fault != nil {
				t.Fatalf("%s: the walk goes on after a fault", name)
			}
			if fault = err; err == nil {
				items++
			}
		}
		var format *FormatError
		if items != 1 || !errors.As(fault, &format) || !strings.Contains(fault.Error(), c.reason) {
			t.Errorf("%s: %d items, then %v", name, items, fault)
		}
	}
}

func TestBatchStops(t *testing.T) {
	t.Parallel()
	b := AppendBatchItem(AppendBatchItem(nil, BatchItem{}), BatchItem{})
	n := 0
	for range SplitBatch(b) {
		n++
		break
	}
	if n != 1 {
		t.Fatal(n)
	}
	for range SplitBatch(nil) {
		t.Fatal("an empty body has an item")
	}
}

func FuzzSplitBatch(f *testing.F) {
	f.Add(golden(f, "batch"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var made []byte
		for it, err := range SplitBatch(b) {
			if err != nil {
				return
			}
			made = AppendBatchItem(made, it)
		}
		// Magic and checksum are not looked at: leave them out of the comparison.
		if len(made) != len(b) {
			t.Fatalf("read %d bytes, wrote %d", len(b), len(made))
		}
	})
}
