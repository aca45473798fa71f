package controller

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// Options configure one controller member.
type Options struct {
	// Dir is the data folder; it is made when it does not exist. Required.
	Dir string
	// ID is the member's name, 1 to 64 of A-Z a-z 0-9 _ . -, kept in the data folder. Required.
	ID string
	// Listener takes the calls of nodes and tools and the messages of the other members. The server closes it. Required.
	Listener net.Listener
	// Peers has the advertised host:port of every member by its id, this one's too: 1, 3 or 5 members. Nil: this member alone,
	// at the listener's address. The ids are fixed when the cluster is founded; the addresses may change at each start.
	Peers map[string]string
	// Bootstrap allows an empty data folder to found a cluster, or to join the founding of one. Without it an empty folder is
	// refused. It has no effect on a folder that is in use.
	Bootstrap bool
	// Join lets an empty data folder wait until the members of a cluster that lives add this one. Peers has this member and at least
	// one of the others then. It has no effect on a folder that is in use.
	Join bool
	// FlagPrefix stands before the names of the flags join and bootstrap in what an operator is told: "controller-" where a process has
	// other roles as well.
	FlagPrefix string
	// Recover lets an empty data folder wait until an operator makes this member the first one of a cluster whose controllers are lost.
	// Peers has this member alone then. It has no effect on a folder that is in use.
	Recover bool
	// Secret is the cluster secret that both sides of every connection prove. Empty: only loopback peers are taken.
	Secret []byte
	// Insecure takes peers beyond loopback although there is no secret.
	Insecure bool

	// TickInterval is the unit of the members' own elections. Default 100 ms. A silent leader is replaced after ElectionTicks
	// to twice that.
	TickInterval time.Duration
	// ElectionTicks is at least 3. Default 10.
	ElectionTicks int
	// CompactEvery is how many applied entries the Raft log gathers before its older half is dropped. Default 4096.
	CompactEvery int
	// NodeSilence is how long a node may say nothing before it counts as silent. Default 1 s.
	NodeSilence time.Duration
	// MinSegmentSize is the smallest segment size that a group may have, in bytes. Default 16 MiB; tests use 64 KiB.
	MinSegmentSize int64

	// Clock tells the time for silences. Default time.Now.
	Clock func() time.Time
	// Logger takes what an operator should know. The zero value says nothing.
	Logger zerolog.Logger

	// levels are the feature levels that this program says it understands. Default OwnLevels; tests play older programs.
	levels Levels
}

// The names that are valid on the wire and in files. That of a node is a NodeID.
var (
	memberName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
	groupName  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)
)

// EnsureDefaults fills in what was left zero.
func (o *Options) EnsureDefaults() {
	if o.Peers == nil && o.Listener != nil {
		o.Peers = map[string]string{o.ID: o.Listener.Addr().String()}
	}
	if o.TickInterval == 0 {
		o.TickInterval = 100 * time.Millisecond
	}
	if o.ElectionTicks == 0 {
		o.ElectionTicks = 10
	}
	if o.CompactEvery == 0 {
		o.CompactEvery = 4096
	}
	if o.NodeSilence == 0 {
		o.NodeSilence = time.Second
	}
	if o.MinSegmentSize == 0 {
		o.MinSegmentSize = ids.MinSegmentSize
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.levels == (Levels{}) {
		o.levels = OwnLevels()
	}
}

// Validate reports every fault at once.
func (o *Options) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if o.Dir == "" {
		fault("controller: no data folder given")
	}
	if !memberName.MatchString(o.ID) {
		fault("controller: member id %q: want 1 to 64 of A-Z a-z 0-9 _ . -", o.ID)
	}
	if o.Listener == nil {
		fault("controller: no listener given")
	} else if len(o.Secret) == 0 && !o.Insecure && !isLoopback(o.Listener.Addr()) {
		fault("controller: listening on %s without a cluster secret: give one, listen on loopback, or allow it with --insecure", o.Listener.Addr())
	}
	switch n := len(o.Peers); {
	case o.Join && n > 1, n == 1, n == 3, n == 5:
	default:
		fault("controller: %d members %v: want 1, 3 or 5", len(o.Peers), sortedKeys(o.Peers))
	}
	switch {
	case o.Recover && len(o.Peers) > 1:
		fault("controller: a recovery begins with one controller: leave the other members out of the list, and add them when it is done")
	case o.Recover && (o.Bootstrap || o.Join):
		fault("controller: --%[1]srecover goes with neither --%[1]sbootstrap nor --%[1]sjoin: an empty folder begins in one way", o.FlagPrefix)
	}
	if _, ok := o.Peers[o.ID]; !ok {
		fault("controller: member id %q is not among the members %v: add it with its address", o.ID, sortedKeys(o.Peers))
	}
	byAddress := map[string]string{}
	for _, id := range sortedKeys(o.Peers) {
		addr := o.Peers[id]
		if !memberName.MatchString(id) {
			fault("controller: member id %q: want 1 to 64 of A-Z a-z 0-9 _ . -", id)
		}
		if _, _, err := net.SplitHostPort(addr); err != nil {
			fault("controller: address %q of member %s: want host:port", addr, id)
		}
		if other, ok := byAddress[addr]; ok {
			fault("controller: members %s and %s have the same address %s", other, id, addr)
		}
		byAddress[addr] = id
	}
	if o.TickInterval < 0 {
		fault("controller: tick interval %v is negative", o.TickInterval)
	}
	if o.ElectionTicks < 3 {
		fault("controller: %d election ticks: want at least 3", o.ElectionTicks)
	}
	if o.CompactEvery < 2 {
		fault("controller: compaction every %d entries: want at least 2", o.CompactEvery)
	}
	if o.NodeSilence < 0 {
		fault("controller: node silence %v is negative", o.NodeSilence)
	}
	if err := ids.CheckSegmentSize(o.MinSegmentSize, ids.MinTestSegmentSize); err != nil {
		fault("controller: smallest %w", err)
	}
	return errors.Join(faults...)
}

// isLoopback tells whether only processes of this machine can be at a.
func isLoopback(a net.Addr) bool {
	if a.Network() == "unix" || a.Network() == "bufconn" {
		return true
	}
	ap, err := netip.ParseAddrPort(a.String())
	return err == nil && ap.Addr().Unmap().IsLoopback()
}

func sortedKeys[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
