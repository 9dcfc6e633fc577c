package scenes

import (
	"context"
	"errors"
	"time"
)

// Options are the times and the rate of a scene.
type Options struct {
	Rate   float64       // requests per second
	WarmUp time.Duration // before the fault
	Fault  time.Duration // of a fault that is not silent
	Silent time.Duration // of Hang and Stopped
	After  time.Duration // after the fault
}

// Brief is for tests: 40 scenes in less than a minute.
var Brief = Options{Rate: 25, WarmUp: 2 * time.Second, Fault: 5 * time.Second, Silent: 12 * time.Second, After: 4 * time.Second}

// Full is for published tables.
var Full = Options{Rate: 40, WarmUp: 4 * time.Second, Fault: 8 * time.Second, Silent: 12 * time.Second, After: 8 * time.Second}

// Duration returns how long a scene takes, without requests that end later.
func (o Options) Duration(f Fault) time.Duration {
	if f.silent() {
		return o.WarmUp + o.Silent + o.After
	}
	return o.WarmUp + o.Fault + o.After
}

// Run plays the scene of the fleet through the router at url, which must have been started in front
// of the fleet and be ready. It blocks until every request has ended.
func Run(ctx context.Context, url string, fleet *Fleet, o Options) (Result, error) {
	client := NewClient(url)
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, o.Duration(fleet.fault)+listening)
	defer cancel()
	loaded := make(chan []Response, 1)
	go func() { loaded <- client.Load(ctx, o.Rate) }()
	s, err := fleet.play(ctx, o)
	cancel()
	s.responses = <-loaded
	if err != nil {
		return Result{}, err
	}
	return s.result(), nil
}

// scene is what was recorded of a scene.
type scene struct {
	fault      Fault
	sick       *member
	begin, end time.Time // of the fault
	begun      int       // streams that the sick engine worked on when the fault began
	responses  []Response
}

// play has the fault begin and end.
func (f *Fleet) play(ctx context.Context, o Options) (s scene, err error) {
	duration := o.Fault
	if f.fault.silent() {
		duration = o.Silent
	}
	sleep(ctx, o.WarmUp)
	s.fault, s.sick, s.begin = f.fault, f.busiest(), time.Now()
	if len(s.sick.sent.list()) == 0 {
		return s, errors.New("no request reached an engine before the fault; look at the router's log")
	}
	if err := s.sick.engine.Begin(f.fault); err != nil {
		return s, err
	}
	applied := time.Now()
	s.begun = s.sick.begun(s.begin, applied)
	sleep(ctx, duration)
	if f.fault == Killed {
		err = s.sick.engine.End() // the fault lasts until the new process serves
		s.end = time.Now()
	} else {
		s.end = time.Now() // held requests end at once
		err = s.sick.engine.End()
	}
	if err != nil {
		return s, err
	}
	sleep(ctx, o.After)
	if ctx.Err() != nil {
		return s, errors.Join(errors.New("the scene took too long"), ctx.Err())
	}
	return s, nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
