package openai

// skipPlain returns a number of plain string characters at the start of p: at most up to the first
// special one, and at least up to 15 bytes before the special one or the end of p.
//
// The code uses SSE2, which every amd64 processor has.
//
//go:noescape
func skipPlain(p []byte) int
