package llmserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"berth/internal/tcp"
)

// staleness is how soon a request must break on an old connection for that to
// be the connection's fault: later the replica had it and failed.
const staleWindow = time.Second

// Progress is how far a request came before it failed.
type Progress struct {
	Connected bool      // it had a connection
	Reused    bool      // which had served before
	Answered  bool      // some byte of an answer came
	At        time.Time // when it was connected
}

// Failure gives an error the sentinel that decides whether another try is
// allowed. Addresses are left out of the text: it may reach a client.
func (p Progress) Failure(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !p.Connected && tcp.Exhausted(err):
		return fmt.Errorf("%w: %s", ErrExhausted, FailureReason(err))
	case !p.Connected && timedOut(err):
		return fmt.Errorf("%w: %w", ErrNoConnection, ErrConnectTimeout)
	case !p.Connected:
		return fmt.Errorf("%w: %s", ErrNoConnection, FailureReason(err))
	case errors.Is(err, tcp.ErrSendTimeout):
		return fmt.Errorf("%w: %w", ErrTimeout, ErrSendTimeout)
	case p.Answered:
		return fmt.Errorf("%w: %s", ErrNotHTTP, FailureReason(err))
	case timedOut(err):
		return ErrTimeout
	case p.Reused && time.Since(p.At) < staleWindow:
		return fmt.Errorf("%w: %w", ErrBroken, ErrStale)
	default:
		return fmt.Errorf("%w: %s", ErrBroken, FailureReason(err))
	}
}

// timedOut tells a connection that was given up for its silence, by the kernel too.
func timedOut(err error) bool {
	n, ok := errors.AsType[net.Error](err)
	return ok && n.Timeout()
}

// FailureReason is the innermost cause of a network error, without addresses.
func FailureReason(err error) string {
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return dns.Err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "it was closed at the other end"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "its certificate could not be verified"
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		if op.Timeout() {
			return "timed out"
		}
		return op.Err.Error()
	}
	return err.Error()
}

// ProbeHealth asks for /health by do. Any answer below 500 counts: an engine without
// that path is alive too, while one that loads its model answers 503.
func ProbeHealth(ctx context.Context, do func(*http.Request, Token) (*http.Response, Report, error)) (Report, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/health", nil)
	if err != nil {
		return Report{}, err
	}
	resp, report, err := do(req, Token{})
	if err != nil {
		return report, err
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, io.LimitReader(resp.Body, 4<<10)) // so that the connection can be used again
	if resp.StatusCode >= http.StatusInternalServerError {
		return report, fmt.Errorf("its /health answered %s", cmp.Or(http.StatusText(resp.StatusCode), resp.Status))
	}
	return report, nil
}
