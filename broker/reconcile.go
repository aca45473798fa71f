package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/raftlog"
)

// controllerLoop registers the node and then sends a heartbeat every 200 ms for as long as the node lives, or every 50 ms while
// something is urgent. What the answers
// want is a state to work towards, never an event: a lost answer costs nothing.
func (n *Node) controllerLoop() {
	registered := false
	tick := time.NewTicker(urgentEvery)
	defer tick.Stop()
	var last time.Time
	for quiet := false; ; {
		err := n.controllerTurn(&registered)
		switch {
		case err == nil:
			n.heard.Store(n.o.Clock().UnixMilli())
			if quiet {
				n.log.Info().Msg("a controller answers again")
			}
			quiet = false
		case errors.Is(err, controller.ErrNodeConflict):
			n.log.Error().Err(err).Msg("the controller refuses this node")
			n.fail(err)
			return
		case errors.Is(err, controller.ErrUnregistered):
			registered = false
		case n.ctx.Err() == nil && !quiet:
			quiet = true
			n.log.Warn().Err(err).Msg("no controller answers: sends and consumers go on, membership stays as it is")
		}
		last = time.Now()
		for due := false; !due; {
			select {
			case <-tick.C:
				due = time.Since(last) >= heartbeatEvery || n.urgent()
			case <-n.beat:
				due = true
			case <-n.ctx.Done():
				return
			}
		}
	}
}

// urgent tells whether a replica here has news that must not wait for the next regular heartbeat.
func (n *Node) urgent() bool {
	for _, r := range n.open() {
		if controller.Urgent(r.raft.Status()) {
			return true
		}
	}
	return false
}

func (n *Node) controllerTurn(registered *bool) error {
	ctx, cancel := context.WithTimeout(n.ctx, callTimeout)
	defer cancel()
	n.mu.Lock()
	file := n.file
	n.mu.Unlock()
	check, err := ids.ParseUUID(file.CheckCode)
	if err != nil {
		return err
	}
	var cluster []byte
	if file.Cluster != "" {
		id, err := ids.ParseUUID(file.Cluster)
		if err != nil {
			return err
		}
		cluster = id[:]
	}
	if !*registered {
		resp, err := n.ctl.RegisterNode(ctx, &controllerpb.RegisterNodeRequest{NodeId: string(n.o.ID), CheckCode: check[:], ClusterId: cluster})
		if errors.Is(err, controller.ErrAwaitsRecovery) {
			return errors.Join(err, n.testify())
		}
		if err != nil {
			return err
		}
		if err := n.holdTo(resp.Recovery); err != nil {
			return err
		}
		file.Recovery = n.held()
		if file.Cluster == "" {
			if len(resp.ClusterId) != len(ids.UUID{}) {
				return fmt.Errorf("controller answered a cluster id of %d bytes", len(resp.ClusterId))
			}
			file.Cluster = ids.UUID(resp.ClusterId).String()
			if err := file.save(n.o.FS, n.o.Dir); err != nil {
				return err
			}
			n.mu.Lock()
			n.file = file
			n.mu.Unlock()
			if err := n.join(file.Cluster); err != nil {
				n.fail(err)
				return err
			}
		}
		*registered = true
	}
	resp, err := n.ctl.Heartbeat(ctx, n.report(check[:], cluster))
	if errors.Is(err, controller.ErrAwaitsRecovery) {
		return errors.Join(err, n.testify())
	}
	if err != nil {
		return err
	}
	if err := n.holdTo(resp.Recovery); err != nil {
		return err
	}
	if err := n.learnLevel(controller.Level(resp.Level)); err != nil {
		return err
	}
	n.learnControllers()
	n.learnNamesrv(resp.Namesrv)
	n.reconcile(resp)
	n.beats.Add(1)
	return nil
}

// learnLevel keeps the cluster's feature level, before anything is done in it: a folder that was used in it must not be opened by a
// program that does not understand it, also while no controller lives.
func (n *Node) learnLevel(level controller.Level) error {
	if level <= n.Level() {
		return nil
	}
	if err := controller.OwnLevels().Check(level); err != nil {
		n.fail(err)
		return err
	}
	n.mu.Lock()
	file := n.file
	n.mu.Unlock()
	file.Level = level
	if err := file.save(n.o.FS, n.o.Dir); err != nil {
		return err
	}
	n.mu.Lock()
	n.file.Level = level
	n.mu.Unlock()
	n.log.Info().Uint32("level", uint32(level)).Msg("the cluster's feature level")
	return nil
}

