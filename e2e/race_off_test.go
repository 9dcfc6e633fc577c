//go:build !race

package e2e

// raceFlags and buildEnv have the binary built as this test was; without the race detector as it ships, which is static.
var (
	raceFlags []string
	buildEnv  = []string{"CGO_ENABLED=0"}
)
