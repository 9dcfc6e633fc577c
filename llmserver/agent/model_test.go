package agent

import (
	"slices"
	"time"

	"berth/llmserver"
)

// model is a slot table in the plainest terms. Time is its caller's: nothing
// in it happens by itself, events are played in their order.
type model struct {
	limit    int
	draining bool
	claims   map[llmserver.Token]*modelClaim
	line     []llmserver.Token
	spent    map[llmserver.Token]time.Time
	running  int
}

type modelClaim struct {
	lease   time.Duration
	expires time.Time // zero while it waits
	calls   []*modelCall
}

// modelCall is a Reserve that waits or has waited.
type modelCall struct {
	*asked
	deadline time.Time
	over     bool
	want     error
}

func (m *model) ongoing() int { return len(m.claims) - len(m.line) + m.running }

// reserve says what the answer is, or that the call waits.
func (m *model) reserve(now time.Time, token llmserver.Token, lease, wait time.Duration) (waits bool, err error) {
	c := m.claims[token]
	_, spent := m.spent[token]
	switch {
	case c != nil:
		return c.expires.IsZero(), nil
	case spent:
		return false, llmserver.ErrToken
	case m.draining:
		return false, llmserver.ErrDraining
	}
	c = &modelClaim{lease: min(lease, 60*time.Second)}
	switch {
	case m.ongoing() < m.limit && len(m.line) == 0:
		c.expires = now.Add(c.lease)
	case wait > 0:
		waits, m.line = true, append(m.line, token)
	default:
		return false, llmserver.ErrFull
	}
	m.claims[token] = c
	return waits, nil
}

// end takes the token from wherever it is; those who wait for it hear err.
func (m *model) end(now time.Time, token llmserver.Token, err error) {
	if c := m.claims[token]; c != nil {
		for _, call := range c.calls {
			call.tell(err)
		}
	}
	delete(m.claims, token)
	m.line = slices.DeleteFunc(m.line, func(t llmserver.Token) bool { return t == token })
	m.spent[token] = now
	m.grant(now)
}

// grant gives what is free to the line.
func (m *model) grant(now time.Time) {
	for len(m.line) > 0 && m.ongoing() < m.limit {
		c := m.claims[m.line[0]]
		m.line = m.line[1:]
		c.expires = now.Add(c.lease)
		for _, call := range c.calls {
			call.tell(nil)
		}
	}
}

func (c *modelCall) tell(err error) {
	if !c.over {
		c.over, c.want = true, err
	}
}

// pass plays all that time brings until now, in its order.
func (m *model) pass(now time.Time) {
	for {
		at, what := now.Add(1), func() {}
		for token, c := range m.claims {
			if !c.expires.IsZero() && c.expires.Before(at) {
				at, what = c.expires, func() { m.end(at, token, nil) }
			}
			for _, call := range c.calls {
				if !call.over && call.deadline.Before(at) {
					at, what = call.deadline, func() { m.end(at, token, llmserver.ErrFull) }
				}
			}
		}
		if at.After(now) {
			return
		}
		what()
	}
}
