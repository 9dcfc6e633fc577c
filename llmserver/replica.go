package llmserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// cancelTimeout bounds the call that cancels a reserved slot at the backend.
const cancelTimeout = 5 * time.Second

// A Replica is one LLM server process. The pointer is the identity: a new process on an old address
// is a new Replica, so a late Release on the old one does not affect the new one. Name, keys and
// capacity of a Replica may change.
//
// Three parts decide independently whether a request is admitted: the circuit (does the replica
// work), the gate (is there a free unit) and, for a replica that counts its own slots, its agent.
// Health only excludes a replica from being chosen. Methods may be called from any goroutine and do
// not block, except for Do, Call and Wait.
type Replica struct {
	gate        gate
	backend     Backend
	endpoint    atomic.Pointer[Endpoint]
	health      health
	circuit     circuit
	outcomes    outcomes
	silence     silence
	cohort      atomic.Pointer[Cohort] // nil: no siblings
	recoveredAt atomic.Int64           // start of the slow start, monotonic; zero when it is over
	remote      remoteUsage
	states      stateReports
	unlisted    atomic.Pointer[unlistedModel] // nil while the served name is listed, or not known
	events      Events

	background sync.WaitGroup // cancels in progress

	mu   sync.Mutex
	live *Slot // head of the list of live slots, the newest first; held for no I/O and no callback
}

// NewReplica returns a replica reached through backend, up until a request or a probe fails.
func NewReplica(e Endpoint, backend Backend) *Replica {
	r := &Replica{backend: backend}
	r.health.probeNow = make(chan struct{}, 1)
	r.describe(e)
	r.states.state, r.states.since = r.State(), monotonic()
	r.health.reportState = r.reportState
	return r
}

// describe applies a changed endpoint of the same identity, and reports whether a drain began or
// ended thereby. The slots stay, and a retired replica stays retired. The caller notifies the
// observer of a change once no lock is held.
func (r *Replica) describe(e Endpoint) (changed bool) {
	r.endpoint.Store(&e)
	r.backend.Describe(e)
	r.setConfiguredLimit(e.Limit)
	return r.gate.setDraining(e.Draining)
}

// ID returns the replica's name for operators.
func (r *Replica) ID() string { return r.endpoint.Load().ID }

// Label returns the replica's name in texts for clients.
func (r *Replica) Label() string {
	e := r.endpoint.Load()
	return cmp.Or(e.Label, e.ID)
}

// Endpoint returns the replica's current description.
func (r *Replica) Endpoint() Endpoint { return *r.endpoint.Load() }

// CountsSlots reports whether an agent counts the replica's slots. Then the gate is a bound for
// this process only, and the agent has the final say in Slot.Confirm.
func (r *Replica) CountsSlots() bool { return r.endpoint.Load().CountsSlots }

// Load returns the number of ongoing requests, as far as known: reserved and running slots of this
// process, and those of other ingresses as last reported.
func (r *Replica) Load() int { return r.gate.counts().ongoing() + int(r.remote.others.Load()) }

// Others returns the number of ongoing requests of other ingresses, as last reported by the
// replica's agent.
func (r *Replica) Others() int { return int(r.remote.others.Load()) }

// HasRoom reports whether a reservation can be expected to succeed. HasRoom reserves nothing: only
// TryReserve decides.
func (r *Replica) HasRoom() bool {
	c := r.gate.counts()
	if c.phase != serving || c.ongoing() >= c.limit || !r.circuit.admits() {
		return false
	}
	others := int(r.remote.others.Load())
	return others == 0 || c.ongoing()+others < c.limit || !r.remote.isFresh()
}

// Usage is the number of slots held by this process on a replica.
type Usage struct{ Reserved, Running, Limit int }

// Ongoing returns the sum of reserved and running slots.
func (u Usage) Ongoing() int { return u.Reserved + u.Running }

// Usage returns reserved, running and limit at one moment.
func (r *Replica) Usage() Usage {
	c := r.gate.counts()
	return Usage{Reserved: c.reserved, Running: c.running, Limit: c.limit}
}

// TryReserve reserves a slot if fewer requests are ongoing than the replica's limit and, if
// bound > 0, than bound. The holder is a name for operators. The gate decides in one atomic step,
// without waiting; the backend has yet to agree, see Slot.Confirm. TryReserve returns ErrFull,
// ErrDraining, ErrGone, or ErrEjected if the circuit admits nothing.
func (r *Replica) TryReserve(holder string, bound int) (*Slot, error) {
	s := new(Slot)
	if err := r.TryReserveInto(s, holder, bound); err != nil {
		return nil, err
	}
	return s, nil
}

// TryReserveInto is TryReserve with the slot's memory provided by the caller. The slot must be
// zero, and is still zero after an error.
func (r *Replica) TryReserveInto(s *Slot, holder string, bound int) error {
	if !r.passCircuit() {
		return ErrEjected
	}
	return r.reserveSlot(s, holder, bound)
}

