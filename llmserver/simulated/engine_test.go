package simulated

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

var testConfig = Config{
	PrefillTokensPerSecond: testCost.PrefillTokensPerSecond,
	DecodeStep:             testCost.DecodeStep,
	DecodeStepPerRequest:   testCost.DecodeStepPerRequest,
}

func TestSimulatedConfigDefaultsAreAsDocumented(t *testing.T) {
	want := Config{
		ID: "simulated", Model: "demo",
		PrefillTokensPerSecond: 8000, DecodeStep: 6 * time.Millisecond, DecodeStepPerRequest: 350 * time.Microsecond,
		KVCacheTokens: 524288, MaxRunning: 256,
	}
	if got := (Config{DecodeStep: -1}).withDefaults(); got != want {
		t.Errorf("%+v", got)
	}
	if got := want.withDefaults(); got != want {
		t.Errorf("a full config changed to %+v", got)
	}
}

// inBubble runs a test on an engine in virtual time.
func inBubble(t *testing.T, config Config, test func(t *testing.T, e *Engine)) {
	synctest.Test(t, func(t *testing.T) {
		e := New(config)
		defer e.Close()
		test(t, e)
	})
}

func mustSubmit(t *testing.T, e *Engine, s *Sequence) *job {
	t.Helper()
	w, err := e.submit([]*Sequence{s})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// waitFor returns how long the job takes to have that many tokens.
func waitFor(t *testing.T, w *job, tokens int) time.Duration {
	t.Helper()
	began := time.Now()
	if _, err := w.waitForTokens(t.Context(), tokens-1); err != nil {
		t.Fatal(err)
	}
	return time.Since(began).Round(time.Microsecond)
}

func TestSimulatedTokensFollowTheCostModel(t *testing.T) {
	inBubble(t, testConfig, func(t *testing.T, e *Engine) {
		w := mustSubmit(t, e, &Sequence{Prompt: 100, Choices: 1, Limit: 10})
		if got, want := waitFor(t, w, 1), 100*time.Millisecond+testCost.Decode(1); got != want {
			t.Errorf("first token after %v, want %v", got, want)
		}
		if got, want := waitFor(t, w, 10), 9*testCost.Decode(1); got != want {
			t.Errorf("the other nine after %v, want %v", got, want)
		}
		time.Sleep(3 * time.Millisecond) // idle for less than a step
		w = mustSubmit(t, e, &Sequence{Prompt: 50, Choices: 1, Limit: 1})
		if got, want := waitFor(t, w, 1), 50*time.Millisecond+testCost.Decode(1); got != want {
			t.Errorf("after an idle moment: first token after %v, want %v", got, want)
		}
	})
}

func TestSimulatedRequestsSlowEachOther(t *testing.T) {
	inBubble(t, testConfig, func(t *testing.T, e *Engine) {
		var all []*job
		for range 50 {
			all = append(all, mustSubmit(t, e, &Sequence{Prompt: 1, Choices: 1, Limit: 100}))
		}
		for _, w := range all {
			waitFor(t, w, 50)
		}
		if got, want := waitFor(t, all[49], 60), 10*testCost.Decode(50); got != want {
			t.Errorf("ten tokens among 50 took %v, want %v", got, want)
		}
	})
}

func TestSimulatedCachedPromptIsNotComputedAgain(t *testing.T) {
	inBubble(t, testConfig, func(t *testing.T, e *Engine) {
		chain := chainFrom(make([]uint64, 10))
		waitFor(t, mustSubmit(t, e, &Sequence{Prompt: 165, Choices: 1, Limit: 1, Chain: chain}), 1)
		s := &Sequence{Prompt: 165, Choices: 1, Limit: 1, Chain: chain}
		if got, want := waitFor(t, mustSubmit(t, e, s), 1), 5*time.Millisecond+testCost.Decode(1); got != want {
			t.Errorf("took %v, want %v for the 5 tokens after 10 cached blocks", got, want)
		}
		if s.Cached() != 160 {
			t.Errorf("%d tokens cached, want 160", s.Cached())
		}
	})
}

func TestSimulatedCancelledJobLeavesAtOnce(t *testing.T) {
	config := testConfig
	config.MaxRunning = 2
	inBubble(t, config, func(t *testing.T, e *Engine) {
		decoding := mustSubmit(t, e, &Sequence{Prompt: 1, Choices: 2, Limit: 1000})
		waitFor(t, decoding, 5)
		prefilling := mustSubmit(t, e, &Sequence{Prompt: 2000, Choices: 1, Limit: 1})
		waiting := mustSubmit(t, e, &Sequence{Prompt: 100, Choices: 1, Limit: 1})
		abandoned := mustSubmit(t, e, &Sequence{Prompt: 4000, Choices: 1, Limit: 1})
		time.Sleep(500 * time.Millisecond) // in the middle of the prefill

		abandoned.cancelRemaining()
		prefilling.cancelRemaining()
		if n := decoding.cancelRemaining(); n < 10 || n > 14 {
			t.Errorf("cancelling returned %d generated tokens, want 2 choices of 5 or a few more", n)
		}
		if got, want := waitFor(t, waiting, 1), 100*time.Millisecond+testCost.Decode(1); got != want {
			t.Errorf("the last one was done after %v, want %v: as if alone", got, want)
		}
		e.withBatch(func(b *Batch) {
			if b.Running() != 0 || b.Waiting() != 0 || b.cache.Held() != 0 {
				t.Errorf("%d running, %d waiting, %d blocks held; want none", b.Running(), b.Waiting(), b.cache.Held())
			}
		})
		generated := e.Stats().GeneratedTokens
		time.Sleep(time.Minute)
		if e.Stats().GeneratedTokens != generated {
			t.Error("tokens were generated after everybody had left")
		}
	})
}

func TestSimulatedJobProgressIsThatOfItsSlowestPrompt(t *testing.T) {
	inBubble(t, testConfig, func(t *testing.T, e *Engine) {
		w, err := e.submit([]*Sequence{{Prompt: 1, Choices: 1, Limit: 9}, {Prompt: 2 * prefillChunk, Choices: 1, Limit: 9}})
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := w.waitForTokens(t.Context(), 0); n != 1 {
			t.Errorf("%d tokens of every choice at the first progress, want 1", n)
		}
		if first := w.progress[0].Load(); first < 2 {
			t.Errorf("the short prompt has %d tokens only", first)
		}
	})
}

func TestSimulatedWaitEndsWithItsContext(t *testing.T) {
	inBubble(t, testConfig, func(t *testing.T, e *Engine) {
		ctx, cancel := context.WithTimeout(t.Context(), 70*time.Millisecond)
		defer cancel()
		w := mustSubmit(t, e, &Sequence{Prompt: 1000, Choices: 1, Limit: 1})
		began := time.Now()
		_, err := w.waitForTokens(ctx, 0)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 70*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		w.cancelRemaining()
	})
}

func TestSimulatedCloseWakesWaiters(t *testing.T) {
	inBubble(t, testConfig, func(t *testing.T, e *Engine) {
		w := mustSubmit(t, e, &Sequence{Prompt: 1000, Choices: 1, Limit: 1})
		go func() {
			time.Sleep(10 * time.Millisecond)
			e.Close()
		}()
		if _, err := w.waitForTokens(t.Context(), 0); !errors.Is(err, errClosed) {
			t.Errorf("wait: %v", err)
		}
		if w.cancelRemaining() != 0 {
			t.Error("tokens before the prompt was computed")
		}
		if _, err := e.submit([]*Sequence{{Prompt: 1, Choices: 1, Limit: 1}}); !errors.Is(err, errClosed) {
			t.Errorf("start: %v", err)
		}
		e.Stats()
		e.Close()
	})
}

func TestSimulatedSlowAppliesToTheStepInProgress(t *testing.T) {
	inBubble(t, testConfig, func(t *testing.T, e *Engine) {
		w := mustSubmit(t, e, &Sequence{Prompt: 100, Choices: 1, Limit: 10})
		e.SetFaults(Faults{Slow: 10})
		if got, want := waitFor(t, w, 1), 10*(100*time.Millisecond+testCost.Decode(1)); got != want {
			t.Errorf("first token after %v, want %v", got, want)
		}
		e.SetFaults(Faults{})
		if got, want := waitFor(t, w, 2), testCost.Decode(1); got != want {
			t.Errorf("healed: next token after %v, want %v", got, want)
		}
	})
}

func TestSimulatedNextPromptStartsWhenOneIsAbandoned(t *testing.T) {
	config := testConfig
	config.MaxRunning = 1
	inBubble(t, config, func(t *testing.T, e *Engine) {
		abandoned := mustSubmit(t, e, &Sequence{Prompt: 1000, Choices: 1, Limit: 1})
		next := mustSubmit(t, e, &Sequence{Prompt: 100, Choices: 1, Limit: 1})
		time.Sleep(10 * time.Millisecond)
		abandoned.cancelRemaining()
		if got, want := waitFor(t, next, 1), 100*time.Millisecond+testCost.Decode(1); got != want {
			t.Errorf("first token %v after the place was free, want %v", got, want)
		}
	})
}

// stallEngine keeps the batch's goroutine busy, as a machine under load would.
func stallEngine(e *Engine, d time.Duration) {
	e.withBatch(func(*Batch) { time.Sleep(d) })
}

func TestSimulatedLateStepDoesNotDelayTheNext(t *testing.T) {
	inBubble(t, testConfig, func(t *testing.T, e *Engine) {
		w := mustSubmit(t, e, &Sequence{Prompt: 1, Choices: 1, Limit: 10})
		waitFor(t, w, 1)
		began := time.Now()
		stallEngine(e, testCost.Decode(1)+maxCatchUp/4)
		waitFor(t, w, 10)
		if got, want := time.Since(began), 9*testCost.Decode(1); got != want {
			t.Errorf("nine tokens took %v, want %v", got, want)
		}
	})
}

func TestSimulatedEngineDoesNotRushAfterAStall(t *testing.T) {
	inBubble(t, testConfig, func(t *testing.T, e *Engine) {
		w := mustSubmit(t, e, &Sequence{Prompt: 1, Choices: 1, Limit: 10})
		waitFor(t, w, 1)
		stallEngine(e, time.Second)
		waitFor(t, w, 2)
		if got, want := waitFor(t, w, 10), 8*testCost.Decode(1); got != want {
			t.Errorf("the eight tokens after a second's stall took %v, want %v", got, want)
		}
	})
}
