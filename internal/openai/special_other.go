//go:build !amd64

package openai

// skipPlain returns a number of plain string characters at the start of p: see skipPlainGeneric.
func skipPlain(p []byte) int { return skipPlainGeneric(p) }
