package replay

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// A Trace is recorded traffic. Replays do not change a trace and may share one.
type Trace struct {
	BlockTokens int // tokens per block
	Requests    []Request
	// Sessions, if above 0, is the number of sessions; times of requests then count from the start
	// of their session, and ScheduleSessions sets the starts.
	Sessions int

	measure sync.Once
	ceiling float64
}

// A Request is one recorded request. It arrives at the time At, but not before Gap after the end of
// the preceding request, since a client needs the response for the next turn.
type Request struct {
	At      time.Duration
	Session string // empty: none
	Prompt  int    // tokens, at least 1
	Output  int    // tokens

	Follows int // index of an earlier request; -1: none
	Gap     time.Duration

	model   string // if the trace has several
	session int    // from 0, if the trace has sessions
	seed    uint64 // of the chain: equal ids are equal content only under the same seed
	runs    []run
}

// run is count block ids in sequence.
type run struct {
	first uint64
	count int
}

// appendID appends a block id to runs.
func appendID(runs []run, id uint64) []run {
	if n := len(runs); n > 0 && runs[n-1].first+uint64(runs[n-1].count) == id {
		runs[n-1].count++
		return runs
	}
	return append(runs, run{id, 1})
}

// chain returns the chained hashes of the prompt's full blocks. The given memory is reused if large
// enough.
func (r *Request) chain(blockTokens int, memory []uint64) []uint64 {
	whole := r.Prompt / blockTokens
	chain := slices.Grow(memory[:0], whole)
	hash := r.seed
	for _, run := range r.runs {
		for i := range uint64(run.count) {
			if len(chain) == whole {
				return chain
			}
			hash = mix(hash ^ mix(run.first+i))
			chain = append(chain, hash)
		}
	}
	return chain
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// ScheduleSessions returns the trace with its sessions started in random order, as a Poisson
// process with a mean gap. A trace without sessions is returned unchanged.
func (t *Trace) ScheduleSessions(seed uint64, gap time.Duration) *Trace {
	if t.Sessions == 0 {
		return t
	}
	random := rand.New(rand.NewPCG(seed, 1))
	starts := make([]time.Duration, t.Sessions)
	at := time.Duration(0)
	for _, i := range random.Perm(t.Sessions) {
		starts[i] = at
		at += time.Duration(random.ExpFloat64() * float64(gap))
	}
	requests := slices.Clone(t.Requests)
	for i := range requests {
		requests[i].At += starts[requests[i].session]
	}
	return &Trace{BlockTokens: t.BlockTokens, Requests: sorted(requests)}
}

// Limit returns the first n requests of the trace, or all if n is not positive.
func (t *Trace) Limit(n int) *Trace {
	if n <= 0 || n >= len(t.Requests) {
		return t
	}
	return &Trace{BlockTokens: t.BlockTokens, Requests: t.Requests[:n], Sessions: t.Sessions}
}

// ForModel returns the requests of one model, since replicas serve one. The name may be empty if
// the trace has only one model.
func (t *Trace) ForModel(model string) (*Trace, error) {
	var models []string
	for i := range t.Requests {
		if m := t.Requests[i].model; !slices.Contains(models, m) {
			models = append(models, m)
		}
	}
	slices.Sort(models)
	switch {
	case model == "" && len(models) == 1:
		return t, nil
	case !slices.Contains(models, model):
		return nil, fmt.Errorf("no model %q in the trace; it has %q", model, models)
	}
	of := &Trace{BlockTokens: t.BlockTokens}
	place := make(map[int]int)
	for i, r := range t.Requests {
		if r.model == model {
			if r.Follows >= 0 {
				r.Follows = place[r.Follows] // same model, and earlier
			}
			place[i] = len(of.Requests)
			of.Requests = append(of.Requests, r)
		}
	}
	return of, nil
}

// sorted returns requests in order of time, with their Follows adjusted. No request is recorded
// before its predecessor.
func sorted(requests []Request) []Request {
	if slices.IsSortedFunc(requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) }) {
		return requests
	}
	order := make([]int, len(requests))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(requests[a].At, requests[b].At), cmp.Compare(a, b))
	})
	place := make([]int, len(requests))
	for i, old := range order {
		place[old] = i
	}
	result := make([]Request, len(requests))
	for i, old := range order {
		result[i] = requests[old]
		if f := result[i].Follows; f >= 0 {
			result[i].Follows = place[f]
		}
	}
	return result
}

// ratio returns a/b, or 0 if b is 0.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
