package llmserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// withoutDeadline hides the deadline of a test from rapid, since time in a synctest bubble is fake.
type withoutDeadline struct{ rapid.TB }

// modelCircuit implements the diagram of circuit, and the rule of Cohort for a replica beside a
// sibling without failures, in the plainest way.
type modelCircuit struct {
	outcomes []bool        // true for a failure, the latest one last
	failed   time.Duration // the time of the last one
	until    time.Duration // by monotonic time; zero while closed
	opened   time.Duration
	trials   int
	broke    bool
	halfOpen bool
	bypassed bool
}

func (m *modelCircuit) isOpen() bool { return m.until != 0 }

func (m *modelCircuit) expired() bool { return m.isOpen() && monotonic() >= m.until }

func (m *modelCircuit) admits() bool { return !m.isOpen() || m.bypassed || m.expired() }

// admit admits a request, as a trial if the open time is over.
func (m *modelCircuit) admit() {
	if m.expired() {
		m.halfOpen, m.until = true, monotonic()+time.Second
	}
}

// open opens it for a second, or for longer from the sixth time on if a response was broken.
func (m *modelCircuit) open() {
	m.halfOpen, m.opened = false, monotonic()
	m.until = m.opened + time.Second
	if m.broke && m.trials >= 5 {
		m.until = m.opened + min(time.Second<<(m.trials-4), 30*time.Second)
	}
}

// isConclusive reports whether the outcome of the slot's request counts while the circuit is open.
func (m *modelCircuit) isConclusive(s *Slot) bool { return s.reservedAt >= m.opened }

// served closes it.
func (m *modelCircuit) served(s *Slot, complete bool) {
	if m.isOpen() && m.isConclusive(s) && (complete || !m.broke) {
		*m = modelCircuit{outcomes: []bool{true, true}, failed: monotonic()}
	}
}

func (m *modelCircuit) failures() (n int) {
	for _, failed := range m.outcomes[max(0, len(m.outcomes)-10):] {
		if failed {
			n++
		}
	}
	return n
}

func (m *modelCircuit) fail(s *Slot, broke bool) {
	if monotonic()-m.failed > time.Minute || m.failures() == 0 {
		m.outcomes = nil
	}
	m.outcomes, m.failed = append(m.outcomes, true), monotonic()
	switch {
	case m.isOpen() && m.halfOpen && m.isConclusive(s):
		m.trials++
		m.broke = m.broke || broke
		m.open()
	case !m.isOpen() && m.failures() >= 5:
		m.trials, m.broke = 0, broke
		m.open()
	}
}

// circuitMachine applies the same requests to a replica and to the model.
type circuitMachine struct {
	r     *Replica
	model modelCircuit
	slots []*Slot
}

func (m *circuitMachine) reserve(t *rapid.T) {
	anyway := rapid.Bool().Draw(t, "anyway")
	var s *Slot
	var err error
	if anyway {
		s, err = m.r.ForceReserve("holder")
	} else {
		s, err = m.r.TryReserve("holder", 0)
	}
	switch {
	case !m.model.admits() && !anyway:
		if err != ErrEjected {
			t.Fatalf("TryReserve = %v; want it ejected", err)
		}
		return
	case err != nil:
		t.Fatalf("TryReserve = %v", err)
	}
	m.model.admit()
	m.slots = append(m.slots, s)
}

// drawSlot draws a slot and removes it from the list.
func (m *circuitMachine) drawSlot(t *rapid.T) *Slot {
	if len(m.slots) == 0 {
		t.Skip("no slot")
	}
	i := rapid.IntRange(0, len(m.slots)-1).Draw(t, "slot")
	s := m.slots[i]
	m.slots = slices.Delete(m.slots, i, i+1)
	return s
}

// respond makes the replica begin a good response.
func (m *circuitMachine) respond(t *rapid.T, s *Slot) io.Reader {
	resp := &http.Response{StatusCode: rapid.SampledFrom([]int{200, 204, 302}).Draw(t, "status"), Body: io.NopCloser(strings.NewReader("xx"))}
	s.stream = true
	m.r.observeBody(s, resp)
	resp.Body.Read(make([]byte, 1))
	m.model.served(s, false)
	return resp.Body
}

