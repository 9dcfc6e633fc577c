package ingress

import (
	"context"
	"log/slog"
	"time"
)

// outageQuiet is how long nothing must have failed before an outage is over, so that a disk that is
// full but for a few bytes now and then is one outage.
const outageQuiet = time.Second

// outage logs a lasting failure in two lines: one when it begins, with its reason, and one when it is
// over, with how much was lost. It is not safe for concurrent use.
type outage struct {
	log         *slog.Logger
	level       slog.Level // of the first line; the second has level Info
	begin, over string     // the messages

	began, failed time.Time // the first and the last failure; began is zero while there is no outage
	lost          int
}

// record takes note of one more try, of its error if it failed, and of how much was lost with it.
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
		o.end(o.over)
	}
}

// reset has the next success end the outage at once, as something else is tried now.
func (o *outage) reset() { o.failed = time.Time{} }

// end logs the second line of an outage, if there is one.
func (o *outage) end(message string) {
	if o.began.IsZero() {
		return
	}
	o.log.Info(message, "lost", o.lost, "after", time.Since(o.began).Round(time.Millisecond))
	o.began, o.lost = time.Time{}, 0
}
