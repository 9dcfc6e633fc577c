package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"

	"berth/llmserver/simulated"
)

// phase is how far a request has come. In each a request can be held still.
type phase struct {
	name           string
	hold           func(s *scene) // begins a request and has it come so far, and no further
	release        func(s *scene) // lets it go on
	agent, ingress counts         // meanwhile
	others         counts         // at the agent, when the request is no longer there
	listen         func(t *testing.T) net.Listener
}

var phases = []phase{
	{"waiting", func(s *scene) {
		s.reserve()
		s.begin(4)
	}, func(s *scene) { s.unreserve() }, counts{1, 0, 1}, counts{1, 0, 1}, counts{1, 0, 0}, anyPort},

	// The agent has reserved the slot; the ingress has not heard of it.
	{"reserving", func(s *scene) {
		s.gates.close(reply)
		s.begin(4)
	}, func(s *scene) { s.gates.open(reply) }, counts{1, 0, 0}, counts{1, 0, 0}, counts{}, anyPort},

	// The agent has reserved the slot; the request for it is on its way.
	{"reserved", func(s *scene) {
		s.gates.close(request)
		s.begin(4)
		eventually(s.T, "the request is on its way", func() bool { return s.link.seen[request].Load() == 1 })
	}, func(s *scene) { s.gates.open(request) }, counts{1, 0, 0}, counts{0, 1, 0}, counts{}, anyPort},

	// The agent has reserved the slot; there is no connection yet for the request.
	{"connecting", func(s *scene) {
		s.crowd()
		s.begin(4)
	}, func(s *scene) { s.gates.open(arrival) }, counts{1, 0, 0}, counts{0, 1, 0}, counts{}, narrow},

	{"first byte", func(s *scene) {
		s.engine.Engine().SetFaults(simulated.Faults{Hang: true})
		s.begin(4)
		arrived(s.T, s.engine, 1)
	}, func(s *scene) { s.engine.Engine().SetFaults(simulated.Faults{}) }, counts{0, 1, 0}, counts{0, 1, 0}, counts{}, anyPort},

	{"streaming", func(s *scene) {
		s.begin(20_000) // no faster than in twenty seconds
		within(s.T, "the answer begins", s.first)
		s.engine.Engine().SetFaults(simulated.Faults{Slow: 1e6})
	}, func(s *scene) { s.engine.Engine().SetFaults(simulated.Faults{Slow: 1e-3}) }, counts{0, 1, 0}, counts{0, 1, 0}, counts{}, anyPort},
}

// event is what happens to a request.
type event struct {
	name       string
	happen     func(s *scene)
	deployment string // settings
	model      string
}

// short has a wait that nothing else ends be over soon: a replica that is down, or drains, may come back.
// It is long enough for a busy machine to bring the request to its phase before.
const short = "queue_timeout_s: 6"

var events = []event{
	{name: "client gone", happen: func(s *scene) { s.leave() }},
	{name: "deadline", happen: func(*scene) {}, deployment: short, model: "  timeouts: {connect_s: 1, first_byte_s: 2, idle_s: 6}\n"},
	{name: "connection refused", happen: func(s *scene) { s.link.partition() }, deployment: short},
	{name: "reset", happen: func(s *scene) { s.link.reset() }},
	{name: "replica dead", happen: func(s *scene) {
		s.agentHTTP.Config.Close()
		s.link.partition()
	}, deployment: short},
	{name: "engine dead", happen: func(s *scene) {
		s.engine.Close()
		s.fuse.Close() // or the agent might try an idle connection first, which ends in 502
	}},
	{name: "replica draining", happen: func(s *scene) { s.agent.Drain() }, deployment: short},
	{name: "reload", happen: func(s *scene) { s.replace() }},
	{name: "ingress drain", happen: func(s *scene) {
		s.drain()
		eventually(s.T, "nothing more is accepted", func() bool { return s.pages.get(s.T, s.pages.url+"/livez").err != nil })
	}},
	{name: "panic", happen: func(s *scene) { close(s.fuse.lit) }},
}