func (m *circuitMachine) good(t *rapid.T) {
	s := m.drawSlot(t)
	io.ReadAll(m.respond(t, s))
	s.Complete()
	m.model.outcomes = append(m.model.outcomes, false)
	m.model.served(s, true)
	s.Release()
}

// invalid ends a request with a whole response that turns out to be none.
func (m *circuitMachine) invalid(t *rapid.T) {
	s := m.drawSlot(t)
	io.ReadAll(m.respond(t, s))
	s.ReportFailure(ErrNotHTTP)
	s.Complete()
	m.model.fail(s, true)
	s.Release()
}

func (m *circuitMachine) breaks(t *rapid.T) {
	s := m.drawSlot(t)
	m.respond(t, s)
	s.ReportFailure(ErrBroken)
	m.model.fail(s, true)
	s.Release()
}

func (m *circuitMachine) bad(t *rapid.T) {
	s := m.drawSlot(t)
	s.ReportFailure(rapid.SampledFrom(replicaFaults).Draw(t, "error"))
	m.model.fail(s, false)
	s.Release()
}

// inconclusive ends a request with an outcome that does not count for or against the replica.
func (m *circuitMachine) inconclusive(t *rapid.T) {
	s := m.drawSlot(t)
	switch rapid.IntRange(0, 3).Draw(t, "end") {
	case 0:
		s.ReportFailure(fmt.Errorf("%w: %w", ErrBroken, ErrStale))
	case 1:
		s.ReportFailure(context.Canceled)
	case 2:
		resp := &http.Response{StatusCode: rapid.SampledFrom([]int{400, 404, 429, 500, 501}).Draw(t, "status"), Body: io.NopCloser(strings.NewReader("x"))}
		s.stream = true
		m.r.observeBody(s, resp)
		io.ReadAll(resp.Body)
	}
	s.Release()
}

// handOver hands a slot over, as the queue does.
func (m *circuitMachine) handOver(t *rapid.T) {
	s := m.drawSlot(t)
	next := s.HandOver("next")
	if (next != nil) != m.model.admits() {
		t.Fatalf("handed over: %t; want %t", next != nil, m.model.admits())
	}
	if next != nil {
		m.model.admit()
		m.slots = append(m.slots, next)
	}
}

func (m *circuitMachine) check(t *rapid.T) {
	if m.r.Available() != m.model.admits() || m.r.HasRoom() != m.model.admits() {
		t.Fatalf("available: %t, with room: %t; want %t at %+v", m.r.Available(), m.r.HasRoom(), m.model.admits(), m.model)
	}
	if _, open := m.r.Ejected(); open != m.model.isOpen() {
		t.Fatalf("open: %t at %+v", open, m.model)
	}
}

func TestCircuitMatchesItsDiagram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(withoutDeadline{t}, func(t *rapid.T) {
			r, _ := newTestReplica(1000)
			m := &circuitMachine{r: r}
			t.Repeat(map[string]func(*rapid.T){
				"":      m.check,
				"claim": m.reserve, "claim again": m.reserve,
				"good": m.good, "bad": m.bad, "bad again": m.bad, "bad once more": m.bad, "breaks": m.breaks, "breaks again": m.breaks, "invalid": m.invalid,
				"inconclusive": m.inconclusive, "hand over": m.handOver,
				"bypass": func(t *rapid.T) {
					bypassed := rapid.Bool().Draw(t, "bypassed")
					r.AllowEjected(bypassed)
					m.model.bypassed = bypassed && m.model.isOpen()
				},
				"sleep": func(t *rapid.T) {
					time.Sleep(time.Duration(rapid.SampledFrom([]int{1, 2, 4, 8, 16, 30, 60, 61}).Draw(t, "seconds")) * time.Second)
				},
			})
			for _, s := range m.slots {
				s.Release()
			}
			r.Wait()
		})
	})
}

