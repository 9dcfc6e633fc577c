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

// phase is a phase of a request in which the request can be paused.
type phase struct {
	name           string
	hold           func(s *scenario) // starts a request and pauses it in this phase
	release        func(s *scenario) // resumes the request
	agent, ingress slotUsage         // usage while paused
	afterwards     slotUsage         // usage of the agent after the request has been removed
	listen         func(t *testing.T) net.Listener
}

var phases = []phase{
	{"waiting", func(s *scenario) {
		s.reserveOther()
		s.startRequest(4)
	}, func(s *scenario) { s.releaseOther() }, slotUsage{1, 0, 1}, slotUsage{1, 0, 1}, slotUsage{1, 0, 0}, listenLoopback},

	// The agent has reserved the slot; the ingress has not received the reply.
	{"reserving", func(s *scenario) {
		s.gates.close(legControlReply)
		s.startRequest(4)
	}, func(s *scenario) { s.gates.open(legControlReply) }, slotUsage{1, 0, 0}, slotUsage{1, 0, 0}, slotUsage{}, listenLoopback},

	// The agent has reserved the slot; the request has been sent and not received.
	{"reserved", func(s *scenario) {
		s.gates.close(legRequest)
		s.startRequest(4)
		eventually(s.T, "the request has been sent", func() bool { return s.proxy.received[legRequest].Load() == 1 })
	}, func(s *scenario) { s.gates.open(legRequest) }, slotUsage{1, 0, 0}, slotUsage{0, 1, 0}, slotUsage{}, listenLoopback},

	// The agent has reserved the slot; the connection for the request is not established.
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
		s.startRequest(20_000) // takes at least twenty seconds
		waitClosed(s.T, "the response has begun", s.firstByte)
		s.engine.Engine().SetFaults(simulated.Faults{Slow: 1e6})
	}, func(s *scenario) { s.engine.Engine().SetFaults(simulated.Faults{Slow: 1e-3}) }, slotUsage{0, 1, 0}, slotUsage{0, 1, 0}, slotUsage{}, listenLoopback},
}

// event is an event during a request, such as a disconnect or a reload.
type event struct {
	name       string
	trigger    func(s *scenario)
	deployment string // deployment settings
	model      string
}

// shortQueueTimeout bounds waits that only the queue timeout ends, because a replica that is down
// or draining may recover. The timeout leaves a busy machine enough time to reach the phase.
const shortQueueTimeout = "queue_timeout_s: 6"

var events = []event{
	{name: "client disconnect", trigger: func(s *scenario) { s.disconnect() }},
	{name: "deadline", trigger: func(*scenario) {}, deployment: shortQueueTimeout, model: "  timeouts: {connect_s: 1, first_byte_s: 2, idle_s: 6}\n"},
	{name: "connection refused", trigger: func(s *scenario) { s.proxy.partition() }, deployment: shortQueueTimeout},
	{name: "reset", trigger: func(s *scenario) { s.proxy.reset() }},
	{name: "replica killed", trigger: func(s *scenario) {
		s.agentHTTP.Config.Close()
		s.proxy.partition()
	}, deployment: shortQueueTimeout},
	{name: "engine killed", trigger: func(s *scenario) {
		s.engine.Close()
		s.backend.Close() // otherwise the agent may try an idle connection first, with the result 502
	}},
	{name: "replica draining", trigger: func(s *scenario) { s.agent.Drain() }, deployment: shortQueueTimeout},
	{name: "reload", trigger: func(s *scenario) { s.replaceReplica() }},
	{name: "ingress drain", trigger: func(s *scenario) {
		s.drain()
		eventually(s.T, "the listener is closed", func() bool { return s.pages.getPage(s.T, s.pages.url+"/livez").err != nil })
	}},
	{name: "panic", trigger: func(s *scenario) { close(s.backend.triggered) }},
}

// expectation is the expected result of an event in a phase.
type expectation struct {
	client   string // client's outcome, see describeOutcome
	engine   string // engine's outcome, see engineOutcome
	released releaseTime
	excluded string // reason for the absence of this case
}

// releaseTime is the time at which the client has a response and both sides have released the slot.
type releaseTime int

