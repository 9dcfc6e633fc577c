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

// staleWindow is how soon after it was sent a request must break on a reused connection for the
// connection to be stale. Later than that, the replica has received the request and failed.
const staleWindow = time.Second

// Progress is how far a request got before it failed.
type Progress struct {
	Connected bool      // the request had a connection
	Reused    bool      // the connection had served a request before
	Answered  bool      // some byte of a response arrived
	At        time.Time // when the request got its connection
}

// Failure wraps err in the sentinel that decides whether the request may be retried. If ctx has
// ended, Failure returns the cause of that instead. The text contains no address, since clients may
// read it.
func (p Progress) Failure(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !p.Connected && tcp.Exhausted(err):
		return fmt.Errorf("%w: %s", ErrExhausted, FailureReason(err))
	case !p.Connected && isTimeout(err):
		return fmt.Errorf("%w: %w", ErrNoConnection, ErrConnectTimeout)
	case !p.Connected:
		return fmt.Errorf("%w: %s", ErrNoConnection, FailureReason(err))
	case errors.Is(err, tcp.ErrSendTimeout):
		return fmt.Errorf("%w: %w", ErrTimeout, ErrSendTimeout)
	case p.Answered:
		return fmt.Errorf("%w: %s", ErrNotHTTP, FailureReason(err))
	case isTimeout(err):
		return ErrTimeout
	case p.Reused && time.Since(p.At) < staleWindow:
		return fmt.Errorf("%w: %w", ErrBroken, ErrStale)
	default:
		return fmt.Errorf("%w: %s", ErrBroken, FailureReason(err))
	}
}

// isTimeout reports whether a connection was given up because the peer was silent, by the kernel or
// by a deadline.
func isTimeout(err error) bool {
	n, ok := errors.AsType[net.Error](err)
	return ok && n.Timeout()
}

// FailureReason returns the innermost cause of a network error, without addresses.
func FailureReason(err error) string {
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return dns.Err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "closed by peer"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "certificate verification failed"
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		if op.Timeout() {
			return "timed out"
		}
		return op.Err.Error()
	}
	return err.Error()
}

// ProbeHealth requests /health through do. Any status below 500 is a success: an engine without
// that path is alive too, while one that still loads its model responds 503.
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
	io.Copy(io.Discard, io.LimitReader(resp.Body, 4<<10)) // so that the connection can be reused
	if resp.StatusCode >= http.StatusInternalServerError {
		return report, fmt.Errorf("/health returned %s", cmp.Or(http.StatusText(resp.StatusCode), resp.Status))
	}
	return report, nil
}
