package simulated

import "time"

// Cost is the model of an engine's computing time. The zero value computes in no time.
type Cost struct {
	PrefillTokensPerSecond float64       // prompt tokens computed per second, without cached ones; 0 = at once
	DecodeStep             time.Duration // of a step in which at least one choice grows
	DecodeStepPerRequest   time.Duration // added per growing choice
}

// Prefill returns the time to compute the prompt tokens.
func (c Cost) Prefill(tokens int) time.Duration {
	if c.PrefillTokensPerSecond <= 0 {
		return 0
	}
	return time.Duration(float64(tokens) / c.PrefillTokensPerSecond * float64(time.Second))
}

// Decode returns the time in which the choices grow by one token each.
func (c Cost) Decode(choices int) time.Duration {
	if choices == 0 {
		return 0
	}
	return c.DecodeStep + time.Duration(choices)*c.DecodeStepPerRequest
}

// Step returns the time of one pass to compute prompt tokens and grow choices.
func (c Cost) Step(promptTokens, choices int) time.Duration {
	return c.Prefill(promptTokens) + c.Decode(choices)
}