// failRequests fails n concurrent requests with err.
func failRequests(t *testing.T, r *Replica, fake *fakeBackend, err error, n int) {
	t.Helper()
	var under []*Slot
	for range n {
		under = append(under, mustReserve(t, r))
	}
	for _, s := range under {
		sendInSlot(t, s, fake, err)
	}
}

func TestCircuitEjectsOnlyForTheReplicasOwnFailures(t *testing.T) {
	for name, row := range map[string]struct {
		err     error
		ejected bool
	}{
		"a reset":                   {ErrBroken, true},
		"silence":                   {ErrTimeout, true},
		"another protocol":          {ErrNotHTTP, true},
		"an old connection":         {fmt.Errorf("%w: %w", ErrBroken, ErrStale), false},
		"a client that goes":        {context.Canceled, false},
		"a client's own deadline":   {context.DeadlineExceeded, false},
		"a refusal for want of one": {ErrFull, false},
		"a forgotten token":         {ErrToken, false},
	} {
		t.Run(name, func(t *testing.T) {
			withProbedReplica(t, nil, func(r *Replica, fake *fakeBackend, changes *atomic.Int32) {
				failRequests(t, r, fake, row.err, minFailures-1)
				if !r.Available() {
					t.Errorf("it is ejected after %d", minFailures-1)
				}
				failRequests(t, r, fake, row.err, 1)
				if r.Available() == row.ejected {
					t.Errorf("available: %t", r.Available())
				}
				if row.ejected && (changes.Load() != 1 || r.Ejections() != 1 || r.State() != "ejected" || !strings.HasPrefix(r.DownReason(), "ejected: ")) {
					t.Errorf("%d changes, %d ejections, it is %s and the reason is %q", changes.Load(), r.Ejections(), r.State(), r.DownReason())
				}
			})
		})
	}
}

// Down counts once each time: many requests that meet one death are one failure.
func TestCircuitEjectsReplicaThatAnswersOnlyProbes(t *testing.T) {
	var dying atomic.Bool
	probe := func(context.Context) error {
		if dying.Load() {
			return ErrNoConnection
		}
		return nil
	}
	withProbedReplica(t, probe, func(r *Replica, fake *fakeBackend, _ *atomic.Int32) {
		for n := range minFailures {
			if _, open := r.Ejected(); open {
				t.Errorf("it is ejected after it was down %d times", n)
				return
			}
			dying.Store(true)
			failRequests(t, r, fake, ErrNoConnection, 20)
			if r.State() != "down" {
				t.Errorf("it is %s", r.State())
			}
			dying.Store(false)
			time.Sleep(probedEndpoint.ProbeEvery + 1) // by which the next probe has come, however many failed before it
			synctest.Wait()
		}
		if r.State() != "half_open" || r.Ejections() != 1 || !r.Up() {
			t.Errorf("it is %s after %d ejections", r.State(), r.Ejections())
		}
	})
}

func TestCircuitAdmitsOneTrialOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, fake := newTestReplica(1000)
		failRequests(t, r, fake, ErrBroken, minFailures)
		time.Sleep(trialInterval - time.Millisecond)
		if _, err := r.TryReserve("too early", 0); err != ErrEjected || r.State() != "ejected" {
			t.Fatalf("TryReserve = %v, and it is %s", err, r.State())
		}
		time.Sleep(time.Millisecond)
		if r.State() != "half_open" {
			t.Errorf("it is %s when its time is over", r.State())
		}
		var granted []*Slot
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				if s, err := r.TryReserve("holder", 0); err == nil {
					mu.Lock()
					granted = append(granted, s)
					mu.Unlock()
				}
			})
		}
		all.Wait()
		if len(granted) != 1 || r.State() != "half_open" {
			t.Fatalf("%d were let in, and it is %s", len(granted), r.State())
		}
		granted[0].Release()
		r.Wait()
	})
}

