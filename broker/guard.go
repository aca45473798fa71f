package broker

import (
	"fmt"
	"runtime/debug"
)

// guarded runs f, on a goroutine beside the connections' readers and the worker pool, which guard themselves, and turns a panic into an
// error: what one client sent, or stored long ago, must not end the master, and then the next one, and then the next.
func (r *Replica) guarded(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error().Str("panic", fmt.Sprint(p)).Str("stack", string(debug.Stack())).Msg("what a client sent met a fault of this program: it is left out")
			err = fmt.Errorf("internal error: %v", p)
		}
	}()
	return f()
}
