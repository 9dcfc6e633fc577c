package ingress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth/config"
	"berth/llmserver"
	"berth/llmserver/discovery"
)

// scripted is a source that publishes what a test sends.
type scripted struct {
	discovery.Source
	name  string
	sets  chan []llmserver.Endpoint
	runs  atomic.Int32
	err   atomic.Pointer[error]
	ended chan struct{}
}

func (s *scripted) String() string { return s.name }

func (s *scripted) Err() error {
	if err := s.err.Load(); err != nil {
		return *err
	}
	return nil
}

func (s *scripted) Run(ctx context.Context, publish func([]llmserver.Endpoint)) {
	s.runs.Add(1)
	defer close(s.ended)
	for {
		select {
		case set := <-s.sets:
			publish(set)
		case <-ctx.Done():
			return
		}
	}
}

// scripts are the scripted sources of a registry by the DNS name or the path in their settings.
type scripts map[string]*scripted

// use makes the registry create scripted sources.
func (s scripts) use(r *registry) {
	r.sources.create = func(spec any, _ *slog.Logger) (discovery.Source, string, error) {
		name := ""
		switch spec := spec.(type) {
		case fileSpec:
			name = string(spec)
		case config.DNS:
			name = spec.Name
		}
		if name == "bad" {
			return nil, "", fmt.Errorf("no such source")
		}
		s[name] = &scripted{name: name, sets: make(chan []llmserver.Endpoint), ended: make(chan struct{})}
		return s[name], "sk-engine", nil
	}
}

// fromDNS returns a model with a source of that name.
func fromDNS(id, name string) config.Model {
	m := modelOn(id)
	m.MaxOngoingRequests = 2
	m.DNS = &config.DNS{Name: name}
	return m
}

// at returns an endpoint with one slot.
func at(id, url string) llmserver.Endpoint { return llmserver.Endpoint{ID: id, URL: url, Limit: 1} }

// serveSources starts a server with the models, of which those with a source have a scripted one.
func serveSources(t *testing.T, models ...config.Model) (*front, scripts) {
	t.Helper()
	f, s := serve(t, modelOn("static", upstream(t, ok))), scripts{}
	s.use(f.registry)
	f.mustApply(models...)
	return f, s
}

// members waits until a model has the replicas with these IDs, and returns them.
func (f *front) members(model string, ids ...string) (replicas []*llmserver.Replica) {
	f.t.Helper()
	f.eventually(fmt.Sprintf("%s has the replicas %v", model, ids), func() bool {
		replicas = f.model(model).replicas
		var got []string
		for _, r := range replicas {
			got = append(got, r.ID())
		}
		return strings.Join(got, " ") == strings.Join(ids, " ")
	})
	return replicas
}

func TestSourceSetIsRoutableAtOnce(t *testing.T) {
	var authorization atomic.Value
	url := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		authorization.Store(r.Header.Get("Authorization"))
		ok(w, r)
	})
	f, s := serveSources(t, fromDNS("m", "dns"))
	began := time.Now()
	answer := f.background(func() reply { return f.chat("m") })
	s["dns"].sets <- []llmserver.Endpoint{{ID: "a", URL: url}}
	if r := receive(t, answer); r.body != "ok" {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
	t.Logf("served %v after the request came", time.Since(began))
	e := f.members("m", "a")[0].Endpoint()
	if e.Model != "m" || e.Limit != 2 || e.Source != "dns" || e.APIKey != "sk-engine" || e.ConnectTimeout != 5*time.Second {
		t.Errorf("the endpoint is %+v", e)
	}
	if got := authorization.Load(); got != "Bearer sk-engine" {
		t.Errorf("the replica got the key %v", got)
	}
	if log := f.log.take(); !strings.Contains(log, `msg="new set of replicas" model=m source=dns replicas=1 added=a removed="" draining=""`) {
		t.Errorf("logged\n%s", log)
	}
}

