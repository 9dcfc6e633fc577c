package llmserver

import (
	"fmt"
	"io"
	"strings"
	"testing"
)

// Clients may read the reason, to whom Go's own words for the end of a stream say nothing.
func TestReasonNamesNoEOF(t *testing.T) {
	for _, err := range []error{io.EOF, io.ErrUnexpectedEOF, fmt.Errorf("reading: %w", io.EOF)} {
		if got := FailureReason(err); strings.Contains(got, "EOF") || got == "" {
			t.Errorf("Reason(%v) = %q", err, got)
		}
	}
}