// cell is what an event in a phase leads to.
type cell struct {
	client string // what it saw
	engine string // what became of the request there
	when   moment
	never  string // why there is no such case
}

// moment is when the client has its answer, and both sides have given the slot back.
type moment int

const (
	atOnce    moment = iota // though the request is held
	later                   // when it goes on
	byLease                 // the client at once; the agent cannot be told, so its lease ends the reservation
	withAgent               // the client at once; the agent's counts died with it
)

const (
	unavailable = "503 no_replica_available"
	brokenOff   = "a broken connection after upstream_broken"
	fellSilent  = "a broken connection after upstream_idle_timeout"
	ours        = "only berth's own code runs here, none that a test could make panic; package ingress proves its recovery"
	stands      = "the connection stands already"
)

var table = map[string]map[string]cell{
	"waiting": {
		"client gone":        {"gone", "nothing", atOnce, ""},
		"deadline":           {"503 queue_timeout", "nothing", atOnce, ""},
		"connection refused": {"503 queue_timeout", "nothing", atOnce, ""},
		"reset":              {"served", "completed", later, ""},
		"replica dead":       {"503 queue_timeout", "nothing", withAgent, ""},
		"engine dead":        {unavailable, "nothing", later, ""},
		"replica draining":   {"503 queue_timeout", "nothing", atOnce, ""},
		"reload":             {"served", "nothing", atOnce, ""},
		"ingress drain":      {"served", "completed", later, ""},
		"panic":              {never: ours},
	},
	"reserving": {
		"client gone":        {"gone", "nothing", atOnce, ""},
		"deadline":           {unavailable, "nothing", atOnce, ""},
		"connection refused": {unavailable, "nothing", byLease, ""},
		"reset":              {"served", "completed", later, ""},
		"replica dead":       {unavailable, "nothing", withAgent, ""},
		"engine dead":        {unavailable, "nothing", later, ""},
		"replica draining":   {"served", "completed", later, ""},
		"reload":             {"served", "nothing", later, ""},
		"ingress drain":      {"served", "completed", later, ""},
		"panic":              {never: ours},
	},
	"reserved": {
		"client gone":        {"gone", "nothing", atOnce, ""},
		"deadline":           {"504 upstream_first_byte_timeout", "nothing", atOnce, ""},
		"connection refused": {never: stands},
		"reset":              {"502 upstream_broken", "nothing", atOnce, ""},
		"replica dead":       {"502 upstream_broken", "nothing", withAgent, ""},
		"engine dead":        {unavailable, "nothing", later, ""},
		"replica draining":   {"served", "completed", later, ""},
		"reload":             {"served", "completed", later, ""},
		"ingress drain":      {"served", "completed", later, ""},
		"panic":              {never: ours},
	},
	"connecting": {
		"client gone":        {"gone", "nothing", atOnce, ""},
		"deadline":           {"504 upstream_connect_timeout", "nothing", atOnce, ""},
		"connection refused": {unavailable, "nothing", byLease, ""},
		"reset":              {never: "a connection that is not made yet is refused, not reset"},
		"replica dead":       {unavailable, "nothing", withAgent, ""},
		"engine dead":        {unavailable, "nothing", later, ""},
		"replica draining":   {"served", "completed", later, ""},
		"reload":             {"served", "completed", later, ""},
		"ingress drain":      {"served", "completed", later, ""},
		"panic":              {never: ours},
	},
	"first byte": {
		"client gone":        {"gone", "aborted", atOnce, ""},
		"deadline":           {"504 upstream_first_byte_timeout", "aborted", atOnce, ""},
		"connection refused": {never: stands},
		"reset":              {"502 upstream_broken", "aborted", atOnce, ""},
		"replica dead":       {"502 upstream_broken", "aborted", withAgent, ""},
		"engine dead":        {"502 upstream_broken", "aborted", atOnce, ""},
		"replica draining":   {"served", "completed", later, ""},
		"reload":             {"served", "completed", later, ""},
		"ingress drain":      {"served", "completed", later, ""},
		"panic":              {"502 upstream_broken", "aborted", atOnce, ""},
	},
	"streaming": {
		"client gone":        {"gone", "aborted", atOnce, ""},
		"deadline":           {fellSilent, "aborted", atOnce, ""},
		"connection refused": {never: stands},
		"reset":              {brokenOff, "aborted", atOnce, ""},
		"replica dead":       {brokenOff, "aborted", withAgent, ""},
		"engine dead":        {brokenOff, "aborted", atOnce, ""},
		"replica draining":   {"served", "completed", later, ""},
		"reload":             {"served", "completed", later, ""},
		"ingress drain":      {"served", "completed", later, ""},
		"panic":              {brokenOff, "aborted", atOnce, ""},
	},
}

