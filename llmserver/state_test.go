package llmserver

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A changeLog collects state changes, and fails the test if they overlap or do not form a chain.
type changeLog struct {
	t *testing.T

	mu      sync.Mutex
	running bool
	changes []StateChange
}

func (l *changeLog) record(c StateChange) {
	l.mu.Lock()
	overlaps := l.running
	l.running = true
	l.mu.Unlock()
	c.Replica.Status() // no lock is held: this would block
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = false
	if n := len(l.changes); overlaps || c.From == c.To || n > 0 && l.changes[n-1].To != c.From {
		l.t.Errorf("change %d, overlapping another: %t, is from %s to %s, after %v", n, overlaps, c.From, c.To, l.changes[max(0, n-2):])
	}
	l.changes = append(l.changes, c)
}

// take returns the changes since the last call, as text.
func (l *changeLog) take() (texts []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.changes {
		texts = append(texts, fmt.Sprintf("%s→%s: %s (%v)", c.From, c.To, c.Reason, c.Lasted))
	}
	l.changes = nil
	return texts
}

func (l *changeLog) want(t *testing.T, want ...string) {
	t.Helper()
	if got := l.take(); !slices.Equal(got, want) {
		t.Errorf("the changes are\n%q; want\n%q", got, want)
	}
}

func newWatchedPool(t *testing.T) (*Pool, map[string]*fakeBackend, *changeLog) {
	l := &changeLog{t: t}
	p, fakes := newTestPool()
	p.Events.StateChanged = l.record
	return p, fakes, l
}

func TestStateChangesAreReportedOnceEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _, l := newWatchedPool(t)
		defer p.Close()
		r := mustSet(t, p, endpoint("a"))[0]
		l.want(t) // the first state is no change
		time.Sleep(time.Minute)
		for range 3 {
			r.setHealth(errors.New("no connection"))
		}
		l.want(t, "serving→down: no connection (1m0s)")
		time.Sleep(3 * time.Second)
		mustSet(t, p, drained(endpoint("a")))
		mustSet(t, p, drained(endpoint("a")))
		l.want(t, "down→draining: "+ErrDraining.Error()+" (3s)")
		r.setHealth(nil) // still draining
		l.want(t)
		mustSet(t, p, endpoint("a"))
		l.want(t, "draining→serving: the drain has ended (0s)")
		s := mustReserve(t, r)
		mustSet(t, p)
		l.want(t, "serving→draining: "+ErrGone.Error()+" (0s)")
		mustSet(t, p, endpoint("a"))
		l.want(t, "draining→serving: the drain has ended (0s)")
		s.Release()
	})
}

func TestStateChangesOfAnEjectionHaveTheReasonAndTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, fakes, l := newWatchedPool(t)
		defer p.Close()
		e := endpoint("a")
		e.Limit = 2 * minFailures
		r := mustSet(t, p, e)[0]
		addSibling(r)
		r.OnChange(func() { r.AllowEjected(true) }) // a bypass hides no reason
		failRequests(t, r, fakes["a"], ErrBroken, minFailures)
		const reason = "ejected: 5 of the last 10 requests failed, and at most 1 at 1 of 1 siblings: connection broken"
		l.want(t, "serving→ejected: "+reason+" (0s)")
		if s := r.Status(); s.State != "ejected" || s.Reason != reason || !s.Since.Equal(time.Now()) {
			t.Errorf("status: %+v", s)
		}
		time.Sleep(trialInterval)
		synctest.Wait()
		l.want(t, "ejected→half_open: a request is admitted as a trial (1s)")
		s := mustStart(t, r)
		s.stream = true
		time.Sleep(time.Second)
		s.onFirstByte()
		s.Release()
		l.want(t, "half_open→serving: a request succeeded (1s)")
		if s := r.Status(); s.State != "serving" || s.Reason != "" || len(s.Recent) != 3 || s.Recent[2].From != "half_open" {
			t.Errorf("status: %+v", s)
		}
	})
}

func TestStateChangesThatRaceEndWithTheLastState(t *testing.T) {
	for range 50 {
		p, _, l := newWatchedPool(t)
		r := mustSet(t, p, endpoint("a"))[0]
		var all sync.WaitGroup
		for n := range 4 {
			all.Go(func() {
				for i := range 20 {
					switch (n + i) % 4 {
					case 0:
						r.setHealth(ErrBroken)
					case 1:
						r.setHealth(nil)
					case 2:
						mustSet(t, p, drained(endpoint("a")))
					case 3:
						mustSet(t, p, endpoint("a"))
					}
				}
			})
		}
		all.Wait()
		l.mu.Lock()
		last := "serving"
		if n := len(l.changes); n > 0 {
			last = l.changes[n-1].To
		}
		l.mu.Unlock()
		if state := r.State(); state != last {
			t.Fatalf("the state is %s, the last one reported %s", state, last)
		}
		p.Close()
	}
}

func TestStateChangesRememberTheLatest(t *testing.T) {
	p, _, _ := newWatchedPool(t)
	defer p.Close()
	r := mustSet(t, p, endpoint("a"))[0]
	for n := range 20 {
		r.setHealth(fmt.Errorf("outage %d", n))
		r.setHealth(nil)
	}
	recent := r.Status().Recent
	if len(recent) != recentChanges || recent[recentChanges-2].Reason != "outage 19" {
		t.Errorf("%d changes are remembered, the last but one for %q", len(recent), recent[recentChanges-2].Reason)
	}
}