func TestCircuitClosesOnFirstByteOfTrialAndStartsSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, fake := newTestReplica(1000)
		var notified atomic.Int32
		r.OnChange(func() { notified.Add(1) })
		failRequests(t, r, fake, ErrBroken, minFailures)
		time.Sleep(trialInterval)
		synctest.Wait()
		if notified.Load() != 2 {
			t.Errorf("the observer was notified %d times; want of the ejection and of its end", notified.Load())
		}
		s := mustReserve(t, r)
		s.Start()
		s.SetRequest(nil, true)
		resp, err := r.Do(&http.Request{}, s)
		if err != nil {
			t.Fatal(err)
		}
		if r.Available() {
			t.Error("the header alone has closed the circuit")
		}
		resp.Body.Read(make([]byte, 1))
		if !r.Available() || r.State() != "serving" || notified.Load() != 3 {
			t.Errorf("available: %t, it is %s, notified %d times", r.Available(), r.State(), notified.Load())
		}
		resp.Body.Close()
		s.Release()
		mustReserve(t, r)
		if b := r.WeightedLoad(); b != 10 {
			t.Errorf("it begins with the weighted load %v", b)
		}
		time.Sleep(slowStart / 2)
		if b := r.WeightedLoad(); b != 2 {
			t.Errorf("half way the weighted load is %v", b)
		}
		time.Sleep(slowStart / 2)
		if b := r.WeightedLoad(); b != 1 || r.recoveredAt.Load() != 0 {
			t.Errorf("in the end the weighted load is %v", b)
		}
	})
}

// No request owns the trial, so no outcome of one can keep the circuit half-open.
func TestCircuitAdmitsAnotherTrialWithoutAnOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, fake := newTestReplica(2 * minFailures)
		failRequests(t, r, fake, ErrBroken, minFailures)
		time.Sleep(trialInterval)
		synctest.Wait()
		var notified atomic.Int32
		r.OnChange(func() { notified.Add(1) })
		var under []*Slot
		for name, end := range map[string]func(s *Slot){
			"its client goes":      func(s *Slot) { s.ReportFailure(context.Canceled); s.Release() },
			"it is never sent":     func(s *Slot) { s.Release() },
			"its response is long": func(s *Slot) { r.observeBody(s, &http.Response{StatusCode: 200}); under = append(under, s) },
			"its response is empty": func(s *Slot) {
				resp := &http.Response{StatusCode: 200, Body: http.NoBody}
				s.stream = true
				r.observeBody(s, resp)
				io.ReadAll(resp.Body)
				s.Release()
			},
			"the request was at fault":  func(s *Slot) { r.observeBody(s, &http.Response{StatusCode: 400}); s.Release() },
			"the backend refused":       func(s *Slot) { fake.faults = func(string) error { return ErrFull }; s.Confirm(t.Context(), 0) },
			"its connection was stale":  func(s *Slot) { s.ReportFailure(fmt.Errorf("%w: %w", ErrBroken, ErrStale)); s.Release() },
			"another one gets its slot": func(s *Slot) { s.HandOver("next").Release() },
		} {
			fake.faults = nil
			notified.Store(0)
			s, err := r.TryReserve("holder", 0)
			if err != nil {
				t.Fatalf("where %s: %v", name, err)
			}
			r.AllowEjected(name == "another one gets its slot")
			end(s)
			r.AllowEjected(false)
			time.Sleep(trialInterval - time.Millisecond)
			if r.Available() {
				t.Errorf("where %s: another is let in too soon", name)
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if !r.Available() || notified.Load() == 0 {
				t.Errorf("where %s: available %t, notified %d times", name, r.Available(), notified.Load())
			}
		}
		for _, s := range under {
			s.Release()
		}
		r.Wait()
	})
}

// The outcome of a request from before the circuit opened does not count.
func TestCircuitIgnoresRequestsAdmittedBeforeItOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, fake := newTestReplica(3 * minFailures)
		respond := func(s *Slot) {
			resp := &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("x"))}
			s.stream = true
			r.observeBody(s, resp)
			resp.Body.Read(make([]byte, 1))
			s.Release()
		}
		good, bad := mustReserve(t, r), mustReserve(t, r)
		time.Sleep(time.Second)
		failRequests(t, r, fake, ErrBroken, minFailures)
		var notified atomic.Int32
		r.OnChange(func() { notified.Add(1) })
		respond(good)
		if r.Available() || notified.Load() != 0 {
			t.Errorf("a response to an earlier request has closed the circuit; %d notifications", notified.Load())
		}
		time.Sleep(trialInterval)
		trial := mustReserve(t, r)
		bad.ReportFailure(ErrBroken)
		bad.Release()
		if r.Ejections() != 1 {
			t.Error("the failure of an earlier request has opened it again")
		}
		respond(trial)
		r.Wait()
		if !r.Available() {
			t.Error("the trial has not closed it")
		}
	})
}

