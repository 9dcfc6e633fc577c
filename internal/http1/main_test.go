package http1

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(replicaEnv) != "" { // the process of the benchmarks' server
		serveReplica()
		return
	}
	goleak.VerifyTestMain(m)
}
