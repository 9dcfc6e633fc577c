package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// zone responds to queries from records, without a network.
type zone struct {
	mu      sync.Mutex
	records []string // in the form of a zone file; extra ones begin with +
	rcode   int      // of every response, if not 0
	err     error    // of every query, if not nil
	queries []string // name, type, server and network
}

func (z *zone) set(records ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.records, z.rcode, z.err = records, 0, nil
}

func (z *zone) fail(rcode int, err error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.rcode, z.err = rcode, err
}

// asked returns the queries since the last call.
func (z *zone) asked() []string {
	z.mu.Lock()
	defer z.mu.Unlock()
	defer func() { z.queries = nil }()
	return z.queries
}

func (z *zone) send(_ context.Context, q *dns.Msg, network, server string, _ time.Duration) (*dns.Msg, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	question := q.Question[0]
	z.queries = append(z.queries, fmt.Sprint(question.Name, " ", dns.TypeToString[question.Qtype], " ", server, " ", network))
	if z.err != nil {
		return nil, z.err
	}
	return z.respond(q), nil
}

func (z *zone) respond(q *dns.Msg) *dns.Msg {
	response := new(dns.Msg)
	response.SetReply(q)
	if response.Rcode = z.rcode; z.rcode != 0 {
		return response
	}
	exists, name := false, q.Question[0].Name
	for _, text := range z.records {
		text, extra := strings.CutPrefix(text, "+")
		rr, err := dns.NewRR(text)
		if err != nil {
			panic(err)
		}
		if extra {
			response.Extra = append(response.Extra, rr)
			continue
		}
		if rr.Header().Name != name {
			continue
		}
		exists = true
		if alias, ok := rr.(*dns.CNAME); ok {
			response.Answer, name = append(response.Answer, rr), alias.Target
		} else if rr.Header().Rrtype == q.Question[0].Qtype {
			response.Answer = append(response.Answer, rr)
		}
	}
	if !exists {
		response.Rcode = dns.RcodeNameError
	}
	return response
}

// onDNS runs f in a bubble with a source of d, which asks the zone.
func onDNS(t *testing.T, d DNS, z *zone, f func(r *run)) {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver 10.0.0.1\nnameserver 10.0.0.2\nsearch a.example b.example\noptions ndots:2 attempts:2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRun(t, func(log *slog.Logger) Source {
			s := NewDNS(d, log).(*dnsSource)
			s.resolver.conf, s.resolver.send = conf, z.send
			return s
		})
		defer r.stop()
		f(r)
	})
}

func TestDNSFollowsTheTTL(t *testing.T) {
	z := new(zone)
	z.set("vllm. 5 A 10.0.0.2", "vllm. 30 A 10.0.0.1")
	onDNS(t, DNS{Name: "vllm.", Type: "A", Port: 8000}, z, func(r *run) {
		r.want("10.0.0.1:8000=10.0.0.1:8000 10.0.0.2:8000=10.0.0.2:8000")
		z.set("vllm. 0 A 10.0.0.3")
		time.Sleep(5*time.Second - 1)
		r.want("none")
		time.Sleep(1)
		r.want("10.0.0.3:8000=10.0.0.3:8000")
		z.set("vllm. 86400 CNAME other.", "other. 86400 A 10.0.0.4")
		time.Sleep(minPeriod) // even if the TTL is 0
		r.want("10.0.0.4:8000=10.0.0.4:8000")
		z.set("vllm. 5 A 10.0.0.5")
		time.Sleep(maxPeriod - 1)
		r.want("none")
		time.Sleep(1)
		r.want("10.0.0.5:8000=10.0.0.5:8000")
		if log := r.logged(); log != "" {
			t.Errorf("logged\n%s", log)
		}
	})
}

func TestDNSPeriodOverridesTheTTL(t *testing.T) {
	z := new(zone)
	z.set("vllm. 3600 AAAA fd00::1", "vllm. 3600 A 10.0.0.1")
	onDNS(t, DNS{Name: "vllm.", Type: "AAAA", Port: 8000, Period: 250 * time.Millisecond, Server: "10.0.0.53:53"}, z, func(r *run) {
		r.want("[fd00::1]:8000=[fd00::1]:8000")
		z.asked()
		time.Sleep(1100 * time.Millisecond)
		if asked := z.asked(); len(asked) != 4 || asked[0] != "vllm. AAAA 10.0.0.53:53 udp" {
			t.Errorf("a second had the queries %q", asked)
		}
	})
}

