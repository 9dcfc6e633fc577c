package ingress

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"berth/llmserver"
	"berth/routers"
)

type (
	counters   = series[prometheus.Counter]
	histograms = series[prometheus.Observer]
)

// metrics are what berth tells about itself. Counters and histograms live
// here; gauges are readings of the state at the time of a scrape.
type metrics struct {
	registry *prometheus.Registry

	requests       *counters    // model, route, status
	duration       *histograms  // model
	firstByte      *histograms  // model
	firstToken     *histograms  // model
	gaps           gapHistogram // model
	overhead       *histograms  // model
	wait           *histograms  // model
	reservations   *counters    // model, outcome
	releases       *counters    // model, cause
	retries        *counters    // model, reason
	aborts         *counters    // model, phase
	upstreamErrors *counters    // model, phase
	noText         *counters    // model
	tokens         *counters    // model, key, kind
	matches        *histograms  // model

	unlogged     prometheus.Counter // of the decision log
	droppedLines prometheus.Counter // of the access log

	reloaded   prometheus.Gauge
	reloadTime prometheus.Gauge

	mu      sync.Mutex
	removed map[string]bool // models that are served no longer
}

// The phases of a request, for aborts by the client and errors of the upstream.
const (
	phaseBody      = "body"       // the request body is being read
	phaseWaiting   = "waiting"    // no slot yet
	phaseConnect   = "connect"    // no connection to the replica
	phaseFirstByte = "first_byte" // sent, no answer yet
	phaseStreaming = "streaming"  // the answer is passing
)

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), removed: make(map[string]bool)}
	counter := func(name, help string, labels ...string) *counters {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		m.registry.MustRegister(v)
		return &counters{vec: v}
	}
	histogram := func(name, help string, buckets []float64) *histograms {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"model"})
		m.registry.MustRegister(v)
		return &histograms{vec: v}
	}
	gauge := func(name, help string) prometheus.Gauge {
		v := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		m.registry.MustRegister(v)
		return v
	}
	long := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	m.requests = counter("berth_requests_total", "Requests by how they were answered; 499 is a client that left before an answer.", "model", "route", "status")
	m.duration = histogram("berth_request_duration_seconds", "From a request's head to the end of its answer.", long)
	m.firstByte = histogram("berth_time_to_first_byte_seconds", "From a request's head to the first byte of the replica's answer at the client.", long)
	m.firstToken = histogram("berth_time_to_first_token_seconds", "From a request's head to the first event with content at the client, of streams.", long)
	m.gaps.models = make(map[string]*gapSum)
	m.registry.MustRegister(&m.gaps)
	m.overhead = histogram("berth_overhead_seconds", "What berth itself took: scan, choose, reserve and prepare the dispatch; without waiting in line or for the replica.",
		[]float64{5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2})
	m.wait = histogram("berth_queue_wait_seconds", "How long requests that had to wait were in line, with or without success.", long)
	m.reservations = counter("berth_reservations_total", "Slots asked for, by outcome; unclear is a reservation that had no clear answer and was cancelled.", "model", "outcome")
	m.releases = counter("berth_releases_total", "Slots given back, by cause.", "model", "cause")
	m.retries = counter("berth_retries_total", "Further attempts, by what ended the one before.", "model", "reason")
	m.aborts = counter("berth_aborts_total", "Requests that their client gave up, by phase.", "model", "phase")
	m.upstreamErrors = counter("berth_upstream_errors_total", "Attempts that a replica failed, by phase.", "model", "phase")
	m.noText = counter("berth_requests_without_routing_text_total", "Requests that were ranked by load for want of a text to route by.", "model")
	m.tokens = counter("berth_tokens_total", "Tokens as replicas reported them, by the name of the API key: prompt, of which cached is a part, and completion. Estimated are the events with content of streams without a report.", "model", "key", "kind")
	m.matches = histogram("berth_prefix_match_ratio", "The part of a prompt's blocks that the chosen replica was held to know.",
		[]float64{0, .1, .25, .5, .75, .9, .99})
	m.unlogged = prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_decision_log_dropped_total", Help: "Lines that the decision log could not take or write."})
	m.registry.MustRegister(m.unlogged)
	m.droppedLines = prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_access_log_dropped_total", Help: "Lines of the access log that could not be written."})
	m.registry.MustRegister(m.droppedLines)
	m.reloaded = gauge("berth_config_last_reload_successful", "1 if the configuration was last loaded without error, else 0.")
	m.reloadTime = gauge("berth_config_last_reload_success_timestamp_seconds", "When a configuration was last taken over, in Unix time.")
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// serve shows the series of a model, forget drops them.
func (m *metrics) serve(model string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.removed, model)
}

func (m *metrics) forget(model string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.removed[model] = true
}

// handler answers scrapes. It drops the series of removed models each time, as
// a request that outlives its model makes them anew.
func (m *metrics) handler() http.Handler {
	scrape := promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.sweep()
		scrape.ServeHTTP(w, r)
	})
}

func (m *metrics) sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for model := range m.removed {
		labels := prometheus.Labels{"model": model}
		for _, v := range []interface{ DeletePartialMatch(prometheus.Labels) int }{
			m.requests, m.duration, m.firstByte, m.overhead, m.wait, m.reservations, m.releases, m.retries, m.aborts, m.upstreamErrors, m.noText,
			m.firstToken, &m.gaps, m.tokens, m.matches,
		} {
			v.DeletePartialMatch(labels)
		}
	}
}

