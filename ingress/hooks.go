package ingress

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"berth/llmserver"
	"berth/routers"
	"berth/streaming"
)

// hooks has a router's decisions noted, and what it asks for and gives back counted.
func (r *registry) hooks(model string, counts *modelMetrics) routers.Hooks {
	asked := func(outcome string) { counts.reservations.WithLabelValues(outcome).Inc() }
	releases := make(map[string]prometheus.Counter, len(releaseCauses))
	for _, cause := range releaseCauses {
		releases[cause] = counts.releases.WithLabelValues(cause)
	}
	return routers.Hooks{
		Decided: func(d routers.Decision) {
			if asked := len(d.Payload.Blocks); asked > 0 {
				counts.matches.Observe(float64(d.Matched) / float64(asked))
			}
			if r.decisions != nil {
				r.decisions.note(d, r.table.Load().policyClass(model))
			}
		},
		Rejected: func(_ *routers.Payload, _ string, err error) { asked(rejection(err)) },
		Released: func(_ *routers.Payload, _ string, o routers.Outcome) { releases[releaseCause(o)].Inc() },
		AgentWaitEnded: func(_ string, wanted bool, err error) {
			switch {
			case err != nil:
				asked(rejection(err))
			case !wanted:
				asked("unwanted") // one that is wanted is counted when its request takes it
			}
		},
	}
}

// rejection is the outcome of a reservation that was not granted, as metrics name it.
func rejection(err error) string {
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
		return "given_up"
	default:
		return "unclear"
	}
}

// How a slot came back, as metrics name it.
const (
	releasedFinished   = "finished"
	releasedClientGone = "client_gone"
	releasedRefused    = "refused"     // the replica has seen nothing of the request
	releasedFailed     = "failed"      // the replica broke off, fell silent, or answered 502, 503 or 504
	releasedUnsent     = "walked_away" // nothing was sent
)

var releaseCauses = []string{releasedFinished, releasedClientGone, releasedRefused, releasedFailed, releasedUnsent}

// releaseCause is the one place where the outcome of a selection gets its name.
func releaseCause(o routers.Outcome) string {
	switch {
	case !o.Dispatched, errors.Is(o.Err, llmserver.ErrExhausted):
		return releasedUnsent
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
