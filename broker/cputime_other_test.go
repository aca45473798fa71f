//go:build !linux

package broker

import "time"

var started = time.Now()

func cpuTime() time.Duration { return time.Since(started) }
