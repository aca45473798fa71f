package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/remoting"
)

// office is what a replica keeps about its mastership beside its role. A hand-over goes like this:
//
//	handOver: handing ──▶ requests are forwarded, which waits for the next master; what was taken before goes into the log
//	     Form finds nothing more: offsets are flushed, the inbox closes ──▶ raftlog asks the other one to campaign
//	     it leads: requests go there, the name servers are told ── or nobody took it: this replica goes on as master
//
// So no request that came before, during or after it fails.
type office struct {
	handing atomic.Bool                   // a hand-over is under way: this replica takes nothing more as master
	quiet   atomic.Int64                  // unix ms until which the name servers are told nothing, 0: they are told; see hush
	led     atomic.Int64                  // unix ms at which the last mastership ended, 0: none yet
	told    atomic.Pointer[raftlog.Role]  // the master and its term that the controller named last: they count while this replica is in no epoch
	retired atomic.Bool                   // an operator took this replica out of its group: it only forwards
	removed atomic.Bool                   // the controllers know the group no more
	ending  atomic.Bool                   // nor that, but for what is on its way
	turned  atomic.Pointer[chan struct{}] // closed when role or handing change
}

// hush is how long the name servers hear nothing of a replica that has handed over, so that the new master registers first and takes
// its place: a route without a master would make stock clients fail for 30 s. It is much longer than a registration takes on a good
// day, and costs only that this replica is not shown as a slave meanwhile. Who leads again speaks at once.
const hush = 5 * time.Second

// forwardAfter is how long a replica that was taken out of its group forwards after its last mastership: stock clients look at their
// routes every 30 s.
const forwardAfter = 35 * time.Second

// changed returns what is closed when the role, or whether this replica is handing over, changes next.
func (o *office) changed() <-chan struct{} {
	for {
		if c := o.turned.Load(); c != nil {
			return *c
		}
		c := make(chan struct{})
		o.turned.CompareAndSwap(nil, &c)
	}
}

// tell wakes who waits for a change.
func (o *office) tell() {
	c := make(chan struct{})
	if old := o.turned.Swap(&c); old != nil {
		close(*old)
	}
}

// errHanding is returned by handOver while another hand-over is under way.
var errHanding = errors.New("a hand-over is under way already")

// handOver gives the mastership to another voter and returns when that one leads, or with the reason why not; then this replica
// is master as before, if it still is.
func (r *Replica) handOver(to ids.ReplicaID) error {
	r.forwarder.prepare(to) // while this replica still takes requests
	if !r.office.handing.CompareAndSwap(false, true) {
		return errHanding
	}
	r.office.quiet.Store(math.MaxInt64)
	r.office.tell()
	ended := make(chan error, 1)
	if !r.raft.Transfer(to, func(err error) {
		r.handedOver(err)
		ended <- err
	}) {
		return raftlog.ErrClosed // so is the replica: it takes nothing more
	}
	return <-ended
}

// handedOver ends a hand-over, on the loop.
func (r *Replica) handedOver(err error) {
	if err == nil {
		r.office.quiet.Store(r.now().Add(hush).UnixMilli())
		left := r.commits.take("") // before housekeeping proposes them here, in vain
		r.spawn(func() { r.passOnCommits(left) })
	} else {
		if r.role.Load().Kind == raftlog.RoleMaster {
			r.inbox.setOpen(true)
		}
		r.office.quiet.Store(0)
		r.routesChanged = true
	}
	r.office.handing.Store(false)
	r.office.tell()
}

// hushed tells whether the name servers are to be told nothing now.
func (o *office) hushed(now time.Time) bool { return now.UnixMilli() < o.quiet.Load() }

// speaks tells once that the time of telling nothing is over.
func (o *office) speaks(now time.Time) bool {
	until := o.quiet.Load()
	return until != 0 && now.UnixMilli() >= until && o.quiet.CompareAndSwap(until, 0)
}

// passOnCommits sends to the new master the consumer offsets that came one-way while this replica was giving up its office.
func (r *Replica) passOnCommits(left []state.ConsumerOffset) {
	for _, o := range left {
		t, lives := r.st.TopicByID(o.Topic)
		if !lives {
			continue
		}
		req := remoting.NewRequest(remoting.UpdateConsumerOffset)
		req.Set("consumerGroup", o.Group)
		req.Set("topic", t.Name)
		req.SetInt64("queueId", int64(o.Queue))
		req.SetInt64("commitOffset", int64(o.Offset))
		r.forwarder.oneWay(req)
	}
}

