package controller

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc/credentials"
)

// Every connection starts with a handshake in which both sides prove that they hold the cluster secret, before gRPC says a
// word. The secret never travels, and a recorded handshake is worth nothing: both nonces are in both proofs.
//
//	client ─▶ "LMQC" version keyed nonce[32]
//	server ─▶ "LMQC" version status nonce[32]
//	client ─▶ HMAC-SHA256(secret, "client" ‖ client nonce ‖ server nonce)
//	server ─▶ status HMAC-SHA256(secret, "server" ‖ client nonce ‖ server nonce)
//
// The client proves first, as between nodes: who does not know the secret gets nothing from a controller to guess it with.
// A refusal ends with its status. Without a secret the same exchange runs with the empty key; then the server takes loopback peers only. The bytes that follow
// are neither encrypted nor signed: the network between the processes of a cluster is trusted not to alter them.
const (
	handshakeMagic   = "LMQC"
	handshakeVersion = 1
	handshakeTimeout = 5 * time.Second

	statusOK       = 0
	statusSecret   = 1 // the proof is wrong, or one side has a secret and the other has none
	statusRemote   = 2 // no secret, and the peer is not on this machine
	statusProtocol = 3 // another version of the handshake
)

type secretCredentials struct {
	secret   []byte
	insecure bool // server: take remote peers although there is no secret
	logger   zerolog.Logger
	failed   func(error) // client: told the result of each handshake

	mu      sync.Mutex
	lastLog time.Time // refusals are logged once a second at most
}

// authInfo tells the handlers nothing more than that the handshake passed.
type authInfo struct{ credentials.CommonAuthInfo }

func (authInfo) AuthType() string { return "ledgermq-secret" }

func (c *secretCredentials) proof(side string, clientNonce, serverNonce []byte) []byte {
	h := hmac.New(sha256.New, c.secret)
	h.Write([]byte(side))
	h.Write(clientNonce)
	h.Write(serverNonce)
	return h.Sum(nil)
}

func (c *secretCredentials) keyed() byte {
	if len(c.secret) > 0 {
		return 1
	}
	return 0
}

// ClientHandshake proves the secret to the server and checks the server's proof.
func (c *secretCredentials) ClientHandshake(ctx context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err := c.clientHandshake(conn)
	if c.failed != nil {
		c.failed(err)
	}
	if err != nil {
		return nil, nil, err
	}
	return conn, authInfo{}, nil
}

func (c *secretCredentials) clientHandshake(conn net.Conn) error {
	var nonce [32]byte
	rand.Read(nonce[:])
	hello := append([]byte(handshakeMagic), handshakeVersion, c.keyed())
	if _, err := conn.Write(append(hello, nonce[:]...)); err != nil {
		return fmt.Errorf("controller handshake: %w", err)
	}
	var answer [4 + 2 + 32]byte
	if _, err := io.ReadFull(conn, answer[:6]); err != nil {
		return fmt.Errorf("controller handshake: %w", err)
	}
	if string(answer[:4]) != handshakeMagic || answer[4] != handshakeVersion {
		return errors.New("controller handshake: the other side is not a controller of this version: check the address")
	}
	if err := statusError(answer[5]); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, answer[6:]); err != nil {
		return fmt.Errorf("controller handshake: %w", err)
	}
	serverNonce := answer[6:]
	if _, err := conn.Write(c.proof("client", nonce[:], serverNonce)); err != nil {
		return fmt.Errorf("controller handshake: %w", err)
	}
	var accept [1 + 32]byte
	if _, err := io.ReadFull(conn, accept[:1]); err != nil {
		return fmt.Errorf("controller handshake: %w", err)
	}
	if err := statusError(accept[0]); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, accept[1:]); err != nil {
		return fmt.Errorf("controller handshake: %w", err)
	}
	if !hmac.Equal(accept[1:], c.proof("server", nonce[:], serverNonce)) {
		return statusError(statusSecret)
	}
	return nil
}

func statusError(status byte) error {
	switch status {
	case statusOK:
		return nil
	case statusSecret:
		return fmt.Errorf("%w: give this process the same secret as the controllers", ErrSecret)
	case statusRemote:
		return fmt.Errorf("%w: the controller has none and takes loopback peers only: give the cluster a secret", ErrSecret)
	default:
		return errors.New("controller handshake: the controller speaks another version")
	}
}

// ServerHandshake checks the client's proof. A connection that fails it is closed at once.
func (c *secretCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn.SetDeadline(time.Now().Add(handshakeTimeout))
	if err := c.serverHandshake(conn); err != nil {
		c.logRefusal(conn, err)
		conn.Close()
		return nil, nil, err
	}
	conn.SetDeadline(time.Time{})
	return conn, authInfo{}, nil
}

func (c *secretCredentials) serverHandshake(conn net.Conn) error {
	var hello [4 + 2 + 32]byte
	if _, err := io.ReadFull(conn, hello[:]); err != nil {
		return fmt.Errorf("no handshake: %w", err)
	}
	status := byte(statusOK)
	switch {
	case string(hello[:4]) != handshakeMagic:
		return errors.New("not a controller client")
	case hello[4] != handshakeVersion:
		status = statusProtocol
	case hello[5] != c.keyed():
		status = statusSecret
	case len(c.secret) == 0 && !c.insecure && !isLoopback(conn.RemoteAddr()):
		status = statusRemote
	}
	answer := append([]byte(handshakeMagic), handshakeVersion, status)
	if status != statusOK {
		conn.Write(answer)
		return statusError(status)
	}
	var nonce [32]byte
	rand.Read(nonce[:])
	if _, err := conn.Write(append(answer, nonce[:]...)); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	var proof [32]byte
	if _, err := io.ReadFull(conn, proof[:]); err != nil {
		return fmt.Errorf("%w: no proof came: %w", ErrSecret, err)
	}
	if !hmac.Equal(proof[:], c.proof("client", hello[6:], nonce[:])) {
		conn.Write([]byte{statusSecret})
		return statusError(statusSecret)
	}
	_, err := conn.Write(append([]byte{statusOK}, c.proof("server", hello[6:], nonce[:])...))
	return err
}

func (c *secretCredentials) logRefusal(conn net.Conn, err error) {
	c.mu.Lock()
	now := time.Now()
	quiet := now.Sub(c.lastLog) < time.Second
	if !quiet {
		c.lastLog = now
	}
	c.mu.Unlock()
	if !quiet {
		c.logger.Error().Stringer("remote", conn.RemoteAddr()).Err(err).Msg("connection refused")
	}
}

// Info describes the handshake to gRPC.
func (c *secretCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "ledgermq-secret"}
}

// Clone returns credentials of the same secret.
func (c *secretCredentials) Clone() credentials.TransportCredentials {
	return &secretCredentials{secret: c.secret, insecure: c.insecure, logger: c.logger, failed: c.failed}
}

// OverrideServerName does nothing: the proof does not depend on a name.
func (c *secretCredentials) OverrideServerName(string) error { return nil }
