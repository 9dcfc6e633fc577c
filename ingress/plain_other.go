//go:build !amd64

package ingress

// plainRun returns a number of bytes at the start of p that are plain string characters.
func plainRun(p []byte) int { return plainWords(p) }
