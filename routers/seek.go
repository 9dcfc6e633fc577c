package routers

import (
	"context"
	"math/rand/v2"
	"time"

	"berth/llmserver"
)

const (
	// seekWait is how long one call waits in an agent's line.
	seekWait = 30 * time.Second
	// seekPause is about how long a seek rests after an answer that came too soon to be that of a wait.
	seekPause = 100 * time.Millisecond
)

// seek holds a place in the line of the agent at index i while requests wait here that want it: one
// place, however many they are, so that ingresses which share the agent get their turns alike. The
// slot that it gets goes to who wants it most at that moment. The mutex is held.
func (r *Router) seek(g *generation, i int) {
	m := g.members[i]
	if r.seeking[m] != nil || !m.Available() || r.line.next(g, i) == nil {
		return
	}
	slot, err := m.TryReserve("waiting line", 0)
	if err != nil {
		return // all its slots are held here; the next that is released seeks again
	}
	ctx, stop := context.WithCancel(context.Background())
	r.seeking[m] = stop
	r.seekers.Go(func() {
		defer stop()
		began := time.Now()
		err := slot.Confirm(ctx, seekWait)
		if err != nil && time.Since(began) < seekWait/2 {
			select {
			case <-time.After(seekPause/2 + rand.N(seekPause)):
			case <-ctx.Done():
			}
		}
		wanted := r.sought(slot, err)
		if r.hooks.AgentWaitEnded != nil {
			r.hooks.AgentWaitEnded(m.ID(), wanted, err)
		}
	})
}

// seekFor seeks at every agent that w could use. The mutex is held.
func (r *Router) seekFor(g *generation, w *waiter) {
	for i, m := range g.members {
		if w.tiers[i] != 0 && m.CountsSlots() {
			r.seek(g, i)
		}
	}
}

// sought gives out what a seek has got, and goes on seeking if need be. It tells whether somebody
// wanted it.
func (r *Router) sought(slot *llmserver.Slot, err error) (wanted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := slot.Replica()
	delete(r.seeking, m)
	i, w := r.wanting(m)
	switch {
	case err == nil && w != nil:
		slot.Rename(w.payload.RequestID)
		r.give(i, w, slot)
	case err == nil:
		slot.Release()
	}
	if i >= 0 {
		r.seek(r.current.Load(), i)
	}
	return w != nil
}

// stopSeeking gives up all places in the lines of agents. The mutex is held.
func (r *Router) stopSeeking() {
	for _, stop := range r.seeking {
		stop()
	}
}
