package e2e

import (
	"strings"
	"syscall"
	"testing"
)

func TestRollingRestartOfAgentsIsSeenByNoClient(t *testing.T) {
	t.Parallel()
	const slots, clients = 8, 16
	fleet := witnesses(t, 3)
	var agents []*agentProcess
	var urls []string
	for _, w := range fleet {
		a := guard(t, w.url, slots)
		agents, urls = append(agents, a), append(urls, a.url)
	}
	b := serve(t, sharing("health_check_period_s: 1", urls...))
	l := underLoad(t, b, clients)
	for _, a := range agents {
		l.more(t, 4*clients)
		a.restart(t, syscall.SIGTERM)
		eventually(t, "the agent is used again", func() bool {
			return b.sum(t, "berth_replica_up", `replica="`+a.address()+`"`) == 1 && a.sum(t, "berth_agent_releases_total", `cause="finished"`) > 0
		})
	}
	l.more(t, 4*clients)
	l.stop()
	for i, w := range fleet {
		if did := w.Stats(); did.Aborted != 0 || w.most() > slots {
			t.Errorf("engine %d aborted %d requests, and had up to %d at once on %d slots", i, did.Aborted, w.most(), slots)
		}
	}
	if restarted := strings.Count(b.log.String(), "the replica has restarted"); restarted != len(agents) {
		t.Errorf("berth saw %d of %d restarts", restarted, len(agents))
	}
}
