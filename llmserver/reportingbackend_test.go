package llmserver

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// reportingBackend returns its current report from every call.
type reportingBackend struct {
	*fakeBackend
	mu     sync.Mutex
	report Report
}

func (b *reportingBackend) setReport(r Report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.report = r
}

func (b *reportingBackend) currentReport() Report {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.report
}

func (b *reportingBackend) Reserve(ctx context.Context, t Token, wait time.Duration) (Report, error) {
	_, err := b.fakeBackend.Reserve(ctx, t, wait)
	return b.currentReport(), err
}

func (b *reportingBackend) Cancel(ctx context.Context, t Token) (Report, error) {
	_, err := b.fakeBackend.Cancel(ctx, t)
	return b.currentReport(), err
}

func (b *reportingBackend) Do(req *http.Request, t Token) (*http.Response, Report, error) {
	if t == (Token{}) {
		return &http.Response{Body: http.NoBody}, b.currentReport(), b.fault("call")
	}
	resp, _, err := b.fakeBackend.Do(req, t)
	return resp, b.currentReport(), err
}

func (b *reportingBackend) Probe(ctx context.Context) (Report, error) {
	_, err := b.fakeBackend.Probe(ctx)
	return b.currentReport(), err
}

// eventCounts counts a replica's events and notifications.
type eventCounts struct {
	restarted, differs, observed atomic.Int32
	configured, reported         int
}

// newReportingReplica returns a replica with the configured limit, whose agent has not reported
// yet.
func newReportingReplica(limit int) (*Replica, *reportingBackend, *eventCounts) {
	b, n := &reportingBackend{fakeBackend: newFake(1 << 10)}, new(eventCounts)
	r := NewReplica(Endpoint{Model: "m", ID: "r", URL: "http://r", Limit: limit, CountsSlots: true}, b)
	r.events = Events{
		Restarted:       func(Endpoint) { n.restarted.Add(1) },
		CapacityDiffers: func(_ string, c, r int) { n.differs.Add(1); n.configured, n.reported = c, r },
	}
	r.OnChange(func() { n.observed.Add(1) })
	return r, b, n
}
