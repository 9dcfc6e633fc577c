package tcp

import (
	"errors"
	"net"
	"strings"
	"syscall"
)

// exhaustionErrors are the errors of socket, connect and accept without any fault of a peer.
var exhaustionErrors = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}

// Exhausted reports whether a network error means that this process or its machine had no
// descriptor, port or memory left.
func Exhausted(err error) bool {
	for _, errno := range exhaustionErrors {
		if errors.Is(err, errno) {
			return true
		}
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok { // a DNSError has only the text of its cause
		return strings.HasSuffix(dns.Err, syscall.EMFILE.Error()) || strings.HasSuffix(dns.Err, syscall.ENFILE.Error())
	}
	return errors.Is(err, syscall.EADDRNOTAVAIL) && hasSourceAddress(err)
}

// hasSourceAddress reports whether this machine has a source address for the destination of err.
// EADDRNOTAVAIL has two meanings: all ports towards the destination are in use, or there is no
// source address, such as for IPv6 where IPv6 is disabled. The second is no exhaustion. Connecting
// a UDP socket sends nothing and takes no TCP port, but needs the same source address.
func hasSourceAddress(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok {
		return true
	}
	dest, ok := op.Addr.(*net.TCPAddr)
	if !ok {
		return true
	}
	c, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: dest.IP, Port: dest.Port, Zone: dest.Zone})
	if err != nil {
		return !errors.Is(err, syscall.EADDRNOTAVAIL) && Exhausted(err)
	}
	c.Close()
	return true
}
