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
	hold           func(s *scenario) // begins a request and has it come so far, and no further
	release        func(s *scenario) // lets it go on
	agent, ingress slotUsage         // meanwhile
	afterwards     slotUsage         // at the agent, when the request is no longer there
	listen         func(t *testing.T) net.Listener
}

var phases = []phase{
	{"waiting", func(s *scenario) {
		s.reserveOther()
		s.startRequest(4)
	}, func(s *scenario) { s.releaseOther() }, slotUsage{1, 0, 1}, slotUsage{1, 0, 1}, slotUsage{1, 0, 0}, listenLoopback},

	// The agent has reserved the slot; the ingress has not heard of it.
	{"reserving", func(s *scenario) {
		s.gates.close(legControlReply)
		s.startRequest(4)
	}, func(s *scenario) { s.gates.open(legControlReply) }, slotUsage{1, 0, 0}, slotUsage{1, 0, 0}, slotUsage{}, listenLoopback},

	// The agent has reserved the slot; the request for it is on its way.
	{"reserved", func(s *scenario) {
		s.gates.close(legRequest)
		s.startRequest(4)
		eventually(s.T, "the request is on its way", func() bool { return s.proxy.received[legRequest].Load() == 1 })
	}, func(s *scenario) { s.gates.open(legRequest) }, slotUsage{1, 0, 0}, slotUsage{0, 1, 0}, slotUsage{}, listenLoopback},

	// The agent has reserved the slot; there is no connection yet for the request.
	{"connecting", func(s *scenario) {
		s.fillBacklog()
		s.startRequest(4)
	}, func(s *scenario) { s.gates.open(legAccept) }, slotUsage{1, 0, 0}, slotUsage{0, 1, 0}, slotUsage{}, listenMinBacklog},

	{"first byte", func(s *scenario) {
		s.engine.Engine().SetFaults(simulated.Faults{Hang: true})
		s.startRequest(4)
		waitInFlight(s.T, s.engine, 1)
	}, func(s *scenario) { s.engine.Engine().SetFaults(simulated.Faults{}) }, slotUsage{0, 1, 0}, slotUsage{0, 1, 0}, slotUsage{}, listenLoopback},

	{"streaming", func(s *scenario) {
		s.startRequest(20_000) // no faster than in twenty seconds
		waitClosed(s.T, "the answer begins", s.firstByte)
		s.engine.Engine().SetFaults(simulated.Faults{Slow: 1e6})
	}, func(s *scenario) { s.engine.Engine().SetFaults(simulated.Faults{Slow: 1e-3}) }, slotUsage{0, 1, 0}, slotUsage{0, 1, 0}, slotUsage{}, listenLoopback},
}

// event is what happens to a request.
type event struct {
	name       string
	trigger    func(s *scenario)
	deployment string // settings
	model      string
}

// short has a wait that nothing else ends be over soon: a replica that is down, or drains, may come back.
// It is long enough for a busy machine to bring the request to its phase before.
const shortQueueTimeout = "queue_timeout_s: 6"

var events = []event{
	{name: "client gone", trigger: func(s *scenario) { s.disconnect() }},
	{name: "deadline", trigger: func(*scenario) {}, deployment: shortQueueTimeout, model: "  timeouts: {connect_s: 1, first_byte_s: 2, idle_s: 6}\n"},
	{name: "connection refused", trigger: func(s *scenario) { s.proxy.partition() }, deployment: shortQueueTimeout},
	{name: "reset", trigger: func(s *scenario) { s.proxy.reset() }},
	{name: "replica dead", trigger: func(s *scenario) {
		s.agentHTTP.Config.Close()
		s.proxy.partition()
	}, deployment: shortQueueTimeout},
	{name: "engine dead", trigger: func(s *scenario) {
		s.engine.Close()
		s.backend.Close() // or the agent might try an idle connection first, which ends in 502
	}},
	{name: "replica draining", trigger: func(s *scenario) { s.agent.Drain() }, deployment: shortQueueTimeout},
	{name: "reload", trigger: func(s *scenario) { s.replaceReplica() }},
	{name: "ingress drain", trigger: func(s *scenario) {
		s.drain()
		eventually(s.T, "nothing more is accepted", func() bool { return s.pages.getPage(s.T, s.pages.url+"/livez").err != nil })
	}},
	{name: "panic", trigger: func(s *scenario) { close(s.backend.triggered) }},
}

