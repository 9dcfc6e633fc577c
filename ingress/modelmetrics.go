package ingress

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// modelMetrics are the counters and histograms of one model. They live exactly as long as it does: a
// request that outlives its model counts into series that no scrape reads any more, and a model that
// comes back begins at zero. A series is shown from its first event on.
type modelMetrics struct {
	requests       *prometheus.CounterVec // route, status
	duration       *histogram             // histograms have no label but the model's
	firstByte      *histogram
	firstToken     *histogram
	gaps           *gapHistogram
	overhead       *histogram
	wait           *histogram
	reservations   *prometheus.CounterVec    // outcome
	accepted       func() prometheus.Counter // of them
	releases       *prometheus.CounterVec    // cause
	retries        *prometheus.CounterVec    // reason
	aborts         *prometheus.CounterVec    // phase
	upstreamErrors *prometheus.CounterVec    // phase
	noText         *prometheus.CounterVec
	tokens         *prometheus.CounterVec // key, kind
	matches        *histogram

	all []prometheus.Collector
}

var (
	requestBuckets  = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	overheadBuckets = []float64{5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2}
	matchBuckets    = []float64{0, .1, .25, .5, .75, .9, .99}
)

func newModelMetrics(model string) *modelMetrics {
	m, of := &modelMetrics{gaps: newGapHistogram(model)}, prometheus.Labels{"model": model}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: of}, labels)
		m.all = append(m.all, v)
		return v
	}
	newHistogram := func(name, help string, buckets []float64) *histogram {
		h := &histogram{Histogram: prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, ConstLabels: of})}
		m.all = append(m.all, h)
		return h
	}
	m.requests = counter("berth_requests_total", "Requests by how they were answered; 499 is a client that left before an answer.", "route", "status")
	m.duration = newHistogram("berth_request_duration_seconds", "From a request's head to the end of its answer.", requestBuckets)
	m.firstByte = newHistogram("berth_time_to_first_byte_seconds", "From a request's head to the first byte of the replica's answer at the client.", requestBuckets)
	m.firstToken = newHistogram("berth_time_to_first_token_seconds", "From a request's head to the first event with content at the client, of streams.", requestBuckets)
	m.overhead = newHistogram("berth_overhead_seconds", "What berth itself took: scan, choose, reserve and prepare the dispatch; without waiting in line or for the replica.", overheadBuckets)
	m.wait = newHistogram("berth_queue_wait_seconds", "How long requests that had to wait were in line, with or without success.", requestBuckets)
	m.reservations = counter("berth_reservations_total", "Slots asked for, by outcome; unclear is a reservation that had no clear answer and was cancelled.", "outcome")
	m.accepted = sync.OnceValue(func() prometheus.Counter { return m.reservations.WithLabelValues("accepted") })
	m.releases = counter("berth_releases_total", "Slots given back, by cause.", "cause")
	m.retries = counter("berth_retries_total", "Further attempts, by what ended the one before.", "reason")
	m.aborts = counter("berth_aborts_total", "Requests that their client gave up, by phase.", "phase")
	m.upstreamErrors = counter("berth_upstream_errors_total", "Attempts that a replica failed, by phase.", "phase")
	m.noText = counter("berth_requests_without_routing_text_total", "Requests that were ranked by load for want of a text to route by.")
	m.tokens = counter("berth_tokens_total", "Tokens as replicas reported them, by the name of the API key: prompt, of which cached is a part, and completion. Estimated are the events with content of streams without a report.", "key", "kind")
	m.matches = newHistogram("berth_prefix_match_ratio", "The part of a prompt's blocks that the chosen replica was held to know.", matchBuckets)
	m.all = append(m.all, m.gaps)
	return m
}

// histogram is a histogram that is exposed from its first observation on.
type histogram struct {
	prometheus.Histogram
	observed atomic.Bool
}

func (h *histogram) Observe(v float64) {
	if !h.observed.Load() { // a store each time would take the cache line from all others
		h.observed.Store(true)
	}
	h.Histogram.Observe(v)
}

func (h *histogram) Collect(ch chan<- prometheus.Metric) {
	if h.observed.Load() {
		h.Histogram.Collect(ch)
	}
}

func (m *modelMetrics) describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all {
		c.Describe(ch)
	}
}

func (m *modelMetrics) collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all {
		c.Collect(ch)
	}
}

// count returns the counter with these labels, two at most. The library has the slice of labels
// escape; here it is the visit's own memory, so that no request allocates for it.
func (v *requestState) count(vec *prometheus.CounterVec, labels ...string) prometheus.Counter {
	n := copy(v.labels[:], labels)
	return vec.WithLabelValues(v.labels[:n]...)
}

// observed counts a request that was answered, or left, with status.
func (v *requestState) observed(route string, status int, took time.Duration) {
	v.count(v.metrics.requests, route, statusLabel(status)).Inc()
	if v.model != "" {
		v.metrics.duration.Observe(took.Seconds())
	}
}

// statusLabels are the texts of all statuses that make sense.
var statusLabels = func() (texts [600]string) {
	for status := range texts {
		texts[status] = strconv.Itoa(status)
	}
	return texts
}()

func statusLabel(status int) string {
	if status < 0 || status >= len(statusLabels) {
		return strconv.Itoa(status)
	}
	return statusLabels[status]
}
