package ingress

import (
	"sync"
	"time"

	"berth/llmserver"
)

// renewals are what follows when other processes answer where replicas were. Where two of them
// take turns at one address, behind a balancer say, every answer looks like a restart; so the second
// renewal of an address waits, and each one after it twice as long, until the address was calm.
type restartBackoff struct {
	sync.WaitGroup // under way

	mu     sync.Mutex
	states map[string]*backoffState // by URL
}

// pace is how an address was renewed lately.
type backoffState struct {
	lastReload time.Time     // of the last renewal
	delay      time.Duration // before it
}

const (
	minReloadDelay = time.Second
	maxReloadDelay = time.Minute
	// calm is how long an address must have kept its process to be renewed at once.
	resetAfter = time.Minute
)

// next is how long the next renewal of a URL waits.
func (r *restartBackoff) nextDelay(url string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, p := time.Now(), r.states[url]
	switch {
	case p == nil:
		if r.states == nil {
			r.states = make(map[string]*backoffState)
		}
		p = new(backoffState)
		r.states[url] = p
	case now.Sub(p.lastReload) >= resetAfter:
		p.delay = 0
	default:
		p.delay = min(max(2*p.delay, minReloadDelay), maxReloadDelay)
	}
	p.lastReload = now.Add(p.delay)
	return p.delay
}

// restarted has a replica replaced that has restarted: the slots of the old process are none of the
// new one's.
func (r *registry) onRestart(e llmserver.Endpoint) {
	wait := r.restarts.nextDelay(e.URL)
	if wait == 0 {
		r.log.Info("the replica has restarted", "replica", e.ID)
	} else {
		r.log.Warn("another process answers for the replica again; if it did not restart, two processes share its address, and its slots cannot be counted",
			"replica", e.ID, "taken_over_in", wait)
	}
	r.restarts.Go(func() { r.reload(wait) })
}

// renew takes over the processes that answer now, after a while.
func (r *registry) reload(wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.closing:
		return
	}
	r.applyMu.Lock()
	defer r.applyMu.Unlock()
	if err := r.applyLocked(r.table.Load().config); err != nil {
		r.log.Error("a restarted replica could not be taken over", "error", err)
	}
}
