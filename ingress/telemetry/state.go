package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"berth/llmserver"
	"berth/routers"
)

// State is the state of the ingress at the time of a scrape, the source of all gauges.
type State struct {
	Draining           bool
	BufferedBytes      int64 // request bodies held in memory
	BufferedBytesLimit int64
	Connections        int // of clients
	ConnectionLimit    int64
	Keys               []KeyState
	Models             []ModelState
	Sources            []SourceState
	Replicas           []*llmserver.Replica // of all models, leaving ones first
}

// KeyState is the state of an API key.
type KeyState struct {
	Name    string
	Ongoing int64
}

// ModelState is the state of a model.
type ModelState struct {
	Metrics *ModelMetrics
	Router  *routers.Router
}

// SourceState is the state of a source of replicas.
type SourceState struct {
	Model, Source string
	Up            bool // the last attempt has succeeded
	Replicas      int  // in the last set
}

// stateCollector exposes a State and the metrics of its models.
type stateCollector struct {
	read    func() State
	noModel *ModelMetrics
}

var (
	descSlots    = prometheus.NewDesc("berth_slots", "Slots in use, by state: reserved until the request is sent, then running.", []string{"model", "replica", "state"}, nil)
	descCapacity = prometheus.NewDesc("berth_slots_capacity", "Slots of a replica.", []string{"model", "replica"}, nil)
	descUp       = prometheus.NewDesc("berth_replica_up", "1 if the replica can be chosen, 0 if not: down, draining, gone, or ejected and not needed by the panic threshold.", []string{"model", "replica"}, nil)
	descState    = prometheus.NewDesc("berth_replica_state", "1 for the state that the replica is in, 0 for the others.", []string{"model", "replica", "state"}, nil)
	descEjected  = prometheus.NewDesc("berth_replica_ejections_total", "Ejections of the replica because of failing requests.", []string{"model", "replica"}, nil)
	descKeys     = prometheus.NewDesc("berth_key_ongoing_requests", "Requests in progress by name of the API key: POSTs, and requests for stored responses.", []string{"key"}, nil)
	descQueue    = prometheus.NewDesc("berth_queue_length", "Requests in the queue.", []string{"model"}, nil)
	descHandoffs = prometheus.NewDesc("berth_queue_handoffs_total", "Slots that were handed over to a queued request.", []string{"model"}, nil)
	descSkips    = prometheus.NewDesc("berth_queue_skips_total", "Queued requests that were passed over for a younger one that ranks the replica better.", []string{"model"}, nil)
	descOverload = prometheus.NewDesc("berth_queue_overloaded", "1 while requests are refused at once because clients left the queue before they were served.", []string{"model"}, nil)
	descDraining = prometheus.NewDesc("berth_draining", "1 from the signal to stop until the process ends.", nil, nil)
	descRanks    = prometheus.NewDesc("berth_route_rank_total", "Placed requests, by the rank of the replica in their policy.", []string{"model", "rank"}, nil)

	descIndexBytes = prometheus.NewDesc("berth_prefix_index_bytes", "Memory of the prefix index.", []string{"model"}, nil)
	descEvictions  = prometheus.NewDesc("berth_prefix_index_evictions_total", "Entries evicted from the prefix index to make room for others.", []string{"model"}, nil)
	descRebuilds   = prometheus.NewDesc("berth_ring_rebuilds_total", "Rebuilds of the hash ring after a change of membership.", []string{"model"}, nil)

	descSourceUp       = prometheus.NewDesc("berth_source_up", "1 if the source of replicas has published a set and its last attempt succeeded. While it is 0, the last set stays.", []string{"model", "source"}, nil)
	descSourceReplicas = prometheus.NewDesc("berth_source_replicas", "Replicas in the last set of a source.", []string{"model", "source"}, nil)

	descBuffered        = prometheus.NewDesc("berth_buffered_bytes", "Bytes of request bodies held in memory.", nil, nil)
	descBufferedLimit   = prometheus.NewDesc("berth_buffered_bytes_limit", "Limit of the bytes of request bodies held in memory.", nil, nil)
	descConnections     = prometheus.NewDesc("berth_connections", "Open client connections.", nil, nil)
	descConnectionLimit = prometheus.NewDesc("berth_connections_limit", "Limit of open client connections.", nil, nil)
)

