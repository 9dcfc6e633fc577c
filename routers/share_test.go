package routers

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
	"berth/llmserver/agent"
)

// meanService is how long a request of these tests runs, give or take a half.
const meanService = 100 * time.Millisecond

func service() time.Duration { return meanService/2 + rand.N(meanService) }

// load is what clients have seen of an ingress.
type load struct {
	served  atomic.Int64
	longest atomic.Int64 // wait, in nanoseconds
}

// busy has clients use an ingress, one request after the other, until the time is over.
func (l *load) busy(t testing.TB, in *ingress, clients int, until time.Time, all *sync.WaitGroup) {
	for range clients {
		all.Go(func() {
			for time.Now().Before(until) {
				p := new(Payload)
				sel, err := in.Choose(t.Context(), p)
				if err != nil {
					t.Errorf("Choose: %v", err)
					return
				}
				if _, err := sel.Dispatch(&http.Request{}); err != nil {
					t.Errorf("Dispatch: %v", err)
				}
				time.Sleep(service())
				sel.Release()
				l.served.Add(1)
				for old := l.longest.Load(); int64(p.Waited) > old && !l.longest.CompareAndSwap(old, int64(p.Waited)); {
					old = l.longest.Load()
				}
			}
		})
	}
}

// An ingress has one place in the agent's line, whatever the crowd behind it.
func TestRouterAgentWaitSharesAnAgentEqually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots = 8
		table := agent.NewTable(slots)
		crowded, calm := newIngress(t, roomy, table), newIngress(t, roomy, table)
		var ofCrowded, ofCalm load
		var all sync.WaitGroup
		until := time.Now().Add(10 * time.Second)
		ofCrowded.busy(t, crowded, 40, until, &all)
		time.Sleep(50 * time.Millisecond) // it has all slots by now
		ofCalm.busy(t, calm, 12, until, &all)
		all.Wait()
		crowded.close(t)
		calm.close(t)
		a, b := ofCrowded.served.Load(), ofCalm.served.Load()
		if part := float64(a) / float64(a+b); part < 0.4 || part > 0.6 {
			t.Errorf("%d and %d were served: %.0f %% by the crowded one", a, b, 100*part)
		}
		if ideal := 10 * time.Second * slots / meanService; float64(a+b) < 0.9*float64(ideal) {
			t.Errorf("%d were served in a time in which %d could have been", a+b, ideal)
		}
		if h := table.Read().Highest; h != slots {
			t.Errorf("at most %d of %d slots were taken", h, slots)
		}
	})
}

func TestRouterAgentWaitBoundsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots, clients = 8, 24 // each of two ingresses
		table := agent.NewTable(slots)
		first, second := newIngress(t, roomy, table), newIngress(t, roomy, table)
		var l load
		var all sync.WaitGroup
		until := time.Now().Add(10 * time.Second)
		l.busy(t, first, clients, until, &all)
		l.busy(t, second, clients, until, &all)
		all.Wait()
		first.close(t)
		second.close(t)
		bound := 2 * meanService * (2*clients - slots) / slots
		if longest := time.Duration(l.longest.Load()); longest > bound || longest == 0 {
			t.Errorf("the longest wait was %v; want %v at most", longest, bound)
		}
	})
}

// A slot that stays free while somebody waits would be found by the time it takes.
func TestRouterAgentWaitForgetsNoRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots, clients, each = 3, 20, 30
		tables := []*agent.Table{agent.NewTable(1), agent.NewTable(slots - 1)}
		patient := Limits{MaxQueued: -1, QueueTimeout: time.Hour}
		ins := []*ingress{newIngress(t, patient, tables...), newIngress(t, patient, tables...)}
		var all sync.WaitGroup
		var busy atomic.Int64
		began := time.Now()
		for i := range clients {
			all.Go(func() {
				for range each {
					agentRequest(t, ins[i%2], &busy)
				}
			})
		}
		all.Wait()
		took := time.Since(began)
		for _, in := range ins {
			in.close(t)
		}
		if ideal := time.Duration(busy.Load()) / slots; took > ideal*5/4+time.Second {
			t.Errorf("it took %v; the slots were needed for %v", took, ideal)
		}
		for _, table := range tables {
			if r := table.Read(); r.Ongoing != 0 || r.Highest > r.Limit {
				t.Errorf("in the end %+v", r)
			}
		}
	})
}

