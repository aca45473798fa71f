//go:build !linux

package state

import "time"

var started = time.Now()

func cpuTime() time.Duration { return time.Since(started) }