func TestSourceWithoutReplicasQueuesAndIsNever404(t *testing.T) {
	m := fromDNS("m", "dns")
	m.MaxQueuedRequests = 1
	f, s := serveSources(t, m)
	for range 2 { // before the first set, and after an empty one
		waiting := f.background(func() reply { return f.chat("m") })
		f.waiting("m", 1)
		r := f.chat("m")
		wantError(t, r, 503, "no_replica_available", "")
		if r.Header.Get("Retry-After") == "" || !strings.Contains(r.body, "there is no replica") {
			t.Errorf("got %v and %s", r.Header, r.body)
		}
		if r := f.get("/v1/models/m"); r.StatusCode != 200 {
			t.Errorf("GET /v1/models/m got %d", r.StatusCode)
		}
		s["dns"].sets <- []llmserver.Endpoint{at("a", upstream(t, ok))}
		if r := receive(t, waiting); r.body != "ok" {
			t.Errorf("the waiting request got %d %s", r.StatusCode, r.body)
		}
		s["dns"].sets <- nil
		f.members("m")
	}
	m.QueueTimeout = 10 * time.Millisecond
	f.mustApply(m)
	wantError(t, f.chat("m"), 503, "no_replica_available", "")
}

func TestSourceMetrics(t *testing.T) {
	f, s := serveSources(t, fromDNS("m", "dns"))
	want := func(up, replicas float64) {
		t.Helper()
		f.eventually(fmt.Sprintf("up is %v and replicas is %v", up, replicas), func() bool {
			return f.metric(`berth_source_up{model="m",source="dns"}`) == up && f.metric(`berth_source_replicas{model="m",source="dns"}`) == replicas
		})
	}
	want(0, 0)
	s["dns"].sets <- []llmserver.Endpoint{at("a", upstream(t, ok)), at("b", refusing(1))}
	want(1, 2)
	s["dns"].err.Store(new(errors.New("away")))
	want(0, 2)
	f.mustApply(modelOn("m", refusing(1)))
	if _, ok := f.series(`berth_source_up{model="m",source="dns"}`); ok {
		t.Error("a source that is gone has metrics")
	}
}

