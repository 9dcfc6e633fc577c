package ingress

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/config"
)

// adminPost sends a POST to the admin listener.
func (f *front) adminPost(path string) reply {
	f.t.Helper()
	resp, err := f.h1.Post("http://"+f.AdminAddress()+path, "", nil)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return reply{resp, string(text), err}
}

// replicas returns the listed replicas.
func (f *front) replicas(query string) []replicaView {
	f.t.Helper()
	var list struct{ Replicas []replicaView }
	if r := f.admin("/internal/replicas" + query); r.StatusCode != 200 || json.Unmarshal([]byte(r.body), &list) != nil {
		f.t.Fatalf("got %d %s", r.StatusCode, r.body)
	}
	return list.Replicas
}

// setDrained drains or undrains a replica and returns what the server says of it.
func (f *front) setDrained(action, id, query string) (v replicaView) {
	f.t.Helper()
	r := f.adminPost("/internal/replicas/" + url.PathEscape(id) + "/" + action + query)
	if err := json.Unmarshal([]byte(r.body), &v); r.StatusCode != 200 || err != nil {
		f.t.Fatalf("%s %s: %d %s", action, id, r.StatusCode, r.body)
	}
	if v.ID != id || v.Drained != (action == "drain") {
		f.t.Errorf("%s %s returns %+v", action, id, v)
	}
	return v
}

// states returns the states of the listed replicas as text.
func (f *front) states() string {
	var states []string
	for _, v := range f.replicas("") {
		state := v.ID + " " + v.State
		if v.Drained {
			state += " drained"
		}
		states = append(states, state)
	}
	return strings.Join(states, ", ")
}

func (f *front) wantStates(want string) {
	f.t.Helper()
	f.eventually("the replicas are "+want, func() bool { return f.states() == want })
}

func TestReplicasDrainByHand(t *testing.T) {
	a, b := gated(t), gated(t)
	f := serve(t, modelOn("m", a.url, b.url))
	f.turn("m")
	onA := f.background(func() reply { return f.chat("m") })
	receive(t, a.arrived)
	for range 2 { // the second changes nothing
		if v := f.setDrained("drain", "a", ""); v.State != "draining" || v.Reason != "draining" || v.Slots.Running != 1 {
			t.Errorf("drained: %+v", v)
		}
	}
	f.wantStates("a draining drained, b serving")
	for range 2 { // the ones that round robin would send to the other replica, too
		onB := f.background(func() reply { return f.chat("m") })
		receive(t, b.arrived)
		b.open <- struct{}{}
		receive(t, onB)
	}
	a.open <- struct{}{}
	if r := receive(t, onA); r.body != "ok" {
		t.Errorf("the ongoing request got %d %s", r.StatusCode, r.body)
	}
	for range 2 {
		if v := f.setDrained("undrain", "a", ""); v.State != "serving" || v.Reason != "" {
			t.Errorf("undrained: %+v", v)
		}
	}
	f.turn("m")
	onA = f.background(func() reply { return f.chat("m") })
	receive(t, a.arrived)
	a.open <- struct{}{}
	receive(t, onA)
	text := f.log.take()
	for _, line := range []string{
		`msg="an operator drains a replica" replica=a model=m`,
		`msg="replica state changed" replica=a model=m from=serving to=draining reason=draining`,
		`msg="an operator ends the drain of a replica" replica=a model=m`,
		`msg="replica state changed" replica=a model=m from=draining to=serving reason="the drain has ended"`,
	} {
		if strings.Count(text, line) != 1 {
			t.Errorf("the log has not one line %s:\n%s", line, text)
		}
	}
}

func TestReplicasDrainSurvivesChangesOfTheMembership(t *testing.T) {
	urls := []string{upstream(t, ok), upstream(t, ok), upstream(t, ok)}
	f := serve(t, modelOn("m", urls...))
	apply := func(ids string, more func(m *config.Model)) {
		t.Helper()
		m := modelOn("m", urls...)
		m.Replicas = slices.DeleteFunc(m.Replicas, func(r config.Replica) bool { return !strings.Contains(ids, r.ID) })
		if more != nil {
			more(&m)
		}
		if err := f.Apply(configured(m)); err != nil {
			t.Fatal(err)
		}
	}
	f.setDrained("drain", "a", "")
	apply("abc", nil)
	f.wantStates("a draining drained, b serving, c serving")
	apply("abc", func(m *config.Model) { m.MaxAttempts, m.Replicas[0].MaxOngoingRequests = 1, 9 })
	f.wantStates("a draining drained, b serving, c serving")
	apply("bc", nil)
	f.wantStates("b serving, c serving, a absent drained")
	apply("abc", nil)
	f.wantStates("a draining drained, b serving, c serving")
	apply("abc", func(m *config.Model) { m.Replicas[0].URL = upstream(t, ok) }) // another process under the name
	f.wantStates("a draining drained, b serving, c serving")
	f.registry.onRestart(f.registry.table.Load().models[0].replicas[0].Endpoint())
	f.wantStates("a draining drained, b serving, c serving")
	apply("bc", nil)
	if v := f.setDrained("undrain", "a", ""); v.State != "absent" {
		t.Errorf("undrained while absent: %+v", v)
	}
	f.wantStates("b serving, c serving")
	apply("abc", nil)
	f.wantStates("a serving, b serving, c serving")
}

