package agent

import (
	"slices"
	"time"

	"berth/llmserver"
)

// modelTable is the plainest slot table. It has no timers: its caller passes the time and plays the
// events in their order.
type modelTable struct {
	limit        int
	draining     bool
	reservations map[llmserver.Token]*modelReservation
	queue        []llmserver.Token
	tombstones   map[llmserver.Token]time.Time
	running      int
}

type modelReservation struct {
	lease   time.Duration
	expires time.Time // zero while it waits
	calls   []*modelCall
}

// modelCall is a call of Reserve that waits or has waited.
type modelCall struct {
	*pendingReserve
	deadline time.Time
	over     bool
	want     error
}

func (m *modelTable) ongoing() int { return len(m.reservations) - len(m.queue) + m.running }

// reserve returns the expected error, or that the call waits.
func (m *modelTable) reserve(now time.Time, token llmserver.Token, lease, wait time.Duration) (waits bool, err error) {
	c := m.reservations[token]
	_, spent := m.tombstones[token]
	switch {
	case c != nil:
		return c.expires.IsZero(), nil
	case spent:
		return false, llmserver.ErrToken
	case m.draining:
		return false, llmserver.ErrDraining
	}
	c = &modelReservation{lease: min(lease, 60*time.Second)}
	switch {
	case m.ongoing() < m.limit && len(m.queue) == 0:
		c.expires = now.Add(c.lease)
	case wait > 0:
		waits, m.queue = true, append(m.queue, token)
	default:
		return false, llmserver.ErrFull
	}
	m.reservations[token] = c
	return waits, nil
}

// retireToken ends a token in any state; its waiting calls return err.
func (m *modelTable) retireToken(now time.Time, token llmserver.Token, err error) {
	if c := m.reservations[token]; c != nil {
		for _, call := range c.calls {
			call.finish(err)
		}
	}
	delete(m.reservations, token)
	m.queue = slices.DeleteFunc(m.queue, func(t llmserver.Token) bool { return t == token })
	m.tombstones[token] = now
	m.grantQueued(now)
}

// grantQueued grants free slots to the queue.
func (m *modelTable) grantQueued(now time.Time) {
	for len(m.queue) > 0 && m.ongoing() < m.limit {
		c := m.reservations[m.queue[0]]
		m.queue = m.queue[1:]
		c.expires = now.Add(c.lease)
		for _, call := range c.calls {
			call.finish(nil)
		}
	}
}

func (c *modelCall) finish(err error) {
	if !c.over {
		c.over, c.want = true, err
	}
}

// advance plays all timer events until now, in their order.
func (m *modelTable) advance(now time.Time) {
	for {
		at, what := now.Add(1), func() {}
		for token, c := range m.reservations {
			if !c.expires.IsZero() && c.expires.Before(at) {
				at, what = c.expires, func() { m.retireToken(at, token, nil) }
			}
			for _, call := range c.calls {
				if !call.over && call.deadline.Before(at) {
					at, what = call.deadline, func() { m.retireToken(at, token, llmserver.ErrFull) }
				}
			}
		}
		if at.After(now) {
			return
		}
		what()
	}
}
