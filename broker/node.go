package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/raftlog/peer"
)

const (
	heartbeatEvery = 200 * time.Millisecond
	// urgentEvery is the pause of heartbeats while a replica has urgent news.
	urgentEvery = 50 * time.Millisecond
	// callTimeout bounds one call of a controller. Nothing on the way of a message waits for it.
	callTimeout = 2 * time.Second
)

// Node is one process's part of a cluster: the replicas that the controller wants here, the replication transport they share,
// and the loops that talk to controllers and name servers. A dead controller stops none of it: a node that starts again opens
// its replicas from what its folder says.
//
// All methods may be called from any goroutine.
type Node struct {
	o    NodeOptions
	log  zerolog.Logger
	lock io.Closer
	ctl  *controller.Client
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	transport  atomic.Pointer[peer.Transport] // nil until the cluster id is known
	diskFull   atomic.Bool
	draining   atomic.Bool
	beats      atomic.Uint64 // heartbeats that a controller answered
	beat       chan struct{} // asks for the next one at once
	heard      atomic.Int64  // unix ms of the last heartbeat that a controller answered
	regMu      sync.Mutex
	registrars map[string]*registrar // by the name server's address; under regMu
	metrics    *collector

	scrubbing chan struct{} // held by the replica whose log is being scrubbed; capacity 1

	spare atomic.Bool // the controller's last answer wanted no replica here

	mu       sync.Mutex
	file     nodeFile
	replicas map[ids.GroupID]*hosted
	closing  bool
	failed   chan struct{} // closed when failure is set
	failure  error
}

// hosted is one replica of this node in any state: being opened, open, or parked before it could open.
type hosted struct {
	file    replicaFile
	parked  string                    // why it did not open; "" otherwise
	closing bool                      // a parked replica is being closed
	has     *hasLog                   // what the log of a lost replica has, for who must choose among lost ones; nil: not known
	told    bool                      // the report of what an unclean election removed of it was written, or cannot be
	missing bool                      // the controller knows the replica, but its folder is gone
	opening bool                      // a goroutine works on it
	r       *Replica                  // nil until open
	repair  *repair                   // works on it while it is parked for a damage
	starts  uint64                    // of the log that is being opened, told to the controller before the replica takes part
	seen    uint64                    // greatest start counter that the controller has told
	wishes  *controllerpb.GroupWishes // as they were told last; nil: never

	repairs, repaired int64 // damages that were mended since the process began, and bytes that came for them
}

// OpenNode takes the data folder and checks that it is this node's. It returns vfs.ErrLocked when another process uses the
// folder, and an error that names the mend when the folder is another node's or another version's.
func OpenNode(o NodeOptions) (*Node, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if err := vfs.MkdirDurable(o.FS, filepath.Join(o.Dir, "groups")); err != nil {
		return nil, fmt.Errorf("broker: make data folder: %w", err)
	}
	lock, err := o.FS.Lock(filepath.Join(o.Dir, "LOCK"))
	if errors.Is(err, vfs.ErrLocked) {
		return nil, fmt.Errorf("broker: data folder %s is in use by another process: stop that one first, or use another folder: %w", o.Dir, err)
	} else if err != nil {
		return nil, fmt.Errorf("broker: lock data folder %s: %w", o.Dir, err)
	}
	n := &Node{o: o, lock: lock, replicas: map[ids.GroupID]*hosted{}, beat: make(chan struct{}, 1), failed: make(chan struct{}), scrubbing: make(chan struct{}, 1),
		log: o.Logger.With().Str("node", string(o.ID)).Logger()}
	n.metrics = newCollector(n)
	n.ctx, n.stop = context.WithCancel(context.Background())
	n.registrars = map[string]*registrar{}
	if n.file, err = loadNodeFile(o.FS, o.Dir, o.ID); err == nil {
		var addrs []string
		if addrs, err = n.file.controllers(o.Controllers); err == nil {
			n.ctl, err = controller.Dial(addrs, o.Secret, controller.WithCallTimeout(callTimeout))
		}
		if err == nil {
			n.ctl.HoldTo(n.file.recovery())
		}
	}
	if err == nil {
		err = n.sweepUnfinished()
	}
	if err != nil {
		n.stop()
		return nil, errors.Join(fmt.Errorf("broker: %w", err), lock.Close())
	}
	return n, nil
}

// Start opens the replicas of the folder and begins to talk to controllers, peers and name servers.
func (n *Node) Start() {
	if n.file.Cluster != "" {
		if err := n.join(n.file.Cluster); err != nil {
			n.fail(err)
			return
		}
		n.loadKnown()
		n.spawn(n.openKnown)
	}
	n.spawn(n.controllerLoop)
	n.spawn(n.watchDisk)
	if len(n.file.Namesrv) > 0 {
		n.registerWith(n.file.Namesrv)
	} else {
		n.registerWith(n.o.Namesrv)
	}
}