// cell is what an event in a phase leads to.
type expectation struct {
	client   string // what it saw
	engine   string // what became of the request there
	released releaseTime
	excluded string // why there is no such case
}

// moment is when the client has its answer, and both sides have given the slot back.
type releaseTime int

const (
	whileHeld        releaseTime = iota // though the request is held
	onRelease                           // when it goes on
	onLeaseExpiry                       // the client at once; the agent cannot be told, so its lease ends the reservation
	withAgentProcess                    // the client at once; the agent's counts died with it
)

const (
	noReplica        = "503 no_replica_available"
	truncatedBroken  = "a broken connection after upstream_broken"
	truncatedIdle    = "a broken connection after upstream_gap_timeout"
	ingressOnly      = "only berth's own code runs here, none that a test could make panic; package ingress proves its recovery"
	alreadyConnected = "the connection stands already"
)

var expectations = map[string]map[string]expectation{
	"waiting": {
		"client gone":        {"gone", "nothing", whileHeld, ""},
		"deadline":           {"503 queue_timeout", "nothing", whileHeld, ""},
		"connection refused": {"503 queue_timeout", "nothing", whileHeld, ""},
		"reset":              {"served", "completed", onRelease, ""},
		"replica dead":       {"503 queue_timeout", "nothing", withAgentProcess, ""},
		"engine dead":        {noReplica, "nothing", onRelease, ""},
		"replica draining":   {"503 queue_timeout", "nothing", whileHeld, ""},
		"reload":             {"served", "nothing", whileHeld, ""},
		"ingress drain":      {"served", "completed", onRelease, ""},
		"panic":              {excluded: ingressOnly},
	},
	"reserving": {
		"client gone":        {"gone", "nothing", whileHeld, ""},
		"deadline":           {noReplica, "nothing", whileHeld, ""},
		"connection refused": {noReplica, "nothing", onLeaseExpiry, ""},
		"reset":              {"served", "completed", onRelease, ""},
		"replica dead":       {noReplica, "nothing", withAgentProcess, ""},
		"engine dead":        {noReplica, "nothing", onRelease, ""},
		"replica draining":   {"served", "completed", onRelease, ""},
		"reload":             {"served", "nothing", onRelease, ""},
		"ingress drain":      {"served", "completed", onRelease, ""},
		"panic":              {excluded: ingressOnly},
	},
	"reserved": {
		"client gone":        {"gone", "nothing", whileHeld, ""},
		"deadline":           {"504 upstream_first_byte_timeout", "nothing", whileHeld, ""},
		"connection refused": {excluded: alreadyConnected},
		"reset":              {"502 upstream_broken", "nothing", whileHeld, ""},
		"replica dead":       {"502 upstream_broken", "nothing", withAgentProcess, ""},
		"engine dead":        {noReplica, "nothing", onRelease, ""},
		"replica draining":   {"served", "completed", onRelease, ""},
		"reload":             {"served", "completed", onRelease, ""},
		"ingress drain":      {"served", "completed", onRelease, ""},
		"panic":              {excluded: ingressOnly},
	},
	"connecting": {
		"client gone":        {"gone", "nothing", whileHeld, ""},
		"deadline":           {"504 upstream_connect_timeout", "nothing", whileHeld, ""},
		"connection refused": {noReplica, "nothing", onLeaseExpiry, ""},
		"reset":              {excluded: "a connection that is not made yet is refused, not reset"},
		"replica dead":       {noReplica, "nothing", withAgentProcess, ""},
		"engine dead":        {noReplica, "nothing", onRelease, ""},
		"replica draining":   {"served", "completed", onRelease, ""},
		"reload":             {"served", "completed", onRelease, ""},
		"ingress drain":      {"served", "completed", onRelease, ""},
		"panic":              {excluded: ingressOnly},
	},
	"first byte": {
		"client gone":        {"gone", "aborted", whileHeld, ""},
		"deadline":           {"504 upstream_first_byte_timeout", "aborted", whileHeld, ""},
		"connection refused": {excluded: alreadyConnected},
		"reset":              {"502 upstream_broken", "aborted", whileHeld, ""},
		"replica dead":       {"502 upstream_broken", "aborted", withAgentProcess, ""},
		"engine dead":        {"502 upstream_broken", "aborted", whileHeld, ""},
		"replica draining":   {"served", "completed", onRelease, ""},
		"reload":             {"served", "completed", onRelease, ""},
		"ingress drain":      {"served", "completed", onRelease, ""},
		"panic":              {"502 upstream_broken", "aborted", whileHeld, ""},
	},
	"streaming": {
		"client gone":        {"gone", "aborted", whileHeld, ""},
		"deadline":           {truncatedIdle, "aborted", whileHeld, ""},
		"connection refused": {excluded: alreadyConnected},
		"reset":              {truncatedBroken, "aborted", whileHeld, ""},
		"replica dead":       {truncatedBroken, "aborted", withAgentProcess, ""},
		"engine dead":        {truncatedBroken, "aborted", whileHeld, ""},
		"replica draining":   {"served", "completed", onRelease, ""},
		"reload":             {"served", "completed", onRelease, ""},
		"ingress drain":      {"served", "completed", onRelease, ""},
		"panic":              {truncatedBroken, "aborted", whileHeld, ""},
	},
}

