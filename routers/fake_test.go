package routers

import (
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth/llmserver"
)

var errReplyLost = errors.New("the reply was lost")

// fakeBackend is a slot table on the replica's side that checks: it counts by
// token the slots that it holds, refuses those beyond its capacity, and counts
// requests that came without a slot of their own.
type fakeBackend struct {
	down   atomic.Bool           // refuses connections
	faults func(op string) error // called before each call; nil: none

	mu       sync.Mutex
	capacity int
	held     map[llmserver.Token]bool // true once dispatched
	requests int
	cancels  int
	refusals int
	bypasses int
}

func (f *fakeBackend) fault(op string) error {
	if f.down.Load() {
		return llmserver.ErrNoConnection
	}
	if f.faults == nil {
		return nil
	}
	return f.faults(op)
}

// Reserve takes effect even if its reply is lost.
func (f *fakeBackend) Reserve(_ context.Context, t llmserver.Token, _ time.Duration) (llmserver.Report, error) {
	return llmserver.Report{}, f.reserveToken(t)
}

func (f *fakeBackend) reserveToken(t llmserver.Token) error {
	err := f.fault("reserve")
	if err != nil && !errors.Is(err, errReplyLost) {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.held) >= f.capacity {
		f.refusals++
		return llmserver.ErrFull
	}
	f.held[t] = false
	return err
}

// Cancel always reaches the replica.
func (f *fakeBackend) Cancel(_ context.Context, t llmserver.Token) (llmserver.Report, error) {
	return llmserver.Report{}, f.cancel(t)
}

func (f *fakeBackend) cancel(t llmserver.Token) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cancels++
	delete(f.held, t)
	return nil
}

// Do holds the slot until the response body is closed.
func (f *fakeBackend) Do(_ *http.Request, t llmserver.Token) (*http.Response, llmserver.Report, error) {
	resp, err := f.do(t)
	return resp, llmserver.Report{}, err
}

func (f *fakeBackend) do(t llmserver.Token) (*http.Response, error) {
	err := f.fault("do")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests++
	if running, ok := f.held[t]; !ok || running {
		f.bypasses++
	}
	if err != nil {
		delete(f.held, t)
		return nil, err
	}
	f.held[t] = true
	return &http.Response{StatusCode: http.StatusOK, Body: &fakeBody{backend: f, token: t}}, nil
}

func (f *fakeBackend) Probe(context.Context) (llmserver.Report, error) {
	if f.down.Load() {
		return llmserver.Report{}, llmserver.ErrNoConnection
	}
	return llmserver.Report{}, nil
}

// Describe raises the capacity to the limit and, like a real engine, never lowers it.
func (f *fakeBackend) Describe(e llmserver.Endpoint) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.capacity = max(f.capacity, e.Limit)
}

func (*fakeBackend) Close() {}

