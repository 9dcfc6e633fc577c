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

// bubble hides the deadline of a test, for which a bubble has no use.
type bubble struct{ rapid.TB }

// modelCircuit is a circuit as its picture says it.
type modelCircuit struct {
	failures int
	times    int
	until    time.Time // zero while closed
	trial    *Slot
	spared   bool
}

func (m *modelCircuit) due() bool { return m.trial == nil && !time.Now().Before(m.until) }

func (m *modelCircuit) admits() bool { return m.until.IsZero() || m.spared || m.due() }

// open opens it for 30 s, 60 s, and so on up to 300 s.
func (m *modelCircuit) open() {
	m.times++
	m.failures, m.trial = 0, nil
	m.until = time.Now().Add(min(30*time.Second<<(m.times-1), 300*time.Second))
}

// circuitMachine plays requests on one replica, and the model beside it.
type circuitMachine struct {
	r     *Replica
	model modelCircuit
	slots []*Slot
}

func (m *circuitMachine) claim(t *rapid.T) {
	anyway := rapid.Bool().Draw(t, "anyway")
	s, err := m.r.Claim("holder", 0)
	if anyway && err != nil {
		s, err = m.r.ClaimAnyway("holder")
	}
	trial := !m.model.until.IsZero() && m.model.due()
	switch {
	case !m.model.admits() && !anyway:
		if err != ErrEjected {
			t.Fatalf("Claim = %v; want it ejected", err)
		}
		return
	case err != nil:
		t.Fatalf("Claim = %v", err)
	case s.trial.Load() != trial:
		t.Fatalf("a trial: %t; want %t", s.trial.Load(), trial)
	}
	if trial {
		m.model.trial = s
	}
	m.slots = append(m.slots, s)
}

// take draws a slot and takes it out.
func (m *circuitMachine) take(t *rapid.T) *Slot {
	if len(m.slots) == 0 {
		t.Skip("no slot")
	}
	i := rapid.IntRange(0, len(m.slots)-1).Draw(t, "slot")
	s := m.slots[i]
	m.slots = slices.Delete(m.slots, i, i+1)
	return s
}

func (m *circuitMachine) good(t *rapid.T) {
	s := m.take(t)
	resp := &http.Response{StatusCode: rapid.SampledFrom([]int{200, 204, 302}).Draw(t, "status"), Body: io.NopCloser(strings.NewReader("x"))}
	m.r.listen(s, resp)
	io.ReadAll(resp.Body)
	switch {
	case m.model.trial == s:
		m.model = modelCircuit{}
	case m.model.until.IsZero():
		m.model.failures = 0
	}
	s.Release()
}

func (m *circuitMachine) bad(t *rapid.T) {
	s := m.take(t)
	s.Blame(rapid.SampledFrom([]error{ErrBroken, ErrTimeout, ErrNotHTTP, ErrGateway}).Draw(t, "error"))
	switch {
	case m.model.trial == s:
		m.model.open()
	case m.model.until.IsZero():
		if m.model.failures++; m.model.failures == 5 {
			m.model.open()
		}
	}
	s.Release()
}

// silent ends a request in a way that says nothing of the replica.
func (m *circuitMachine) silent(t *rapid.T) {
	s := m.take(t)
	switch rapid.IntRange(0, 3).Draw(t, "end") {
	case 0:
		s.Blame(fmt.Errorf("%w: %w", ErrBroken, ErrStale))
	case 1:
		s.Blame(context.Canceled)
	case 2:
		resp := &http.Response{StatusCode: rapid.SampledFrom([]int{400, 404, 429, 500, 501}).Draw(t, "status"), Body: io.NopCloser(strings.NewReader("x"))}
		m.r.listen(s, resp)
		io.ReadAll(resp.Body)
	}
	if m.model.trial == s {
		m.model.trial = nil
	}
	s.Release()
}

// pass hands a slot over, as a request in line gets it.
func (m *circuitMachine) pass(t *rapid.T) {
	s := m.take(t)
	if m.model.trial == s {
		m.model.trial = nil
	}
	trial := !m.model.until.IsZero() && m.model.due()
	heir := s.HandOver("heir")
	if (heir != nil) != m.model.admits() {
		t.Fatalf("handed over: %t; want %t", heir != nil, m.model.admits())
	}
	if heir == nil {
		return
	}
	if heir.trial.Load() != trial {
		t.Fatalf("a trial: %t; want %t", heir.trial.Load(), trial)
	}
	if trial {
		m.model.trial = heir
	}
	m.slots = append(m.slots, heir)
}

