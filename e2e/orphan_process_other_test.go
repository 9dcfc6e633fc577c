//go:build !linux

package e2e

import "syscall"

// childProcAttr returns attributes of a process that leads its own process group.
func childProcAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