func TestReplicasAreFoundByIDAndModel(t *testing.T) {
	m, n := modelOn("m", upstream(t, ok)), modelOn("n", upstream(t, ok), upstream(t, ok))
	m.Aliases = []string{"other"}
	n.Replicas[1].ID = "http://10.0.0.1:8000/a b?x=%"
	f := serve(t, m, n)
	f.setDrained("drain", n.Replicas[1].ID, "")
	f.wantStates("a serving, a serving, " + n.Replicas[1].ID + " draining drained")
	f.setDrained("drain", "a", "?model=other")
	f.wantStates("a draining drained, a serving, " + n.Replicas[1].ID + " draining drained")
	if got := f.replicas("?model=n"); len(got) != 2 || got[0].Model != "n" {
		t.Errorf("the replicas of n are %+v", got)
	}
	if got := f.replicas("?model=other"); len(got) != 1 || got[0].Model != "m" {
		t.Errorf("the replicas of an alias are %+v", got)
	}
	for path, want := range map[string]struct {
		status int
		text   []string
	}{
		"/internal/replicas/a/drain":           {400, []string{"replica_ambiguous", "?model="}},
		"/internal/replicas/b/drain":           {404, []string{"replica_not_found", `\"b\"`, "the replicas are a, a, http://10.0.0.1:8000/a b?x=%"}},
		"/internal/replicas/b/undrain?model=n": {404, []string{"replica_not_found", "the replicas are a, http://10.0.0.1:8000/a b?x=%"}},
		"/internal/replicas/a/drain?model=x":   {404, []string{"model_not_found"}},
	} {
		r := f.adminPost(path)
		if r.StatusCode != want.status || !json.Valid([]byte(r.body)) || slices.ContainsFunc(want.text, func(s string) bool { return !strings.Contains(r.body, s) }) {
			t.Errorf("%s: %d %s; want %d with %q", path, r.StatusCode, r.body, want.status, want.text)
		}
	}
	if r := f.admin("/internal/replicas?model=x"); r.StatusCode != 404 || !strings.Contains(r.body, "model_not_found") {
		t.Errorf("an unknown model: %d %s", r.StatusCode, r.body)
	}
	if r := f.admin("/internal/replicas/a/drain?model=m"); r.StatusCode != 404 {
		t.Errorf("a GET: %d %s", r.StatusCode, r.body)
	}
}

func TestReplicasShowStateSlotsAndFailures(t *testing.T) {
	g := gated(t)
	m := modelOn("m", refusing(1), upstream(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), g.url)
	f := serve(t, m)
	began := time.Now()
	f.turn("m")
	done := f.background(func() reply { return f.chat("m") })
	receive(t, g.arrived)
	got := f.replicas("")
	if v := got[0]; v.State != "down" || !strings.HasPrefix(v.Reason, "no connection") || v.Since.Before(began.Add(-time.Millisecond)) || v.ForS < 0 ||
		len(v.Changes) != 1 || v.Changes[0].From != "serving" || v.Changes[0].To != "down" || v.Failures != 0 {
		t.Errorf("the one that refuses connections: %+v", v)
	}
	if v := got[1]; v.State != "serving" || v.Failures != 1 || len(v.Recent) != 1 || v.Recent[0].Phase != "first_byte" || !v.Recent[0].Retried ||
		!strings.Contains(v.Recent[0].Reason, "connection broken") {
		t.Errorf("the one that breaks responses: %+v", v)
	}
	if v := got[2]; v.Slots != (slotsView{Running: 1, Capacity: 2}) || v.URL != g.url || v.Source != "config" || v.Model != "m" || v.Reason != "" {
		t.Errorf("the one that serves: %+v", v)
	}
	if err := f.Apply(configured(modelOn("m", refusing(1)))); err != nil {
		t.Fatal(err)
	}
	if got := f.replicas(""); len(got) != 2 || !got[1].Leaving || got[1].ID != "c" || got[1].Reason != "replica removed" || got[1].Slots.Running != 1 {
		t.Errorf("with one that leaves: %+v", got)
	}
	g.open <- struct{}{}
	receive(t, done)
}

func TestAdminListsTheQueue(t *testing.T) {
	g := gated(t)
	f := serve(t, narrow(modelOn("m", g.url)))
	first := f.background(func() reply { return f.chat("m") })
	receive(t, g.arrived)
	second := f.background(func() reply { return f.post("/v1/chat/completions", chat("m"), "x-request-id", "waits") })
	f.waiting("m", 1)
	var list struct {
		Slots   []liveSlot
		Waiting []waitingRequest
		Omitted int `json:"waiting_omitted"`
	}
	if r := f.admin("/internal/slots"); json.Unmarshal([]byte(r.body), &list) != nil {
		t.Fatal(r.body)
	}
	if len(list.Slots) != 1 || len(list.Waiting) != 1 || list.Omitted != 0 {
		t.Fatalf("listed: %+v", list)
	}
	if q := list.Waiting[0]; q.RequestID != "waits" || q.Model != "m" || q.State != "waiting" || q.For != "a" || q.AgeS < 0 || q.AgeS > 10 {
		t.Errorf("the queue has %+v", q)
	}
	g.open <- struct{}{}
	g.open <- struct{}{}
	receive(t, first)
	receive(t, second)
}
