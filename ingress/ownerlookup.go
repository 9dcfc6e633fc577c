package ingress

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"berth/llmserver"
	"berth/streaming"
)

const (
	// lookupTimeout bounds a lookup, including the wait for a free place among
	// maxConcurrentLookups.
	lookupTimeout = 5 * time.Second
	// maxConcurrentLookups bounds the concurrent lookups of the process, maxLookupCalls the
	// concurrent calls of each lookup.
	maxConcurrentLookups = 8
	maxLookupCalls       = 32
	// maxMisses bounds the remembered lookups without a result. They are remembered for absentTTL
	// if every replica denied having the response, for uncertainTTL if some did not respond.
	maxMisses    = 4096
	absentTTL    = 5 * time.Second
	uncertainTTL = time.Second
	// maxDrainBytes bounds the bytes read of a response body to make its connection reusable.
	maxDrainBytes = 16 << 10
)

// ownerLookups finds the owners of stored responses by asking all replicas. That is needed for
// responses created through another ingress or before a restart of this one.
//
// Any client can cause a lookup with an invented ID. So the number of concurrent lookups is bounded
// for the whole process, an ID is looked up once at a time, and results, misses included, are
// remembered.
//
// Any goroutine may call findOwner and pin, which block for lookupTimeout at most. mu is never held
// during a call to a replica.
type ownerLookups struct {
	owners  *responseOwners
	running chan struct{} // a semaphore: one element per running lookup
	count   func(result string)

	mu         sync.Mutex               // guards the fields below
	inProgress map[string]chan struct{} // by ID; closed when the lookup has ended
	misses     recentMap[ownerMiss]
}

// An ownerMiss is a lookup without an owner as its result. It is immutable.
type ownerMiss struct {
	models []string // IDs of the searched models
	until  time.Time
	err    error // nil if no replica holds the response
}

// newOwnerLookups returns lookups that store owners found in owners. count is called once per
// findOwner that got a result, with found, absent, uncertain or remembered; it must not block.
func newOwnerLookups(owners *responseOwners, count func(result string)) *ownerLookups {
	return &ownerLookups{
		owners:     owners,
		running:    make(chan struct{}, maxConcurrentLookups),
		count:      count,
		inProgress: make(map[string]chan struct{}),
	}
}

// findOwner returns the replica of these models that holds a response, and the model of that
// replica. Unless the owner or a miss is remembered, findOwner asks all replicas with the
// credentials of the client request r. The replica is nil if none holds the response. The error is
// errOwnerUnknown if some replicas did not respond or lookupTimeout ended, and wraps
// streaming.ErrClientGone if the client has disconnected.
//
// Concurrent calls for the same ID share one lookup: one caller searches, all others wait and then
// use the remembered result.
func (l *ownerLookups) findOwner(r *http.Request, id string, models []*model) (*model, *llmserver.Replica, error) {
	ctx, stop := context.WithTimeout(r.Context(), lookupTimeout)
	defer stop()
	for {
		// Checked in every round: a lookup that ended meanwhile may have found the owner.
		if m, owner := l.owners.ownerAmong(id, models); owner != nil {
			return m, owner, nil
		}
		if miss, ok := l.recentMiss(id, models); ok {
			l.count("remembered")
			return nil, nil, miss.err
		}
		// A client that disconnected in the meantime must not cause calls to replicas.
		end, err := l.startLookup(ctx, id)
		switch {
		case r.Context().Err() != nil:
			if end != nil {
				end()
			}
			return nil, nil, fmt.Errorf("%w: %w", streaming.ErrClientGone, context.Cause(ctx))
		case err != nil:
			// lookupTimeout has ended. Nothing is known about the response, so no miss is
			// remembered.
			return nil, nil, errOwnerUnknown
		case end != nil:
			defer end()
			return l.searchOwner(ctx, r, id, models)
		}
		// Another lookup of the ID has ended. Its result is remembered, so the next round usually
		// returns. If not (some replica denied that client's key), this request makes a lookup of
		// its own.
	}
}

// pin returns the replica of a model that must serve the continuation of a stored response. The
// replica is nil if any may serve the request: the model has a single replica, or none holds the
// response; in that case the engine reports the missing response itself. pin blocks and fails as
// findOwner does.
func (l *ownerLookups) pin(r *http.Request, id string, m *model) (*llmserver.Replica, error) {
	if !isResponseID(id) || len(m.replicas) == 1 {
		return nil, nil
	}
	_, owner, err := l.findOwner(r, id, []*model{m})
	return owner, err
}

// startLookup blocks until a lookup of id may run. The caller must then call end exactly once,
// after the lookup. end is nil if another lookup of id ended meanwhile; the caller must check for
// its result. The error is the cause of ctx if ctx ended first, and end is nil then, too.
func (l *ownerLookups) startLookup(ctx context.Context, id string) (end func(), err error) {
	l.mu.Lock()
	if other := l.inProgress[id]; other != nil {
		// The other lookup may be for other models; the caller's next round decides whether the
		// result applies.
		l.mu.Unlock()
		select {
		case <-other:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	done := make(chan struct{})
	l.inProgress[id] = done
	l.mu.Unlock()
	// Waiters for this ID are woken even if the lookup never ran: they must not wait in vain.
	finish := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.inProgress, id)
		close(done)
	}
	select {
	case l.running <- struct{}{}:
		// end gives the place back before the waiters of this ID wake.
		return func() { <-l.running; finish() }, nil
	case <-ctx.Done():
		finish()
		return nil, context.Cause(ctx)
	}
}

