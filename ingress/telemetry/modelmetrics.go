package telemetry

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ModelMetrics are the counters and histograms of one model. They live exactly as long as the
// model: a request that outlives the model counts into series outside of any scrape, and a model
// added again begins at zero. A series is exposed from the first event on. Any goroutine may call
// the methods, which do not block.
type ModelMetrics struct {
	model string // empty for requests without a model

	requests       *labelledCounts[statusCounts, *statusCounts] // route, status
	duration       *histogram
	firstByte      *histogram
	firstToken     *histogram
	gaps           *gapHistogram
	overhead       *histogram
	wait           *histogram
	reservations   *prometheus.CounterVec    // outcome
	accepted       func() prometheus.Counter // reservations with outcome accepted
	releases       *prometheus.CounterVec    // cause
	retries        *prometheus.CounterVec    // reason
	aborts         *prometheus.CounterVec    // phase
	upstreamErrors *prometheus.CounterVec    // phase
	engineAborts   *prometheus.CounterVec
	noText         *prometheus.CounterVec
	tokens         *labelledCounts[tokenCounts, *tokenCounts] // key, kind
	matches        *histogram
	replicas       *replicaTable

	all []prometheus.Collector
}

var (
	requestBuckets  = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	overheadBuckets = []float64{5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2}
	matchBuckets    = []float64{0, .1, .25, .5, .75, .9, .99}
)

// NewModelMetrics returns the metrics of the model with the given ID.
func NewModelMetrics(model string) *ModelMetrics {
	m, labels := &ModelMetrics{model: model, gaps: newGapHistogram(model), replicas: newReplicaTable(model)}, prometheus.Labels{"model": model}
	counter := func(name, help string, variable ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, variable)
		m.all = append(m.all, v)
		return v
	}
	newHistogram := func(name, help string, buckets []float64) *histogram {
		h := &histogram{Histogram: prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, ConstLabels: labels})}
		m.all = append(m.all, h)
		return h
	}
	m.requests = &labelledCounts[statusCounts, *statusCounts]{desc: prometheus.NewDesc("berth_requests_total",
		"Finished requests by status; 499 is a client that disconnected before a response.", []string{"route", "status"}, labels)}
	m.tokens = &labelledCounts[tokenCounts, *tokenCounts]{desc: prometheus.NewDesc("berth_tokens_total",
		"Tokens reported by replicas, by name of the API key: prompt (cached is a part of it) and completion. For streams without usage, estimated counts events with content.", []string{"key", "kind"}, labels)}
	m.duration = newHistogram("berth_request_duration_seconds", "Time from the request header to the end of the response.", requestBuckets)
	m.firstByte = newHistogram("berth_time_to_first_byte_seconds", "Time from the request header until the first byte of the replica's response was written to the client.", requestBuckets)
	m.firstToken = newHistogram("berth_time_to_first_token_seconds", "Time from the request header until the first event with content was written to the client, for event streams.", requestBuckets)
	m.overhead = newHistogram("berth_overhead_seconds", "Time that berth itself takes: scan, choose, reserve and prepare the dispatch, without queueing and without the replica's time.", overheadBuckets)
	m.wait = newHistogram("berth_queue_wait_seconds", "Time in the queue of requests that were queued, whether or not they got a slot.", requestBuckets)
	m.reservations = counter("berth_reservations_total", "Reservations of slots by outcome; unclear is one without a clear response, which was cancelled.", "outcome")
	m.accepted = sync.OnceValue(func() prometheus.Counter { return m.reservations.WithLabelValues("accepted") })
	m.releases = counter("berth_releases_total", "Released slots by cause.", "cause")
	m.retries = counter("berth_retries_total", "Retries by the reason for which the attempt before failed.", "reason")
	m.aborts = counter("berth_aborts_total", "Client disconnects before the end of the response, by phase.", "phase")
	m.upstreamErrors = counter("berth_upstream_errors_total", "Attempts that failed at a replica, by phase.", "phase")
	m.engineAborts = counter("berth_engine_aborts_total", "Responses that an engine ended with the finish reason abort, among them those that were retried.")
	m.noText = counter("berth_requests_without_routing_text_total", "Requests without text to route by, which were ranked by load.")
	m.matches = newHistogram("berth_prefix_match_ratio", "Share of a prompt's blocks that the chosen replica was expected to have cached.", matchBuckets)
	m.all = append(m.all, m.requests, m.tokens, m.gaps, m.replicas)
	return m
}

// CountAccepted counts a reservation granted to a request.
func (m *ModelMetrics) CountAccepted() { m.accepted().Inc() }

// CountRetry counts a further attempt, by reason.
func (m *ModelMetrics) CountRetry(reason string) { m.retries.WithLabelValues(reason).Inc() }

// CountUpstreamError counts a failed attempt at a replica.
func (m *ModelMetrics) CountUpstreamError(phase string) {
	m.upstreamErrors.WithLabelValues(phase).Inc()
}

// CountEngineAbort counts a response that the engine did not complete.
func (m *ModelMetrics) CountEngineAbort() { m.engineAborts.WithLabelValues().Inc() }

// CountNoText counts a request without text to route by.
func (m *ModelMetrics) CountNoText() { m.noText.WithLabelValues().Inc() }

// ObserveOverhead records the time spent in berth itself before an attempt.
func (m *ModelMetrics) ObserveOverhead(d time.Duration) { m.overhead.Observe(d.Seconds()) }

// histogram is a histogram without labels, exposed from the first observation on. A vector would
// cost a hash of the labels per request.
type histogram struct {
	prometheus.Histogram
	observed atomic.Bool
}

// Observe adds one observation.
func (h *histogram) Observe(v float64) {
	if !h.observed.Load() { // an unconditional store would take the cache line from all other processors
		h.observed.Store(true)
	}
	h.Histogram.Observe(v)
}

func (h *histogram) Collect(ch chan<- prometheus.Metric) {
	if h.observed.Load() {
		h.Histogram.Collect(ch)
	}
}

func (m *ModelMetrics) describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all {
		c.Describe(ch)
	}
}

func (m *ModelMetrics) collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all {
		c.Collect(ch)
	}
}

// countMetrics adds a finished request to the metrics of its model.
func (r *Request) countMetrics() {
	m := r.Metrics
	if r.Measured {
		r.recordUsage()
	}
	if r.Waited > 0 {
		m.wait.Observe(r.Waited.Seconds())
	}
	if r.ErrorCode == CodeClientGone {
		m.aborts.WithLabelValues(r.Phase).Inc()
	}
	if m.model != "" {
		m.duration.Observe(r.end.Sub(r.Start).Seconds())
	}
	m.requests.at(r.Route).add(r.Status)
}

// recordUsage adds the latencies and tokens of a relayed response, complete or not: a disconnected
// client has used the tokens sent so far.
func (r *Request) recordUsage() {
	m := r.Metrics
	if first := r.Response.FirstByte; !first.IsZero() {
		m.firstByte.Observe(first.Sub(r.Start).Seconds())
	}
	if !r.Tap.FirstContent.IsZero() {
		m.firstToken.Observe(r.Tap.FirstContent.Sub(r.Start).Seconds())
		m.gaps.addStream(&r.Tap.Gaps)
	}
	m.tokens.at(r.Key).add(&r.Tap)
}
