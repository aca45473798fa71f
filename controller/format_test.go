package controller

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// goldenCommands are one of each type.
func goldenCommands() []struct {
	name string
	c    Command
} {
	return []struct {
		name string
		c    Command
	}{
		{"found", &foundCommand{Cluster: hexOf(0xc1)}},
		{"register", &registerCommand{Node: "n1", CheckCode: hexOf(0xcc), Session: hexOf(0x5e)}},
		{"report", &reportCommand{Node: "n1", Session: hexOf(0x5e),
			Addresses: &addresses{Peer: "127.0.0.1:10921", Clients: map[string]string{"g1": "127.0.0.1:10911"}},
			Replicas:  []replicaFacts{{Group: hexOf(0x61), Replica: 1, Incarnation: hexOf(0x1c), Starts: 1}},
			Masters:   []masterFacts{{hexOf(0x61), 1, ids.MakeTerm(1, 2)}}}},
		{"create-group", &createGroupCommand{ID: hexOf(0x61), Name: "g1", Answers: 2, Members: 3, Nodes: []ids.NodeID{"n1", "n2", "n3"}, MinISR: 2, SegmentSize: 1 << 30}},
		{"issue-epoch", &issueEpochCommand{Group: hexOf(0x61), Epoch: 1, Voters: voterSet{1, 2}, Reason: "replica 3 on node n3 is gone", Millis: 1700000000000}},
		{"give-up", &giveUpCommand{Group: hexOf(0x61), Replica: 3, Heir: "n4", Reason: "its disk is dead"}},
		{"renew", &renewCommand{Group: hexOf(0x61), Replica: 3, Epoch: 2}},
		{"raise-level", &raiseLevelCommand{2}},
		{"set-mode", &setModeCommand{Group: hexOf(0x61), Answers: 2, Members: 4, MinISR: 2, Add: []ids.NodeID{"n4", "n5"}, Learners: []ids.NodeID{"n5"}, Remove: []ids.ReplicaID{3}}},
		{"keep-learner", &keepLearnerCommand{Group: hexOf(0x61), Replica: 3, Learner: true}},
		{"prefer", &preferCommand{Group: hexOf(0x61), Node: "n2"}},
		{"remove-node", &removeNodeCommand{Node: "n4"}},
		{"namesrv", &namesrvCommand{Before: []string{"10.0.0.1:9876"}, Now: []string{"10.0.0.1:9876", "10.0.0.2:9876"}}},
		{"remove-group", &removeGroupCommand{Group: hexOf(0x61), Millis: 1700000000000}},
		{"unclean", &uncleanCommand{Group: hexOf(0x61), Epoch: 2, Winner: 2, Last: 95, Terms: []termStart{{ids.MakeTerm(1, 1), 1}}, Reason: "the site is gone", Millis: 1700000000000}},
	}
}

var goldenRequest = requestID{Member: 0x0102030405060708, Number: 9}

