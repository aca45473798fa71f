package broker

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// NodeOptions configures one node. Durations and sizes of zero mean the default.
type NodeOptions struct {
	// ID is the node's name in the cluster, such as n1: letters, digits, '-', '_' and '.', at most 64. It is bound to the data
	// folder for ever.
	ID ids.NodeID
	// Dir is the data folder. It is made if absent; one process at a time can use it.
	Dir string
	// ClusterName is RocketMQ's cluster name on the wire. Default DefaultCluster.
	ClusterName string

	// Controllers are the addresses (host:port) of the controllers.
	Controllers []string
	// Namesrv are the addresses (host:port) of the name servers. Brokers register with each of them.
	Namesrv []string

	// PeerListener takes the replication connections of other nodes.
	PeerListener net.Listener
	// PeerAdvertise is what other nodes dial. Default: the listener's address.
	PeerAdvertise string
	// MetricsAdvertise is told to the controller for operators; may be empty.
	MetricsAdvertise string
	// Zone is where the node is, for the choice of masters; may be empty.
	Zone string
	// ClientListener opens the client port of one group's replica and tells the address that clients shall use. It is called
	// once for each replica, when the node first opens it.
	ClientListener func(group string) (l net.Listener, advertise string, err error)

	// Secret is the cluster secret. Empty is allowed on loopback only, unless Insecure is set.
	Secret   []byte
	Insecure bool

	// NoAutoCreateTopic refuses a send to an unknown topic with code 17, and hides the template topic TBW102.
	NoAutoCreateTopic bool
	// NoAutoCreateGroup ignores heartbeats of unknown consumer groups and refuses their pulls with code 26.
	NoAutoCreateGroup bool

	// RetentionAge is how long a message is kept at least. Default 72 h; negative: for ever.
	RetentionAge time.Duration
	// RetentionBytes bounds the size of one group's log: older segments are given up above it. 0: no bound.
	RetentionBytes int64
	// TimerMaxDelay is how far away the time of a delayed message may be. Default 72 h; a year is possible, more than 100 years are not.
	// Delay levels are not bound by it.
	TimerMaxDelay time.Duration
	// CheckpointBytes is how much log may grow until state and index are written. Default 64 MiB. A start replays at most
	// about that much.
	CheckpointBytes int64

	// TransactionCheckInterval is the time between two questions to the producers of a pending transaction. Default 30 s.
	TransactionCheckInterval time.Duration

	// BootID names this start of the machine. Default: as the system tells; see vfs.BootID.
	BootID string
	// ScrubEvery is how often a replica reads its sealed segments through, and ScrubRate how many bytes a second it reads then at
	// most. Default 24 h and 8 MiB.
	ScrubEvery time.Duration
	ScrubRate  int64

	FS     vfs.FS
	Clock  func() time.Time
	Logger zerolog.Logger
}

const maxTimerDelay = 100 * 365 * 24 * time.Hour

// EnsureDefaults fills in what was left zero.
func (o *NodeOptions) EnsureDefaults() {
	if o.ClusterName == "" {
		o.ClusterName = "DefaultCluster"
	}
	if o.RetentionAge == 0 {
		o.RetentionAge = 72 * time.Hour
	}
	if o.TimerMaxDelay == 0 {
		o.TimerMaxDelay = 72 * time.Hour
	}
	if o.CheckpointBytes == 0 {
		o.CheckpointBytes = 64 << 20
	}
	if o.TransactionCheckInterval == 0 {
		o.TransactionCheckInterval = 30 * time.Second
	}
	if o.ScrubEvery == 0 {
		o.ScrubEvery = 24 * time.Hour
	}
	if o.ScrubRate == 0 {
		o.ScrubRate = 8 << 20
	}
	if o.FS == nil {
		o.FS = vfs.OS
	}
	if o.BootID == "" {
		o.BootID = vfs.BootID()
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.PeerAdvertise == "" && o.PeerListener != nil {
		o.PeerAdvertise = o.PeerListener.Addr().String()
	}
}

// Validate reports every fault at once, each as a line that names the thing and the mend.
func (o *NodeOptions) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("broker: "+format, args...)) }
	if err := o.ID.Check(); err != nil {
		fault("%w", err)
	}
	if o.Dir == "" {
		fault("no data folder: set one")
	}
	if len(o.Controllers) == 0 {
		fault("no controller address: set at least one host:port")
	}
	if o.PeerListener == nil {
		fault("no listener for replication")
	}
	if o.ClientListener == nil {
		fault("no listener for clients")
	}
	if o.RetentionBytes < 0 {
		fault("retention of %d bytes: use 0 for no bound, or a positive size", o.RetentionBytes)
	}
	if o.ScrubEvery < 0 || o.ScrubRate < 0 {
		fault("a scrub every %v of %d bytes a second: use positive values", o.ScrubEvery, o.ScrubRate)
	}
	if o.TransactionCheckInterval < 0 {
		fault("checks of transactions every %v: use a positive time", o.TransactionCheckInterval)
	}
	if o.TimerMaxDelay < time.Millisecond || o.TimerMaxDelay > maxTimerDelay {
		fault("delays of at most %v: use a duration from 1ms to %v", o.TimerMaxDelay, maxTimerDelay)
	}
	if o.CheckpointBytes < 1<<16 {
		fault("a checkpoint every %d bytes: use at least 65536", o.CheckpointBytes)
	}
	for _, a := range append(append([]string{}, o.Controllers...), o.Namesrv...) {
		if _, _, err := net.SplitHostPort(a); err != nil {
			fault("address %q: want host:port", a)
		}
	}
	return errors.Join(faults...)
}
