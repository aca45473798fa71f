//go:build !linux

package vfs

// BootID is not known on these systems: every start counts as one of the machine.
func BootID() string { return "" }
