package http1

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"

	"berth/internal/tcp"
)

// staleWindow is how soon a request must fail on a reused connection for the connection to be at
// fault. Later the server had the request and failed.
const staleWindow = time.Second

// Error is the error of a request for which no response header was received. It records how far the
// request came, from which a caller decides whether another attempt is safe.
type Error struct {
	Connected     bool      // the request had a connection
	Reused        bool      // the connection had carried another request before
	ResponseBegun bool      // at least one byte of a response was received
	Start         time.Time // when the request got its connection
	Err           error     // the cause
}

// Error returns the reason without addresses, see Reason.
func (e *Error) Error() string { return e.Reason() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether connecting took too long, or the connection was given up because the
// server sent nothing, also by the kernel. A server that stopped reading the request is no timeout
// in this sense: the cause is tcp.ErrSendTimeout then.
func (e *Error) Timeout() bool {
	n, ok := errors.AsType[net.Error](e.Err)
	return ok && n.Timeout()
}

// Stale reports whether the server most likely closed an idle connection before the request arrived,
// so that the server has not seen the request.
func (e *Error) Stale() bool {
	return e.Connected && e.Reused && !e.ResponseBegun && !e.Timeout() &&
		!errors.Is(e.Err, tcp.ErrSendTimeout) && !errors.Is(e.Err, errRequestBody) &&
		time.Since(e.Start) < staleWindow
}

// Reason returns the innermost cause without addresses, so that the text may reach a client.
func (e *Error) Reason() string { return reason(e.Err) }

func reason(err error) string {
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
