package sim

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"

	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/raftlog/peer"
)

// SegmentSize of the logs in a world: small, so that frames often meet the end of a segment.
const SegmentSize = 64 << 10

// errPower is what every operation of a disk returns after its machine lost power.
var errPower = errors.New("sim: the power is off")

// errDisk is an injected failure of a sync.
var errDisk = errors.New("sim: injected disk error")

// World is one group and all that is around it. It is used by one goroutine.
type World struct {
	Cluster ids.ClusterID
	Group   ids.GroupID
	Now     int64 // virtual microseconds
	Nodes   []*Node
	Check   *Checker

	// Sent is called with each message that leaves a node.
	Sent func(from *Node, o raftlog.Outgoing)
	// Role is called when the role of a node's replica changes.
	Role func(n *Node)
	// Config may change the configuration of a replica before it opens.
	Config func(*raftlog.Config)
	// Logger gets what the replicas log. Default: nothing.
	Logger zerolog.Logger

	mutant Mutant
	trace  io.Writer // also gets each line of the trace
	sum    interface {
		io.Writer
		Sum64() uint64
	}
}

// NewWorld returns a world without nodes.
func NewWorld() *World {
	w := &World{Logger: zerolog.Nop(), sum: fnv.New64a()}
	w.Cluster[0], w.Group[0] = 0xC1, 0x61
	w.Check = newChecker()
	return w
}

// Tracef adds a line to the trace.
func (w *World) Tracef(format string, args ...any) {
	line := fmt.Sprintf("%10d ", w.Now) + fmt.Sprintf(format, args...) + "\n"
	io.WriteString(w.sum, line)
	if w.trace != nil {
		io.WriteString(w.trace, line)
	}
}

// TraceHash is the hash of all lines so far.
func (w *World) TraceHash() uint64 { return w.sum.Sum64() }

// Node returns the node of replica id, or nil.
func (w *World) Node(id ids.ReplicaID) *Node {
	for _, n := range w.Nodes {
		if n.ID == id {
			return n
		}
	}
	return nil
}

// Node is a machine with one replica: a disk, and while it is up a log, a replica and a state machine.
type Node struct {
	w           *World
	ID          ids.ReplicaID
	Incarnation ids.Incarnation
	Disk        *vfs.Mem
	Up          bool

	Log     *commitlog.Log
	Replica *raftlog.Replica
	Writer  *raftlog.Writer
	Machine *Machine

	Queue   []*raftlog.Job // given out, not written
	written []writtenJobs  // written, the replica does not know yet
	failed  error          // of the writer

	powerAfter int  // the power goes after so many writes and syncs, 0: not
	failSync   bool // the next sync fails

	// Offer is what a master offered last, because this replica lacks what the group has given up. See Install.
	Offer *raftlog.Offer

	snapshot []Entry   // what the state machine keeps on disk
	received int       // length of snapshot when it came from another replica: the log may not reach it yet
	incoming []Entry   // on the disk too, and counts once the log begins behind what snapshot reaches
	synced   ids.Index // durable end as of the last crash
}

type writtenJobs struct {
	jobs []*raftlog.Job
	err  error
}

// AddNode makes a machine with an empty replica.
func (w *World) AddNode(id ids.ReplicaID) (*Node, error) {
	n := &Node{w: w, ID: id, Disk: vfs.NewMem()}
	n.Incarnation[0] = byte(id)
	w.Nodes = append(w.Nodes, n)
	owner := raftlog.Owner{Replica: id, Incarnation: n.Incarnation}
	if err := commitlog.Create(w.logOptions(n.Disk), owner.Encode()); err != nil {
		return nil, err
	}
	return n, nil
}

// Name is the node id of n.
func (n *Node) Name() ids.NodeID { return ids.NodeID(fmt.Sprintf("n%d", n.ID)) }

// Member is n in an epoch record.
func (n *Node) Member() raftlog.Member {
	return raftlog.Member{ID: n.ID, Slot: ids.Slot(n.ID), Node: n.Name(), Incarnation: n.Incarnation}
}

// Record makes an epoch record with these voters; all other nodes that learners names are learners.
func (w *World) Record(epoch ids.Epoch, a, minISR uint8, voters, learners []ids.ReplicaID) raftlog.EpochRecord {
	list := func(of []ids.ReplicaID) (out []raftlog.Member) {
		for _, id := range slices.Sorted(slices.Values(of)) {
			out = append(out, w.Node(id).Member())
		}
		return out
	}
	return raftlog.EpochRecord{Cluster: w.Cluster, Group: w.Group, Epoch: epoch, Voters: list(voters), Learners: list(learners),
		A: a, MinISR: minISR, SegmentSize: SegmentSize}
}

func (w *World) logOptions(fs vfs.FS) commitlog.Options {
	return commitlog.Options{FS: fs, Dir: "log", Cluster: w.Cluster, Group: w.Group, SegmentSize: SegmentSize, SmallSegments: true, FillAhead: 32 << 10}
}

