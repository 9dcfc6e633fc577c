package ingress

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"berth/routers"
)

func payloadOf(id string) *routers.Payload { return &routers.Payload{RequestID: id} }

func TestMetricsOfFinishedRequests(t *testing.T) {
	g := gated(t)
	f := serve(t, narrow(modelOn("m", g.url)), modelOn("other", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(418)
	})))
	f.post("/v1/completions", chat("other"))
	first := f.background(func() reply { return f.chat("m") })
	receive(t, g.arrived)
	second := f.background(func() reply { return f.chat("m") })
	f.waiting("m", 1)
	for series, want := range map[string]float64{
		`berth_slots{model="m",replica="a",state="running"}`:  1,
		`berth_slots{model="m",replica="a",state="reserved"}`: 0,
		`berth_slots_capacity{model="m",replica="a"}`:         1,
		`berth_slots_capacity{model="other",replica="a"}`:     2,
		`berth_replica_up{model="m",replica="a"}`:             1,
		`berth_queue_length{model="m"}`:                       1,
		`berth_queue_length{model="other"}`:                   0,
		`berth_config_last_reload_successful`:                 1,
	} {
		if got := f.metric(series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
	if held := f.metric("berth_buffered_bytes"); held <= 0 {
		t.Errorf("%v bytes are held", held)
	}
	g.open <- struct{}{}
	g.open <- struct{}{}
	receive(t, first)
	receive(t, second)
	f.idle()
	f.eventually("both are counted", func() bool {
		n, _ := f.series(`berth_requests_total{model="m",route="/chat/completions",status="200"}`)
		return n == 2
	})
	for series, want := range map[string]float64{
		`berth_requests_total{model="other",route="/completions",status="418"}`: 1,
		`berth_request_duration_seconds_count{model="m"}`:                       2,
		`berth_time_to_first_byte_seconds_count{model="m"}`:                     2,
		`berth_overhead_seconds_count{model="m"}`:                               2,
		`berth_queue_wait_seconds_count{model="m"}`:                             1,
		`berth_slots{model="m",replica="a",state="running"}`:                    0,
		`berth_queue_length{model="m"}`:                                         0,
		`berth_buffered_bytes`:                                                  0,
	} {
		if got := f.metric(series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
	if sum := f.metric(`berth_overhead_seconds_sum{model="m"}`); sum <= 0 || sum >= f.metric(`berth_request_duration_seconds_sum{model="m"}`) {
		t.Errorf("the overhead is %v s", sum)
	}
	if _, ok := f.series(`berth_queue_wait_seconds_count{model="other"}`); ok {
		t.Error("a request that was not queued counts in the queue wait")
	}
}

// Clients cannot create series by making up paths.
func TestMetricsHaveAFixedSetOfRoutes(t *testing.T) {
	f := serve(t, modelOn("m", upstream(t, ok)))
	for _, path := range []string{"/v1/chat/completions", "/chat/completions", "/v1/audio/speech", "/v1/x/y/z", "/v1/responses", "/a"} {
		f.post(path, chat("m"))
	}
	for _, path := range []string{"/v1/models", "/v1/models/m", "/models/x%2Fy", "/b", "/livez", "/v1/livez"} {
		f.get(path)
	}
	scrape := f.get("/metrics").body
	routes := make(map[string]bool)
	for _, match := range regexp.MustCompile(`route="([^"]*)"`).FindAllStringSubmatch(scrape, -1) {
		routes[match[1]] = true
	}
	for route := range routes {
		if !strings.Contains(" /chat/completions /audio/speech /responses /models /models/{id} /livez /metrics other ", " "+route+" ") {
			t.Errorf("there is a route %q", route)
		}
	}
	if len(routes) != 7 {
		t.Errorf("the routes are %v", routes)
	}
	if n := f.metric(`berth_requests_total{model="m",route="/chat/completions",status="200"}`); n != 2 {
		t.Errorf("counted %v, want both with and without version", n)
	}
}
