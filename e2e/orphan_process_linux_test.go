package e2e

import "syscall"

// childProcAttr returns attributes of a process that leads its own process group and is killed when
// the test process ends. The kernel does so when the starting thread ends, so no test may end one.
func childProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
