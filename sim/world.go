package sim

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"
	"syscall"

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

// Site is what the groups of a run share: the clock, the machines, the first fault, and the trace.
type Site struct {
	Verdict
	Now   int64 // virtual microseconds
	Hosts []*Host

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

// Host is a machine, with one replica of each of some groups. They share its power, its process, its disk and its network.
type Host struct {
	Name  ids.NodeID
	Nodes []*Node

	running    bool // its process does
	life       int  // counts its processes
	boot       int  // counts the times that the machine was started
	powerAfter int  // the power goes after so many writes and syncs, 0: not
	failSync   bool // the next sync fails
	lostSync   bool // … and what it was to make durable stays in memory only, though later syncs go well
	full       bool // its disk has no room: no file gets longer, and none is made

	clock  int64 // by how much its wall clock is ahead, in microseconds
	paused int64 // until when its process does nothing
	silent bool  // it cannot reach the controllers
	agent  *agent
	hearer *leadership // the controller that answers it, though another one leads; nil: the one that leads does
}

// World is one group and all that is around it. It is used by one goroutine.
type World struct {
	*Site
	Cluster ids.ClusterID
	Group   ids.GroupID
	Nodes   []*Node
	Check   *Checker

	name    string
	mode    mode
	records []raftlog.EpochRecord // all that were issued: that of epoch e is at e-1
	active  ids.Epoch
	ops     []*Op
	begun   int // operations before the second phase
}

// NewWorld returns a world without nodes, alone on its site.
func NewWorld() *World { return newSite().newWorld(1) }

func newSite() *Site { return &Site{Logger: zerolog.Nop(), sum: fnv.New64a()} }

// newWorld returns the k-th group of a site.
func (s *Site) newWorld(k int) *World {
	w := &World{Site: s, name: fmt.Sprintf("g%d", k)}
	w.Cluster[0], w.Group[0] = 0xC1, 0x60+byte(k)
	w.Check = newChecker(&s.Verdict)
	return w
}

// Tracef adds a line to the trace.
func (s *Site) Tracef(format string, args ...any) {
	line := fmt.Sprintf("%10d ", s.Now) + fmt.Sprintf(format, args...) + "\n"
	io.WriteString(s.sum, line)
	if s.trace != nil {
		io.WriteString(s.trace, line)
	}
}

// TraceHash is the hash of all lines so far.
func (s *Site) TraceHash() uint64 { return s.sum.Sum64() }

// addHost makes a machine.
func (s *Site) addHost() *Host {
	h := &Host{Name: ids.NodeID(fmt.Sprintf("n%d", len(s.Hosts)+1))}
	s.Hosts = append(s.Hosts, h)
	return h
}

// newest is the newest record.
func (w *World) newest() raftlog.EpochRecord { return w.records[len(w.records)-1] }

// Node returns the node of replica id, or nil.
func (w *World) Node(id ids.ReplicaID) *Node {
	for _, n := range w.Nodes {
		if n.ID == id {
			return n
		}
	}
	return nil
}

// Node is a replica on a machine: its part of the disk, and while it is up a log, a replica and a state machine.
type Node struct {
	*Host
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

	gone     bool // removed from its group or followed by another one, and its node knows
	due      bool // a disk event is
	fetching bool // it is about to begin anew

	lost    string // why its identity is gone for ever: it is never opened again, its folder says so
	missing bool   // its folder is gone
	damage  error  // of its log, while it is being repaired
	harmed  bool   // a fault was injected that may cost its identity, or needs another replica's help
	rotten  bool   // … a flipped bit, which nobody may have met yet

	has      *hasLog   // what its log has, once its node has looked: it is lost, and the group asks
	revived  ids.Epoch // the unclean election that it won though it was lost
	reviving bool      // … and its log was not opened since
	out      bool      // another one won it: what this one applies is not the group's any more

	// Offer is what a master offered last, because this replica lacks what the group has given up. See Install.
	Offer *raftlog.Offer

	snapshot []Entry   // what the state machine keeps on disk
	received int       // length of snapshot when it came from another replica: the log may not reach it yet
	incoming []Entry   // on the disk too, and counts once the log begins behind what snapshot reaches
	synced   ids.Index // what it may have acknowledged, as of the last crash
	promised ids.Index // the last entry that it acknowledged and was not told to remove
	cut      ids.Index // while acks of a write leave: the first entry that later jobs of the same write wrote, 0: none
	votes    map[ids.Term]ids.ReplicaID
}

type writtenJobs struct {
	jobs []*raftlog.Job
	err  error
}

// AddNode makes a machine with an empty replica.
func (w *World) AddNode(id ids.ReplicaID) (*Node, error) { return w.addNode(w.addHost(), id) }

// addNode makes an empty replica on a machine.
func (w *World) addNode(h *Host, id ids.ReplicaID) (*Node, error) {
	n := &Node{Host: h, w: w, ID: id, Disk: vfs.NewMem(), votes: make(map[ids.Term]ids.ReplicaID)}
	n.Incarnation[0] = byte(id)
	w.Nodes, h.Nodes = append(w.Nodes, n), append(h.Nodes, n)
	if err := n.create(); err != nil {
		return nil, err
	}
	return n, nil
}

// create makes the folder of n.
func (n *Node) create() error {
	owner := raftlog.Owner{Replica: n.ID, Incarnation: n.Incarnation}
	return commitlog.Create(n.logOptions(n.Disk), owner.Encode())
}

// Member is n in an epoch record.
func (n *Node) Member() raftlog.Member {
	return raftlog.Member{ID: n.ID, Slot: ids.Slot(n.ID), Node: n.Name, Incarnation: n.Incarnation}
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

func (n *Node) logOptions(fs vfs.FS) commitlog.Options {
	return commitlog.Options{FS: fs, Dir: "log", Cluster: n.w.Cluster, Group: n.w.Group, SegmentSize: SegmentSize, SmallSegments: true, FillAhead: 32 << 10,
		Async: n.w.mode.Async, BootID: fmt.Sprintf("boot %d", n.boot)}
}

// rule is the disk's: it may lose its power in the middle of a write, fail a sync, or have no room.
func (n *Node) rule(op vfs.Op, name string, off int64, size int) error {
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
		if n.lostSync {
			return &vfs.LostSync{Err: errDisk}
		}
		return errDisk
	}
	if n.full {
		return n.noRoom(op, name, off, size)
	}
	return nil
}

// noRoom fails what makes a file, or makes one longer.
func (n *Node) noRoom(op vfs.Op, name string, off int64, size int) error {
	switch op {
	case vfs.OpCreate:
		return syscall.ENOSPC
	case vfs.OpWrite:
		if st, err := n.Disk.Stat(name); err == nil && off+int64(size) > st.Size {
			return &vfs.ShortWrite{N: int(max(st.Size-off, 0)), Err: syscall.ENOSPC}
		}
	}
	return nil
}

// Open starts the machine: it recovers the log and opens the replica, which knows what its state machine had on disk.
func (n *Node) Open(record *raftlog.EpochRecord) error {
	if n.Up {
		return fmt.Errorf("sim: replica %d is up already", n.ID)
	}
	n.Queue, n.written, n.failed, n.Offer = nil, nil, nil, nil
	o := n.logOptions(vfs.Inject(n.Disk, n.rule))
	o.AcceptLoss = n.reviving
	log, err := commitlog.Open(o)
	if err != nil {
		return err
	}
	n.Log = log
	if n.reviving {
		if err := n.begin(record); err != nil {
			return err
		}
	}
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
		Clock:  n.wall,
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

// wall is the machine's clock, in milliseconds.
func (n *Node) wall() int64 { return (n.w.Now + n.clock) / 1000 }

// Turn lets the replica do what follows from its inputs, and passes on what it gives out.
func (n *Node) Turn() {
	n.Replica.Turn(n.wall())
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
	for i, j := range jobs {
		n.cut = 0
		for _, later := range jobs[i+1:] {
			if len(later.Frames) > 0 && (n.cut == 0 || later.First < n.cut) {
				n.cut = later.First
			}
		}
		n.send(j.Acks)
	}
	n.cut = 0
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
		for _, j := range jobs {
			if len(j.Frames) > 0 && j.First <= n.promised {
				n.promised = j.First - 1 // a newer master has another entry there
			}
		}
	}
	if n.w.mutant != AckBeforeSync && n.failed == nil {
		n.sendAcks(jobs)
	}
	if n.w.mutant != AckBeforeSync || n.failed != nil {
		n.written = append(n.written, writtenJobs{jobs, n.failed})
	}
	return n.failed
}

// SyncBehind makes durable what was written, in a group that acknowledges before that.
func (n *Node) SyncBehind() error {
	if n.failed == nil {
		if n.failed = n.Log.SyncBehind(); n.failed != nil {
			n.written = append(n.written, writtenJobs{nil, n.failed})
		}
	}
	return n.failed
}

// mayAck is the last entry that n may acknowledge: what is durable, or only written, as its group wants.
func (n *Node) mayAck() ids.Index {
	if n.w.mode.Async {
		return n.Log.Tail().Index
	}
	synced, _ := n.Log.Synced()
	return synced
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

// FailSync lets the next sync of the machine's disk fail, whichever replica asks for it.
func (h *Host) FailSync() {
	h.failSync = true
	h.mayPark()
}

// PowerAfter lets the power go in the middle of the k-th write or sync from now on. Call PowerCut when a write has failed.
func (h *Host) PowerAfter(k int) {
	h.powerAfter = k
	h.mayPark()
}

func (h *Host) mayPark() {
	for _, n := range h.Nodes {
		n.w.Check.mayPark[n.ID] = true
	}
}

// CutFront gives up the front of n's log, as far as its snapshot allows. False: there is nothing to give up.
func (n *Node) CutFront() (bool, error) {
	synced, _ := n.Log.Synced()
	segs := n.Log.Segments()
	for i := len(segs) - 1; i > 0; i-- {
		if segs[i-1].LastIndex < ids.Index(len(n.snapshot)) && segs[i].FirstIndex <= synced {
			n.w.Tracef("r%d gives up what lies before entry %d", n.ID, segs[i].FirstIndex)
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
		n.w.Tracef("r%d does not take the offer of r%d: %v", n.ID, from.ID, err)
		return false, nil
	}
	n.w.Tracef("r%d begins anew behind entry %d of r%d, with the state at %d", n.ID, o.Front.Prev.Index, from.ID, o.Snapshot.Index)
	n.incoming = append([]Entry(nil), from.snapshot[:o.Snapshot.Index]...)
	power := n.powerAfter
	n.Kill()
	n.powerAfter = power
	err = commitlog.Reset(n.logOptions(vfs.Inject(n.Disk, n.rule)), o.Front)
	n.synced, n.promised = o.Front.Prev.Index, min(n.promised, o.Front.Prev.Index)
	return true, err
}

// Busy tells whether a write is queued or not yet known to the replica.
func (n *Node) Busy() bool { return len(n.Queue) > 0 || len(n.written) > 0 }

// PowerCut stops the machine; what was not synced is kept, lost or torn. r decides; a nil one is seeded with nothing.
func (h *Host) PowerCut(r *rand.Rand) {
	if r == nil {
		r = rand.New(rand.NewPCG(1, 1))
	}
	h.running = false
	h.boot++
	for _, n := range h.Nodes {
		n.down()
		n.Disk = n.Disk.Crash(r)
	}
}

// end ends the process of the machine.
func (h *Host) end() {
	h.running = false
	for _, n := range h.Nodes {
		n.Kill()
	}
}

// at returns the replica that the machine has of a group, or nil.
func (h *Host) at(w *World) *Node {
	for _, n := range h.Nodes {
		if n.w == w {
			return n
		}
	}
	return nil
}

// Kill stops the replica, as kill -9 does to its process: what was written is kept.
func (n *Node) Kill() {
	n.down()
	n.Disk = n.Disk.KillProcess()
}

func (n *Node) down() {
	if n.Log != nil {
		n.synced = n.mayAck()
	}
	if n.Machine != nil {
		n.Machine.lost()
	}
	n.Up, n.Log, n.Replica, n.Writer, n.Machine = false, nil, nil, nil, nil
	n.powerAfter, n.failSync, n.Queue, n.written = 0, false, nil, nil
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
	n.Replica.PeerDown(other.Name)
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
