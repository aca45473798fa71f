package commitlog

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// TestUncache: as a log grows all is given up that lies further back than what is kept, once and in order, and nothing else.
func TestUncache(t *testing.T) {
	t.Parallel()
	const keep = 100 << 10
	var given []ids.PhysicalOffset // from, to, from, to…
	o := small(vfs.Inject(vfs.NewMem(), func(op vfs.Op, name string, off int64, n int) error {
		if op != vfs.OpUncache {
			return nil
		}
		name = name[strings.LastIndexByte(name, '/')+1:]
		base, err := strconv.ParseInt(strings.TrimSuffix(name, logSuffix), 10, 64)
		if err != nil || n <= 0 || off < 0 || off+int64(n) > 64<<10 {
			t.Errorf("%d bytes from %d of %s", n, off, name)
		}
		given = append(given, ids.PhysicalOffset(base+off), ids.PhysicalOffset(base+off)+ids.PhysicalOffset(n))
		return errors.New("not heard")
	}))
	l := mustCreate(t, o)
	l.Uncache(keep)
	var frames []Frame
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		frames = append(frames, grow(t, l, 1, 1, 1+r.IntN(12000))...)
		l.Uncache(keep)
		for i := 2; i < len(given); i += 2 {
			if given[i] != given[i-1] {
				t.Fatalf("from %d after %d", given[i], given[i-1])
			}
		}
		kept := l.Tail().Offset
		if len(given) > 0 {
			kept -= given[len(given)-1]
		}
		if step := ids.PhysicalOffset(l.o.fillStep()); len(given) > 0 && kept < keep || kept >= keep+step {
			t.Fatalf("%d bytes are kept at the end %d", kept, l.Tail().Offset)
		}
	}
	if len(given) < 20 || given[0] != 0 {
		t.Fatalf("given up: %v", given)
	}
	holds(t, l, frames)
	check(t, l.Close(true))
	n := len(given)
	l.Uncache(0)
	l = mustOpen(t, o)
	defer l.Close(true)
	l.Uncache(1 << 40) // of a log that is shorter
	if len(given) != n {
		t.Errorf("a closed or a short log gave up %v", given[n:])
	}
}
