// Package telemetry reports what the ingress does: metrics, the access log, the decision log, the
// most recent routing decisions, and OpenTelemetry spans.
//
// The ingress fills in one flat [Request] while a request passes and hands it to [Telemetry.Record]
// once, at the end. Counters and histograms are kept here; gauges are read from the [State] that
// the ingress supplies at the time of a scrape, so that there is no second ledger that could drift.
//
// Nothing in this package makes a request wait for a disk or a network: log lines and spans are
// buffered, and dropped and counted if their output does not keep up.
package telemetry