// rule is the disk's: it may lose its power in the middle of a write, or fail a sync.
func (n *Node) rule(op vfs.Op, _ string, _ int64, size int) error {
	changes := op == vfs.OpWrite || op == vfs.OpSync || op == vfs.OpSyncDir || op == vfs.OpRename || op == vfs.OpCreate || op == vfs.OpTruncate
	if n.powerAfter < 0 {
		return errPower
	}
	if changes && n.powerAfter > 0 {
		if n.powerAfter--; n.powerAfter == 0 {
			n.powerAfter = -1
			if op == vfs.OpWrite {
				return &vfs.ShortWrite{N: size / 2, Err: errPower}
			}
			return errPower
		}
	}
	if op == vfs.OpSync && n.failSync {
		n.failSync = false
		return errDisk
	}
	return nil
}

// Open starts the machine: it recovers the log and opens the replica, which knows what its state machine had on disk.
func (n *Node) Open(record *raftlog.EpochRecord) error {
	if n.Up {
		return fmt.Errorf("sim: replica %d is up already", n.ID)
	}
	n.Queue, n.written, n.failed, n.failSync, n.Offer = nil, nil, nil, false, nil
	log, err := commitlog.Open(n.w.logOptions(vfs.Inject(n.Disk, n.rule)))
	if err != nil {
		return err
	}
	n.Log = log
	if log.FirstIndex() > ids.Index(len(n.snapshot))+1 {
		n.snapshot, n.received = n.incoming, len(n.incoming)
	}
	n.incoming = nil
	applied := ids.Index(len(n.snapshot))
	if len(n.snapshot) == n.received {
		applied = min(applied, log.Tail().Index)
	}
	n.Machine = newMachine(n, applied)
	cfg := raftlog.Config{
		Cluster: n.w.Cluster, Group: n.w.Group, Record: record, Replica: n.ID, Incarnation: n.Incarnation, Log: log, SM: n.Machine,
		Applied: applied,
		Newest: func(ids.Index) (raftlog.SnapshotID, bool) {
			return raftlog.SnapshotID{Index: ids.Index(len(n.snapshot)), Size: 1}, len(n.snapshot) > 0
		},
		Behind: func(o raftlog.Offer) { n.Offer = &o },
		Send:   func(ids.NodeID, []peer.Envelope) { panic("sim: a step function does not send") },
		Clock:  func() int64 { return n.w.Now / 1000 },
		Logger: n.w.Logger,
	}
	if n.w.Config != nil {
		n.w.Config(&cfg)
	}
	if n.Replica, err = raftlog.OpenReplica(cfg); err != nil {
		return err
	}
	if n.Writer, err = raftlog.NewWriter(log); err != nil {
		return err
	}
	n.Up = true
	n.Turn()
	return nil
}

// Turn lets the replica do what follows from its inputs, and passes on what it gives out.
func (n *Node) Turn() {
	n.Replica.Turn(n.w.Now / 1000)
	out := n.Replica.Take()
	n.send(out.Sends)
	n.Queue = append(n.Queue, out.Jobs...)
	if len(out.Jobs) > 0 && n.w.mutant == AckBeforeSync {
		// The replica hears of the end of a write before it has begun, and so do the others.
		n.sendAcks(out.Jobs)
		n.Replica.Completed(out.Jobs, nil)
		n.Turn()
	}
	n.Machine.Flush()
	n.w.Check.turn(n)
	if n.Replica.More() {
		n.Turn()
	}
}

func (n *Node) send(list []raftlog.Outgoing) {
	for _, o := range list {
		n.w.Check.leaves(n, o)
		if n.w.Sent != nil {
			n.w.Sent(n, o)
		}
	}
}

// sendAcks sends what written jobs allow to say. The writer does so at once, whether the replica knows of the write or not.
func (n *Node) sendAcks(jobs []*raftlog.Job) {
	for _, j := range jobs {
		n.send(j.Acks)
	}
}

// Deliver gives n one envelope.
func (n *Node) Deliver(env peer.Envelope) {
	n.Replica.Receive(env)
	n.Turn()
}

// Tick lets one tick of time pass at n.
func (n *Node) Tick() {
	n.Replica.Tick()
	n.Turn()
}

// Write lets the writer make all queued jobs durable. The replica hears of it with Complete.
func (n *Node) Write() error {
	jobs := n.Queue
	n.Queue = nil
	if len(jobs) == 0 {
		return nil
	}
	n.w.mutant.tamper(jobs)
	if n.failed == nil {
		n.failed = n.Writer.Write(jobs)
	}
	if n.w.mutant != AckBeforeSync && n.failed == nil {
		n.sendAcks(jobs)
	}
	if n.w.mutant != AckBeforeSync || n.failed != nil {
		n.written = append(n.written, writtenJobs{jobs, n.failed})
	}
	return n.failed
}

