package replay

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"

	"berth/llmserver"
	"berth/llmserver/simulated"
	"berth/routers"
)

// unlimitedKV is more tokens than any trace has.
const unlimitedKV = min(1<<50, math.MaxInt)

// engine is one replica's process in virtual time. It takes steps that are alike
// at once, and ends them early where a request comes in between.
type engine struct {
	index int // in the fleet
	batch *simulated.Batch
	began time.Duration
	step  time.Duration // the length of each step under way
	steps int           // how many of them there are; 0: it is idle
	due   uint64        // the event at which they end
}

// begin starts the next steps, if there is something to do.
func (e *engine) begin(a *agenda, now time.Duration) {
	if e.steps > 0 || !e.batch.Begin() {
		return
	}
	e.began, e.step, e.steps = now, e.batch.Step(), e.batch.Alike()
	e.end(a)
}

// interrupt has the steps end with the one under way.
func (e *engine) interrupt(a *agenda, now time.Duration) {
	if e.steps <= 1 || e.step == 0 {
		return
	}
	if taken := int((now-e.began-1)/e.step) + 1; taken < e.steps {
		e.steps = max(taken, 1)
		e.end(a)
	}
}

// end plans the event at which the steps end.
func (e *engine) end(a *agenda) {
	e.due = a.add(event{at: e.began + time.Duration(e.steps)*e.step, kind: stepsEnd, index: e.index})
}

// finish ends the steps, unless the event is one that an interruption has replaced.
func (e *engine) finish(due uint64) (ended bool) {
	if due != e.due {
		return false
	}
	e.batch.Finish(e.steps)
	e.steps = 0
	return true
}

// fleet is the replicas of a replay, those that left included.
type fleet struct {
	options   *Options
	block     int // tokens
	pool      llmserver.Pool
	endpoints []llmserver.Endpoint
	engines   []*engine
	by        map[*llmserver.Replica]*engine
	started   int // processes so far
}

func newFleet(o *Options, blockTokens int) *fleet {
	answer := http.Response{StatusCode: http.StatusOK, Body: http.NoBody}
	f := &fleet{options: o, block: blockTokens, by: make(map[*llmserver.Replica]*engine)}
	f.pool.Dial = func(e llmserver.Endpoint) (llmserver.Backend, error) {
		plain, err := llmserver.DialHTTP(e)
		return present{plain, &answer}, err
	}
	for i := range o.Replicas {
		f.endpoints = append(f.endpoints, f.endpoint(name(i)))
	}
	return f
}

// name is the name of the replica at an index: a to z, then aa and so on.
func name(i int) string {
	if i < 26 {
		return string(rune('a' + i))
	}
	return name(i/26-1) + name(i%26)
}

// endpoint describes a new process.
func (f *fleet) endpoint(id string) llmserver.Endpoint {
	f.started++
	return llmserver.Endpoint{
		ID: id, URL: "http://" + id, Instance: fmt.Sprint(f.started), Limit: f.options.MaxOngoing,
	}
}

// change makes the fleet what an event says.
func (f *fleet) change(e Event) error {
	i := slices.IndexFunc(f.endpoints, func(p llmserver.Endpoint) bool { return p.ID == e.Replica })
	switch {
	case e.Kind == Add:
		next := len(f.endpoints)
		for slices.ContainsFunc(f.endpoints, func(p llmserver.Endpoint) bool { return p.ID == name(next) }) {
			next++
		}
		f.endpoints = append(f.endpoints, f.endpoint(name(next)))
	case i < 0:
		return fmt.Errorf("there is no replica %q to %s", e.Replica, e.Kind)
	case e.Kind == Remove:
		f.endpoints = slices.Delete(f.endpoints, i, i+1)
	default:
		f.endpoints[i] = f.endpoint(e.Replica)
	}
	return nil
}

// members are the replicas of the endpoints as they are; retire is due when
// the router goes by them.
func (f *fleet) members() (replicas []*llmserver.Replica, retire func()) {
	replicas, retire, err := f.pool.Set(f.endpoints)
	if err != nil {
		panic("BUG: " + err.Error()) // Dial does not fail, and every instance is another one
	}
	for _, r := range replicas {
		if f.by[r] == nil {
			o := f.options
			tokens := o.KVTokens
			if tokens <= 0 {
				tokens = unlimitedKV
			}
			e := &engine{index: len(f.engines), batch: simulated.NewBatch(o.Cost, simulated.NewCache(tokens, f.block), o.MaxOngoing)}
			f.engines, f.by[r] = append(f.engines, e), e
		}
	}
	return replicas, retire
}

// present is a plain engine that is reached without any I/O, and always says the same.
type present struct {
	llmserver.Backend
	answer *http.Response
}

func (p present) Do(*http.Request, llmserver.Token) (*http.Response, llmserver.Report, error) {
	return p.answer, llmserver.Report{}, nil
}

// limits let the line grow and nobody give up: what waits is to be seen.
var limits = routers.Limits{MaxQueued: -1, QueueTimeout: math.MaxInt64}
