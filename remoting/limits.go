package remoting

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Errors of connections.
var (
	// ErrClosed is returned when the connection ended while a call waited: whether the server did the work is unknown.
	ErrClosed = errors.New("remoting: the connection was closed")
	// ErrNotSent is returned when nothing of the request left this process: the server cannot have done the work.
	ErrNotSent = errors.New("remoting: the request was not sent")
)

var (
	errIdle       = errors.New("nothing was read or written for the idle timeout")
	errSlowReader = errors.New("the peer reads too slowly: too many bytes wait for it")
	errHandler    = errors.New("the handler panicked after it had taken a pending answer")
)

// requestCost is what a request that waits counts beyond its frame: the memory of those who remember it.
const requestCost = 512

// limits are the bounds that all connections of a server, or one client, share.
type limits struct {
	inFlightPerConn int64
	inFlightTotal   int64
	outputPerConn   int64
	outputTotal     int64
	idle            time.Duration

	inFlight atomic.Int64 // bytes of requests that wait for an answer, and of read buffers beyond the ordinary size
	output   atomic.Int64 // bytes of answers that wait for a socket
}

func positive(faults []error, name string, v int64) []error {
	if v < 0 {
		return append(faults, fmt.Errorf("%s is %d, it must be positive", name, v))
	}
	return faults
}
