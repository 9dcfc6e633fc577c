package ingress

import (
	"sync"
	"time"

	"berth/llmserver"
)

// renewals are what follows when other processes answer where replicas were. Where two of them
// take turns at one address, behind a balancer say, every answer looks like a restart; so the second
// renewal of an address waits, and each one after it twice as long, until the address was calm.
type renewals struct {
	sync.WaitGroup // under way

	mu    sync.Mutex
	paces map[string]*pace // by URL
}

// pace is how an address was renewed lately.
type pace struct {
	due  time.Time     // of the last renewal
	wait time.Duration // before it
}

const (
	firstRenewal   = time.Second
	longestRenewal = time.Minute
	// calm is how long an address must have kept its process to be renewed at once.
	calm = time.Minute
)

// next is how long the next renewal of a URL waits.
func (r *renewals) next(url string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, p := time.Now(), r.paces[url]
	switch {
	case p == nil:
		if r.paces == nil {
			r.paces = make(map[string]*pace)
		}
		p = new(pace)
		r.paces[url] = p
	case now.Sub(p.due) >= calm:
		p.wait = 0
	default:
		p.wait = min(max(2*p.wait, firstRenewal), longestRenewal)
	}
	p.due = now.Add(p.wait)
	return p.wait
}

// restarted has a replica replaced that has restarted: the slots of the old process are none of the
// new one's.
func (r *registry) restarted(e llmserver.Endpoint) {
	wait := r.renewals.next(e.URL)
	if wait == 0 {
		r.log.Info("the replica has restarted", "replica", e.ID)
	} else {
		r.log.Warn("another process answers for the replica again; if it did not restart, two processes share its address, and its slots cannot be counted",
			"replica", e.ID, "taken_over_in", wait)
	}
	r.renewals.Go(func() { r.renew(wait) })
}

// renew takes over the processes that answer now, after a while.
func (r *registry) renew(wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.closing:
		return
	}
	r.applying.Lock()
	defer r.applying.Unlock()
	if err := r.take(r.table.Load().config); err != nil {
		r.log.Error("a restarted replica could not be taken over", "error", err)
	}
}
