package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"

	"github.com/ledgermq/ledgermq/internal/loopback"
)

const (
	// Below the range from which Linux usually takes ports for outgoing connections.
	firstPort = 15000
	lastPort  = 32000
	portRange = 200
)

// Place is where a cluster of a test listens.
type Place struct {
	// Host is a loopback address of its own, so that a member that is down for a while finds its ports free: whoever connects to anything has its
	// port on another address. Where the system has 127.0.0.1 alone, it is that.
	Host string
	Base int // the first of portRange ports that nobody else in this process has
}

// Addr is one of the ports, by its distance from the first.
func (p Place) Addr(n int) string { return net.JoinHostPort(p.Host, fmt.Sprint(p.Base+n)) }

var places struct {
	sync.Mutex
	taken map[int]bool
}

// NewPlace reserves a place where nobody listens at this moment.
func NewPlace() (Place, error) { return reserve(loopback.Host) }

// NewPlaceOnLocalhost is NewPlace for programs that listen on 127.0.0.1 or on all addresses.
func NewPlaceOnLocalhost() (Place, error) { return reserve(func() string { return "127.0.0.1" }) }

func reserve(host func() string) (Place, error) {
	places.Lock()
	defer places.Unlock()
	if places.taken == nil {
		places.taken = make(map[int]bool)
	}
	for try := 0; try < 200; try++ {
		p := Place{Host: host(), Base: firstPort + portRange*rand.IntN((lastPort-firstPort)/portRange)}
		if !places.taken[p.Base] && p.isFree() {
			places.taken[p.Base] = true
			return p, nil
		}
	}
	return Place{}, fmt.Errorf("no %d free ports in a row between %d and %d", portRange, firstPort, lastPort)
}

// Release gives a place back.
func (p Place) Release() {
	places.Lock()
	defer places.Unlock()
	delete(places.taken, p.Base)
}

func (p Place) isFree() bool {
	for n := range portRange {
		l, err := net.Listen("tcp", p.Addr(n))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}
