package index

import (
	"runtime"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// A million messages with one key: the newest of any part of the log are found at the cost of a look, and each message costs its few bytes, as
// with other keys.
func TestMillionMessagesOfOneWord(t *testing.T) {
	if testing.Short() {
		t.Skip("a million entries by one goroutine take two minutes under the race detector: `make test` runs it")
	}
	t.Parallel()
	const messages, every, each, wanted = 1_000_000, 300, 1 << 18, 64
	x, err := Open(Options{Dir: t.TempDir(), SegmentSize: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	hot := Hash(ids.TopicID(1), WordKey, "hot")
	at := ids.PhysicalOffset(4096)
	where := make([]ids.PhysicalOffset, messages)
	for i := range messages {
		if room := 64<<20 - at%(64<<20); room < every {
			at += room
		}
		where[i] = at
		if err := x.Add(Key{1, 0}, ids.QueueOffset(i), Entry{Offset: at, Size: every - 40}, hot); err != nil {
			t.Fatal(err)
		}
		at += every
		if i%each == each-1 {
			if err := x.Checkpoint(at); err != nil {
				t.Fatal(err)
			}
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const looks = 50
	for name, to := range map[string]int{"the newest, in memory": messages, "in files": messages / 2, "the oldest": 1000} {
		began := cpuTime()
		for range looks {
			n := 0
			err := x.Find(hot, 0, where[to-1]+1, func(o ids.PhysicalOffset) bool {
				if o != where[to-1-n] {
					t.Fatalf("%s: message %d lies at %d, want %d", name, n, o, where[to-1-n])
				}
				n++
				return n < wanted
			})
			if err != nil || n != wanted {
				t.Fatalf("%s: %d found, %v", name, n, err)
			}
		}
		cost := (cpuTime() - began) / looks
		t.Logf("%s: %v", name, cost)
		if cost.Milliseconds() > 20 {
			t.Errorf("%s: a look costs %v of CPU", name, cost)
		}
	}
	all, words := x.Bytes()
	if all > 60*messages || words > 16*messages {
		t.Errorf("the index has %d bytes, %d of them for words", all, words)
	}
}
