package broker

import (
	"os"
	"strconv"
	"strings"
	"sync"
)

// memoryBytes is the size of the machine's memory, read once; 8 GiB where it cannot be read.
var memoryBytes = sync.OnceValue(func() int64 {
	const fallback = 8 << 30
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return fallback
	}
	for line := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(line, "MemTotal:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
		if err == nil && kib > 0 {
			return kib << 10
		}
	}
	return fallback
})
