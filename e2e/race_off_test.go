//go:build !race

package e2e

// raceFlags and buildEnv build the binary like a release: static and without the race detector.
var (
	raceFlags []string
	buildEnv  = []string{"CGO_ENABLED=0"}
)
