package http1

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"

	"berth/internal/tcp"
)

// staleWindow is the time within which a request on a reused connection must fail to be attributed
// to the connection. After a later failure the server may have had the request.
const staleWindow = time.Second

// Error is the error of a request for which no response header was received. The fields record how
// far the request came, from which a caller decides whether another attempt is safe.
type Error struct {
	Connected     bool      // the request had a connection
	Reused        bool      // the connection was an idle one from the pool
	ResponseBegun bool      // at least one byte of a response was received
	Start         time.Time // the time at which the request got a connection
	Err           error     // the cause
}

// Error returns the reason without addresses, see Reason.
func (e *Error) Error() string { return e.Reason() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether connecting took too long, or the connection ended, also in the kernel,
// because the server sent nothing. A request no longer read by the server is no timeout in this
// sense: the cause is tcp.ErrSendTimeout then.
func (e *Error) Timeout() bool {
	n, ok := errors.AsType[net.Error](e.Err)
	return ok && n.Timeout()
}

// Stale reports whether the server most likely closed an idle connection before the request
// arrived, and so has not seen the request.
func (e *Error) Stale() bool {
	return e.Connected && e.Reused && !e.ResponseBegun && !e.Timeout() &&
		!errors.Is(e.Err, tcp.ErrSendTimeout) && !errors.Is(e.Err, errRequestBody) &&
		time.Since(e.Start) < staleWindow
}

// Reason returns the innermost cause without addresses. The text may be shown to clients.
func (e *Error) Reason() string { return errorReason(e.Err) }

func errorReason(err error) string {
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return dns.Err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "connection closed by peer"
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
