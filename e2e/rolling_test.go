package e2e

import (
	"strings"
	"syscall"
	"testing"
)

func TestRollingRestartOfAgentsIsSeenByNoClient(t *testing.T) {
	t.Parallel()
	const slots, clients = 8, 16
	fleet := startCountingEngines(t, 3)
	var agents []*agentProcess
	var urls []string
	for _, w := range fleet {
		a := startAgent(t, w.url, slots)
		agents, urls = append(agents, a), append(urls, a.url)
	}
	b := serve(t, agentConfig("health_check_period_s: 1", urls...))
	l := startLoad(t, b, clients)
	for _, a := range agents {
		l.waitServed(t, 4*clients)
		a.restart(t, syscall.SIGTERM)
		eventually(t, "the agent serves requests again", func() bool {
			return b.sumMetric(t, "berth_replica_up", `replica="`+a.address()+`"`) == 1 && a.sumMetric(t, "berth_agent_releases_total", `cause="finished"`) > 0
		})
	}
	l.waitServed(t, 4*clients)
	l.stop()
	for i, w := range fleet {
		if stats := w.Stats(); stats.Aborted != 0 || w.maxConcurrent() > slots {
			t.Errorf("engine %d aborted %d requests and had up to %d concurrent ones on %d slots", i, stats.Aborted, w.maxConcurrent(), slots)
		}
	}
	if restarted := strings.Count(b.stderr.String(), "the replica has restarted"); restarted != len(agents) {
		t.Errorf("berth logged %d of %d restarts", restarted, len(agents))
	}
}
