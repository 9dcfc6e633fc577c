package llmserver

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/http1"
)

// The sentinel decides whether the request may be sent again, so the failure of a request that the
// replica may be working on is never that of a stale connection.
func TestBackendErrorSentinelDecidesOnRetry(t *testing.T) {
	const staleWindow = time.Second // of package http1
	reset := dialError("read", syscall.ECONNRESET, nil)
	timeout := &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ETIMEDOUT)} // by the kernel's probes
	for name, c := range map[string]struct {
		err   http1.Error
		after time.Duration
		cause error
		want  []error // of those that decide
		text  string
	}{
		"not connected":                  {http1.Error{}, 0, reset, []error{ErrNoConnection}, "no connection: read: connection reset by peer"},
		"not connected in time":          {http1.Error{}, 0, timeout, []error{ErrNoConnection, ErrConnectTimeout}, "no connection: timed out"},
		"new":                            {http1.Error{Connected: true}, 0, reset, []error{ErrBroken}, ""},
		"reused":                         {http1.Error{Connected: true, Reused: true}, staleWindow - 1, reset, []error{ErrBroken, ErrStale}, ""},
		"reused, and it had time":        {http1.Error{Connected: true, Reused: true}, staleWindow, reset, []error{ErrBroken}, ""},
		"timeout":                        {http1.Error{Connected: true}, 0, timeout, []error{ErrTimeout}, ""},
		"timeout, reused":                {http1.Error{Connected: true, Reused: true}, 0, timeout, []error{ErrTimeout}, ""},
		"response begun":                 {http1.Error{Connected: true, ResponseBegun: true}, 0, reset, []error{ErrNotHTTP}, ""},
		"response begun, reused":         {http1.Error{Connected: true, Reused: true, ResponseBegun: true}, 0, reset, []error{ErrNotHTTP}, ""},
		"response begun, then a timeout": {http1.Error{Connected: true, ResponseBegun: true}, 0, timeout, []error{ErrNotHTTP}, "invalid HTTP response: timed out"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.err.Start, c.err.Err = time.Now(), c.cause
				time.Sleep(c.after)
				err := backendError(&c.err)
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
			})
		})
	}
}

// The cause of a context's end, for one.
func TestBackendErrorReturnsOtherErrorsUnchanged(t *testing.T) {
	if err := backendError(errReplyLost); err != errReplyLost {
		t.Errorf("it became %v", err)
	}
}
