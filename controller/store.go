package controller

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/ledgermq/ledgermq/internal/vfs"
)

// store is the member's one file, DIR/controller.db. Whatever belongs together is written in one synced transaction: a vote is
// never forgotten, and the state is never ahead of or behind its applied index.
//
//	bucket "member": format, identity, membership    bucket "raft": hardstate, applied, compacted
//	bucket "log":    index u64 → term u64, command   bucket "state": key of an entry → its JSON
//
// Every value is preceded by a CRC-32C of bucket, key and value, because bbolt checks only its own meta pages.
// docs/format/controller.md shows the bytes. A store is used by one goroutine.
type store struct {
	db *bbolt.DB
}

const (
	storeFile    = "controller.db"
	storeVersion = 1
)

var (
	bucketMember = []byte("member")
	bucketRaft   = []byte("raft")
	bucketLog    = []byte("log")
	bucketState  = []byte("state")

	keyFormat     = []byte("format")
	keyIdentity   = []byte("identity")
	keyMembership = []byte("membership")
	keyRecover    = []byte("recover")
	keyHardState  = []byte("hardstate")
	keyApplied    = []byte("applied")
	keyCompacted  = []byte("compacted")
	keyConf       = []byte("confstate")

	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// formatEntry says what wrote the file.
type formatEntry struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
}

// identity is drawn when the data folder is made. A wiped folder is another member.
type identity struct {
	ID      string `json:"id"`
	RaftID  uint64 `json:"raftID"`
	Address string `json:"address,omitempty"` // "": the options tell it
	Learner bool   `json:"learner,omitempty"`
}

// membership ties the ids of the options to identities. It is decided once, when the cluster is founded.
type membership struct {
	Token   hexID      `json:"token"` // random; Raft messages of another founding are refused
	Members []identity `json:"members"`
	Level   Level      `json:"level,omitempty"` // feature level that the cluster begins with; 0: 1
	// Changed: the members are not those of the founding any more. It is not in the file.
	Changed bool `json:"-"`
}

// position is an index and its term.
type position struct{ Index, Term uint64 }

// firstPosition is where every member's log starts: what comes before it is the empty state, which all have.
var firstPosition = position{Index: 1, Term: 1}

// loaded is everything in the file.
type loaded struct {
	identity   identity
	recover    bool        // the file was made for a recovery
	membership *membership // nil: not adopted yet; then nothing below is there
	hard       *raftpb.HardState
	applied    position
	compacted  position
	log        []*raftpb.Entry
	conf       *raftpb.ConfState // as of applied; nil: the members of the founding vote
	state      *State
}

// openStore opens the member's file in dir, or makes it, for a recovery when recovers is set, for the identity that fresh returns. fresh's
// error is returned when there is no file.
func openStore(dir string, recovers bool, fresh func() (identity, error)) (*store, *loaded, error) {
	// Durable, parents too: with the folder a crash would take the votes that are in it.
	if err := vfs.MkdirDurable(vfs.OS, dir); err != nil {
		return nil, nil, &FolderError{dir, err.Error()}
	}
	name := filepath.Join(dir, storeFile)
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		id, err := fresh()
		if err != nil {
			return nil, nil, err
		}
		if err := createStore(dir, name, id, recovers); err != nil {
			return nil, nil, err
		}
	case err != nil:
		return nil, nil, &FolderError{dir, err.Error()}
	case info.Size() == 0:
		return nil, nil, &DamageError{name, "its start", "the file is empty; it is made whole or not at all"}
	}
	return openExisting(dir, name)
}

// createStore makes the file whole under another name, so that a crash leaves a file with an identity or none.
func createStore(dir, name string, id identity, recovers bool) (err error) {
	temp := name + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return &FolderError{dir, err.Error()}
	}
	db, err := bbolt.Open(temp, 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		return &FolderError{dir, fmt.Sprintf("its file cannot be made: %v", err)}
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, b := range [][]byte{bucketMember, bucketRaft, bucketLog, bucketState} {
			if _, err := tx.CreateBucket(b); err != nil {
				return err
			}
		}
		if err := putJSON(tx, bucketMember, keyFormat, formatEntry{"ledgermq controller", storeVersion}); err != nil {
			return err
		}
		if recovers {
			if err := putJSON(tx, bucketMember, keyRecover, true); err != nil {
				return err
			}
		}
		return putJSON(tx, bucketMember, keyIdentity, id)
	})
	if err = errors.Join(err, db.Close()); err == nil {
		if err = os.Rename(temp, name); err == nil {
			err = vfs.OS.SyncDir(dir)
		}
	}
	if err != nil {
		return &FolderError{dir, fmt.Sprintf("its file cannot be made: %v", err)}
	}
	return nil
}

