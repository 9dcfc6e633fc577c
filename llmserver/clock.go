package llmserver

import "time"

// epoch is far in the past, so no reading is zero or negative, not even with the fake clock of
// testing/synctest, which starts in the year 2000.
var epoch = time.Now().Add(-40 * 365 * 24 * time.Hour)

// monotonic returns the time since a fixed moment, unaffected by changes of the wall clock. All
// deadlines of replicas are monotonic, so setting the wall clock back keeps no replica ejected.
func monotonic() time.Duration { return time.Since(epoch) }