// ForceReserve is TryReserve without a bound and regardless of the circuit, for a request that no
// other replica can serve.
func (r *Replica) ForceReserve(holder string) (*Slot, error) {
	s := new(Slot)
	r.passCircuit() // the request may become the circuit's trial
	return s, r.reserveSlot(s, holder, 0)
}

func (r *Replica) reserveSlot(s *Slot, holder string, bound int) error {
	if err := r.gate.reserveUnit(bound); err != nil {
		return err
	}
	r.initSlot(s, holder)
	return nil
}

// initSlot initializes s and links s into the list of live slots. The gate already counts the unit
// as reserved.
func (r *Replica) initSlot(s *Slot, holder string) {
	s.replica, s.token, s.holder, s.reservedAt = r, NewUUID(), holder, monotonic()
	r.mu.Lock()
	defer r.mu.Unlock()
	s.next = r.live
	if r.live != nil {
		r.live.prev = s
	}
	r.live = s
}

// unlinkSlot removes a done slot from the list of live slots. The mutex is also the barrier needed
// by Slot.Start, see there.
func (r *Replica) unlinkSlot(s *Slot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		r.live = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	}
	s.prev, s.next = nil, nil
}

// SlotInfo describes a live slot for operators.
type SlotInfo struct {
	Holder  string
	Running bool // otherwise reserved
	Since   time.Time
}

// Slots returns the live slots, the newest first.
func (r *Replica) Slots() (infos []SlotInfo) {
	r.mu.Lock()
	defer r.mu.Unlock()
	origin := time.Now().Add(-monotonic())
	for s := r.live; s != nil; s = s.next {
		infos = append(infos, SlotInfo{s.holder, s.state.Load() == slotRunning, origin.Add(s.reservedAt)})
	}
	return infos
}

// Do sends a request into a started slot and returns when the response header has arrived. Callers
// call Do at most once per slot, as guaranteed by Slot.Start, and still release the slot. A replica
// refusing the connection is down until a probe succeeds. Errors carry the replica's label.
func (r *Replica) Do(req *http.Request, s *Slot) (*http.Response, error) {
	s.size, s.readsAtSend = req.ContentLength, r.health.bodyReads.Load()
	s.sentAt.Store(int64(monotonic()))
	resp, report, err := r.backend.Do(req, s.token)
	r.applyReport(report)
	if err != nil {
		r.handleFailure(s, err)
		if r.CountsSlots() && !errors.Is(err, ErrToken) && !errors.Is(err, ErrFull) && !errors.Is(err, ErrDraining) {
			// The agent may have seen nothing of the request and would hold the reservation for the
			// lease. The three errors above come from the agent, after the end of the reservation.
			r.cancelToken(s.token)
		}
		return nil, fmt.Errorf("replica %s: %w", r.Label(), err)
	}
	r.observeBody(s, resp)
	return resp, nil
}

// Call sends a request without a slot, such as one to a management path. The outcome does not
// affect health or circuit.
func (r *Replica) Call(req *http.Request) (*http.Response, error) {
	resp, report, err := r.backend.Do(req, Token{})
	r.applyReport(report)
	if err != nil {
		if errors.Is(err, ErrExhausted) {
			r.reportExhausted(err)
		}
		return nil, fmt.Errorf("replica %s: %w", r.Label(), err)
	}
	return resp, nil
}

// Drain stops admissions until the replica is described again. Reserved slots may still be started,
// and running requests continue. For a drain that lasts, set Endpoint.Draining.
func (r *Replica) Drain() {
	if r.gate.setDraining(true) {
		r.health.notifyObserver()
	}
}

// retire takes the replica out of service: no slot is reserved or started any more, and running
// requests continue.
func (r *Replica) retire() { r.gate.setPhase(retired) }

// activate puts a new or retired replica into service, unless its endpoint is draining.
func (r *Replica) activate() {
	if r.endpoint.Load().Draining {
		r.gate.setPhase(draining)
	} else {
		r.gate.setPhase(serving)
	}
}

// cancelToken cancels a reservation at the backend, in the background, since Release must not
// block. Wait waits for it.
func (r *Replica) cancelToken(t Token) {
	r.background.Go(func() {
		ctx, stop := context.WithTimeout(context.Background(), cancelTimeout)
		defer stop()
		report, err := r.backend.Cancel(ctx, t)
		r.applyReport(report)
		switch {
		case errors.Is(err, ErrExhausted):
			r.reportExhausted(err)
		case err != nil && r.events.CancelFailed != nil:
			r.events.CancelFailed(r.ID(), err)
		}
	})
}

// Wait returns when no background cancel is in progress. No slot may be reserved or released
// meanwhile.
func (r *Replica) Wait() { r.background.Wait() }
