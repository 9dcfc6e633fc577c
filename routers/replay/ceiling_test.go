package replay

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// blockwise computes the ceiling by its definition, block by block.
func blockwise(t *Trace) float64 {
	known := make(map[uint64]bool)
	hits, total := 0, 0
	for i := range t.Requests {
		r := &t.Requests[i]
		chain, hit := r.chain(t.BlockTokens, nil), 0
		for hit < len(chain) && known[chain[hit]] {
			hit++
		}
		for _, hash := range chain {
			known[hash] = true
		}
		hits += min(hit, (r.Prompt-1)/t.BlockTokens) * t.BlockTokens
		total += r.Prompt
	}
	return ratio(float64(hits), float64(total))
}

func TestTraceCeilingIgnoresHowIDsAreSplitIntoRuns(t *testing.T) {
	trace := promptsAt(make([]time.Duration, 5), nil, nil, nil, nil, nil)
	for i, runs := range [][]run{
		{{1, 10}},                 // no block is known
		{{1, 3}, {4, 0}, {4, 7}},  // all are known, of which 9 count
		{{1, 5}, {9, 1}},          // 5 are known
		{{1, 2}, {3, 3}, {6, 9}},  // 10 are known
		{{1, 5}, {9, 2}, {11, 1}}, // 6 are known
	} {
		trace.Requests[i].runs = runs
		for _, r := range runs {
			trace.Requests[i].Prompt += 16 * r.count
		}
	}
	if got, want := trace.Ceiling(), float64(9+5+10+6)/(10+10+6+14+8); got != want {
		t.Errorf("%v; want %v", got, want)
	}
}

func TestTraceCeilingMatchesBlockwiseDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		trace := &Trace{BlockTokens: 4}
		for range rapid.IntRange(1, 30).Draw(t, "requests") {
			r := Request{
				Prompt: rapid.IntRange(1, 60).Draw(t, "prompt"), // runs may have more blocks, or fewer
				seed:   rapid.Uint64Range(0, 1).Draw(t, "seed"),
			}
			for range rapid.IntRange(0, 5).Draw(t, "runs") {
				r.runs = append(r.runs, run{rapid.Uint64Range(0, 4).Draw(t, "first"), rapid.IntRange(0, 5).Draw(t, "count")})
			}
			trace.Requests = append(trace.Requests, r)
		}
		if got, want := trace.Ceiling(), blockwise(trace); got != want {
			t.Errorf("%v; block by block it is %v", got, want)
		}
	})
}
