package raftlog

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
)

func epochIncarnation(b byte) ids.Incarnation { return ids.Incarnation(bytes.Repeat([]byte{b}, 16)) }

// goldenEpoch is the record that docs/format/epoch.md shows.
func goldenEpoch() EpochRecord {
	return EpochRecord{
		Cluster: ids.ClusterID(bytes.Repeat([]byte{0xc1}, 16)), Group: ids.GroupID(bytes.Repeat([]byte{0x91}, 16)), Epoch: 7,
		Voters: []Member{
			{ID: 101, Slot: 1, Node: "n1", Incarnation: epochIncarnation(0x11)},
			{ID: 102, Slot: 2, Node: "n2", Incarnation: epochIncarnation(0x12)},
		},
		Learners: []Member{{ID: 104, Slot: 3, Node: "n3", Incarnation: epochIncarnation(0x14)}},
		A:        2, MinISR: 2, SegmentSize: 1 << 30,
	}
}

// epochGoldenLines returns the lines of a golden file: hexadecimal bytes, a line for each field.
func epochGoldenLines(t *testing.T, name string) (lines []string, data []byte) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	lines = strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, line := range lines {
		b, err := hex.DecodeString(strings.ReplaceAll(line, " ", ""))
		if err != nil {
			t.Fatalf("%s: line %q: %v", name, line, err)
		}
		data = append(data, b...)
	}
	return lines, data
}

func TestEpochRecordGolden(t *testing.T) {
	t.Parallel()
	lines, want := epochGoldenLines(t, "testdata/epoch.hex")
	r := goldenEpoch()
	if got := r.Encode(); !bytes.Equal(got, want) {
		t.Fatalf("the bytes of an epoch record changed.\ngot  %x\nwant %x\nA new layout needs a new version; the old one must stay readable.", got, want)
	}
	page, err := os.ReadFile("../docs/format/epoch.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		if !strings.Contains(string(page), line) {
			t.Errorf("docs/format/epoch.md does not show the golden line %q: copy testdata/epoch.hex into it", line)
		}
	}
	got, err := DecodeEpochRecord(want)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.Voters, r.Voters) || !slices.Equal(got.Learners, r.Learners) || got.Hash() != r.Hash() ||
		got.Epoch != 7 || got.A != 2 || got.MinISR != 2 || got.SegmentSize != 1<<30 || got.Cluster != r.Cluster || got.Group != r.Group {
		t.Fatalf("decoded %+v", got)
	}
}

func TestEpochRecordIsCanonical(t *testing.T) {
	t.Parallel()
	r := goldenEpoch()
	want := r.Encode()
	shuffled := r
	shuffled.Voters = slices.Clone(r.Voters)
	slices.Reverse(shuffled.Voters)
	if !bytes.Equal(shuffled.Encode(), want) || shuffled.Hash() != r.Hash() {
		t.Fatal("the order of members changes the bytes")
	}
	if shuffled.Voters[0].ID != 102 {
		t.Fatal("Encode sorted the caller's slice")
	}
	if h := r.Hash(); !bytes.Equal(h[:], want[len(want)-16:]) {
		t.Fatal("Hash is not what the record ends in")
	}
}

// TestEpochRecordHashSeesEverything changes one thing at a time: none may leave the hash as it is.
func TestEpochRecordHashSeesEverything(t *testing.T) {
	t.Parallel()
	seen := map[[16]byte]string{goldenEpoch().Hash(): "the original"}
	for name, change := range map[string]func(*EpochRecord){
		"cluster":      func(r *EpochRecord) { r.Cluster[15]++ },
		"group":        func(r *EpochRecord) { r.Group[0]++ },
		"epoch":        func(r *EpochRecord) { r.Epoch++ },
		"a":            func(r *EpochRecord) { r.A++ },
		"min isr":      func(r *EpochRecord) { r.MinISR-- },
		"segment size": func(r *EpochRecord) { r.SegmentSize *= 2 },
		"voter id":     func(r *EpochRecord) { r.Voters[1].ID++ },
		"incarnation":  func(r *EpochRecord) { r.Voters[0].Incarnation[3]++ },
		"node":         func(r *EpochRecord) { r.Learners[0].Node = "n4" },
		"slot":         func(r *EpochRecord) { r.Learners[0].Slot = 4 },
		"voter leaves": func(r *EpochRecord) { r.Voters = r.Voters[:1] },
		"learner becomes voter": func(r *EpochRecord) {
			r.Voters, r.Learners = append(r.Voters, r.Learners...), nil
		},
	} {
		r := goldenEpoch()
		change(&r)
		if err := r.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if other, dup := seen[r.Hash()]; dup {
			t.Errorf("%s has the hash of %s", name, other)
		}
		seen[r.Hash()] = name
	}
}

