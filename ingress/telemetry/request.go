package telemetry

import (
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"

	"berth/streaming"
)

// The phases of a request, by which client disconnects and upstream errors are counted.
const (
	PhaseBody      = "body"       // the request body is being read
	PhaseWaiting   = "waiting"    // no slot yet
	PhaseConnect   = "connect"    // no connection to the replica yet
	PhaseFirstByte = "first_byte" // sent, no response yet
	PhaseStreaming = "streaming"  // the response is being relayed
)

// Error codes with an influence on the outcome of a request. All other codes come from the table of
// API errors.
const (
	CodeClientGone    = "client_gone"    // the client disconnected
	CodeInternalError = "internal_error" // a handler panicked or met an unknown error
)

// Request is the record of one request: all facts for metrics, logs and spans.
//
// The ingress owns the record and writes the fields on the request's own goroutine, from
// Telemetry.Begin until Telemetry.Record, which reports them. This package keeps no pointer after
// Record has returned, so the memory can be pooled. The fields are plain values on purpose: a
// request neither logged nor traced costs no allocation.
type Request struct {
	// Known from the header.
	ID         string // sent to the client and the replica
	Method     string
	Path       string
	Route      string // the metric label of the path, one of a fixed set
	RemoteAddr string // host:port
	Probe      bool   // a health check or a scrape: counted, but neither logged nor traced
	Key        string // name of the API key; empty if none was required
	Start      time.Time

	// Known from the body. They stay empty for requests that berth serves itself.
	Proxied   bool // the request is for a replica, even if none was reached
	Stream    bool // the client asked for an event stream
	BodyBytes int
	BodyRead  time.Time // end of the body; zero if incomplete
	Model     string    // configured ID; empty if no model was found
	Adapter   string
	Session   string
	Policy    string
	Metrics   *ModelMetrics // of the model, or of requests without a model; never nil after Begin

	// The prompt in blocks, for policies that rank by prefix and for the decision log. BlockBytes
	// is 0 if the prompt was not hashed.
	Blocks                  []uint64
	BlockBytes, PromptBytes int

	// The attempts. Replica, Rank, Matched and Dispatched are those of the last one.
	Phase      string
	Attempts   int
	Replica    string
	Rank       int // of the replica's tier, from 1
	Matched    int // blocks of the prompt expected in the replica's cache
	Waited     time.Duration
	Dispatched time.Time

	// The relayed part of the response. Measured is true if the response passed through Tap, so
	// that latency and tokens count in the metrics: true for responses to dispatched requests,
	// false for busy responses and stored responses.
	Measured bool
	Response streaming.Result
	Tap      streaming.Tap

	// The end.
	Status    int    // as sent to the client; 499 after a disconnect before any status
	ErrorCode string // of berth's error response or abort; empty for relayed responses
	Truncated bool   // the connection or stream was aborted within the response

	end  time.Time
	span trace.Span // nil if the request is not traced
}

// Outcome returns the outcome for logs and spans. finished is a response relayed to the end, with
// any status; refused and failed are error responses of berth's own.
func (r *Request) Outcome() string {
	switch {
	case r.ErrorCode == "":
		return "finished"
	case r.ErrorCode == CodeClientGone:
		return "client_gone"
	case r.ErrorCode == CodeInternalError:
		return "failed"
	case r.Truncated:
		return "upstream_broken"
	case r.Status == http.StatusBadGateway || r.Status == http.StatusGatewayTimeout:
		return "failed"
	default:
		return "refused"
	}
}
