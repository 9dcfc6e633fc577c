package agent

import (
	"time"

	"berth/llmserver"
)

// spent remembers tokens for at least MaxLease, longer than a call about one of
// them can be on its way. It keeps two generations of that age and drops the
// older as a whole when a token comes, so that forgetting costs nothing per
// token. The zero value is ready.
type tombstones struct {
	recent, old map[llmserver.Token]struct{}
	rotatedAt   time.Time // when young was begun
}

func (s *tombstones) insert(t llmserver.Token) {
	if now := time.Now(); s.recent == nil || now.Sub(s.rotatedAt) >= MaxLease {
		s.old, s.recent, s.rotatedAt = s.recent, make(map[llmserver.Token]struct{}), now
	}
	s.recent[t] = struct{}{}
}

func (s *tombstones) contains(t llmserver.Token) bool {
	if _, ok := s.recent[t]; ok {
		return true
	}
	_, ok := s.old[t]
	return ok
}