func TestEpochRecordValidate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*EpochRecord)
		want   string
	}{
		"no cluster":        {func(r *EpochRecord) { r.Cluster = ids.ClusterID{} }, "cluster id is zero"},
		"no group":          {func(r *EpochRecord) { r.Group = ids.GroupID{} }, "group id is zero"},
		"epoch 0":           {func(r *EpochRecord) { r.Epoch = 0 }, "epochs start at 1"},
		"no voters":         {func(r *EpochRecord) { r.Voters = nil }, "0 voters"},
		"A 0":               {func(r *EpochRecord) { r.A = 0 }, "A is 0"},
		"A 6":               {func(r *EpochRecord) { r.A = 6 }, "A is 6"},
		"min ISR 0":         {func(r *EpochRecord) { r.MinISR = 0 }, "min ISR is 0"},
		"odd segment":       {func(r *EpochRecord) { r.SegmentSize = 3 << 20 }, "segment size 3145728"},
		"small segment":     {func(r *EpochRecord) { r.SegmentSize = 1 << 10 }, "segment size 1024"},
		"negative segment":  {func(r *EpochRecord) { r.SegmentSize = -1 << 63 }, "segment size -"},
		"same id":           {func(r *EpochRecord) { r.Voters[1].ID = 101 }, "replica 101 is listed twice"},
		"voter and learner": {func(r *EpochRecord) { r.Learners[0].ID = 101 }, "replica 101 is listed twice"},
		"id 0":              {func(r *EpochRecord) { r.Learners[0].ID = 0 }, "learner has replica id 0"},
		"same slot":         {func(r *EpochRecord) { r.Voters[1].Slot = 1 }, "two voters have slot 1"},
		"slot 6":            {func(r *EpochRecord) { r.Voters[1].Slot = 6 }, "slot 6"},
		"same node":         {func(r *EpochRecord) { r.Voters[1].Node = "n1" }, `two voters are on node "n1"`},
		"no node":           {func(r *EpochRecord) { r.Voters[1].Node = "" }, `node id ""`},
		"long node":         {func(r *EpochRecord) { r.Voters[1].Node = ids.NodeID(strings.Repeat("n", 65)) }, "want 1 to 64"},
		"blank in node":     {func(r *EpochRecord) { r.Voters[1].Node = "n 1" }, `node id "n 1"`},
		"no incarnation":    {func(r *EpochRecord) { r.Voters[1].Incarnation = ids.Incarnation{} }, "voter 102 has no incarnation"},
	} {
		r := goldenEpoch()
		c.change(&r)
		err := r.Validate()
		if !errors.Is(err, ErrEpochRecord) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want one about %q", name, err, c.want)
		}
	}
	r := goldenEpoch()
	r.Epoch, r.A, r.Voters[0].Slot = 0, 9, 9
	if err := r.Validate(); strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("want all three faults at once: %v", err)
	}
	// A lost identity is replaced on its own node and slot.
	r = goldenEpoch()
	r.Learners[0].Node, r.Learners[0].Slot = "n2", 2
	if err := r.Validate(); err != nil {
		t.Errorf("a learner may share slot and node with a dead voter: %v", err)
	}
}

func TestEpochRecordLargestFits(t *testing.T) {
	t.Parallel()
	r := EpochRecord{Cluster: ids.ClusterID{1}, Group: ids.GroupID{1}, Epoch: 1 << 31, A: 5, MinISR: 5, SegmentSize: ids.MaxSegmentSize}
	for i := range 5 {
		m := Member{ID: ids.ReplicaID(1<<63 + uint64(i)), Slot: ids.Slot(i + 1), Node: ids.NodeID(strings.Repeat("x", 63) + string(rune('a'+i))), Incarnation: epochIncarnation(1)}
		r.Voters = append(r.Voters, m)
		m.ID += 10
		r.Learners = append(r.Learners, m)
	}
	if err := r.Validate(); err != nil {
		t.Fatal(err)
	}
	b := r.Encode()
	if len(b) > MaxEpochRecord {
		t.Fatalf("%d bytes", len(b))
	}
	if got, err := DecodeEpochRecord(b); err != nil || got.Hash() != r.Hash() {
		t.Fatal(got, err)
	}
}

// TestEpochRecordDamage flips each bit and cuts at each byte: nothing of it may be taken for a record.
func TestEpochRecordDamage(t *testing.T) {
	t.Parallel()
	b := goldenEpoch().Encode()
	for i := range b {
		for bit := range 8 {
			damaged := slices.Clone(b)
			damaged[i] ^= 1 << bit
			if _, err := DecodeEpochRecord(damaged); !errors.Is(err, ErrEpochRecord) {
				t.Fatalf("byte %d bit %d flipped: %v", i, bit, err)
			}
		}
		if _, err := DecodeEpochRecord(b[:i]); !errors.Is(err, ErrEpochRecord) {
			t.Fatalf("cut to %d bytes: %v", i, err)
		}
	}
	if _, err := DecodeEpochRecord(append(slices.Clone(b), 0)); !errors.Is(err, ErrEpochRecord) {
		t.Fatalf("one byte more: %v", err)
	}
	if _, err := DecodeEpochRecord(make([]byte, MaxEpochRecord+1)); !errors.Is(err, ErrEpochRecord) {
		t.Fatalf("too long: %v", err)
	}
}

