package agent

import (
	"time"

	"berth/llmserver"
)

// A tombstones set remembers spent tokens for at least MaxLease, which is longer than a call about
// one of them can be in transit. Two generations of that age are kept, and an insert drops the
// older one as a whole, so expiry costs nothing per token and needs no timer. The zero value is
// ready for use; the table's mutex guards the set.
type tombstones struct {
	recent, old map[llmserver.Token]struct{}
	rotatedAt   time.Time // when recent was begun
}

func (s *tombstones) insert(t llmserver.Token) {
	if now := time.Now(); s.recent == nil || now.Sub(s.rotatedAt) >= MaxLease {
		s.old, s.recent, s.rotatedAt = s.recent, make(map[llmserver.Token]struct{}), now
	}
	s.recent[t] = struct{}{}
}

func (s *tombstones) contains(t llmserver.Token) bool {
	_, recent := s.recent[t]
	_, old := s.old[t]
	return recent || old
}
