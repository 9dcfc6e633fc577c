package llmserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// The sentinel decides whether a request may be retried, so a request that the replica may be
// working on never fails with ErrStale.
func TestProgressFailureDecidesRetries(t *testing.T) {
	reset := dialError("read", syscall.ECONNRESET, nil)
	silent := &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ETIMEDOUT)} // by the kernel's probes
	for name, c := range map[string]struct {
		progress Progress
		after    time.Duration
		err      error
		want     []error // of those that decide
		text     string
	}{
		"not connected":                    {Progress{}, 0, reset, []error{ErrNoConnection}, "no connection: read: connection reset by peer"},
		"not connected in time":            {Progress{}, 0, silent, []error{ErrNoConnection, ErrConnectTimeout}, "no connection: timed out"},
		"new":                              {Progress{Connected: true}, 0, reset, []error{ErrBroken}, ""},
		"used before":                      {Progress{Connected: true, Reused: true}, staleWindow - 1, reset, []error{ErrBroken, ErrStale}, ""},
		"used before, and it had time":     {Progress{Connected: true, Reused: true}, staleWindow, reset, []error{ErrBroken}, ""},
		"silent":                           {Progress{Connected: true}, 0, silent, []error{ErrTimeout}, ""},
		"silent, used before":              {Progress{Connected: true, Reused: true}, 0, silent, []error{ErrTimeout}, ""},
		"some of the response":             {Progress{Connected: true, Answered: true}, 0, reset, []error{ErrNotHTTP}, ""},
		"some of it, on one used before":   {Progress{Connected: true, Reused: true, Answered: true}, 0, reset, []error{ErrNotHTTP}, ""},
		"some of it, and silent from then": {Progress{Connected: true, Answered: true}, 0, silent, []error{ErrNotHTTP}, "invalid HTTP response: timed out"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.progress.At = time.Now()
				time.Sleep(c.after)
				err := c.progress.Failure(t.Context(), c.err)
				for _, sentinel := range []error{ErrNoConnection, ErrConnectTimeout, ErrBroken, ErrStale, ErrTimeout, ErrNotHTTP, ErrExhausted} {
					want := false
					for _, w := range c.want {
						want = want || w == sentinel
					}
					if errors.Is(err, sentinel) != want {
						t.Errorf("%v; want %v", err, c.want)
					}
				}
				if c.text != "" && err.Error() != c.text {
					t.Errorf("the text is %q; want %q", err, c.text)
				}
				gone, leave := context.WithCancelCause(t.Context())
				leave(errReplyLost)
				if err := c.progress.Failure(gone, c.err); err != errReplyLost {
					t.Errorf("when the client has gone: %v", err)
				}
			})
		})
	}
}

// Clients may read the reason, so it must not contain Go's internal term for the end of a stream.
func TestFailureReasonContainsNoEOF(t *testing.T) {
	for _, err := range []error{io.EOF, io.ErrUnexpectedEOF, fmt.Errorf("reading: %w", io.EOF)} {
		if got := FailureReason(err); strings.Contains(got, "EOF") || got == "" {
			t.Errorf("FailureReason(%v) = %q", err, got)
		}
	}
}
