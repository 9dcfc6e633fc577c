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

	"github.com/prometheus/client_golang/prometheus"

	"berth/llmserver"
	"berth/streaming"
)

const (
	// lookupTimeout bounds the look-up of the replica that holds a response, its wait for its turn
	// included.
	lookupTimeout = 5 * time.Second
	// maxLookups is how many look-ups ask at once, and maxAsked how many replicas each of them asks
	// at once.
	maxConcurrentLookups = 8
	maxLookupCalls       = 32
	// maxMisses is how many look-ups that found no holder are remembered: absentFor where every
	// replica said that it has no such response, and unsureFor where some replica did not say.
	maxMisses    = 4096
	absentTTL    = 5 * time.Second
	uncertainTTL = time.Second
	// maxDrained is how much of a response body is read so that its connection can be used again.
	maxDrainBytes = 16 << 10
)

// lookups finds the replicas that hold stored responses by asking all of them, which a client can
// bring about with any ID that it makes up. So their number at a time is bounded in the whole
// process, there is one of an ID at a time, and what was found, or not, is remembered.
type ownerLookups struct {
	running chan struct{} // an element for each look-up that asks
	results *prometheus.CounterVec

	mu         sync.Mutex
	inProgress map[string]chan struct{} // by ID; closed when the look-up has ended
	misses     map[string]ownerMiss
	missOrder  []string // of known, a ring: the oldest is overwritten
	next       int
}

// A miss is a look-up that found no holder.
type ownerMiss struct {
	models []string // that were asked, by ID
	until  time.Time
	err    error // nil if no replica holds the response
}

func newOwnerLookups(r prometheus.Registerer) *ownerLookups {
	l := &ownerLookups{
		running: make(chan struct{}, maxConcurrentLookups),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_response_lookups_total",
			Help: "Searches among all replicas for the holder of a stored response, by result; remembered is one that was spared as its result was known.",
		}, []string{"result"}),
		inProgress: make(map[string]chan struct{}),
		misses:     make(map[string]ownerMiss),
	}
	r.MustRegister(l.results)
	return l
}

// begin waits for the turn to look id up; end must be called then. It returns a nil end if another
// look-up of id has just ended, and an error if ctx ends first.
func (l *ownerLookups) start(ctx context.Context, id string) (end func(), err error) {
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
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.inProgress, id)
		close(done)
	}
	select {
	case l.running <- struct{}{}:
		return func() { <-l.running; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}

// missed reports whether a look-up of id among these models came to nothing a short while ago.
func (l *ownerLookups) recentMiss(id string, models []*model) (m ownerMiss, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m, found = l.misses[id]
	if !found || time.Now().After(m.until) {
		return ownerMiss{}, false
	}
	for _, asked := range models {
		if !slices.Contains(m.models, asked.config.ID) {
			return ownerMiss{}, false
		}
	}
	return m, true
}

// remember notes a look-up that came to nothing.
func (l *ownerLookups) rememberMiss(id string, models []*model, err error) {
	m := ownerMiss{until: time.Now().Add(absentTTL), err: err}
	if err != nil {
		m.until = time.Now().Add(uncertainTTL)
	}
	for _, asked := range models {
		m.models = append(m.models, asked.config.ID)
	}
	id = strings.Clone(id) // it is a part of a request's header
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

// forget drops all that is remembered: the set of replicas may have changed.
func (l *ownerLookups) forgetMisses() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.misses)
}

// holder finds the replica of these models that holds a response, by what was learned or else by
// asking all of them. It is nil if none does, and errResponseAstray if that is not certain.
func (x *proxyRequest) findOwner(id string, models []*model) (of *model, holder *llmserver.Replica, err error) {
	ctx, stop := context.WithTimeout(x.c.Request.Context(), lookupTimeout)
	defer stop()
	for {
		if of, holder = x.owners.ownerAmong(id, models); holder != nil {
			return of, holder, nil
		}
		if m, missed := x.lookups.recentMiss(id, models); missed {
			x.lookups.results.WithLabelValues("remembered").Inc()
			return nil, nil, m.err
		}
		end, err := x.lookups.start(ctx, id)
		switch {
		case x.c.Request.Context().Err() != nil:
			if end != nil {
				end()
			}
			return nil, nil, fmt.Errorf("%w: %w", streaming.ErrClientGone, context.Cause(ctx))
		case err != nil:
			return nil, nil, errOwnerUnknown
		case end != nil:
			defer end()
			return x.searchOwner(ctx, id, models)
		}
	}
}

// lookUp asks every replica of these models for a response, and remembers what comes of it. The
// caller has the turn to look id up.
func (x *proxyRequest) searchOwner(ctx context.Context, id string, models []*model) (*model, *llmserver.Replica, error) {
	v := x.lookupEverywhere(ctx, id, models)
	client := x.c.Request.Context()
	switch {
	case v.owner != nil:
		x.lookups.results.WithLabelValues("found").Inc()
		x.owners.setOwner(id, v.owner)
		return v.model, v.owner, nil
	case client.Err() != nil:
		return nil, nil, fmt.Errorf("%w: %w", streaming.ErrClientGone, context.Cause(client))
	case v.err != nil:
		x.lookups.results.WithLabelValues("uncertain").Inc()
	default:
		x.lookups.results.WithLabelValues("absent").Inc()
	}
	if !v.denied {
		x.lookups.rememberMiss(id, models, v.err)
	}
	return nil, nil, v.err
}

// votes are what the replicas said to a look-up.
type lookupResult struct {
	mu     sync.Mutex
	model  *model
	owner  *llmserver.Replica
	denied bool // some replica does not accept the client's key; another client's it may
	err    error
}

func (v *lookupResult) add(m *model, r *llmserver.Replica, resp *http.Response, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case err != nil || resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests:
		v.err = errOwnerUnknown
	case resp.StatusCode/100 == 2:
		v.model, v.owner = m, r
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		v.denied = true
	}
}

// askAll asks every replica of these models for a response, maxAsked at once.
func (x *proxyRequest) lookupEverywhere(ctx context.Context, id string, models []*model) *lookupResult {
	v, turns := new(lookupResult), make(chan struct{}, maxLookupCalls)
	var asked sync.WaitGroup
	for _, m := range models {
		for _, replica := range m.router.Members() {
			turns <- struct{}{}
			asked.Go(func() {
				defer func() { <-turns }()
				resp, err := replica.Call(x.lookupRequest(ctx, id))
				v.add(m, replica, resp, err)
				if err == nil {
					io.CopyN(io.Discard, resp.Body, maxDrainBytes) // to its end, most often: the connection is kept then
					resp.Body.Close()
				}
			})
		}
	}
	asked.Wait()
	return v
}

// question is a request for a response by the client's own means.
func (x *proxyRequest) lookupRequest(ctx context.Context, id string) *http.Request {
	req := &http.Request{
		Method: http.MethodGet,
		URL:    &url.URL{Path: "/v1/responses/" + id},
		Header: make(http.Header),
		Body:   http.NoBody,
	}
	streaming.CopyRequestHeader(req.Header, x.c.Request.Header)
	req.Header.Del("Content-Type")
	return req.WithContext(ctx)
}
