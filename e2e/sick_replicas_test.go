package e2e

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"berth/e2e/scenes"
)

// subtests runs subtests at once, without the bound of t.Parallel: they wait for most of their time.
type subtests struct{ running sync.WaitGroup }

// run starts a subtest of t. The test must call wait before it ends.
func (s *subtests) run(t *testing.T, name string, test func(t *testing.T)) {
	s.running.Go(func() { t.Run(name, test) })
}

func (s *subtests) wait() { s.running.Wait() }

// startSceneEngines starts n engines and berth in front of them.
func startSceneEngines(t *testing.T, n int, policy string) (engines []*scenes.Engine, b *berth, client *scenes.Client) {
	t.Helper()
	var urls []string
	for i := range n {
		e, err := scenes.StartEngine(fmt.Sprintf("engine-%d", i+1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		engines, urls = append(engines, e), append(urls, e.URL())
	}
	b = serve(t, sceneConfig(policy, urls...))
	client = scenes.NewClient(b.url)
	t.Cleanup(client.Close)
	return engines, b, client
}

// beginAll begins a fault at each engine.
func beginAll(t *testing.T, fault scenes.Fault, engines ...*scenes.Engine) {
	t.Helper()
	for _, e := range engines {
		if err := e.Begin(fault); err != nil {
			t.Fatal(err)
		}
	}
}

// arrivalsOf returns how often the request of a response arrived at all engines together.
func arrivalsOf(r scenes.Response, engines []*scenes.Engine) (n int) {
	for _, e := range engines {
		n += e.ArrivalsOf(r)
	}
	return n
}

// checkNoneEjected checks that no replica was ejected or is down.
func (b *berth) checkNoneEjected(t *testing.T) {
	t.Helper()
	if n := b.sumMetric(t, "berth_replica_ejections_total", `model="demo"`); n != 0 {
		t.Errorf("%v ejections, want none", n)
	}
	for _, state := range []string{"ejected", "half_open", "down"} {
		if n := b.sumMetric(t, "berth_replica_state", fmt.Sprintf("state=%q", state)); n != 0 {
			t.Errorf("%v replicas are %s, want none", n, state)
		}
	}
}

// A prompt that makes every engine fail, sent 20 times by one client among others, has no replica
// ejected, reaches two replicas at most each time and disturbs nobody else.
func TestSickPromptEjectsNoReplicaAndIsNotWalkedThroughTheFleet(t *testing.T) {
	t.Parallel()
	var cells subtests
	defer cells.wait()
	for _, poison := range []scenes.Fault{scenes.ServerError, scenes.Break} {
		for _, policy := range scenePolicies {
			cells.run(t, fmt.Sprintf("%s/%s", poison, policy), func(t *testing.T) {
				engines, b, client := startSceneEngines(t, 4, policy)
				load, stop := context.WithCancel(t.Context())
				good := make(chan []scenes.Response, 1)
				go func() { good <- client.Load(load, 25) }()
				for i := range 20 {
					r := client.Send(t.Context(), scenes.Call{Stream: i%2 == 0, Poison: poison})
					if n := arrivalsOf(r, engines); n < 1 || n > 2 {
						t.Errorf("request %d reached %d engines, want one or two", i, n)
					}
					if r.Failure == "" {
						t.Errorf("request %d: a good response %q", i, r.Body)
					} else if want := poison.ErrorBody(); want != "" && r.Body != want {
						t.Errorf("request %d: status %d and body %q, want the engine's %q", i, r.Status, r.Body, want)
					}
					time.Sleep(100 * time.Millisecond) // the others send meanwhile
				}
				stop()
				for _, r := range <-good {
					if r.Failure != "" {
						t.Errorf("a request of another client: %s, %q", r.Failure, r.Body)
					}
				}
				b.checkNoneEjected(t)
			})
		}
	}
}

// creatingCalls create something that the engine stores.
var creatingCalls = map[string]scenes.Call{
	"a response":            {Path: "/v1/responses"},
	"a background response": {Path: "/v1/responses", Fields: `"background":true`},
	"a stored chat":         {Fields: `"store":true`},
}

// A call that creates something may have created it before it failed.
func TestSickReplicasGetACreatingCallOnce(t *testing.T) {
	t.Parallel()
	var cells subtests
	defer cells.wait()
	for name, call := range creatingCalls {
		for _, fault := range []scenes.Fault{scenes.ServerError, scenes.Break} {
			cells.run(t, fmt.Sprintf("%s/%s", name, fault), func(t *testing.T) {
				engines, _, client := startSceneEngines(t, 4, "RoundRobin")
				beginAll(t, fault, engines...)
				for i := range 8 {
					r := client.Send(t.Context(), call)
					if n := arrivalsOf(r, engines); n != 1 {
						t.Errorf("request %d arrived %d times, want once", i, n)
					}
					if want := fault.ErrorBody(); want != "" && r.Body != want {
						t.Errorf("request %d: status %d and body %q, want the engine's %q", i, r.Status, r.Body, want)
					}
				}
			})
		}
	}
}

// A refusal in an engine's own words proves that nothing was created, so the call is retried.
func TestSickReplicaThatRefusesACreatingCallHasItRetried(t *testing.T) {
	t.Parallel()
	var cells subtests
	defer cells.wait()
	for name, call := range creatingCalls {
		for _, fault := range []scenes.Fault{scenes.Loading, scenes.QueueFull} {
			cells.run(t, fmt.Sprintf("%s/%s", name, fault), func(t *testing.T) {
				engines, _, client := startSceneEngines(t, 4, "RoundRobin")
				beginAll(t, fault, engines[0])
				refused := 0
				for i := range 8 {
					r := client.Send(t.Context(), call)
					if r.Failure != "" {
						t.Errorf("request %d: %s, %q", i, r.Failure, r.Body)
					}
					if n := arrivalsOf(r, engines[1:]); n != 1 {
						t.Errorf("request %d arrived %d times at engines that do not refuse, want once", i, n)
					}
					refused += engines[0].ArrivalsOf(r)
				}
				if refused == 0 {
					t.Error("no request arrived at the engine that refuses, so nothing was tested")
				}
			})
		}
	}
}

// The only replica has no sibling to be compared with.
func TestSickReplicaWithoutSiblingsIsNotEjected(t *testing.T) {
	t.Parallel()
	var cells subtests
	defer cells.wait()
	for _, policy := range scenePolicies {
		cells.run(t, policy, func(t *testing.T) {
			engines, b, client := startSceneEngines(t, 1, policy)
			beginAll(t, scenes.ServerError, engines...)
			load, stop := context.WithTimeout(t.Context(), 2*time.Second)
			defer stop()
			for _, r := range client.Load(load, 25) {
				if want := scenes.ServerError.ErrorBody(); r.Status != http.StatusInternalServerError || r.Body != want {
					t.Errorf("status %d and body %q, want the engine's 500 and %q", r.Status, r.Body, want)
				}
			}
			b.checkNoneEjected(t)
			if err := engines[0].End(); err != nil {
				t.Fatal(err)
			}
			for i := range 5 {
				if r := client.Send(t.Context(), scenes.Call{}); r.Failure != "" {
					t.Errorf("request %d after the fault: %s, %q", i, r.Failure, r.Body)
				}
			}
		})
	}
}

// Where all replicas fail alike, clients get the engines' own error, and retries add little to the
// load: at most three requests in ten once two seconds have passed.
func TestSickFleetSendsTheEnginesErrorsWithoutAStormOfRetries(t *testing.T) {
	t.Parallel()
	var cells subtests
	defer cells.wait()
	for _, policy := range scenePolicies {
		for fault, status := range map[scenes.Fault]int{scenes.ServerError: 500, scenes.Unavailable: 503} {
			cells.run(t, fmt.Sprintf("%s/%s", fault, policy), func(t *testing.T) {
				engines, _, client := startSceneEngines(t, 4, policy)
				beginAll(t, fault, engines...)
				settled := time.Now().Add(2 * time.Second)
				load, stop := context.WithDeadline(t.Context(), settled.Add(3*time.Second))
				defer stop()
				asked, sent := 0, 0
				for _, r := range client.Load(load, 40) {
					if want := fault.ErrorBody(); r.Status != status || r.Body != want {
						t.Errorf("status %d and body %q, want the engine's %d and %q", r.Status, r.Body, status, want)
					}
					if !r.Sent.Before(settled) {
						asked, sent = asked+1, sent+arrivalsOf(r, engines)
					}
				}
				if limit := 1.3 * float64(asked); float64(sent) > limit || asked == 0 {
					t.Errorf("the engines got %d requests for %d of clients, want at most %.0f", sent, asked, limit)
				}
			})
		}
	}
}
