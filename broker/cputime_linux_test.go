package broker

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime returns the processor time of this thread, so that a measurement on a shared machine does not count the work of
// others. The caller has locked its goroutine to the thread.
func cpuTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}
