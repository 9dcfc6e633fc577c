package routers

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

// looks plays seconds in which so many slots were freed while somebody waited.
func (d *drainRate) looks(now *time.Time, freed *uint64, each ...uint64) {
	for _, n := range each {
		*now = now.Add(time.Second)
		*freed += n
		d.observe(*now, true, *freed)
	}
}

func wantRate(t *testing.T, d *drainRate, want float64) {
	t.Helper()
	got, known := d.perSecond()
	if !known || math.Abs(got-want) > 1e-9*max(1, want) {
		t.Errorf("%v per second, known: %t; want %v", got, known, want)
	}
}

func TestDrainRateIsKnownAfterTwoSeconds(t *testing.T) {
	now, freed := time.Unix(1000, 0), uint64(500)
	var d drainRate
	d.observe(now, true, freed)
	d.looks(&now, &freed, 7)
	if rate, known := d.perSecond(); known {
		t.Errorf("%v is known after one second", rate)
	}
	d.looks(&now, &freed, 7)
	wantRate(t, &d, 7)
	d.looks(&now, &freed, 7, 7, 7, 7, 7)
	wantRate(t, &d, 7)
}

func TestDrainRateIgnoresHowOftenItIsObserved(t *testing.T) {
	now, freed := time.Unix(1000, 0), uint64(0)
	var d drainRate
	for range 50 {
		d.observe(now, true, freed)
		now, freed = now.Add(100*time.Millisecond), freed+3
	}
	wantRate(t, &d, 30)
}

// A stall is slow service; time without anybody in line is not.
func TestDrainRateCountsStallsAndNotIdleTime(t *testing.T) {
	now, freed := time.Unix(1000, 0), uint64(0)
	var d drainRate
	d.observe(now, true, freed)
	d.looks(&now, &freed, 10, 10, 10)
	wantRate(t, &d, 10)

	now = now.Add(200 * time.Millisecond)
	d.observe(now, false, freed+1) // the line has emptied
	now, freed = now.Add(time.Hour), freed+1_000_000
	d.observe(now, true, freed) // and fills
	wantRate(t, &d, 10)
	d.looks(&now, &freed, 10)
	wantRate(t, &d, 10)

	stalled := d
	stalled.looks(&now, &freed, 0, 0, 0, 0, 0)
	if rate, _ := stalled.perSecond(); rate > 7 || rate < 1 {
		t.Errorf("%v per second after a stall of 5 s; want much less than 10", rate)
	}
	stalled.observe(now.Add(time.Hour), true, freed)
	if rate, _ := stalled.perSecond(); rate > 1e-9 {
		t.Errorf("%v per second after an hour without any", rate)
	}
}

// What was freed up to the moment when the line emptied belongs to the rate.
func TestDrainRateCountsTheIntervalBeforeTheQueueEmpties(t *testing.T) {
	var d drainRate
	now := time.Unix(1000, 0)
	d.observe(now, true, 0)
	d.observe(now.Add(4*time.Second), false, 20)
	wantRate(t, &d, 5)
}

func TestRouterRetryAfterIsTheDrainTimeOfTheQueue(t *testing.T) {
	tests := map[string]struct {
		rate   float64
		weight float64
		queued int
		want   time.Duration
	}{
		"not known":      {5, 0.05, 9, 0},
		"by the rate":    {2, 1, 9, 5 * time.Second},
		"half known":     {1, 0.5, 9, 5 * time.Second},
		"at least":       {100, 1, 9, time.Second},
		"at most":        {0.01, 1, 9, time.Minute},
		"nothing drains": {0, 1, 0, time.Minute},
	}
	for name, test := range tests {
		r := New(nil, newByText, roomy, Hooks{})
		r.rate = drainRate{rate: test.rate, weight: test.weight}
		r.queue.length.Store(int64(test.queued))
		if got := r.RetryAfter(); got != test.want {
			t.Errorf("%s: %v; want %v", name, got, test.want)
		}
	}
}

// The whole of it, at a router: one slot of a second each, and idle time in between.
func TestRouterMeasuresTheDrainRateWhileRequestsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		if got := r.RetryAfter(); got != 0 {
			t.Errorf("before anything is known: %v", got)
		}
		crowd := func(n int) {
			holder := mustChoose(t, r, "")
			for range n {
				q := startChoose(t, r, "")
				synctest.Wait()
				last := startChoose(t, r, "") // so that the line does not empty
				synctest.Wait()
				time.Sleep(time.Second)
				serve(t, holder)
				<-q.done
				holder = q.sel
				last.cancel(context.Canceled)
				<-last.done
			}
			serve(t, holder)
		}
		crowd(1)
		for range 1000 { // quick ones that nobody waits for
			serve(t, mustChoose(t, r, ""))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Hour)
		crowd(5)
		holder := mustChoose(t, r, "")
		all := queueUp(t, r, "", "", "")
		if got := r.RetryAfter(); got < 3500*time.Millisecond || got > 4500*time.Millisecond {
			t.Errorf("with three in line at one a second: %v", got)
		}
		serve(t, holder)
		releaseAll(t, all)
		f.wantIdle(t)
	})
}
