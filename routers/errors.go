package routers

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrQueueFull: every replica is full, and the queue has Limits.MaxQueued requests.
	ErrQueueFull = errors.New("every replica is busy and the queue is full")
	// ErrQueueTimeout: no slot became free within Limits.QueueTimeout.
	ErrQueueTimeout = errors.New("every replica stayed busy until the queue timeout")
	// ErrClosed: the router was closed, since its model is no longer served.
	ErrClosed = errors.New("the model is no longer served")
	// ErrDispatched: a selection is dispatched at most once, and not after its release.
	ErrDispatched = errors.New("the selection was dispatched or released before")
)

// UnavailableError reports that no replica can be expected to serve a request.
type UnavailableError struct {
	Replicas int      // that may serve the request: all members, or the one that it is pinned to
	Reasons  []string // why each unavailable replica is unavailable, with its label
	Tried    int      // available replicas that this request has tried without success
}

func (e *UnavailableError) Error() string {
	text := fmt.Sprintf("none of %d replicas is available", e.Replicas)
	if e.Tried > 0 {
		text = fmt.Sprintf("none of %d replicas is left, %d tried in vain", e.Replicas, e.Tried)
	}
	if len(e.Reasons) > 0 {
		text += ": " + strings.Join(e.Reasons, "; ")
	}
	return text
}