// Setting the wall clock back keeps no replica ejected: deadlines are monotonic.
func TestCircuitTimesAreMonotonic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, fake := newTestReplica(minFailures)
		failRequests(t, r, fake, ErrBroken, minFailures)
		if until := time.Duration(r.circuit.state().until) * time.Millisecond; until > monotonic()+trialInterval {
			t.Errorf("it ends at %v; now it is %v", until, monotonic())
		}
	})
}

// Failures hidden by retries cost little, so trials go on once a second; broken responses do not
// stay hidden.
func TestCircuitTrialsBecomeRareOnlyAfterBrokenResponses(t *testing.T) {
	for name, row := range map[string]struct {
		broke bool
		times []int
	}{
		"hidden failures":  {false, slices.Repeat([]int{1}, 300)},
		"broken responses": {true, append([]int{1, 1, 1, 1, 1, 2, 4, 8, 16}, slices.Repeat([]int{30}, 300)...)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _ := newTestReplica(minFailures)
				r.eject(ErrBroken, row.broke)
				for n, want := range row.times {
					time.Sleep(time.Duration(want)*time.Second - 1e6)
					if r.Available() {
						t.Fatalf("open time %d is over too soon", n+1)
					}
					time.Sleep(1e6)
					s := mustReserve(t, r)
					s.ReportFailure(ErrBroken)
					s.Release()
				}
				if r.Ejections() != 1 {
					t.Errorf("%d ejections; failed trials are none", r.Ejections())
				}
			})
		})
	}
}

// Two requests that fail at the same moment open the circuit once.
func TestCircuitCountsOneEjectionWhenFailuresRace(t *testing.T) {
	for range 15_000 {
		var c circuit
		var times [2]time.Duration
		race(func() { times[0] = c.open(ErrBroken, false) }, func() { times[1] = c.open(ErrBroken, false) })
		if n := c.totalEjections.Load(); n != 1 || times[0]+times[1] != trialInterval {
			t.Fatalf("%d ejections, for %v", n, times)
		}
	}
}

// A replica that is down may still get a request that no other replica can serve. If the circuit's
// open time is over, that request is the trial, and its outcome counts.
func TestCircuitCountsTrialThatCannotConnect(t *testing.T) {
	for name, down := range map[string]bool{"down before": true, "up before": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, fake := newTestReplica(minFailures)
				failRequests(t, r, fake, ErrBroken, minFailures)
				time.Sleep(trialInterval)
				if down {
					r.setHealth(errors.New("its health check failed"))
				}
				s, err := r.ForceReserve("holder")
				if err != nil {
					t.Fatal(err)
				}
				fake.reserveToken(s.Token())
				sendInSlot(t, s, fake, ErrNoConnection)
				if trials := r.circuit.state().trials; trials != 1 || r.State() != "down" {
					t.Errorf("%d failed trials, and it is %s; want 1, down", trials, r.State())
				}
				r.setHealth(nil) // a good probe
				time.Sleep(trialInterval - time.Millisecond)
				if r.State() != "ejected" {
					t.Errorf("it is %s, before the time is over", r.State())
				}
				r.Wait()
			})
		})
	}
}

// A replica that recovers while another goroutine ends its earlier slow start begins a new one.
func TestReplicaSecondRecoveryStartsSlowlyAgain(t *testing.T) {
	r, _ := newTestReplica(1)
	for range 12_000 {
		r.recoveredAt.Store(1)
		race(func() { r.WeightedLoad() }, r.markRecovered)
		if r.recoveredAt.Load() == 0 {
			t.Fatal("the second recovery is lost")
		}
	}
}
