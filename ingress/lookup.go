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
	// lookupTimeout bounds the look-up of the replica that holds a response, its wait for its turn
	// included.
	lookupTimeout = 5 * time.Second
	// maxLookups is how many look-ups ask at once, and maxAsked how many replicas each of them asks
	// at once.
	maxLookups = 8
	maxAsked   = 32
	// maxMisses is how many look-ups that found no holder are remembered: absentFor where every
	// replica said that it has no such response, and unsureFor where some replica did not say.
	maxMisses = 4096
	absentFor = 5 * time.Second
	unsureFor = time.Second
	// maxDrained is how much of a response body is read so that its connection can be used again.
	maxDrained = 16 << 10
)

// lookups finds the replicas that hold stored responses by asking all of them, which a client can
// bring about with any ID that it makes up. So their number at a time is bounded in the whole
// process, there is one of an ID at a time, and what was found, or not, is remembered.
type lookups struct {
	turns chan struct{} // an element for each look-up that asks
	count func(result string)

	mu    sync.Mutex
	busy  map[string]chan struct{} // by ID; closed when the look-up has ended
	known map[string]miss
	ids   []string // of known, a ring: the oldest is overwritten
	next  int
}

// A miss is a look-up that found no holder.
type miss struct {
	models []string // that were asked, by ID
	until  time.Time
	err    error // nil if no replica holds the response
}

func newLookups(count func(result string)) *lookups {
	return &lookups{
		turns: make(chan struct{}, maxLookups),
		count: count,
		busy:  make(map[string]chan struct{}),
		known: make(map[string]miss),
	}
}

// begin waits for the turn to look id up; end must be called then. It returns a nil end if another
// look-up of id has just ended, and an error if ctx ends first.
func (l *lookups) begin(ctx context.Context, id string) (end func(), err error) {
	l.mu.Lock()
	if other := l.busy[id]; other != nil {
		l.mu.Unlock()
		select {
		case <-other:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	done := make(chan struct{})
	l.busy[id] = done
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.busy, id)
		close(done)
	}
	select {
	case l.turns <- struct{}{}:
		return func() { <-l.turns; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}

// missed reports whether a look-up of id among these models came to nothing a short while ago.
func (l *lookups) missed(id string, models []*model) (m miss, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m, found = l.known[id]
	if !found || time.Now().After(m.until) {
		return miss{}, false
	}
	for _, asked := range models {
		if !slices.Contains(m.models, asked.config.ID) {
			return miss{}, false
		}
	}
	return m, true
}

// remember notes a look-up that came to nothing.
func (l *lookups) remember(id string, models []*model, err error) {
	m := miss{until: time.Now().Add(absentFor), err: err}
	if err != nil {
		m.until = time.Now().Add(unsureFor)
	}
	for _, asked := range models {
		m.models = append(m.models, asked.config.ID)
	}
	id = strings.Clone(id) // it is a part of a request's header
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.known[id]; !known {
		if len(l.ids) < maxMisses {
			l.ids = append(l.ids, "")
		}
		delete(l.known, l.ids[l.next])
		l.ids[l.next] = id
		l.next = (l.next + 1) % maxMisses
	}
	l.known[id] = m
}

// forget drops all that is remembered: the set of replicas may have changed.
func (l *lookups) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.known)
}

// holder finds the replica of these models that holds a response, by what was learned or else by
// asking all of them. It is nil if none does, and errResponseAstray if that is not certain.
func (x *proxyRequest) holder(id string, models []*model) (of *model, holder *llmserver.Replica, err error) {
	ctx, stop := context.WithTimeout(x.c.Request.Context(), lookupTimeout)
	defer stop()
	for {
		if of, holder = x.holders.among(id, models); holder != nil {
			return of, holder, nil
		}
		if m, missed := x.lookups.missed(id, models); missed {
			x.lookups.count("remembered")
			return nil, nil, m.err
		}
		end, err := x.lookups.begin(ctx, id)
		switch {
		case x.c.Request.Context().Err() != nil:
			if end != nil {
				end()
			}
			return nil, nil, fmt.Errorf("%w: %w", streaming.ErrClientGone, context.Cause(ctx))
		case err != nil:
			return nil, nil, errResponseAstray
		case end != nil:
			defer end()
			return x.lookUp(ctx, id, models)
		}
	}
}

// lookUp asks every replica of these models for a response, and remembers what comes of it. The
// caller has the turn to look id up.
func (x *proxyRequest) lookUp(ctx context.Context, id string, models []*model) (*model, *llmserver.Replica, error) {
	v := x.askAll(ctx, id, models)
	client := x.c.Request.Context()
	switch {
	case v.holder != nil:
		x.lookups.count("found")
		x.holders.put(id, v.holder)
		return v.of, v.holder, nil
	case client.Err() != nil:
		return nil, nil, fmt.Errorf("%w: %w", streaming.ErrClientGone, context.Cause(client))
	case v.err != nil:
		x.lookups.count("uncertain")
	default:
		x.lookups.count("absent")
	}
	if !v.denied {
		x.lookups.remember(id, models, v.err)
	}
	return nil, nil, v.err
}

// votes are what the replicas said to a look-up.
type votes struct {
	mu     sync.Mutex
	of     *model
	holder *llmserver.Replica
	denied bool // some replica does not accept the client's key; another client's it may
	err    error
}

func (v *votes) count(m *model, r *llmserver.Replica, resp *http.Response, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case err != nil || resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests:
		v.err = errResponseAstray
	case resp.StatusCode/100 == 2:
		v.of, v.holder = m, r
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		v.denied = true
	}
}

// askAll asks every replica of these models for a response, maxAsked at once.
func (x *proxyRequest) askAll(ctx context.Context, id string, models []*model) *votes {
	v, turns := new(votes), make(chan struct{}, maxAsked)
	var asked sync.WaitGroup
	for _, m := range models {
		for _, replica := range m.router.Members() {
			turns <- struct{}{}
			asked.Go(func() {
				defer func() { <-turns }()
				resp, err := replica.Call(x.question(ctx, id))
				v.count(m, replica, resp, err)
				if err == nil {
					io.CopyN(io.Discard, resp.Body, maxDrained) // to its end, most often: the connection is kept then
					resp.Body.Close()
				}
			})
		}
	}
	asked.Wait()
	return v
}

// question is a request for a response by the client's own means.
func (x *proxyRequest) question(ctx context.Context, id string) *http.Request {
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
