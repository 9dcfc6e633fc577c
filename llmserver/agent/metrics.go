package agent

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"berth/internal/body"
)

// newMetrics returns the handler of /metrics. All metrics of the agent are read from the table at
// the time of the scrape; no second count is kept.
func newMetrics(t *Table, b *body.Budget) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(stateCollector{t, b}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// A stateCollector reads the table and the buffered bodies for Prometheus.
type stateCollector struct {
	table  *Table
	budget *body.Budget
}

var (
	descSlots        = prometheus.NewDesc("berth_agent_slots", "Slots held, by state.", []string{"state"}, nil)
	descCapacity     = prometheus.NewDesc("berth_agent_slots_capacity", "Slots of the engine.", nil, nil)
	descHighest      = prometheus.NewDesc("berth_agent_slots_highest", "Maximum number of slots held at once.", nil, nil)
	descWaiting      = prometheus.NewDesc("berth_agent_waiting", "Reservations queued.", nil, nil)
	descBuffered     = prometheus.NewDesc("berth_agent_buffered_bytes", "Bytes of request bodies held in memory.", nil, nil)
	descDraining     = prometheus.NewDesc("berth_agent_draining", "1 while draining.", nil, nil)
	descReservations = prometheus.NewDesc("berth_agent_reservations_total", "Reservations requested, by outcome.", []string{"outcome"}, nil)
	descReleases     = prometheus.NewDesc("berth_agent_releases_total", "Reservations and requests that ended, by cause; expired is a lease that ran out.", []string{"cause"}, nil)
	descUnreserved   = prometheus.NewDesc("berth_agent_unreserved_total", "Requests admitted without a reservation.", nil, nil)
)

func (c stateCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

func (c stateCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	t := c.table.Read()
	draining := 0
	if t.Draining {
		draining = 1
	}
	gauge(descSlots, t.Reserved, "reserved")
	gauge(descSlots, t.Running, "running")
	gauge(descCapacity, t.Limit)
	gauge(descHighest, t.Highest)
	gauge(descWaiting, t.Waiting)
	gauge(descBuffered, int(c.budget.Held()))
	gauge(descDraining, draining)
	counter(descReservations, t.Totals.Reserved, "accepted")
	counter(descReservations, t.RefusedFull, "full")
	counter(descReservations, t.RefusedDraining, "draining")
	counter(descReservations, t.RefusedToken, "unknown_token")
	counter(descReleases, t.Consumed, "consumed")
	counter(descReleases, t.Released, "released")
	counter(descReleases, t.Expired, "expired")
	counter(descReleases, t.Finished, "finished")
	counter(descUnreserved, t.Unreserved)
}
