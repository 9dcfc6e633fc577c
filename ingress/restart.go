package ingress

import (
	"sync"
	"time"

	"berth/llmserver"
)

// onRestart replaces a replica after a restart of the process: the slots of the old process do not
// exist in the new one. It is called once per *Replica, on the goroutine of the request or probe
// that detected the restart. As that goroutine must not block, the reload runs on another one.
func (r *registry) onRestart(e llmserver.Endpoint) {
	delay := r.restarts.nextDelay(e.URL)
	if delay == 0 {
		r.log.Info("the replica has restarted", "replica", e.ID)
	} else {
		r.log.Warn("another process answers for the replica again; if it did not restart, two processes share its address, and its slots cannot be counted",
			"replica", e.ID, "taken_over_in", delay)
	}
	r.reloads.Go(func() { r.reloadAfter(delay) })
}

// reloadAfter applies the current configuration again after delay, so the pool dials the new
// processes. It returns early if the registry closes.
func (r *registry) reloadAfter(delay time.Duration) {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.closing:
		return
	}
	r.reapply("reload after the restart of a replica failed")
}

// A restartBackoff delays reloads after restarts of replicas, separately for each address. Two
// processes behind one address, such as a load balancer's, look like one process that restarts
// again and again. The first reload of an address is immediate, the second waits minReloadDelay,
// and each further one twice as long as the previous one, up to maxReloadDelay.
//
// The zero value is ready to use. Any goroutine may call nextDelay, which does not block.
type restartBackoff struct {
	mu     sync.Mutex               // guards states
	states map[string]*backoffState // by URL
}

// backoffState is the last reload of an address.
type backoffState struct {
	lastReload time.Time     // due time, past or future
	delay      time.Duration // before lastReload
}

const (
	minReloadDelay = time.Second
	maxReloadDelay = time.Minute
	// resetAfter is the time after the last reload of an address until its delay is zero again.
	resetAfter = time.Minute
)

// nextDelay returns the delay of the reload after a restart at url, and counts that reload as made.
func (b *restartBackoff) nextDelay(url string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, s := time.Now(), b.states[url]
	switch {
	case s == nil:
		if b.states == nil {
			b.states = make(map[string]*backoffState)
		}
		s = new(backoffState)
		b.states[url] = s
	case now.Sub(s.lastReload) >= resetAfter:
		s.delay = 0
	default:
		s.delay = min(max(2*s.delay, minReloadDelay), maxReloadDelay)
	}
	s.lastReload = now.Add(s.delay)
	return s.delay
}
