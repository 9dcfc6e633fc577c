package ingress

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/llmserver"
	"berth/streaming"
)

const (
	// lookupTimeout bounds a lookup, including the wait until it may run.
	lookupTimeout = 5 * time.Second
	// maxConcurrentLookups bounds the lookups that run at once, maxLookupCalls the concurrent calls
	// of each of them.
	maxConcurrentLookups = 8
	maxLookupCalls       = 32
	// maxMisses bounds the lookups without a result that are remembered: for absentTTL if every
	// replica said that it has no such response, for uncertainTTL if some did not respond.
	maxMisses    = 4096
	absentTTL    = 5 * time.Second
	uncertainTTL = time.Second
	// maxDrainBytes is how much of a response body is read so that its connection can be reused.
	maxDrainBytes = 16 << 10
)

// ownerLookups finds the replicas that hold stored responses by asking all of them. Any client can
// cause a lookup, with an ID that it makes up. The number of concurrent lookups is therefore bounded
// for the whole process, an ID is looked up once at a time, and results, misses included, are
// remembered.
//
// Any goroutine may call findOwner and pin, which block for lookupTimeout at most.
type ownerLookups struct {
	owners  *responseOwners
	running chan struct{} // a semaphore: an element for each lookup that runs
	count   func(result string)

	mu         sync.Mutex               // guards what follows
	inProgress map[string]chan struct{} // by ID; closed when the lookup has ended
	misses     map[string]ownerMiss
	missOrder  []string // the keys of misses; a ring, in which next is the oldest once it is full
	next       int
}

// An ownerMiss is a lookup that found no owner.
type ownerMiss struct {
	models []string // the IDs of the models whose replicas were asked
	until  time.Time
	err    error // nil if no replica holds the response
}

func newOwnerLookups(owners *responseOwners, count func(result string)) *ownerLookups {
	return &ownerLookups{
		owners:     owners,
		running:    make(chan struct{}, maxConcurrentLookups),
		count:      count,
		inProgress: make(map[string]chan struct{}),
		misses:     make(map[string]ownerMiss),
	}
}

// findOwner returns the replica of these models that holds a response, and its model. It uses what is
// remembered, else it asks all replicas in the name of the client request r. The replica is nil if
// none holds the response. The error is errOwnerUnknown if that is not certain, and wraps
// streaming.ErrClientGone if the client has disconnected.
func (l *ownerLookups) findOwner(r *http.Request, id string, models []*model) (*model, *llmserver.Replica, error) {
	ctx, stop := context.WithTimeout(r.Context(), lookupTimeout)
	defer stop()
	for {
		if m, owner := l.owners.ownerAmong(id, models); owner != nil {
			return m, owner, nil
		}
		if miss, ok := l.recentMiss(id, models); ok {
			l.count("remembered")
			return nil, nil, miss.err
		}
		end, err := l.startLookup(ctx, id)
		switch {
		case r.Context().Err() != nil:
			if end != nil {
				end()
			}
			return nil, nil, fmt.Errorf("%w: %w", streaming.ErrClientGone, context.Cause(ctx))
		case err != nil:
			return nil, nil, errOwnerUnknown
		case end != nil:
			defer end()
			return l.searchOwner(ctx, r, id, models)
		}
		// Another lookup of the ID has ended: its result is remembered now.
	}
}

// pin returns the replica of a model that must serve a request that continues a stored response. It
// is nil if any replica may serve it: the model has only one, or none holds the response, which the
// engine then reports in its own words.
func (l *ownerLookups) pin(r *http.Request, id string, m *model) (*llmserver.Replica, error) {
	if !isResponseID(id) || len(m.replicas) == 1 {
		return nil, nil
	}
	_, owner, err := l.findOwner(r, id, []*model{m})
	return owner, err
}

// startLookup blocks until a lookup of id may run; end must be called when it has ended. end is nil if
// another lookup of id ended meanwhile, and the error is the cause of ctx if ctx ended first.
func (l *ownerLookups) startLookup(ctx context.Context, id string) (end func(), err error) {
	l.mu.Lock()
	if other := l.inProgress[id]; other != nil {
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
	finish := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.inProgress, id)
		close(done)
	}
	select {
	case l.running <- struct{}{}:
		return func() { <-l.running; finish() }, nil
	case <-ctx.Done():
		finish()
		return nil, context.Cause(ctx)
	}
}

// recentMiss returns a remembered miss of id that covers all of these models.
func (l *ownerLookups) recentMiss(id string, models []*model) (m ownerMiss, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m, ok = l.misses[id]
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

// rememberMiss remembers a lookup of id among these models that found no owner.
func (l *ownerLookups) rememberMiss(id string, models []*model, err error) {
	m := ownerMiss{until: time.Now().Add(absentTTL), err: err}
	if err != nil {
		m.until = time.Now().Add(uncertainTTL)
	}
	for _, asked := range models {
		m.models = append(m.models, asked.config.ID)
	}
	id = strings.Clone(id) // id may be part of a request header, which must not stay in memory
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.misses[id]; !known {
		if len(l.missOrder) < maxMisses {
			l.missOrder = append(l.missOrder, "")
		}
		delete(l.misses, l.missOrder[l.next])
		l.missOrder[l.next] = id
		l.next = (l.next + 1) % maxMisses
	}
	l.misses[id] = m
}

// forgetMisses forgets all misses, after a reload that may have added replicas.
func (l *ownerLookups) forgetMisses() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.misses)
}

// searchOwner asks all replicas and remembers the result. The caller is between startLookup and end.
func (l *ownerLookups) searchOwner(ctx context.Context, r *http.Request, id string, models []*model) (*model, *llmserver.Replica, error) {
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
	if !result.denied {
		l.rememberMiss(id, models, result.err)
	}
	return nil, nil, result.err
}

// A lookupResult collects the responses to a lookup.
type lookupResult struct {
	mu     sync.Mutex // guards what follows while calls are in progress
	model  *model
	owner  *llmserver.Replica
	denied bool  // some replica rejected the client's key; it may accept another client's
	err    error // errOwnerUnknown if some replica did not say whether it holds the response
}

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

// lookupEverywhere asks every replica of these models for a response, maxLookupCalls at once, and
// blocks until all have responded.
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
					io.CopyN(io.Discard, resp.Body, maxDrainBytes) // mostly to its end: the connection is reused then
					resp.Body.Close()
				}
			})
		}
	}
	calls.Wait()
	return result
}

// lookupRequest returns a GET of a response with the client's header, and so with its credentials.
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
