package ingress

import (
	"fmt"
	"os"

	"berth/llmserver"
)

// wireVariable is the environment variable to turn off berth's own HTTP/1.1 and raw system calls:
// with the value plainWire, Go's net/http alone serves clients and calls replicas, at the cost of
// CPU time. This shows whether a fault lies in berth's own code.
const (
	wireVariable = llmserver.WireVariable
	plainWire    = llmserver.WireNetHTTP
)

// PlainWire reports whether wireVariable selects Go's net/http for all connections.
func PlainWire() bool { return os.Getenv(wireVariable) == plainWire }

// checkWireVariable returns an error for an unknown value of wireVariable.
func checkWireVariable() error {
	if value := os.Getenv(wireVariable); value != "" && value != plainWire {
		return fmt.Errorf("the environment variable %s is %q; unset it, or set it to %s", wireVariable, value, plainWire)
	}
	return nil
}
