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

// unlimitedKV is more tokens than any trace holds.
const unlimitedKV = min(1<<50, math.MaxInt)

// An engine is the process of one replica in virtual time. Several equal steps run as one event,
// which ends early when a request arrives in between.
type engine struct {
	index int // in the fleet
	batch *simulated.Batch
	began time.Duration
	step  time.Duration // duration of each current step
	steps int           // number of current steps; 0: idle
	due   uint64        // order of the event to end them
}

// startSteps starts the next steps, if the engine is idle and has requests.
func (e *engine) startSteps(q *eventQueue, now time.Duration) {
	if e.steps > 0 || !e.batch.Begin() {
		return
	}
	e.began, e.step, e.steps = now, e.batch.Step(), e.batch.Alike()
	e.scheduleEnd(q)
}

// interruptSteps makes the steps end with the current one.
func (e *engine) interruptSteps(q *eventQueue, now time.Duration) {
	if e.steps <= 1 || e.step == 0 {
		return
	}
	if taken := int((now-e.began-1)/e.step) + 1; taken < e.steps {
		e.steps = max(taken, 1)
		e.scheduleEnd(q)
	}
}

// scheduleEnd adds the event to end the steps.
func (e *engine) scheduleEnd(q *eventQueue) {
	e.due = q.push(event{at: e.began + time.Duration(e.steps)*e.step, kind: stepsEnd, index: e.index})
}

// finishSteps ends the steps. It reports false for an event replaced after an interruption.
func (e *engine) finishSteps(due uint64) (ended bool) {
	if due != e.due {
		return false
	}
	e.batch.Finish(e.steps)
	e.steps = 0
	return true
}

// A fleet holds the replicas of a replay, including removed ones.
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
	response := http.Response{StatusCode: http.StatusOK, Body: http.NoBody}
	f := &fleet{options: o, block: blockTokens, by: make(map[*llmserver.Replica]*engine)}
	f.pool.Dial = func(e llmserver.Endpoint) (llmserver.Backend, error) {
		plain, err := llmserver.DialHTTP(e)
		return fixedBackend{plain, &response}, err
	}
	for i := range o.Replicas {
		f.endpoints = append(f.endpoints, f.newEndpoint(replicaName(i)))
	}
	return f
}

// replicaName returns the name of the replica at an index: a to z, then aa and so on.
func replicaName(i int) string {
	if i < 26 {
		return string(rune('a' + i))
	}
	return replicaName(i/26-1) + replicaName(i%26)
}

// newEndpoint returns the endpoint of a new process.
func (f *fleet) newEndpoint(id string) llmserver.Endpoint {
	f.started++
	return llmserver.Endpoint{
		ID: id, URL: "http://" + id, Instance: fmt.Sprint(f.started), Limit: f.options.MaxOngoing,
	}
}

// applyEvent changes the endpoints as an event says.
func (f *fleet) applyEvent(e Event) error {
	i := slices.IndexFunc(f.endpoints, func(p llmserver.Endpoint) bool { return p.ID == e.Replica })
	switch {
	case e.Kind == Add:
		next := len(f.endpoints)
		for slices.ContainsFunc(f.endpoints, func(p llmserver.Endpoint) bool { return p.ID == replicaName(next) }) {
			next++
		}
		f.endpoints = append(f.endpoints, f.newEndpoint(replicaName(next)))
	case i < 0:
		return fmt.Errorf("no replica %q to %s", e.Replica, e.Kind)
	case e.Kind == Remove:
		f.endpoints = slices.Delete(f.endpoints, i, i+1)
	default:
		f.endpoints[i] = f.newEndpoint(e.Replica)
	}
	return nil
}

// members returns the replicas of the current endpoints. The caller calls retire once the router
// uses them.
func (f *fleet) members() (replicas []*llmserver.Replica, retire func()) {
	replicas, retire, err := f.pool.Set(f.endpoints)
	if err != nil {
		panic("BUG: " + err.Error()) // Dial does not fail, and all instances differ
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

// A fixedBackend returns the same response to every request, without I/O.
type fixedBackend struct {
	llmserver.Backend
	response *http.Response
}

func (b fixedBackend) Do(*http.Request, llmserver.Token) (*http.Response, llmserver.Report, error) {
	return b.response, llmserver.Report{}, nil
}

// limits bound neither the queue nor the wait: the result shows the longest wait.
var limits = routers.Limits{MaxQueued: -1, QueueTimeout: math.MaxInt64}