func openExisting(dir, name string) (st *store, l *loaded, err error) {
	// bbolt maps the file and panics, or faults behind its end, on what it cannot read.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	var db *bbolt.DB
	var file *os.File // closed here when bbolt panics with it in hand; its mapping, and so the lock, may stay until the process ends
	defer func() {
		if r := recover(); r != nil {
			err = &DamageError{name, "a page", fmt.Sprint(r)}
		}
		if err != nil {
			st, l = nil, nil
			if db != nil {
				closeQuietly(db)
			}
			if file != nil {
				_ = file.Close()
			}
		}
	}()
	db, err = bbolt.Open(name, 0o600, &bbolt.Options{
		Timeout: 500 * time.Millisecond,
		OpenFile: func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
			file, err = os.OpenFile(name, flag, mode)
			return file, err
		},
	})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, nil, &FolderError{dir, "it is in use by another process: stop that one, or give this one a folder of its own"}
	case errors.As(err, new(*os.PathError)):
		return nil, nil, &FolderError{dir, err.Error()}
	case err != nil:
		return nil, nil, &DamageError{name, "its meta pages", err.Error()}
	}
	l = &loaded{}
	err = db.View(func(tx *bbolt.Tx) error { return l.read(tx) })
	var level *LevelError
	var place *placeError
	if errors.As(err, &level) {
		err = &FolderError{dir, level.Error()}
	} else if errors.As(err, &place) {
		err = &DamageError{name, place.place, place.err.Error()}
	}
	return &store{db}, l, err
}

// closeQuietly closes a file whose content cannot be trusted.
func closeQuietly(db *bbolt.DB) {
	defer func() { _ = recover() }()
	_ = db.Close()
}

func (s *store) close() error { return s.db.Close() }

// placeError says where in the file something is wrong.
type placeError struct {
	place string
	err   error
}

func (e *placeError) Error() string { return e.place + ": " + e.err.Error() }
func (e *placeError) Unwrap() error { return e.err }

func place(bucket, key []byte, err error) error {
	if err == nil {
		return nil
	}
	if string(bucket) == string(bucketLog) && len(key) == 8 {
		return &placeError{fmt.Sprintf("log/%d", binary.BigEndian.Uint64(key)), err}
	}
	return &placeError{fmt.Sprintf("%s/%s", bucket, key), err}
}

func (l *loaded) read(tx *bbolt.Tx) error {
	for _, b := range [][]byte{bucketMember, bucketRaft, bucketLog, bucketState} {
		if tx.Bucket(b) == nil {
			return &placeError{"bucket " + string(b), errors.New("it is missing")}
		}
	}
	var format formatEntry
	if err := getJSON(tx, bucketMember, keyFormat, &format); err != nil {
		return err
	}
	if format.Version != storeVersion {
		return &placeError{"member/format", fmt.Errorf("version %d: this program reads version %d", format.Version, storeVersion)}
	}
	if err := getJSON(tx, bucketMember, keyIdentity, &l.identity); err != nil {
		return err
	}
	l.recover = tx.Bucket(bucketMember).Get(keyRecover) != nil
	if tx.Bucket(bucketMember).Get(keyMembership) == nil {
		return nil
	}
	l.membership = &membership{}
	if err := getJSON(tx, bucketMember, keyMembership, l.membership); err != nil {
		return err
	}
	hard, err := getNumbers(tx, keyHardState, 3)
	if err != nil {
		return err
	}
	l.hard = &raftpb.HardState{Term: &hard[0], Vote: &hard[1], Commit: &hard[2]}
	for _, p := range []struct {
		key []byte
		to  *position
	}{{keyApplied, &l.applied}, {keyCompacted, &l.compacted}} {
		n, err := getNumbers(tx, p.key, 2)
		if err != nil {
			return err
		}
		*p.to = position{n[0], n[1]}
	}
	if tx.Bucket(bucketRaft).Get(keyConf) != nil {
		b, err := get(tx, bucketRaft, keyConf)
		if err != nil {
			return err
		}
		l.conf = &raftpb.ConfState{}
		if err := proto.Unmarshal(b, l.conf); err != nil {
			return place(bucketRaft, keyConf, err)
		}
	}
	if err := l.readLog(tx); err != nil {
		return err
	}
	return l.readState(tx)
}

