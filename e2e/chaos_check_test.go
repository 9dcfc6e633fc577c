package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// minShare is the part of the requests to reachable ingresses for models that are served, from
	// clients that stay, which must be answered whole however bad the times are.
	minShare = 0.4
	// A process at rest may have a few more goroutines and files open than when it was started: those
	// of the next health check, of the connections of checks that are a few seconds old, of a scrape.
	goroutineMargin, descriptorMargin = 12, 8
	// restTimeout is how long idle connections may take to be closed.
	restTimeout = 45 * time.Second
	// calmTimeout is how long slots may be held after the last client has gone: reservations of an
	// ingress that was killed are held for a lease.
	calmTimeout = lease + margin
)

// refusals are the errors that a client may get, by status and code.
var refusals = map[string]bool{
	"429 queue_full":               true,
	"502 upstream_broken":          true,
	"503 no_replica_available":     true,
	"503 queue_timeout":            true,
	"504 upstream_connect_timeout": true,
	"504 upstream_timeout":         true,
}

// guestRefusals are further ones of models that come and go, have one replica, and may have their slots
// counted by the ingress although an agent counts them too: its refusals are the only response then.
var guestRefusals = map[string]bool{
	"404 model_not_found": true,
	"503 model_removed":   true,
	"429 slots_full":      true,
	"503 draining":        true,
	"503 engine_down":     true,
}

// internals are words of our own that no client should have to read.
var internals = regexp.MustCompile(`context deadline|context canceled|dial tcp|read tcp|goroutine|EOF`)

// judge checks what a client got: a response that ended as if it were whole is the right one, any
// other is the beginning of the right one, and a refusal says what it is.
func (c *chaos) judge(a *attempt) {
	c.counts.add("requests")
	r, timeout := a.response, net.Error(nil)
	switch {
	case a.took >= clientDeadline || errors.As(r.err, &timeout) && timeout.Timeout() && a.leaving == stays:
		c.findings.add("a request did not end within its deadline", "%v", a)
	case a.unreachable:
		c.counts.add("unreachable")
	case errors.Is(r.err, errStale):
		c.counts.add("raced with the close of a kept connection")
	case r.err == nil && r.status == http.StatusOK:
		if !bytes.Equal(a.normalized(r.body), a.normalized(a.want)) {
			c.judgeWrong(a)
			return
		}
		c.counts.add("complete")
		c.mu.Lock()
		c.times = append(c.times, a.took)
		c.mu.Unlock()
	case r.err == nil:
		c.judgeRefusal(a)
	default:
		if a.leaving == stays {
			c.counts.add("broken")
		} else {
			c.counts.add("left (" + string(a.leaving) + ")")
		}
		if r.status == http.StatusOK && !a.begins() {
			c.findings.add("a response that broke off is not the beginning of the right one", "%v", a)
		}
	}
}

// begins reports whether the body is the beginning of the right one, but for an error event.
func (a *attempt) begins() bool {
	got := a.response.body
	if i := bytes.LastIndex(got, []byte("data: {\"error\"")); i >= 0 {
		got = got[:i]
	}
	return bytes.HasPrefix(a.normalized(a.want), a.normalized(got))
}

// judgeWrong tells a response that was cut from one that is somebody else's. HTTP/1.0 has no end of a
// stream but that of the connection, and the kernel ends those of a killed process as it would
// end any: there is nobody left who could say that the response is not whole.
func (c *chaos) judgeWrong(a *attempt) {
	switch {
	case a.begins() && a.protocol == rawHTTP10 && a.gateway.kills.Load() != a.kills:
		c.counts.add("cut over HTTP/1.0 by the kill of the ingress")
	case a.begins():
		c.findings.add("a truncated response looked complete ("+string(a.protocol)+", client "+string(a.leaving)+")", "%v", a)
	default:
		c.findings.add("a response looked complete and is not the right one", "%v", a)
	}
}

func (c *chaos) judgeRefusal(a *attempt) {
	code := fmt.Sprint(a.response.status, " ", a.response.problem())
	c.counts.add("refused: " + code + ", model " + a.model)
	comesAndGoes := a.model == guestModel || a.model == spareModel
	if !refusals[code] && !(comesAndGoes && guestRefusals[code]) {
		c.findings.add("a refusal for no good reason: "+code, "%v", a)
	}
	if word := internals.Find(a.response.body); word != nil {
		c.findings.add(fmt.Sprintf("a refusal with internals in its text: %q", word), "%v", a)
	}
}

// audit reads what a process has written when it is over.
func (c *chaos) audit(p *instance) {
	text := p.text()
	for _, mistake := range []string{"DATA RACE", "panic", "BUG: ", "fatal error"} {
		if i := strings.Index(text, mistake); i >= 0 {
			c.findings.add("a process logged "+mistake, "%s: %.3000s", p.unit.name, text[i:])
			break
		}
	}
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, overCapacity):
			c.findings.add("an engine got more requests than its capacity"+overKind(line), "%s: %s", p.unit.name, line)
		case strings.Contains(line, "the configuration stays as it was") && !strings.Contains(line, "no_such_key"):
			c.findings.add("a valid configuration was refused", "%s: %s", p.unit.name, line)
		}
	}
}

// overKind tells why there were too many requests.
func overKind(line string) string {
	var working, ending, allowed int
	fmt.Sscanf(line, overCapacity+"%d requests at once, %d of them ending, %d allowed", &working, &ending, &allowed)
	if working-ending <= allowed {
		return ", counting those that it had not let go of"
	}
	return ", counting none that was ending"
}

// stop has the clients ask no more and waits until the last has its response.
func (cs *chaosClients) stop(t *testing.T) {
	cs.stopped.Store(true)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cs.asking.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(clientDeadline + margin):
		t.Fatal("clients still wait for a response after their deadline")
	}
}

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
			return status == http.StatusOK && held == 0 && strings.TrimSpace(slots) == `{"slots":[]}`, g.name + ": " + slots + only(metrics, "berth_slots", "berth_queue", "berth_buffered")
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
		sample(metrics, "berth_agent_slots_highest", "") > float64(a.limit.value.Load()) {
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

// summarize logs what happened, and checks that it was chaos and that clients were served in it.
func (c *chaos) summarize(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(c.counts.n)) {
		t.Logf("%6d %s", c.counts.n[name], name)
	}
	slices.Sort(c.times)
	complete, failed := len(c.times), c.counts.of("broken")
	for name, n := range c.counts.n {
		if strings.HasPrefix(name, "refused: ") && !strings.Contains(name, "model_") {
			failed += n
		}
	}
	if complete == 0 {
		t.Fatal("no request was served")
	}
	share := float64(complete) / float64(complete+failed)
	t.Logf("the longest lull took %v", c.longestLull.Round(time.Millisecond))
	t.Logf("%.1f %% were served whole; p50 %v, p99 %v, longest %v", 100*share, c.times[complete/2].Round(time.Millisecond),
		c.times[complete*99/100].Round(time.Millisecond), c.times[complete-1].Round(time.Millisecond))
	if share < minShare {
		t.Errorf("only %.0f %% of the requests were served whole, want %.0f %%", 100*share, 100*minShare)
	}
	for _, name := range []string{"reloads", "stopped engine", "left (leaves)", "broken"} {
		if c.counts.of(name) == 0 {
			t.Errorf("it was no chaos: nothing is counted as %q", name)
		}
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