func (n *Node) spawn(f func()) {
	n.wg.Add(1)
	go func() {
		defer n.wg.Done()
		f()
	}()
}

// Failed is closed when the node cannot go on, for example because another process took its identity. Err tells why.
func (n *Node) Failed() <-chan struct{} { return n.failed }

// Err returns what stopped the node by itself, nil while nothing did.
func (n *Node) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.failure
}

func (n *Node) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.failure == nil {
		n.failure = err
		close(n.failed)
	}
}

// Close is a clean stop: replicas write their state and mark their logs, so that the next start has nothing to replay.
func (n *Node) Close() error { return n.shut(true) }

// Kill stops without writing anything more, as a crash of the process would.
func (n *Node) Kill() { _ = n.shut(false) }

func (n *Node) shut(clean bool) error {
	n.mu.Lock()
	n.closing = true
	n.mu.Unlock()
	n.stop()
	n.wg.Wait()
	var errs []error
	for _, h := range n.hostedList() {
		if h.r != nil {
			errs = append(errs, h.r.close(clean))
		}
	}
	if t := n.transport.Load(); t != nil {
		errs = append(errs, t.Close())
	} else if n.o.PeerListener != nil {
		errs = append(errs, n.o.PeerListener.Close())
	}
	errs = append(errs, n.ctl.Close(), n.lock.Close())
	return errors.Join(errs...)
}

func (n *Node) hostedList() []hosted {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]hosted, 0, len(n.replicas))
	for _, h := range n.replicas {
		out = append(out, *h)
	}
	slices.SortFunc(out, func(a, b hosted) int { return strings.Compare(a.file.Group, b.file.Group) })
	return out
}

// open lists the replicas that are open.
func (n *Node) open() []*Replica {
	var out []*Replica
	for _, h := range n.hostedList() {
		if h.r != nil {
			out = append(out, h.r)
		}
	}
	return out
}

// Replica returns the open replica of the group, nil when there is none.
func (n *Node) Replica(group string) *Replica {
	for _, r := range n.open() {
		if r.group == group {
			return r
		}
	}
	return nil
}

// What Ready wraps when this node can do nothing about all that is missing.
var (
	// ErrNoMaster: masters. The groups elect, nobody need act.
	ErrNoMaster = errors.New("no master known")
	// ErrLost: replicas whose ids are given up for ever, and which nothing follows yet. It is wrapped before ErrNoMaster.
	ErrLost = errors.New("lost")
)

// Ready returns nil when every replica that this node is known to have is open and knows a master, and when a controller has said
// that it needs none: a spare node waits for a group. A node that drains is not ready.
func (n *Node) Ready() error {
	if n.draining.Load() {
		return errors.New("draining: this node is about to end")
	}
	hs := n.hostedList()
	if len(hs) == 0 && !n.spare.Load() {
		return errors.New("no controller has answered yet which replicas this node should have")
	}
	var waits error // unless another group has more to say
	for _, h := range hs {
		if h.parked != "" && (h.file.Lost != "" || h.missing) {
			waits = fmt.Errorf("group %s: its replica here is %w: %s", h.file.Group, ErrLost, h.parked)
			continue
		}
		if h.parked != "" {
			return fmt.Errorf("group %s: parked: %s", h.file.Group, h.parked)
		}
		if h.r == nil {
			return fmt.Errorf("group %s: opening", h.file.Group)
		}
		if h.r.office.retired.Load() {
			continue
		}
		if st := h.r.raft.Status(); st.Parked != "" {
			return fmt.Errorf("group %s: parked: %s", h.file.Group, st.Parked)
		} else if st.Master == 0 && !errors.Is(waits, ErrLost) {
			waits = fmt.Errorf("group %s: %w", h.file.Group, ErrNoMaster)
		}
	}
	return waits
}

// join ties the node to its cluster and starts the transport. The caller runs before or inside the controller loop.
func (n *Node) join(cluster string) error {
	id, err := ids.ParseUUID(cluster)
	if err != nil {
		return fmt.Errorf("broker: cluster id in node.json: %w", err)
	}
	t, err := peer.New(peer.Options{Cluster: ids.ClusterID(id), Node: n.o.ID, Secret: n.o.Secret, Listener: n.o.PeerListener,
		Receive: n.receive, Closed: n.peerClosed, Log: n.log})
	if err != nil {
		return fmt.Errorf("broker: replication transport: %w", err)
	}
	n.mu.Lock()
	peers := maps.Clone(n.file.Peers)
	n.mu.Unlock()
	for node, addr := range peers {
		t.SetPeer(ids.NodeID(node), addr)
	}
	n.transport.Store(t)
	t.Start()
	return nil
}