func TestSourceIsRestartedOnlyIfItsSettingsChange(t *testing.T) {
	f, s := serveSources(t, fromDNS("m", "first"))
	first := s["first"]
	first.sets <- []llmserver.Endpoint{at("a", upstream(t, ok))}
	before := f.members("m", "a")[0]

	changed := fromDNS("m", "first")
	changed.MaxQueuedRequests, changed.Aliases = 3, []string{"alias"}
	f.mustApply(changed)
	if s["first"] != first || first.runs.Load() != 1 || f.members("m", "a")[0] != before {
		t.Error("a reload that does not concern the source restarted it, or lost its set")
	}
	f.mustApply(fromDNS("m", "second"))
	receive(t, first.ended)
	if f.members("m", "a")[0] != before {
		t.Error("the replicas are gone before the new source has published any")
	}
	if r := f.chat("m"); r.body != "ok" {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
	s["second"].sets <- []llmserver.Endpoint{at("b", upstream(t, ok))}
	f.members("m", "b")
	f.mustApply(modelOn("m", upstream(t, ok)))
	receive(t, s["second"].ended)
	f.members("m", "a")
}

func TestSourceOfABadReloadIsNotStarted(t *testing.T) {
	f, s := serveSources(t, fromDNS("m", "dns"))
	s["dns"].sets <- []llmserver.Endpoint{at("a", upstream(t, ok))}
	before := f.members("m", "a")[0]
	bad := modelOn("bad", refusing(1))
	bad.Router.Class = "Unheard"
	for _, models := range [][]config.Model{
		{fromDNS("m", "other"), bad},
		{fromDNS("m", "other"), fromDNS("n", "bad")},
		{fromDNS("m", "other"), modelOn("x", "nowhere")},
	} {
		if err := f.apply(models...); err == nil {
			t.Error("the configuration was accepted")
		}
		if other := s["other"]; other != nil && other.runs.Load() != 0 || f.members("m", "a")[0] != before {
			t.Error("a bad reload has an effect")
		}
	}
	s["dns"].sets <- []llmserver.Endpoint{at("b", upstream(t, ok))} // still in use
	f.members("m", "b")
}

// Settings of a source that cannot work are errors of the configuration.
func TestSourceSettingsThatCannotWork(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	f := serve(t, modelOn("static", upstream(t, ok)))
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for problem, change := range map[string]func(*config.Model){
		"does not run in a pod of Kubernetes; set kubernetes.kubeconfig": func(m *config.Model) { m.Kubernetes = &config.Kubernetes{Service: "s"} },
		"kubeconfig " + kubeconfig + ":":                                 func(m *config.Model) { m.Kubernetes = &config.Kubernetes{Service: "s", Kubeconfig: kubeconfig} },
		"BERTH_TEST_UNSET, which should hold its key":                    func(m *config.Model) { m.DNS = &config.DNS{Name: "a", Type: "A", APIKeyEnv: "BERTH_TEST_UNSET"} },
		"environment variable BERTH_TEST_UNSET":                          func(m *config.Model) { m.Kubernetes = &config.Kubernetes{Service: "s", APIKeyEnv: "BERTH_TEST_UNSET"} },
	} {
		m := modelOn("m")
		change(&m)
		if err := f.apply(m); err == nil || !strings.Contains(err.Error(), problem) || !strings.HasPrefix(err.Error(), "model m: source of replicas: ") {
			t.Errorf("got %v; want %s", err, problem)
		}
	}
	if r := f.chat("static"); r.body != "ok" {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
}

// A replica that is draining, and then gone, finishes its streams. The same URL with another
// instance is another replica.
func TestSourceDrainsAndReplacesReplicas(t *testing.T) {
	g := gated(t)
	f, s := serveSources(t, fromDNS("m", "dns"))
	old := llmserver.Endpoint{ID: "pod", URL: g.url, Instance: "1"}
	s["dns"].sets <- []llmserver.Endpoint{old}
	replica := f.members("m", "pod")[0]
	running := f.background(func() reply { return f.chat("m") })
	receive(t, g.arrived)

	draining := old
	draining.Draining = true
	s["dns"].sets <- []llmserver.Endpoint{draining}
	f.eventually("the replica is draining", replica.Draining)
	waiting := f.background(func() reply { return f.chat("m") })
	f.waiting("m", 1)
	if f.members("m", "pod")[0] != replica {
		t.Error("a draining replica is another one")
	}
	next := old
	next.Instance = "2"
	s["dns"].sets <- []llmserver.Endpoint{next}
	receive(t, g.arrived)
	if now := f.members("m", "pod")[0]; now == replica || now.Usage().Running != 1 || replica.Usage().Running != 1 {
		t.Errorf("the new process has %+v, the old one %+v", now.Usage(), replica.Usage())
	}
	g.open <- struct{}{}
	g.open <- struct{}{}
	for _, answer := range []<-chan reply{running, waiting} {
		if r := receive(t, answer); r.body != "ok" {
			t.Errorf("got %d %s", r.StatusCode, r.body)
		}
	}
}

// A set that changes around a replica leaves its circuit, its slots and its place in the queue.
func TestSourceSetKeepsEjectedReplicas(t *testing.T) {
	f, s := serveSources(t, fromDNS("m", "dns"))
	a, b := at("a", refusing(1)), at("b", upstream(t, ok))
	a.Limit, b.Limit = 2, 2
	s["dns"].sets <- []llmserver.Endpoint{a, b}
	before := f.members("m", "a", "b")
	for range 2 {
		if r := f.chat("m"); r.body != "ok" {
			t.Errorf("got %d %s", r.StatusCode, r.body)
		}
	}
	if before[0].Up() {
		t.Fatal("a replica that refuses connections is up")
	}
	s["dns"].sets <- []llmserver.Endpoint{a, b, at("c", upstream(t, ok))}
	if now := f.members("m", "a", "b", "c"); now[0] != before[0] || now[1] != before[1] || now[0].Up() {
		t.Error("a new set forgot the state of a replica that it has, too")
	}
}

func TestSourceDuplicatesTheFirstWins(t *testing.T) {
	urls := []string{upstream(t, ok), upstream(t, ok), upstream(t, ok)}
	m, n := fromDNS("m", "dns"), fromDNS("n", "other")
	m.File = "file"
	m.Replicas = modelOn("m", urls[0]).Replicas
	f, s := serveSources(t, m, n)
	f.log.take()
	for range 2 {
		s["other"].sets <- []llmserver.Endpoint{at("x", urls[1])}
		s["dns"].sets <- []llmserver.Endpoint{at("p", urls[0]), at("q", urls[1]), at("a", urls[2])}
		f.members("m", "a", "q")
		s["file"].sets <- []llmserver.Endpoint{at("r", urls[1])}
		f.members("m", "a", "r")
		f.members("n")
		s["file"].sets <- nil
		s["dns"].sets <- nil
		f.members("n", "x")
	}
	log := f.log.take()
	for _, want := range []string{
		"model=m replica=p url=" + urls[0] + " source=dns first=config",
		"model=m replica=q url=" + urls[1] + " source=dns first=file",
		"model=m replica=a url=" + urls[2] + " source=dns first=config", // another process of that name
		"model=n replica=x url=" + urls[1] + " source=other first=file",
	} {
		if got := strings.Count(log, "level=WARN msg=\"a replica is listed twice; the first entry counts\" "+want); got == 0 || got > 2 {
			t.Errorf("%d warnings of %s in\n%s", got, want, log)
		}
	}
}

// awaitSync waits until everything that was published is in use.
func awaitSync() {
	time.Sleep(2 * applyPause)
	synctest.Wait()
}

func TestSourceReadinessWaitsForTheFirstSetOfEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := newRegistry(quietTelemetry(), slog.New(slog.DiscardHandler)), scripts{}
		defer r.close()
		s.use(r)
		models := []config.Model{fromDNS("m", "m"), fromDNS("n", "n"), modelOn("o", refusing(1))}
		apply := func(models ...config.Model) {
			if err := r.apply(configured(models...)); err != nil {
				t.Fatal(err)
			}
			awaitSync()
		}
		want := func(reason string) {
			t.Helper()
			if got := r.unready(); !strings.Contains(got, reason) || (got == "") != (reason == "") {
				t.Errorf("the server is unready for %q; want %q", got, reason)
			}
		}
		apply(models...)
		want("has not published")
		s["m"].sets <- nil
		awaitSync()
		want("has not published")
		apply(models...)
		want("has not published")
		s["n"].sets <- nil
		awaitSync()
		want("")
		s["n"].sets <- nil // sources that are added later, or say nothing, change no readiness
		apply(append(models, fromDNS("p", "p"))...)
		want("")
		apply(fromDNS("q", "q"))
		want("no replica")
	})
}

