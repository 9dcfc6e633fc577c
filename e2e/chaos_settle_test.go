package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// awaits waits for a condition and reports how the thing is instead if it does not come to hold.
func (c *chaos) awaits(what string, timeout time.Duration, holds func() (ok bool, instead string)) {
	began := time.Now()
	for {
		ok, instead := holds()
		if ok {
			return
		}
		if time.Since(began) > timeout {
			c.findings.add(what+" in vain", "after %v: %s", timeout, instead)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// isCalm checks that no slot is held and nothing queued, anywhere.
func (c *chaos) isCalm(t *testing.T) {
	began := time.Now()
	for _, g := range c.gateways {
		c.awaits("waited for the slots and queues of an ingress to be empty", calmTimeout, func() (bool, string) {
			_, metrics := c.page(g.admin + "/metrics")
			status, slots := c.page(g.admin + "/internal/slots")
			held := sample(metrics, "berth_slots", "") + sample(metrics, "berth_queue_length", "") + sample(metrics, "berth_buffered_bytes", "")
			return status == http.StatusOK && held == 0 && strings.TrimSpace(slots) == `{"slots":[]}`, g.name + ": " + slots + only(metrics, "berth_slots", "berth_queue_length", "berth_buffered")
		})
	}
	for _, a := range c.agents {
		base := strings.TrimSuffix(a.ready, "/livez")
		c.awaits("waited for the slots and the queue of an agent to be empty", calmTimeout, func() (bool, string) {
			status, metrics := c.page(base + "/metrics")
			held := sample(metrics, "berth_agent_slots", "") + sample(metrics, "berth_agent_waiting", "") + sample(metrics, "berth_agent_buffered_bytes", "")
			return status == http.StatusOK && held == 0, a.name + ":\n" + only(metrics, "berth_agent")
		})
		c.isBalanced(a, base)
	}
	for _, e := range c.engines {
		c.awaits("waited for an engine to have nothing to do", calmTimeout, func() (bool, string) {
			working := c.engineState(e).Working
			return working == 0, fmt.Sprintf("%s works on %d requests", e.name, working)
		})
	}
	t.Logf("all slots and queues were empty %v after the last client", time.Since(began).Round(time.Millisecond))
}

// isBalanced checks an agent's own accounts.
func (c *chaos) isBalanced(a *unit, base string) {
	_, metrics := c.page(base + "/metrics")
	released := func(cause string) float64 {
		return sample(metrics, "berth_agent_releases_total", `cause="`+cause+`"`)
	}
	reserved := sample(metrics, "berth_agent_reservations_total", `outcome="accepted"`)
	unreserved := sample(metrics, "berth_agent_unreserved_total", "")
	if reserved != released("consumed")+released("released")+released("expired") ||
		released("consumed")+unreserved != released("finished") ||
		sample(metrics, "berth_agent_slots_max", "") > float64(a.limit.value.Load()) {
		c.findings.add("the accounts of an agent do not add up", "%s:\n%s", a.name, only(metrics, "berth_agent"))
	}
}

// isServing checks that each model is served through each ingress, at the first try.
func (c *chaos) isServing(t *testing.T, clients *chaosClients) {
	client := newClient(t, false)
	for _, g := range c.gateways {
		rest := g.restSettings()
		g.apply(t.Context(), rest)
		c.awaits("waited for a configuration to be taken over", margin, func() (bool, string) {
			status, body := c.page(g.url + "/v1/models/" + rest.marker)
			return status == http.StatusOK, fmt.Sprintf("%s: /v1/models/%s is %d %s", g.name, rest.marker, status, body)
		})
		for i, model := range slices.Concat(g.models, g.models) {
			a := &attempt{protocol: http11, entry: g.url, model: model, leaving: stays}
			clients.fill(a, "", 10, i%2 == 0)
			a.send(client)
			if a.response.status != http.StatusOK || a.response.err != nil || !bytes.Equal(a.normalized(a.response.body), a.normalized(a.want)) {
				c.findings.add("a fresh request was not served", "%s, model %s: %v", g.name, model, a)
			}
		}
	}
	client.CloseIdleConnections()
}

// isAtRest checks that no process has more open than before the chaos.
func (c *chaos) isAtRest(t *testing.T) {
	began := time.Now()
	for _, u := range c.units() {
		c.awaits("waited for a process to close what it had opened", restTimeout, func() (bool, string) {
			now := c.usage(u)
			ok := now.goroutines <= u.rest.goroutines+goroutineMargin && now.descriptors <= u.rest.descriptors+descriptorMargin
			return ok, fmt.Sprintf("%s had %+v at its start and has %+v", u.name, u.rest, now)
		})
		t.Logf("%s: at its start %+v, now %+v", u.name, u.rest, c.usage(u))
	}
	t.Logf("all processes were at rest after %v", time.Since(began).Round(time.Millisecond))
}

func (c *chaos) usage(u *unit) usage {
	p := u.current.Load()
	if p == nil {
		return usage{}
	}
	for _, g := range c.gateways {
		if g.unit == u {
			_, metrics := c.page(g.admin + "/metrics")
			return usage{int(sample(metrics, "go_goroutines", "")), p.descriptors()}
		}
	}
	if base, ok := strings.CutSuffix(u.ready, "/livez"); ok {
		_, metrics := c.page(base + "/metrics")
		return usage{int(sample(metrics, "go_goroutines", "")), p.descriptors()}
	}
	return usage{c.engineState(u).Goroutines, p.descriptors()}
}

func (c *chaos) engineState(u *unit) (state engineState) {
	state.Working = -1 // until it says otherwise
	_, body := c.page(strings.TrimSuffix(u.ready, "/health") + "/chaos")
	_ = json.Unmarshal([]byte(body), &state)
	return state
}

// shutDown ends the fleet, clients' side first.
func (c *chaos) shutDown(t *testing.T) {
	for _, u := range slices.Backward(c.units()) {
		u.end(syscall.SIGTERM)
	}
}

// only returns the lines of a page that begin so.
func only(page string, prefixes ...string) string {
	var lines strings.Builder
	for line := range strings.Lines(page) {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) }) {
			lines.WriteString(line)
		}
	}
	return lines.String()
}