// Complete tells the replica of the oldest write that it does not know of. False: there is none.
func (n *Node) Complete() bool {
	if len(n.written) == 0 {
		return false
	}
	d := n.written[0]
	n.written = n.written[1:]
	jobs := d.jobs
	if n.w.mutant == AckBeforeSync {
		jobs = nil
	}
	n.Replica.Completed(jobs, d.err)
	n.Turn()
	return true
}

// FailSync lets the next sync of n's disk fail.
func (n *Node) FailSync() {
	n.failSync = true
	n.w.Check.mayPark[n.ID] = true
}

// PowerAfter lets the power go in the middle of the k-th write or sync from now on. Call PowerCut when a write has failed.
func (n *Node) PowerAfter(k int) {
	n.powerAfter = k
	n.w.Check.mayPark[n.ID] = true
}

// CutFront gives up the front of n's log, as far as its snapshot allows. False: there is nothing to give up.
func (n *Node) CutFront() (bool, error) {
	synced, _ := n.Log.Synced()
	segs := n.Log.Segments()
	for i := len(segs) - 1; i > 0; i-- {
		if segs[i-1].LastIndex < ids.Index(len(n.snapshot)) && segs[i].FirstIndex <= synced {
			n.w.Tracef("n%d gives up what lies before entry %d", n.ID, segs[i].FirstIndex)
			return true, n.Log.CutFront(segs[i].Base)
		}
	}
	return false, nil
}

// Install takes Offer: n's process ends, its log begins anew at the front of the offer, with the state that from has of it. Open it
// again then. done is false when the offer stands no more, or from has not what it offered.
func (n *Node) Install(from *Node) (done bool, err error) {
	o := n.Offer
	n.Offer = nil
	if err := o.Stands(n.Log); err != nil || len(from.snapshot) < int(o.Snapshot.Index) {
		n.w.Tracef("n%d does not take the offer of n%d: %v", n.ID, from.ID, err)
		return false, nil
	}
	n.w.Tracef("n%d begins anew behind entry %d of n%d, with the state at %d", n.ID, o.Front.Prev.Index, from.ID, o.Snapshot.Index)
	n.incoming = append([]Entry(nil), from.snapshot[:o.Snapshot.Index]...)
	power := n.powerAfter
	n.Kill()
	n.powerAfter = power
	err = commitlog.Reset(n.w.logOptions(vfs.Inject(n.Disk, n.rule)), o.Front)
	n.synced = o.Front.Prev.Index
	return true, err
}

// Busy tells whether a write is queued or not yet known to the replica.
func (n *Node) Busy() bool { return len(n.Queue) > 0 || len(n.written) > 0 }

// PowerCut stops the machine; what was not synced is kept, lost or torn. r decides; a nil one is seeded with nothing.
func (n *Node) PowerCut(r *rand.Rand) {
	if r == nil {
		r = rand.New(rand.NewPCG(1, 1))
	}
	n.down()
	n.Disk = n.Disk.Crash(r)
}

// Kill stops the process, as kill -9 does: what was written is kept.
func (n *Node) Kill() {
	n.down()
	n.Disk = n.Disk.KillProcess()
}

func (n *Node) down() {
	if n.Log != nil {
		n.synced, _ = n.Log.Synced()
	}
	if n.Machine != nil {
		n.Machine.lost()
	}
	n.Up, n.Log, n.Replica, n.Writer, n.Machine = false, nil, nil, nil, nil
	n.powerAfter, n.Queue, n.written = 0, nil, nil
}

// Status of the replica.
func (n *Node) Status() raftlog.Status { return n.Replica.Status() }

// Campaign is a named election of n.
func (n *Node) Campaign() {
	n.Replica.Campaign()
	n.Turn()
}

// Transfer asks n to hand its mastership over.
func (n *Node) Transfer(to ids.ReplicaID, done func(error)) {
	n.Replica.Transfer(to, done)
	n.Turn()
}

// Adopt gives n a record, as its controller does.
func (n *Node) Adopt(rec raftlog.EpochRecord) error {
	err := n.Replica.Adopt(rec)
	n.Turn()
	return err
}

// PeerDown tells n that its connection to the node of other is gone.
func (n *Node) PeerDown(other *Node) {
	n.Replica.PeerDown(other.Name())
	n.Turn()
}

// maxQueue bounds the operations that wait to be formed at one node.
const maxQueue = 40

// Propose lets n's state machine have op to form. It is refused when n is not master, or has too much waiting.
func (n *Node) Propose(op *Op) bool {
	if !n.Machine.master || len(n.Machine.queue) >= maxQueue {
		op.State = Refused
		return false
	}
	n.Machine.queue = append(n.Machine.queue, op)
	n.Replica.Wake()
	n.Turn()
	return true
}
