package vfs

import (
	"os"
	"strings"
)

// BootID names this start of the machine, "" when the system does not tell: what was written and not synced survives the end of a
// process in it, and not the next one.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
