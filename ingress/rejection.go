package ingress

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/tidwall/gjson"

	"berth/ingress/telemetry"
	"berth/internal/openai"
	"berth/llmserver"
	"berth/routers"
	"berth/streaming"
)

// Reasons for which a complete response is not sent to the client. Each wraps the failure of the
// replica: one that aborts requests is about to stop and is no more at fault than a draining one.
var (
	errEngineAborted   = fmt.Errorf("the engine aborted a request: %w", llmserver.ErrDraining)
	errInvalidResponse = fmt.Errorf("%w: not valid JSON", llmserver.ErrNotHTTP)
)

// holdResponse has relay hold back the response until Check has accepted it, if another attempt may
// follow then: the response is JSON and successful, the request is not streamed and creates nothing
// that stays. It reports whether it has; then the body of the request must be kept meanwhile.
func (x *proxyRequest) holdResponse(relay *streaming.Relay, resp *http.Response) (held bool) {
	x.held = nil
	if x.record.Stream || resp.StatusCode != http.StatusOK || openai.CreatesStored(x.c.Request.URL.Path) || !streaming.IsJSON(resp.Header) {
		return false
	}
	relay.Check, x.held = x, resp
	return true
}

// Check implements streaming.Checker for the response in x.held. A response that the engine aborted
// is kept, for the client if no other replica can serve the request. With an accepted response no
// other attempt follows.
func (x *proxyRequest) Check(body []byte, complete bool) error {
	if complete && openai.Aborted(body) {
		kept := *x.held
		kept.Body = io.NopCloser(bytes.NewReader(bytes.Clone(body)))
		x.aborted = &kept
		return errEngineAborted
	}
	if complete && !isJSONText(body) {
		return errInvalidResponse
	}
	x.held = nil
	x.releaseBody()
	return nil
}

// isJSONText reports whether body can be JSON text. Of an object or array only both ends are
// looked at, which costs nothing and finds a body that was cut short or is something else: what is
// in between is the engine's affair, since some write NaN, and clients accept that.
func isJSONText(body []byte) bool {
	text := bytes.TrimFunc(body, func(c rune) bool { return c <= ' ' })
	if n := len(text); n > 1 && (text[0] == '{' && text[n-1] == '}' || text[0] == '[' && text[n-1] == ']') {
		return true
	}
	return gjson.ValidBytes(text)
}

// reportEngineAbort logs and counts a response that the engine aborted: one that Check rejected
// with err, or a stream, which has been relayed with its finish reason. A replica may abort many
// requests at once, and each is a line of its own: it names the request.
func (x *proxyRequest) reportEngineAbort(err error) {
	if !x.record.Tap.Aborted && !errors.Is(err, errEngineAborted) {
		return
	}
	x.model.metrics.CountEngineAbort()
	x.log.Warn("an engine aborted a response; if it was stopped, give it time to finish its requests (vLLM: --shutdown-timeout)",
		"replica", x.record.Replica, "model", x.model.config.ID, "stream", x.record.Stream, "request_id", requestID(x.c))
}

// keptResponse returns the response for a client whose last attempt failed with err: one that an
// engine aborted, if there was one, or the last busy response of an engine, if this attempt met only
// busy engines or no available replica. The result is nil if an error is more apt.
func (x *proxyRequest) keptResponse(err error) *http.Response {
	_, none := errors.AsType[*routers.UnavailableError](err)
	switch {
	case x.aborted != nil:
		return x.aborted
	case none || errors.Is(err, llmserver.ErrBusy):
		return x.refusal
	default:
		return nil
	}
}

// writeKept sends the client a kept response, unchanged. If the client disconnects meanwhile,
// writeKept panics as abort does.
func (x *proxyRequest) writeKept(resp *http.Response) error {
	x.record.Phase = telemetry.PhaseStreaming
	resp.Header.Del(requestIDHeader)
	var tap *streaming.Tap
	if resp == x.aborted {
		tap, x.record.Measured = &x.record.Tap, true // it has tokens
	}
	var err error
	relay := x.relayFor(x.c.Request.URL.Path, 0)
	if x.record.Response, err = relay.Copy(x.c.Request.Context(), x.c.Writer, resp, tap); err != nil {
		x.abort(err)
	}
	return nil
}
