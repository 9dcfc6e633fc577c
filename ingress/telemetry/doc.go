// Package telemetry reports on the ingress: metrics, the access log, the decision log, the most
// recent routing decisions, and OpenTelemetry spans.
//
// The ingress fills in one flat [Request] per request and passes the record to [Telemetry.Record]
// once, at the end. Counters and histograms are kept here. Gauges are read from the [State]
// supplied by the ingress at the time of a scrape, so no second ledger can drift.
//
// No request waits for a disk or a network: log lines and spans are buffered, and dropped and
// counted if their output does not keep up.
package telemetry
