package streaming

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// A writeWatchdog ends a write without progress: it samples writes four times per timeout and sets
// a write deadline in the past once the same write has been in progress for the whole timeout. A
// write thus fails after the timeout or up to a quarter later. A healthy write costs two atomic
// additions.
//
// A write deadline set in advance would not do: net/http resets an HTTP/2 stream when the deadline
// passes, even if nothing is being written because the upstream is silent. A deadline per write
// would change a timer twice per event.
//
// start and the counting of writes belong to the writing goroutine; checkProgress runs in the
// timer's goroutine. mu orders checkProgress and stop, so no deadline is set after stop has
// returned.
type writeWatchdog struct {
	rc      *http.ResponseController
	timeout time.Duration // 0: no watchdog
	started bool          // only for the writing goroutine
	writes  atomic.Uint64 // odd while a write is in progress

	mu      sync.Mutex
	timer   *time.Timer // nil before start and after stop
	seen    uint64      // writes at the last sample
	hanging int         // consecutive samples with the same write in progress
	stalled bool
}

// samplesPerTimeout is the number of samples for which a write must hang.
const samplesPerTimeout = 4

// start starts the timer. Further calls do nothing.
func (w *writeWatchdog) start() {
	if w.started || w.timeout <= 0 {
		return
	}
	w.started = true
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.timeout/samplesPerTimeout, w.checkProgress)
}

// checkProgress takes one sample, and then ends a hanging write or rearms the timer.
func (w *writeWatchdog) checkProgress() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer == nil {
		return
	}
	writes := w.writes.Load()
	if writes%2 == 0 || writes != w.seen {
		w.seen, w.hanging = writes, 0
	} else if w.hanging++; w.hanging == samplesPerTimeout {
		w.stalled = true
		_ = w.rc.SetWriteDeadline(time.Unix(1, 0)) // without support for deadlines the write goes on
		return
	}
	w.timer.Reset(w.timeout / samplesPerTimeout)
}

// stop stops the watchdog and reports whether the watchdog has ended a write. Once stop has
// returned, the ResponseController is not used any more, as net/http requires after a handler's
// return. Further calls return the same.
func (w *writeWatchdog) stop() (stalled bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	return w.stalled
}
