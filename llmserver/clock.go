package llmserver

import "time"

// epoch is long ago, so that no reading is zero or below, even by the fake clocks of tests, which begin in
// the year 2000.
var epoch = time.Now().Add(-40 * 365 * 24 * time.Hour)

// monotonic returns the time since a fixed moment. What decides about replicas goes by it, so that a
// wall clock which is set back keeps no replica out.
func monotonic() time.Duration { return time.Since(epoch) }
