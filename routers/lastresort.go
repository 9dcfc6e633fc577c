package routers

import (
	"cmp"
	"context"
	"slices"

	"berth/llmserver"
)

// lastResort tries the replicas that are down or ejected, when no other replica is left: their
// state may be outdated, and a failure is no worse than an error without a try. Replicas that are
// up come first, then the less loaded. The current generation counts, not the selector's, since a
// waiting request may get here long after the ranking.
//
// Draining replicas are left out, as they would refuse, and so are replicas already tried.
// ForceReserve bypasses the circuit but not the gate: capacity holds here, too, and a full replica
// is not waited for, since none is expected to serve.
//
// lastResort runs on the request's goroutine, without a lock, either instead of a wait or after
// one; the request is not in the queue. Replicas are tried one at a time, so at most one slot is
// held. Each try may block for a round trip to an agent; the end of ctx ends the try. The error is
// ErrClosed, an *UnavailableError if every try was in vain, llmserver.ErrExhausted, or the cause of
// the end of ctx.
func (s *selector) lastResort(ctx context.Context) (*Selection, error) {
	g := s.router.current.Load()
	if g.closed {
		return nil, ErrClosed
	}
	left := slices.DeleteFunc(slices.Clone(g.eligible(s.payload)), func(m *llmserver.Replica) bool {
		return m.Available() || m.Draining() || slices.Contains(s.exclude, m)
	})
	slices.SortStableFunc(left, func(a, b *llmserver.Replica) int {
		if a.Up() != b.Up() {
			if a.Up() {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.WeightedLoad(), b.WeightedLoad())
	})
	rank := 1 // after all tiers of the ranking
	if len(left) > 0 && s.ranking != nil {
		for range s.ranking {
			rank++
		}
	}
	for _, m := range left {
		slot, err := m.ForceReserve(s.payload.RequestID)
		if err != nil {
			continue
		}
		if sel, err := s.confirmOrReject(ctx, &Selection{slot: slot, rank: rank}); sel != nil || err != nil {
			return sel, err
		}
	}
	return nil, g.unavailable(s.payload, s.exclude)
}
