package agent

import (
	"time"

	"berth/llmserver"
)

// spent remembers tokens for at least MaxLease, longer than a call about one of
// them can be on its way. It keeps two generations of that age and drops the
// older as a whole when a token comes, so that forgetting costs nothing per
// token. The zero value is ready.
type spent struct {
	young, old map[llmserver.Token]struct{}
	since      time.Time // when young was begun
}

func (s *spent) add(t llmserver.Token) {
	if now := time.Now(); s.young == nil || now.Sub(s.since) >= MaxLease {
		s.old, s.young, s.since = s.young, make(map[llmserver.Token]struct{}), now
	}
	s.young[t] = struct{}{}
}

func (s *spent) has(t llmserver.Token) bool {
	if _, ok := s.young[t]; ok {
		return true
	}
	_, ok := s.old[t]
	return ok
}
