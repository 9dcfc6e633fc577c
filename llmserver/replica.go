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

// cancelTimeout bounds the call that gives a reserved slot back to its backend.
const cancelTimeout = 5 * time.Second

// Endpoint describes a replica as configuration or discovery knows it. URL and
// Instance are its identity: what differs in them is another process.
type Endpoint struct {
	Model    string // the model it serves
	ID       string // its name towards operators and the hash ring
	Label    string // its name in texts that clients may read; the ID if empty
	URL      string // scheme://host:port and perhaps a base path, without /v1
	Instance string // the process behind the URL, where known
	Limit    int    // requests it takes at once; at most MaxLimit
	APIKey   string // sent instead of the client's Authorization, if not empty

	CountsSlots bool   // it has an agent that counts; its capacity is what that reports
	SlotSecret  string // that the agent wants to see

	ConnectTimeout time.Duration
	SendTimeout    time.Duration // how long it may read nothing of a request; 0: no bound but the kernel's
	ProbeEvery     time.Duration // 0: never probed
	ProbeTimeout   time.Duration
}

// identity is what makes two endpoints the same process, spoken to in the same way.
type identity struct {
	url, instance string
	countsSlots   bool
}

func (e Endpoint) identity() identity {
	return identity{e.URL, e.Instance, e.CountsSlots}
}

// Events are optional functions that hear of what happens to replicas in the
// background. They must not block.
type Events struct {
	// CancelFailed: a backend could not be told to give a reserved slot back.
	CancelFailed func(replica string, err error)
	// CapacityDiffers: a replica reports another capacity than the one configured, and that holds.
	CapacityDiffers func(replica string, configured, reported int)
	// Restarted: another process answers at the replica's address. The next
	// Set makes a new Replica of it.
	Restarted func(Endpoint)
	// Exhausted: this process could not connect to a replica, for a request or a probe, for want of
	// descriptors, ports or memory of its own. The error is an ErrExhausted.
	Exhausted func(err error)
}

// Replica is one LLM server process. The pointer is its identity: a new
// process on an old address is a new Replica, and what is released late on the
// old one touches nothing of the new. Name and capacity may change under it.
type Replica struct {
	gate        gate
	backend     Backend
	endpoint    atomic.Pointer[Endpoint]
	health      health
	circuit     circuit
	recoveredAt atomic.Int64 // when it came back, by monotonic time; zero once that is long ago
	remote      remoteUsage
	events      Events

	background sync.WaitGroup // cancels under way

	mu   sync.Mutex
	live *Slot // the newest of the live slots
}

// NewReplica makes a replica that is spoken to over backend. It is assumed to be
// able to serve until something says otherwise.
func NewReplica(e Endpoint, backend Backend) *Replica {
	r := &Replica{backend: backend}
	r.health.probeNow = make(chan struct{}, 1)
	r.describe(e)
	return r
}

// describe renames and re-caps the replica; the counts stay.
func (r *Replica) describe(e Endpoint) {
	r.endpoint.Store(&e)
	r.backend.Describe(e)
	r.setConfiguredLimit(e.Limit)
}

// ID is the replica's name.
func (r *Replica) ID() string { return r.endpoint.Load().ID }

// Label is the replica's name in texts that clients may read.
func (r *Replica) Label() string {
	e := r.endpoint.Load()
	return cmp.Or(e.Label, e.ID)
}

// Endpoint is how the replica was last described.
func (r *Replica) Endpoint() Endpoint { return *r.endpoint.Load() }

// CountsSlots tells whether an agent counts the replica's slots, so that the
// gate's word is not the last one.
func (r *Replica) CountsSlots() bool { return r.endpoint.Load().CountsSlots }

// Load is how many requests are ongoing, as best known: what is reserved counts
// as what is running, and what other ingresses have there counts too.
func (r *Replica) Load() int { return r.gate.counts().ongoing() + int(r.remote.others.Load()) }

// HasRoom tells whether a reservation can be expected to find a free slot.
func (r *Replica) HasRoom() bool {
	c := r.gate.counts()
	if c.phase != serving || c.ongoing() >= c.limit || !r.circuit.admits() {
		return false
	}
	others := int(r.remote.others.Load())
	return others == 0 || c.ongoing()+others < c.limit || !r.remote.isFresh()
}

