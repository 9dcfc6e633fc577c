//go:build !linux

package socket

import "net"

// Wrap returns c.
func Wrap(c net.Conn) net.Conn { return c }
