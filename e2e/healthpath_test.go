package e2e

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// engineWithPing starts an engine whose health check is /ping?full=1. Any other path fails, as
// those of engines do which work for a GET of /health.
func engineWithPing(t *testing.T) (url string) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.RequestURI != "/ping?full=1" {
			http.Error(w, "not a health check", http.StatusInternalServerError)
		}
	}))
	t.Cleanup(engine.Close)
	return engine.URL
}

// A replica is up if its own path, or that of its model, is healthy. With an agent the agent's flag
// decides.
func TestHealthCheckPathDecidesWhetherAReplicaIsUp(t *testing.T) {
	t.Parallel()
	agent := startAgent(t, engineWithPing(t), 1, "--health-check-path", "/ping?full=1")
	b := serve(t, loopbackConfig+`llm_configs:
- model_loading_config: {model_id: model}
  deployment_config: {health_check_path: "/ping?full=1", health_check_period_s: 0.05}
  replicas: [{id: inherits, url: "`+engineWithPing(t)+`"}, {id: differs, url: "`+engineWithPing(t)+`", health_check_path: /health}]
- model_loading_config: {model_id: replica}
  deployment_config: {health_check_period_s: 0.05}
  replicas: [{id: own, url: "`+engineWithPing(t)+`", health_check_path: "/ping?full=1"}, {id: default, url: "`+engineWithPing(t)+`"}]
- model_loading_config: {model_id: agent}
  slot_authority: replica
  deployment_config: {health_check_period_s: 0.05}
  replicas: [{url: "`+agent.url+`"}]
`)
	eventually(t, "the replicas with the wrong path are down", func() bool {
		return b.sumMetric(t, "berth_replica_up", `replica="differs"`)+b.sumMetric(t, "berth_replica_up", `replica="default"`) == 0
	})
	if up := b.sumMetric(t, "berth_replica_up"); up != 3 {
		t.Errorf("%v replicas are up, want 3", up)
	}
}
