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

// Options say what the traffic meets.
type Options struct {
	Replicas   int
	MaxOngoing int            // of each replica
	KVTokens   int            // of each replica's cache; 0: no limit
	Cost       simulated.Cost // of each replica's engine
	Speed      float64        // the trace's times are divided by it
	Seed       uint64         // of what policies draw
	Events     []Event        // in order of time
	// Coarse > 1 has policies know prompts by every so many blocks of the trace only. Engines
	// know them by each.
	Coarse int
	// Progress, where there is one, hears now and then how many requests of how many are over.
	Progress func(over, all int)
}

// Event is a change of membership. Requests on a replica that leaves are finished there.
type Event struct {
	At      time.Duration // not divided by the speed
	Kind    Kind
	Replica string // none for Add
}

// Kind is what happens to a replica.
type Kind string

// Kinds of events.
const (
	Add     Kind = "add"     // a new one comes
	Remove  Kind = "remove"  // it leaves
	Restart Kind = "restart" // a new process takes its place, with an empty cache
)

// call is one request under way. When it is over, it is used again for another one.
type call struct {
	player   *player
	index    int
	payload  routers.Payload
	came     time.Duration
	answered bool            // the first token is there
	ticket   *routers.Ticket // while it waits
	sel      *routers.Selection
	sequence simulated.Sequence
	chain    []uint64
	progress func(generated int) // the method grow
}

// player is one replay under way.
type player struct {
	options   *Options
	trace     *Trace
	build     routers.Builder
	fleet     *fleet
	router    *routers.Router
	now       time.Duration
	agenda    agenda
	request   http.Request // what all dispatches send, which nobody looks at
	waiting   []*call      // in order of arrival
	done      []*call      // complete, their slots yet to be released
	over      []*call      // to be used again
	idle      []*engine    // that may have something to begin
	followers [][]int      // of each request
	tally     tally
}

// Run replays a trace through a policy.
func Run(ctx context.Context, t *Trace, policy Policy, o Options) (*Result, error) {
	random := rand.New(rand.NewPCG(o.Seed, 2))
	p := &player{
		options: &o, trace: t, build: policy.build(random, &o, t.BlockTokens*max(1, o.Coarse)),
		fleet: newFleet(&o, t.BlockTokens), followers: make([][]int, len(t.Requests)),
		tally: newTally(),
	}
	members, _ := p.fleet.members()
	p.router = routers.New(members, p.build, limits, routers.Hooks{})
	p.plan()
	defer p.fleet.pool.Close()
	for steps := 0; !p.agenda.empty(); steps++ {
		if steps%4096 == 0 {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if o.Progress != nil {
				o.Progress(len(p.tally.ttft)+p.tally.refused, len(t.Requests))
			}
		}
		if err := p.play(ctx, p.agenda.next()); err != nil {
			return nil, err
		}
	}
	return p.tally.result(policy.Name, p), nil
}

// plan enters what is known beforehand: who comes at a time of its own, and the changes of membership.
func (p *player) plan() {
	planned := make([]event, 0, len(p.trace.Requests)+len(p.options.Events))
	for i := range p.trace.Requests {
		if r := &p.trace.Requests[i]; r.Follows < 0 {
			planned = append(planned, event{at: p.scaled(r.At), kind: arrival, index: i})
		} else {
			p.followers[r.Follows] = append(p.followers[r.Follows], i)
		}
	}
	for i, e := range p.options.Events {
		planned = append(planned, event{at: e.At, kind: membership, index: i})
	}
	p.agenda.plan(planned)
}

// scaled is a time of the trace at the replay's speed.
func (p *player) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) / p.options.Speed)
}

