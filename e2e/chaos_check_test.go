package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	// minShare is the minimum share of complete responses among the requests of clients that do not
	// disconnect, to reachable ingresses and for models that are served.
	minShare = 0.4
	// An idle process may have a few more goroutines and open files than after its start, for
	// health checks, their connections, and scrapes.
	goroutineMargin, descriptorMargin = 12, 8
	// baselineTimeout bounds the time until idle connections are closed.
	baselineTimeout = 45 * time.Second
	// releaseTimeout bounds the time until all slots are released after the last request.
	// Reservations of a killed ingress expire with their lease.
	releaseTimeout = lease + timingMargin
)

// refusals are the allowed errors, by status and code.
var refusals = map[string]bool{
	"429 overloaded":               true,
	"429 queue_full":               true,
	"502 upstream_broken":          true,
	"503 no_replica_available":     true,
	"503 queue_timeout":            true,
	"504 upstream_connect_timeout": true,
	"504 upstream_timeout":         true,
}

// guestRefusals are additionally allowed for guest and spare models. These models are added and
// removed, have one replica, and may have their slots counted by the ingress although an agent
// counts them too, so that clients may get the agent's refusals.
var guestRefusals = map[string]bool{
	"404 model_not_found": true,
	"503 model_removed":   true,
	"429 slots_full":      true,
	"503 draining":        true,
	"503 engine_down":     true,
}

// internals matches internal error texts that must not reach clients.
var internals = regexp.MustCompile(`context deadline|context canceled|dial tcp|read tcp|goroutine|EOF`)

// checkAttempt checks a client's result: a response that looks complete has the expected body, a
// truncated one is a prefix of the expected body, and a refusal is an allowed one.
func (c *chaos) checkAttempt(a *attempt) {
	c.counts.add("requests")
	r, timeout := a.response, net.Error(nil)
	switch {
	case a.took >= clientDeadline || errors.As(r.err, &timeout) && timeout.Timeout() && a.disconnect == stays:
		c.findings.add("a request did not end within its deadline", "%v", a)
	case a.unreachable:
		c.counts.add("unreachable")
	case errors.Is(r.err, errStale):
		c.counts.add("raced with the close of a reused connection")
	case r.err == nil && r.status == http.StatusOK:
		if !bytes.Equal(a.normalized(r.body), a.normalized(a.want)) {
			c.checkMismatch(a)
			return
		}
		c.counts.add("complete")
		c.mu.Lock()
		c.times = append(c.times, a.took)
		c.mu.Unlock()
	case r.err == nil:
		c.checkRefusal(a)
	default:
		if a.disconnect == stays {
			c.counts.add("truncated")
		} else {
			c.counts.add("disconnected (" + string(a.disconnect) + ")")
		}
		if r.status == http.StatusOK && !a.isPrefix() {
			c.findings.add("a truncated response is not a prefix of the expected one", "%v", a)
		}
	}
}

// isPrefix reports whether the received body, without an error event, is a prefix of the expected
// one.
func (a *attempt) isPrefix() bool {
	got := a.response.body
	if i := bytes.LastIndex(got, []byte("data: {\"error\"")); i >= 0 {
		got = got[:i]
	}
	return bytes.HasPrefix(a.normalized(a.want), a.normalized(got))
}

// checkMismatch distinguishes a truncated response from a different one. An HTTP/1.0 stream ends
// with the connection, and the kernel closes the connections of a killed process normally, so
// truncation by a kill of the ingress is allowed there.
func (c *chaos) checkMismatch(a *attempt) {
	switch {
	case a.isPrefix() && a.protocol == rawHTTP10 && a.gateway.kills.Load() != a.kills:
		c.counts.add("truncated over HTTP/1.0 by the kill of the ingress")
	case a.isPrefix():
		c.findings.add("a truncated response looked complete ("+string(a.protocol)+", client "+string(a.disconnect)+")", "%v", a)
	default:
		c.findings.add("a response looked complete and differs from the expected one", "%v", a)
	}
}

// checkRefusal checks that a refusal is allowed for the model and contains no internal error text.
func (c *chaos) checkRefusal(a *attempt) {
	code := fmt.Sprint(a.response.status, " ", a.response.errorCode())
	c.counts.add("refused: " + code + ", model " + a.model)
	removable := a.model == guestModel || a.model == spareModel
	if !refusals[code] && !(removable && guestRefusals[code]) {
		c.findings.add("an unexpected refusal: "+code, "%v", a)
	}
	if word := internals.Find(a.response.body); word != nil {
		c.findings.add(fmt.Sprintf("a refusal with internal error text: %q", word), "%v", a)
	}
}

// audit checks the log of a process after its end.
func (c *chaos) audit(p *instance) {
	text := p.text()
	for _, pattern := range []string{"DATA RACE", "panic", "BUG: ", "fatal error"} {
		if i := strings.Index(text, pattern); i >= 0 {
			c.findings.add("a process logged "+pattern, "%s: %.3000s", p.unit.name, text[i:])
			break
		}
	}
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, overCapacity):
			c.findings.add("an engine got more requests than its capacity"+overCapacityKind(line), "%s: %s", p.unit.name, line)
		case strings.Contains(line, "configuration reload failed") && !strings.Contains(line, "no_such_key"):
			c.findings.add("a valid configuration was refused", "%s: %s", p.unit.name, line)
		}
	}
}

// overCapacityKind returns a description of an over-capacity report: whether active requests alone
// exceeded the capacity, or only together with ending ones.
func overCapacityKind(line string) string {
	var total, ending, allowed int
	fmt.Sscanf(line, overCapacity+"%d requests at once, %d of them ending, %d allowed", &total, &ending, &allowed)
	if total-ending <= allowed {
		return ", including ending requests"
	}
	return ", without ending requests"
}

// stop prevents new requests and waits for the last response.
func (cs *chaosClients) stop(t *testing.T) {
	cs.stopped.Store(true)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cs.running.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(clientDeadline + timingMargin):
		t.Fatal("clients still wait for a response after their deadline")
	}
}

// summarize logs the counters, and checks that faults were injected and that enough requests were
// served.
func (c *chaos) summarize(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(c.counts.n)) {
		t.Logf("%6d %s", c.counts.n[name], name)
	}
	slices.Sort(c.times)
	complete, failures := len(c.times), c.counts.get("truncated")
	for name, n := range c.counts.n {
		if strings.HasPrefix(name, "refused: ") && !strings.Contains(name, "model_") {
			failures += n
		}
	}
	if complete == 0 {
		t.Fatal("no request was served")
	}
	share := float64(complete) / float64(complete+failures)
	t.Logf("the longest quiesce took %v", c.longestQuiesce.Round(time.Millisecond))
	t.Logf("%.1f %% of the responses were complete; p50 %v, p99 %v, longest %v", 100*share, c.times[complete/2].Round(time.Millisecond),
		c.times[complete*99/100].Round(time.Millisecond), c.times[complete-1].Round(time.Millisecond))
	if share < minShare {
		t.Errorf("%.0f %% of the responses were complete, want at least %.0f %%", 100*share, 100*minShare)
	}
	for _, name := range []string{"reloads", "stopped engine", "disconnected (closes)", "truncated"} {
		if c.counts.get(name) == 0 {
			t.Errorf("nothing was counted as %q", name)
		}
	}
}
