package llmserver

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// Errors for which a replica or its backend does not serve a request. A Replica wraps them with a
// label; errors.Is finds them. Callers decide by them whether a request may be retried.
var (
	// ErrFull: every slot is in use. The caller may queue for one.
	ErrFull = errors.New("all slots are in use")
	// ErrDraining: the replica admits nothing new and finishes the ongoing requests.
	ErrDraining = errors.New("draining")
	// ErrGone: the replica was removed from the set.
	ErrGone = errors.New("replica removed")
	// ErrToken: the slot's token is unknown to the agent, or spent.
	ErrToken = errors.New("unknown slot token")
	// ErrEjected: the circuit is open.
	ErrEjected = errors.New("ejected")
	// ErrSpent: the slot was started or released before.
	ErrSpent = errors.New("slot already started or released")

	// ErrNoConnection: no connection was established, so the replica has seen nothing of the
	// request.
	ErrNoConnection = errors.New("no connection")
	// ErrConnectTimeout is joined to ErrNoConnection if connecting took too long.
	ErrConnectTimeout = errors.New("timed out")
	// ErrExhausted: this process or the machine is out of descriptors, ports or memory for a
	// connection. The replica has seen nothing of the request and is not to blame.
	ErrExhausted = errors.New("out of file descriptors, ports or memory")
	// ErrBroken: the connection broke before the response was complete. The replica may have begun
	// to work on the request.
	ErrBroken = errors.New("connection broken")
	// ErrStale is joined to ErrBroken if the connection had been used before. Most likely the
	// replica closed the connection before the request arrived.
	ErrStale = errors.New("stale connection")
	// ErrTimeout: the connection was given up because the peer was silent for too long. The replica
	// may still be working on the request.
	ErrTimeout = errors.New("connection timed out")
	// ErrSilent: the request was abandoned after a time in which this replica sent no byte to any
	// client while a sibling responded.
	ErrSilent = errors.New("silent while other replicas responded")
	// ErrSendTimeout is joined to ErrTimeout if the replica stopped reading the request.
	ErrSendTimeout = errors.New("replica stopped reading the request")
	// ErrNotHTTP: the response could not be parsed.
	ErrNotHTTP = errors.New("invalid HTTP response")
	// ErrServerError: the response was a 5xx that is not a refusal. The request may be to blame.
	ErrServerError = errors.New("server error")
	// ErrEngineDead: the engine behind the server has died, see Classify. The request may have
	// killed it.
	ErrEngineDead = errors.New("engine dead")
	// ErrModelNotServed: the server does not serve the requested model, and has done nothing.
	ErrModelNotServed = errors.New("model not served")
	// ErrAborted: the engine aborted the request, which ended with an incomplete response.
	ErrAborted = errors.New("aborted by the engine")
	// ErrBusy: the engine refused the request in the engine's own format, see Classify.
	ErrBusy = errors.New("engine busy")
)

// errUnclear marks the error of a reservation that may have been granted all the same.
var errUnclear = errors.New("reservation outcome unknown")

// Refused reports whether err proves that the replica has seen nothing of a request and holds
// nothing for it. Such a request may be sent to another replica.
func Refused(err error) bool {
	return errors.Is(err, ErrFull) || errors.Is(err, ErrDraining) || errors.Is(err, ErrGone) ||
		errors.Is(err, ErrToken) || errors.Is(err, ErrNoConnection)
}

// A Backend is the transport to one replica. Many goroutines call the methods at once. A Report is
// non-zero only for a replica that counts its own slots, and may accompany an error.
type Backend interface {
	// Reserve requests the slot named t and queues for at most wait. After an error that is Refused
	// the backend holds nothing; after any other error the caller calls Cancel.
	Reserve(ctx context.Context, t Token, wait time.Duration) (Report, error)
	// Cancel releases a reserved slot that was not dispatched. Cancel is idempotent, and an unknown
	// token is not an error.
	Cancel(ctx context.Context, t Token) (Report, error)
	// Do sends the request into the slot t, or without a slot if t is zero, and returns when the
	// response header has arrived. The request's URL holds path and query only. Do never sends a
	// request twice. An error is Refused, ErrBroken, ErrTimeout, ErrNotHTTP, ErrExhausted, or the
	// cause of the context's end.
	Do(req *http.Request, t Token) (*http.Response, Report, error)
	// Probe checks whether the replica can serve; the error's text gives the reason if not.
	Probe(ctx context.Context) (Report, error)
	// Describe sets the replica's name, keys and timeouts. Describe is called before any other
	// method, and again after each change.
	Describe(e Endpoint)
	// Close closes idle connections; ongoing requests are not affected.
	Close()
}
