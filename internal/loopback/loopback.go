// Package loopback gives the servers of tests addresses that nobody else has. On 127.0.0.1 a server that is down for a while may find that its
// port has become the near end of somebody's outgoing connection, or the listener of another test; on an address of its own its ports stay free.
//
// Read Host.
package loopback

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
)

// Host returns an address of 127.0.0.0/8 that is most likely nobody's, or 127.0.0.1 where the system does not have the others.
func Host() string {
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err == nil {
		l.Close()
	}
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return "127.0.0.1"
	}
	return host
}
