package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// A snapshot file is a header and the canonical form. The header's hash is that of the canonical form, State.Hash: so two
// replicas at one index have equal files, and one number checks a file and compares replicas.
//
//	0 "LMQN" | 4 version u16 = 1 | 6 header size u16 = 128 | 8 group id 16
//	24 applied index u64 | 32 term u64 | 40 log offset i64 | 48 chain u32 | 52 zero 4 | 56 size of the canonical form u64
//	64 SHA-256 of the canonical form 32 | 96 zero 28 | 124 CRC-32C of bytes 0 to 124
const (
	snapshotMagic   = "LMQN"
	snapshotVersion = 1
	snapshotHeader  = 128
	snapshotPrefix  = "state-"
	snapshotSuffix  = ".snap"
	generations     = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// SnapshotMeta tells what a snapshot file holds.
type SnapshotMeta struct {
	Group  ids.GroupID
	Index  ids.Index          // of the last frame that is applied in it
	Term   ids.Term           // of that frame
	Offset ids.PhysicalOffset // where the frame after it begins
	Chain  uint32             // chain value of that frame
	Size   int64              // bytes of the canonical form; set by WriteSnapshot and LoadNewest
	Hash   [32]byte           // of the canonical form; set by WriteSnapshot and LoadNewest

	// Damaged names newer files that could not be used; set by LoadNewest. Each is worth an error line in the log.
	Damaged []error
}

// FileSize is how many bytes the file of m has.
func (m *SnapshotMeta) FileSize() int64 { return snapshotHeader + m.Size }

// SnapshotFile is the name of the file with the snapshot of index i in dir.
func SnapshotFile(dir string, i ids.Index) string { return snapshotName(dir, i) }

func snapshotName(dir string, i ids.Index) string {
	return filepath.Join(dir, fmt.Sprintf("%s%020d%s", snapshotPrefix, i, snapshotSuffix))
}

// snapshotIndex is the reverse of snapshotName for a base name.
func snapshotIndex(base string) (ids.Index, bool) {
	digits, ok := strings.CutPrefix(base, snapshotPrefix)
	if digits, ok = cutSuffix(digits, snapshotSuffix, ok); !ok || len(digits) != 20 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return ids.Index(n), err == nil
}

func cutSuffix(s, suffix string, ok bool) (string, bool) {
	s, found := strings.CutSuffix(s, suffix)
	return s, ok && found
}

// WriteSnapshot writes s, which nobody changes meanwhile (a clone), to a file of dir named by m.Index, and durably so when
// it returns. Then it removes generations older than the newest two. It returns m with size and hash. After an error the
// older generations are as they were.
func WriteSnapshot(fs vfs.FS, dir string, m SnapshotMeta, s *State) (SnapshotMeta, error) {
	name := snapshotName(dir, m.Index)
	if err := writeSnapshot(fs, dir, name, &m, s); err != nil {
		return m, fmt.Errorf("write state snapshot %s: %w", name, err)
	}
	if err := removeOld(fs, dir, m.Index); err != nil {
		return m, fmt.Errorf("remove old state snapshots: %w", err)
	}
	return m, nil
}

// fileSink writes a file front to back and hashes what it writes.
type fileSink struct {
	f   vfs.File
	at  int64
	sum interface{ Write(p []byte) (int, error) }
}

func (w *fileSink) Write(p []byte) (int, error) {
	n, err := w.f.WriteAt(p, w.at)
	w.at += int64(n)
	if err != nil {
		return n, err
	}
	return w.sum.Write(p)
}

func writeSnapshot(fs vfs.FS, dir, name string, m *SnapshotMeta, s *State) (err error) {
	if err := vfs.MkdirDurable(fs, dir); err != nil {
		return err
	}
	temp := name + ".tmp"
	f, err := fs.Create(temp)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
			_ = fs.Remove(temp) // the next start removes it otherwise
		}
	}()
	sum := sha256.New()
	w := &fileSink{f: f, at: snapshotHeader, sum: sum}
	if err := s.Snapshot(w); err != nil {
		return err
	}
	m.Size, m.Hash = w.at-snapshotHeader, [32]byte(sum.Sum(nil))
	if _, err := f.WriteAt(m.header(), 0); err != nil {
		return err
	}
	if err := f.SyncData(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := fs.Rename(temp, name); err != nil {
		return err
	}
	return fs.SyncDir(dir)
}

func (m *SnapshotMeta) header() []byte {
	h := make([]byte, snapshotHeader)
	copy(h, snapshotMagic)
	binary.BigEndian.PutUint16(h[4:], snapshotVersion)
	binary.BigEndian.PutUint16(h[6:], snapshotHeader)
	copy(h[8:24], m.Group[:])
	binary.BigEndian.PutUint64(h[24:], uint64(m.Index))
	binary.BigEndian.PutUint64(h[32:], uint64(m.Term))
	binary.BigEndian.PutUint64(h[40:], uint64(m.Offset))
	binary.BigEndian.PutUint32(h[48:], m.Chain)
	binary.BigEndian.PutUint64(h[56:], uint64(m.Size))
	copy(h[64:96], m.Hash[:])
	binary.BigEndian.PutUint32(h[124:], crc32.Checksum(h[:124], castagnoli))
	return h
}

// ParseSnapshot checks and reads a whole snapshot file. It returns an error that tells what is wrong with it.
func ParseSnapshot(b []byte) (*State, SnapshotMeta, error) {
	m, err := checkSnapshot(b)
	if err != nil {
		return nil, m, err
	}
	s, err := decodeState(b[snapshotHeader:])
	return s, m, err
}

