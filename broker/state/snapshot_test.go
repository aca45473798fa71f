package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

const snapshotDir = "data/state"

var testGroup = ids.GroupID{1, 2, 3}

func write(tb testing.TB, fs vfs.FS, i ids.Index, s *State) SnapshotMeta {
	tb.Helper()
	m, err := WriteSnapshot(fs, snapshotDir, SnapshotMeta{Group: testGroup, Index: i, Term: ids.MakeTerm(1, 2), Offset: 8192, Chain: 9}, s)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

func snapshots(tb testing.TB, fs vfs.FS) []string {
	tb.Helper()
	names, err := fs.List(snapshotDir)
	if err != nil {
		tb.Fatal(err)
	}
	return names
}

// TestGenerations checks what is kept, and what is loaded when files are damaged.
func TestGenerations(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	if _, _, err := LoadNewest(fs, snapshotDir, testGroup); !errors.Is(err, ErrNoSnapshot) {
		t.Fatalf("nothing there: %v", err)
	}
	y := newStory(1)
	var written []SnapshotMeta
	for i := range ids.Index(4) {
		for range 100 {
			y.step(t)
		}
		written = append(written, write(t, fs, 100*(i+1), y.s.Clone()))
	}
	if names := snapshots(t, fs); len(names) != 2 || names[1] != "state-00000000000000000400.snap" {
		t.Fatalf("files after four snapshots: %v", names)
	}
	s, m, err := LoadNewest(fs, snapshotDir, testGroup)
	if err != nil || m.Index != 400 || m.Hash != y.s.Hash() || s.Hash() != m.Hash || m.Offset != 8192 || m.Chain != 9 || m.Damaged != nil {
		t.Fatalf("newest: %+v, %v", m, err)
	}
	if _, _, err := LoadNewest(fs, snapshotDir, ids.GroupID{9}); !errors.Is(err, ErrNoSnapshot) || !strings.Contains(err.Error(), "belongs to group") {
		t.Fatalf("of another group: %v", err)
	}

	flip(t, fs, snapshotName(snapshotDir, 400), 1000)
	s, m, err = LoadNewest(fs, snapshotDir, testGroup)
	if err != nil || m.Index != 300 || s.Hash() != written[2].Hash || len(m.Damaged) != 1 || !errors.As(m.Damaged[0], new(*SnapshotError)) {
		t.Fatalf("the newest is damaged: %+v, %v", m, err)
	}
	// The replica goes on from 300 and writes again: the damaged file is no generation, so 300 stays.
	write(t, fs, 350, s)
	if names := snapshots(t, fs); len(names) != 2 || names[0] != "state-00000000000000000300.snap" {
		t.Fatalf("files after a damaged one: %v", names)
	}
	flip(t, fs, snapshotName(snapshotDir, 350), 1000)
	write(t, fs, 360, s)
	if names := snapshots(t, fs); len(names) != 3 {
		t.Fatalf("a whole generation was removed for a damaged one: %v", names)
	}
	for _, i := range []ids.Index{300, 350, 360} {
		flip(t, fs, snapshotName(snapshotDir, i), 100)
	}
	_, _, err = LoadNewest(fs, snapshotDir, testGroup)
	if !errors.Is(err, ErrNoSnapshot) || !strings.Contains(err.Error(), snapshotName(snapshotDir, 300)) {
		t.Fatalf("all are damaged: %v", err)
	}
}

func flip(tb testing.TB, fs vfs.FS, name string, at int64) {
	tb.Helper()
	f, err := fs.OpenReadWrite(name)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		tb.Fatal(err)
	}
	b[0] ^= 4
	if _, err := f.WriteAt(b, at); err != nil {
		tb.Fatal(err)
	}
}

// TestEveryBit flips each bit of a small file in turn, and cuts it at each length: none is taken for a snapshot.
func TestEveryBit(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	write(t, fs, 7, withTopic(t, 3))
	b, err := vfs.ReadFile(fs, snapshotName(snapshotDir, 7))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := ParseSnapshot(b); err != nil {
		t.Fatal(err)
	}
	for i := range b {
		for bit := range 8 {
			c := slices.Clone(b)
			c[i] ^= 1 << bit
			if _, _, err := ParseSnapshot(c); err == nil {
				t.Fatalf("bit %d of byte %d does not matter", bit, i)
			}
		}
		if _, _, err := ParseSnapshot(b[:i]); err == nil {
			t.Fatalf("the first %d bytes are a snapshot", i)
		}
	}
}

// TestOtherSnapshotVersion holds that a snapshot of another version is told by it, and not used.
func TestOtherSnapshotVersion(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	write(t, fs, 7, withTopic(t, 3))
	b, err := vfs.ReadFile(fs, snapshotName(snapshotDir, 7))
	if err != nil {
		t.Fatal(err)
	}
	b[5] = 2
	binary.BigEndian.PutUint32(b[124:], crc32.Checksum(b[:124], castagnoli))
	if _, _, err := ParseSnapshot(b); err == nil || !strings.Contains(err.Error(), "version 2, this program knows 1") {
		t.Errorf("a snapshot of version 2: %v", err)
	}
}

// TestCrashes cuts the power at a random operation of a snapshot's writing. Afterwards the newest whole snapshot is the new
// one or the one before, never an older one and never none.
func TestCrashes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 3))
			mem, y := vfs.NewMem(), newStory(seed)
			var last ids.Index
			for i := ids.Index(1); i < 12; i++ {
				for range 20 {
					y.step(t)
				}
				left := r.IntN(25)
				failing := vfs.Inject(mem, func(op vfs.Op, _ string, _ int64, _ int) error {
					if left--; left < 0 && op != vfs.OpRead {
						return io.ErrClosedPipe
					}
					return nil
				})
				_, err := WriteSnapshot(failing, snapshotDir, SnapshotMeta{Group: testGroup, Index: i}, y.s.Clone())
				mem = mem.Crash(r)
				_, m, lerr := LoadNewest(mem, snapshotDir, testGroup)
				switch {
				case err == nil && m.Index != i:
					t.Fatalf("snapshot %d was written, %d is loaded: %v", i, m.Index, lerr)
				case err != nil && m.Index != i && m.Index != last:
					t.Fatalf("snapshot %d failed (%v), the one before is %d, %d is loaded: %v", i, err, last, m.Index, lerr)
				case m.Damaged != nil:
					t.Fatalf("a crash left damage: %v", m.Damaged)
				}
				last = m.Index
			}
			write(t, mem, 100, y.s)
			for _, n := range snapshots(t, mem) {
				if strings.HasSuffix(n, ".tmp") {
					t.Fatalf("%s was left behind", filepath.Join(snapshotDir, n))
				}
			}
		})
	}
}
