package agent

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"berth/llmserver"
)

// tableMachine applies the same calls to a Table and to the model.
type tableMachine struct {
	t      *testing.T
	table  *Table
	model  *modelTable
	tokens []llmserver.Token // the tokens of all calls; few, so that calls collide
	calls  []*modelCall
	runs   []*Run
}

// newToken returns a token whose holder depends on i alone, so that equal draws give equal runs.
func newToken(i int) llmserver.Token {
	token := uuid.New()
	token[15] = byte(i)
	return token
}

func (m *tableMachine) token(t *rapid.T) llmserver.Token {
	i := rapid.IntRange(0, len(m.tokens)-1).Draw(t, "token")
	if at, spent := m.model.tombstones[m.tokens[i]]; spent && time.Since(at) >= MaxLease {
		m.tokens[i] = newToken(i) // the tombstone of the old one may be gone or not
	}
	return m.tokens[i]
}

// sleep lets time pass. Each call comes at another nanosecond within a second, and all durations
// are whole seconds, so no two timers fire together.
func (m *tableMachine) sleep(d time.Duration) {
	time.Sleep(d + 1)
	synctest.Wait()
	m.model.advance(time.Now())
}

func (m *tableMachine) reserve(t *rapid.T) {
	token := m.token(t)
	lease := rapid.SampledFrom([]time.Duration{time.Second, 5 * time.Second, 80 * time.Second}).Draw(t, "lease")
	wait := rapid.SampledFrom([]time.Duration{0, 2 * time.Second, 7 * time.Second}).Draw(t, "wait")
	waits, want := m.model.reserve(time.Now(), token, lease, wait)
	call := &modelCall{deadline: time.Now().Add(wait), over: !waits, want: want}
	call.pendingReserve = queueReserveFor(m.t, m.table, token, lease, wait)
	m.calls = append(m.calls, call)
	if waits {
		m.model.reservations[token].calls = append(m.model.reservations[token].calls, call)
		m.model.advance(time.Now()) // for a call that shares a wait and has none itself
	}
}

func (m *tableMachine) release(t *rapid.T) {
	token := m.token(t)
	m.table.Release(token)
	m.model.retireToken(time.Now(), token, llmserver.ErrToken)
}

func (m *tableMachine) consume(t *rapid.T) {
	token := m.token(t)
	c := m.model.reservations[token]
	r, err := m.table.Consume(token)
	if ok := c != nil && !c.expires.IsZero(); ok != (err == nil) {
		t.Fatalf("Consume = %v; want it to work: %t", err, ok)
	}
	if err != nil {
		return
	}
	if r.holder != holderOf(token) {
		t.Fatalf("the request's holder is %q; want %q", r.holder, holderOf(token))
	}
	m.runs = append(m.runs, r)
	m.model.running++
	m.model.retireToken(time.Now(), token, nil)
}

func (m *tableMachine) acquire(t *rapid.T) {
	r, err := m.table.Acquire()
	var want error
	switch {
	case m.model.draining:
		want = llmserver.ErrDraining
	case m.model.ongoing() >= m.model.limit || len(m.model.queue) > 0:
		want = llmserver.ErrFull
	}
	if err != want {
		t.Fatalf("Acquire = %v; want %v", err, want)
	}
	if err == nil {
		m.runs = append(m.runs, r)
		m.model.running++
	}
}

func (m *tableMachine) finish(t *rapid.T) {
	if len(m.runs) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.runs)-1).Draw(t, "run")
	m.runs[i].Finish()
	m.runs[i].Finish()
	m.runs = slices.Delete(m.runs, i, i+1)
	m.model.running--
	m.model.grantQueued(time.Now())
}

// abandon cancels one of the waiting calls.
func (m *tableMachine) abandon(t *rapid.T) {
	waiting := slices.Collect(func(yield func(*modelCall) bool) {
		for _, call := range m.calls {
			if !call.over && !yield(call) {
				return
			}
		}
	})
	if len(waiting) == 0 {
		return
	}
	call := rapid.SampledFrom(waiting).Draw(t, "call")
	call.finish(context.Canceled)
	call.stop()
	synctest.Wait()
	m.model.retireToken(time.Now(), call.token, llmserver.ErrFull)
}

