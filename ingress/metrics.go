package ingress

import (
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"berth/internal/body"
	"berth/llmserver"
	"berth/routers"
)

// metrics are what berth tells about itself. Counters and histograms live
// here and with their models; gauges are readings of the state at the time of a scrape.
type metrics struct {
	registry *prometheus.Registry
	noModel  *modelMetrics // of requests for which no model was found, with an empty model

	unlogged     prometheus.Counter // of the decision log
	droppedLines prometheus.Counter // of the access log

	reloaded   prometheus.Gauge
	reloadTime prometheus.Gauge
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
	m := &metrics{registry: prometheus.NewRegistry(), noModel: newModelMetrics("")}
	counter := func(name, help string) prometheus.Counter {
		v := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		m.registry.MustRegister(v)
		return v
	}
	gauge := func(name, help string) prometheus.Gauge {
		v := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		m.registry.MustRegister(v)
		return v
	}
	m.unlogged = counter("berth_decision_log_dropped_total", "Lines that the decision log could not take or write.")
	m.droppedLines = counter("berth_access_log_dropped_total", "Lines of the access log that could not be written.")
	m.reloaded = gauge("berth_config_last_reload_successful", "1 if the configuration was last loaded without error, else 0.")
	m.reloadTime = gauge("berth_config_last_reload_success_timestamp_seconds", "When a configuration was last taken over, in Unix time.")
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// handler serves scrapes.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// readings is the collector of what is read from the state at scrape time.
type readings struct {
	registry *registry
	budget   *body.Budget
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
	r.registry.metrics.noModel.describe(ch)
}

func (r readings) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(descBuffered, float64(r.budget.Held()))
	gauge(descDraining, truth(r.draining.Load()))
	for _, key := range r.registry.table.Load().keys {
		gauge(descKeys, float64(key.ongoing.Load()), key.name)
	}
	r.registry.metrics.noModel.collect(ch)
	for _, m := range r.registry.table.Load().models {
		m.metrics.collect(ch)
		gauge(descQueue, float64(m.router.QueueLength()), m.config.ID)
		handed, passed := m.router.Handoffs()
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
	if p, ok := m.router.Policy().(routers.Introspector); ok {
		p.Stats(func(name string, v float64) {
			switch name {
			case routers.StatIndexBytes:
				gauge(descIndexBytes, v, m.config.ID)
			case routers.StatIndexEvictions:
				counter(descEvictions, uint64(v), m.config.ID)
			case routers.StatRingRebuilds:
				counter(descRebuilds, uint64(v), m.config.ID)
			}
		})
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
	for _, replica := range r.registry.allReplicas() {
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
