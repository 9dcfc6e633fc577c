package http1

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(benchmarkEnv) != "" { // the process of the benchmarks' server
		serveBenchmark()
		return
	}
	goleak.VerifyTestMain(m)
}
