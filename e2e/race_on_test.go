//go:build race

package e2e

// raceFlags and buildEnv have the binary built as this test was; the race detector needs cgo.
var (
	raceFlags = []string{"-race"}
	buildEnv  []string
)