const (
	whileHeld        releaseTime = iota // while the request is paused
	onRelease                           // after the request is resumed
	onLeaseExpiry                       // client: while paused; agent: unreachable, so the reservation expires with its lease
	withAgentProcess                    // client: while paused; agent: killed together with its slots
)

const (
	noReplica        = "503 no_replica_available"
	truncatedBroken  = "a broken connection after upstream_broken"
	truncatedIdle    = "a broken connection after upstream_idle_timeout"
	ingressOnly      = "only ingress code runs in this phase, and no test hook can make it panic; package ingress tests the recovery"
	alreadyConnected = "the connection is already established"
)

var expectations = map[string]map[string]expectation{
	"waiting": {
		"client disconnect":  {"disconnected", "nothing", whileHeld, ""},
		"deadline":           {"503 queue_timeout", "nothing", whileHeld, ""},
		"connection refused": {"503 queue_timeout", "nothing", whileHeld, ""},
		"reset":              {"served", "completed", onRelease, ""},
		"replica killed":     {"503 queue_timeout", "nothing", withAgentProcess, ""},
		"engine killed":      {noReplica, "nothing", onRelease, ""},
		"replica draining":   {"503 queue_timeout", "nothing", whileHeld, ""},
		"reload":             {"served", "nothing", whileHeld, ""},
		"ingress drain":      {"served", "completed", onRelease, ""},
		"panic":              {excluded: ingressOnly},
	},
	"reserving": {
		"client disconnect":  {"disconnected", "nothing", whileHeld, ""},
		"deadline":           {noReplica, "nothing", whileHeld, ""},
		"connection refused": {noReplica, "nothing", onLeaseExpiry, ""},
		"reset":              {"served", "completed", onRelease, ""},
		"replica killed":     {noReplica, "nothing", withAgentProcess, ""},
		"engine killed":      {noReplica, "nothing", onRelease, ""},
		"replica draining":   {"served", "completed", onRelease, ""},
		"reload":             {"served", "nothing", onRelease, ""},
		"ingress drain":      {"served", "completed", onRelease, ""},
		"panic":              {excluded: ingressOnly},
	},
	"reserved": {
		"client disconnect":  {"disconnected", "nothing", whileHeld, ""},
		"deadline":           {"504 upstream_first_byte_timeout", "nothing", whileHeld, ""},
		"connection refused": {excluded: alreadyConnected},
		"reset":              {"502 upstream_broken", "nothing", whileHeld, ""},
		"replica killed":     {"502 upstream_broken", "nothing", withAgentProcess, ""},
		"engine killed":      {noReplica, "nothing", onRelease, ""},
		"replica draining":   {"served", "completed", onRelease, ""},
		"reload":             {"served", "completed", onRelease, ""},
		"ingress drain":      {"served", "completed", onRelease, ""},
		"panic":              {excluded: ingressOnly},
	},
	"connecting": {
		"client disconnect":  {"disconnected", "nothing", whileHeld, ""},
		"deadline":           {"504 upstream_connect_timeout", "nothing", whileHeld, ""},
		"connection refused": {noReplica, "nothing", onLeaseExpiry, ""},
		"reset":              {excluded: "a connection that is not established is refused, not reset"},
		"replica killed":     {noReplica, "nothing", withAgentProcess, ""},
		"engine killed":      {noReplica, "nothing", onRelease, ""},
		"replica draining":   {"served", "completed", onRelease, ""},
		"reload":             {"served", "completed", onRelease, ""},
		"ingress drain":      {"served", "completed", onRelease, ""},
		"panic":              {excluded: ingressOnly},
	},
	"first byte": {
		"client disconnect":  {"disconnected", "aborted", whileHeld, ""},
		"deadline":           {"504 upstream_first_byte_timeout", "aborted", whileHeld, ""},
		"connection refused": {excluded: alreadyConnected},
		"reset":              {"502 upstream_broken", "aborted", whileHeld, ""},
		"replica killed":     {"502 upstream_broken", "aborted", withAgentProcess, ""},
		"engine killed":      {"502 upstream_broken", "aborted", whileHeld, ""},
		"replica draining":   {"served", "completed", onRelease, ""},
		"reload":             {"served", "completed", onRelease, ""},
		"ingress drain":      {"served", "completed", onRelease, ""},
		"panic":              {"502 upstream_broken", "aborted", whileHeld, ""},
	},
	"streaming": {
		"client disconnect":  {"disconnected", "aborted", whileHeld, ""},
		"deadline":           {truncatedIdle, "aborted", whileHeld, ""},
		"connection refused": {excluded: alreadyConnected},
		"reset":              {truncatedBroken, "aborted", whileHeld, ""},
		"replica killed":     {truncatedBroken, "aborted", withAgentProcess, ""},
		"engine killed":      {truncatedBroken, "aborted", whileHeld, ""},
		"replica draining":   {"served", "completed", onRelease, ""},
		"reload":             {"served", "completed", onRelease, ""},
		"ingress drain":      {"served", "completed", onRelease, ""},
		"panic":              {truncatedBroken, "aborted", whileHeld, ""},
	},
}