// Level is the cluster's feature level, as far as this node knows: nothing may be said or written that needs a higher one.
func (n *Node) Level() controller.Level {
	n.mu.Lock()
	defer n.mu.Unlock()
	return max(n.file.Level, 1)
}

// report tells the controller the state of all replicas here.
func (n *Node) report(check, cluster []byte) *controllerpb.HeartbeatRequest {
	req := &controllerpb.HeartbeatRequest{NodeId: string(n.o.ID), CheckCode: check, ClusterId: cluster,
		Addresses: &controllerpb.Addresses{Peer: n.o.PeerAdvertise, Metrics: n.o.MetricsAdvertise, Zone: n.o.Zone, Clients: map[string]string{}}}
	for _, h := range n.hostedList() {
		gid, err1 := ids.ParseUUID(h.file.GroupID)
		inc, err2 := ids.ParseUUID(h.file.Incarnation)
		if err1 != nil {
			continue // replica.json could not be read: the controller sees the replica as missing
		}
		rep := &controllerpb.ReplicaReport{GroupId: gid[:], ReplicaId: uint64(h.file.Replica), Parked: h.parked}
		if err2 == nil {
			rep.Incarnation = inc[:]
		}
		if h.parked != "" {
			rep.Role = controllerpb.Role_ROLE_PARKED
		}
		rep.Starts, rep.Missing, rep.IdentityLost, rep.DiskNearlyFull = h.starts, h.missing, h.file.Lost != "", n.diskFull.Load()
		if h.repair != nil {
			rep.Fetching = h.repair.progress(h.repair.what())
		}
		rep.Revived = uint32(h.file.Revived)
		if h.has != nil {
			h.has.report(rep)
		}
		if h.r != nil {
			h.r.report(rep)
			req.Addresses.Clients[h.file.Group] = h.r.advertise
		}
		req.Replicas = append(req.Replicas, rep)
	}
	return req
}

// reconcile works towards what the controller wants of this node.
func (n *Node) reconcile(resp *controllerpb.HeartbeatResponse) {
	if len(resp.ClusterId) != len(ids.UUID{}) {
		return
	}
	n.spare.Store(len(resp.Replicas) == 0)
	cluster := ids.ClusterID(resp.ClusterId)
	peers := map[string]string{}
	for _, w := range resp.Replicas {
		if len(w.GroupId) != len(ids.UUID{}) {
			continue
		}
		for _, o := range w.Others {
			if o.PeerAddress != "" {
				peers[o.NodeId] = o.PeerAddress
			}
		}
		n.reconcileReplica(cluster, ids.GroupID(w.GroupId), w)
	}
	n.learnPeers(peers)
}

// learnPeers tells the transport where the other nodes are, and keeps it for a start without a controller.
func (n *Node) learnPeers(peers map[string]string) {
	n.mu.Lock()
	next := maps.Clone(n.file.Peers)
	if next == nil {
		next = map[string]string{}
	}
	maps.Copy(next, peers)
	if maps.Equal(next, n.file.Peers) {
		n.mu.Unlock()
		return
	}
	n.file.Peers = next
	file := n.file
	n.mu.Unlock()
	if t := n.transport.Load(); t != nil {
		for node, addr := range peers {
			t.SetPeer(ids.NodeID(node), addr)
		}
	}
	if err := file.save(n.o.FS, n.o.Dir); err != nil {
		n.log.Error().Err(err).Msg("cannot keep the addresses of the other nodes")
	}
}

// learnNamesrv registers with the name servers that the controllers keep, at once, and keeps them for the next start.
func (n *Node) learnNamesrv(list []string) {
	n.mu.Lock()
	same := len(list) == 0 || slices.Equal(list, n.file.Namesrv)
	if !same {
		n.file.Namesrv = slices.Clone(list)
	}
	file := n.file
	n.mu.Unlock()
	if same {
		return
	}
	n.log.Info().Strs("namesrv", list).Msg("the name servers of this cluster")
	if err := file.save(n.o.FS, n.o.Dir); err != nil {
		n.log.Error().Err(err).Msg("cannot keep the addresses of the name servers")
	}
	n.registerWith(list)
}