func TestDNSServiceRecords(t *testing.T) {
	z := new(zone)
	z.set("_http._tcp.vllm. 30 SRV 1 0 8001 a.vllm.", "_http._tcp.vllm. 30 SRV 1 99 8002 B.vllm.", "_http._tcp.vllm. 30 SRV 2 0 8003 backup.vllm.",
		"_http._tcp.vllm. 30 SRV 1 0 8004 two.vllm.", "_http._tcp.vllm. 30 SRV 1 0 8005 gone.vllm.", "_http._tcp.vllm. 30 SRV 1 0 8006 six.vllm.",
		"+b.vllm. 20 A 10.0.0.2", "a.vllm. 10 A 10.0.0.1", "two.vllm. 30 A 10.0.0.4", "two.vllm. 30 A 10.0.0.3", "six.vllm. 30 AAAA fd00::6", "backup.vllm. 1 A 10.0.0.9")
	onDNS(t, DNS{Name: "_http._tcp.vllm.", Type: "SRV", Keep: time.Minute}, z, func(r *run) {
		r.want("10.0.0.3:8004=10.0.0.3:8004 10.0.0.4:8004=10.0.0.4:8004 a.vllm:8001=10.0.0.1:8001 b.vllm:8002=10.0.0.2:8002 six.vllm:8006=[fd00::6]:8006")
		z.set("_http._tcp.vllm. 30 SRV 2 0 8003 backup.vllm.", "backup.vllm. 1 A 10.0.0.9")
		time.Sleep(10 * time.Second) // the TTL of an address
		r.want("backup.vllm:8003=10.0.0.9:8003")
		z.set("_http._tcp.vllm. 30 SRV 0 0 0 .") // no such service
		time.Sleep(2 * time.Minute)
		r.want("")
	})
}

// Law 22: a server that is away, or fails, changes nothing.
func TestDNSServerAwayKeepsTheSet(t *testing.T) {
	z := new(zone)
	z.set("vllm. 30 A 10.0.0.1")
	onDNS(t, DNS{Name: "vllm.", Type: "A", Port: 8000, Keep: time.Second}, z, func(r *run) {
		r.want("10.0.0.1:8000=10.0.0.1:8000")
		for _, failure := range []struct {
			rcode int
			err   error
			said  string
		}{
			{dns.RcodeServerFailure, nil, "server 10.0.0.2:53: SERVFAIL"},
			{dns.RcodeRefused, nil, "server 10.0.0.2:53: REFUSED"},
			{0, &net.OpError{Op: "read", Net: "udp", Addr: &net.UDPAddr{}, Err: os.ErrDeadlineExceeded}, "server 10.0.0.2:53: i/o timeout"},
		} {
			z.fail(failure.rcode, failure.err)
			time.Sleep(time.Hour)
			r.want("none")
			if log := r.logged(); strings.Count(log, "\n") != 1 || !strings.Contains(log, failure.said) || r.source.Err() == nil {
				t.Errorf("logged\n%s", log)
			}
			if asked := z.asked(); len(asked) < 1000 || !strings.Contains(asked[len(asked)-1], "10.0.0.2:53") {
				t.Errorf("an hour had %d queries, the last %q", len(asked), asked[len(asked)-1])
			}
			z.set("vllm. 30 A 10.0.0.1")
			time.Sleep(lastRetry)
			r.want("10.0.0.1:8000=10.0.0.1:8000")
			if log := r.logged(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "available again") || r.source.Err() != nil {
				t.Errorf("logged\n%s", log)
			}
		}
	})
}

func TestDNSNameWithoutRecordsIsKeptForAWhile(t *testing.T) {
	z := new(zone)
	z.set("vllm. 30 A 10.0.0.1")
	onDNS(t, DNS{Name: "vllm.", Type: "A", Port: 8000, Keep: time.Minute}, z, func(r *run) {
		r.want("10.0.0.1:8000=10.0.0.1:8000")
		for _, records := range [][]string{nil, {"vllm. 30 TXT text"}} { // NXDOMAIN, and no data
			z.set(records...)
			time.Sleep(80 * time.Second)
			r.want("none")
			z.set("vllm. 30 A 10.0.0.1") // in time
			time.Sleep(lastRetry)
			r.want("10.0.0.1:8000=10.0.0.1:8000")
			r.logged()

			z.fail(dns.RcodeServerFailure, nil)
			time.Sleep(5 * time.Minute)
			z.set(records...)
			time.Sleep(30 * time.Second)
			z.fail(dns.RcodeServerFailure, nil) // which says nothing about the name
			time.Sleep(20 * time.Second)
			r.want("none")
			z.set(records...)
			time.Sleep(30*time.Second + lastRetry)
			r.want("")
			log := r.logged()
			if !strings.Contains(log, "no such records") || !strings.Contains(log, "has had no records for 1m0s; its replicas are removed") {
				t.Errorf("logged\n%s", log)
			}
			z.set("vllm. 30 A 10.0.0.1")
			time.Sleep(lastRetry)
			r.want("10.0.0.1:8000=10.0.0.1:8000")
		}
	})
}

