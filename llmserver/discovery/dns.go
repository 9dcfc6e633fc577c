package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"berth/llmserver"
)

const (
	// minPeriod and maxPeriod bound the time between lookups that follow the TTL of the records.
	minPeriod = time.Second
	maxPeriod = 5 * time.Minute
	// firstRetry is the time until the lookup after one that failed; it doubles up to lastRetry.
	firstRetry = time.Second
	lastRetry  = 10 * time.Second
)

// DNS describes endpoints found by DNS lookups.
type DNS struct {
	Name   string        // completed by the search domains of resolv.conf unless it ends in a dot
	Type   string        // A, AAAA or SRV
	Port   int           // of the endpoints; the records of type SRV have their own
	Server string        // ip:port; empty: the servers of resolv.conf
	Period time.Duration // between lookups; 0: by the TTL of the records
	Keep   time.Duration // how long a name must be without records before its endpoints are gone
}

// dnsSource is a source of endpoints that looks up a name again and again.
//
// A server that does not respond, or responds with a failure, is away: the last set stays for as
// long as that lasts. A response that the name has no records is one, but servers give it wrongly,
// too, while they start: the set becomes empty when all responses have been so for Keep.
type dnsSource struct {
	status
	DNS
	resolver resolver
}

// errNoRecords means that, according to a server, the name has no records of the type.
var errNoRecords = errors.New("no such records")

// NewDNS returns the endpoints in the records of a name. It looks nothing up.
func NewDNS(d DNS, log *slog.Logger) Source {
	s := &dnsSource{DNS: d, resolver: resolver{server: d.Server, conf: "/etc/resolv.conf", send: sendQuery}}
	s.status = status{log: log.With("source", s.String()), quiet: repeatAfter}
	return s
}

func (d *dnsSource) String() string {
	if d.Type == "SRV" {
		return "dns SRV " + d.Name
	}
	return "dns " + net.JoinHostPort(d.Name, strconv.Itoa(d.Port))
}

// Lookup implements Source.
func (d *dnsSource) Lookup(ctx context.Context) ([]llmserver.Endpoint, error) {
	set, _, err := d.lookup(ctx)
	return set, err
}

// Run implements Source.
func (d *dnsSource) Run(ctx context.Context, publish func([]llmserver.Endpoint)) {
	state := dnsState{retry: firstRetry}
	for {
		set, ttl, err := d.lookup(ctx)
		if ctx.Err() != nil {
			return
		}
		wait := d.next(&state, ttl, err)
		switch {
		case err == nil:
			publish(set)
		case errors.Is(err, errNoRecords) && d.isEmpty(&state):
			publish(nil)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// dnsState is what a source remembers from one lookup to the next.
type dnsState struct {
	published bool      // some set
	empty     bool      // the last set published
	missing   time.Time // of the first response without records since one with some; zero: none
	retry     time.Duration
}

// next records the result of a lookup and returns the time until the next one.
func (d *dnsSource) next(s *dnsState, ttl time.Duration, err error) (wait time.Duration) {
	if err == nil {
		d.succeeded()
		s.published, s.empty, s.missing, s.retry = true, false, time.Time{}, firstRetry
		if d.Period > 0 {
			return d.Period
		}
		return min(max(ttl, minPeriod), maxPeriod)
	}
	d.failed(err)
	if errors.Is(err, errNoRecords) && s.missing.IsZero() {
		s.missing = time.Now()
	}
	wait = s.retry
	s.retry = min(2*s.retry, lastRetry)
	return wait
}

// isEmpty reports whether a name without records now means an empty set: at once if there is no set
// to keep, else after Keep.
func (d *dnsSource) isEmpty(s *dnsState) bool {
	switch {
	case s.empty:
		return false // published already
	case s.published && time.Since(s.missing) < d.Keep:
		return false
	case s.published:
		d.log.Warn(fmt.Sprintf("the name has had no records for %v; its replicas are removed", d.Keep), "name", d.Name)
	}
	s.published, s.empty = true, true
	return true
}

// lookup returns the endpoints, and the shortest TTL of their records.
func (d *dnsSource) lookup(ctx context.Context) (set []llmserver.Endpoint, ttl time.Duration, err error) {
	var found addresses
	if d.Type == "SRV" {
		found, err = d.resolver.services(ctx, d.Name)
	} else {
		found, err = d.resolver.hosts(ctx, d.Name, d.Type)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("lookup of %s %s: %w", d.Type, d.Name, err)
	}
	for _, a := range found.all {
		port := a.port
		if d.Type != "SRV" {
			port = d.Port
		}
		address := net.JoinHostPort(a.ip, strconv.Itoa(port))
		e := llmserver.Endpoint{ID: address, URL: "http://" + address}
		if a.name != "" {
			e.ID = net.JoinHostPort(a.name, strconv.Itoa(port))
		}
		set = append(set, e)
	}
	sortByID(set)
	return set, found.ttl, nil
}
