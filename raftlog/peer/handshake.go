package peer

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// The handshake, before any packet; every message has a fixed size, so there is no length to lie about.
//
//	dialer ── hello: version, channel, cluster, both node ids, process, nonce ──▶ acceptor
//	       ◀── challenge: nonce, features of the acceptor, or a refusal ──────
//	       ── proof: HMAC(secret, "dialer", hello, challenge) ────────────────▶
//	       ◀── accept: HMAC(secret, "acceptor", hello, challenge), or a refusal
//
// The dialer proves first: who does not know the secret gets nothing to guess it with from an acceptor. Both nonces are in both
// proofs, so a recorded handshake cannot be played again; the labels keep a proof from being sent back.
//
// The version is that of the layout, and two nodes must have the same one. What was added to it is a feature: the dialer, which is the one
// that sends, leaves out what the acceptor does not name. So an older process beside newer ones keeps its connections.
const (
	handshakeMagic   = "LMQH"
	handshakeVersion = 1

	helloSize = 200 // magic 4, version 1, channel 1, from length 1, to length 1, cluster 16, process 16, nonce 32, from 64, to 64
	replySize = 40  // magic 4, version 1, status 1, features 2, nonce or proof 32
	proofSize = sha256.Size
	nonceSize = 32
)

// features is a set of what an acceptor understands beyond the first form of the protocol. The numbers are on the wire; unknown ones are
// ignored.
type features uint16

const (
	featureSnapshots features = 1 << iota // MsgSnap and parts of state snapshots
	featureRepair                         // parts of the log, and questions for the newest snapshot
)

// allFeatures is what this program understands.
const allFeatures = featureSnapshots | featureRepair

// status is what an acceptor replies. The numbers are on the wire.
type status byte

const (
	statusOK status = iota
	statusVersion
	statusCluster
	statusNode
	statusSecret
	statusTwice
	statusAllowed
)

// reason is the operator's sentence: what is wrong, and the mend.
func (s status) reason() string {
	switch s {
	case statusVersion:
		return "the two nodes speak different versions of the peer protocol: upgrade the older one"
	case statusCluster:
		return "the two nodes belong to different clusters: check the peer's address and the data folder"
	case statusNode:
		return "another node than the wanted one listens there: check the peer's address"
	case statusSecret:
		return "the cluster secrets differ: give all nodes the same one"
	case statusTwice:
		return "another process with this node id is connected: stop one of the two, or give one a data folder of its own"
	case statusAllowed:
		return "the node is not known here: register it with the controller"
	default:
		return fmt.Sprintf("refused with status %d", byte(s))
	}
}

// RefusedError is returned, and logged, when a handshake fails because of what one side said. It needs an operator; trying again
// goes on, since the mend may be made on the other side.
type RefusedError struct {
	Addr   string // of the other side
	Node   ids.NodeID
	Reason string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("peer: connection with node %q at %s refused: %s", e.Node, e.Addr, e.Reason)
}

// errNothingSent is how an acceptor sees a port scan or a health probe. It is not worth a line in the log.
var errNothingSent = errors.New("peer: closed without a byte")

// hello is the first message of a dialer, parsed.
type hello struct {
	channel  channel
	cluster  ids.ClusterID
	process  [16]byte // drawn by each process: tells a reconnect from a second process
	from, to ids.NodeID
}

func (h hello) encode() [helloSize]byte {
	var b [helloSize]byte
	copy(b[:], handshakeMagic)
	b[4], b[5], b[6], b[7] = handshakeVersion, byte(h.channel), byte(len(h.from)), byte(len(h.to))
	copy(b[8:], h.cluster[:])
	copy(b[24:], h.process[:])
	mustRandom(b[40:72])
	copy(b[72:136], h.from)
	copy(b[136:200], h.to)
	return b
}

func parseHello(b *[helloSize]byte) (h hello, s status, err error) {
	if string(b[:4]) != handshakeMagic {
		return h, statusOK, fmt.Errorf("magic %q: this is not a node of LedgerMQ", b[:4])
	}
	if b[4] != handshakeVersion {
		return h, statusVersion, fmt.Errorf("version %d, this program speaks %d", b[4], handshakeVersion)
	}
	from, to := int(b[6]), int(b[7])
	if from < 1 || from > ids.MaxNodeID || to < 1 || to > ids.MaxNodeID {
		return h, statusOK, fmt.Errorf("node ids of %d and %d bytes: want 1 to %d", from, to, ids.MaxNodeID)
	}
	h = hello{channel: channel(b[5]), cluster: ids.ClusterID(b[8:24]), process: [16]byte(b[24:40]), from: ids.NodeID(b[72 : 72+from]), to: ids.NodeID(b[136 : 136+to])}
	if h.channel != control && h.channel != bulk {
		return h, statusOK, fmt.Errorf("unknown %v", h.channel)
	}
	return h, statusOK, errors.Join(h.from.Check(), h.to.Check())
}

func encodeReply(s status, f features, payload []byte) [replySize]byte {
	var b [replySize]byte
	copy(b[:], handshakeMagic)
	b[4], b[5] = handshakeVersion, byte(s)
	binary.BigEndian.PutUint16(b[6:], uint16(f))
	copy(b[8:], payload)
	return b
}

