package simulated

import "time"

// Cost says how long an engine computes. The zero value computes in no time.
type Cost struct {
	PrefillTokensPerSecond float64       // prompt tokens computed per second, those found in the cache excluded; 0 = at once
	DecodeStep             time.Duration // a step in which at least one answer grows
	DecodeStepPerRequest   time.Duration // what each growing answer adds to it
}

// Prefill is the time to compute that many prompt tokens.
func (c Cost) Prefill(tokens int) time.Duration {
	if c.PrefillTokensPerSecond <= 0 {
		return 0
	}
	return time.Duration(float64(tokens) / c.PrefillTokensPerSecond * float64(time.Second))
}

// Decode is the time in which that many answers grow by one token each.
func (c Cost) Decode(answers int) time.Duration {
	if answers == 0 {
		return 0
	}
	return c.DecodeStep + time.Duration(answers)*c.DecodeStepPerRequest
}

// Step is the time of one pass that computes prompt tokens and lets answers grow.
func (c Cost) Step(promptTokens, answers int) time.Duration {
	return c.Prefill(promptTokens) + c.Decode(answers)
}
