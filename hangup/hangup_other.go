//go:build !linux

package hangup

import "syscall"

// A Watch is kept over one connection.
type Watch struct{}

// Start watches over nothing here.
func Start(syscall.Conn, func()) (Watch, error) { return Watch{}, ErrUnsupported }

// Gone cannot tell here, and returns false.
func Gone(syscall.Conn) bool { return false }

// Stop does nothing.
func (Watch) Stop() {}
