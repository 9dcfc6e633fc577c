package ingress

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"
)

// store is a replica that stores responses.
type store struct {
	name   string
	mu     sync.Mutex
	held   map[string]bool
	calls  []string // all requests but those that create a response
	hold   chan struct{}
	arrive chan struct{}
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if r.Method == "POST" && r.URL.Path == "/v1/responses" {
		s.create(w, string(body))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, r.Method+" "+r.RequestURI)
	id, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/responses/"), "/")
	if !s.held[id] {
		w.WriteHeader(404)
		io.WriteString(w, "not here")
		return
	}
	if r.Method == "DELETE" {
		delete(s.held, id)
	}
	fmt.Fprintf(w, "%s %s of %s, %q", r.Method, r.RequestURI, s.name, body)
}

// create responds with a new response of that ID, as an event stream if requested.
func (s *store) create(w http.ResponseWriter, body string) {
	if s.hold != nil && strings.Contains(body, "hold") {
		s.arrive <- struct{}{}
		<-s.hold
	}
	id := "resp_" + s.name + gjson.Get(body, "input").String()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[id] = true
	object := `{ "object":"response", "metadata":{"id":"x"}, "id" : "` + id + `" , "output":[{"id":"msg_1"}]}`
	if !gjson.Get(body, "stream").Bool() {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, object)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, event := range []string{"event: response.created\ndata: {\"response\":" + object[:50], object[50:] + "}\n\n", "data: [DONE]\n\n"} {
		io.WriteString(w, event)
		w.(http.Flusher).Flush()
	}
}

// took returns the requests since the last call.
func (s *store) took() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.calls = nil }()
	return strings.Join(s.calls, ", ")
}

func stores(t *testing.T, names ...string) (all []*store, urls []string) {
	for _, name := range names {
		s := &store{name: name, held: make(map[string]bool)}
		all, urls = append(all, s), append(urls, upstream(t, s.ServeHTTP))
	}
	return all, urls
}

func (f *front) respond(t *testing.T, body string) (id string) {
	t.Helper()
	r := f.post("/v1/responses", body)
	_, rest, ok := strings.Cut(r.body, `"resp_`)
	id, _, _ = strings.Cut(rest, `"`)
	if !ok || r.StatusCode != 200 || r.err != nil {
		t.Fatalf("%s got %d %s %v", body, r.StatusCode, r.body, r.err)
	}
	return "resp_" + id
}

func TestResponsesReachOwner(t *testing.T) {
	all, urls := stores(t, "a", "b", "c")
	f := serve(t, modelOn("m", urls...))
	for i := range 6 {
		id := f.respond(t, fmt.Sprintf(`{"model":"m","input":"%d","stream":%v}`, i, i%2 == 0))
		name := id[len("resp_") : len("resp_")+1]
		for _, call := range []string{"GET %s?stream=true&starting_after=1", "GET %s/input_items?limit=2", "POST %s/cancel", "DELETE %s"} {
			for _, base := range []string{"/v1/responses/", "/responses/"} {
				if base == "/responses/" && strings.HasPrefix(call, "DELETE") {
					continue // it is deleted by now
				}
				method, path, _ := strings.Cut(fmt.Sprintf(call, id), " ")
				r := f.do(t.Context(), f.h1, method, base+path, strings.NewReader("{}"))
				if want := fmt.Sprintf(`%s /v1/responses/%s of %s, ""`, method, path, name); r.StatusCode != 200 || r.body != want {
					t.Errorf("%s %s got %d %q, want %q", method, path, r.StatusCode, r.body, want)
				}
			}
		}
		for _, s := range all {
			if asked := s.took(); s.name != name && asked != "" {
				t.Errorf("%s of %s was requested from %s: %s", id, name, s.name, asked)
			}
		}
		// The replica itself reports that it is deleted.
		if r := f.get("/v1/responses/" + id); r.StatusCode != 404 || r.body != "not here" {
			t.Errorf("once deleted: %d %s", r.StatusCode, r.body)
		}
		for _, s := range all {
			s.took()
		}
	}
	if n := f.metric(`berth_requests_total{model="m",route="/responses/{id}",status="200"}`); n != 42 {
		t.Errorf("counted %v", n)
	}
}

func TestResponsesUnknownOwnerLookedUpOnce(t *testing.T) {
	all, urls := stores(t, "a", "b", "c")
	other, url := stores(t, "other")
	f := serve(t, modelOn("m", urls...), modelOn("n", url...))
	all[1].held["resp_old"] = true
	for range 2 {
		if r := f.get("/v1/responses/resp_old"); r.StatusCode != 200 || !strings.Contains(r.body, "of b") {
			t.Errorf("got %d %s", r.StatusCode, r.body)
		}
	}
	want := "GET /v1/responses/resp_old"
	for _, s := range append(all, other...) {
		if asked := s.took(); asked != want && s.name != "b" || s.name == "b" && asked != want+", "+want+", "+want {
			t.Errorf("%s was asked: %s", s.name, asked)
		}
	}
}

