package telemetry

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"berth/config"
)

// Telemetry records requests and exposes metrics, logs, decisions and spans. Any goroutine may call
// the methods unless they say otherwise.
type Telemetry struct {
	log         *slog.Logger
	metrics     *metrics
	accessLog   accessLog
	decisionLog decisionLog
	decisions   *decisionRing // nil: not kept
	tracing     *Tracing      // nil: no spans
}

// Options configure a Telemetry.
type Options struct {
	State     func() State // called once per scrape, by any goroutine; must not block
	Log       *slog.Logger
	Tracing   *Tracing // nil for no spans; closed with the Telemetry
	Decisions bool     // keep recent decisions for ServeDecisions
}

// New returns a Telemetry. Both logs are off until UseLogs.
func New(o Options) *Telemetry {
	t := &Telemetry{log: o.Log, metrics: newMetrics(), tracing: o.Tracing}
	t.metrics.registry.MustRegister(stateCollector{o.State, t.metrics.noModel})
	if o.Decisions {
		t.decisions = new(decisionRing)
	}
	return t
}

// Begin starts the record r of a request and, with tracing, the span. r.Start must be set. The
// caller must use the returned request instead of in, and call Record once at the end.
func (t *Telemetry) Begin(r *Request, in *http.Request, route string, probe bool) *http.Request {
	r.Method, r.Path, r.RemoteAddr = in.Method, in.URL.Path, in.RemoteAddr
	r.Route, r.Probe, r.Metrics = route, probe, t.metrics.noModel
	return t.tracing.startRequest(r, in)
}

// Record reports a request after its end. It is called from a deferred function, after a panic too,
// and does not block on any output.
//
// The log line comes last, and the counter of requests last among the metrics: once either is
// visible, everything else of the request has been reported.
func (t *Telemetry) Record(r *Request) {
	r.end = time.Now()
	t.decisionLog.record(r)
	r.endSpan()
	r.countMetrics()
	if !r.Probe {
		t.accessLog.record(r)
	}
}

// MetricsHandler returns the handler of scrapes.
func (t *Telemetry) MetricsHandler() http.Handler {
	return promhttp.HandlerFor(t.metrics.registry, promhttp.HandlerOpts{})
}

// CountLookup counts a search for the replica with a stored response, by result.
func (t *Telemetry) CountLookup(result string) { t.metrics.lookups.WithLabelValues(result).Inc() }

// CountRefusedConnection counts a client connection beyond the limit.
func (t *Telemetry) CountRefusedConnection() { t.metrics.refusedConnections.Inc() }

// CountExhaustion counts a connection lost to a lack of descriptors, ports or memory.
func (t *Telemetry) CountExhaustion() { t.metrics.exhausted.Inc() }

// ConfigLoaded records that a configuration was applied now.
func (t *Telemetry) ConfigLoaded() {
	t.metrics.reloadSuccess.Set(1)
	t.metrics.reloadTime.SetToCurrentTime()
}

// ConfigRejected records that a configuration could not be loaded or applied.
func (t *Telemetry) ConfigRejected() { t.metrics.reloadSuccess.Set(0) }

// Logs are the outputs of one configuration. They belong to the caller of OpenLogs until UseLogs.
type Logs struct {
	access, decisions io.WriteCloser // nil: off
	pseudonymizer     *pseudonymizer // of the decision log
}

// OpenLogs opens the outputs of a configuration without using them yet, so a configuration with
// faults elsewhere changes nothing. The caller must pass them to UseLogs or close them.
func (t *Telemetry) OpenLogs(c *config.Config) (*Logs, error) {
	var l Logs
	var err error
	if l.access, err = openAccessLog(c.AccessLog); err != nil {
		return nil, fmt.Errorf("the access log: %w", err)
	}
	if l.decisions, l.pseudonymizer, err = t.decisionLog.open(c.DecisionLog); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &l, nil
}

// Close closes outputs that are not in use.
func (l *Logs) Close() error {
	var errs []error
	for _, out := range []io.Closer{l.access, l.decisions} {
		if out != nil {
			errs = append(errs, out.Close())
		}
	}
	return errors.Join(errs...)
}

// UseLogs replaces the outputs of both logs and closes the previous ones. It waits for writes in
// progress. Calls must not overlap.
func (t *Telemetry) UseLogs(l *Logs) {
	t.accessLog.setOutput(l.access, t.metrics, t.log)
	t.decisionLog.setOutput(l.decisions, l.pseudonymizer, t.metrics, t.log)
}

// LogsDecisions reports whether the decision log is on, which needs the hashes of prompts.
func (t *Telemetry) LogsDecisions() bool { return t.decisionLog.pseudonymizer.Load() != nil }

// Close writes all buffered lines and spans, waiting a few seconds at most for each output. No
// request may be in progress any more.
func (t *Telemetry) Close() {
	t.decisionLog.close()
	t.accessLog.close()
	t.tracing.Close(t.log)
}