// Whatever happens to a request in whatever phase: the client is told the truth, the engine does no work for nobody, and
// the slot comes back on both sides.
func TestSlotIsReturnedAfterEveryEventInEveryPhase(t *testing.T) {
	t.Parallel()
	for _, p := range phases {
		for _, e := range events {
			c, known := table[p.name][e.name]
			if !known {
				t.Errorf("there is no cell for %s in %s", e.name, p.name)
			}
			if c.never == "" {
				t.Run(p.name+"/"+e.name, func(t *testing.T) {
					t.Parallel()
					c.play(stage(t, p.listen(t), e), p, e)
				})
			}
		}
	}
}

func (c cell) play(s *scene, p phase, e event) {
	p.hold(s)
	eventually(s.T, fmt.Sprintf("the agent counts %v and the ingress %v", p.agent, p.ingress), func() bool {
		return s.atAgent() == p.agent && s.atIngress() == p.ingress
	})
	e.happen(s)
	if c.when == later {
		p.release(s)
	}
	if got := seen(expect(s.T, s.result)); got != c.client {
		s.Errorf("the client saw %s, want %s", got, c.client)
	}
	eventually(s.T, "the ingress has its slot back", func() bool { return s.atIngress() == counts{} })
	if c.when != later {
		if c.when != withAgent {
			eventually(s.T, "the agent has its slot back", func() bool { return s.atAgent() == p.others })
		}
		if expired := s.agent.Read().Expired; c.when != byLease && expired > 0 {
			s.Errorf("%d leases expired, where the slot was to be given back", expired)
		}
		p.release(s)
	}
	if c.when != withAgent {
		eventually(s.T, "the agent holds nothing", func() bool { return s.atAgent() == counts{} })
	}
	eventually(s.T, "the engine's part is "+c.engine, func() bool { return s.fate() == c.engine })
}

func TestAgentRefusesARequestWhoseReservationWasReleased(t *testing.T) {
	t.Parallel()
	s, reserved := stage(t, anyPort(t), event{}), phases[2]
	reserved.hold(s)
	eventually(t, "the slot is reserved", func() bool { return s.atAgent() == reserved.agent })
	s.leave()
	eventually(t, "the reservation is given back", func() bool { return s.atAgent() == counts{} })
	reserved.release(s)
	eventually(t, "the request is there", func() bool { return s.agent.Read().RefusedToken == 1 })
	if err := s.agentHTTP.Config.Shutdown(t.Context()); err != nil { // when the agent is done with it
		t.Fatal(err)
	}
	if now := s.agent.Read(); now.Unreserved != 0 || now.Finished != 0 || s.fate() != "nothing" {
		t.Errorf("the agent let it in: %+v; the engine's part is %s", now.Totals, s.fate())
	}
}

// seen puts in words what a client saw.
func seen(a answer) string {
	switch {
	case a.complete():
		return "served"
	case errors.Is(a.err, context.Canceled):
		return "gone"
	case a.err != nil && lastErrorCode(a.body) != "":
		return "a broken connection after " + lastErrorCode(a.body)
	case a.err == nil && a.status != http.StatusOK:
		return fmt.Sprint(a.status, " ", a.problem())
	default:
		return a.String()
	}
}
