package ingress

import (
	"fmt"
	"os"

	"berth/llmserver"
)

// wireVariable is the environment variable that makes Go's net/http serve all connections, of clients
// and to replicas, without packages http1 and tcp and their raw system calls. That costs CPU time; it
// shows whether those packages are at fault.
const (
	wireVariable = llmserver.WireVariable
	plainWire    = llmserver.WireNetHTTP
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
