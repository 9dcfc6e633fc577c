package llmserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"sync"
	"testing"
	"time"
)

var errReplyLost = errors.New("the reply was lost")

// fakeBackend is a strict slot table on the replica's side. It counts its slots by token, refuses
// reservations beyond its capacity and records every violation, such as a token that was dispatched
// without a reservation or twice.
type fakeBackend struct {
	capacity int
	faults   func(op string) error // asked before each call; nil: none
	deaf     bool                  // cancels time out
	probe    func(ctx context.Context) error

	mu         sync.Mutex
	held       map[Token]bool // true once dispatched
	cancelled  map[Token]bool
	reserves   int
	cancels    int
	refusals   int
	described  []Endpoint
	closed     int
	violations []string
}

func newFake(capacity int) *fakeBackend {
	return &fakeBackend{capacity: capacity, held: make(map[Token]bool), cancelled: make(map[Token]bool)}
}

func (f *fakeBackend) fault(op string) error {
	if f.faults == nil {
		return nil
	}
	return f.faults(op)
}

// Reserve takes effect even where its reply is lost.
func (f *fakeBackend) Reserve(_ context.Context, t Token, _ time.Duration) (Report, error) {
	return Report{}, f.reserveToken(t)
}

func (f *fakeBackend) reserveToken(t Token) error {
	err := f.fault("reserve")
	if err != nil && !errors.Is(err, errReplyLost) {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reserves++
	switch {
	case f.cancelled[t]:
		return ErrSpent
	case len(f.held) >= f.capacity:
		f.refusals++
		return ErrFull
	}
	f.held[t] = false
	return err
}

func (f *fakeBackend) Cancel(ctx context.Context, t Token) (Report, error) {
	return Report{}, f.cancel(ctx, t)
}

func (f *fakeBackend) cancel(ctx context.Context, t Token) error {
	if f.deaf {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err := f.fault("cancel")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cancels++
	f.cancelled[t] = true
	if f.held[t] {
		f.violations = append(f.violations, "a running request was cancelled by token")
	}
	delete(f.held, t)
	return err
}

// Do holds the slot until the response body is closed.
func (f *fakeBackend) Do(_ *http.Request, t Token) (*http.Response, Report, error) {
	resp, err := f.do(t)
	return resp, Report{}, err
}

func (f *fakeBackend) do(t Token) (*http.Response, error) {
	err := f.fault("do")
	f.mu.Lock()
	defer f.mu.Unlock()
	if running, ok := f.held[t]; !ok || running {
		f.violations = append(f.violations, fmt.Sprintf("dispatched with held=%t running=%t", ok, running))
	}
	if err != nil {
		delete(f.held, t)
		return nil, err
	}
	f.held[t] = true
	return &http.Response{StatusCode: http.StatusOK, Body: &fakeBody{backend: f, token: t}}, nil
}

func (f *fakeBackend) Probe(ctx context.Context) (Report, error) {
	if f.probe == nil {
		return Report{}, nil
	}
	return Report{}, f.probe(ctx)
}

func (f *fakeBackend) Describe(e Endpoint) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.described = append(f.described, e)
}

func (f *fakeBackend) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed++
}

// holds returns the number of slots that the backend counts.
func (f *fakeBackend) holds() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.held)
}

func (f *fakeBackend) cancelCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cancels
}

type fakeBody struct {
	backend *fakeBackend
	token   Token
	read    bool
}

// Read returns one byte.
func (b *fakeBody) Read(p []byte) (int, error) {
	if b.read {
		return 0, io.EOF
	}
	b.read = true
	return copy(p, "."), nil
}

func (b *fakeBody) Close() error {
	b.backend.mu.Lock()
	defer b.backend.mu.Unlock()
	delete(b.backend.held, b.token)
	return nil
}

// newTestReplica returns a replica with the given limit and its backend. The replica has a sibling
// without failures that always responds.
func newTestReplica(limit int) (*Replica, *fakeBackend) {
	f := newFake(limit)
	r := NewReplica(Endpoint{Model: "m", ID: "r", URL: "http://r", Limit: limit}, f)
	addSibling(r)
	return r, f
}

// addSibling gives the replica a sibling without failures that always responds.
func addSibling(r *Replica) {
	sibling := NewReplica(Endpoint{Model: "m", ID: "sibling", URL: "http://sibling", Limit: 1}, newFake(1))
	sibling.health.lastResponse.Store(math.MaxInt64)
	CompareReplicas([]*Replica{r, sibling})
}

// mustReserve reserves and confirms a slot.
func mustReserve(t *testing.T, r *Replica) *Slot {
	t.Helper()
	s, err := r.TryReserve("holder", 0)
	if err != nil {
		t.Fatalf("TryReserve: %v", err)
	}
	if err := s.Confirm(t.Context(), 0); err != nil {
		t.Fatalf("Confirm: %v", err)
	}
	return s
}

// wantUsage checks both counts at once.
func wantUsage(t *testing.T, r *Replica, reserved, running int) {
	t.Helper()
	if u := r.Usage(); u.Reserved != reserved || u.Running != running {
		t.Fatalf("reserved %d, running %d; want %d, %d", u.Reserved, u.Running, reserved, running)
	}
	if got := len(r.Slots()); got != reserved+running {
		t.Fatalf("%d live slots are listed; want %d", got, reserved+running)
	}
}
