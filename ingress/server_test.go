package ingress

import (
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestServerServesDuringDrainDelay(t *testing.T) {
	c := configured(modelOn("m", upstream(t, ok)))
	c.HTTP.DrainDelay = time.Hour
	f := serveConfig(t, c)
	f.drain()
	f.eventually("the server is not ready", func() bool { return f.get("/readyz").StatusCode == 503 })
	if r := f.get("/livez"); r.StatusCode != 200 {
		t.Errorf("/livez: %d", r.StatusCode)
	}
	for _, client := range []*http.Client{f.h1, f.h2, clientOf(t, false)} {
		if r := f.do(t.Context(), client, "POST", "/v1/completions", strings.NewReader(chat("m"))); r.body != "ok" {
			t.Errorf("got %d %s %v", r.StatusCode, r.body, r.err)
		}
	}
	f.public.Listener.Close() // ends the drain delay early
	if err := receive(t, f.served); err == nil {
		t.Error("Serve returned no error for a failed listener")
	}
}

func TestServerDrainFinishesRunningAndQueuedRequests(t *testing.T) {
	g := gated(t)
	c := configured(narrow(modelOn("m", g.url)))
	c.HTTP.DrainTimeout, c.HTTP.DrainDelay = time.Minute, 10*time.Millisecond
	f := serveConfig(t, c)
	var answers []<-chan reply
	for _, client := range []*http.Client{f.h1, f.h2} {
		answers = append(answers, f.background(func() reply {
			return f.do(t.Context(), client, "POST", "/v1/completions", strings.NewReader(chat("m")))
		}))
	}
	receive(t, g.arrived)
	f.waiting("m", 1)
	f.drain()
	f.eventually("the listener is closed", func() bool {
		conn, err := net.Dial("tcp", f.Address())
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	if resp, err := http.Get("http://" + f.AdminAddress() + "/metrics"); err != nil {
		t.Errorf("no metrics during the drain: %v", err)
	} else {
		resp.Body.Close()
	}
	g.open <- struct{}{}
	g.open <- struct{}{}
	for _, answer := range answers {
		if r := receive(t, answer); r.body != "ok" || r.err != nil {
			t.Errorf("got %d %s %v", r.StatusCode, r.body, r.err)
		}
	}
	if err := receive(t, f.served); err != nil {
		t.Errorf("Serve: %v", err)
	}
	if log := f.log.take(); strings.Contains(log, "level=WARN") {
		t.Errorf("logged:\n%s", log)
	}
}

func TestServerDrainTimeoutAbortsRemainingRequests(t *testing.T) {
	left := make(chan struct{}, 10)
	c := configured(modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {}\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		left <- struct{}{}
	})))
	c.HTTP.DrainTimeout = 10 * time.Millisecond
	f := serveConfig(t, c)
	streams := []stream{f.stream(t.Context(), f.h1), f.stream(t.Context(), f.h2)}
	f.drain()
	if err := receive(t, f.served); err != nil {
		t.Errorf("Serve: %v", err)
	}
	if log := f.log.take(); !strings.Contains(log, "drain timeout") {
		t.Errorf("logged only:\n%s", log)
	}
	f.Close()
	for _, s := range streams {
		if text, err := io.ReadAll(s); err == nil {
			t.Errorf("a client took %q for a complete response", text)
		}
		receive(t, left)
	}
}

func TestServerCloseEndsRequestsInEveryPhase(t *testing.T) {
	g := gated(t)
	f := serve(t, narrow(modelOn("m", g.url)))
	var answers []<-chan reply
	for _, client := range []*http.Client{f.h1, f.h2} {
		for range 2 {
			answers = append(answers, f.background(func() reply {
				return f.do(t.Context(), client, "POST", "/v1/completions", strings.NewReader(chat("m")))
			}))
		}
	}
	f.raw("POST /v1/completions HTTP/1.1\r\nHost: berth\r\nContent-Length: 100\r\n\r\n{")
	receive(t, g.arrived)
	f.waiting("m", 3)
	f.drain()
	receive(t, f.served)
	f.Close()
	for _, answer := range answers {
		if r := receive(t, answer); r.err == nil {
			t.Errorf("got %d %s", r.StatusCode, r.body)
		}
	}
}

