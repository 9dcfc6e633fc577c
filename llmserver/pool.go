package llmserver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// A Pool turns full sets of endpoints into replicas. A replica with an identity in the next set,
// too, keeps the pointer, and so slots, health and circuit:
//
//	new ──Set──▶ in the set ──Set without it──▶ leaving ──retire, and idle──▶ forgotten
//	                 ▲                              │
//	                 └────── Set with it, busy ─────┘
//
// The methods may be called from any goroutine. Set dials with the pool's mutex held, which is fine
// because dialing only makes a backend and does not connect.
type Pool struct {
	// Dial returns the backend of a new replica, without connecting.
	Dial func(Endpoint) (Backend, error)
	// Events are the callbacks of all replicas.
	Events Events

	mu       sync.Mutex
	members  map[identity]*member
	leaving  []*member // no longer in the set, perhaps with ongoing requests
	watchers sync.WaitGroup
}

// A member is a replica with its probing.
type member struct {
	*Replica
	stop context.CancelFunc // ends the probing; nil while retired; guarded by Pool.mu
}

// Set makes the pool hold exactly the given endpoints and returns their replicas in the same order.
// A bad set (two endpoints with one identity, or one that cannot be dialed) returns an error and
// changes nothing.
//
// Replicas no longer in the set continue to serve until the caller calls retire, due when no
// request chooses among them any more. From then on they admit nothing, and running requests
// continue. A late retire spares replicas of a later Set.
//
// Observers of replicas with a drain that began or ended are called before Set returns, with no
// lock held.
func (p *Pool) Set(endpoints []Endpoint) (replicas []*Replica, retire func(), err error) {
	replicas, changed, retire, err := p.set(endpoints)
	for _, r := range changed {
		r.health.notifyObserver()
	}
	for _, r := range replicas {
		r.reportState() // retired ones that came back
	}
	return replicas, retire, err
}

// set is Set without the notifications, which are due for the changed replicas.
func (p *Pool) set(endpoints []Endpoint) (replicas, changed []*Replica, retire func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := make(map[identity]*member, len(endpoints))
	for _, e := range endpoints {
		id := e.identity()
		if next[id] != nil {
			return nil, nil, nil, fmt.Errorf("two replicas have the URL %s", e.URL)
		}
		m := p.findReusable(id)
		if m == nil {
			backend, err := p.Dial(e)
			if err != nil {
				return nil, nil, nil, fmt.Errorf("replica %s: %w", e.ID, err)
			}
			m = &member{Replica: NewReplica(e, backend)}
			m.events = p.Events
		}
		next[id], replicas = m, append(replicas, m.Replica)
	}
	changed, retire = p.apply(next, endpoints)
	return replicas, changed, retire, nil
}

// findReusable returns the member with the given identity, also a busy one no longer in the set: an
// engine that comes back still has the old requests. A member with a replaced process is not
// reusable, because the new process has none of them.
func (p *Pool) findReusable(id identity) *member {
	if m := p.members[id]; m != nil && !m.remote.restarted.Load() {
		return m
	}
	for _, m := range p.leaving {
		if m.Endpoint().identity() == id && m.Usage().Ongoing() > 0 && !m.remote.restarted.Load() {
			return m
		}
	}
	return nil
}

// apply is the infallible part of Set. It returns the members with a drain that began or ended, and
// a function that retires the members no longer in the set.
func (p *Pool) apply(next map[identity]*member, endpoints []Endpoint) (changed []*Replica, retire func()) {
	p.leaving = slices.DeleteFunc(p.leaving, func(m *member) bool { return next[m.Endpoint().identity()] == m })
	p.pruneLeaving()
	var removed []*member
	for id, m := range p.members {
		if next[id] != m {
			removed = append(removed, m)
		}
	}
	p.members = next
	p.leaving = append(p.leaving, removed...)
	for _, e := range endpoints {
		m := next[e.identity()]
		if m.describe(e) {
			changed = append(changed, m.Replica)
		}
		if m.stop == nil {
			m.startServing(&p.watchers)
		}
	}
	return changed, func() {
		p.retireRemoved(removed)
		for _, m := range removed {
			m.reportState()
		}
	}
}

// retireRemoved retires those of the removed members that are not back in the set.
func (p *Pool) retireRemoved(removed []*member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range removed {
		if p.members[m.Endpoint().identity()] != m {
			m.stopServing()
		}
	}
}

// startServing activates the replica and starts the probing. Pool.mu is held. Close waits for the
// probing goroutine.
func (m *member) startServing(watchers *sync.WaitGroup) {
	m.activate()
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	if m.Endpoint().ProbeEvery > 0 {
		watchers.Go(func() { m.probeLoop(ctx) })
	}
}

// stopServing retires the replica, stops the probing and closes idle connections. A second call
// does nothing. Pool.mu is held, except by Close, which has taken the member out of the pool.
func (m *member) stopServing() {
	if m.stop == nil {
		return
	}
	m.retire()
	m.stop()
	m.stop = nil
	m.backend.Close()
}

// Leaving returns the replicas no longer in the set, unless retired and idle.
func (p *Pool) Leaving() (replicas []*Replica) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pruneLeaving()
	for _, m := range p.leaving {
		replicas = append(replicas, m.Replica)
	}
	return replicas
}

// pruneLeaving forgets retired idle replicas. An unretired one may still be chosen, and so is kept
// even while idle. p.mu is held.
func (p *Pool) pruneLeaving() {
	p.leaving = slices.DeleteFunc(p.leaving, func(m *member) bool {
		return m.Usage().Ongoing() == 0 && m.gate.counts().phase == retired
	})
}

// Close stops all probing, closes idle connections and waits for the pool's goroutines. It blocks
// for at most the timeout of a cancel or probe in progress. No slot may be live any more.
func (p *Pool) Close() {
	p.mu.Lock()
	all := slices.AppendSeq(p.leaving, maps.Values(p.members))
	p.members, p.leaving = nil, nil
	p.mu.Unlock()
	for _, m := range all {
		m.stopServing()
		m.Wait()
	}
	p.watchers.Wait()
}