// recentMiss returns a remembered miss of id. A miss counts only if the lookup covered all of these
// models: a client with access to more models needs a new lookup.
func (l *ownerLookups) recentMiss(id string, models []*model) (m ownerMiss, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Expired misses stay until they are overwritten; their number is bounded.
	m, ok = l.misses.values[id]
	if !ok || time.Now().After(m.until) {
		return ownerMiss{}, false
	}
	for _, asked := range models {
		if !slices.Contains(m.models, asked.config.ID) {
			return ownerMiss{}, false
		}
	}
	return m, true
}

// rememberMiss remembers a lookup of id among these models without an owner. err is that of the
// lookup: nil makes the miss certain. The oldest miss is dropped if there are maxMisses already.
func (l *ownerLookups) rememberMiss(id string, models []*model, err error) {
	m := ownerMiss{until: time.Now().Add(absentTTL), err: err}
	if err != nil {
		m.until = time.Now().Add(uncertainTTL)
	}
	for _, asked := range models {
		m.models = append(m.models, asked.config.ID)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.misses.put(id, m, maxMisses)
}

// forgetMisses forgets all misses. It is called after a reload, which may have added replicas. The
// ring of keys stays: its entries are overwritten in order.
func (l *ownerLookups) forgetMisses() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.misses.values)
}

// searchOwner asks all replicas of these models, remembers the result and returns it as findOwner
// does. The caller must be between startLookup and end.
func (l *ownerLookups) searchOwner(ctx context.Context, r *http.Request, id string, models []*model) (*model, *llmserver.Replica, error) {
	// r's own context decides below, as ctx also ends with lookupTimeout.
	result := lookupEverywhere(ctx, r.Header, id, models)
	switch {
	case result.owner != nil:
		l.count("found")
		l.owners.setOwner(id, result.owner)
		return result.model, result.owner, nil
	case r.Context().Err() != nil:
		return nil, nil, fmt.Errorf("%w: %w", streaming.ErrClientGone, context.Cause(r.Context()))
	case result.err != nil:
		l.count("uncertain")
	default:
		l.count("absent")
	}
	// A miss with denied calls is not remembered: it is a result of this client's key alone.
	if !result.denied {
		l.rememberMiss(id, models, result.err)
	}
	return nil, nil, result.err
}

// A lookupResult collects the responses to one lookup. Several goroutines add responses; the fields
// may be read without the lock after all have ended.
type lookupResult struct {
	mu     sync.Mutex // guards the fields below while calls are in progress
	model  *model
	owner  *llmserver.Replica
	denied bool  // some replica rejected the client's key, but might accept another one
	err    error // errOwnerUnknown if some replica gave no clear response
}

// addResponse adds the response of r, or the error of the call. Any status but a success, a server
// error, 429 or a denial means that r does not hold the response.
func (l *lookupResult) addResponse(m *model, r *llmserver.Replica, resp *http.Response, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil || resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests:
		l.err = errOwnerUnknown
	case resp.StatusCode/100 == 2:
		l.model, l.owner = m, r
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		l.denied = true
	}
}

// lookupEverywhere asks every replica of these models for a response, maxLookupCalls at once. It
// blocks until all calls have ended, at the latest with ctx. The search does not stop at the first
// owner. The calls take no slot.
func lookupEverywhere(ctx context.Context, header http.Header, id string, models []*model) *lookupResult {
	result, running := new(lookupResult), make(chan struct{}, maxLookupCalls)
	var calls sync.WaitGroup
	for _, m := range models {
		for _, replica := range m.router.Members() {
			running <- struct{}{}
			calls.Go(func() {
				defer func() { <-running }()
				resp, err := replica.Call(lookupRequest(ctx, header, id))
				result.addResponse(m, replica, resp, err)
				if err == nil {
					io.CopyN(io.Discard, resp.Body, maxDrainBytes) // mostly to the end, for the connection to be reused
					resp.Body.Close()
				}
			})
		}
	}
	// A call without a response ends with ctx, so this wait is bounded, too.
	calls.Wait()
	return result
}

// lookupRequest returns a GET of a stored response with the client's header, and so with the
// client's credentials. The calls of one lookup share nothing: each has a header of its own.
func lookupRequest(ctx context.Context, header http.Header, id string) *http.Request {
	req := &http.Request{
		Method: http.MethodGet,
		URL:    &url.URL{Path: "/v1/responses/" + id},
		Header: make(http.Header),
		Body:   http.NoBody,
	}
	streaming.CopyRequestHeader(req.Header, header)
	req.Header.Del("Content-Type")
	return req.WithContext(ctx)
}
