package llmserver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Pool turns full sets of endpoints into replicas. A replica that is in the
// next set too, by identity, stays the same and keeps its counts.
type Pool struct {
	// Dial makes the backend of a new replica; it does not connect yet.
	Dial func(Endpoint) (Backend, error)
	// Events of all its replicas.
	Events Events

	mu       sync.Mutex
	members  map[identity]*member
	leaving  []*member // no longer in the set, perhaps with requests still on them
	watchers sync.WaitGroup
}

// member is a replica with what belongs to its stay in the pool.
type member struct {
	*Replica
	stop context.CancelFunc // ends its probing; nil while it is not in the set
}

// Set makes the pool hold exactly these endpoints and returns their replicas in
// the same order. A set with an error in it (two endpoints of one identity, one that
// cannot be dialled) changes nothing. Replicas that are no longer named serve on
// until retire is called, which is due when nobody chooses among them any more; from then on
// they admit nothing, and what runs on them goes on.
func (p *Pool) Set(endpoints []Endpoint) (replicas []*Replica, retire func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := make(map[identity]*member, len(endpoints))
	replicas = make([]*Replica, len(endpoints))
	for i, e := range endpoints {
		if _, twice := next[e.identity()]; twice {
			return nil, nil, fmt.Errorf("two replicas have the URL %s", e.URL)
		}
		m := p.findReusable(e.identity())
		if m == nil {
			backend, err := p.Dial(e)
			if err != nil {
				return nil, nil, fmt.Errorf("replica %s: %w", e.ID, err)
			}
			m = &member{Replica: NewReplica(e, backend)}
			m.events = p.Events
		}
		next[e.identity()], replicas[i] = m, m.Replica
	}
	return replicas, p.apply(next, endpoints), nil
}

// known finds a replica in the set, or one that has left it and is still busy:
// an engine that comes back has its old requests yet. One in whose place another process
// answers is not known.
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

// commit is the part of Set that cannot fail.
func (p *Pool) apply(next map[identity]*member, endpoints []Endpoint) (retire func()) {
	p.leaving = slices.DeleteFunc(p.leaving, func(m *member) bool { return next[m.Endpoint().identity()] == m })
	p.prune()
	var gone []*member
	for id, m := range p.members {
		if next[id] != m {
			gone = append(gone, m)
		}
	}
	p.members = next
	p.leaving = append(p.leaving, gone...)
	for _, e := range endpoints {
		m := next[e.identity()]
		m.describe(e)
		if m.stop == nil {
			m.join(&p.watchers)
		}
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, m := range gone {
			if p.members[m.Endpoint().identity()] != m { // it may have come back since
				m.withdraw()
			}
		}
	}
}

// enter opens the replica and begins what the pool does for it.
func (m *member) join(watchers *sync.WaitGroup) {
	m.activate()
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	if m.Endpoint().ProbeEvery > 0 {
		watchers.Go(func() { m.probeLoop(ctx) })
	}
}

// leave retires the replica and ends all that the pool does for it; a second
// call does nothing.
func (m *member) withdraw() {
	if m.stop == nil {
		return
	}
	m.retire()
	m.stop()
	m.stop = nil
	m.backend.Close()
}

// Leaving lists the replicas that are no longer in the set but still have
// requests on them.
func (p *Pool) Leaving() []*Replica {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.prune()
	replicas := make([]*Replica, len(p.leaving))
	for i, m := range p.leaving {
		replicas[i] = m.Replica
	}
	return replicas
}

// prune forgets the replicas that have left and are idle.
func (p *Pool) prune() {
	p.leaving = slices.DeleteFunc(p.leaving, func(m *member) bool {
		return m.Usage().Ongoing() == 0 && m.gate.counts().phase == retired
	})
}

// Close ends probing, lets go of idle connections and waits for what the pool
// does in the background. No slot may be live any more.
func (p *Pool) Close() {
	p.mu.Lock()
	all := slices.AppendSeq(p.leaving, maps.Values(p.members))
	p.members, p.leaving = nil, nil
	p.mu.Unlock()
	for _, m := range all {
		m.withdraw()
		m.Wait()
	}
	p.watchers.Wait()
}