func (m *tableMachine) drain(t *rapid.T) {
	if rapid.IntRange(0, 9).Draw(t, "how seldom") > 0 {
		return
	}
	m.table.Drain()
	m.model.draining = true
	for len(m.model.queue) > 0 {
		m.model.retireToken(time.Now(), m.model.queue[0], llmserver.ErrDraining)
	}
}

// check compares the visible state of both.
func (m *tableMachine) check(t *rapid.T) {
	synctest.Wait()
	got := m.table.Read()
	if reserved := len(m.model.reservations) - len(m.model.queue); got.Reserved != reserved || got.Running != m.model.running || got.Waiting != len(m.model.queue) {
		t.Fatalf("reserved %d, running %d, waiting %d; want %d, %d, %d",
			got.Reserved, got.Running, got.Waiting, reserved, m.model.running, len(m.model.queue))
	}
	for _, holder := range []string{"x", "y"} {
		own := 0
		for token, c := range m.model.reservations {
			if holderOf(token) == holder && !c.expires.IsZero() {
				own++
			}
		}
		for _, r := range m.runs {
			if r.holder == holder {
				own++
			}
		}
		if report := m.table.ReportTo(holder); report.Own != own {
			t.Fatalf("the own count of %s is %d; want %d", holder, report.Own, own)
		}
	}
	for _, call := range m.calls {
		select {
		case <-call.done:
			if !call.over || call.err != call.want {
				t.Fatalf("a call returned %v; want %v, if at all: %t", call.err, call.want, call.over)
			}
		default:
			if call.over {
				t.Fatalf("a call still waits; want %v", call.want)
			}
		}
	}
	select {
	case <-m.table.Drained():
		if !m.model.draining || m.model.ongoing() > 0 {
			t.Fatalf("it is drained with %d ongoing", m.model.ongoing())
		}
	default:
		if m.model.draining && m.model.ongoing() == 0 {
			t.Fatalf("it is not drained with nothing ongoing")
		}
	}
	wantBalance(t, got)
}

// runMachine runs one rapid test in the synctest bubble of t.
func runMachine(t *testing.T, rt *rapid.T) {
	limit := rapid.IntRange(1, 4).Draw(rt, "limit")
	m := &tableMachine{t: t, table: NewTable(limit), tokens: make([]llmserver.Token, 6)}
	for i := range m.tokens {
		m.tokens[i] = newToken(i)
	}
	m.model = &modelTable{limit: limit, reservations: make(map[llmserver.Token]*modelReservation), tombstones: make(map[llmserver.Token]time.Time)}
	step := func(f func(*rapid.T)) func(*rapid.T) {
		return func(rt *rapid.T) {
			m.sleep(0)
			f(rt)
		}
	}
	rt.Repeat(map[string]func(*rapid.T){
		"":        m.check,
		"reserve": step(m.reserve), "reserve again": step(m.reserve),
		"release": step(m.release),
		"consume": step(m.consume), "consume again": step(m.consume),
		"acquire": step(m.acquire),
		"finish":  step(m.finish), "finish again": step(m.finish),
		"abandon": step(m.abandon),
		"drain":   step(m.drain),
		"sleep": func(rt *rapid.T) {
			m.sleep(time.Duration(rapid.IntRange(1, 9).Draw(rt, "seconds")) * time.Second)
		},
	})
	for _, r := range m.runs {
		r.Finish()
		m.model.running--
		m.model.grantQueued(time.Now())
	}
	m.runs = nil
	m.sleep(2 * MaxLease)
	m.check(rt)
	if len(m.table.ownOngoing) != 0 {
		rt.Fatalf("in the end %v hold something", m.table.ownOngoing)
	}
	if got := m.table.Read(); got.Ongoing != 0 || got.Waiting != 0 || got.Highest > limit {
		rt.Fatalf("in the end %+v", got)
	}
}

// withoutDeadline hides the deadline of a test from rapid, since time in a synctest bubble is fake.
type withoutDeadline struct{ rapid.TB }

// Calls may be reordered, repeated and late; the table behaves like the model.
func TestTableMatchesModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(withoutDeadline{t}, func(rt *rapid.T) { runMachine(t, rt) })
	})
}
