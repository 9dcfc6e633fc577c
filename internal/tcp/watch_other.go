//go:build !linux

package tcp

import "syscall"

// A Watch is the registration of one connection with WatchClose.
type Watch struct{}

// WatchClose returns ErrUnsupported.
func WatchClose(syscall.Conn, func()) (Watch, error) { return Watch{}, ErrUnsupported }

// PeerClosed returns false.
func PeerClosed(syscall.Conn) bool { return false }

// Stop does nothing.
func (Watch) Stop() {}