// After every event in every phase the client gets a truthful response, the engine does not work
// for a disconnected client, and both sides release the slot.
func TestSlotIsReturnedAfterEveryEventInEveryPhase(t *testing.T) {
	t.Parallel()
	for _, p := range phases {
		for _, e := range events {
			c, known := expectations[p.name][e.name]
			if !known {
				t.Errorf("no expectation for event %s in phase %s", e.name, p.name)
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
	eventually(s.T, fmt.Sprintf("the agent's usage is %v and the ingress's %v", p.agent, p.ingress), func() bool {
		return s.agentUsage() == p.agent && s.ingressUsage() == p.ingress
	})
	e.trigger(s)
	if c.released == onRelease {
		p.release(s)
	}
	if got := describeOutcome(waitResponse(s.T, s.result)); got != c.client {
		s.Errorf("client outcome %s, want %s", got, c.client)
	}
	eventually(s.T, "the ingress has released the slot", func() bool { return s.ingressUsage() == slotUsage{} })
	if c.released != onRelease {
		if c.released != withAgentProcess {
			eventually(s.T, "the agent has released the slot", func() bool { return s.agentUsage() == p.afterwards })
		}
		if expired := s.agent.Read().Expired; c.released != onLeaseExpiry && expired > 0 {
			s.Errorf("%d leases expired, want the slot released explicitly", expired)
		}
		p.release(s)
	}
	if c.released != withAgentProcess {
		eventually(s.T, "the agent has no slot in use", func() bool { return s.agentUsage() == slotUsage{} })
	}
	eventually(s.T, "the engine outcome is "+c.engine, func() bool { return s.engineOutcome() == c.engine })
}

func TestAgentRefusesARequestWhoseReservationWasReleased(t *testing.T) {
	t.Parallel()
	s, reserved := newScenario(t, listenLoopback(t), event{}), phases[2]
	reserved.hold(s)
	eventually(t, "the slot is reserved", func() bool { return s.agentUsage() == reserved.agent })
	s.disconnect()
	eventually(t, "the reservation is released", func() bool { return s.agentUsage() == slotUsage{} })
	reserved.release(s)
	eventually(t, "the request has been refused", func() bool { return s.agent.Read().RefusedToken == 1 })
	if err := s.agentHTTP.Config.Shutdown(t.Context()); err != nil { // waits until the agent has finished the request
		t.Fatal(err)
	}
	if now := s.agent.Read(); now.Unreserved != 0 || now.Finished != 0 || s.engineOutcome() != "nothing" {
		t.Errorf("the agent admitted the request: %+v; engine outcome %s", now.Totals, s.engineOutcome())
	}
}

// describeOutcome describes the client's outcome.
func describeOutcome(a response) string {
	switch {
	case a.isComplete():
		return "served"
	case errors.Is(a.err, context.Canceled):
		return "disconnected"
	case a.err != nil && lastErrorCode(a.body) != "":
		return "a broken connection after " + lastErrorCode(a.body)
	case a.err == nil && a.status != http.StatusOK:
		return fmt.Sprint(a.status, " ", a.errorCode())
	default:
		return a.String()
	}
}