// learnControllers keeps who the controllers are for the next start.
func (n *Node) learnControllers() {
	now := n.ctl.Addresses()
	n.mu.Lock()
	changed := n.file.tell(now)
	file := n.file
	n.mu.Unlock()
	if !changed {
		return
	}
	n.log.Info().Strs("controllers", now).Msg("the controllers of this cluster")
	n.kickRegistrars() // tools ask the name servers where the controllers are
	if err := file.save(n.o.FS, n.o.Dir); err != nil {
		n.log.Error().Err(err).Msg("cannot keep the addresses of the controllers")
	}
}

func (n *Node) reconcileReplica(cluster ids.ClusterID, id ids.GroupID, w *controllerpb.WantedReplica) {
	n.mu.Lock()
	h := n.replicas[id]
	n.mu.Unlock()
	switch {
	case h != nil && w.Retired:
		if !n.forwardsOn(h, w) {
			n.retire(id, h, w, w.Lost)
		}
		return
	case w.Retired:
		return // moved away already
	case h != nil && ids.ReplicaID(w.ReplicaId) > h.file.Replica && (h.file.Replica != 0 || len(w.Incarnation) == 0):
		// A folder whose replica.json cannot be read stays where it is, parked, as long as it may be that replica's.
		n.retire(id, h, w, fmt.Sprintf("replica %d follows it", w.ReplicaId))
		return // the next heartbeat finds no folder, and makes one, or tells that the other one's is gone: this one came back from a backup
	case h != nil && ids.ReplicaID(w.ReplicaId) < h.file.Replica:
		return // a controller that does not know yet who was followed by this one: what it says of that one is not for this one
	}
	if h == nil {
		if h = n.firstSight(cluster, id, w); h == nil {
			return // tried again with the next heartbeat
		}
	}
	var record *raftlog.EpochRecord
	if len(w.EpochRecord) > 0 {
		r, err := raftlog.DecodeEpochRecord(w.EpochRecord)
		if err != nil {
			n.log.Error().Str("group", w.GroupName).Err(err).Msg("the controller sent an epoch record that cannot be read")
			return
		}
		record = &r
	}
	n.keepWishes(id, h, w)
	n.mu.Lock()
	if f := h.file; ids.Epoch(w.Revived) > f.Revived && ids.ReplicaID(w.ReplicaId) == f.Replica && f.Lost != "" {
		n.mu.Unlock()
		n.revive(id, h, w)
		return // the next heartbeat opens it
	}
	r, parked := h.r, h.parked
	given := w.Lost != "" && parked == "" && r == nil && !h.opening
	if given {
		h.parked, h.file.Lost = w.Lost, w.Lost
		parked = w.Lost
	}
	f := h.file
	n.mu.Unlock()
	if given {
		n.remember(id, w.Lost)
		tellParked(n.log.With().Str("group", w.GroupName).Uint64("replica", w.ReplicaId).Logger(), w.Planned, w.Lost)
		n.spawn(func() { n.peek(id, f) })
	}
	switch {
	case parked != "":
		if _, p := n.opened(id); p != nil {
			p.learn(w, record)
			if w.Lost != "" {
				n.giveUp(id, p, w.Lost)
			}
		}
	case r == nil:
		n.openReplica(id, record, w.Starts)
	default:
		r.wanted(record, w)
	}
}

// forwardsOn tells whether a replica that an operator took out stays open, because it led not long ago: clients with old routes reach the
// master through it, as through a node that drains.
func (n *Node) forwardsOn(h *hosted, w *controllerpb.WantedReplica) bool {
	n.mu.Lock()
	r := h.r
	n.mu.Unlock()
	if r == nil || !w.Planned || w.Removed || r.leads() || r.now().Sub(r.lastLed()) >= forwardAfter {
		return false
	}
	r.learnOthers(w)
	if !r.office.retired.Swap(true) {
		r.office.quiet.Store(math.MaxInt64)
		r.log.Warn().Str("reason", w.Lost).Msg("replica leaves its group: it forwards to the master until clients have new routes")
	}
	return true
}

