//go:build !linux

package tcp

import "syscall"

// A Watch is kept over one connection.
type Watch struct{}

// Start watches over nothing here.
func WatchClose(syscall.Conn, func()) (Watch, error) { return Watch{}, ErrUnsupported }

// Gone cannot tell here, and returns false.
func PeerClosed(syscall.Conn) bool { return false }

// Stop does nothing.
func (Watch) Stop() {}
