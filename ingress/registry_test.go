package ingress

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/config"
	"berth/llmserver"
)

func (f *front) model(id string) *model {
	f.t.Helper()
	m := f.registry.table.Load().findModel(id)
	if m == nil {
		f.t.Fatalf("no model %s", id)
	}
	return m
}

func TestReloadKeepsUnchangedModel(t *testing.T) {
	url := upstream(t, ok)
	kept, changed := modelOn("kept", refusing(1)), modelOn("changed", url)
	kept.Router.Kwargs = map[string]any{}
	f := serve(t, kept, changed)
	before, router, replica := f.model("kept"), f.model("changed").router, f.model("changed").replicas[0]
	changed.MaxQueuedRequests, changed.Replicas[0].ID, changed.Replicas[0].MaxOngoingRequests = 3, "renamed", 7
	f.mustApply(changed, kept, modelOn("new", refusing(2)))
	if f.model("kept") != before {
		t.Error("an unchanged model was replaced")
	}
	if m := f.model("changed"); m.router != router || m.replicas[0] != replica {
		t.Error("a changed model has another router or replica")
	}
	if u := replica.Usage(); u.Limit != 7 || replica.ID() != "renamed" {
		t.Errorf("the replica is %s with %+v", replica.ID(), u)
	}
}

func TestReloadLoweredCapKeepsCounts(t *testing.T) {
	g := gated(t)
	m := modelOn("m", g.url)
	f := serve(t, m)
	var answers []<-chan reply
	for range 2 {
		answers = append(answers, f.background(func() reply { return f.chat("m") }))
		receive(t, g.arrived)
	}
	m = modelOn("m", g.url)
	m.Replicas[0].MaxOngoingRequests = 1
	f.mustApply(m)
	if u := f.model("m").replicas[0].Usage(); u != (llmserver.Usage{Running: 2, Limit: 1}) {
		t.Errorf("the replica has %+v", u)
	}
	third := f.background(func() reply { return f.chat("m") })
	f.waiting("m", 1)
	g.open <- struct{}{}
	f.eventually("one request has ended", func() bool { return f.ongoing() == 1 })
	if f.model("m").router.QueueLength() != 1 {
		t.Error("a request was admitted at the cap")
	}
	g.open <- struct{}{}
	g.open <- struct{}{}
	for _, answer := range append(answers, third) {
		if r := receive(t, answer); r.body != "ok" {
			t.Errorf("got %d %s", r.StatusCode, r.body)
		}
	}
}

func TestReloadRaisedCapServesWaiters(t *testing.T) {
	g := gated(t)
	f := serve(t, narrow(modelOn("m", g.url)))
	first := f.background(func() reply { return f.chat("m") })
	receive(t, g.arrived)
	second := f.background(func() reply { return f.chat("m") })
	f.waiting("m", 1)
	f.mustApply(modelOn("m", g.url))
	receive(t, g.arrived)
	g.open <- struct{}{}
	g.open <- struct{}{}
	receive(t, first)
	receive(t, second)
}

func TestReloadRemovedModelFinishesRunningRequests(t *testing.T) {
	g := gated(t)
	f := serve(t, narrow(modelOn("m", g.url)), modelOn("n", refusing(1)))
	running := f.background(func() reply { return f.chat("m") })
	receive(t, g.arrived)
	waiting := f.background(func() reply { return f.chat("m") })
	f.waiting("m", 1)
	f.mustApply(modelOn("n", refusing(1)))
	wantError(t, receive(t, waiting), 503, "model_removed", "model")
	wantError(t, f.chat("m"), 404, "model_not_found", "model")
	if n := f.metric(`berth_slots{model="m",replica="a",state="running"}`); n != 1 {
		t.Errorf("the metric shows %v running slots on the leaving replica", n)
	}
	g.open <- struct{}{}
	if r := receive(t, running); r.body != "ok" {
		t.Errorf("the running request got %d %s %v", r.StatusCode, r.body, r.err)
	}
	f.eventually("the metrics of the model are gone", func() bool {
		return !strings.Contains(f.get("/metrics").body, `model="m"`)
	})
}

