package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// Options of a Transport. Cluster, Node, Listener and Receive have no default.
type Options struct {
	Cluster ids.ClusterID
	Node    ids.NodeID // of this node, at most 64 bytes

	// Secret is what all nodes of the cluster share. Empty means that whoever reaches Listener and knows the cluster id and a
	// node id is believed: for loopback only, which the caller has to see to.
	Secret []byte

	// Listener accepts the connections of other nodes. The transport closes it.
	Listener net.Listener

	// Dial connects to addr as SetPeer gave it, host names are resolved again at each attempt. Default: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	// Receive takes the envelopes of one packet, in order. It is called from one goroutine per connection, so from up to two at
	// once for one node. It must not block: while it runs, nothing else is read from that connection. The slice is valid
	// during the call; what the envelopes point to belongs to the receiver from then on.
	//
	// from is proven, Envelope.From is only claimed: a receiver compares from with the node that the group's epoch record
	// names for Envelope.From, and ignores the envelope if they differ.
	Receive func(from ids.NodeID, envs []Envelope)

	// Closed, when set, is called after an established connection from or to node went down, once for each of them: messages
	// of both directions may have been lost. It must not block. It is not called for what SetPeer or Close ended.
	Closed func(node ids.NodeID)

	// Allow, when set, tells which nodes may connect. Default: all that prove the secret.
	Allow func(node ids.NodeID) bool

	// MaxQueueBytes bounds what waits for one peer, an eighth of it for control. Over it new envelopes are dropped and counted,
	// those that wait are kept. Default 32 MiB, at least 64 KiB. More rides over longer stalls of a peer and costs memory.
	MaxQueueBytes int

	// PingEvery is how often a connection is probed, default 500 ms. A connection that was silent for DeadAfter, default 4 s,
	// is closed. A second process with a node id that is connected is refused until the first was silent for 4×PingEvery.
	PingEvery, DeadAfter time.Duration

	// DialTimeout bounds an attempt to connect, default 2 s; HandshakeTimeout the handshake after it, default 2 s.
	DialTimeout, HandshakeTimeout time.Duration

	// MinBackoff and MaxBackoff bound the pause between attempts to connect: it doubles from 50 ms to 2 s by default, and ends
	// at once when the peer connects to this node.
	MinBackoff, MaxBackoff time.Duration

	Log zerolog.Logger // default: none
}

// EnsureDefaults fills what is zero and has a default.
func (o *Options) EnsureDefaults() {
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	if o.MaxQueueBytes == 0 {
		o.MaxQueueBytes = 32 << 20
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&o.PingEvery, 500 * time.Millisecond}, {&o.DeadAfter, 4 * time.Second},
		{&o.DialTimeout, 2 * time.Second}, {&o.HandshakeTimeout, 2 * time.Second},
		{&o.MinBackoff, 50 * time.Millisecond}, {&o.MaxBackoff, 2 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
}

// Validate reports all faults at once. Call EnsureDefaults first.
func (o *Options) Validate() error {
	var faults []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf("peer: "+format, args...))
		}
	}
	bad(ids.UUID(o.Cluster).IsZero(), "Options.Cluster is not set")
	if err := o.Node.Check(); err != nil {
		bad(true, "Options.Node: %w", err)
	}
	bad(o.Listener == nil, "Options.Listener is not set")
	bad(o.Receive == nil, "Options.Receive is not set")
	bad(o.MaxQueueBytes < 64<<10, "Options.MaxQueueBytes is %d: want at least %d", o.MaxQueueBytes, 64<<10)
	bad(o.PingEvery < 0 || o.DialTimeout < 0 || o.HandshakeTimeout < 0, "Options.PingEvery, DialTimeout and HandshakeTimeout must not be negative")
	bad(o.DeadAfter < 2*o.PingEvery, "Options.DeadAfter is %v: want at least twice PingEvery, %v", o.DeadAfter, 2*o.PingEvery)
	bad(o.MinBackoff < 0 || o.MaxBackoff < o.MinBackoff, "Options.MinBackoff %v and MaxBackoff %v: want 0 ≤ min ≤ max", o.MinBackoff, o.MaxBackoff)
	return errors.Join(faults...)
}
