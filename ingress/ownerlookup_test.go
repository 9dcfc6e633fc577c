package ingress

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth/config"
)

// library is a set of replicas that hold no response.
type library struct {
	asked   atomic.Int64 // requests
	now     atomic.Int64 // in progress
	most    atomic.Int64 // at once
	opened  atomic.Int64 // connections
	status  atomic.Int64
	waiting chan struct{} // each request receives from it, unless nil
}

func (l *library) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.asked.Add(1)
	now := l.now.Add(1)
	defer l.now.Add(-1)
	for most := l.most.Load(); now > most && !l.most.CompareAndSwap(most, now); most = l.most.Load() {
	}
	if l.waiting != nil {
		select {
		case <-l.waiting:
		case <-r.Context().Done():
		}
	}
	w.WriteHeader(int(l.status.Load()))
	fmt.Fprintf(w, `{"error":{"message":"no such response","padding":%q}}`, strings.Repeat("x", 8000))
}

// libraries returns a model of n replicas without responses.
func libraries(t *testing.T, n int, wait chan struct{}) (*library, config.Model) {
	l := &library{waiting: wait}
	l.status.Store(404)
	var urls []string
	for range n {
		s := httptest.NewUnstartedServer(l)
		s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				l.opened.Add(1)
			}
		}
		s.Start()
		t.Cleanup(s.Close)
		urls = append(urls, s.URL)
	}
	return l, narrow(modelOn("m", urls...))
}

func TestOwnerLookupOnceForConsecutiveRequests(t *testing.T) {
	for status, want := range map[int]int{404: 404, 503: 503} {
		l, m := libraries(t, 20, nil)
		l.status.Store(int64(status))
		f := serve(t, m)
		conn, r := f.raw(strings.Repeat("GET /v1/responses/resp_unknown HTTP/1.1\r\nHost: berth\r\n\r\n", 50))
		for i := range 50 {
			if got := readReply(t, r, "GET"); got.StatusCode != want {
				t.Fatalf("request %d got %d %s", i, got.StatusCode, got.body)
			}
		}
		conn.Close()
		// An uncertain result is remembered for a second; this may take longer on a busy machine.
		if n := l.asked.Load(); n != 20 && (status == 404 || n > 100) {
			t.Errorf("after %d: the replicas were asked %d times", status, n)
		}
		if n := f.metric(`berth_response_lookups_total{result="remembered"}`); n < 45 {
			t.Errorf("%v results were remembered", n)
		}
	}
}

func TestOwnerLookupOnceForConcurrentRequests(t *testing.T) {
	wait := make(chan struct{})
	l, m := libraries(t, 4, wait)
	f := serve(t, m)
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() { wantError(t, f.get("/v1/responses/resp_x"), 404, "response_not_found", "response_id") })
	}
	f.eventually("the replicas are asked", func() bool { return l.now.Load() == 4 })
	close(wait)
	all.Wait()
	if n := l.asked.Load(); n != 4 {
		t.Errorf("the replicas were asked %d times", n)
	}
}

func TestOwnerLookupConcurrencyIsBounded(t *testing.T) {
	const replicas = 3
	wait := make(chan struct{})
	l, m := libraries(t, replicas, wait)
	f := serve(t, m)
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			wantError(t, f.get(fmt.Sprint("/v1/responses/resp_", i)), 404, "response_not_found", "response_id")
		})
	}
	f.eventually("the limit of concurrent calls is reached", func() bool { return l.now.Load() == replicas*maxConcurrentLookups })
	close(wait)
	all.Wait()
	if most := l.most.Load(); most > replicas*maxConcurrentLookups {
		t.Errorf("%d concurrent requests", most)
	}
	if n := l.opened.Load(); n > replicas*maxConcurrentLookups {
		t.Errorf("%d connections were opened: those of 404 responses are not reused", n)
	}
}

