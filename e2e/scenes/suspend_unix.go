//go:build unix

package scenes

import (
	"os"
	"syscall"
)

// suspend stops a process, which keeps its connections.
func suspend(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

// resume continues a stopped process.
func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
