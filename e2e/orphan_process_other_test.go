//go:build !linux

package e2e

import "syscall"

// leashed makes a process that leads a group of its own.
func leashed() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
