//go:build !linux

package rocketmq

import "syscall"

// attributes puts the process in a group of its own, which a signal to the terminal does not reach.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
