package http1

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/tcp"
)

// Clients may read the reason, and Go's own words for the end of a stream mean nothing to them.
func TestErrorReasonNamesNoEOF(t *testing.T) {
	for _, err := range []error{io.EOF, io.ErrUnexpectedEOF, fmt.Errorf("reading: %w", io.EOF)} {
		if got := (&Error{Err: err}).Reason(); strings.Contains(got, "EOF") || got == "" {
			t.Errorf("Reason of %v = %q", err, got)
		}
	}
}

// A stale connection is the one failure after which the server has certainly not seen the request.
func TestErrorStaleNeedsAReusedConnectionThatBrokeSoon(t *testing.T) {
	reset := &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	timeout := &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ETIMEDOUT)}
	for name, c := range map[string]struct {
		err   Error
		after time.Duration
		stale bool
	}{
		"reused":                 {Error{Connected: true, Reused: true, Err: reset}, staleWindow - 1, true},
		"reused, at its end":     {Error{Connected: true, Reused: true, Err: io.EOF}, 0, true},
		"reused, later":          {Error{Connected: true, Reused: true, Err: reset}, staleWindow, false},
		"new":                    {Error{Connected: true, Err: reset}, 0, false},
		"not connected":          {Error{Reused: true, Err: reset}, 0, false},
		"response begun":         {Error{Connected: true, Reused: true, ResponseBegun: true, Err: reset}, 0, false},
		"timeout":                {Error{Connected: true, Reused: true, Err: timeout}, 0, false},
		"send timeout":           {Error{Connected: true, Reused: true, Err: tcp.ErrSendTimeout}, 0, false},
		"request body truncated": {Error{Connected: true, Reused: true, Err: errRequestBody}, 0, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			c.err.Start = time.Now()
			time.Sleep(c.after)
			if c.err.Stale() != c.stale {
				t.Errorf("%s: Stale = %t", name, !c.stale)
			}
		})
	}
}
