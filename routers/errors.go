package routers

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrQueueFull means a full queue: every replica is full, and Limits.MaxQueued requests wait.
	ErrQueueFull = errors.New("every replica is busy and the queue is full")
	// ErrQueueTimeout means a wait of Limits.QueueTimeout without a slot.
	ErrQueueTimeout = errors.New("every replica stayed busy until the queue timeout")
	// ErrOverloaded means a refusal during an overload: clients leave the queue before they are
	// served, and this request would wait for too long.
	ErrOverloaded = errors.New("every replica is busy and the wait would be too long")
	// ErrDeadline means that at the measured rate no slot becomes free for the request before the
	// deadline of the context.
	ErrDeadline = errors.New("every replica is busy until after the request's deadline")
	// ErrClosed means a closed router: the model is no longer served.
	ErrClosed = errors.New("the model is no longer served")
	// ErrDispatched means a second dispatch of a selection, or one after the release.
	ErrDispatched = errors.New("the selection was dispatched or released before")
)

// UnavailableError reports that no replica can be expected to serve a request.
type UnavailableError struct {
	Replicas int      // candidates for the request: all members, or only Payload.PinnedTo
	Reasons  []string // of each unavailable replica, with the label
	Tried    int      // available replicas tried without success
}

func (e *UnavailableError) Error() string {
	text := fmt.Sprintf("none of %d replicas is available", e.Replicas)
	switch {
	case e.Replicas == 0:
		text = "there is no replica"
	case e.Tried > 0:
		text = fmt.Sprintf("none of %d replicas is left, %d tried in vain", e.Replicas, e.Tried)
	}
	if len(e.Reasons) > 0 {
		text += ": " + strings.Join(e.Reasons, "; ")
	}
	return text
}
