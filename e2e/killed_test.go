package e2e

import (
	"context"
	"testing"
	"time"
)

func TestReservationsOfAKilledIngressAreGoneWithinALease(t *testing.T) {
	t.Parallel()
	const held = 3
	w := witnesses(t, 1)[0]
	a := guard(t, w.url, held)
	dead := make(chan struct{})
	link := between(t, anyPort(t), a.address(), func(l leg) bool {
		if l == request { // it is on its way until its sender is dead, and then never comes
			<-dead
		}
		return l != request
	})
	b := serve(t, sharing("", link.url()))
	client := newClient(t, false)
	var results []<-chan answer
	for range held {
		results = append(results, begin(t.Context(), client, b.url, ask("demo", "Hello", 4, true)))
	}
	eventually(t, "the requests are on their way", func() bool { return link.seen[request].Load() == held })
	if now := a.slots(t); now != (reading{Reserved: held}) {
		t.Errorf("the agent holds %+v, want %d reserved", now, held)
	}
	b.kill()
	over := time.Now()
	<-b.done
	close(dead)
	for _, result := range results {
		if got := expect(t, result); got.err == nil {
			t.Errorf("a client of the killed ingress got %v", got)
		}
	}
	eventually(t, "the agent's slots are given back", func() bool { return a.slots(t) == reading{} })
	if took := time.Since(over); took > lease+margin {
		t.Errorf("the reservations stood for %v, which is longer than a lease", took)
	}
	if expired := a.sum(t, "berth_agent_releases_total", `cause="expired"`); expired != held {
		t.Errorf("%v leases expired, want %d", expired, held)
	}
	if did := w.Stats(); did.Requests != 0 {
		t.Errorf("the engine saw %d requests", did.Requests)
	}
}

func TestAnIngressKilledMidStreamLeavesNothingRunning(t *testing.T) {
	t.Parallel()
	const streams = 3
	w := witnesses(t, 1)[0]
	a := guard(t, w.url, streams)
	b := serve(t, sharing("", a.url))
	client := newClient(t, false)
	for range streams {
		resp := open(t, context.WithoutCancel(t.Context()), client, b.url, ask("demo", "Count for long.", 100_000, true)) // as many as fit its memory together
		defer func() {
			if got := read(resp); got.err == nil {
				t.Errorf("a stream ended as if it were complete: %v", got)
			}
		}()
	}
	if now := a.slots(t); now != (reading{Running: streams}) {
		t.Errorf("the agent holds %+v, want %d running", now, streams)
	}
	b.kill()
	eventually(t, "the agent's slots are given back", func() bool { return a.slots(t) == reading{} })
	eventually(t, "the engine stops working", func() bool {
		now := w.Stats()
		return now.Aborted == streams && now.InFlight == 0
	})
}
