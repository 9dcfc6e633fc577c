package replay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"

	"berth/llmserver/simulated"
	"berth/routers"
)

// Options describe the fleet and the speed of a replay.
type Options struct {
	Replicas   int
	MaxOngoing int            // of each replica
	KVTokens   int            // of each replica's cache; 0: no limit
	Cost       simulated.Cost // of each replica's engine
	Speed      float64        // by which the trace's times are divided
	Seed       uint64         // of the policies' random numbers
	Events     []Event        // in order of time
	// PolicyBlock, if above 1, is the number of trace blocks per block of the policies. Engines see
	// each trace block.
	PolicyBlock int
	// Progress, unless nil, is called from time to time with the number of finished and of all
	// requests, in the goroutine of Run.
	Progress func(finished, all int)
}

// An Event is a change of membership. Requests on a removed replica finish there.
type Event struct {
	At      time.Duration // not divided by the speed
	Kind    Kind
	Replica string // empty for Add
}

// Kind is a kind of event.
type Kind string

// Kinds of events.
const (
	Add     Kind = "add"     // a new replica joins
	Remove  Kind = "remove"  // the replica leaves
	Restart Kind = "restart" // a new process replaces the replica's, with an empty cache
)

// An activeRequest is a waiting or running request. Finished ones are reused.
type activeRequest struct {
	sim      *simulation
	index    int
	payload  routers.Payload
	arrived  time.Duration
	started  bool            // the first token has been generated
	ticket   *routers.Ticket // while it is queued
	sel      *routers.Selection
	sequence simulated.Sequence
	chain    []uint64
	progress func(generated int) // the method onProgress
}

// A simulation is one replay in progress, used by the goroutine of Run only.
type simulation struct {
	options   *Options
	trace     *Trace
	build     routers.Builder
	fleet     *fleet
	router    *routers.Router
	now       time.Duration
	events    eventQueue
	request   http.Request     // of all dispatches; read by no backend
	queued    []*activeRequest // in order of arrival
	complete  []*activeRequest // their slots are not released yet
	free      []*activeRequest // to be reused
	idle      []*engine        // engines that may have requests to start
	followers [][]int          // by request, the following requests
	tally     tally
}

// Run replays a trace through a policy until all requests have finished or ctx ends. It works in
// the caller's goroutine and uses no clock.
func Run(ctx context.Context, t *Trace, policy Policy, o Options) (*Result, error) {
	random := rand.New(rand.NewPCG(o.Seed, 2))
	p := &simulation{
		options: &o, trace: t, build: policy.build(random, &o, t.BlockTokens*max(1, o.PolicyBlock)),
		fleet: newFleet(&o, t.BlockTokens), followers: make([][]int, len(t.Requests)),
		tally: newTally(),
	}
	members, _ := p.fleet.members()
	p.router = routers.New(members, p.build, limits, routers.Hooks{
		Now: func() time.Time { return time.Unix(0, int64(p.now)) },
	})
	p.schedule()
	defer p.fleet.pool.Close()
	for steps := 0; !p.events.empty(); steps++ {
		if steps%4096 == 0 {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if o.Progress != nil {
				o.Progress(len(p.tally.ttft)+p.tally.refused, len(t.Requests))
			}
		}
		if err := p.handleEvent(ctx, p.events.pop()); err != nil {
			return nil, err
		}
	}
	return p.tally.result(policy.Name, p), nil
}

// schedule adds the events known beforehand: arrivals of requests without a predecessor, and
// changes of membership.
func (p *simulation) schedule() {
	events := make([]event, 0, len(p.trace.Requests)+len(p.options.Events))
	for i := range p.trace.Requests {
		if r := &p.trace.Requests[i]; r.Follows < 0 {
			events = append(events, event{at: p.scaled(r.At), kind: arrival, index: i})
		} else {
			p.followers[r.Follows] = append(p.followers[r.Follows], i)
		}
	}
	for i, e := range p.options.Events {
		events = append(events, event{at: e.At, kind: membership, index: i})
	}
	p.events.schedule(events)
}

// scaled returns a time of the trace at the speed of the replay.
func (p *simulation) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) / p.options.Speed)
}

// handleEvent handles an event and all consequences at the same moment.
func (p *simulation) handleEvent(ctx context.Context, e event) error {
	p.now = e.at
	switch e.kind {
	case arrival:
		p.handleArrival(ctx, e.index)
	case stepsEnd:
		engine := p.fleet.engines[e.index]
		if !engine.finishSteps(e.order) {
			return nil
		}
		p.idle = append(p.idle, engine)
	case membership:
		if err := p.fleet.applyEvent(p.options.Events[e.index]); err != nil {
			return err
		}
		members, retire := p.fleet.members()
		p.router.Update(members, p.build, limits)
		retire()
	}
	p.settle(ctx)
	return nil
}