// readReply reads a challenge or an accept. A refusal comes back as a *RefusedError.
func readReply(conn net.Conn, node ids.NodeID, b *[replySize]byte) error {
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return fmt.Errorf("peer: handshake with node %q: %w", node, err)
	}
	refused := func(reason string) error {
		return &RefusedError{Addr: conn.RemoteAddr().String(), Node: node, Reason: reason}
	}
	switch {
	case string(b[:4]) != handshakeMagic:
		return refused("no node of LedgerMQ listens there: check the peer's address")
	case b[4] != handshakeVersion:
		return refused(statusVersion.reason())
	case status(b[5]) != statusOK:
		return refused(status(b[5]).reason())
	}
	return nil
}

// proof is what label's side sends to show that it knows the secret. It binds everything that both sides said before.
func proof(secret []byte, label string, hello *[helloSize]byte, challenge *[replySize]byte) [proofSize]byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("ledgermq peer " + label))
	mac.Write(hello[:])
	mac.Write(challenge[:])
	return [proofSize]byte(mac.Sum(nil))
}

const (
	labelDialer   = "dialer"
	labelAcceptor = "acceptor"
)

// shakeDialer runs the dialer's side and returns what the acceptor understands. The caller has set a deadline on conn.
func shakeDialer(conn net.Conn, secret []byte, h hello) (features, error) {
	hello := h.encode()
	if _, err := conn.Write(hello[:]); err != nil {
		return 0, fmt.Errorf("peer: handshake with node %q: %w", h.to, err)
	}
	var challenge, accept [replySize]byte
	if err := readReply(conn, h.to, &challenge); err != nil {
		return 0, err
	}
	mine := proof(secret, labelDialer, &hello, &challenge)
	if _, err := conn.Write(mine[:]); err != nil {
		return 0, fmt.Errorf("peer: handshake with node %q: %w", h.to, err)
	}
	if err := readReply(conn, h.to, &accept); err != nil {
		return 0, err
	}
	if want := proof(secret, labelAcceptor, &hello, &challenge); !hmac.Equal(accept[8:], want[:]) {
		return 0, &RefusedError{Addr: conn.RemoteAddr().String(), Node: h.to, Reason: statusSecret.reason()}
	}
	return features(binary.BigEndian.Uint16(challenge[6:])), nil
}

// shakeAcceptor runs the acceptor's side and tells the dialer that this one understands f. judge decides, after the proof, whether the node may come in. The caller has set a
// deadline on conn, and closes it on any error.
func shakeAcceptor(conn net.Conn, secret []byte, cluster ids.ClusterID, self ids.NodeID, f features, judge func(hello) status) (hello, error) {
	var first [helloSize]byte
	if n, err := io.ReadFull(conn, first[:]); err != nil {
		if n == 0 {
			return hello{}, errNothingSent
		}
		return hello{}, refusedHere(conn, "", fmt.Sprintf("the handshake was cut off after %d bytes: %v", n, err))
	}
	h, s, err := parseHello(&first)
	if s != statusOK {
		return h, refuse(conn, h.from, s)
	}
	if err != nil {
		return h, refusedHere(conn, h.from, err.Error())
	}
	if h.cluster != cluster {
		return h, refuse(conn, h.from, statusCluster)
	}
	if h.to != self {
		return h, refuse(conn, h.from, statusNode)
	}
	var nonce [nonceSize]byte
	mustRandom(nonce[:])
	challenge := encodeReply(statusOK, f, nonce[:])
	if _, err := conn.Write(challenge[:]); err != nil {
		return h, fmt.Errorf("peer: handshake with node %q: %w", h.from, err)
	}
	var got [proofSize]byte
	if n, err := io.ReadFull(conn, got[:]); err != nil {
		return h, refusedHere(conn, h.from, fmt.Sprintf("the proof was cut off after %d bytes: %v", n, err))
	}
	if want := proof(secret, labelDialer, &first, &challenge); !hmac.Equal(got[:], want[:]) {
		return h, refuse(conn, h.from, statusSecret)
	}
	if s := judge(h); s != statusOK {
		return h, refuse(conn, h.from, s)
	}
	mine := proof(secret, labelAcceptor, &first, &challenge)
	accept := encodeReply(statusOK, 0, mine[:])
	if _, err := conn.Write(accept[:]); err != nil {
		return h, fmt.Errorf("peer: handshake with node %q: %w", h.from, err)
	}
	return h, nil
}

// refuse tells the dialer why, as far as it can still hear it.
func refuse(conn net.Conn, node ids.NodeID, s status) error {
	reply := encodeReply(s, 0, nil)
	_, _ = conn.Write(reply[:])
	return refusedHere(conn, node, s.reason())
}

func refusedHere(conn net.Conn, node ids.NodeID, reason string) error {
	return &RefusedError{Addr: conn.RemoteAddr().String(), Node: node, Reason: reason}
}

// mustRandom fills b. crypto/rand.Read never fails: it ends the process when the system has no randomness.
func mustRandom(b []byte) { _, _ = rand.Read(b) }
