//go:build !race

package e2e

// raceFlags have the binary built as this test was.
var raceFlags []string