// golden compares got with testdata/name; LEDGERMQ_UPDATE_GOLDEN=1 writes it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	text := hex.Dump(got)
	if os.Getenv("LEDGERMQ_UPDATE_GOLDEN") != "" {
		must(t, os.MkdirAll("testdata", 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if text != string(want) {
		t.Errorf("%s: the format changed\ngot\n%swant\n%s", name, text, want)
	}
	page, err := os.ReadFile(filepath.Join("..", "docs", "format", "controller.md"))
	must(t, err)
	if !strings.Contains(string(page), strings.TrimSpace(string(want))) {
		t.Errorf("docs/format/controller.md does not show the bytes of %s", name)
	}
}

func TestGoldenCommands(t *testing.T) {
	t.Parallel()
	for _, g := range goldenCommands() {
		b := encodeCommand(goldenRequest, g.c)
		golden(t, "command-"+g.name+".hex", b)
		id, c, err := decodeCommand(b)
		if err != nil || id != goldenRequest || !bytes.Equal(encodeCommand(id, c), b) {
			t.Errorf("%s: %v %v %v", g.name, id, c, err)
		}
	}
}

// goldenState is what the golden commands make, with two more nodes registered.
func goldenState(t testing.TB) *State {
	s := NewState()
	g := goldenCommands()
	for _, c := range []Command{
		g[0].c, g[1].c,
		&registerCommand{Node: "n2", CheckCode: hexOf(0xcd), Session: hexOf(0x5f)},
		&registerCommand{Node: "n3", CheckCode: hexOf(0xce), Session: hexOf(0x60)},
		g[3].c, g[2].c,
		&reportCommand{Node: "n2", Session: hexOf(0x5f), Replicas: []replicaFacts{{Group: hexOf(0x61), Replica: 2, Incarnation: hexOf(0x2c), Starts: 1}}},
		&reportCommand{Node: "n3", Session: hexOf(0x60), Replicas: []replicaFacts{{Group: hexOf(0x61), Replica: 3, Incarnation: hexOf(0x3c), Starts: 1}}},
		g[4].c,
	} {
		must(t, s.Apply(c))
	}
	return s
}

func TestGoldenSnapshot(t *testing.T) {
	t.Parallel()
	golden(t, "snapshot.hex", encodeSnapshot(goldenState(t)))
}

// The file's values, as they stand behind their checksums.
func TestGoldenStore(t *testing.T) {
	t.Parallel()
	value := func(bucket, key, value []byte) []byte { return seal(bucket, key, value) }
	golden(t, "value-hardstate.hex", value(bucketRaft, keyHardState, []byte{0, 0, 0, 0, 0, 0, 0, 5, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 42}))
	entryValue := binary.BigEndian.AppendUint64(nil, 5)
	entryValue = append(entryValue, encodeCommand(goldenRequest, goldenCommands()[0].c)...)
	golden(t, "value-log-entry.hex", value(bucketLog, indexKey(42), entryValue))
	golden(t, "value-state-node.hex", value(bucketState, []byte("node/n1"), goldenState(t).value("node/n1")))
}

func TestUnknownCommands(t *testing.T) {
	t.Parallel()
	good := encodeCommand(goldenRequest, goldenCommands()[0].c)
	change := func(at int, to byte) []byte {
		b := bytes.Clone(good)
		b[at] = to
		return b
	}
	var unknown *UnknownCommandError
	if _, _, err := decodeCommand(change(0, 2)); !errors.As(err, &unknown) || unknown.Version != 2 {
		t.Errorf("version 2: %v", err)
	}
	for _, kind := range []byte{0, 13, 14, 15, 99} {
		if _, _, err := decodeCommand(change(1, kind)); !errors.As(err, &unknown) || unknown.Type != kind {
			t.Errorf("type %d: %v", kind, err)
		}
	}
	newer := append(bytes.Clone(good[:len(good)-1]), `,"extra":1}`...)
	if _, _, err := decodeCommand(newer); err == nil {
		t.Error("a field that this version does not know was passed over")
	}
}

// What another version wrote or says is told by its version, and not taken.
func TestUnknownVersions(t *testing.T) {
	t.Parallel()
	says := func(what string, err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	b := encodeSnapshot(goldenState(t))
	b[7] = 2
	_, err := decodeSnapshot(b)
	says("a snapshot", err, "version 2, this program reads version 1")

	dir, _ := madeStore(t)
	st, _, err := openStore(dir, false, nil)
	must(t, err)
	must(t, st.db.Update(func(tx *bbolt.Tx) error {
		return putJSON(tx, bucketMember, keyFormat, formatEntry{"ledgermq controller", 2})
	}))
	must(t, st.close())
	_, err = reopen(dir)
	says("a file", err, "damaged at member/format: version 2: this program reads version 1")

	near, far := net.Pipe()
	defer near.Close()
	must(t, near.SetDeadline(time.Now().Add(10*time.Second)))
	served := make(chan error, 1)
	go func() {
		defer far.Close()
		served <- (&secretCredentials{}).serverHandshake(far)
	}()
	hello := append([]byte(handshakeMagic), handshakeVersion+1, 0)
	if _, err := near.Write(append(hello, make([]byte, 32)...)); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(near)
	if err != nil || len(answer) != 6 || answer[5] != statusProtocol {
		t.Errorf("a handshake of version %d is answered %x, %v", handshakeVersion+1, answer, err)
	}
	says("the server of that handshake", <-served, "another version")
	says("the client of that handshake", statusError(answer[5]), "another version")
}

func FuzzCommand(f *testing.F) {
	for _, g := range goldenCommands() {
		f.Add(encodeCommand(goldenRequest, g.c))
	}
	f.Add([]byte{1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '{', '}'})
	f.Fuzz(func(t *testing.T, b []byte) {
		id, c, err := decodeCommand(b)
		if err != nil {
			return
		}
		if again := encodeCommand(id, c); !bytes.Equal(again, b) {
			t.Fatalf("decoded %q is encoded as %q", b, again)
		}
		s := foundedState(t, 3)
		before := s.Hash()
		if err := s.Apply(c); err != nil && s.Hash() != before {
			t.Fatalf("%+v was refused and changed the state", c)
		}
		if err := s.Check(); err != nil {
			t.Fatalf("after %+v: %v", c, err)
		}
	})
}

func FuzzSnapshot(f *testing.F) {
	f.Add(encodeSnapshot(NewState()))
	f.Add(encodeSnapshot(foundedState(f, 2)))
	f.Add(encodeSnapshot(goldenState(f)))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeSnapshot(b)
		if err == nil && !bytes.Equal(encodeSnapshot(s), b) {
			t.Fatal("a snapshot is encoded otherwise than it was read")
		}
	})
}

func FuzzStateEntry(f *testing.F) {
	for _, e := range goldenState(f).entries() {
		f.Add(e.key, e.value)
	}
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		s, err := stateOf([]entry{{keyCluster, mustJSON(clusterEntry{NextReplica: 9})}, {key, value}})
		if err != nil {
			return
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
	})
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// madeStore makes a folder with an adopted membership and some log, and returns the file's name.
func madeStore(t *testing.T) (dir, name string) {
	t.Helper()
	dir = t.TempDir()
	st, l, err := openStore(dir, false, func() (identity, error) { return identity{ID: "c1", RaftID: 7}, nil })
	must(t, err)
	must(t, st.adopt(&membership{Token: hexOf(1), Members: []identity{{ID: "c1", RaftID: 7}}}, NewState()))
	must(t, st.db.View(l.read))
	o := Options{ElectionTicks: 10, CompactEvery: 100}
	m, err := newMember(st, l, &o)
	must(t, err)
	_, err = m.advance()
	must(t, err)
	for i, g := range goldenCommands() {
		if n, ok := g.c.(needy); ok {
			if level, what := n.needs(); m.state.need(level, what) != nil {
				continue
			}
		}
		must(t, m.propose(requestID{7, uint64(i)}, g.c))
		_, err := m.advance()
		must(t, err)
	}
	must(t, st.close())
	return dir, filepath.Join(dir, storeFile)
}

func reopen(dir string) (*loaded, error) {
	st, l, err := openStore(dir, false, func() (identity, error) { return identity{}, errors.New("there is no file") })
	if err == nil {
		err = st.close()
	}
	return l, err
}

// A flipped bit anywhere in a value, a cut file, an empty file: each is a named damage, never another content.
func TestDamagedFile(t *testing.T) {
	t.Parallel()
	dir, name := madeStore(t)
	before, err := reopen(dir)
	must(t, err)
	good, err := os.ReadFile(name)
	must(t, err)
	values := storedValues(t, name)
	if len(values) < 12 {
		t.Fatalf("only %d values in the file", len(values))
	}
	for _, v := range values {
		for _, at := range []int{0, len(v) / 2, len(v) - 1} { // in every copy of it: the file keeps older pages
			flipped := bytes.Clone(v)
			flipped[at] ^= 1 << (at % 8)
			must(t, os.WriteFile(name, bytes.ReplaceAll(good, v, flipped), 0o600))
			_, err := reopen(dir)
			var damage *DamageError
			if !errors.As(err, &damage) {
				t.Fatalf("a flipped bit at %d of %q: %v", at, v, err)
			}
		}
	}
	for _, size := range []int{0, 100, 4096, 3 * 4096} {
		cut := t.TempDir()
		must(t, os.WriteFile(filepath.Join(cut, storeFile), good[:size], 0o600))
		var damage *DamageError
		if _, err := reopen(cut); !errors.As(err, &damage) {
			t.Errorf("a file of %d bytes: %v", size, err)
		}
	}
	must(t, os.WriteFile(name, good, 0o600))
	after, err := reopen(dir)
	must(t, err)
	if after.state.Hash() != before.state.Hash() {
		t.Error("the good file reads otherwise than before")
	}
}

// storedValues returns every value of the file with its checksum.
func storedValues(t *testing.T, name string) [][]byte {
	t.Helper()
	db, err := bbolt.Open(name, 0o600, &bbolt.Options{ReadOnly: true})
	must(t, err)
	defer db.Close()
	var out [][]byte
	must(t, db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(_, v []byte) error {
				out = append(out, bytes.Clone(v))
				return nil
			})
		})
	}))
	return out
}