func (l *loaded) readLog(tx *bbolt.Tx) error {
	next := l.compacted.Index + 1
	err := tx.Bucket(bucketLog).ForEach(func(k, v []byte) error {
		v, err := unseal(bucketLog, k, v)
		if err != nil {
			return place(bucketLog, k, err)
		}
		if len(k) != 8 || len(v) < 8 || binary.BigEndian.Uint64(k) != next {
			return place(bucketLog, k, fmt.Errorf("want entry %d there", next))
		}
		index, term := next, binary.BigEndian.Uint64(v)
		e := &raftpb.Entry{Index: &index, Term: &term}
		if len(v) > 8 && v[8] == confMark {
			e.Type, e.Data = raftpb.EntryConfChangeV2.Enum(), append([]byte(nil), v[9:]...)
		} else if len(v) > 8 {
			e.Data = append([]byte(nil), v[8:]...)
		}
		l.log = append(l.log, e)
		next++
		return nil
	})
	if err != nil {
		return err
	}
	// Invariant: compacted <= applied <= commit <= last.
	if l.compacted.Index > l.applied.Index || l.applied.Index > l.hard.GetCommit() || l.hard.GetCommit() >= next {
		return &placeError{"raft", fmt.Errorf("compacted %d, applied %d, committed %d, last %d cannot be", l.compacted.Index, l.applied.Index, l.hard.GetCommit(), next-1)}
	}
	return nil
}

func (l *loaded) readState(tx *bbolt.Tx) error {
	var all []entry
	err := tx.Bucket(bucketState).ForEach(func(k, v []byte) error {
		v, err := unseal(bucketState, k, v)
		if err != nil {
			return place(bucketState, k, err)
		}
		all = append(all, entry{string(k), append([]byte(nil), v...)})
		return nil
	})
	if err != nil {
		return err
	}
	l.state, err = stateOf(all)
	if err != nil {
		return &placeError{"state", err}
	}
	return nil
}

// adopt writes the membership and the start of log and state. At a founding that is the same on every member; after a recovery there is
// one member; one that is added later begins with nothing, and gets a snapshot.
func (s *store) adopt(m *membership, state *State) error {
	first := firstPosition
	if m.Changed {
		first = position{}
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		if tx.Bucket(bucketMember).Get(keyMembership) != nil {
			return errors.New("controller: a membership was adopted before")
		}
		return errors.Join(
			putJSON(tx, bucketMember, keyMembership, m),
			putNumbers(tx, keyHardState, first.Term, 0, first.Index),
			putNumbers(tx, keyApplied, first.Index, first.Term),
			putNumbers(tx, keyCompacted, first.Index, first.Term),
			putEntries(tx, state.entries()))
	})
}

// batch is what one turn of the member writes.
type batch struct {
	hard     *raftpb.HardState // nil: unchanged
	entries  []*raftpb.Entry   // appended; they replace what is at their indexes and behind
	snapshot *position         // not nil: the log is dropped and starts here, and changes is the whole state
	changes  []entry
	applied  *position         // nil: unchanged
	conf     *raftpb.ConfState // not nil: the members that raft counts changed
	compact  *position         // not nil: entries up to here are dropped
}

func (b *batch) empty() bool {
	return raft.IsEmptyHardState(b.hard) && len(b.entries) == 0 && b.snapshot == nil && b.applied == nil && b.compact == nil
}

// write makes b durable, all of it or nothing.
func (s *store) write(b *batch) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		if b.snapshot != nil {
			for _, name := range [][]byte{bucketLog, bucketState} {
				if err := tx.DeleteBucket(name); err != nil {
					return err
				}
				if _, err := tx.CreateBucket(name); err != nil {
					return err
				}
			}
			if err := putNumbers(tx, keyCompacted, b.snapshot.Index, b.snapshot.Term); err != nil {
				return err
			}
		}
		if err := putLog(tx, b.entries); err != nil {
			return err
		}
		if !raft.IsEmptyHardState(b.hard) {
			if err := putNumbers(tx, keyHardState, b.hard.GetTerm(), b.hard.GetVote(), b.hard.GetCommit()); err != nil {
				return err
			}
		}
		if err := putEntries(tx, b.changes); err != nil {
			return err
		}
		if b.applied != nil {
			if err := putNumbers(tx, keyApplied, b.applied.Index, b.applied.Term); err != nil {
				return err
			}
		}
		if b.conf != nil {
			value, err := proto.Marshal(b.conf)
			if err != nil {
				return err
			}
			if err := tx.Bucket(bucketRaft).Put(keyConf, seal(bucketRaft, keyConf, value)); err != nil {
				return err
			}
		}
		if b.compact != nil {
			return compactLog(tx, *b.compact)
		}
		return nil
	})
}