func TestReloadReturningReplicaKeepsRequests(t *testing.T) {
	g, url := gated(t), upstream(t, ok)
	f := serve(t, narrow(modelOn("m", g.url)))
	replica := f.model("m").replicas[0]
	running := f.background(func() reply { return f.chat("m") })
	receive(t, g.arrived)
	f.mustApply(modelOn("m", url))
	if r := f.chat("m"); r.body != "ok" {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
	f.mustApply(narrow(modelOn("m", g.url)))
	if again := f.model("m").replicas[0]; again != replica || again.Load() != 1 {
		t.Errorf("the replica returned with %d ongoing", again.Load())
	}
	next := f.background(func() reply { return f.chat("m") })
	f.waiting("m", 1)
	g.open <- struct{}{}
	g.open <- struct{}{}
	for _, answer := range []<-chan reply{running, next} {
		if r := receive(t, answer); r.body != "ok" {
			t.Errorf("got %d %s", r.StatusCode, r.body)
		}
	}
}

// A replaced process often keeps its name under a new address.
func TestReloadReplicaTakesNameOfLeavingOne(t *testing.T) {
	old, young := gated(t), gated(t)
	f := serve(t, modelOn("m", old.url))
	first := f.background(func() reply { return f.chat("m") })
	receive(t, old.arrived)
	f.mustApply(modelOn("m", young.url))
	second := f.background(func() reply { return f.chat("m") })
	receive(t, young.arrived)
	if n := f.metric(`berth_slots{model="m",replica="a",state="running"}`); n != 2 {
		t.Errorf("the metric shows %v running slots, want those of both", n)
	}
	old.open <- struct{}{}
	young.open <- struct{}{}
	receive(t, first)
	receive(t, second)
	f.idle()
	if n := f.metric(`berth_slots_capacity{model="m",replica="a"}`); n != 2 {
		t.Errorf("the capacity is %v", n)
	}
}

func TestReloadModelTakesOverNameAndReplica(t *testing.T) {
	url, requests := recording(t)
	m := modelOn("old", url)
	m.Aliases = []string{"new"}
	f := serve(t, m, modelOn("other", refusing(1)))
	for _, name := range []string{"old", "new"} {
		if r := f.chat(name); r.body != "ok" {
			t.Errorf("got %d %s", r.StatusCode, r.body)
		}
		if s := receive(t, requests); s.body != chat("old") {
			t.Errorf("%s reached the replica as %s", name, s.body)
		}
	}
	f.mustApply(modelOn("new", url), modelOn("old", refusing(1)))
	if r := f.chat("new"); r.body != "ok" {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
	if s := receive(t, requests); s.body != chat("new") {
		t.Errorf("the replica received %s", s.body)
	}
	wantError(t, f.chat("old"), 503, "no_replica_available", "")
	wantError(t, f.chat("other"), 404, "model_not_found", "model")
}

func TestReloadBadConfigurationChangesNothing(t *testing.T) {
	url := upstream(t, ok)
	f := serve(t, modelOn("m", url), simulatedModel("s", 1))
	table, engines, log := f.registry.table.Load(), slices.Clone(f.registry.simulated.engines), ""
	for name, spoil := range map[string]func(m *config.Model){
		"no key":           func(m *config.Model) { m.Replicas[0].APIKeyEnv = "BERTH_TEST_UNSET" },
		"no slot secret":   func(m *config.Model) { m.SlotSecretEnv = "BERTH_TEST_UNSET" },
		"unknown policy":   func(m *config.Model) { m.Router.Class = "Unheard" },
		"bad arguments":    func(m *config.Model) { m.Router.Kwargs = map[string]any{"a": 1} },
		"no URL":           func(m *config.Model) { m.Replicas[0].URL = "nowhere" },
		"one URL for both": func(m *config.Model) { m.Replicas = append(m.Replicas, m.Replicas[0]) },
	} {
		changed, bad := modelOn("m", url, refusing(1)), modelOn("bad", refusing(2))
		spoil(&bad)
		c := configured(changed, simulatedModel("s", 3), simulatedModel("fresh", 2), bad)
		c.HTTP.MaxBufferedBytes = 1
		if err := f.Apply(c); err == nil {
			t.Errorf("%s: the configuration was accepted", name)
		} else {
			log += err.Error() + "\n"
		}
		if f.registry.table.Load() != table || !slices.Equal(f.registry.simulated.engines, engines) || f.budget.Limit() == 1 {
			t.Errorf("%s: something changed", name)
		}
		if n := len(f.model("m").router.Members()); n != 1 {
			t.Errorf("%s: the router has %d members now", name, n)
		}
		if f.metric("berth_config_last_reload_successful") != 0 {
			t.Errorf("%s: the reload metric does not show the failure", name)
		}
	}
	if !strings.Contains(log, "BERTH_TEST_UNSET") || !strings.Contains(log, "nowhere") || strings.Count(log, "model bad") < 3 || !strings.Contains(log, "two replicas have the URL") {
		t.Errorf("the errors lack their reason:\n%s", log)
	}
	for _, id := range []string{"m", "s"} {
		if r := f.chat(id); r.StatusCode != 200 {
			t.Errorf("%s got %d %s", id, r.StatusCode, r.body)
		}
	}
	f.mustApply(modelOn("m", url))
	if f.metric("berth_config_last_reload_successful") != 1 || f.metric("berth_config_last_reload_success_timestamp_seconds") < 1.7e9 {
		t.Error("the reload metric does not show the next success")
	}
}

func TestReloadUnderLoadLosesNothing(t *testing.T) {
	urls := []string{upstream(t, ok), upstream(t, ok), upstream(t, ok)}
	base := func(urls ...string) config.Model {
		m := narrow(modelOn("m", urls...))
		m.MaxQueuedRequests, m.MaxAttempts = -1, 10
		return m
	}
	f := serve(t, base(urls...))
	done := make(chan struct{})
	var clients, reloader sync.WaitGroup
	reloader.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			m := base(urls[i%3:]...)
			m.Replicas[0].MaxOngoingRequests = 1 + i%2
			m.Router.Class = []string{"RoundRobinRouter", "PowerOfTwoChoicesRouter"}[i/2%2]
			if err := f.apply(m, modelOn(fmt.Sprint("n", i%5), refusing(1))); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range 12 {
		client := []*http.Client{f.h1, f.h2}[i%2]
		clients.Go(func() {
			for range 30 {
				if r := f.do(t.Context(), client, "POST", "/v1/chat/completions", strings.NewReader(chat("m"))); r.body != "ok" || r.err != nil {
					t.Errorf("got %d %s %v", r.StatusCode, r.body, r.err)
				}
			}
		})
	}
	for range 20 {
		f.metric("berth_buffered_bytes") // a scrape at any moment must succeed
	}
	clients.Wait()
	close(done)
	reloader.Wait()
	if n := f.metric(`berth_requests_total{model="m",route="/chat/completions",status="200"}`); n != 12*30 {
		t.Errorf("counted %v requests", n)
	}
}

func TestRegistryListsReplicaOnceDuringReload(t *testing.T) {
	f := serve(t, modelOn("m", refusing(1)))
	_, retire, err := f.registry.pool.Set(nil) // while the table still names it
	if err != nil {
		t.Fatal(err)
	}
	defer retire()
	if n := f.metric(`berth_slots_capacity{model="m",replica="a"}`); n != 2 {
		t.Errorf("the capacity is %v", n)
	}
}

func TestReloadReturningModelServesWaiters(t *testing.T) {
	for name, second := range map[string]string{"under its name": "m", "under another name": "n"} {
		t.Run(name, func(t *testing.T) {
			g := gated(t)
			f := serve(t, narrow(modelOn("m", g.url)))
			first := f.background(func() reply { return f.chat("m") })
			receive(t, g.arrived)
			for _, c := range []*config.Config{
				configured(modelOn("other", refusing(1))),
				configured(narrow(modelOn(second, g.url))),
			} {
				if err := f.Apply(c); err != nil {
					t.Fatal(err)
				}
			}
			later := f.background(func() reply { return f.chat(second) })
			f.waiting(second, 1) // the earlier request holds the engine's only slot
			g.open <- struct{}{}
			if r := receive(t, first); r.body != "ok" {
				t.Errorf("the first got %d %s", r.StatusCode, r.body)
			}
			receive(t, g.arrived)
			g.open <- struct{}{}
			if r := receive(t, later); r.body != "ok" {
				t.Errorf("the queued request got %d %s", r.StatusCode, r.body)
			}
		})
	}
}

func TestReloadRenamedModelKeepsCapacity(t *testing.T) {
	g := gated(t)
	f := serve(t, narrow(modelOn("m", g.url)))
	first := f.background(func() reply { return f.chat("m") })
	receive(t, g.arrived)
	if err := f.Apply(configured(narrow(modelOn("n", g.url)))); err != nil {
		t.Fatal(err)
	}
	later := f.background(func() reply { return f.chat("n") })
	f.waiting("n", 1)
	g.open <- struct{}{}
	receive(t, first)
	receive(t, g.arrived)
	g.open <- struct{}{}
	if r := receive(t, later); r.body != "ok" {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
}

// The list is requested with the key of the replica, and has to have the served name only.
func TestRegistryWarnsOfAModelThatAReplicaDoesNotList(t *testing.T) {
	t.Setenv("ENGINE_KEY", "sesame")
	lists := func(names string) string {
		return upstream(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/models" && r.Header.Get("Authorization") == "Bearer sesame" {
				fmt.Fprintf(w, `{"data":[{"id":"Qwen/Qwen3-4B"},{"id":%q}]}`, names)
			}
		})
	}
	m := modelOn("qwen", lists("other"), lists("engine-name"))
	m.ServedName, m.Aliases = "engine-name", []string{"small"}
	m.HealthCheckPeriod, m.HealthCheckTimeout = time.Minute, time.Minute
	m.Replicas[0].APIKeyEnv, m.Replicas[1].APIKeyEnv = "ENGINE_KEY", "ENGINE_KEY"
	f := serve(t, m)
	var log string
	f.eventually("the replica without the model is named", func() bool {
		log += f.log.take()
		return strings.Contains(log, `replica=a model=qwen served_model_name=engine-name listed="[Qwen/Qwen3-4B other]"`)
	})
	if strings.Contains(log, "replica=b") {
		t.Errorf("log %s", log)
	}
	if _, unlisted := f.model("qwen").replicas[0].UnlistedModel(); !unlisted {
		t.Error("the replica does not know it")
	}
}