// visit is one request, of which some go away while they wait, and some without being sent.
func agentRequest(t *testing.T, in *ingress, busy *atomic.Int64) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if rand.IntN(3) == 0 {
		defer time.AfterFunc(rand.N(300*time.Millisecond), cancel).Stop()
	}
	text := []string{"", "a", "b", "ab", "ba"}[rand.IntN(5)]
	sel, err := in.Choose(ctx, &Payload{Text: []byte(text)})
	if err != nil {
		if err != context.Canceled {
			t.Errorf("Choose: %v", err)
		}
		return
	}
	defer sel.Release()
	if rand.IntN(5) == 0 {
		return
	}
	if _, err := sel.Dispatch(&http.Request{}); err != nil {
		t.Errorf("Dispatch: %v", err)
		return
	}
	d := service()
	busy.Add(int64(d))
	time.Sleep(d)
}

// The same over sockets: two ingresses, one agent, clients that hang up in every phase.
func TestRouterAgentOverSocketsIsNeverOverCapacity(t *testing.T) {
	const slots = 4
	var atEngine, most atomic.Int64
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		now := atEngine.Add(1)
		defer atEngine.Add(-1)
		for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
		}
		io.WriteString(w, "answer")
	}))
	defer engine.Close()
	backend, err := llmserver.DialHTTP(llmserver.Endpoint{URL: engine.URL, ConnectTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	guard := agent.New(agent.Config{Engine: backend, Limit: slots, MaxBodyBytes: 1 << 10, ProbeTimeout: time.Second, Log: slog.New(slog.DiscardHandler)})
	server := httptest.NewServer(guard)
	defer server.Close()
	var clients sync.WaitGroup
	var served atomic.Int64
	for range 2 {
		in := overSockets(t, server.URL)
		defer in.pool.Close()
		defer in.Close()
		for range 12 {
			clients.Go(func() {
				for range 60 {
					if socketRequest(t, in) {
						served.Add(1)
					}
				}
			})
		}
	}
	clients.Wait()
	for deadline := time.Now().Add(10 * time.Second); guard.Read().Ongoing+guard.Read().Waiting > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in the end %+v", guard.Read())
		}
	}
	if r := guard.Read(); r.Highest > slots || r.Expired > 0 || most.Load() > slots {
		t.Errorf("%+v, and the engine had up to %d", r, most.Load())
	}
	if served.Load() == 0 {
		t.Error("nobody was served")
	}
}

// overSockets is an ingress on the agent at a URL.
func overSockets(t *testing.T, url string) *ingress {
	in := new(ingress)
	in.pool.Dial = agent.Dial
	replicas, _, err := in.pool.Set([]llmserver.Endpoint{{
		Model: "m", ID: "a", URL: url, Limit: 100, CountsSlots: true,
		ConnectTimeout: time.Second, ProbeEvery: time.Second, ProbeTimeout: time.Second,
	}})
	if err != nil {
		t.Fatal(err)
	}
	in.replicas, in.Router = replicas, New(replicas, newByText, roomy, Hooks{})
	replicas[0].OnChange(in.Refresh)
	return in
}

// call is one request over sockets; true if it was answered.
func socketRequest(t *testing.T, in *ingress) bool {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if rand.IntN(3) == 0 {
		defer time.AfterFunc(rand.N(4*time.Millisecond), cancel).Stop()
	}
	sel, err := in.Choose(ctx, new(Payload))
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Choose: %v", err)
		}
		return false
	}
	defer sel.Release()
	if rand.IntN(10) == 0 {
		return false
	}
	resp, err := sel.Dispatch((&http.Request{
		Method: http.MethodPost, URL: &url.URL{Path: "/v1/completions"}, Header: make(http.Header),
		Body: io.NopCloser(strings.NewReader("{}")), ContentLength: 2,
	}).WithContext(ctx))
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Dispatch: %v", err)
		}
		return false
	}
	text, err := io.ReadAll(resp.Body)
	if string(text) != "answer" && err == nil {
		t.Errorf("it was answered %q", text)
	}
	return err == nil
}
