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
	reloaded   = "berth_config_last_reload_successful"
	reloadTime = "berth_config_last_reload_success_timestamp_seconds"
)

// reload has berth take over a configuration.
func (b *berth) reload(t *testing.T, config string) {
	t.Helper()
	before := b.sum(t, reloadTime)
	replace(t, b.file, config)
	b.signal(t, syscall.SIGHUP)
	eventually(t, "the configuration is taken over", func() bool { return b.sum(t, reloadTime) > before })
	if b.sum(t, reloaded) != 1 {
		t.Error("the reload is not reported as a success")
	}
}

// load keeps clients asking until it is stopped, and demands that each of them be served.
type load struct {
	stopped atomic.Bool
	served  atomic.Int64
	asking  sync.WaitGroup
}

func underLoad(t *testing.T, b *berth, clients int) *load {
	l, ctx := &load{}, context.WithoutCancel(t.Context())
	protocols := []*http.Client{newClient(t, false), newClient(t, true)}
	for c := range clients {
		l.asking.Go(func() {
			for n := 0; !l.stopped.Load(); n++ {
				if got := chat(ctx, protocols[c%2], b.url, ask("demo", "Hello", 30, n%4 > 0)); !got.complete() {
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

func (l *load) stop() {
	l.stopped.Store(true)
	l.asking.Wait()
}

// more waits until every client has been served anew, or has failed.
func (l *load) more(t *testing.T, n int64) {
	t.Helper()
	target := l.served.Load() + n
	eventually(t, "requests are served", func() bool { return l.served.Load() >= target || t.Failed() })
}

func TestReloadUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	const clients = 12
	fleet := engines(t, 3, simulated.Config{})
	a, b, c := fleet[0], fleet[1], fleet[2]
	berth := serve(t, demo("max_ongoing_requests: 4", a, b))
	l := underLoad(t, berth, clients)
	for _, config := range []string{
		demo("max_ongoing_requests: 4", a, b, c), // a replica is added
		demo("max_ongoing_requests: 1", a, b, c), // the capacity shrinks
		demo("max_ongoing_requests: 2", b, c),    // one is removed
		demo("max_ongoing_requests: 8, request_router_config: {request_router_class: PowerOfTwoChoicesRouter}", c),
		demo("max_ongoing_requests: 4", a, b, c),
		demo("max_ongoing_requests: 4", a, b, c) + model("second", "", engines(t, 1, simulated.Config{Model: "second"})...),
		demo("max_ongoing_requests: 4", a, b),
	} {
		l.more(t, 2*clients)
		berth.reload(t, config)
	}
	l.more(t, 2*clients)
	l.stop()
	for i, e := range fleet {
		if did := e.Engine().Stats(); did.Aborted != 0 || did.InFlight != 0 || did.Completed == 0 {
			t.Errorf("engine %d completed %d, aborted %d and has %d requests", i, did.Completed, did.Aborted, did.InFlight)
		}
	}
	sent := c.Engine().Stats().Requests
	chat(t.Context(), newClient(t, false), berth.url, ask("demo", "Hello", 1, true))
	if now := c.Engine().Stats().Requests; now != sent {
		t.Error("a replica that was removed still gets requests")
	}
}

func TestReloadWithLessCapacityAdmitsNothingUntilItIsKept(t *testing.T) {
	t.Parallel()
	engine := engines(t, 1, simulated.Config{})[0]
	engine.Engine().SetFaults(simulated.Faults{Hang: true})
	b := serve(t, demo("max_ongoing_requests: 3", engine))
	client, body := newClient(t, false), ask("demo", "Hello", 2, true)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	leaving := begin(ctx, client, b.url, body)
	staying := []<-chan answer{begin(t.Context(), client, b.url, body), begin(t.Context(), client, b.url, body)}
	arrived(t, engine, 3)
	b.reload(t, demo("max_ongoing_requests: 1", engine))
	for range 4 {
		staying = append(staying, begin(t.Context(), client, b.url, body))
	}
	eventually(t, "the others wait", func() bool { return b.sum(t, "berth_queue_length") == 4 })

	leave()
	expect(t, leaving)
	b.counted(t, "first_byte") // which comes after its slot was given back
	running, capacity, waiting := b.sum(t, "berth_slots"), b.sum(t, "berth_slots_capacity"), b.sum(t, "berth_queue_length")
	if running != 2 || capacity != 1 || waiting != 4 {
		t.Errorf("%v slots of %v are held and %v requests wait, want 2 of 1 and 4", running, capacity, waiting)
	}
	engine.Engine().SetFaults(simulated.Faults{})
	for _, result := range staying {
		if got := expect(t, result); !got.complete() {
			t.Errorf("got %v", got)
		}
	}
}

func TestReloadOfABadConfigurationChangesNothing(t *testing.T) {
	t.Parallel()
	engine := engines(t, 1, simulated.Config{})[0]
	b := serve(t, demo("max_ongoing_requests: 3", engine))
	l := underLoad(t, b, 4)
	for _, config := range []string{
		"",
		"llm_configs: [",
		demo("max_ongoing_requests: -1", engine),
		demo("max_ongoing_request: 5", engine),
		demo("request_router_config: {request_router_class: NoSuchRouter}", engine),
		demo("", engine) + model("again", "", engine),
	} {
		before := b.sum(t, reloadTime)
		l.more(t, 8)
		replace(t, b.file, config)
		b.signal(t, syscall.SIGHUP)
		eventually(t, "the configuration is refused", func() bool { return b.sum(t, reloaded) == 0 })
		if b.sum(t, reloadTime) != before || b.sum(t, "berth_slots_capacity") != 3 {
			t.Error("a bad configuration was taken over")
		}
		l.more(t, 8)
		b.reload(t, demo("max_ongoing_requests: 3", engine))
	}
	l.stop()
}

func TestReloadFollowsASwappedFileWithoutASignal(t *testing.T) {
	t.Parallel()
	fleet := engines(t, 2, simulated.Config{})
	b := serve(t, demo("", fleet[0]))
	l := underLoad(t, b, 4)
	replace(t, b.file, demo("", fleet...))
	eventually(t, "the new replica is known", func() bool {
		return b.sum(t, "berth_replica_up", `replica="`+strings.TrimPrefix(fleet[1].URL(), "http://")+`"`) == 1
	})
	l.more(t, 20)
	l.stop()
	if fleet[1].Engine().Stats().Completed == 0 {
		t.Error("the new replica is not used")
	}
}

func TestReloadWithoutAModelFinishesItsStreamsAndRefusesItsQueue(t *testing.T) {
	t.Parallel()
	old := engines(t, 1, simulated.Config{Model: "old"})[0]
	old.Engine().SetFaults(simulated.Faults{Hang: true})
	kept := engines(t, 1, simulated.Config{})[0]
	b := serve(t, demo("", kept)+model("old", "max_ongoing_requests: 1", old))
	client := newClient(t, false)
	running := begin(t.Context(), client, b.url, ask("old", "Hello", 8, true))
	arrived(t, old, 1)
	waiting := begin(t.Context(), client, b.url, ask("old", "Hello", 8, true))
	eventually(t, "the second request waits", func() bool { return b.sum(t, "berth_queue_length", `model="old"`) == 1 })

	b.reload(t, demo("", kept))
	if got := expect(t, waiting); got.status != http.StatusServiceUnavailable || got.problem() != "model_removed" {
		t.Errorf("the waiting request got %v, want 503 model_removed", got)
	}
	if got := chat(t.Context(), client, b.url, ask("old", "Hello", 8, true)); got.status != http.StatusNotFound || got.problem() != "model_not_found" {
		t.Errorf("a new request got %v, want 404 model_not_found", got)
	}
	old.Engine().SetFaults(simulated.Faults{})
	if got := expect(t, running); !got.complete() {
		t.Errorf("the running request got %v", got)
	}
}

func TestReloadMovesAnIDWhileTheOldReplicaDrains(t *testing.T) {
	t.Parallel()
	fleet := engines(t, 2, simulated.Config{})
	fleet[0].Engine().SetFaults(simulated.Faults{Hang: true})
	named := func(e *simulated.Server) string {
		return strings.Replace(demo("", e), "{url: ", "{id: first, url: ", 1)
	}
	b := serve(t, named(fleet[0]))
	old := begin(t.Context(), newClient(t, false), b.url, ask("demo", "Hello", 4, true))
	arrived(t, fleet[0], 1)
	b.reload(t, named(fleet[1]))
	if running := b.sum(t, "berth_slots", `replica="first"`, `state="running"`); running != 1 {
		t.Errorf("%v slots are running, want that of the replica that leaves", running)
	}
	if got := chat(t.Context(), newClient(t, false), b.url, ask("demo", "Hello", 4, true)); !got.complete() {
		t.Errorf("a new request got %v", got)
	}
	fleet[0].Engine().SetFaults(simulated.Faults{})
	if got := expect(t, old); !got.complete() {
		t.Errorf("the old request got %v", got)
	}
}