// Usage is a reading of the slots that this process holds on a replica.
type Usage struct{ Reserved, Running, Limit int }

// Ongoing is reserved and running together.
func (u Usage) Ongoing() int { return u.Reserved + u.Running }

// Usage reads reserved, running and limit at one moment.
func (r *Replica) Usage() Usage {
	c := r.gate.counts()
	return Usage{Reserved: c.reserved, Running: c.running, Limit: c.limit}
}

// TryReserve takes a slot for holder, a name for people, if fewer than bound (where bound > 0) and fewer
// than the replica's limit are ongoing. It is the gate's own decision, made in one step and without
// waiting: ErrFull, ErrDraining or ErrGone if not; ErrEjected if its circuit lets nobody in. The
// backend is yet to agree: see Slot.Confirm.
func (r *Replica) TryReserve(holder string, bound int) (*Slot, error) {
	s := new(Slot)
	if err := r.TryReserveInto(s, holder, bound); err != nil {
		return nil, err
	}
	return s, nil
}

// TryReserveInto is Claim for one who has the slot's memory already, still zero. On an error it is as it was.
func (r *Replica) TryReserveInto(s *Slot, holder string, bound int) error {
	if !r.passCircuit() {
		return ErrEjected
	}
	return r.reserve(s, holder, bound)
}

// ForceReserve is Claim for one who has nobody else to ask: the circuit has no say.
func (r *Replica) ForceReserve(holder string) (*Slot, error) {
	s := new(Slot)
	r.passCircuit() // perhaps as a trial
	return s, r.reserve(s, holder, 0)
}

func (r *Replica) reserve(s *Slot, holder string, bound int) error {
	if err := r.gate.reserve(bound); err != nil {
		return err
	}
	r.initSlot(s, holder)
	return nil
}

// grant makes the slot for a unit that the gate counts as reserved already.
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

// forget takes a slot that is done from the list of live ones.
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

// SlotInfo describes a live slot to people.
type SlotInfo struct {
	Holder  string
	Running bool // else reserved
	Since   time.Time
}

// Slots lists the live slots, the newest first.
func (r *Replica) Slots() []SlotInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []SlotInfo
	start := time.Now().Add(-monotonic())
	for s := r.live; s != nil; s = s.next {
		all = append(all, SlotInfo{s.holder, s.state.Load() == slotRunning, start.Add(s.reservedAt)})
	}
	return all
}

// Do sends a request into a slot that was started. A replica that cannot be
// connected to is down from then on, until a probe reaches it.
func (r *Replica) Do(req *http.Request, s *Slot) (*http.Response, error) {
	s.sentAt, s.readsAtSend = monotonic(), r.health.bodyReads.Load()
	resp, report, err := r.backend.Do(req, s.token)
	r.applyReport(report)
	if err != nil {
		r.recordFailure(s, err)
		if r.CountsSlots() && !errors.Is(err, ErrToken) && !errors.Is(err, ErrFull) && !errors.Is(err, ErrDraining) {
			r.cancelToken(s.token) // the agent may have heard nothing of the request, and would hold the reservation for its lease
		}
		return nil, fmt.Errorf("replica %s: %w", r.Label(), err)
	}
	r.observeBody(s, resp)
	return resp, nil
}

// Call sends a request that takes no slot: one that manages the replica and
// asks for no work.
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

// Drain lets nothing new in; what is reserved may still be dispatched.
func (r *Replica) Drain() {
	r.gate.setPhase(draining)
	r.health.notify()
}

// retire takes the replica out of service; running requests go on.
func (r *Replica) retire() { r.gate.setPhase(retired) }

// open puts a replica in service that has come, or come back.
func (r *Replica) activate() { r.gate.setPhase(serving) }

// cancel tells the backend, in the background, that a token will not be used.
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

// Wait returns when no call in the background is under way. Nothing may be
// reserved or released meanwhile.
func (r *Replica) Wait() { r.background.Wait() }
