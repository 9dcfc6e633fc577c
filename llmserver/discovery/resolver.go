package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// udpSize is the size of a UDP response that fits into a packet on most networks.
	udpSize = 1232
	// maxTargets is the number of targets of SRV records looked up at once.
	maxTargets = 16
)

// A resolver sends queries to the servers of resolv.conf, or to one server. The file is read again
// for each lookup.
type resolver struct {
	server string // ip:port; empty: those of resolv.conf
	conf   string // path of resolv.conf
	send   func(ctx context.Context, q *dns.Msg, network, server string, timeout time.Duration) (*dns.Msg, error)
}

// addresses are the result of a lookup.
type addresses struct {
	all []address
	ttl time.Duration // the shortest of all records
}

// An address is an IP address, and of a record of type SRV the port and the name of the target, if
// the target has one address.
type address struct {
	ip, name string
	port     int
}

// hosts returns the addresses of a name. kind is A or AAAA.
func (r *resolver) hosts(ctx context.Context, name, kind string) (found addresses, err error) {
	s, err := r.session(name)
	if err != nil {
		return found, err
	}
	response, err := s.search(ctx, dns.StringToType[kind])
	if err != nil {
		return found, err
	}
	return hostsIn(response.Answer, ""), nil
}

// services returns the addresses of the targets of a name's SRV records with the lowest priority
// value; the others are for when none of these works, which health checks decide better. Weights
// are ignored: requests go by load.
func (r *resolver) services(ctx context.Context, name string) (found addresses, err error) {
	s, err := r.session(name)
	if err != nil {
		return found, err
	}
	response, err := s.search(ctx, dns.TypeSRV)
	if err != nil {
		return found, err
	}
	records := bestServices(response.Answer)
	results, errs := make([]addresses, len(records)), make([]error, len(records))
	var all sync.WaitGroup
	places := make(chan struct{}, maxTargets)
	for i, record := range records {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			results[i], errs[i] = s.target(ctx, record, response.Extra)
		})
	}
	all.Wait()
	found.ttl = maxPeriod
	for i := range records {
		if errs[i] != nil && !errors.Is(errs[i], errNoRecords) {
			return addresses{}, fmt.Errorf("target %s: %w", records[i].Target, errs[i])
		}
		if errs[i] == nil { // else the target was deleted before its SRV record
			found.all = append(found.all, results[i].all...)
			found.ttl = min(found.ttl, results[i].ttl)
		}
	}
	if len(found.all) == 0 {
		return addresses{}, errNoRecords
	}
	return found, nil
}

// bestServices returns the SRV records of the lowest priority value, except those whose target is
// the root, which means that there is no such service.
func bestServices(answer []dns.RR) (records []*dns.SRV) {
	for _, rr := range answer {
		if record, ok := rr.(*dns.SRV); ok && record.Target != "." {
			records = append(records, record)
		}
	}
	if len(records) == 0 {
		return nil
	}
	best := slices.MinFunc(records, func(a, b *dns.SRV) int { return cmp.Compare(a.Priority, b.Priority) }).Priority
	return slices.DeleteFunc(records, func(record *dns.SRV) bool { return record.Priority != best })
}

// hostsIn returns the addresses in records: those of one name, or those at the end of any aliases
// if name is empty.
func hostsIn(records []dns.RR, name string) (found addresses) {
	found.ttl = maxPeriod
	for _, rr := range records {
		if h := rr.Header(); name != "" && !strings.EqualFold(h.Name, name) {
			continue
		}
		switch record := rr.(type) {
		case *dns.A:
			found.all = append(found.all, address{ip: record.A.String()})
		case *dns.AAAA:
			found.all = append(found.all, address{ip: record.AAAA.String()})
		case *dns.CNAME:
		default:
			continue
		}
		found.ttl = min(found.ttl, time.Duration(rr.Header().Ttl)*time.Second)
	}
	return found
}

// A session is the queries of one lookup.
type session struct {
	servers  []string
	names    []string // candidates, with the search domains
	attempts int
	timeout  time.Duration
	send     func(ctx context.Context, q *dns.Msg, network, server string, timeout time.Duration) (*dns.Msg, error)
}

