package telemetry

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth/llmserver"
	"berth/routers"
	"berth/streaming"
)

// ReplicaMetrics are the counters of one replica of a model, by the replica's name: a process that
// follows another one under the same name counts on. Each attempt counts, also one hidden from the
// client by another attempt. Series appear with the first event. Any goroutine may call the
// methods, which do not block; those of a nil ReplicaMetrics do nothing.
//
// Latency has a sum and a count, but no buckets: with a thousand replicas a histogram each would be
// most of a scrape. The mean is enough to find the slow replica; the model's histograms have the
// distribution.
type ReplicaMetrics struct {
	name      string
	requests  statusCounts
	failures  [len(failureKinds)]atomic.Uint64
	firstByte latencySum
	tokens    tokenCounts
}

// latencySum counts latencies and adds them up. The count is never behind the sum in a reading by
// more than the observations in progress.
type latencySum struct{ count, nanoseconds atomic.Uint64 }

func (l *latencySum) observe(d time.Duration) {
	l.nanoseconds.Add(uint64(max(d, 0)))
	l.count.Add(1)
}

// A failureKind is why an attempt at a replica failed.
type failureKind int

const (
	notFailed failureKind = iota
	failedNoConnection
	failedBroken
	failedTimeout
	failedInvalid
	failedStatus
	failedModel
	failedSilent
	failedRefused
	failedBusy
	failedAborted
	failedByEngine
)

// failureKinds are the labels of the kinds.
var failureKinds = [...]string{"", "no_connection", "broken", "timeout", "invalid", "status_5xx", "model_not_served", "silent", "refused", "busy", "aborted", "engine_aborted"}

// failureOf returns the kind of failure of an attempt. Attempts of which nothing was sent, and
// those that failed because berth itself was exhausted, say nothing about the replica.
func failureOf(o routers.Outcome) failureKind {
	err := o.Err
	_, timeLimit := errors.AsType[*streaming.AbortError](err)
	switch {
	case o.Silent, errors.Is(err, llmserver.ErrSilent):
		return failedSilent
	case !o.Dispatched || errors.Is(err, llmserver.ErrExhausted):
		return notFailed
	case errors.Is(err, streaming.ErrClientGone), errors.Is(err, context.Canceled):
		return failedAborted
	case errors.Is(err, llmserver.ErrAborted):
		return failedByEngine
	case errors.Is(err, llmserver.ErrBusy):
		return failedBusy
	case errors.Is(err, llmserver.ErrNoConnection): // connect timeouts too
		return failedNoConnection
	case llmserver.Refused(err):
		return failedRefused
	case timeLimit, errors.Is(err, llmserver.ErrTimeout):
		return failedTimeout
	case errors.Is(err, llmserver.ErrNotHTTP):
		return failedInvalid
	case errors.Is(err, llmserver.ErrModelNotServed):
		return failedModel
	case err != nil && !errors.Is(err, llmserver.ErrServerError) && !errors.Is(err, llmserver.ErrEngineDead):
		return failedBroken
	case o.Status >= 500, err != nil:
		return failedStatus
	default:
		return notFailed
	}
}

// CountAttempt adds a finished attempt to the metrics of its replica. r must be the record of the
// request, with the results of this attempt.
func (m *ReplicaMetrics) CountAttempt(r *Request, o routers.Outcome) {
	if m == nil || !o.Dispatched {
		return
	}
	m.requests.add(o.Status)
	if kind := failureOf(o); kind != notFailed {
		m.failures[kind].Add(1)
	}
	if o.Status == 0 {
		return
	}
	if first := r.Response.FirstByte; !first.IsZero() {
		m.firstByte.observe(first.Sub(r.Dispatched))
	}
	if r.Measured {
		m.tokens.add(&r.Tap)
	}
}

// countReservation adds a reservation that failed at the replica's agent. An agent without a free
// slot, or draining, has not failed.
func (m *ReplicaMetrics) countReservation(err error) {
	if m == nil || errors.Is(err, llmserver.ErrFull) || errors.Is(err, llmserver.ErrDraining) || errors.Is(err, context.Canceled) {
		return
	}
	if kind := failureOf(routers.Outcome{Dispatched: true, Err: err}); kind != notFailed {
		m.failures[kind].Add(1)
	}
}

