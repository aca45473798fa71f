package raftlog

import (
	"bytes"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
)

func goldenOwner() Owner {
	return Owner{Replica: 101, Incarnation: epochIncarnation(0x11), Term: ids.MakeTerm(7, 3), Vote: 102, Commit: 1000}
}

func TestOwnerGolden(t *testing.T) {
	t.Parallel()
	lines, want := epochGoldenLines(t, "testdata/owner.hex")
	if got := goldenOwner().Encode(); !bytes.Equal(got, want) {
		t.Fatalf("the bytes of an owner record changed.\ngot  %x\nwant %x\nA new layout needs a new version; the old one must stay readable.", got, want)
	}
	page, err := os.ReadFile("../docs/format/meta.md")
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`[ \t]`).ReplaceAllString(string(page), "")
	for _, line := range lines {
		if !strings.Contains(text, "\n"+line) {
			t.Errorf("docs/format/meta.md does not show the line %s", line)
		}
	}
}

func TestOwnerRoundTrip(t *testing.T) {
	t.Parallel()
	o := goldenOwner()
	o.Record = goldenEpoch().Encode()
	got, err := DecodeOwner(o.Encode())
	if err != nil || got.Term != o.Term || got.Vote != o.Vote || got.Commit != o.Commit || got.Replica != o.Replica ||
		got.Incarnation != o.Incarnation || !bytes.Equal(got.Record, o.Record) {
		t.Errorf("%+v, %v; want %+v", got, err, o)
	}
}

func TestOwnerRefused(t *testing.T) {
	t.Parallel()
	good := goldenOwner()
	good.Record = goldenEpoch().Encode()
	for name, change := range map[string]func([]byte) []byte{
		"empty":         func([]byte) []byte { return nil },
		"short":         func(b []byte) []byte { return b[:ownerFixed-1] },
		"magic":         func(b []byte) []byte { b[0] = 'X'; return b },
		"version":       func(b []byte) []byte { b[4] = 2; return b },
		"reserved":      func(b []byte) []byte { b[6] = 1; return b },
		"record cut":    func(b []byte) []byte { return b[:len(b)-1] },
		"record longer": func(b []byte) []byte { return append(b, 0) },
		"record huge":   func(b []byte) []byte { b[56] = 0xff; return b },
	} {
		if _, err := DecodeOwner(change(good.Encode())); !errors.Is(err, ErrOwner) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzDecodeOwner(f *testing.F) {
	f.Add(goldenOwner().Encode())
	with := goldenOwner()
	with.Record = goldenEpoch().Encode()
	f.Add(with.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := DecodeOwner(b)
		if err != nil {
			if !errors.Is(err, ErrOwner) {
				t.Errorf("%v is not ErrOwner", err)
			}
			return
		}
		if !bytes.Equal(o.Encode(), b) {
			t.Errorf("%x decodes and encodes as %x", b, o.Encode())
		}
	})
}