func TestDNSNameWithoutRecordsAtTheBeginningIsAnEmptySet(t *testing.T) {
	z := new(zone)
	onDNS(t, DNS{Name: "vllm.", Type: "A", Port: 8000, Keep: time.Minute}, z, func(r *run) {
		r.want("")
		z.set("vllm. 30 A 10.0.0.1")
		time.Sleep(firstRetry)
		r.want("10.0.0.1:8000=10.0.0.1:8000")
	})
	z.fail(dns.RcodeServerFailure, nil)
	onDNS(t, DNS{Name: "vllm.", Type: "A", Port: 8000}, z, func(r *run) {
		time.Sleep(time.Hour)
		r.want("none")
	})
}

func TestDNSSearchDomains(t *testing.T) {
	for name, want := range map[string]string{
		"vllm":      "vllm.a.example. vllm.b.example.",
		"vllm.svc":  "vllm.svc.a.example. vllm.svc.b.example.",
		"vllm.":     "vllm.",
		"a.b.c":     "a.b.c. a.b.c.a.example. a.b.c.b.example.",
		"vllm.svc.": "vllm.svc.",
	} {
		z := new(zone)
		z.set("vllm.b.example. 5 A 10.0.0.1", "vllm.svc.b.example. 5 A 10.0.0.1", "a.b.c.b.example. 5 A 10.0.0.1")
		onDNS(t, DNS{Name: name, Type: "A", Port: 8000}, z, func(r *run) {
			if synctest.Wait(); strings.HasSuffix(name, ".") {
				r.want("")
			} else {
				r.want("10.0.0.1:8000=10.0.0.1:8000")
			}
			var asked []string
			for _, q := range z.asked() {
				asked = append(asked, strings.Fields(q)[0])
			}
			if got := strings.Join(asked, " "); got != want {
				t.Errorf("%s: asked for %s; want %s", name, got, want)
			}
		})
	}
	// A failure ends the search, or another name's replicas would be used.
	z := &zone{err: errors.New("away")}
	onDNS(t, DNS{Name: "vllm", Type: "A", Port: 8000}, z, func(r *run) {
		synctest.Wait()
		for _, q := range z.asked() {
			if !strings.HasPrefix(q, "vllm.a.example. ") {
				t.Errorf("asked for %s", q)
			}
		}
	})
}

// A response that does not fit into UDP is asked for again by TCP, over a real network.
func TestDNSTruncatedResponsesComeByTCP(t *testing.T) {
	z := new(zone)
	var want []string
	for i := range 200 {
		z.records = append(z.records, fmt.Sprintf("vllm. 5 A 10.0.1.%d", i))
		want = append(want, fmt.Sprintf("10.0.1.%d:8000=10.0.1.%d:8000", i, i))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	packets, err := net.ListenPacket("udp", l.Addr().String())
	if err != nil {
		l.Close()
		t.Skipf("the UDP port of a free TCP port is in use: %v", err)
	}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		response := z.respond(q)
		if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
			response.Truncate(udpSize)
		}
		w.WriteMsg(response)
	})
	for _, server := range []*dns.Server{{Listener: l, Handler: handler}, {PacketConn: packets, Handler: handler}} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		go server.ActivateAndServe()
		<-started
		defer server.Shutdown()
	}
	source := NewDNS(DNS{Name: "vllm.", Type: "A", Port: 8000, Server: l.Addr().String()}, slog.New(slog.DiscardHandler))
	set, err := source.Lookup(t.Context())
	if err != nil || len(set) != len(want) {
		t.Errorf("got %d endpoints, %v; want %d", len(set), err, len(want))
	}
	if _, err := NewDNS(DNS{Name: "other.", Type: "A", Server: l.Addr().String()}, slog.New(slog.DiscardHandler)).Lookup(t.Context()); !errors.Is(err, errNoRecords) {
		t.Errorf("a name that does not exist: %v", err)
	}
}