func (r *resolver) session(name string) (*session, error) {
	conf, err := dns.ClientConfigFromFile(r.conf)
	if err != nil {
		if r.server == "" {
			return nil, err
		}
		conf = &dns.ClientConfig{Ndots: 1, Timeout: 5, Attempts: 2}
	}
	s := &session{
		names: conf.NameList(name), attempts: max(conf.Attempts, 1), timeout: time.Duration(max(conf.Timeout, 1)) * time.Second, send: r.send,
	}
	for _, server := range conf.Servers {
		s.servers = append(s.servers, net.JoinHostPort(server, conf.Port))
	}
	if r.server != "" {
		s.servers = []string{r.server}
	}
	if len(s.servers) == 0 {
		return nil, fmt.Errorf("%s names no server", r.conf)
	}
	return s, nil
}

// search returns the response for the first candidate name that has records. A failure ends the
// search: with a later candidate the replicas could be those of another name.
func (s *session) search(ctx context.Context, kind uint16) (*dns.Msg, error) {
	for _, name := range s.names {
		response, err := s.query(ctx, name, kind)
		if !errors.Is(err, errNoRecords) {
			return response, err
		}
	}
	return nil, errNoRecords
}

// target returns the addresses of the target of an SRV record: those that came along, or else those
// of a query.
func (s *session) target(ctx context.Context, record *dns.SRV, extra []dns.RR) (addresses, error) {
	found := hostsIn(extra, record.Target)
	for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
		if len(found.all) > 0 {
			break
		}
		response, err := s.query(ctx, record.Target, kind)
		if errors.Is(err, errNoRecords) {
			continue
		} else if err != nil {
			return found, err
		}
		found = hostsIn(response.Answer, "")
	}
	if len(found.all) == 0 {
		return found, errNoRecords
	}
	found.ttl = min(found.ttl, time.Duration(record.Hdr.Ttl)*time.Second)
	for i := range found.all {
		found.all[i].port = int(record.Port)
		if len(found.all) == 1 {
			found.all[i].name = strings.ToLower(strings.TrimSuffix(record.Target, "."))
		}
	}
	return found, nil
}

// query asks the servers in turn until one responds with records, or that there are none.
func (s *session) query(ctx context.Context, name string, kind uint16) (response *dns.Msg, err error) {
	q := new(dns.Msg)
	q.SetQuestion(dns.Fqdn(name), kind).SetEdns0(udpSize, false)
	for range s.attempts {
		for _, server := range s.servers {
			if response, err = s.exchange(ctx, q, server); err == nil || errors.Is(err, errNoRecords) || ctx.Err() != nil {
				return response, err
			}
		}
	}
	return nil, err
}

// exchange sends a query to one server, by TCP if the response does not fit into UDP.
func (s *session) exchange(ctx context.Context, q *dns.Msg, server string) (response *dns.Msg, err error) {
	for _, network := range []string{"udp", "tcp"} {
		if response, err = s.send(ctx, q, network, server, s.timeout); err != nil {
			if op, ok := errors.AsType[*net.OpError](err); ok {
				err = op.Err // without the local port, so that it is the same error each time
			}
			return nil, fmt.Errorf("server %s: %w", server, err)
		}
		if !response.Truncated {
			break
		}
	}
	found := slices.ContainsFunc(response.Answer, func(rr dns.RR) bool { return rr.Header().Rrtype == q.Question[0].Qtype })
	switch {
	case response.Rcode == dns.RcodeSuccess && found:
		return response, nil
	case response.Rcode == dns.RcodeNameError || response.Rcode == dns.RcodeSuccess:
		return nil, errNoRecords
	}
	return nil, fmt.Errorf("server %s: %s", server, dns.RcodeToString[response.Rcode])
}

// sendQuery sends a query over the network, udp or tcp, and returns the response.
func sendQuery(ctx context.Context, q *dns.Msg, network, server string, timeout time.Duration) (*dns.Msg, error) {
	client := dns.Client{Net: network, Timeout: timeout, UDPSize: udpSize}
	response, _, err := client.ExchangeContext(ctx, q, server)
	return response, err
}