// receive hands what a peer sent to the replicas. It runs on the transport's goroutine and never blocks.
func (n *Node) receive(from ids.NodeID, envs []peer.Envelope) {
	for i := range envs {
		env := &envs[i]
		r, p := n.opened(env.Group)
		if p != nil && p.id == env.To && env.Part != nil {
			p.take(from, *env)
		}
		if r == nil || r.id != env.To {
			continue
		}
		if !r.from(env.From, from) {
			n.log.Warn().Str("group", r.group).Str("peer", string(from)).Uint64("replica", uint64(env.From)).Msg("message of a replica that does not live on that node: dropped")
			continue
		}
		if env.Part != nil {
			r.takePart(*env)
			continue
		}
		r.raft.Receive(*env)
	}
}

// opened returns the open replica of the group, or the repair of a damaged one; nil when there is none.
func (n *Node) opened(id ids.GroupID) (*Replica, *repair) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if h := n.replicas[id]; h != nil {
		return h.r, h.repair
	}
	return nil, nil
}

// peerClosed tells the replicas that a connection to a node went down, so that they send again at once.
func (n *Node) peerClosed(node ids.NodeID) {
	for _, r := range n.open() {
		r.raft.PeerDown(node)
	}
}

func (n *Node) send(to ids.NodeID, envs []peer.Envelope) {
	if t := n.transport.Load(); t != nil {
		t.Send(to, envs)
	}
}

// loadKnown lists the replicas of the folder.
func (n *Node) loadKnown() {
	dir := filepath.Join(n.o.Dir, "groups")
	names, err := n.o.FS.List(dir)
	if err != nil {
		n.fail(fmt.Errorf("broker: list replicas: %w", err))
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range names {
		id, err := ids.ParseUUID(name)
		if err != nil {
			n.log.Warn().Str("folder", name).Msg("not the folder of a replica: ignored")
			continue
		}
		f, err := loadReplicaFile(n.o.FS, filepath.Join(dir, name))
		h := &hosted{file: f, wishes: n.loadWishes(filepath.Join(dir, name))}
		if err != nil {
			h.parked = err.Error()
		} else {
			if h.parked = f.Lost; f.Lost != "" {
				n.spawn(func() { n.peek(ids.GroupID(id), f) })
			}
		}
		n.replicas[ids.GroupID(id)] = h
	}
}

// patience is how long a starting node waits for a controller before it opens its replicas by itself. A living controller
// answers at once, and knows whether a folder is a restored backup, which must not vote.
const patience = time.Second

// openKnown opens the replicas that no controller asked for in time.
func (n *Node) openKnown() {
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-t.C:
	case <-n.ctx.Done():
		return
	}
	n.mu.Lock()
	var known []ids.GroupID
	for id := range n.replicas {
		known = append(known, id)
	}
	n.mu.Unlock()
	for _, id := range known {
		n.openReplica(id, nil, 0)
	}
}

