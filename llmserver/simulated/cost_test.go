package simulated

import (
	"testing"
	"time"
)

func TestCostOfAStepCountsPromptTokensAndChoices(t *testing.T) {
	cost := Cost{PrefillTokensPerSecond: 8000, DecodeStep: 6 * time.Millisecond, DecodeStepPerRequest: 350 * time.Microsecond}
	for _, c := range []struct {
		tokens, choices int
		want            time.Duration
	}{
		{0, 0, 0},
		{800, 0, 100 * time.Millisecond},
		{0, 1, 6350 * time.Microsecond},
		{0, 100, 41 * time.Millisecond},
		{800, 100, 141 * time.Millisecond},
	} {
		if got := cost.Step(c.tokens, c.choices); got != c.want {
			t.Errorf("Step(%d, %d) = %v, want %v", c.tokens, c.choices, got, c.want)
		}
	}
	if got := (Cost{}).Step(1000, 10); got != 0 {
		t.Errorf("the zero cost takes %v", got)
	}
}
