package e2e

import "syscall"

// leashed makes a process that leads a group of its own and dies with the test.
func leashed() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