func (m *circuitMachine) check(t *rapid.T) {
	if m.r.Available() != m.model.admits() || m.r.HasRoom() != m.model.admits() {
		t.Fatalf("available: %t, with room: %t; want %t at %+v", m.r.Available(), m.r.HasRoom(), m.model.admits(), m.model)
	}
	trials := 0
	for _, s := range m.slots {
		if s.trial.Load() {
			trials++
		}
	}
	if trials > 1 || (trials == 1) != (m.model.trial != nil) {
		t.Fatalf("%d trials at %+v", trials, m.model)
	}
	if _, open := m.r.Ejected(); open == m.model.until.IsZero() {
		t.Fatalf("open: %t at %+v", open, m.model)
	}
}

func TestACircuitDoesAsItsPictureSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(bubble{t}, func(t *rapid.T) {
			r, _ := newTestReplica(1000)
			m := &circuitMachine{r: r}
			t.Repeat(map[string]func(*rapid.T){
				"":      m.check,
				"claim": m.claim, "claim again": m.claim,
				"good": m.good, "bad": m.bad, "bad again": m.bad, "bad once more": m.bad,
				"silent": m.silent, "pass": m.pass,
				"spare": func(t *rapid.T) {
					spared := rapid.Bool().Draw(t, "spared")
					r.Spare(spared)
					m.model.spared = spared && !m.model.until.IsZero()
				},
				"sleep": func(t *rapid.T) {
					time.Sleep(time.Duration(rapid.SampledFrom([]int{1, 29, 30, 60, 299, 300}).Draw(t, "seconds")) * time.Second)
				},
			})
			for _, s := range m.slots {
				s.Release()
			}
			r.Wait()
		})
	})
}

// fail has a replica fail n requests that were under way at once.
func fail(t *testing.T, r *Replica, fake *fakeBackend, err error, n int) {
	t.Helper()
	var under []*Slot
	for range n {
		under = append(under, claim(t, r))
	}
	for _, s := range under {
		askIn(t, s, fake, err)
	}
}

func TestOnlyTheReplicasOwnFailuresEjectIt(t *testing.T) {
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
			watched(t, nil, func(r *Replica, fake *fakeBackend, changes *atomic.Int32) {
				fail(t, r, fake, row.err, tolerated-1)
				if !r.Available() {
					t.Errorf("it is ejected after %d", tolerated-1)
				}
				fail(t, r, fake, row.err, 1)
				if r.Available() == row.ejected {
					t.Errorf("available: %t", r.Available())
				}
				if row.ejected && (changes.Load() != 1 || r.Ejections() != 1 || r.State() != "ejected" || !strings.HasPrefix(r.Said(), "ejected, ")) {
					t.Errorf("%d changes, %d ejections, it is %s and said %q", changes.Load(), r.Ejections(), r.State(), r.Said())
				}
			})
		})
	}
}

// Down counts once each time: many requests that meet one death are one failure.
func TestAReplicaThatAnswersNothingButItsProbesIsEjectedInTheEnd(t *testing.T) {
	var dying atomic.Bool
	probe := func(context.Context) error {
		if dying.Load() {
			return ErrNoConnection
		}
		return nil
	}
	watched(t, probe, func(r *Replica, fake *fakeBackend, _ *atomic.Int32) {
		for n := range tolerated {
			if _, open := r.Ejected(); open {
				t.Errorf("it is ejected after it was down %d times", n)
				return
			}
			dying.Store(true)
			fail(t, r, fake, ErrNoConnection, 20)
			if r.State() != "down" {
				t.Errorf("it is %s", r.State())
			}
			dying.Store(false)
			time.Sleep(patient.ProbeEvery + 1) // by which the next probe has come, however many failed before it
			synctest.Wait()
		}
		if r.State() != "ejected" || !r.Up() {
			t.Errorf("it is %s", r.State())
		}
	})
}

func TestATrialIsGivenToOneOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, fake := newTestReplica(1000)
		fail(t, r, fake, ErrBroken, tolerated)
		time.Sleep(firstEjection - time.Millisecond)
		if _, err := r.Claim("too early", 0); err != ErrEjected {
			t.Fatalf("Claim = %v", err)
		}
		time.Sleep(time.Millisecond)
		var granted []*Slot
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				if s, err := r.Claim("holder", 0); err == nil {
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

func TestTheTrialsFirstByteClosesTheCircuitAndStartsSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, fake := newTestReplica(1000)
		var told atomic.Int32
		r.Observe(func() { told.Add(1) })
		fail(t, r, fake, ErrBroken, tolerated)
		time.Sleep(firstEjection)
		synctest.Wait()
		if told.Load() != 2 {
			t.Errorf("who waits was told %d times; want of the ejection and of its end", told.Load())
		}
		s := claim(t, r)
		s.Start()
		resp, err := r.Do(&http.Request{}, s)
		if err != nil {
			t.Fatal(err)
		}
		if r.Available() {
			t.Error("a head alone has closed the circuit")
		}
		resp.Body.Read(make([]byte, 1))
		if !r.Available() || r.State() != "serving" || told.Load() != 3 {
			t.Errorf("available: %t, it is %s, told %d times", r.Available(), r.State(), told.Load())
		}
		resp.Body.Close()
		s.Release()
		if b := r.Burden(); b != 10 {
			t.Errorf("it begins with the burden %v", b)
		}
		time.Sleep(slowStart / 2)
		if b := r.Burden(); b != 2 {
			t.Errorf("half way its burden is %v", b)
		}
		time.Sleep(slowStart / 2)
		if b := r.Burden(); b != 1 || r.back.Load() != 0 {
			t.Errorf("in the end its burden is %v", b)
		}
	})
}

func TestATrialWithoutAVerdictMakesRoomForTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, fake := newTestReplica(tolerated)
		fail(t, r, fake, ErrBroken, tolerated)
		time.Sleep(firstEjection)
		synctest.Wait()
		var told atomic.Int32
		r.Observe(func() { told.Add(1) })
		for name, end := range map[string]func(s *Slot){
			"its client goes":           func(s *Slot) { s.Blame(context.Canceled) },
			"it is never sent":          func(*Slot) {},
			"its answer is never read":  func(s *Slot) { r.listen(s, &http.Response{StatusCode: 200}) },
			"the request was at fault":  func(s *Slot) { r.listen(s, &http.Response{StatusCode: 400}) },
			"the backend would not":     func(s *Slot) { fake.faults = func(string) error { return ErrFull }; s.Confirm(t.Context(), 0) },
			"its connection was an old": func(s *Slot) { s.Blame(fmt.Errorf("%w: %w", ErrBroken, ErrStale)) },
		} {
			fake.faults = nil
			before := told.Load()
			s, err := r.Claim("holder", 0)
			if err != nil || !s.trial.Load() {
				t.Fatalf("where %s: %v", name, err)
			}
			if r.Available() {
				t.Errorf("where %s: another is let in", name)
			}
			end(s)
			s.Release()
			r.Wait()
			if !r.Available() || told.Load() == before {
				t.Errorf("where %s: available %t, told %d times", name, r.Available(), told.Load()-before)
			}
		}
		for range tolerated { // anyway: those that are no trial too
			if s, err := r.ClaimAnyway("holder"); err != nil {
				t.Error(err)
			} else {
				defer r.Wait()
				defer s.Release()
			}
		}
		if _, err := r.ClaimAnyway("another"); err != ErrFull {
			t.Errorf("on a full replica: %v", err)
		}
	})
}

func TestAFailedTrialDoublesTheTimeUpToABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, fake := newTestReplica(tolerated)
		fail(t, r, fake, ErrBroken, tolerated)
		for n, want := range []int{30, 60, 120, 240, 300, 300, 300} {
			time.Sleep(time.Duration(want)*time.Second - 1e6)
			if r.Available() {
				t.Errorf("ejection %d is over too soon", n+1)
			}
			time.Sleep(1e6)
			ask(t, r, fake, errors.Join(ErrBroken))
		}
		if r.Ejections() != 8 {
			t.Errorf("%d ejections", r.Ejections())
		}
	})
}
