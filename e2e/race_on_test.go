//go:build race

package e2e

// raceFlags and buildEnv build the binary with the race detector, like this test. The race detector
// requires cgo.
var (
	raceFlags = []string{"-race"}
	buildEnv  []string
)
