package telemetry

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"berth/llmserver"
	"berth/routers"
	"berth/streaming"
)

// RouterHooks returns the hooks of a model's router, which count reservations and releases in m and
// keep recent decisions. policy returns the class of the model's policy at the time of a decision.
// The router calls the hooks on the goroutines of its requests, and AgentWaitEnded on a goroutine
// of its own; none of them blocks.
func (t *Telemetry) RouterHooks(m *ModelMetrics, policy func() string) routers.Hooks {
	countReservation := func(outcome string) { m.reservations.WithLabelValues(outcome).Inc() }
	countRejection := func(replica string, err error) {
		countReservation(reservationOutcome(err))
		m.replicaNamed(replica).countReservation(err)
	}
	releases := make(map[string]prometheus.Counter, len(releaseCauses))
	for _, cause := range releaseCauses {
		releases[cause] = m.releases.WithLabelValues(cause)
	}
	return routers.Hooks{
		Decided: func(d routers.Decision) {
			if blocks := len(d.Payload.Blocks); blocks > 0 {
				m.matches.Observe(float64(d.Matched) / float64(blocks))
			}
			if t.decisions != nil {
				t.decisions.record(d, policy())
			}
		},
		Rejected: func(_ *routers.Payload, replica string, err error) { countRejection(replica, err) },
		Released: func(_ *routers.Payload, _ string, o routers.Outcome) { releases[releaseCause(o)].Inc() },
		AgentWaitEnded: func(replica string, wanted bool, err error) {
			switch {
			case err != nil:
				countRejection(replica, err)
			case !wanted:
				countReservation("surplus") // a wanted slot is counted when a request takes it
			}
		},
	}
}

// reservationOutcome returns the label of a reservation that was not granted.
func reservationOutcome(err error) string {
	switch {
	case errors.Is(err, llmserver.ErrFull):
		return "full"
	case errors.Is(err, llmserver.ErrDraining):
		return "draining"
	case errors.Is(err, llmserver.ErrNoConnection):
		return "no_connection"
	case errors.Is(err, llmserver.ErrExhausted):
		return "exhausted"
	case errors.Is(err, context.Canceled):
		return "abandoned"
	default:
		return "unclear"
	}
}

// The causes for which slots are released.
const (
	releasedFinished   = "finished"
	releasedClientGone = "client_gone"
	releasedRefused    = "refused"  // the replica has not begun to process the request
	releasedFailed     = "failed"   // the replica broke off, timed out, or responded with an error that may be its fault
	releasedNotSent    = "not_sent" // nothing was sent to the replica
)

var releaseCauses = []string{releasedFinished, releasedClientGone, releasedRefused, releasedFailed, releasedNotSent}

// releaseCause returns the cause of a release from the outcome of its selection.
func releaseCause(o routers.Outcome) string {
	switch {
	case !o.Dispatched, errors.Is(o.Err, llmserver.ErrExhausted):
		return releasedNotSent
	case o.Err == nil:
		return releasedFinished
	case errors.Is(o.Err, streaming.ErrClientGone), errors.Is(o.Err, context.Canceled):
		return releasedClientGone
	case errors.Is(o.Err, llmserver.ErrBusy), llmserver.Refused(o.Err):
		return releasedRefused
	default:
		return releasedFailed
	}
}
