package routers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
	"berth/llmserver/agent"
)

// tableBackend speaks to a slot table as if it were a network away.
type tableBackend struct {
	table   *agent.Table
	latency time.Duration
	dying   time.Duration         // how long a reservation takes to hear that its context has ended
	refusal atomic.Pointer[error] // of reservations; nil: none
	fault   atomic.Pointer[error] // what befalls all calls; nil: nothing
	asked   atomic.Int64          // reservations
}

func (b *tableBackend) travel(ctx context.Context) error {
	timer := time.NewTimer(b.latency)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := b.fault.Load(); err != nil {
		return *err
	}
	return nil
}

// Reserve takes effect even where its reply is lost.
func (b *tableBackend) Reserve(ctx context.Context, t llmserver.Token, wait time.Duration) (llmserver.Report, error) {
	b.asked.Add(1)
	if err := b.travel(ctx); err != nil {
		return llmserver.Report{}, err
	}
	if err := b.refusal.Load(); err != nil {
		return b.table.ReportTo(b.name()), *err
	}
	_, err := b.table.ReserveFor(ctx, b.name(), t, agent.DefaultLease, wait)
	report := b.table.ReportTo(b.name())
	if ctx.Err() != nil {
		time.Sleep(b.dying)
	}
	if lost := b.travel(ctx); lost != nil {
		return llmserver.Report{}, lost
	}
	return report, err
}

// name is this ingress's towards the agent.
func (b *tableBackend) name() string { return fmt.Sprintf("%p", b) }

// Cancel arrives in any weather.
func (b *tableBackend) Cancel(_ context.Context, t llmserver.Token) (llmserver.Report, error) {
	time.Sleep(b.latency)
	b.table.Release(t)
	return b.table.ReportTo(b.name()), nil
}

// Do holds the slot until the answer's body is closed.
func (b *tableBackend) Do(req *http.Request, t llmserver.Token) (*http.Response, llmserver.Report, error) {
	if err := b.travel(req.Context()); err != nil {
		return nil, llmserver.Report{}, err
	}
	run, err := b.table.Consume(t)
	if err != nil {
		return nil, b.table.ReportTo(b.name()), err
	}
	return &http.Response{StatusCode: http.StatusOK, Body: runBody{run}}, b.table.ReportTo(b.name()), nil
}

func (b *tableBackend) Probe(ctx context.Context) (llmserver.Report, error) {
	return b.table.ReportTo(b.name()), b.travel(ctx)
}

func (*tableBackend) Describe(llmserver.Endpoint) {}
func (*tableBackend) Close()                      {}

type runBody struct{ run *agent.Run }

func (runBody) Read([]byte) (int, error) { return 0, errors.New("not read in these tests") }

// Close ends the request at the agent as the last byte of a real answer does.
func (b runBody) Close() error {
	b.run.Finish()
	return nil
}

// ingress is a router over agents named a, b, c …, as one of several ingresses has it.
type ingress struct {
	*Router
	pool     llmserver.Pool
	replicas []*llmserver.Replica
	backends []*tableBackend
}

// newIngress makes one over these tables; it is closed by the caller, inside the bubble.
func newIngress(t testing.TB, limits Limits, tables ...*agent.Table) *ingress {
	t.Helper()
	in := new(ingress)
	in.pool.Dial = func(llmserver.Endpoint) (llmserver.Backend, error) {
		b := &tableBackend{table: tables[len(in.backends)], latency: 100 * time.Microsecond}
		in.backends = append(in.backends, b)
		return b, nil
	}
	var endpoints []llmserver.Endpoint
	for i, table := range tables {
		id := string(rune('a' + i))
		endpoints = append(endpoints, llmserver.Endpoint{
			Model: "m", ID: id, URL: "http://" + id + strconv.Itoa(i), Limit: table.Report().Limit, CountsSlots: true,
			ProbeEvery: 10 * time.Second, ProbeTimeout: time.Second,
		})
	}
	replicas, _, err := in.pool.Set(endpoints)
	if err != nil {
		t.Fatal(err)
	}
	in.replicas = replicas
	in.Router = New(replicas, newByText, limits, Hooks{})
	for _, r := range replicas {
		r.OnChange(in.Refresh)
	}
	return in
}