// retire closes a replica that was given up or removed, for ever, and moves its folder out of the way of another one. It is kept: what
// it holds may be the only copy of something, whatever went wrong.
func (n *Node) retire(id ids.GroupID, h *hosted, w *controllerpb.WantedReplica, why string) {
	n.mu.Lock()
	r, busy := h.r, h.opening || h.closing
	if r == nil && !busy && h.parked == "" {
		h.parked = why // nobody opens it any more
	}
	if h.repair != nil {
		h.repair.stop()
		busy = true
	}
	n.mu.Unlock()
	u := uncleanOf(w.Unclean, h.file.Replica)
	switch {
	case r != nil:
		r.office.removed.Store(w.Removed)
		n.park(r, why, u == nil)
		return
	case busy:
		return
	case u != nil && !h.told:
		n.tellRemoved(id, h, u)
		return
	}
	if w.Removed && !n.rememberRemoved(id) {
		return // tried again
	}
	from := filepath.Join(n.o.Dir, "groups", id.String())
	lost := filepath.Join(n.o.Dir, LostFolder)
	to := filepath.Join(lost, fmt.Sprintf("%s-%d", id, h.file.Replica))
	err := vfs.MkdirDurable(n.o.FS, lost)
	if err == nil {
		err = n.o.FS.Rename(from, to)
	}
	if err == nil {
		err = errors.Join(n.o.FS.SyncDir(lost), n.o.FS.SyncDir(filepath.Dir(from)))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.log.Error().Str("group", w.GroupName).Err(err).Msg("the folder of a replica that was given up cannot be moved away: tried again")
		return
	}
	n.log.Warn().Str("group", w.GroupName).Uint64("replica", uint64(h.file.Replica)).Str("reason", why).Str("folder", to).
		Msg("a replica is gone for ever; its folder is kept, remove it when nobody needs it")
	n.mu.Lock()
	delete(n.replicas, id)
	n.mu.Unlock()
}

// tellRemoved writes the report of what an unclean election removed, beside the heartbeats: the log may be long. The folder is moved
// away after that.
func (n *Node) tellRemoved(id ids.GroupID, h *hosted, u *controllerpb.UncleanElection) {
	n.mu.Lock()
	h.closing = true
	f := h.file
	n.mu.Unlock()
	n.wg.Go(func() {
		dir := filepath.Join(n.o.Dir, "groups", id.String())
		messages, err := writeRemoved(n.o, dir, f, u)
		e := n.log.Error().Str("group", f.Group).Uint64("replica", uint64(f.Replica)).Uint32("epoch", u.Epoch)
		if err != nil {
			e.Err(err).Msg("what an unclean election removed of this replica cannot be listed; its folder is kept in lost/")
		} else {
			e.Int("messages", messages).Str("report", RemovedFile).Msg("an unclean election removed what only this replica had: its folder and a list of the messages are kept in lost/")
		}
		n.mu.Lock()
		h.closing, h.told = false, true
		n.mu.Unlock()
	})
}

// LostFolder is the folder, in a node's data folder, that keeps the folders of replicas that were given up.
const LostFolder = "lost"

// firstSight is called for a replica that has no folder here. It is created only while the controller knows no incarnation of
// it: an id whose folder is gone is a lost one, never a fresh one. It returns nil when the creation failed.
func (n *Node) firstSight(cluster ids.ClusterID, id ids.GroupID, w *controllerpb.WantedReplica) *hosted {
	h := &hosted{file: replicaFile{Group: w.GroupName, GroupID: id.String(), Replica: ids.ReplicaID(w.ReplicaId), Slot: ids.Slot(w.Slot), SegmentSize: w.SegmentSize}}
	if len(w.Incarnation) > 0 {
		h.parked = fmt.Sprintf("the folder %s of replica %d is missing: this disk was wiped or is another one; its identity is lost",
			filepath.Join(n.o.Dir, "groups", id.String()), w.ReplicaId)
		h.missing = true
		n.log.Error().Str("group", w.GroupName).Msg(h.parked)
	} else if f, err := n.create(id, cluster, w); err != nil {
		n.log.Error().Str("group", w.GroupName).Err(err).Msg("the folder of a replica cannot be created: tried again")
		if err := n.sweepUnfinished(); err != nil {
			n.log.Error().Err(err).Msg("what is left of it cannot be removed")
		}
		return nil
	} else {
		h.file = f
		n.log.Info().Str("group", w.GroupName).Uint64("replica", w.ReplicaId).Msg("replica created")
	}
	n.mu.Lock()
	n.replicas[id] = h
	n.mu.Unlock()
	return h
}
