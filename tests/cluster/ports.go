package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

const (
	// Below the range from which Linux takes ports for outgoing connections, so that no client of another test is in the way.
	firstPort = 15000
	lastPort  = 32000
	portRange = 200
)

var ports struct {
	sync.Mutex
	taken map[int]bool
}

// PortBase reserves portRange ports in a row that nobody listens on at this moment, for this process, and returns the first.
func PortBase() (int, error) {
	ports.Lock()
	defer ports.Unlock()
	if ports.taken == nil {
		ports.taken = make(map[int]bool)
	}
	for try := 0; try < 200; try++ {
		base := firstPort + portRange*rand.IntN((lastPort-firstPort)/portRange)
		if !ports.taken[base] && rangeIsFree(base) {
			ports.taken[base] = true
			return base, nil
		}
	}
	return 0, fmt.Errorf("no %d free ports in a row between %d and %d", portRange, firstPort, lastPort)
}

// ReleasePortBase gives a range back.
func ReleasePortBase(base int) {
	ports.Lock()
	defer ports.Unlock()
	delete(ports.taken, base)
}

func rangeIsFree(base int) bool {
	for p := base; p < base+portRange; p++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}