func TestSourceSetsOfABurstAreTakenOverTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := newRegistry(quietTelemetry(), slog.New(slog.DiscardHandler)), scripts{}
		defer r.close()
		s.use(r)
		passes := 0
		r.onNewSet = func() { passes++ }
		if err := r.apply(configured(fromDNS("m", "m"))); err != nil {
			t.Fatal(err)
		}
		for i := range 1000 {
			s["m"].sets <- []llmserver.Endpoint{at(fmt.Sprint(i), refusing(1))}
		}
		awaitSync()
		if got := r.table.Load().models[0].replicas; len(got) != 1 || got[0].ID() != "999" {
			t.Errorf("the replicas are %v", got)
		}
		if passes > 3 {
			t.Errorf("a burst was taken over in %d passes", passes)
		}
		passes = 0
		s["m"].sets <- []llmserver.Endpoint{at("999", refusing(1))} // nothing new
		awaitSync()
		if passes != 0 {
			t.Error("an unchanged set was taken over again")
		}
	})
}

func TestSourceFileIsReadAgainWhenItChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "replicas.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	m := modelOn("m")
	m.File, m.MaxOngoingRequests = path, 7
	f := serve(t, m)
	if r := f.get("/readyz"); r.StatusCode != 503 || r.body != "a source of replicas has not published a set yet\n" {
		t.Errorf("without the file /readyz got %d %s", r.StatusCode, r.body)
	}
	url := upstream(t, ok)
	write(fmt.Sprintf("- {url: %q, id: a}\n- {url: %q, id: b, max_ongoing_requests: 3}\n", url, refusing(2)))
	replicas := f.members("m", "a", "b")
	if a, b := replicas[0].Endpoint(), replicas[1].Endpoint(); a.Limit != 7 || b.Limit != 3 || a.Source != "file "+path {
		t.Errorf("got %+v and %+v", a, b)
	}
	f.eventually("the server is ready", func() bool { return f.get("/readyz").StatusCode == 200 })
	f.log.take()
	for text, problem := range map[string]string{
		"- {urll: x}": path + ":1:4: unknown key urll; did you mean url?",
		"":            path + ":1:1: this file is empty",
		fmt.Sprintf("- {url: %q, api_key_env: BERTH_TEST_UNSET}", url): "BERTH_TEST_UNSET",
	} {
		write(text)
		log := ""
		f.eventually("the problem is logged", func() bool { log += f.log.take(); return strings.Contains(log, problem) })
		if strings.Count(log, "\n") != 1 || !strings.Contains(log, "source=\"file "+path) || !strings.Contains(log, "model=m") {
			t.Errorf("logged\n%s", log)
		}
		f.members("m", "a", "b")
	}
	write("[]")
	f.members("m")
	if log := f.log.take(); !strings.Contains(log, "available again") || !strings.Contains(log, `removed="a b"`) {
		t.Errorf("logged\n%s", log)
	}
}