type fakeBody struct {
	backend *fakeBackend
	token   llmserver.Token
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

// fleet is a pool of replicas named a, b, c … on fakes.
type fleet struct {
	pool      llmserver.Pool
	endpoints []llmserver.Endpoint
	replicas  []*llmserver.Replica
	fakes     []*fakeBackend
}

func newFleet(t testing.TB, limits ...int) *fleet { return newProbedFleet(t, 0, limits...) }

// newProbedFleet returns a fleet whose replicas are probed at the interval.
func newProbedFleet(t testing.TB, every time.Duration, limits ...int) *fleet {
	t.Helper()
	f := new(fleet)
	f.pool.Dial = func(llmserver.Endpoint) (llmserver.Backend, error) {
		f.fakes = append(f.fakes, &fakeBackend{held: make(map[llmserver.Token]bool)})
		return f.fakes[len(f.fakes)-1], nil
	}
	for i, limit := range limits {
		id := strconv.Itoa(i)
		if i < 26 {
			id = string(rune('a' + i))
		}
		f.endpoints = append(f.endpoints, llmserver.Endpoint{
			Model: "m", ID: id, URL: "http://" + id, Limit: limit, ProbeEvery: every, ProbeTimeout: time.Second,
		})
	}
	f.set(t, f.endpoints...)
	t.Cleanup(f.pool.Close)
	return f
}

// set replaces the endpoints of the pool.
func (f *fleet) set(t testing.TB, endpoints ...llmserver.Endpoint) {
	t.Helper()
	replicas, retire, err := f.pool.Set(endpoints)
	if err != nil {
		t.Fatal(err)
	}
	f.replicas = replicas
	retire()
}

// setLimit changes the limit of one replica.
func (f *fleet) setLimit(t testing.TB, i, limit int) {
	t.Helper()
	f.endpoints[i].Limit = limit
	f.set(t, f.endpoints...)
}

// wantIdle fails the test unless no slot is held anywhere.
func (f *fleet) wantIdle(t testing.TB) {
	t.Helper()
	for i, r := range f.replicas {
		r.Wait()
		if u := r.Usage(); u.Reserved != 0 || u.Running != 0 || len(r.Slots()) != 0 {
			t.Errorf("replica %s: %d reserved, %d running, %d listed", r.ID(), u.Reserved, u.Running, len(r.Slots()))
		}
		f.fakes[i].mu.Lock()
		if n := len(f.fakes[i].held); n != 0 {
			t.Errorf("replica %s holds %d itself", r.ID(), n)
		}
		f.fakes[i].mu.Unlock()
	}
}

// byText is a policy for tests: the payload's text names the replicas, a tier
// each; an empty text ranks all of them alike.
type byText struct {
	members []*llmserver.Replica
	ranks   *atomic.Int32 // number of rankings; may be nil
}

func newByText(members []*llmserver.Replica, _ Policy) Policy { return &byText{members: members} }

func (b *byText) Rank(p *Payload) iter.Seq[Tier] {
	if b.ranks != nil {
		b.ranks.Add(1)
	}
	available := func(in func(r *llmserver.Replica) bool) []*llmserver.Replica {
		return slices.DeleteFunc(slices.Clone(b.members), func(r *llmserver.Replica) bool { return !r.Available() || !in(r) })
	}
	return func(yield func(Tier) bool) {
		if len(p.Text) == 0 {
			yield(Tier{Replicas: available(func(*llmserver.Replica) bool { return true })})
			return
		}
		for _, id := range string(p.Text) {
			tier := available(func(r *llmserver.Replica) bool { return r.ID() == string(id) })
			if len(tier) > 0 && !yield(Tier{Replicas: tier}) {
				return
			}
		}
	}
}

// roomy limits do not bound the queue.
var roomy = Limits{MaxQueued: -1, QueueTimeout: time.Minute}

// mustChoose chooses for the text and fails the test on an error.
func mustChoose(t testing.TB, r *Router, text string, exclude ...*llmserver.Replica) *Selection {
	t.Helper()
	sel, err := r.Choose(t.Context(), &Payload{Text: []byte(text)}, exclude...)
	if err != nil {
		t.Fatalf("Choose(%q): %v", text, err)
	}
	return sel
}

// request is one call of Choose in its own goroutine.
type request struct {
	payload Payload
	cancel  context.CancelCauseFunc
	done    chan struct{}
	sel     *Selection
	err     error
	took    time.Duration
}

// startChoose calls Choose for the text on a goroutine of its own; in a bubble the caller waits
// until it blocks.
func startChoose(t testing.TB, r *Router, text string, exclude ...*llmserver.Replica) *request {
	q := &request{payload: Payload{Text: []byte(text)}, done: make(chan struct{})}
	ctx, cancel := context.WithCancelCause(t.Context())
	q.cancel = cancel
	began := time.Now()
	go func() {
		defer close(q.done)
		q.sel, q.err = r.Choose(ctx, &q.payload, exclude...)
		q.took = time.Since(began)
	}()
	return q
}

// returned reports whether the call has returned.
func (q *request) returned() bool {
	select {
	case <-q.done:
		return true
	default:
		return false
	}
}

// serve dispatches and releases, as a successful request does.
func serve(t testing.TB, sel *Selection) {
	t.Helper()
	if _, err := sel.Dispatch(&http.Request{}); err != nil {
		t.Errorf("Dispatch: %v", err)
	}
	sel.Release()
}
