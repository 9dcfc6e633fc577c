package telemetry

import (
	"context"
	"log/slog"
	"time"
)

// outageQuiet is the time without failures after which an outage is over. A nearly full disk, with
// room for a few bytes now and then, has one outage.
const outageQuiet = time.Second

// outage logs a lasting failure in two lines: one at the beginning, with the reason, and one at the
// end, with the number of lost items. It is not safe for concurrent use.
type outage struct {
	log         *slog.Logger
	level       slog.Level // of the first line; the second is logged at Info
	begin, over string     // messages

	began, failed time.Time // first and last failure; began is zero while there is no outage
	lost          int
}

// record adds the result of one try: the error, or nil, and the number of lost items.
func (o *outage) record(err error, lost int) {
	now := time.Now()
	switch {
	case err != nil && o.began.IsZero():
		o.began = now
		o.log.Log(context.Background(), o.level, o.begin, "error", err)
		fallthrough
	case err != nil:
		o.failed = now
		o.lost += lost
	case !o.began.IsZero() && now.Sub(o.failed) >= outageQuiet:
		o.logEnd(o.over)
	}
}

// reset makes the next success end the outage at once, because the output was replaced.
func (o *outage) reset() { o.failed = time.Time{} }

// logEnd logs the second line of a current outage.
func (o *outage) logEnd(message string) {
	if o.began.IsZero() {
		return
	}
	o.log.Info(message, "lost", o.lost, "after", time.Since(o.began).Round(time.Millisecond))
	o.began, o.lost = time.Time{}, 0
}