func TestServerFailedNewLeaksNothing(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	public, admin, models := configured(), configured(), configured(simulatedModel("s", 2), modelOn("m", "nowhere"))
	public.HTTP.Address = taken.Addr().String()
	admin.Admin.Address = taken.Addr().String()
	if _, err := New(public, log); err == nil || !strings.Contains(err.Error(), public.HTTP.Address) {
		t.Errorf("with the public address taken: %v", err)
	}
	if _, err := New(admin, log); err == nil || !strings.Contains(err.Error(), admin.Admin.Address) {
		t.Errorf("with the admin address taken: %v", err)
	}
	if _, err := New(models, log); err == nil {
		t.Error("a model with an invalid replica was accepted")
	}
}

func TestServerWithoutAdminListener(t *testing.T) {
	c := configured(modelOn("m", upstream(t, ok)))
	c.Admin.Address = ""
	f := serveConfig(t, c)
	if r := f.chat("m"); r.body != "ok" || f.AdminAddress() != "" {
		t.Errorf("got %d %s, admin listener at %q", r.StatusCode, r.body, f.AdminAddress())
	}
}

func (f *front) admin(path string) reply {
	f.t.Helper()
	resp, err := f.h1.Get("http://" + f.AdminAddress() + path)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return reply{resp, string(text), err}
}

func TestAdminListsEveryLiveSlot(t *testing.T) {
	g := gated(t)
	f := serve(t, modelOn("m", g.url), modelOn("n", refusing(1)))
	if r := f.admin("/internal/slots"); r.body != `{"slots":[],"waiting":[],"waiting_omitted":0}`+"\n" {
		t.Errorf("an idle server lists %s", r.body)
	}
	sel, err := f.model("n").router.Choose(t.Context(), payloadOf("held"))
	if err != nil {
		t.Fatal(err)
	}
	defer sel.Release()
	answer := f.background(func() reply {
		return f.post("/v1/completions", chat("m"), "X-Request-Id", "sent")
	})
	receive(t, g.arrived)
	var got struct{ Slots []liveSlot }
	r := f.admin("/internal/slots")
	if err := json.Unmarshal([]byte(r.body), &got); err != nil || len(got.Slots) != 2 {
		t.Fatalf("%v in %s", err, r.body)
	}
	for i, want := range []liveSlot{{"n", "a", "reserved", 0, "held"}, {"m", "a", "running", 0, "sent"}} {
		slot := got.Slots[i]
		if slot.AgeS <= 0 || slot.AgeS > 60 {
			t.Errorf("the age of %+v is wrong", slot)
		}
		if slot.AgeS = 0; slot != want {
			t.Errorf("listed %+v, want %+v", slot, want)
		}
	}
	g.open <- struct{}{}
	receive(t, answer)
}

func TestAdminServesMetricsAndProfiles(t *testing.T) {
	f := serve(t, modelOn("m", refusing(1)))
	for path, want := range map[string]string{
		"/metrics":                       "berth_slots",
		"/debug/pprof/":                  "goroutine",
		"/debug/pprof/goroutine?debug=1": "goroutine profile",
		"/debug/pprof/cmdline":           "ingress",
		"/debug/pprof/symbol":            "num_symbols",
		"/internal/slots":                `"slots"`,
		"/internal/replicas":             `"replicas"`,
		"/internal/decisions":            `"decisions"`,
	} {
		if r := f.admin(path); r.StatusCode != 200 || !strings.Contains(r.body, want) {
			t.Errorf("%s: %d %.100s", path, r.StatusCode, r.body)
		}
		if path == "/metrics" {
			continue
		}
		for _, r := range []reply{f.get(path), f.get("/v1" + path), f.post(path, chat("m"))} {
			if r.StatusCode != 404 {
				t.Errorf("clients get %s: %d", r.Request.URL, r.StatusCode)
			}
		}
	}
}