// successor returns the voter that is to take over from a master: it does its part and has the most of the log; of equal ones the
// one with the lowest slot. candidates tells whether there is one at all, at this moment or soon. Those in but are left out.
func successor(st raftlog.Status, but map[ids.ReplicaID]bool) (best ids.ReplicaID, candidates bool) {
	var found raftlog.MemberStatus
	for _, m := range st.Voters {
		if m.ID == st.Replica || !m.Heard || m.Closed {
			continue
		}
		candidates = true
		if m.Stalled > 0 || but[m.ID] {
			continue
		}
		if best == 0 || cmp.Or(cmp.Compare(m.Match, found.Match), -cmp.Compare(m.Slot, found.Slot)) > 0 {
			best, found = m.ID, m
		}
	}
	return best, candidates
}

// resignFor bounds the tries to find a successor that takes over.
const resignFor = 3 * time.Second

// resigns tells whether this replica led, and nobody else is known to lead now.
func (r *Replica) resigns() bool {
	role := r.role.Load()
	return role.Kind != raftlog.RoleParked && !r.lastLed().IsZero() && (role.Master == 0 || role.Master == r.id)
}

// resign hands the mastership to whoever can take it. It returns nil when another replica leads, and an error when nobody else can.
func (r *Replica) resign(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, resignFor)
	defer cancel()
	failed := map[ids.ReplicaID]bool{}
	last := fmt.Errorf("no other voter could lead within %v", resignFor)
	for r.resigns() {
		to, candidates := successor(r.raft.Status(), failed)
		switch {
		case !r.isMaster(): // an election is under way
		case !candidates:
			return errors.New("no other voter is there")
		case to == 0:
			clear(failed) // each had its turn, or does not advance just now
		default:
			if err := r.handOver(to); err != nil {
				failed[to], last = true, err
				r.log.Warn().Err(err).Uint64("to", uint64(to)).Msg("the mastership was not handed over")
			}
		}
		if r.resigns() && !r.pauseUntil(ctx) {
			return last
		}
	}
	return nil
}

// lastLed returns when this replica led last, now while it does, and zero when it never did.
func (r *Replica) lastLed() time.Time {
	if r.leads() {
		return r.now()
	}
	if at := r.office.led.Load(); at != 0 {
		return time.UnixMilli(at)
	}
	return time.Time{}
}

// Drain prepares the end of the process: every group's mastership goes to another voter, and then requests of clients with old
// routes are forwarded until each of these groups has had its new master for that long. It returns early when ctx ends, and in any
// case 2*resignFor after that long. A group in which no other voter can take over is told in the log and not waited for.
func (n *Node) Drain(ctx context.Context, forward time.Duration) {
	// A mastership that comes back again and again must not keep the process for ever.
	ctx, cancel := context.WithTimeout(ctx, forward+2*resignFor)
	defer cancel()
	n.draining.Store(true)
	signal(n.beat)
	for _, r := range n.open() {
		r.raft.Leave()
	}
	stuck := map[ids.GroupID]bool{}
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for told := false; ; told = true {
		n.resignAll(ctx, stuck)
		left := n.forwardsFor(forward, stuck)
		if left <= 0 || ctx.Err() != nil {
			return
		}
		if !told {
			n.log.Info().Dur("for", left).Msg("forwarding to the new masters until clients have new routes")
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// resignAll hands over what this node leads, all groups at a time, and adds to stuck those where nobody can take over.
func (n *Node) resignAll(ctx context.Context, stuck map[ids.GroupID]bool) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, r := range n.open() {
		if stuck[r.gid] || !r.resigns() {
			continue
		}
		all.Go(func() { // ends within resignFor
			err := r.resign(ctx)
			if err == nil {
				return
			}
			r.log.Warn().Err(err).Msg("no other replica can take over: the group has no master when this process has ended")
			mu.Lock()
			defer mu.Unlock()
			stuck[r.gid] = true
		})
	}
	all.Wait()
}

// forwardsFor returns how much longer a group of this node needs it to forward.
func (n *Node) forwardsFor(forward time.Duration, stuck map[ids.GroupID]bool) (left time.Duration) {
	for _, r := range n.open() {
		if led := r.lastLed(); !stuck[r.gid] && !led.IsZero() {
			left = max(left, led.Add(forward).Sub(r.now()))
		}
	}
	return left
}

// lastForm is Form's last look at a replica that gives up its office: consumer offsets that wait go into the log too, and when
// nothing more does the inbox closes. It runs on the loop.
func (r *Replica) lastForm() {
	r.flushCommits("", nil)
	r.forming = r.inbox.takeOrClose(r.forming)
}
