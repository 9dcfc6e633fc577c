package ingress

import (
	"fmt"
	"os"

	client "berth/internal/http1"
)

// wireVariable is the environment variable that has all connections, of clients and to replicas,
// served by Go's net/http alone, without packages ingress/http1, llmserver/http1, hangup and socket
// and their raw system calls. It costs CPU time, and tells whether those are at fault.
const (
	wireVariable = client.WireVariable
	plainWire    = client.PlainWire
)

// PlainWire reports whether Go's net/http alone is to serve connections.
func PlainWire() bool { return os.Getenv(wireVariable) == plainWire }

// checkWire refuses values of the variable that mean nothing.
func checkWire() error {
	if value := os.Getenv(wireVariable); value != "" && value != plainWire {
		return fmt.Errorf("the environment variable %s is %q; unset it, or set it to %s", wireVariable, value, plainWire)
	}
	return nil
}
