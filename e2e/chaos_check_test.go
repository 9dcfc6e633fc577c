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
	// minShare is the part of the requests to reachable ingresses for models that are served, from
	// clients that stay, which must be answered whole however bad the times are.
	minShare = 0.4
	// A process at rest may have a few more goroutines and files open than when it was started: those
	// of the next health check, of the connections of checks that are a few seconds old, of a scrape.
	goroutineMargin, descriptorMargin = 12, 8
	// restTimeout is how long idle connections may take to be closed.
	baselineTimeout = 45 * time.Second
	// calmTimeout is how long slots may be held after the last client has gone: reservations of an
	// ingress that was killed are held for a lease.
	releaseTimeout = lease + timingMargin
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
func (c *chaos) checkAttempt(a *attempt) {
	c.counts.add("requests")
	r, timeout := a.response, net.Error(nil)
	switch {
	case a.took >= clientDeadline || errors.As(r.err, &timeout) && timeout.Timeout() && a.disconnect == stays:
		c.findings.add("a request did not end within its deadline", "%v", a)
	case a.unreachable:
		c.counts.add("unreachable")
	case errors.Is(r.err, errStale):
		c.counts.add("raced with the close of a kept connection")
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
			c.counts.add("broken")
		} else {
			c.counts.add("left (" + string(a.disconnect) + ")")
		}
		if r.status == http.StatusOK && !a.isPrefix() {
			c.findings.add("a response that broke off is not the beginning of the right one", "%v", a)
		}
	}
}

// begins reports whether the body is the beginning of the right one, but for an error event.
func (a *attempt) isPrefix() bool {
	got := a.response.body
	if i := bytes.LastIndex(got, []byte("data: {\"error\"")); i >= 0 {
		got = got[:i]
	}
	return bytes.HasPrefix(a.normalized(a.want), a.normalized(got))
}

// judgeWrong tells a response that was cut from one that is somebody else's. HTTP/1.0 has no end of a
// stream but that of the connection, and the kernel ends those of a killed process as it would
// end any: there is nobody left who could say that the response is not whole.
func (c *chaos) checkMismatch(a *attempt) {
	switch {
	case a.isPrefix() && a.protocol == rawHTTP10 && a.gateway.kills.Load() != a.kills:
		c.counts.add("cut over HTTP/1.0 by the kill of the ingress")
	case a.isPrefix():
		c.findings.add("a truncated response looked complete ("+string(a.protocol)+", client "+string(a.disconnect)+")", "%v", a)
	default:
		c.findings.add("a response looked complete and is not the right one", "%v", a)
	}
}

func (c *chaos) checkRefusal(a *attempt) {
	code := fmt.Sprint(a.response.status, " ", a.response.errorCode())
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
			c.findings.add("an engine got more requests than its capacity"+overCapacityKind(line), "%s: %s", p.unit.name, line)
		case strings.Contains(line, "configuration reload failed") && !strings.Contains(line, "no_such_key"):
			c.findings.add("a valid configuration was refused", "%s: %s", p.unit.name, line)
		}
	}
}

// overKind tells why there were too many requests.
func overCapacityKind(line string) string {
	var total, ending, allowed int
	fmt.Sscanf(line, overCapacity+"%d requests at once, %d of them ending, %d allowed", &total, &ending, &allowed)
	if total-ending <= allowed {
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
		cs.running.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(clientDeadline + timingMargin):
		t.Fatal("clients still wait for a response after their deadline")
	}
}

// summarize logs what happened, and checks that it was chaos and that clients were served in it.
func (c *chaos) summarize(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(c.counts.n)) {
		t.Logf("%6d %s", c.counts.n[name], name)
	}
	slices.Sort(c.times)
	complete, failures := len(c.times), c.counts.get("broken")
	for name, n := range c.counts.n {
		if strings.HasPrefix(name, "refused: ") && !strings.Contains(name, "model_") {
			failures += n
		}
	}
	if complete == 0 {
		t.Fatal("no request was served")
	}
	share := float64(complete) / float64(complete+failures)
	t.Logf("the longest lull took %v", c.longestQuiesce.Round(time.Millisecond))
	t.Logf("%.1f %% were served whole; p50 %v, p99 %v, longest %v", 100*share, c.times[complete/2].Round(time.Millisecond),
		c.times[complete*99/100].Round(time.Millisecond), c.times[complete-1].Round(time.Millisecond))
	if share < minShare {
		t.Errorf("only %.0f %% of the requests were served whole, want %.0f %%", 100*share, 100*minShare)
	}
	for _, name := range []string{"reloads", "stopped engine", "left (leaves)", "broken"} {
		if c.counts.get(name) == 0 {
			t.Errorf("it was no chaos: nothing is counted as %q", name)
		}
	}
}
