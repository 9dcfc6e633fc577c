package routers

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrQueueFull: every replica is full and so is the waiting line.
	ErrQueueFull = errors.New("every replica is busy and the waiting line is full")
	// ErrQueueTimeout: no slot came free in time.
	ErrQueueTimeout = errors.New("every replica stayed busy until the wait was over")
	// ErrClosed: the model is no longer served.
	ErrClosed = errors.New("the model is no longer served")
	// ErrDispatched: a selection is dispatched at most once, and not after its release.
	ErrDispatched = errors.New("the selection was dispatched or released before")
)

// UnavailableError says that no replica can be expected to serve a request.
type UnavailableError struct {
	Replicas int      // how many there are
	Reasons  []string // what those that are not available said last, with their names
	Tried    int      // how many of the others this request has tried in vain
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
