package tcp

import (
	"errors"
	"net"
	"strings"
	"syscall"
)

// ownLimits are the errors of socket, connect and accept for which no peer can be blamed.
var ownLimits = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}

// Exhausted reports whether a network error came about because this process or its machine had no
// descriptor, port or memory left.
func Exhausted(err error) bool {
	for _, limit := range ownLimits {
		if errors.Is(err, limit) {
			return true
		}
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok { // it keeps the text of its cause alone
		return strings.HasSuffix(dns.Err, syscall.EMFILE.Error()) || strings.HasSuffix(dns.Err, syscall.ENFILE.Error())
	}
	return errors.Is(err, syscall.EADDRNOTAVAIL) && hasSource(err)
}

// hasSource reports whether this machine has an address from which that of the error can be
// reached. EADDRNOTAVAIL has two meanings: every port towards the address is taken, or there is no
// such source address, as for IPv6 where it is turned off. The second is no exhaustion. Connecting a
// UDP socket sends nothing and takes no TCP port, but needs the same source address.
func hasSource(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok {
		return true
	}
	to, ok := op.Addr.(*net.TCPAddr)
	if !ok {
		return true
	}
	c, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: to.IP, Port: to.Port, Zone: to.Zone})
	if err != nil {
		return !errors.Is(err, syscall.EADDRNOTAVAIL) && Exhausted(err)
	}
	c.Close()
	return true
}
