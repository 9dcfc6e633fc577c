package replay

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Trace is recorded traffic. It is not changed by a replay.
type Trace struct {
	BlockTokens int // tokens of the blocks by which prefixes are known
	Requests    []Request
	// Sessions > 0: the times of requests count from the start of their
	// session, one of that many, and sessions start when Arrange says.
	Sessions int

	measure sync.Once
	ceiling float64
}

// Request is one recorded request. It comes at the time At, but no sooner than Gap after the answer
// to the request that it follows, for a client cannot say more before it was answered.
type Request struct {
	At      time.Duration
	Session string // empty: none
	Prompt  int    // tokens, at least 1
	Output  int    // tokens

	Follows int // index of a request before it; -1: none
	Gap     time.Duration

	model   string // where the trace has more than one
	session int    // from 0, where the trace has sessions
	seed    uint64 // of the chain: equal ids mean equal content only under the same seed
	runs    []run
}

// run is count block ids in sequence.
type run struct {
	first uint64
	count int
}

// appendID adds a block id to runs.
func appendID(runs []run, id uint64) []run {
	if n := len(runs); n > 0 && runs[n-1].first+uint64(runs[n-1].count) == id {
		runs[n-1].count++
		return runs
	}
	return append(runs, run{id, 1})
}

// chain is the chained hashes of the prompt's whole blocks, in the memory of another chain if that is enough.
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

// mix is the finaliser of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Arrange is the trace with its sessions started as a Poisson process with this
// mean gap, in random order. A trace without sessions is returned as it is.
func (t *Trace) Arrange(seed uint64, gap time.Duration) *Trace {
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

// Limit is the trace's first n requests.
func (t *Trace) Limit(n int) *Trace {
	if n <= 0 || n >= len(t.Requests) {
		return t
	}
	return &Trace{BlockTokens: t.BlockTokens, Requests: t.Requests[:n], Sessions: t.Sessions}
}

// Of is the part of the trace that is of one model, which need not be named where there is
// but one: replicas serve one model.
func (t *Trace) Of(model string) (*Trace, error) {
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
		return nil, fmt.Errorf("there is no model %q in the trace; it has %q", model, models)
	}
	of := &Trace{BlockTokens: t.BlockTokens}
	place := make(map[int]int)
	for i, r := range t.Requests {
		if r.model == model {
			if r.Follows >= 0 {
				r.Follows = place[r.Follows] // of the same model, and not after it
			}
			place[i] = len(of.Requests)
			of.Requests = append(of.Requests, r)
		}
	}
	return of, nil
}

// sorted orders requests by time, and keeps who follows whom. Nobody comes
// before the request that it follows.
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

// ratio is a/b, 0 where there is nothing to compare.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