// replicaTable holds and exposes the metrics of a model's replicas.
type replicaTable struct {
	requests, failures, firstByte, tokens *prometheus.Desc

	current atomic.Pointer[replicaSet]
}

// A replicaSet is immutable. Beside the model's present replicas it has those of the set before,
// which some requests may still choose or use.
type replicaSet struct {
	metrics map[*llmserver.Replica]*ReplicaMetrics
	named   map[string]*ReplicaMetrics
	present map[*llmserver.Replica]bool
}

func newReplicaTable(model string) *replicaTable {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, prometheus.Labels{"model": model})
	}
	t := &replicaTable{
		requests:  desc("berth_replica_requests_total", "Attempts sent to the replica, also those followed by another attempt, by status of the response; none is an attempt without a response.", "replica", "status"),
		failures:  desc("berth_replica_failures_total", "Attempts and reservations that failed at the replica, by kind; aborted is a disconnect of the client.", "replica", "kind"),
		firstByte: desc("berth_replica_first_byte_seconds", "Time from the dispatch to the replica until the first byte of the response was written to the client; sum and count only.", "replica"),
		tokens:    desc("berth_replica_tokens_total", "Tokens reported by the replica, by the kinds of berth_tokens_total.", "replica", "kind"),
	}
	t.current.Store(new(replicaSet))
	return t
}

// SetReplicas sets the replicas of the model from now on. Those removed stay counted while they
// have requests, and until the next call; their series are exposed while they have requests. Calls
// must not overlap.
func (m *ModelMetrics) SetReplicas(replicas []*llmserver.Replica) {
	before := m.replicas.current.Load()
	next := &replicaSet{
		metrics: make(map[*llmserver.Replica]*ReplicaMetrics, len(replicas)),
		named:   make(map[string]*ReplicaMetrics, len(replicas)),
		present: make(map[*llmserver.Replica]bool, len(replicas)),
	}
	for replica, metrics := range before.metrics {
		if before.present[replica] || replica.Usage().Ongoing() > 0 {
			next.metrics[replica], next.named[metrics.name] = metrics, metrics
		}
	}
	for _, replica := range replicas {
		name := replica.ID()
		if next.named[name] == nil {
			next.named[name] = &ReplicaMetrics{name: name}
		}
		next.metrics[replica], next.present[replica] = next.named[name], true
	}
	m.replicas.current.Store(next)
}

// Replica returns the metrics of a replica, or nil if the model has not had that replica for long.
func (m *ModelMetrics) Replica(replica *llmserver.Replica) *ReplicaMetrics {
	return m.replicas.current.Load().metrics[replica]
}

// replicaNamed is Replica for callers that know only the name.
func (m *ModelMetrics) replicaNamed(name string) *ReplicaMetrics {
	return m.replicas.current.Load().named[name]
}

func (t *replicaTable) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{t.requests, t.failures, t.firstByte, t.tokens} {
		ch <- d
	}
}

// Collect exposes each name once: one process may be leaving while its successor has joined.
func (t *replicaTable) Collect(ch chan<- prometheus.Metric) {
	set := t.current.Load()
	exposed := make(map[*ReplicaMetrics]bool, len(set.metrics))
	for replica, metrics := range set.metrics {
		if !exposed[metrics] && (set.present[replica] || replica.Usage().Ongoing() > 0) {
			exposed[metrics] = true
			t.expose(ch, metrics)
		}
	}
}

func (t *replicaTable) expose(ch chan<- prometheus.Metric, m *ReplicaMetrics) {
	out := exposition{ch}
	m.requests.forEach(func(status string, n uint64) { out.counter(t.requests, n, m.name, status) })
	for kind := range m.failures {
		if n := m.failures[kind].Load(); n > 0 {
			out.counter(t.failures, n, m.name, failureKinds[kind])
		}
	}
	if n := m.firstByte.count.Load(); n > 0 {
		seconds := time.Duration(m.firstByte.nanoseconds.Load()).Seconds()
		ch <- prometheus.MustNewConstSummary(t.firstByte, n, seconds, nil, m.name)
	}
	m.tokens.forEach(func(kind string, n uint64) { out.counter(t.tokens, n, m.name, kind) })
}