// rankLabels are the labels of the ranks counted by routers.
var rankLabels = [...]string{"1", "2", "3", "4+"}

func (s stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descSlots, descCapacity, descUp, descState, descEjected, descKeys, descQueue, descHandoffs, descSkips, descOverload, descDraining,
		descRanks, descIndexBytes, descEvictions, descRebuilds, descBuffered, descBufferedLimit, descConnections, descConnectionLimit,
		descSourceUp, descSourceReplicas} {
		ch <- d
	}
	s.noModel.describe(ch)
}

func (s stateCollector) Collect(ch chan<- prometheus.Metric) {
	out, state := exposition{ch}, s.read()
	out.gauge(descBuffered, float64(state.BufferedBytes))
	out.gauge(descBufferedLimit, float64(state.BufferedBytesLimit))
	out.gauge(descConnections, float64(state.Connections))
	out.gauge(descConnectionLimit, float64(state.ConnectionLimit))
	out.gauge(descDraining, boolToFloat(state.Draining))
	for _, key := range state.Keys {
		out.gauge(descKeys, float64(key.Ongoing), key.Name)
	}
	s.noModel.collect(ch)
	for _, m := range state.Models {
		m.Metrics.collect(ch)
		out.router(m.Metrics.model, m.Router)
	}
	for _, source := range state.Sources {
		out.gauge(descSourceUp, boolToFloat(source.Up), source.Model, source.Source)
		out.gauge(descSourceReplicas, float64(source.Replicas), source.Model, source.Source)
	}
	out.replicas(state.Replicas)
}

// exposition writes the series of one scrape.
type exposition struct{ ch chan<- prometheus.Metric }

func (e exposition) gauge(d *prometheus.Desc, v float64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (e exposition) counter(d *prometheus.Desc, v uint64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

// router exposes the queue of a model, its placements and the statistics of its policy.
func (e exposition) router(model string, r *routers.Router) {
	e.gauge(descQueue, float64(r.QueueLength()), model)
	e.gauge(descOverload, boolToFloat(r.Overloaded()), model)
	handoffs, skips := r.Handoffs()
	e.counter(descHandoffs, handoffs, model)
	e.counter(descSkips, skips, model)
	for i, n := range r.Ranks() {
		e.counter(descRanks, n, model, rankLabels[i])
	}
	p, ok := r.Policy().(routers.Introspector)
	if !ok {
		return
	}
	p.Stats(func(name string, v float64) {
		switch name {
		case routers.StatIndexBytes:
			e.gauge(descIndexBytes, v, model)
		case routers.StatIndexEvictions:
			e.counter(descEvictions, uint64(v), model)
		case routers.StatRingRebuilds:
			e.counter(descRebuilds, uint64(v), model)
		}
	})
}

// replicas exposes the slots and the state of every replica. Replicas of the same name are summed
// up: one may be leaving after another has joined.
func (e exposition) replicas(all []*llmserver.Replica) {
	type name struct{ model, id string }
	type total struct {
		llmserver.Usage
		up        float64
		state     string
		ejections uint64
	}
	totals := make(map[name]total)
	for _, replica := range all {
		n, usage := name{replica.Endpoint().Model, replica.ID()}, replica.Usage()
		sum := totals[n]
		sum.Reserved += usage.Reserved
		sum.Running += usage.Running
		sum.Limit += usage.Limit
		sum.ejections += replica.Ejections()
		sum.state = replica.State() // of the last one: leaving replicas come first
		if replica.Available() {
			sum.up = 1
		}
		totals[n] = sum
	}
	for n, sum := range totals {
		e.gauge(descSlots, float64(sum.Reserved), n.model, n.id, "reserved")
		e.gauge(descSlots, float64(sum.Running), n.model, n.id, "running")
		e.gauge(descCapacity, float64(sum.Limit), n.model, n.id)
		e.gauge(descUp, sum.up, n.model, n.id)
		for _, state := range llmserver.States {
			e.gauge(descState, boolToFloat(state == sum.state), n.model, n.id, state)
		}
		e.counter(descEjected, sum.ejections, n.model, n.id)
	}
}

func boolToFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
