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

// waitFor polls until check returns true. After the timeout, the state returned by check is
// reported.
func (c *chaos) waitFor(condition string, timeout time.Duration, check func() (ok bool, state string)) {
	began := time.Now()
	for {
		ok, state := check()
		if ok {
			return
		}
		if time.Since(began) > timeout {
			c.findings.add("timeout: "+condition, "after %v: %s", timeout, state)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// checkReleased checks that no slot is in use and no request queued, in any process.
func (c *chaos) checkReleased(t *testing.T) {
	began := time.Now()
	for _, g := range c.gateways {
		c.waitFor("the slots and queues of an ingress are empty", releaseTimeout, func() (bool, string) {
			_, metrics := c.page(g.admin + "/metrics")
			status, slots := c.page(g.admin + "/internal/slots")
			held := sample(metrics, "berth_slots", "") + sample(metrics, "berth_queue_length", "") + sample(metrics, "berth_buffered_bytes", "")
			return status == http.StatusOK && held == 0 && strings.TrimSpace(slots) == `{"slots":[],"waiting":[],"waiting_omitted":0}`, g.name + ": " + slots + linesWithPrefix(metrics, "berth_slots", "berth_queue_length", "berth_buffered")
		})
	}
	for _, a := range c.agents {
		base := strings.TrimSuffix(a.ready, "/livez")
		c.waitFor("the slots and the queue of an agent are empty", releaseTimeout, func() (bool, string) {
			status, metrics := c.page(base + "/metrics")
			held := sample(metrics, "berth_agent_slots", "") + sample(metrics, "berth_agent_waiting", "") + sample(metrics, "berth_agent_buffered_bytes", "")
			return status == http.StatusOK && held == 0, a.name + ":\n" + linesWithPrefix(metrics, "berth_agent")
		})
		c.checkAccounting(a, base)
	}
	for _, e := range c.engines {
		c.waitFor("an engine is idle", releaseTimeout, func() (bool, string) {
			working := c.engineState(e).Working
			return working == 0, fmt.Sprintf("%s has %d active requests", e.name, working)
		})
	}
	t.Logf("all slots and queues were empty %v after the last client", time.Since(began).Round(time.Millisecond))
}

// checkAccounting checks that an agent's counters are consistent.
func (c *chaos) checkAccounting(a *unit, base string) {
	_, metrics := c.page(base + "/metrics")
	released := func(cause string) float64 {
		return sample(metrics, "berth_agent_releases_total", `cause="`+cause+`"`)
	}
	reserved := sample(metrics, "berth_agent_reservations_total", `outcome="accepted"`)
	unreserved := sample(metrics, "berth_agent_unreserved_total", "")
	if reserved != released("consumed")+released("released")+released("expired") ||
		released("consumed")+unreserved != released("finished") ||
		sample(metrics, "berth_agent_slots_max", "") > float64(a.limit.value.Load()) {
		c.findings.add("the counters of an agent are inconsistent", "%s:\n%s", a.name, linesWithPrefix(metrics, "berth_agent"))
	}
}

// checkServing checks that each model is served by each ingress on the first request.
func (c *chaos) checkServing(t *testing.T, clients *chaosClients) {
	client := newClient(t, false)
	for _, g := range c.gateways {
		baseline := g.baselineSettings()
		g.apply(t.Context(), baseline)
		c.waitFor("a configuration is in effect", timingMargin, func() (bool, string) {
			status, body := c.page(g.url + "/v1/models/" + baseline.marker)
			return status == http.StatusOK, fmt.Sprintf("%s: /v1/models/%s is %d %s", g.name, baseline.marker, status, body)
		})
		for i, model := range slices.Concat(g.models, g.models) {
			a := &attempt{protocol: http11, url: g.url, model: model, disconnect: stays}
			clients.fill(a, "", 10, i%2 == 0)
			a.send(client)
			if a.response.status != http.StatusOK || a.response.err != nil || !bytes.Equal(a.normalized(a.response.body), a.normalized(a.want)) {
				c.findings.add("a new request was not served", "%s, model %s: %v", g.name, model, a)
			}
		}
	}
	client.CloseIdleConnections()
}

// checkResourceUsage checks that the goroutines and open files of all processes are back to the
// baseline.
func (c *chaos) checkResourceUsage(t *testing.T) {
	began := time.Now()
	for _, u := range c.units() {
		c.waitFor("the resource usage of a process is back to its baseline", baselineTimeout, func() (bool, string) {
			now := c.usage(u)
			ok := now.goroutines <= u.baseline.goroutines+goroutineMargin && now.descriptors <= u.baseline.descriptors+descriptorMargin
			return ok, fmt.Sprintf("%s: baseline %+v, now %+v", u.name, u.baseline, now)
		})
		t.Logf("%s: baseline %+v, now %+v", u.name, u.baseline, c.usage(u))
	}
	t.Logf("all processes were at the baseline after %v", time.Since(began).Round(time.Millisecond))
}

// usage returns the current usage of a unit's process.
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

// engineState returns the state of an engine. Working is -1 if the engine does not respond.
func (c *chaos) engineState(u *unit) (state engineState) {
	state.Working = -1 // unknown
	_, body := c.page(strings.TrimSuffix(u.ready, "/health") + "/chaos")
	_ = json.Unmarshal([]byte(body), &state)
	return state
}

// stopFleet ends all processes in reverse order of their start.
func (c *chaos) stopFleet(t *testing.T) {
	for _, u := range slices.Backward(c.units()) {
		u.end(syscall.SIGTERM)
	}
}

// linesWithPrefix returns the lines of a page that have one of the prefixes.
func linesWithPrefix(page string, prefixes ...string) string {
	var lines strings.Builder
	for line := range strings.Lines(page) {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) }) {
			lines.WriteString(line)
		}
	}
	return lines.String()
}