func TestOwnerLookupBoundsConcurrentCalls(t *testing.T) {
	wait := make(chan struct{})
	l, m := libraries(t, maxLookupCalls+8, wait)
	f := serve(t, m)
	done := f.background(func() reply { return f.get("/v1/responses/resp_x") })
	f.eventually("the limit of concurrent calls is reached", func() bool { return l.now.Load() == maxLookupCalls })
	close(wait)
	wantError(t, receive(t, done), 404, "response_not_found", "response_id")
	if most, n := l.most.Load(), l.asked.Load(); most != maxLookupCalls || n != maxLookupCalls+8 {
		t.Errorf("%d replicas were asked, %d at once", n, most)
	}
}

// A replica that rejects one client's key may find the response with another client's.
func TestOwnerLookupDoesNotRememberDeniedKey(t *testing.T) {
	url := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer right" {
			w.WriteHeader(401)
			return
		}
		io.WriteString(w, "here")
	})
	f := serve(t, modelOn("m", url))
	wantError(t, f.do(t.Context(), f.h1, "GET", "/v1/responses/resp_x", nil, "Authorization", "Bearer wrong"), 404, "response_not_found", "response_id")
	if r := f.do(t.Context(), f.h1, "GET", "/v1/responses/resp_x", nil, "Authorization", "Bearer right"); r.body != "here" {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
}

func TestOwnerLookupRemembersMissesBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newOwnerLookups(new(responseOwners), nil)
		m, n := &model{config: config.Model{ID: "m"}}, &model{config: config.Model{ID: "n"}}
		missed := func(id string, models ...*model) bool {
			_, found := l.recentMiss(id, models)
			return found
		}
		l.rememberMiss("absent", []*model{m}, nil)
		l.rememberMiss("unsure", []*model{m, n}, errOwnerUnknown)
		if !missed("absent", m) || missed("absent", m, n) || !missed("unsure", n) || missed("other", m) {
			t.Error("the miss is not remembered")
		}
		if miss, _ := l.recentMiss("unsure", []*model{m}); miss.err != errOwnerUnknown {
			t.Errorf("remembered as %v", miss.err)
		}
		time.Sleep(uncertainTTL + 1)
		if missed("unsure", m) || !missed("absent", m) {
			t.Error("not remembered after a second")
		}
		time.Sleep(absentTTL)
		if missed("absent", m) {
			t.Error("the miss is remembered for too long")
		}
		for i := range 2 * maxMisses {
			l.rememberMiss(fmt.Sprint(i), []*model{m}, nil)
		}
		if len(l.misses.values) != maxMisses || missed("0", m) || !missed(fmt.Sprint(2*maxMisses-1), m) {
			t.Errorf("%d are remembered", len(l.misses.values))
		}
	})
}

func TestAuthCountsStoredResponses(t *testing.T) {
	g := gated(t)
	f := serveConfig(t, withKeys(configured(modelOn("m", g.url)), 1, map[string][]string{"sk-1": nil}))
	ask := func(method string) reply {
		return f.do(t.Context(), f.h1, method, "/v1/responses/resp_x", nil, "Authorization", "Bearer sk-1")
	}
	first := f.background(func() reply { return ask("GET") })
	receive(t, g.arrived)
	for _, method := range []string{"GET", "DELETE"} {
		wantError(t, ask(method), 429, "key_limit_reached", "")
	}
	g.open <- struct{}{} // for the lookup
	receive(t, g.arrived)
	g.open <- struct{}{}
	if r := receive(t, first); r.body != "ok" {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
	for _, method := range []string{"GET", "DELETE"} {
		g.open <- struct{}{}
		if r := ask(method); r.body != "ok" {
			t.Errorf("%s got %d %s", method, r.StatusCode, r.body)
		}
	}
	if n := f.metric(`berth_requests_total{model="m",route="/responses/{id}",status="200"}`); n != 3 {
		t.Errorf("counted %v", n)
	}
}