// resealEpoch makes the hash of b fit again: what follows the hash check is tested behind it.
func resealEpoch(b []byte) []byte {
	content := b[:len(b)-epochHash]
	return append(slices.Clone(content), epochSum(content)...)
}

// TestEpochRecordRefusesOtherForms: records that are well hashed, but not what Encode would write.
func TestEpochRecordRefusesOtherForms(t *testing.T) {
	t.Parallel()
	good := goldenEpoch().Encode()
	if _, err := DecodeEpochRecord(resealEpoch(good)); err != nil {
		t.Fatal(err)
	}
	const first, second = epochFixed, epochFixed + memberFixed + 2
	for name, change := range map[string]func(b []byte) []byte{
		"version":          func(b []byte) []byte { b[4] = 2; return b },
		"reserved":         func(b []byte) []byte { b[7] = 1; return b },
		"reserved behind":  func(b []byte) []byte { b[55] = 1; return b },
		"too many voters":  func(b []byte) []byte { b[52] = 6; return b },
		"a voter too few":  func(b []byte) []byte { b[52] = 1; return b },
		"a voter too many": func(b []byte) []byte { b[52] = 3; return b },
		"learner missing":  func(b []byte) []byte { b[53] = 2; return b },
		"long node id":     func(b []byte) []byte { b[first+25] = 200; return b },
		"byte too many":    func(b []byte) []byte { return slices.Insert(b, len(b)-epochHash, 0) },
		"members swapped": func(b []byte) []byte {
			one := slices.Clone(b[first:second])
			copy(b[first:second], b[second:])
			copy(b[second:], one)
			return b
		},
	} {
		if r, err := DecodeEpochRecord(resealEpoch(change(slices.Clone(good)))); !errors.Is(err, ErrEpochRecord) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

func TestEpochRecordMembers(t *testing.T) {
	t.Parallel()
	r := goldenEpoch()
	if m, ok := r.Member(104); !ok || m.Node != "n3" || r.IsVoter(104) || !r.IsVoter(101) {
		t.Fatal(m, ok)
	}
	if _, ok := r.Member(103); ok {
		t.Fatal("103 is no member")
	}
	if r.K() != 2 {
		t.Fatal(r.K())
	}
	r.Voters = r.Voters[:1]
	if r.K() != 1 {
		t.Fatal("K counts voters only:", r.K())
	}
}

func TestEpochRecordRoundTrips(t *testing.T) {
	t.Parallel()
	const seed = 11
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		r := EpochRecord{Cluster: ids.ClusterID{byte(1 + rnd.IntN(255))}, Group: ids.GroupID{1}, Epoch: ids.Epoch(1 + rnd.IntN(1<<20)),
			A: uint8(1 + rnd.IntN(5)), MinISR: uint8(1 + rnd.IntN(5)), SegmentSize: 1 << (16 + rnd.IntN(17))}
		for i, slot := range rnd.Perm(5)[:1+rnd.IntN(5)] {
			m := Member{ID: ids.ReplicaID(i + 1), Slot: ids.Slot(slot + 1), Node: ids.NodeID(strings.Repeat("n", 1+slot)), Incarnation: epochIncarnation(byte(i + 1))}
			if i == 0 || rnd.IntN(2) == 0 {
				r.Voters = append(r.Voters, m)
			} else {
				r.Learners = append(r.Learners, m)
			}
		}
		b := r.Encode()
		got, err := DecodeEpochRecord(b)
		if err != nil {
			t.Fatalf("seed %d: %+v: %v", seed, r, err)
		}
		if !bytes.Equal(got.Encode(), b) || len(got.Voters) != len(r.Voters) || len(got.Learners) != len(r.Learners) {
			t.Fatalf("seed %d: %+v came back as %+v", seed, r, got)
		}
	}
}

// FuzzDecodeEpochRecord: whatever is accepted is valid and canonical. The hash is made to fit, so that the fuzzer gets past it.
func FuzzDecodeEpochRecord(f *testing.F) {
	b := goldenEpoch().Encode()
	f.Add(b[:len(b)-epochHash])
	f.Add([]byte{})
	f.Add([]byte(epochMagic))
	f.Fuzz(func(t *testing.T, content []byte) {
		b := append(slices.Clone(content), epochSum(content)...)
		r, err := DecodeEpochRecord(b)
		if err != nil {
			if !errors.Is(err, ErrEpochRecord) {
				t.Fatalf("another kind of error: %v", err)
			}
			return
		}
		if err := r.Validate(); err != nil {
			t.Fatalf("accepted, but %v", err)
		}
		if !bytes.Equal(r.Encode(), b) {
			t.Fatalf("accepted %x, which encodes as %x", b, r.Encode())
		}
	})
}

func epochSum(content []byte) []byte {
	sum := sha256.Sum256(content)
	return sum[:epochHash]
}