// handleArrival lets the router place a request, or queue it.
func (p *simulation) handleArrival(ctx context.Context, i int) {
	r := &p.trace.Requests[i]
	c := p.newRequest()
	c.index, c.arrived, c.started = i, p.now, false
	c.chain = r.chain(p.trace.BlockTokens, c.chain)
	c.payload = routers.Payload{RequestID: strconv.Itoa(i), SessionID: r.Session, Blocks: everyNth(c.chain, p.options.PolicyBlock)}
	c.sequence = simulated.Sequence{Prompt: r.Prompt, Choices: 1, Limit: r.Output, Chain: c.chain, Progress: c.progress}
	sel, ticket, err := p.router.Try(ctx, &c.payload)
	switch {
	case err != nil:
		p.refuse(c)
	case ticket != nil:
		c.ticket = ticket
		p.queued = append(p.queued, c)
	default:
		p.dispatch(c, sel)
	}
}

// newRequest returns a finished request for reuse, or a new one.
func (p *simulation) newRequest() *activeRequest {
	if last := len(p.free) - 1; last >= 0 {
		c := p.free[last]
		p.free = p.free[:last]
		return c
	}
	c := &activeRequest{sim: p}
	c.progress = c.onProgress
	return c
}

// everyNth returns the chain of blocks n times as long. A chained hash covers all previous blocks,
// so every n-th hash is the hash of a longer block.
func everyNth(chain []uint64, n int) []uint64 {
	if n <= 1 {
		return chain
	}
	thin := make([]uint64, len(chain)/n)
	for i := range thin {
		thin[i] = chain[(i+1)*n-1]
	}
	return thin
}

// refuse ends a request rejected by the router.
func (p *simulation) refuse(c *activeRequest) {
	p.tally.refused++
	p.scheduleFollowers(c.index)
}

// dispatch adds a request to the engine of the selected replica.
func (p *simulation) dispatch(c *activeRequest, sel *routers.Selection) {
	c.sel = sel
	if _, err := sel.Dispatch(&p.request); err != nil {
		panic(fmt.Sprintf("BUG: a fresh selection on a member cannot be dispatched: %v", err))
	}
	p.tally.addPlacement(c.payload.SessionID, sel.Replica(), p.now-c.arrived)
	engine := p.fleet.by[sel.Replica()]
	engine.interruptSteps(&p.events, p.now)
	if err := engine.batch.Add(&c.sequence); err != nil {
		p.tally.refused++
		p.complete = append(p.complete, c)
	}
	p.idle = append(p.idle, engine)
}

// onProgress is called by the engine with the number of tokens generated so far.
func (c *activeRequest) onProgress(generated int) {
	p := c.sim
	if !c.started && (generated > 0 || c.sequence.Limit == 0) {
		c.started = true
		p.tally.addFirstToken(p.now-c.arrived, &c.sequence)
	}
	if generated == c.sequence.Limit {
		p.complete = append(p.complete, c)
	}
}

// settle releases the slots of complete requests, dispatches queued requests into freed slots, and
// starts the steps of idle engines.
func (p *simulation) settle(ctx context.Context) {
	for {
		for _, c := range p.complete { // a release completes no other request
			c.sel.Release()
			p.scheduleFollowers(c.index)
		}
		p.free, p.complete = append(p.free, p.complete...), p.complete[:0]
		if p.router.QueueLength() == len(p.queued) {
			break
		}
		p.queued = slices.DeleteFunc(p.queued, func(c *activeRequest) bool {
			sel, err := c.ticket.Poll(ctx)
			switch {
			case err != nil:
				p.refuse(c)
			case sel != nil:
				p.dispatch(c, sel)
			}
			return err != nil || sel != nil
		})
	}
	for _, e := range p.idle {
		e.startSteps(&p.events, p.now)
	}
	p.idle = p.idle[:0]
}

// scheduleFollowers adds the arrivals of the requests following a finished one.
func (p *simulation) scheduleFollowers(i int) {
	for _, f := range p.followers[i] {
		r := &p.trace.Requests[f]
		p.events.push(event{at: max(p.scaled(r.At), p.now+p.scaled(r.Gap)), kind: arrival, index: f})
	}
}