func TestResponsesNotFoundUnlessReplicaAway(t *testing.T) {
	_, urls := stores(t, "a", "b")
	f := serve(t, modelOn("m", urls...))
	for _, call := range []string{"GET /v1/responses/resp_x", "DELETE /responses/resp_x", "POST /v1/responses/resp_x/cancel", "GET /v1/responses/resp_x/input_items"} {
		method, path, _ := strings.Cut(call, " ")
		wantError(t, f.do(t.Context(), f.h1, method, path, nil), 404, "response_not_found", "response_id")
	}
	for _, id := range []string{"a%2Fb", "x%20y", "%00", "ü", strings.Repeat("x", 200), "a%22"} {
		wantError(t, f.get("/v1/responses/"+id), 404, "unknown_url", "")
	}
	f.mustApply(modelOn("m", urls[0], refusing(1)))
	wantError(t, f.get("/v1/responses/resp_x"), 503, "response_unreachable", "response_id")
	f.owners.setOwner("resp_known", f.registry.table.Load().models[0].replicas[1])
	wantError(t, f.get("/v1/responses/resp_known"), 503, "no_replica_available", "")
	wantError(t, f.post("/v1/responses", `{"model":"m","previous_response_id":"resp_x"}`), 503, "response_unreachable", "response_id")
}

// A request that continues a response waits for its owner although other replicas are free.
func TestResponsesContinueOnOwner(t *testing.T) {
	all, urls := stores(t, "a", "b", "c")
	f := serve(t, narrow(modelOn("m", urls...)))
	all[0].hold, all[0].arrive = make(chan struct{}), make(chan struct{}, 10)
	all[2].held["resp_c0"] = true
	f.turn("m")
	first := f.respond(t, `{"model":"m","input":"1"}`)
	if first != "resp_a1" {
		t.Fatalf("the first is %s", first)
	}
	busy := f.background(func() reply {
		return f.post("/v1/responses", `{"model":"m","input":"hold","previous_response_id":"`+first+`"}`)
	})
	receive(t, all[0].arrive)
	next := f.background(func() reply {
		return f.post("/v1/responses", `{"model":"m","input":"2","stream":true,"previous_response_id":"`+first+`"}`)
	})
	f.waiting("m", 1)
	for range 4 { // served by the owner of resp_c0, which is free
		if id := f.respond(t, `{"model":"m","input":"3","previous_response_id":"resp_c0"}`); id != "resp_c3" {
			t.Errorf("%s was created on another replica than resp_c0", id)
		}
	}
	all[0].hold <- struct{}{}
	if r := receive(t, busy); !strings.Contains(r.body, "resp_ahold") {
		t.Errorf("got %s", r.body)
	}
	if r := receive(t, next); !strings.Contains(r.body, "resp_a2") || r.err != nil {
		t.Errorf("got %s %v", r.body, r.err)
	}
	if asked := all[1].took(); asked != "GET /v1/responses/resp_c0" {
		t.Errorf("b was asked: %s", asked)
	}
	// No replica holds it: an engine reports that.
	if id := f.respond(t, `{"model":"m","input":"4","previous_response_id":"resp_none"}`); !strings.HasSuffix(id, "4") {
		t.Errorf("made %s", id)
	}
	// Its replica has left.
	f.mustApply(narrow(modelOn("m", urls[1:]...)))
	wantError(t, f.get("/v1/responses/"+first), 404, "response_not_found", "response_id")
}

func TestResponsesAreInAccessLog(t *testing.T) {
	all, urls := stores(t, "a", "b")
	f, path := logging(t, modelOn("m", urls...))
	all[1].held["resp_1"] = true
	f.get("/v1/responses/resp_1")
	f.get("/v1/responses/resp_2")
	lines := f.logged(path, 2)
	wantFields(t, lines[0], map[string]any{"path": "/v1/responses/resp_1", "model": "m", "replica": "b", "status": 200.0, "outcome": "finished"})
	wantFields(t, lines[1], map[string]any{"path": "/v1/responses/resp_2", "model": nil, "status": 404.0, "code": "response_not_found", "outcome": "refused"})
}

// A client's disconnect ends the call to the owner and the calls of a lookup.
func TestResponsesClientDisconnect(t *testing.T) {
	g := gated(t)
	f := serve(t, modelOn("m", g.url))
	f.owners.setOwner("resp_1", f.registry.table.Load().models[0].replicas[0])
	for id, path := range map[string]string{"resp_1": "/v1/responses/resp_1/cancel", "resp_2": "/v1/responses/resp_2"} {
		for _, client := range []*http.Client{f.h1, f.h2} {
			ctx, leave := context.WithCancel(t.Context())
			method := http.MethodGet
			if id == "resp_1" {
				method = http.MethodPost
			}
			done := f.background(func() reply { return f.do(ctx, client, method, path, nil) })
			if r := receive(t, g.arrived); r.URL.Path != path {
				t.Errorf("the replica is asked for %s", r.URL.Path)
			}
			leave()
			receive(t, done)
			receive(t, g.left)
		}
	}
	f.eventually("both aborts are counted", func() bool {
		n, _ := f.series(`berth_aborts_total{model="m",phase="first_byte"}`)
		return n == 2
	})
}

func TestResponsesPropagateSpan(t *testing.T) {
	url, requests := recording(t)
	f, spans := traced(t, modelOn("m", url, refusing(1)))
	f.owners.setOwner("resp_1", f.registry.table.Load().models[0].replicas[0])
	f.get("/v1/responses/resp_1")
	byName := f.spansOf(spans, "GET /responses/{id}")
	if len(byName["attempt"]) != 1 {
		t.Fatalf("the spans are %v", byName)
	}
	attempt := byName["attempt"][0]
	if parent := receive(t, requests).header.Get("Traceparent"); !strings.Contains(parent, attempt.SpanContext.SpanID().String()) {
		t.Errorf("the replica received traceparent %q", parent)
	}
	if attributes(attempt)["berth.replica"].AsString() != "a" {
		t.Errorf("the span has %v", attempt.Attributes)
	}
}
