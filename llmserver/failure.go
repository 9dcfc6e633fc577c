package llmserver

import (
	"errors"
	"fmt"

	"berth/internal/http1"
	"berth/internal/tcp"
)

// backendError returns the error of Backend.Do for an error of the transport: for an *http1.Error
// the sentinel deciding on another attempt, with the reason; any other error unchanged. The text
// has no addresses, because clients may read the text.
func backendError(err error) error {
	e, ok := errors.AsType[*http1.Error](err)
	switch {
	case !ok:
		return err
	case !e.Connected && tcp.Exhausted(e.Err):
		return fmt.Errorf("%w: %s", ErrExhausted, e.Reason())
	case !e.Connected && e.Timeout():
		return fmt.Errorf("%w: %w", ErrNoConnection, ErrConnectTimeout)
	case !e.Connected:
		return fmt.Errorf("%w: %s", ErrNoConnection, e.Reason())
	case errors.Is(e.Err, tcp.ErrSendTimeout):
		return fmt.Errorf("%w: %w", ErrTimeout, ErrSendTimeout)
	case e.ResponseBegun:
		return fmt.Errorf("%w: %s", ErrNotHTTP, e.Reason())
	case e.Timeout():
		return ErrTimeout
	case e.Stale():
		return fmt.Errorf("%w: %w", ErrBroken, ErrStale)
	default:
		return fmt.Errorf("%w: %s", ErrBroken, e.Reason())
	}
}
