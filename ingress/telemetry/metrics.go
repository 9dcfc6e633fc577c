package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metrics are the counters of the process. Those of a model are in ModelMetrics; gauges are read
// from State.
type metrics struct {
	registry *prometheus.Registry
	noModel  *ModelMetrics // of requests without a known model; the model label is empty

	decisionLogDropped, accessLogDropped prometheus.Counter // lines
	refusedConnections                   prometheus.Counter
	exhausted                            prometheus.Counter
	lookups                              *prometheus.CounterVec // result

	reloadSuccess, reloadTime prometheus.Gauge
}

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), noModel: NewModelMetrics("")}
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
	m.decisionLogDropped = counter("berth_decision_log_dropped_total", "Lines of the decision log that were dropped because they could not be written.")
	m.accessLogDropped = counter("berth_access_log_dropped_total", "Lines of the access log that were dropped because they could not be written.")
	m.refusedConnections = counter("berth_connections_refused_total", "Client connections beyond the limit, which got a 503 response and were closed.")
	m.exhausted = counter("berth_exhausted_total", "Connections to replicas or from clients that failed because berth or its host was out of descriptors, ports or memory.")
	m.lookups = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_response_lookups_total",
		Help: "Searches among all replicas for the one that has a stored response, by result; remembered is a search that was saved because a recent one had the result.",
	}, []string{"result"})
	m.reloadSuccess = gauge("berth_config_last_reload_successful", "1 if the last configuration was loaded without error, else 0.")
	m.reloadTime = gauge("berth_config_last_reload_success_timestamp_seconds", "Unix time at which a configuration was last applied.")
	m.registry.MustRegister(m.lookups, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}
