//go:build !linux

package index

import "time"

var started = time.Now()

func cpuTime() time.Duration { return time.Since(started) }