// observed counts a request that was answered, or left, with status.
func (m *metrics) observed(model, route string, status int, took time.Duration) {
	m.requests.WithLabelValues(model, route, statusLabel(status)).Inc()
	if model != "" {
		m.duration.WithLabelValues(model).Observe(took.Seconds())
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

// readings is the collector of what is read from the state at scrape time.
type readings struct {
	registry *registry
	budget   *budget
	draining *atomic.Bool
}

var (
	descSlots    = prometheus.NewDesc("berth_slots", "Slots held, by state: reserved until the request is sent, then running.", []string{"model", "replica", "state"}, nil)
	descCapacity = prometheus.NewDesc("berth_slots_capacity", "Slots that a replica has.", []string{"model", "replica"}, nil)
	descUp       = prometheus.NewDesc("berth_replica_up", "1 while the replica is chosen from, 0 while it is down, ejected, draining or gone.", []string{"model", "replica"}, nil)
	descState    = prometheus.NewDesc("berth_replica_state", "1 for the state that the replica is in.", []string{"model", "replica", "state"}, nil)
	descEjected  = prometheus.NewDesc("berth_replica_ejections_total", "Times that a replica was ejected for failing requests.", []string{"model", "replica"}, nil)
	descKeys     = prometheus.NewDesc("berth_key_ongoing_requests", "Requests under way that replicas are asked for, by the name of the API key: POSTs, and those for stored responses.", []string{"key"}, nil)
	descQueue    = prometheus.NewDesc("berth_queue_length", "Requests in the waiting line.", []string{"model"}, nil)
	descHanded   = prometheus.NewDesc("berth_handed_slots_total", "Slots that went to a request in the waiting line.", []string{"model"}, nil)
	descPassed   = prometheus.NewDesc("berth_passed_over_total", "Times that an older request in line was passed over for one that ranks the replica better.", []string{"model"}, nil)
	descDraining = prometheus.NewDesc("berth_draining", "1 from the signal to stop until the end.", nil, nil)
	descRanks    = prometheus.NewDesc("berth_route_rank_total", "Requests placed, by the rank of the replica with their policy.", []string{"model", "rank"}, nil)

	descIndexBytes = prometheus.NewDesc("berth_prefix_index_bytes", "Memory of the index of prefixes.", []string{"model"}, nil)
	descEvictions  = prometheus.NewDesc("berth_prefix_index_evictions_total", "Entries of the index of prefixes that made room for others.", []string{"model"}, nil)
	descRebuilds   = prometheus.NewDesc("berth_ring_rebuilds_total", "Times that the hash ring was built anew for another membership.", []string{"model"}, nil)

	descBuffered = prometheus.NewDesc("berth_buffered_bytes", "Bytes of request bodies held in memory.", nil, nil)
)

func (r readings) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descSlots, descCapacity, descUp, descState, descEjected, descKeys, descQueue, descHanded, descPassed, descDraining, descBuffered,
		descRanks, descIndexBytes, descEvictions, descRebuilds} {
		ch <- d
	}
}

func (r readings) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(descBuffered, float64(r.budget.held.Load()))
	gauge(descDraining, truth(r.draining.Load()))
	for _, key := range r.registry.table.Load().auth {
		gauge(descKeys, float64(key.ongoing.Load()), key.name)
	}
	for _, m := range r.registry.table.Load().models {
		gauge(descQueue, float64(m.router.Waiting()), m.config.ID)
		handed, passed := m.router.Handed()
		counter(descHanded, handed, m.config.ID)
		counter(descPassed, passed, m.config.ID)
		collectPlacing(m, gauge, counter)
	}
	r.collectReplicas(gauge, counter)
}

// collectPlacing reads how a model's policy places requests.
func collectPlacing(m *model, gauge func(*prometheus.Desc, float64, ...string), counter func(*prometheus.Desc, uint64, ...string)) {
	for i, n := range m.router.Ranks() {
		counter(descRanks, n, m.config.ID, [...]string{"1", "2", "3", "4+"}[i])
	}
	policy := m.router.Policy()
	if p, ok := policy.(routers.Prefixed); ok {
		bytes, evictions := p.Index()
		gauge(descIndexBytes, float64(bytes), m.config.ID)
		counter(descEvictions, evictions, m.config.ID)
	}
	if p, ok := policy.(routers.Ringed); ok {
		counter(descRebuilds, p.Rebuilds(), m.config.ID)
	}
}

// truth is a boolean as metrics write it.
func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// collectReplicas reads the slots of every replica.
func (r readings) collectReplicas(gauge func(*prometheus.Desc, float64, ...string), counter func(*prometheus.Desc, uint64, ...string)) {
	type name struct{ model, id string }
	type reading struct {
		llmserver.Usage
		up        float64
		state     string
		ejections uint64
	}
	replicas := make(map[name]reading)
	for _, replica := range r.registry.replicas() {
		n, usage := name{replica.Endpoint().Model, replica.ID()}, replica.Usage()
		sum := replicas[n] // not zero if one is leaving and another has come under its name
		sum.Reserved += usage.Reserved
		sum.Running += usage.Running
		sum.Limit += usage.Limit
		sum.ejections += replica.Ejections()
		sum.state = replica.State() // those that are leaving come first
		if replica.Available() {
			sum.up = 1
		}
		replicas[n] = sum
	}
	for n, sum := range replicas {
		gauge(descSlots, float64(sum.Reserved), n.model, n.id, "reserved")
		gauge(descSlots, float64(sum.Running), n.model, n.id, "running")
		gauge(descCapacity, float64(sum.Limit), n.model, n.id)
		gauge(descUp, sum.up, n.model, n.id)
		for _, state := range llmserver.States {
			gauge(descState, truth(state == sum.state), n.model, n.id, state)
		}
		counter(descEjected, sum.ejections, n.model, n.id)
	}
}
