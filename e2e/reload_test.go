package e2e

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"berth/llmserver/simulated"
)

const (
	reloadSuccessMetric = "berth_config_last_reload_successful"
	reloadTimeMetric    = "berth_config_last_reload_success_timestamp_seconds"
)

// reload applies a configuration with SIGHUP and waits until it is in effect.
func (b *berth) reload(t *testing.T, config string) {
	t.Helper()
	before := b.sumMetric(t, reloadTimeMetric)
	replaceFile(t, b.file, config)
	b.signal(t, syscall.SIGHUP)
	eventually(t, "the configuration is in effect", func() bool { return b.sumMetric(t, reloadTimeMetric) > before })
	if b.sumMetric(t, reloadSuccessMetric) != 1 {
		t.Error("the metrics report the reload as failed")
	}
}

// backgroundLoad sends requests until stopped. Each must succeed.
type backgroundLoad struct {
	stopped atomic.Bool
	served  atomic.Int64
	running sync.WaitGroup
}

// startLoad starts clients that send chat requests to b.
func startLoad(t *testing.T, b *berth, clients int) *backgroundLoad {
	l, ctx := &backgroundLoad{}, context.WithoutCancel(t.Context())
	protocols := []*http.Client{newClient(t, false), newClient(t, true)}
	for c := range clients {
		l.running.Go(func() {
			for n := 0; !l.stopped.Load(); n++ {
				if got := chat(ctx, protocols[c%2], b.url, chatBody("demo", "Hello", 30, n%4 > 0)); !got.isComplete() {
					t.Errorf("client %d got %v", c, got)
					return
				}
				l.served.Add(1)
			}
		})
	}
	t.Cleanup(l.stop)
	return l
}

func (l *backgroundLoad) stop() {
	l.stopped.Store(true)
	l.running.Wait()
}

// waitServed waits until n more requests have been served, or the test has failed.
func (l *backgroundLoad) waitServed(t *testing.T, n int64) {
	t.Helper()
	target := l.served.Load() + n
	eventually(t, "more requests are served", func() bool { return l.served.Load() >= target || t.Failed() })
}

func TestReloadUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	const clients = 12
	fleet := startEngines(t, 3, simulated.Config{})
	a, b, c := fleet[0], fleet[1], fleet[2]
	berth := serve(t, demoConfig("max_ongoing_requests: 4", a, b))
	l := startLoad(t, berth, clients)
	for _, config := range []string{
		demoConfig("max_ongoing_requests: 4", a, b, c), // a replica is added
		demoConfig("max_ongoing_requests: 1", a, b, c), // the capacity is reduced
		demoConfig("max_ongoing_requests: 2", b, c),    // a replica is removed
		demoConfig("max_ongoing_requests: 8, request_router_config: {request_router_class: PowerOfTwoChoicesRouter}", c),
		demoConfig("max_ongoing_requests: 4", a, b, c),
		demoConfig("max_ongoing_requests: 4", a, b, c) + modelConfig("second", "", startEngines(t, 1, simulated.Config{Model: "second"})...),
		demoConfig("max_ongoing_requests: 4", a, b),
	} {
		l.waitServed(t, 2*clients)
		berth.reload(t, config)
	}
	l.waitServed(t, 2*clients)
	l.stop()
	for i, e := range fleet {
		if stats := e.Engine().Stats(); stats.Aborted != 0 || stats.InFlight != 0 || stats.Completed == 0 {
			t.Errorf("engine %d completed %d requests, aborted %d, and has %d in flight", i, stats.Completed, stats.Aborted, stats.InFlight)
		}
	}
	sent := c.Engine().Stats().Requests
	chat(t.Context(), newClient(t, false), berth.url, chatBody("demo", "Hello", 1, true))
	if now := c.Engine().Stats().Requests; now != sent {
		t.Error("a removed replica gets requests")
	}
}

