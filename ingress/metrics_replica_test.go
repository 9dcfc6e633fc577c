package ingress

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"
)

func (f *front) wantMetrics(want map[string]float64) {
	f.t.Helper()
	for series, n := range want {
		f.eventually(series, func() bool {
			got, _ := f.series(series)
			return got == n
		})
	}
}

// An operator sees which replica fails, and how, also where another attempt hides it from clients.
func TestMetricsShowWhichReplicaFails(t *testing.T) {
	busy, _ := answering(t, 503, queueFull)
	failing, _ := answering(t, 500, "{}")
	gateway, _ := answering(t, 502, "")
	broken, _ := breaking(t)
	half := upstream(t, speak("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n"))
	for kind, row := range map[string]struct {
		url, status string
	}{
		"no_connection": {refusing(1), "none"},
		"broken":        {broken, "none"},
		"invalid":       {upstream(t, speak("SSH-2.0-OpenSSH\r\n\r\n")), "none"},
		"busy":          {busy, "503"},
		"status_5xx":    {failing, "500"},
		"bad gateway":   {gateway, "502"},
		"half":          {half, "200"},
	} {
		t.Run(kind, func(t *testing.T) {
			switch kind {
			case "half":
				kind = "broken"
			case "bad gateway":
				kind = "status_5xx"
			}
			f := serve(t, modelOn("m", row.url, upstream(t, ok)))
			f.turn("m")
			for range 2 {
				f.chat("m")
			}
			f.idle()
			sent := f.metric(`berth_replica_requests_total{model="m",replica="a",status="` + row.status + `"}`)
			failed := f.metric(`berth_replica_failures_total{kind="` + kind + `",model="m",replica="a"}`)
			if sent == 0 || failed != sent {
				t.Errorf("counted %v attempts with status %s and %v failures", sent, row.status, failed)
			}
			if n, ok := f.series(`berth_replica_failures_total{kind="` + kind + `",model="m",replica="b"}`); ok {
				t.Errorf("counted %v failures of the other replica", n)
			}
			if n := f.metric(`berth_replica_requests_total{model="m",replica="b",status="200"}`); n == 0 {
				t.Error("the other replica is not counted")
			}
		})
	}
}

func TestMetricsOfReplicaThatIsTooSlow(t *testing.T) {
	g := gated(t)
	m := modelOn("m", g.url)
	m.UnstreamedFirstByteTimeout = 40 * time.Millisecond
	f := serve(t, m)
	f.chat("m")
	f.wantMetrics(map[string]float64{
		`berth_replica_requests_total{model="m",replica="a",status="none"}`:  1,
		`berth_replica_failures_total{kind="timeout",model="m",replica="a"}`: 1,
	})
}

func TestMetricsOfReplicaCountTokensAndDisconnects(t *testing.T) {
	f := serve(t, modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, textChunk+textChunk)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})))
	ctx, leave := context.WithCancel(t.Context())
	f.stream(ctx, f.h1).read(len(textChunk + textChunk))
	leave()
	f.wantMetrics(map[string]float64{
		`berth_replica_requests_total{model="m",replica="a",status="200"}`:   1,
		`berth_replica_failures_total{kind="aborted",model="m",replica="a"}`: 1,
		`berth_replica_tokens_total{kind="estimated",model="m",replica="a"}`: 2,
		`berth_replica_first_byte_seconds_count{model="m",replica="a"}`:      1,
	})
}

// A request in progress on a replica that left the configuration is still counted there.
func TestMetricsOfReplicasOverReloads(t *testing.T) {
	g := gated(t)
	f := serve(t, modelOn("m", g.url, upstream(t, ok)))
	f.turn("m")
	outliving := f.background(func() reply { return f.chat("m") })
	receive(t, g.arrived)
	left, stays := `berth_replica_requests_total{model="m",replica="a",status="200"}`, `berth_replica_requests_total{model="m",replica="b",status="200"}`
	f.chat("m")
	f.wantMetrics(map[string]float64{stays: 1})
	next := modelOn("m", f.registry.table.Load().models[0].config.Replicas[1].URL)
	next.Replicas[0].ID = "b"
	held := f.registry.table.Load().models[0].replicas[0]
	f.mustApply(next)
	f.mustApply(next)
	g.open <- struct{}{}
	receive(t, outliving)
	f.idle()
	if n, exposed := f.series(left); exposed {
		t.Errorf("%v requests are exposed of a replica that has left", n)
	}
	if f.registry.table.Load().models[0].metrics.Replica(held) == nil {
		t.Error("the replica that left was not counted to its end")
	}
	f.chat("m")
	f.wantMetrics(map[string]float64{stays: 2})
}

func TestMetricsOfStoredResponsesNameTheReplica(t *testing.T) {
	_, urls := stores(t, "x")
	f := serve(t, modelOn("m", urls...))
	created := f.post("/v1/responses", `{"model":"m","input":"1"}`)
	if created.StatusCode != 200 {
		t.Fatalf("got %d %s", created.StatusCode, created.body)
	}
	f.get("/v1/responses/resp_x1")
	f.wantMetrics(map[string]float64{`berth_replica_requests_total{model="m",replica="a",status="200"}`: 2})
}
