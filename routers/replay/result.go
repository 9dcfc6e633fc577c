package replay

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"

	"berth/llmserver"
	"berth/llmserver/simulated"
)

// A Result holds the figures of a policy on a trace.
type Result struct {
	Policy        string  `json:"policy"`
	Requests      int     `json:"requests"`      // served
	HitRate       float64 `json:"hit_rate"`      // share of prompt tokens found in caches
	Ceiling       float64 `json:"ceiling"`       // the hit rate of one unlimited cache
	MaxOverMean   float64 `json:"max_over_mean"` // prompt tokens computed: busiest replica over mean
	CV            float64 `json:"cv"`            // the same: coefficient of variation
	TTFTMean      float64 `json:"ttft_mean_ms"`  // from arrival to the first token
	TTFT50        float64 `json:"ttft_p50_ms"`
	TTFT90        float64 `json:"ttft_p90_ms"`
	TTFT99        float64 `json:"ttft_p99_ms"`
	WaitMax       float64 `json:"wait_max_ms"`    // longest wait in the queue
	SessionsMoved int     `json:"sessions_moved"` // sessions served by more than one replica
	Refused       int     `json:"refused"`

	ttft []time.Duration // sorted
}

// Median returns the median of each figure over an odd number of results of one policy. The plotted
// distribution belongs to the result with the median mean. Median sorts results.
func Median(results []*Result) *Result {
	slices.SortFunc(results, func(a, b *Result) int { return cmp.Compare(a.TTFTMean, b.TTFTMean) })
	median := *results[len(results)/2]
	for _, figure := range []func(*Result) *float64{
		func(r *Result) *float64 { return &r.HitRate },
		func(r *Result) *float64 { return &r.Ceiling },
		func(r *Result) *float64 { return &r.MaxOverMean },
		func(r *Result) *float64 { return &r.CV },
		func(r *Result) *float64 { return &r.TTFT50 },
		func(r *Result) *float64 { return &r.TTFT90 },
		func(r *Result) *float64 { return &r.TTFT99 },
		func(r *Result) *float64 { return &r.WaitMax },
	} {
		var values []float64
		for _, r := range results {
			values = append(values, *figure(r))
		}
		slices.Sort(values)
		*figure(&median) = values[len(values)/2]
	}
	for _, count := range []func(*Result) *int{
		func(r *Result) *int { return &r.Requests },
		func(r *Result) *int { return &r.SessionsMoved },
		func(r *Result) *int { return &r.Refused },
	} {
		var values []int
		for _, r := range results {
			values = append(values, *count(r))
		}
		slices.Sort(values)
		*count(&median) = values[len(values)/2]
	}
	return &median
}

// Table writes results as a table.
func Table(w io.Writer, results []*Result) error {
	columns := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(columns, "policy\trequests\thit rate\tof ceiling\tbusiest/mean\tTTFT mean\tp50\tp90\tp99\tlongest wait\tsessions moved\trefused\t")
	for _, r := range results {
		fmt.Fprintf(columns, "%s\t%d\t%.3f\t%.3f\t%.2f\t%.0f ms\t%.0f\t%.0f\t%.0f\t%.0f ms\t%d\t%d\t\n", r.Policy, r.Requests,
			r.HitRate, ratio(r.HitRate, r.Ceiling), r.MaxOverMean, r.TTFTMean, r.TTFT50, r.TTFT90, r.TTFT99, r.WaitMax, r.SessionsMoved, r.Refused)
	}
	return columns.Flush()
}

// A tally counts during a replay.
type tally struct {
	ttft    []time.Duration
	wait    time.Duration
	refused int
	prompt  int // tokens
	cached  int
	homes   map[string]*llmserver.Replica
	moved   map[string]bool
}

func newTally() tally {
	return tally{homes: make(map[string]*llmserver.Replica), moved: make(map[string]bool)}
}

// addPlacement counts a request placed on r after a wait.
func (t *tally) addPlacement(session string, r *llmserver.Replica, wait time.Duration) {
	t.wait = max(t.wait, wait)
	if session == "" {
		return
	}
	if home := t.homes[session]; home != nil && home != r {
		t.moved[session] = true
	}
	t.homes[session] = r
}

// addFirstToken counts a first token.
func (t *tally) addFirstToken(after time.Duration, s *simulated.Sequence) {
	t.ttft = append(t.ttft, after)
	t.prompt += s.Prompt
	t.cached += s.Cached()
}

// result computes the figures.
func (t *tally) result(policy string, p *simulation) *Result {
	r := &Result{
		Policy: policy, Requests: len(t.ttft), Refused: t.refused, SessionsMoved: len(t.moved),
		HitRate: ratio(float64(t.cached), float64(t.prompt)), Ceiling: p.trace.Ceiling(), WaitMax: milliseconds(t.wait), ttft: t.ttft,
	}
	slices.Sort(t.ttft)
	if n := len(t.ttft); n > 0 {
		sum := time.Duration(0)
		for _, d := range t.ttft {
			sum += d
		}
		r.TTFTMean = milliseconds(sum) / float64(n)
		r.TTFT50, r.TTFT90, r.TTFT99 = r.quantile(0.5), r.quantile(0.9), r.quantile(0.99)
	}
	var loads []float64
	for _, e := range p.fleet.engines {
		t := e.batch.Totals()
		loads = append(loads, float64(t.QueriedTokens-t.HitTokens))
	}
	slices.Sort(loads)
	r.MaxOverMean, r.CV = spread(loads)
	return r
}

// quantile returns the time within which a share q of the requests had their first token.
func (r *Result) quantile(q float64) float64 {
	return milliseconds(r.ttft[int(math.Ceil(q*float64(len(r.ttft))))-1])
}

// spread returns two measures of imbalance.
func spread(loads []float64) (maxOverMean, cv float64) {
	sum, squares := 0.0, 0.0
	for _, l := range loads {
		sum += l
	}
	mean := sum / float64(len(loads))
	for _, l := range loads {
		squares += (l - mean) * (l - mean)
	}
	return ratio(slices.Max(loads), mean), ratio(math.Sqrt(squares/float64(len(loads))), mean)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
