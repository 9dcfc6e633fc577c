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

// lease is the lifetime of an unused reservation, and timingMargin the tolerance for a busy
// machine.
const (
	lease        = 3 * time.Second
	timingMargin = 20 * time.Second
)

// agentProcess is a `berth llmserver` process. A restart replaces the process and keeps the
// address.
type agentProcess struct {
	*berth
	engine string
	limit  int
	flags  []string // further ones
}

var agentLine = regexp.MustCompile(`(?m)^berth llmserver (http://\S+), `)

// startAgent starts an agent in front of an engine, with limit slots.
func startAgent(t *testing.T, engine string, limit int, flags ...string) *agentProcess {
	t.Helper()
	a := &agentProcess{engine: engine, limit: limit, flags: flags}
	a.start(t, "127.0.0.1:0")
	return a
}

// start starts a process at the given address. It retries, because a released port may be in use by
// another connection for a moment. Cleanup checks that all slots are released.
func (a *agentProcess) start(t *testing.T, address string) {
	t.Helper()
	eventually(t, "the agent listens", func() bool {
		args := append([]string{"llmserver", "--engine", a.engine, "--address", address, "--max-ongoing-requests", strconv.Itoa(a.limit)}, a.flags...)
		c := startBerth(t, "", args...)
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

// restart ends the process with a signal and starts another at the same address.
func (a *agentProcess) restart(t *testing.T, s syscall.Signal) {
	t.Helper()
	a.signal(t, s)
	if status := a.waitExit(t); s == syscall.SIGTERM && status != 0 {
		t.Errorf("a drained agent exited with status %d, want 0", status)
	}
	a.checkLog(t)
	a.start(t, a.address())
}

// address returns the agent's host:port.
func (a *agentProcess) address() string { return strings.TrimPrefix(a.url, "http://") }

// slotCounts are the counts of GET /internal/slots.
type slotCounts struct{ Reserved, Running int }

// slots returns the agent's slot counts.
func (a *agentProcess) slots(t *testing.T) (r slotCounts) {
	t.Helper()
	page := a.getPage(t, a.url+"/internal/slots")
	if page.status != http.StatusOK || json.Unmarshal(page.body, &r) != nil {
		t.Fatalf("/internal/slots: %v", page)
	}
	return r
}

// checkIdleAndStop checks that all slots are released and accounted for, then stops the agent and
// checks its exit status and log.
func (a *agentProcess) checkIdleAndStop(t *testing.T) {
	if t.Failed() {
		return // Cleanup of the command kills the process and logs its output
	}
	eventually(t, "the agent's slots are released", func() bool { return a.slots(t) == slotCounts{} })
	a.checkAccounting(t)
	a.signal(t, syscall.SIGTERM)
	if status := a.waitExit(t); status != 0 {
		t.Errorf("the agent exited with status %d, want 0", status)
	}
	a.checkLog(t)
}

// checkAccounting checks that the agent's counters of reservations, releases and requests are
// consistent, and that the agent never exceeded its limit.
func (a *agentProcess) checkAccounting(t *testing.T) {
	t.Helper()
	if highest := a.sumMetric(t, "berth_agent_slots_max"); highest > float64(a.limit) {
		t.Errorf("the agent had up to %v slots in use, limit %d", highest, a.limit)
	}
	released := func(cause string) float64 { return a.sumMetric(t, "berth_agent_releases_total", `cause="`+cause+`"`) }
	reserved := a.sumMetric(t, "berth_agent_reservations_total", `outcome="accepted"`)
	if ended := released("consumed") + released("released") + released("expired"); reserved != ended {
		t.Errorf("%v reservations accepted, %v ended", reserved, ended)
	}
	if admitted := released("consumed") + a.sumMetric(t, "berth_agent_unreserved_total"); admitted != released("finished") {
		t.Errorf("%v requests admitted, %v finished", admitted, released("finished"))
	}
}

// agentConfig returns a configuration with the model demo on replicas with slot_authority replica.
func agentConfig(deployment string, urls ...string) string {
	var list []string
	for _, url := range urls {
		list = append(list, `{url: "`+url+`"}`)
	}
	return loopbackConfig + "llm_configs:\n- model_loading_config: {model_id: demo}\n  slot_authority: replica\n  deployment_config: {" +
		deployment + "}\n  replicas: [" + strings.Join(list, ", ") + "]\n"
}
