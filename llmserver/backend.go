package llmserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// What a replica or its backend answers when it does not take a request.
// Errors that pass through a Replica name it.
var (
	// ErrFull: every slot is taken. A freed one may be waited for.
	ErrFull = errors.New("all slots are taken")
	// ErrDraining: it takes nothing new and finishes what it has.
	ErrDraining = errors.New("draining")
	// ErrGone: it has left the set.
	ErrGone = errors.New("no longer part of the fleet")
	// ErrToken: the replica does not know the slot's token, or not any more.
	ErrToken = errors.New("the slot token is not known")
	// ErrEjected: it failed too many requests in a row.
	ErrEjected = errors.New("ejected")
	// ErrSpent: the slot was started or released before.
	ErrSpent = errors.New("the slot is spent")

	// ErrNoConnection: no connection could be made, so the replica has seen nothing of the request.
	ErrNoConnection = errors.New("no connection")
	// ErrConnectTimeout goes with ErrNoConnection where connecting took too long.
	ErrConnectTimeout = errors.New("timed out")
	// ErrExhausted: this process, or the machine that it runs on, is out of descriptors, ports or memory for a
	// connection. The replica has seen nothing of the request, and the error says nothing of the replica.
	ErrExhausted = errors.New("no descriptor, port or memory is left for a connection")
	// ErrBroken: the connection broke before any byte of the answer; the
	// replica may have begun the work.
	ErrBroken = errors.New("the connection broke before the answer began")
	// ErrStale goes with ErrBroken where the connection had been used before: the
	// replica most likely closed it before the request came.
	ErrStale = errors.New("the connection was an old one")
	// ErrTimeout: the connection was given up because nothing was heard for too
	// long; the replica may be at work yet.
	ErrTimeout = errors.New("nothing was heard for too long")
	// ErrSilent: the request was given up, as nothing came for it or anybody else while other replicas responded.
	ErrSilent = errors.New("nothing came while others responded")
	// ErrSendTimeout goes with ErrTimeout where the replica read nothing more of the request.
	ErrSendTimeout = errors.New("it stopped reading the request")
	// ErrNotHTTP: the answer could not be understood.
	ErrNotHTTP = errors.New("the answer is not HTTP")
	// ErrGateway: it answered 502, 503 or 504, and not in order to refuse.
	ErrGateway = errors.New("it answered that it cannot serve")
	// ErrBusy: its engine refused the request in its own words, see Busy.
	ErrBusy = errors.New("the engine is busy")
)

// errUnclear marks the error of a reservation that may have been granted.
var errUnclear = errors.New("the reservation had no clear answer")

// unclear marks err unless it is clear.
func unclear(err error) error {
	if Refused(err) {
		return err
	}
	return fmt.Errorf("%w: %w", errUnclear, err)
}

// Refused tells whether err says for certain that the replica has seen nothing
// of a request and holds nothing for it.
func Refused(err error) bool {
	return errors.Is(err, ErrFull) || errors.Is(err, ErrDraining) || errors.Is(err, ErrGone) ||
		errors.Is(err, ErrToken) || errors.Is(err, ErrNoConnection)
}

// Backend is how one replica is spoken to. Its methods are called from many goroutines at once. The
// reports are those of a replica that counts its own slots, zero else; they may come with an error
// too.
type Backend interface {
	// Reserve asks for the slot named t, and waits for one for as long as wait says. An error that
	// is Refused means that nothing is held; after any other Cancel follows.
	Reserve(ctx context.Context, t Token, wait time.Duration) (Report, error)
	// Cancel gives back a slot that was reserved but not dispatched. It is
	// idempotent, and a token that is not known is fine.
	Cancel(ctx context.Context, t Token) (Report, error)
	// Do sends the request into the slot t, or into none if t is zero, and returns when the head of
	// the answer is there. The request's URL holds path and query only. It never sends twice.
	// Errors: one that is Refused, ErrBroken, ErrTimeout, ErrNotHTTP, ErrExhausted, or the cause of
	// the context's end.
	Do(req *http.Request, t Token) (*http.Response, Report, error)
	// Probe asks whether the replica can serve; the error's text says why not.
	Probe(ctx context.Context) (Report, error)
	// Describe hears what the replica is called and how it is to be treated:
	// at first, and when that changes.
	Describe(e Endpoint)
	// Close lets go of idle connections; requests under way are not touched.
	Close()
}