// play has one event happen and all that follows at the same moment.
func (p *player) play(ctx context.Context, e event) error {
	p.now = e.at
	switch e.kind {
	case arrival:
		p.arrive(ctx, e.index)
	case stepsEnd:
		engine := p.fleet.engines[e.index]
		if !engine.finish(e.order) {
			return nil
		}
		p.idle = append(p.idle, engine)
	case membership:
		if err := p.fleet.change(p.options.Events[e.index]); err != nil {
			return err
		}
		members, retire := p.fleet.members()
		p.router.Update(members, p.build, limits)
		retire()
	}
	p.settle(ctx)
	return nil
}

// arrive has a request come.
func (p *player) arrive(ctx context.Context, i int) {
	r := &p.trace.Requests[i]
	c := p.call()
	c.index, c.came, c.answered = i, p.now, false
	c.chain = r.chain(p.trace.BlockTokens, c.chain)
	c.payload = routers.Payload{RequestID: strconv.Itoa(i), SessionID: r.Session, Blocks: coarse(c.chain, p.options.Coarse)}
	c.sequence = simulated.Sequence{Prompt: r.Prompt, Answers: 1, Limit: r.Output, Chain: c.chain, Progress: c.progress}
	sel, ticket, err := p.router.Try(ctx, &c.payload)
	switch {
	case err != nil:
		p.refuse(c)
	case ticket != nil:
		c.ticket = ticket
		p.waiting = append(p.waiting, c)
	default:
		p.dispatch(c, sel)
	}
}

// call is one that is over, or a new one.
func (p *player) call() *call {
	if last := len(p.over) - 1; last >= 0 {
		c := p.over[last]
		p.over = p.over[:last]
		return c
	}
	c := &call{player: p}
	c.progress = c.grow
	return c
}

// coarse is the chain by blocks that are n times as long. A hash stands for all blocks
// before it, so every n-th will do.
func coarse(chain []uint64, n int) []uint64 {
	if n <= 1 {
		return chain
	}
	thin := make([]uint64, len(chain)/n)
	for i := range thin {
		thin[i] = chain[(i+1)*n-1]
	}
	return thin
}

// refuse ends a call that nobody serves.
func (p *player) refuse(c *call) {
	p.tally.refused++
	p.follow(c.index)
}

// dispatch puts a call on the engine that was chosen for it.
func (p *player) dispatch(c *call, sel *routers.Selection) {
	c.sel = sel
	if _, err := sel.Dispatch(&p.request); err != nil {
		panic(fmt.Sprintf("BUG: a fresh selection on a member cannot be dispatched: %v", err))
	}
	p.tally.placed(c.payload.SessionID, sel.Replica(), p.now-c.came)
	engine := p.fleet.by[sel.Replica()]
	engine.interrupt(&p.agenda, p.now)
	if err := engine.batch.Add(&c.sequence); err != nil {
		p.tally.refused++
		p.done = append(p.done, c)
	}
	p.idle = append(p.idle, engine)
}

// grow hears how many tokens the answer has.
func (c *call) grow(generated int) {
	p := c.player
	if !c.answered && (generated > 0 || c.sequence.Limit == 0) {
		c.answered = true
		p.tally.answered(p.now-c.came, &c.sequence)
	}
	if generated == c.sequence.Limit {
		p.done = append(p.done, c)
	}
}

// settle releases what is complete, gives what was handed over to who waited,
// and has idle engines begin.
func (p *player) settle(ctx context.Context) {
	for {
		for _, c := range p.done { // releasing makes no others done
			c.sel.Release()
			p.follow(c.index)
		}
		p.over, p.done = append(p.over, p.done...), p.done[:0]
		if p.router.QueueLength() == len(p.waiting) {
			break
		}
		p.waiting = slices.DeleteFunc(p.waiting, func(c *call) bool {
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
		e.begin(&p.agenda, p.now)
	}
	p.idle = p.idle[:0]
}

// follow has those come that follow a request which is over.
func (p *player) follow(i int) {
	for _, f := range p.followers[i] {
		r := &p.trace.Requests[f]
		p.agenda.add(event{at: max(p.scaled(r.At), p.now+p.scaled(r.Gap)), kind: arrival, index: f})
	}
}