// close ends the ingress and checks that nothing of it is left anywhere.
func (in *ingress) close(t testing.TB) {
	t.Helper()
	in.Close()
	in.pool.Close()
	waitSettled() // other ingresses may be giving up what they no longer need
	if len(in.agentWaits) != 0 || in.QueueLength() != 0 || in.queue.head != nil {
		t.Errorf("%d seek and %d wait", len(in.agentWaits), in.QueueLength())
	}
	for i, r := range in.replicas {
		if u := r.Usage(); u.Ongoing() != 0 || len(r.Slots()) != 0 {
			t.Errorf("replica %s: %+v, %d listed", r.ID(), u, len(r.Slots()))
		}
		if now := in.backends[i].table.Read(); now.Reserved != 0 || now.Waiting != 0 {
			t.Errorf("the agent of %s has %d reserved and %d waiting", r.ID(), now.Reserved, now.Waiting)
		}
	}
}

// fill takes all slots of a table, as other ingresses would.
func fill(t testing.TB, table *agent.Table) (runs []*agent.Run) {
	t.Helper()
	for range table.Report().Limit {
		run, err := table.Acquire()
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, run)
	}
	return runs
}

// settle lets what is on its way arrive.
func waitSettled() {
	time.Sleep(10 * time.Millisecond)
	synctest.Wait()
}

// lineUp has requests choose for the texts, one after the other.
func queueUpAtAgents(t testing.TB, r *Router, texts ...string) (all []*request) {
	t.Helper()
	for _, text := range texts {
		all = append(all, startChoose(t, r, text))
		waitSettled()
	}
	if r.QueueLength() != len(all) {
		t.Fatalf("%d are in line; want %d", r.QueueLength(), len(all))
	}
	return all
}

// wantWaiting checks how many places are held in an agent's line.
func wantAgentWaits(t testing.TB, table *agent.Table, want int) {
	t.Helper()
	waitSettled()
	if got := table.Read().Waiting; got != want {
		t.Fatalf("%d places in the agent's line; want %d", got, want)
	}
}

// dispatch sends a request into its slot, before the lease of that is over.
func dispatch(t testing.TB, q *request) {
	t.Helper()
	if _, err := q.sel.Dispatch(&http.Request{}); err != nil {
		t.Errorf("Dispatch: %v", err)
	}
}

// wantServed checks which requests have a slot.
func wantServed(t testing.TB, all []*request, want ...int) {
	t.Helper()
	waitSettled()
	got := served(all)
	if len(got) != len(want) {
		t.Fatalf("%v were served; want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%v were served; want %v", got, want)
		}
	}
}

// An ingress that has no descriptor left asks each agent once, as it may have a connection open, holds nothing and blames
// nobody.
func TestRouterOwnExhaustionEndsChoose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newIngress(t, Limits{MaxQueued: 10, QueueTimeout: time.Minute}, agent.NewTable(1), agent.NewTable(1))
		defer in.close(t)
		exhausted := llmserver.ErrExhausted
		for _, b := range in.backends {
			b.refusal.Store(&exhausted)
		}
		if sel, err := in.Choose(t.Context(), &Payload{}); !errors.Is(err, llmserver.ErrExhausted) || sel != nil {
			t.Errorf("Choose = %v, %v", sel, err)
		}
		synctest.Wait()
		if n := in.backends[0].asked.Load() + in.backends[1].asked.Load(); n != 2 {
			t.Errorf("%d reservations were asked for; want one of each", n)
		}
		for _, r := range in.replicas {
			if !r.Available() || r.Load() != 0 {
				t.Errorf("replica %s: available %t, load %d", r.ID(), r.Available(), r.Load())
			}
		}
		in.backends[1].refusal.Store(nil)
		sel, err := in.Choose(t.Context(), &Payload{})
		if err != nil || sel.Replica() != in.replicas[1] {
			t.Fatalf("Choose = %v, %v; want the agent to which a connection is open", sel, err)
		}
		sel.Release()
	})
}