func putLog(tx *bbolt.Tx, entries []*raftpb.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	log := tx.Bucket(bucketLog)
	for _, e := range entries {
		v := binary.BigEndian.AppendUint64(nil, e.GetTerm())
		switch e.GetType() {
		case raftpb.EntryNormal:
		case raftpb.EntryConfChangeV2:
			v = append(v, confMark)
		default:
			return fmt.Errorf("controller: entry %d has type %v: this program does not know it", e.GetIndex(), e.GetType())
		}
		k := indexKey(e.GetIndex())
		if err := log.Put(k, seal(bucketLog, k, append(v, e.Data...))); err != nil {
			return err
		}
	}
	// What was behind the new entries was replaced by them.
	return deleteLog(tx, entries[len(entries)-1].GetIndex()+1, math.MaxUint64)
}

// deleteLog drops the entries from first to last. The keys are gathered first: a bbolt cursor may skip one after a delete.
func deleteLog(tx *bbolt.Tx, first, last uint64) error {
	var keys [][]byte
	c := tx.Bucket(bucketLog).Cursor()
	for k, _ := c.Seek(indexKey(first)); k != nil && binary.BigEndian.Uint64(k) <= last; k, _ = c.Next() {
		keys = append(keys, append([]byte(nil), k...))
	}
	for _, k := range keys {
		if err := tx.Bucket(bucketLog).Delete(k); err != nil {
			return err
		}
	}
	return nil
}

func compactLog(tx *bbolt.Tx, to position) error {
	if err := deleteLog(tx, 0, to.Index); err != nil {
		return err
	}
	return putNumbers(tx, keyCompacted, to.Index, to.Term)
}

func putEntries(tx *bbolt.Tx, entries []entry) error {
	b := tx.Bucket(bucketState)
	for _, e := range entries {
		if e.value == nil {
			if err := b.Delete([]byte(e.key)); err != nil {
				return err
			}
			continue
		}
		if err := b.Put([]byte(e.key), seal(bucketState, []byte(e.key), e.value)); err != nil {
			return err
		}
	}
	return nil
}

func indexKey(i uint64) []byte { return binary.BigEndian.AppendUint64(nil, i) }

// seal puts the checksum in front of a value.
func seal(bucket, key, value []byte) []byte {
	out := make([]byte, 4, 4+len(value))
	binary.BigEndian.PutUint32(out, valueSum(bucket, key, value))
	return append(out, value...)
}

// unseal checks and removes the checksum. The result aliases sealed.
func unseal(bucket, key, sealed []byte) ([]byte, error) {
	if len(sealed) < 4 || binary.BigEndian.Uint32(sealed) != valueSum(bucket, key, sealed[4:]) {
		return nil, errors.New("its checksum is wrong")
	}
	return sealed[4:], nil
}

func valueSum(bucket, key, value []byte) uint32 {
	sum := crc32.Update(0, castagnoli, bucket)
	sum = crc32.Update(sum, castagnoli, []byte{0})
	sum = crc32.Update(sum, castagnoli, key)
	sum = crc32.Update(sum, castagnoli, []byte{0})
	return crc32.Update(sum, castagnoli, value)
}

func get(tx *bbolt.Tx, bucket, key []byte) ([]byte, error) {
	v := tx.Bucket(bucket).Get(key)
	if v == nil {
		return nil, place(bucket, key, errors.New("it is missing"))
	}
	v, err := unseal(bucket, key, v)
	return v, place(bucket, key, err)
}

func putJSON(tx *bbolt.Tx, bucket, key []byte, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return tx.Bucket(bucket).Put(key, seal(bucket, key, b))
}

func getJSON(tx *bbolt.Tx, bucket, key []byte, v any) error {
	b, err := get(tx, bucket, key)
	if err != nil {
		return err
	}
	return place(bucket, key, json.Unmarshal(b, v))
}

func putNumbers(tx *bbolt.Tx, key []byte, numbers ...uint64) error {
	var b []byte
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return tx.Bucket(bucketRaft).Put(key, seal(bucketRaft, key, b))
}

func getNumbers(tx *bbolt.Tx, key []byte, count int) ([]uint64, error) {
	b, err := get(tx, bucketRaft, key)
	if err != nil {
		return nil, err
	}
	if len(b) != 8*count {
		return nil, place(bucketRaft, key, fmt.Errorf("it has %d bytes", len(b)))
	}
	out := make([]uint64, count)
	for i := range out {
		out[i] = binary.BigEndian.Uint64(b[8*i:])
	}
	return out, nil
}
