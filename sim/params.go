package sim

import (
	"fmt"
	"math/rand/v2"

	"github.com/ledgermq/ledgermq/raftlog"
)

// Params are what a seed draws first. Times are in virtual microseconds, rates are chances per event or per fault step.
type Params struct {
	Seed     uint64
	Replicas int
	A        uint8

	Safety   int64 // length of the phase with faults
	Liveness int64 // bound of the phase without

	DelayMin, DelayMax int64
	Ordered            bool // messages of one direction do not overtake each other, as on a connection
	Loss, Duplicate    float64
	DiskMin, DiskMax   int64
	DiskStall          float64 // chance that a write takes up to 400 ms

	Fault      int64   // a fault step comes so often
	Crash      float64 // chances of each fault in one step
	Partition  float64
	FailSync   float64
	Epoch      float64
	Campaign   float64
	Checkpoint float64
	Transfer   float64

	Inflight int            // frames in flight
	Limits   raftlog.Limits // small, so that bounds are met
	MaxOp    int            // bytes of a payload
	OpEvery  int64
}

func draw(seed uint64) Params {
	r := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	pick := func(list ...float64) float64 { return list[r.IntN(len(list))] }
	p := Params{
		Seed: seed, Replicas: 3, A: uint8(1 + r.IntN(3)),
		Safety: 12e6, Liveness: 20e6,
		DelayMin: 100, DelayMax: int64(pick(500, 5_000, 40_000)),
		Ordered: r.IntN(2) == 0,
		Loss:    pick(0, 0.01, 0.1), Duplicate: pick(0, 0.02, 0.1),
		DiskMin: 150, DiskMax: int64(pick(500, 5_000, 20_000)), DiskStall: pick(0, 0.005, 0.03),
		Fault: 50_000,
		Crash: pick(0, 0.01, 0.05), Partition: pick(0, 0.02, 0.06), FailSync: pick(0, 0, 0.005, 0.02),
		Epoch: pick(0, 0.01, 0.04), Campaign: pick(0, 0.01, 0.04), Checkpoint: 0.05,
		Inflight: 1 + r.IntN(4), MaxOp: int(pick(40, 400, 5_000)), OpEvery: int64(pick(5_000, 20_000)),
	}
	p.Limits = raftlog.Limits{Message: int64(pick(1_000, 20_000, 1<<20)), Inflight: int64(pick(2_000, 30_000, 8<<20)),
		Uncommitted: int64(pick(5_000, 16<<20)), Window: int64(pick(1, 10_000, 8<<20))}
	p.Transfer = pick(0, 0.02, 0.1)
	return p
}

func (p Params) String() string {
	type plain Params
	return fmt.Sprintf("%+v", plain(p))
}
