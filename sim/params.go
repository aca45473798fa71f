package sim

import (
	"fmt"
	"math/rand/v2"

	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/raftlog"
)

// Params are what a seed draws first. Times are in virtual microseconds, rates are chances per event or per fault step.
type Params struct {
	Seed      uint64
	Hosts     int
	Groups    []mode
	Decides   bool // the controllers decide as the product's do
	Adversary bool // epochs are issued at random, whatever the controllers let through
	Informs   bool // records are handed out at random, old ones too

	Safety int64 // length of the phase with faults
	Fresh  bool  // the controllers begin the phase without faults with a new leader

	ApplyMin, ApplyMax int64   // how long a controllers' proposal takes
	CallLoss           float64 // chance that a request to the controllers, or its answer, is lost

	DelayMin, DelayMax int64
	Ordered            bool // messages of one direction do not overtake each other, as on a connection
	Loss, Duplicate    float64
	DiskMin, DiskMax   int64
	DiskStall          float64 // chance that a write takes up to 400 ms

	Fault      int64   // a fault step comes so often
	Crash      float64 // chances of each fault in one step
	Partition  float64
	Reset      float64 // of a connection
	Pause      float64 // of a process
	Clock      float64 // of a machine, which steps
	FailSync   float64
	Controller float64 // the controllers' leader goes, or a node cannot reach them
	Epoch      float64 // of an adversary
	Inform     float64
	Campaign   float64
	Checkpoint float64
	Transfer   float64
	Cut        float64
	Operate    float64 // an operator changes the mode or the replicas of a group
	Full       float64 // of a disk, for a while
	Wipe       float64 // of a disk: the folder of a replica is gone
	Flip       float64 // of a bit of a log
	Blackout   float64 // of the power of all machines at once

	Inflight int            // frames in flight
	Limits   raftlog.Limits // small, so that bounds are met
	MaxOp    int            // bytes of a payload
	OpEvery  int64
}

// mode is that of a group: A answers of M members, the fewest voters, and whether replicas acknowledge before they sync.
type mode struct {
	A, M, MinISR int
	Async        bool
}

func draw(seed uint64) Params {
	r := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	pick := func(list ...float64) float64 { return list[r.IntN(len(list))] }
	groups := make([]mode, []int{1, 1, 2, 3}[r.IntN(4)])
	hosts := 0
	for i := range groups {
		m := [][2]int{{2, 2}, {2, 3}, {3, 3}, {2, 4}, {2, 2}, {2, 3}, {3, 3}, {2, 4}, {1, 2}}[r.IntN(9)]
		groups[i] = mode{A: m[0], M: m[1], MinISR: 1 + r.IntN(controller.Voters(m[0], m[1]))}
		hosts = max(hosts, m[1])
	}
	kind := r.IntN(4) // two of four: the product alone, then an adversary alone, then both
	p := Params{
		Seed: seed, Hosts: hosts, Groups: groups,
		Decides: kind != 2, Adversary: kind >= 2, Informs: kind >= 2,
		Safety: int64(pick(8e6, 20e6)), Fresh: r.IntN(2) == 0,
		ApplyMin: 500, ApplyMax: int64(pick(3_000, 30_000, 600_000)), CallLoss: pick(0, 0.02, 0.2),
		DelayMin: 100, DelayMax: int64(pick(500, 5_000, 40_000)),
		Ordered: r.IntN(2) == 0,
		Loss:    pick(0, 0.01, 0.1), Duplicate: pick(0, 0.02, 0.1),
		DiskMin: 150, DiskMax: int64(pick(500, 5_000, 20_000)), DiskStall: pick(0, 0.005, 0.03),
		Fault: 50_000,
		Crash: pick(0, 0.01, 0.05), Partition: pick(0, 0.02, 0.06), Reset: pick(0, 0.02), Pause: pick(0, 0, 0.02), FailSync: pick(0, 0, 0.005, 0.02),
		Controller: pick(0, 0.01, 0.05), Epoch: pick(0.02, 0.1, 0.3), Inform: pick(0, 0.05, 0.3), Campaign: pick(0, 0.01, 0.04), Checkpoint: 0.05,
		Inflight: 1 + r.IntN(4), MaxOp: int(pick(40, 400, 5_000)), OpEvery: int64(pick(5_000, 20_000)),
	}
	p.Limits = raftlog.Limits{Message: int64(pick(1_000, 20_000, 1<<20)), Inflight: int64(pick(2_000, 30_000, 8<<20)),
		Uncommitted: int64(pick(5_000, 16<<20)), Window: int64(pick(1, 10_000, 8<<20))}
	p.Transfer = pick(0, 0.02, 0.1)
	p.Cut = pick(0, 0.05, 0.3)
	p.Clock = pick(0, 0.01, 0.05)
	p.Operate = pick(0, 0, 0.01, 0.03)
	p.Full = pick(0, 0, 0.01)
	if !p.Adversary { // it knows nothing of replicas that are lost, and would need them
		p.Wipe, p.Flip = pick(0, 0.02, 0.05), pick(0, 0.02, 0.05)
		for i := range groups {
			groups[i].Async = r.IntN(4) == 0
		}
		p.Blackout = pick(0, 0, 0.01)
	}
	return p
}

func (p Params) String() string {
	type plain Params
	return fmt.Sprintf("%+v", plain(p))
}