// Whatever happens to a request in whatever phase: the client is told the truth, the engine does no work for nobody, and
// the slot comes back on both sides.
func TestSlotIsReturnedAfterEveryEventInEveryPhase(t *testing.T) {
	t.Parallel()
	for _, p := range phases {
		for _, e := range events {
			c, known := expectations[p.name][e.name]
			if !known {
				t.Errorf("there is no cell for %s in %s", e.name, p.name)
			}
			if c.excluded == "" {
				t.Run(p.name+"/"+e.name, func(t *testing.T) {
					t.Parallel()
					c.check(newScenario(t, p.listen(t), e), p, e)
				})
			}
		}
	}
}

func (c expectation) check(s *scenario, p phase, e event) {
	p.hold(s)
	eventually(s.T, fmt.Sprintf("the agent counts %v and the ingress %v", p.agent, p.ingress), func() bool {
		return s.agentUsage() == p.agent && s.ingressUsage() == p.ingress
	})
	e.trigger(s)
	if c.released == onRelease {
		p.release(s)
	}
	if got := describeOutcome(waitResponse(s.T, s.result)); got != c.client {
		s.Errorf("the client saw %s, want %s", got, c.client)
	}
	eventually(s.T, "the ingress has its slot back", func() bool { return s.ingressUsage() == slotUsage{} })
	if c.released != onRelease {
		if c.released != withAgentProcess {
			eventually(s.T, "the agent has its slot back", func() bool { return s.agentUsage() == p.afterwards })
		}
		if expired := s.agent.Read().Expired; c.released != onLeaseExpiry && expired > 0 {
			s.Errorf("%d leases expired, where the slot was to be given back", expired)
		}
		p.release(s)
	}
	if c.released != withAgentProcess {
		eventually(s.T, "the agent holds nothing", func() bool { return s.agentUsage() == slotUsage{} })
	}
	eventually(s.T, "the engine's part is "+c.engine, func() bool { return s.engineOutcome() == c.engine })
}

func TestAgentRefusesARequestWhoseReservationWasReleased(t *testing.T) {
	t.Parallel()
	s, reserved := newScenario(t, listenLoopback(t), event{}), phases[2]
	reserved.hold(s)
	eventually(t, "the slot is reserved", func() bool { return s.agentUsage() == reserved.agent })
	s.disconnect()
	eventually(t, "the reservation is given back", func() bool { return s.agentUsage() == slotUsage{} })
	reserved.release(s)
	eventually(t, "the request is there", func() bool { return s.agent.Read().RefusedToken == 1 })
	if err := s.agentHTTP.Config.Shutdown(t.Context()); err != nil { // when the agent is done with it
		t.Fatal(err)
	}
	if now := s.agent.Read(); now.Unreserved != 0 || now.Finished != 0 || s.engineOutcome() != "nothing" {
		t.Errorf("the agent let it in: %+v; the engine's part is %s", now.Totals, s.engineOutcome())
	}
}

// seen puts in words what a client saw.
func describeOutcome(a response) string {
	switch {
	case a.isComplete():
		return "served"
	case errors.Is(a.err, context.Canceled):
		return "gone"
	case a.err != nil && lastErrorCode(a.body) != "":
		return "a broken connection after " + lastErrorCode(a.body)
	case a.err == nil && a.status != http.StatusOK:
		return fmt.Sprint(a.status, " ", a.errorCode())
	default:
		return a.String()
	}
}
