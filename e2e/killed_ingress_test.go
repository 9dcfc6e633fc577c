package e2e

import (
	"context"
	"slices"
	"testing"
	"time"
)

func TestKilledIngressReservationsExpireWithinALease(t *testing.T) {
	t.Parallel()
	const slots = 3
	w := startCountingEngines(t, 1)[0]
	a := startAgent(t, w.url, slots)
	senderKilled := make(chan struct{})
	link := startProxy(t, listenLoopback(t), a.address(), func(l leg) bool {
		if l == legRequest { // delayed until the sender is killed, then dropped
			<-senderKilled
		}
		return l != legRequest
	})
	b := serve(t, agentConfig("", link.url()))
	client := newClient(t, false)
	var results []<-chan response
	for range slots {
		results = append(results, startChat(t.Context(), client, b.url, chatBody("demo", "Hello", 4, true)))
	}
	eventually(t, "the requests have been sent", func() bool { return link.received[legRequest].Load() == slots })
	if now := a.slots(t); now != (slotCounts{Reserved: slots}) {
		t.Errorf("the agent has %+v, want %d reserved", now, slots)
	}
	b.kill()
	killed := time.Now()
	<-b.done
	close(senderKilled)
	for _, result := range results {
		if got := waitResponse(t, result); got.err == nil {
			t.Errorf("a client of the killed ingress got %v", got)
		}
	}
	eventually(t, "the agent's slots are released", func() bool { return a.slots(t) == slotCounts{} })
	if took := time.Since(killed); took > lease+timingMargin {
		t.Errorf("the reservations were released after %v, which is longer than a lease", took)
	}
	if expired := a.sumMetric(t, "berth_agent_releases_total", `cause="expired"`); expired != slots {
		t.Errorf("%v leases expired, want %d", expired, slots)
	}
	if stats := w.Stats(); stats.Requests != 0 {
		t.Errorf("the engine received %d requests", stats.Requests)
	}
}

func TestKilledIngressLeavesNothingRunning(t *testing.T) {
	t.Parallel()
	const streams = 3
	w := startCountingEngines(t, 1)[0]
	a := startAgent(t, w.url, streams)
	b := serve(t, agentConfig("", a.url))
	client := newClient(t, false)
	for range streams {
		resp := openStream(t, context.WithoutCancel(t.Context()), client, b.url, chatBody("demo", "Count for long.", 100_000, true)) // within the engine's memory
		defer func() {
			if got := readResponse(resp); got.err == nil {
				t.Errorf("a stream looks complete: %v", got)
			}
		}()
	}
	if now := a.slots(t); now != (slotCounts{Running: streams}) {
		t.Errorf("the agent has %+v, want %d running", now, streams)
	}
	b.kill()
	eventually(t, "the agent's slots are released", func() bool { return a.slots(t) == slotCounts{} })
	eventually(t, "the engine has no active request", func() bool {
		now := w.Stats()
		return now.Aborted == streams && now.InFlight == 0
	})
}

// When an ingress is killed, its requests end and its waits at the agents are removed or served, so
// that the other ingress gets all slots.
func TestKilledIngressLeavesNoSlotBehindUnderSaturation(t *testing.T) {
	t.Parallel()
	const slots, clients = 2, 6
	fleet := startCountingEngines(t, 3)
	var agents []*agentProcess
	var urls []string
	for _, w := range fleet {
		agents = append(agents, startAgent(t, w.url, slots))
		urls = append(urls, agents[len(agents)-1].url)
	}
	victim, survivor := serve(t, agentConfig("", urls...)), serve(t, agentConfig("", urls...))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client := newClient(t, false)
	waitAll := func(condition string, ok func(*agentProcess) bool) {
		eventually(t, condition, func() bool {
			return !slices.ContainsFunc(agents, func(a *agentProcess) bool { return !ok(a) })
		})
	}
	var results []<-chan response
	add := func(b *berth, n int) {
		for range n {
			results = append(results, startChat(ctx, client, b.url, chatBody("demo", "Count for long.", 100_000, true)))
		}
	}
	for i, b := range []*berth{victim, survivor} { // an ingress with all slots of an agent does not wait there
		add(b, len(agents))
		waitAll("the ingress has a slot at every agent", func(a *agentProcess) bool { return a.slots(t) == slotCounts{Running: i + 1} })
	}
	for i, b := range []*berth{victim, survivor} {
		add(b, clients)
		waitAll("the ingress is in every queue", func(a *agentProcess) bool { return a.sumMetric(t, "berth_agent_waiting") == float64(i+1) })
	}
	victim.kill()
	killed := time.Now()
	<-victim.done
	eventually(t, "the survivor has every slot", func() bool {
		return survivor.sumMetric(t, "berth_slots", `state="running"`) == float64(slots*len(agents))
	})
	took := time.Since(killed)
	t.Logf("the survivor had every slot after %v", took)
	if limit := lease + time.Second; took > limit+2*time.Second { // tolerance for a busy machine
		t.Errorf("slots of the killed ingress were released after %v, want at most %v", took, limit)
	}
	cancel()
	for _, result := range results {
		waitResponse(t, result)
	}
	waitAll("all slots are released", func(a *agentProcess) bool { return a.slots(t) == slotCounts{} })
}
