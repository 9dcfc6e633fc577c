package e2e

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// lease is how long a reservation stands that nobody uses, and margin what a busy machine may add to it.
const (
	lease        = 3 * time.Second
	timingMargin = 20 * time.Second
)

// agentProcess is a running `berth llmserver`, whose own pages tell what those of an ingress do. One that was restarted is
// another process at the same address.
type agentProcess struct {
	*berth
	engine string
	limit  int
}

var agentLine = regexp.MustCompile(`(?m)^berth llmserver (http://\S+), `)

// guard starts an agent in front of an engine.
func startAgent(t *testing.T, engine string, limit int) *agentProcess {
	t.Helper()
	a := &agentProcess{engine: engine, limit: limit}
	a.start(t, "127.0.0.1:0")
	return a
}

// start starts a process at an address; a port that was given back a moment ago may be in use by another connection. When
// the test is over, the process must come to rest.
func (a *agentProcess) start(t *testing.T, address string) {
	t.Helper()
	eventually(t, "the agent listens", func() bool {
		c := startBerth(t, "", "llmserver", "--engine", a.engine, "--address", address, "--max-ongoing-requests", strconv.Itoa(a.limit))
		for ended := false; ; {
			if match := agentLine.FindStringSubmatch(c.stdout.String()); match != nil {
				a.berth = &berth{command: c, url: match[1], admin: match[1]}
				return true
			}
			if ended {
				return false
			}
			select {
			case <-c.done:
				ended = true
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	started := a.berth
	t.Cleanup(func() {
		if a.berth == started {
			a.checkIdleAndStop(t)
		}
	})
}

// restart ends the process by a signal and starts another at its address.
func (a *agentProcess) restart(t *testing.T, s syscall.Signal) {
	t.Helper()
	a.signal(t, s)
	if status := a.waitExit(t); s == syscall.SIGTERM && status != 0 {
		t.Errorf("an agent that was to stop ended with status %d, want 0", status)
	}
	a.checkLog(t)
	a.start(t, a.address())
}

// address is the agent's host and port.
func (a *agentProcess) address() string { return strings.TrimPrefix(a.url, "http://") }

// reading is what an agent tells of its slots.
type slotCounts struct{ Reserved, Running int }

// slots reads the agent's slots.
func (a *agentProcess) slots(t *testing.T) (r slotCounts) {
	t.Helper()
	page := a.getPage(t, a.url+"/internal/slots")
	if page.status != http.StatusOK || json.Unmarshal(page.body, &r) != nil {
		t.Fatalf("/internal/slots: %v", page)
	}
	return r
}

// rest sees that no slot is held, none was ever too many, and each is accounted for; and has the agent end.
func (a *agentProcess) checkIdleAndStop(t *testing.T) {
	if t.Failed() {
		return // it is killed, and its log shown
	}
	eventually(t, "the agent's slots are given back", func() bool { return a.slots(t) == slotCounts{} })
	a.checkAccounting(t)
	a.signal(t, syscall.SIGTERM)
	if status := a.waitExit(t); status != 0 {
		t.Errorf("the agent ended with status %d, want 0", status)
	}
	a.checkLog(t)
}

// balanced checks the agent's own accounts.
func (a *agentProcess) checkAccounting(t *testing.T) {
	t.Helper()
	if highest := a.sumMetric(t, "berth_agent_slots_highest"); highest > float64(a.limit) {
		t.Errorf("the agent let %v in at once, and has %d slots", highest, a.limit)
	}
	released := func(cause string) float64 { return a.sumMetric(t, "berth_agent_releases_total", `cause="`+cause+`"`) }
	reserved := a.sumMetric(t, "berth_agent_reservations_total", `outcome="accepted"`)
	if ended := released("consumed") + released("released") + released("expired"); reserved != ended {
		t.Errorf("%v slots were reserved, and %v reservations ended", reserved, ended)
	}
	if admitted := released("consumed") + a.sumMetric(t, "berth_agent_unreserved_total"); admitted != released("finished") {
		t.Errorf("%v requests were let in, and %v finished", admitted, released("finished"))
	}
}

// sharing is the configuration of the model demo on replicas that count their own slots.
func agentConfig(deployment string, urls ...string) string {
	var list []string
	for _, url := range urls {
		list = append(list, `{url: "`+url+`"}`)
	}
	return loopbackConfig + "llm_configs:\n- model_loading_config: {model_id: demo}\n  slot_authority: replica\n  deployment_config: {" +
		deployment + "}\n  replicas: [" + strings.Join(list, ", ") + "]\n"
}