func TestSourceStreamsSurviveSetsInALoop(t *testing.T) {
	g := gated(t)
	f, s := serveSources(t, fromDNS("m", "dns"))
	a := llmserver.Endpoint{ID: "a", URL: g.url}
	s["dns"].sets <- []llmserver.Endpoint{a}
	running := f.background(func() reply { return f.chat("m") })
	receive(t, g.arrived)
	for i := range 50 {
		set := []llmserver.Endpoint{at(fmt.Sprint(i), refusing(1+i))}
		if i%2 == 0 {
			set = append(set, a)
		}
		s["dns"].sets <- set
		if i%10 == 0 {
			f.mustApply(fromDNS("m", "dns"))
		}
	}
	s["dns"].sets <- []llmserver.Endpoint{a}
	f.members("m", "a")
	g.open <- struct{}{}
	if r := receive(t, running); r.body != "ok" {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
}

// A set with another capacity serves waiting requests, though no replica came or went.
func TestSourceSetWithMoreCapacityServesTheQueue(t *testing.T) {
	g := gated(t)
	f, s := serveSources(t, fromDNS("m", "dns"))
	narrow, wide := at("a", g.url), at("a", g.url)
	wide.Limit = 2
	s["dns"].sets <- []llmserver.Endpoint{narrow}
	f.members("m", "a")
	running := f.background(func() reply { return f.chat("m") })
	receive(t, g.arrived)
	waiting := f.background(func() reply { return f.chat("m") })
	f.waiting("m", 1)
	s["dns"].sets <- []llmserver.Endpoint{wide}
	receive(t, g.arrived)
	g.open <- struct{}{}
	g.open <- struct{}{}
	for _, answer := range []<-chan reply{running, waiting} {
		if r := receive(t, answer); r.body != "ok" {
			t.Errorf("got %d %s", r.StatusCode, r.body)
		}
	}
}
