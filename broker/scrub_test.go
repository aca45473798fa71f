package broker

import (
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/internal/vfs"
)

// When the log was scrubbed last is kept over a start; a file of another version, or a damaged one, means that it is not known.
func TestScrubFile(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	if err := vfs.MkdirDurable(fs, "/r"); err != nil {
		t.Fatal(err)
	}
	if s, err := loadScrub(fs, "/r"); err != nil || s.Finished != 0 {
		t.Fatalf("without a file: %+v, %v", s, err)
	}
	want := scrubResult{Version: scrubVersion, Finished: 1796000000000, Bytes: 7, TookMS: 8}
	if err := want.save(fs, "/r"); err != nil {
		t.Fatal(err)
	}
	if s, err := loadScrub(fs, "/r"); err != nil || s != want {
		t.Fatalf("got %+v, %v", s, err)
	}
	for _, text := range []string{`{"version":2,"finished":5}`, `{`, ``} {
		if err := vfs.WriteFileAtomic(fs, "/r/"+scrubName, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if s, err := loadScrub(fs, "/r"); err == nil || s.Finished != 0 || !strings.Contains(err.Error(), scrubName) {
			t.Errorf("%q: %+v, %v", text, s, err)
		}
	}
}