// announce tells the controller the start counter of a log that has just been opened, and returns the greatest one that it knows:
// a copy of the folder that starts later is then known as a backup. Without a controller it gives up after a while.
func (n *Node) announce(id ids.GroupID, starts uint64) (seen uint64) {
	n.mu.Lock()
	n.replicas[id].starts = starts
	n.mu.Unlock()
	after := n.beats.Load() + 1 // the heartbeat under way may not carry it yet
	give := time.NewTimer(patience)
	defer give.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for waiting := true; waiting && n.beats.Load() <= after; {
		signal(n.beat)
		select {
		case <-tick.C:
		case <-give.C:
			waiting = false
			n.log.Warn().Stringer("group_id", id).Msg("no controller could confirm that this folder is not a restored backup")
		case <-n.ctx.Done():
			waiting = false
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.replicas[id].seen
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// park closes an open replica that turned out to have lost its identity, or that an operator took out of its group, as a crash would:
// nothing of it may be written or sent any more. It returns false when it does not: the node does not have the replica yet, somebody
// else has closed it, or the node is being closed and closes it like the others.
func (n *Node) park(r *Replica, why string, planned bool) bool {
	n.mu.Lock()
	h := n.replicas[r.gid]
	if h == nil || h.r != r || n.closing {
		n.mu.Unlock()
		return false
	}
	h.r, h.parked, h.file.Lost, h.closing = nil, why, why, true
	f := h.file
	n.wg.Go(func() {
		if planned && r.role.Load().Kind == raftlog.RoleParked { // it is in no epoch, so it writes and sends nothing while it waits
			r.forwarder.finish(n.ctx)
		}
		if r.office.removed.Load() {
			n.publish(r)
		}
		if err := r.close(false); err != nil {
			r.log.Error().Err(err).Msg("closing the parked replica")
		}
		n.peek(r.gid, f)
		n.mu.Lock()
		h.closing = false
		n.mu.Unlock()
	})
	n.mu.Unlock()
	n.remember(r.gid, why)
	tellParked(r.log, planned, why)
	return true
}

// tellParked says that a replica takes no part any more. What an operator wanted is nothing that he must act on.
func tellParked(log zerolog.Logger, planned bool, why string) {
	if planned {
		log.Warn().Str("reason", why).Msg("replica leaves its group: it neither votes, acknowledges nor leads any more")
		return
	}
	log.Error().Str("reason", why).Msg("replica is parked: it neither votes, acknowledges nor leads")
}

// openReplica opens a replica's folder beside the other work of the node. starts is the greatest start counter that the
// controller saw of it.
func (n *Node) openReplica(id ids.GroupID, record *raftlog.EpochRecord, starts uint64) {
	n.mu.Lock()
	h := n.replicas[id]
	if h == nil { // it was removed meanwhile
		n.mu.Unlock()
		return
	}
	h.seen = max(h.seen, starts)
	if h.opening || h.r != nil || h.parked != "" || n.nameInUse(id, h.file.Group) || h.file.Reviving && (record == nil || record.Epoch < h.file.Revived) {
		n.mu.Unlock()
		return
	}
	h.opening = true
	f := h.file
	n.mu.Unlock()
	n.spawn(func() {
		r, err := openReplica(n, id, f, record, starts)
		if errors.Is(err, errLost) {
			n.remember(id, err.Error())
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		h.opening = false
		if err != nil {
			h.parked = err.Error()
			if errors.Is(err, errLost) {
				h.file.Lost = h.parked
				f := h.file
				n.wg.Go(func() { n.peek(id, f) })
			}
			if h.file.Lost == "" && repairable(err) && !n.closing {
				p, fault := n.newRepair(h, id, err)
				if fault == nil {
					n.wg.Go(p.run)
					return
				}
				err = errors.Join(err, fault)
			}
			n.log.Error().Str("group", f.Group).Err(err).Msg("replica is parked: it neither votes, acknowledges nor leads")
			return
		}
		h.r = r
		n.kickRegistrars() // its first role came before anybody could see it
	})
}

// nameInUse tells whether another replica here still has the name and with it the client port: its group was removed, and its name given
// to this one. The caller holds mu.
func (n *Node) nameInUse(id ids.GroupID, name string) bool {
	for other, h := range n.replicas {
		if other != id && h.file.Group == name && (h.r != nil || h.opening || h.closing) {
			return true
		}
	}
	return false
}

// errLost marks an error of opening a replica that tells that its identity is lost for ever.
var errLost = errors.New("the identity of the replica is lost")

// remember writes into the replica's folder that its identity is lost, so that it stays parked also when it starts while no
// controller lives that could tell.
func (n *Node) remember(id ids.GroupID, why string) {
	dir := filepath.Join(n.o.Dir, "groups", id.String())
	f, err := loadReplicaFile(n.o.FS, dir)
	if err == nil && f.Lost == "" {
		f.Lost = why
		err = f.save(n.o.FS, dir)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.log.Error().Stringer("group_id", id).Err(err).Msg("cannot write down that the identity of this replica is lost: remove its folder")
	}
}

// rememberRemoved is remember for a replica whose group was removed: should all controllers be lost, new ones do not make the group again.
// It tells false when that could not be written.
func (n *Node) rememberRemoved(id ids.GroupID) bool {
	dir := filepath.Join(n.o.Dir, "groups", id.String())
	f, err := loadReplicaFile(n.o.FS, dir)
	if err == nil && !f.Removed {
		f.Removed = true
		if err = f.save(n.o.FS, dir); err != nil {
			n.log.Error().Str("group", f.Group).Err(err).Msg("cannot write down that the group was removed: tried again")
			return false
		}
	}
	return true // without a readable replica.json nobody takes it for a replica
}

// watchDisk keeps diskFull: less free than the larger of 5 % and two segments of the largest kind here.
func (n *Node) watchDisk() {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		var segment int64
		for _, h := range n.hostedList() {
			segment = max(segment, h.file.SegmentSize)
		}
		free, total, err := n.o.FS.Space(n.o.Dir)
		full := err == nil && free < max(total/20, uint64(2*segment))
		if n.diskFull.Swap(full) != full {
			if full {
				n.log.Error().Uint64("free_bytes", free).Msg("disk nearly full: sends are refused until there is room")
			} else {
				n.log.Info().Uint64("free_bytes", free).Msg("disk has room again: sends are taken")
			}
		}
		select {
		case <-t.C:
		case <-n.ctx.Done():
			return
		}
	}
}