func TestReloadWithLessCapacityAdmitsNothingUntilItIsKept(t *testing.T) {
	t.Parallel()
	engine := startEngines(t, 1, simulated.Config{})[0]
	engine.Engine().SetFaults(simulated.Faults{Hang: true})
	b := serve(t, demoConfig("max_ongoing_requests: 3", engine))
	client, body := newClient(t, false), chatBody("demo", "Hello", 2, true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	disconnected := startChat(ctx, client, b.url, body)
	queued := []<-chan response{startChat(t.Context(), client, b.url, body), startChat(t.Context(), client, b.url, body)}
	waitInFlight(t, engine, 3)
	b.reload(t, demoConfig("max_ongoing_requests: 1", engine))
	for range 4 {
		queued = append(queued, startChat(t.Context(), client, b.url, body))
	}
	eventually(t, "the other requests are queued", func() bool { return b.sumMetric(t, "berth_queue_length") == 4 })

	cancel()
	waitResponse(t, disconnected)
	b.waitAbortCounted(t, "first_byte") // counted after the slot was released
	running, capacity, waiting := b.sumMetric(t, "berth_slots"), b.sumMetric(t, "berth_slots_capacity"), b.sumMetric(t, "berth_queue_length")
	if running != 2 || capacity != 1 || waiting != 4 {
		t.Errorf("%v of %v slots in use and %v requests queued, want 2 of 1 and 4", running, capacity, waiting)
	}
	engine.Engine().SetFaults(simulated.Faults{})
	for _, result := range queued {
		if got := waitResponse(t, result); !got.isComplete() {
			t.Errorf("got %v", got)
		}
	}
}

func TestReloadOfABadConfigurationChangesNothing(t *testing.T) {
	t.Parallel()
	engine := startEngines(t, 1, simulated.Config{})[0]
	b := serve(t, demoConfig("max_ongoing_requests: 3", engine))
	l := startLoad(t, b, 4)
	for _, config := range []string{
		"",
		"llm_configs: [",
		demoConfig("max_ongoing_requests: -1", engine),
		demoConfig("max_ongoing_request: 5", engine),
		demoConfig("request_router_config: {request_router_class: NoSuchRouter}", engine),
		demoConfig("", engine) + modelConfig("again", "", engine),
	} {
		before := b.sumMetric(t, reloadTimeMetric)
		l.waitServed(t, 8)
		replaceFile(t, b.file, config)
		b.signal(t, syscall.SIGHUP)
		eventually(t, "the configuration is rejected", func() bool { return b.sumMetric(t, reloadSuccessMetric) == 0 })
		if b.sumMetric(t, reloadTimeMetric) != before || b.sumMetric(t, "berth_slots_capacity") != 3 {
			t.Error("a bad configuration took effect")
		}
		l.waitServed(t, 8)
		b.reload(t, demoConfig("max_ongoing_requests: 3", engine))
	}
	l.stop()
}

func TestReloadFollowsASwappedFileWithoutASignal(t *testing.T) {
	t.Parallel()
	fleet := startEngines(t, 2, simulated.Config{})
	b := serve(t, demoConfig("", fleet[0]))
	l := startLoad(t, b, 4)
	replaceFile(t, b.file, demoConfig("", fleet...))
	eventually(t, "the new replica is up", func() bool {
		return b.sumMetric(t, "berth_replica_up", `replica="`+strings.TrimPrefix(fleet[1].URL(), "http://")+`"`) == 1
	})
	l.waitServed(t, 20)
	l.stop()
	if fleet[1].Engine().Stats().Completed == 0 {
		t.Error("the new replica is not used")
	}
}

func TestReloadWithoutAModelFinishesItsStreamsAndRefusesItsQueue(t *testing.T) {
	t.Parallel()
	old := startEngines(t, 1, simulated.Config{Model: "old"})[0]
	old.Engine().SetFaults(simulated.Faults{Hang: true})
	remaining := startEngines(t, 1, simulated.Config{})[0]
	b := serve(t, demoConfig("", remaining)+modelConfig("old", "max_ongoing_requests: 1", old))
	client := newClient(t, false)
	running := startChat(t.Context(), client, b.url, chatBody("old", "Hello", 8, true))
	waitInFlight(t, old, 1)
	waiting := startChat(t.Context(), client, b.url, chatBody("old", "Hello", 8, true))
	eventually(t, "the second request is queued", func() bool { return b.sumMetric(t, "berth_queue_length", `model="old"`) == 1 })

	b.reload(t, demoConfig("", remaining))
	if got := waitResponse(t, waiting); got.status != http.StatusServiceUnavailable || got.errorCode() != "model_removed" {
		t.Errorf("the queued request got %v, want 503 model_removed", got)
	}
	if got := chat(t.Context(), client, b.url, chatBody("old", "Hello", 8, true)); got.status != http.StatusNotFound || got.errorCode() != "model_not_found" {
		t.Errorf("a new request got %v, want 404 model_not_found", got)
	}
	old.Engine().SetFaults(simulated.Faults{})
	if got := waitResponse(t, running); !got.isComplete() {
		t.Errorf("the running request got %v", got)
	}
}

func TestReloadMovesAnIDWhileTheOldReplicaDrains(t *testing.T) {
	t.Parallel()
	fleet := startEngines(t, 2, simulated.Config{})
	fleet[0].Engine().SetFaults(simulated.Faults{Hang: true})
	named := func(e *simulated.Server) string {
		return strings.Replace(demoConfig("", e), "{url: ", "{id: first, url: ", 1)
	}
	b := serve(t, named(fleet[0]))
	old := startChat(t.Context(), newClient(t, false), b.url, chatBody("demo", "Hello", 4, true))
	waitInFlight(t, fleet[0], 1)
	b.reload(t, named(fleet[1]))
	if running := b.sumMetric(t, "berth_slots", `replica="first"`, `state="running"`); running != 1 {
		t.Errorf("%v slots are running, want 1 on the removed replica", running)
	}
	if got := chat(t.Context(), newClient(t, false), b.url, chatBody("demo", "Hello", 4, true)); !got.isComplete() {
		t.Errorf("a new request got %v", got)
	}
	fleet[0].Engine().SetFaults(simulated.Faults{})
	if got := waitResponse(t, old); !got.isComplete() {
		t.Errorf("the old request got %v", got)
	}
}