// checkSnapshot reads the header of a whole file and compares the checksums.
func checkSnapshot(b []byte) (SnapshotMeta, error) {
	m, err := ParseSnapshotHeader(b)
	if err != nil {
		return m, err
	}
	body := b[snapshotHeader:]
	if int64(len(body)) != m.Size || sha256.Sum256(body) != m.Hash {
		return m, errors.New("its content is damaged")
	}
	return m, nil
}

// SnapshotHeaderSize is how many bytes of a snapshot file ParseSnapshotHeader needs.
const SnapshotHeaderSize = snapshotHeader

// ParseSnapshotHeader reads the beginning of a snapshot file, and says nothing of the rest.
func ParseSnapshotHeader(b []byte) (SnapshotMeta, error) {
	var m SnapshotMeta
	if len(b) < snapshotHeader || string(b[:4]) != snapshotMagic {
		return m, errors.New("it is none")
	}
	h := b[:snapshotHeader]
	if v := binary.BigEndian.Uint16(h[4:]); v != snapshotVersion {
		return m, fmt.Errorf("it has version %d, this program knows %d", v, snapshotVersion)
	}
	if crc32.Checksum(h[:124], castagnoli) != binary.BigEndian.Uint32(h[124:]) || binary.BigEndian.Uint16(h[6:]) != snapshotHeader {
		return m, errors.New("its header is damaged")
	}
	m = SnapshotMeta{
		Group:  ids.GroupID(h[8:24]),
		Index:  ids.Index(binary.BigEndian.Uint64(h[24:])),
		Term:   ids.Term(binary.BigEndian.Uint64(h[32:])),
		Offset: ids.PhysicalOffset(binary.BigEndian.Uint64(h[40:])),
		Chain:  binary.BigEndian.Uint32(h[48:]),
		Size:   int64(binary.BigEndian.Uint64(h[56:])),
		Hash:   [32]byte(h[64:96]),
	}
	if !bytes.Equal(h[52:56], make([]byte, 4)) || !bytes.Equal(h[96:124], make([]byte, 28)) {
		return m, errors.New("its header has unknown fields")
	}
	if m.Size < 0 {
		return m, errors.New("its content has an impossible size")
	}
	return m, nil
}

// LoadNewest reads the newest snapshot of dir that is whole and belongs to the group; unusable newer ones are named in
// SnapshotMeta.Damaged. It returns ErrNoSnapshot, wrapped with what is wrong with each file, when there is none: a fresh
// group, or one whose log still reaches back to its start, then begins with New; after the first cut of the log's front
// the replica must not serve before it has a peer's snapshot.
func LoadNewest(fs vfs.FS, dir string, group ids.GroupID) (*State, SnapshotMeta, error) {
	list, err := listSnapshots(fs, dir)
	if err != nil {
		return nil, SnapshotMeta{}, fmt.Errorf("list state snapshots: %w", err)
	}
	var damaged []error
	for _, i := range slices.Backward(list) {
		name := snapshotName(dir, i)
		s, m, err := LoadSnapshot(fs, name, group)
		if err == nil && m.Index != i {
			err = &SnapshotError{File: name, Err: fmt.Errorf("it is of index %d", m.Index)}
		}
		if err == nil {
			m.Damaged = damaged
			return s, m, nil
		}
		var fault *SnapshotError
		if !errors.As(err, &fault) {
			err = &SnapshotError{File: name, Err: err}
		}
		damaged = append(damaged, err)
	}
	if len(damaged) == 0 {
		return nil, SnapshotMeta{}, ErrNoSnapshot
	}
	return nil, SnapshotMeta{Damaged: damaged}, fmt.Errorf("%w: %w", ErrNoSnapshot, errors.Join(damaged...))
}

// LoadSnapshot reads one file, which must be whole and of the group.
func LoadSnapshot(fs vfs.FS, name string, group ids.GroupID) (*State, SnapshotMeta, error) {
	b, err := vfs.ReadFile(fs, name)
	if err != nil {
		return nil, SnapshotMeta{}, err
	}
	s, m, err := ParseSnapshot(b)
	if err == nil && m.Group != group {
		err = fmt.Errorf("it belongs to group %v, not to %v", m.Group, group)
	}
	if err != nil {
		return nil, m, &SnapshotError{File: name, Err: err}
	}
	return s, m, nil
}

// listSnapshots returns the indexes of the files of dir, ascending. A missing folder has none.
func listSnapshots(fs vfs.FS, dir string) ([]ids.Index, error) {
	names, err := fs.List(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []ids.Index
	for _, n := range names {
		if i, ok := snapshotIndex(n); ok {
			list = append(list, i)
		}
	}
	slices.Sort(list)
	return list, nil
}

// removeOld keeps the newest two generations that are whole, after newest was written. Files of a higher index cannot be
// of use to a replica that has just written a lower one: LoadNewest has refused them. Temporary files of an earlier process
// go too.
func removeOld(fs vfs.FS, dir string, newest ids.Index) error {
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if strings.HasPrefix(n, snapshotPrefix) && strings.HasSuffix(n, snapshotSuffix+".tmp") {
			err = errors.Join(err, fs.Remove(filepath.Join(dir, n)))
		}
	}
	list, e := listSnapshots(fs, dir)
	if e != nil {
		return errors.Join(err, e)
	}
	whole := 0
	for _, i := range slices.Backward(list) {
		name := snapshotName(dir, i)
		if i > newest || whole >= generations {
			err = errors.Join(err, fs.Remove(name))
			continue
		}
		b, e := vfs.ReadFile(fs, name)
		if e == nil {
			_, e = checkSnapshot(b)
		}
		if e == nil {
			whole++
		}
	}
	return err
}
