package telemetry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"berth/llmserver"
	"berth/routers"
	"berth/streaming"
)

func noPolicy() string { return "" }

func TestHooksReleaseCauseOfEachOutcome(t *testing.T) {
	sent := func(err error) routers.Outcome { return routers.Outcome{Dispatched: true, Err: err} }
	for want, outcomes := range map[string][]routers.Outcome{
		"not_sent":    {{}, {Err: llmserver.ErrGone}},
		"finished":    {{Dispatched: true, Served: true}},
		"client_gone": {sent(context.Canceled), sent(fmt.Errorf("%w: by itself", streaming.ErrClientGone))},
		"refused":     {sent(llmserver.ErrBusy), sent(llmserver.ErrToken), sent(llmserver.ErrNoConnection)},
		"failed":      {sent(llmserver.ErrBroken), sent(streaming.ErrUpstreamBroken), sent(llmserver.ErrServerError), sent(errors.New("anything"))},
	} {
		for _, o := range outcomes {
			if got := releaseCause(o); got != want {
				t.Errorf("%+v is %s; want %s", o, got, want)
			}
		}
	}
}

func TestHooksCountAgentWaits(t *testing.T) {
	m := NewModelMetrics("m")
	hooks := newTelemetry().RouterHooks(m, noPolicy)
	hooks.AgentWaitEnded("a", true, nil) // counted when its request takes it
	hooks.AgentWaitEnded("a", false, nil)
	hooks.AgentWaitEnded("a", false, context.Canceled)
	hooks.AgentWaitEnded("a", false, llmserver.ErrFull)
	hooks.AgentWaitEnded("a", true, errors.New("lost"))
	want := map[string]float64{"m,surplus": 1, "m,abandoned": 1, "m,full": 1, "m,unclear": 1}
	if got := counterValues(t, m, "berth_reservations_total"); !maps.Equal(got, want) {
		t.Errorf("counted %v; want %v", got, want)
	}
}

func TestHooksCountRejectionsByReason(t *testing.T) {
	m := NewModelMetrics("m")
	hooks := newTelemetry().RouterHooks(m, noPolicy)
	want := make(map[string]float64)
	for err, outcome := range map[error]string{
		llmserver.ErrFull: "full", llmserver.ErrDraining: "draining", llmserver.ErrNoConnection: "no_connection",
		llmserver.ErrExhausted: "exhausted", context.Canceled: "abandoned", llmserver.ErrBroken: "unclear",
	} {
		hooks.Rejected(nil, "a", fmt.Errorf("replica a: %w", err))
		hooks.AgentWaitEnded("a", false, err)
		want["m,"+outcome] = 2
	}
	if got := counterValues(t, m, "berth_reservations_total"); !maps.Equal(got, want) {
		t.Errorf("counted %v; want %v", got, want)
	}
}

// A prompt without known blocks has no match ratio; counting it as 0 would be wrong.
func TestHooksObserveNoMatchRatioWithoutBlocks(t *testing.T) {
	for blocks, want := range []float64{0, 1} {
		m := NewModelMetrics("m")
		r := newRouter(t, "a", newTelemetry().RouterHooks(m, noPolicy))
		sel, err := r.Choose(t.Context(), &routers.Payload{Blocks: make([]uint64, blocks)})
		if err != nil {
			t.Fatal(err)
		}
		sel.Release()
		if got := counterValues(t, m, "berth_prefix_match_ratio")["m"]; got != want {
			t.Errorf("%v ratios of a prompt with %d blocks", got, blocks)
		}
	}
}