// A crash while the file is made leaves none, and the next start makes it.
func TestCrashWhileMaking(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, storeFile+".new"), []byte("half"), 0o600))
	st, l, err := openStore(dir, false, func() (identity, error) { return identity{ID: "c1", RaftID: 9}, nil })
	must(t, err)
	if l.identity != (identity{ID: "c1", RaftID: 9}) || l.membership != nil {
		t.Errorf("loaded %+v", l)
	}
	must(t, st.close())
}

// oneConn is a connection on which the peer said what is in it, and hears nothing.
type oneConn struct {
	net.Conn
	io.Reader
}

func (c oneConn) Read(p []byte) (int, error) { return c.Reader.Read(p) }
func (oneConn) Write(p []byte) (int, error)  { return len(p), nil }
func (oneConn) Close() error                 { return nil }
func (oneConn) SetDeadline(time.Time) error  { return nil }
func (oneConn) RemoteAddr() net.Addr         { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// Nothing that was said before the server's nonce was drawn can be a proof, with or without the secret.
func FuzzHandshake(f *testing.F) {
	f.Add(append([]byte("LMQC\x01\x01"), make([]byte, 64)...))
	f.Add(append([]byte("LMQC\x01\x00"), make([]byte, 64)...))
	f.Add([]byte("LMQC\x02\x01"))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		server := &secretCredentials{secret: []byte("s")}
		if _, _, err := server.ServerHandshake(oneConn{Reader: bytes.NewReader(b)}); err == nil {
			t.Fatal("the server takes a client without a proof")
		}
		client := &secretCredentials{secret: []byte("s")}
		if err := client.clientHandshake(oneConn{Reader: bytes.NewReader(b)}); err == nil {
			t.Fatal("the client takes a server without a proof")
		}
	})
}
